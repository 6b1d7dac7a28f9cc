"""Calls of little work stay with PyTorch, and pass its compiler by."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402

import aspen_mp  # noqa: E402

pytestmark = pytest.mark.by_work


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=1) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Cell(nn.Module):
    """A step of a recurrent network: its state is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 16), nn.Linear(16, 4)

    def forward(self, x: Any, state: Any = None, *, scale: float = 1.0) -> Any:
        state = self.cell(x, state)
        return self.head(state[0]) * scale, state


def policy() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6)).eval()


SMALL: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, dict[str, Any]]]]] = {
    "policy": (policy, lambda: ((torch.randn(1, 17),), {})),
    "head": (lambda: nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 5), nn.Softmax(-1)).eval(), lambda: ((torch.randn(1, 64),), {})),
    "cell": (lambda: Cell().eval(), lambda: ((torch.randn(1, 8), (torch.randn(1, 16), torch.randn(1, 16))), {"scale": 2.0})),
    "cell without a state": (lambda: Cell().eval(), lambda: ((torch.randn(1, 8),), {})),
    "keywords": (lambda: Cell().eval(), lambda: ((), {"x": torch.randn(1, 8), "state": None})),
    "embedding": (lambda: nn.EmbeddingBag(100, 8).eval(), lambda: ((torch.randint(0, 100, (2, 5)),), {})),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SMALL)
def test_small_calls_are_pytorchs(runtime: Any, calls: list[int], name: str, dynamic: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    make, give = SMALL[name]
    module = make()
    ours = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime, dynamic=dynamic)
    with torch.no_grad():
        args, kwargs = give()
        torch.testing.assert_close(ours(*args, **kwargs), module(*args, **kwargs))
        calls.clear()  # where sizes vary, the first call asks the runtime
        monkeypatch.setattr(type(ours.forward), "_run", None)  # PyTorch's compiler is not asked from here on
        for _ in range(3):
            args, kwargs = give()
            torch.testing.assert_close(ours(*args, **kwargs), module(*args, **kwargs), rtol=0, atol=0)
    assert not calls


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_large_calls_are_the_runtimes(runtime: Any, calls: list[int], dynamic: bool | None) -> None:
    module = policy()
    ours = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime, dynamic=dynamic)
    with torch.no_grad():
        for rows, large in ((1, False), (2000, True), (1, False), (3, False), (3000, True), (1, False), (2000, True)):
            x = torch.randn(rows, 17)
            ours(x)
            calls.clear()
            torch.testing.assert_close(ours(x), module(x))
            assert bool(calls) == large, rows


def test_a_number_of_operators_decides_where_one_is_given(runtime: Any, calls: list[int]) -> None:
    ours = aspen_mp.optimize(policy(), runtime=runtime, min_block_size=1)
    with torch.no_grad():
        for _ in range(3):
            ours(torch.randn(1, 17))
    assert len(calls) == 3


def test_small_calls_have_gradients(runtime: Any) -> None:
    module = policy()
    ours = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)
    for _ in range(3):
        x = torch.randn(1, 17)
        for each in (module, ours):
            each(x).sin().sum().backward()
    for want, got in zip(module.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_ever_new_sizes_take_no_memory(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aspen_mp.torch.optimized._MOST_SIZES", 4)
    ours = aspen_mp.optimize(policy(), runtime=runtime)
    with torch.no_grad():
        for rows in range(1, 12):
            ours(torch.randn(rows, 17))
    assert len(ours.forward._small) <= 4


def test_arguments_whose_size_is_unknown_are_compiled(runtime: Any) -> None:
    class Keyed(nn.Module):
        def forward(self, given: Any) -> Any:
            return given.tensor * 2 + 1

    class Holder:
        def __init__(self) -> None:
            self.tensor = torch.ones(3)

    ours = aspen_mp.optimize(Keyed().eval(), runtime=runtime)
    with torch.no_grad():
        torch.testing.assert_close(ours(Holder()), torch.full((3,), 3.0))
    assert not ours.forward._small
