"""What PyTorch asks of any backend of `torch.compile`, asked of this one: found by name, as many frames as others, guarded like others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")

import torch_checks  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

BACKEND = torch_checks.BACKEND


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(5)
    with torch_checks.fresh(), torch.no_grad():
        yield


class Breaks(nn.Module):
    """A module whose graph Dynamo cuts in two."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(10, 10), nn.Linear(10, 4)

    def forward(self, x: Any) -> Any:
        y = self.before(x).relu()
        torch._dynamo.graph_break()
        return self.after(y).sigmoid()


def modules() -> list[Any]:
    return [nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10), nn.Sigmoid()).eval(), Breaks().eval()]


def test_found_by_name() -> None:
    assert BACKEND in torch._dynamo.list_backends()
    assert callable(torch._dynamo.lookup_backend(BACKEND))


def test_a_function_as_backend() -> None:
    module = modules()[0]
    x = torch.randn(2, 10)
    ours = torch.compile(module, backend=torch._dynamo.lookup_backend(BACKEND))
    torch_checks.same(ours(x), module(x))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("dynamic", [None, False, True])
def test_as_many_graphs_as_others(number: int, dynamic: bool | None) -> None:
    counts = []
    for backend in ("eager", BACKEND):
        module = modules()[number]
        torch._dynamo.reset()
        counter = CompileCounterWithBackend(backend)
        ours = torch.compile(module, backend=counter, dynamic=dynamic)
        for rows in (2, 3, 5, 2):
            x = torch.randn(rows, 10)
            torch_checks.same(ours(x), module(x))
        counts.append((counter.frame_count, counter.op_count))
    assert counts[0] == counts[1]


def test_a_break_is_refused_in_full_graphs() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(modules()[1], backend=BACKEND, fullgraph=True)(torch.randn(2, 10))


def test_another_backend_for_the_same_code() -> None:
    module, x = modules()[0], torch.randn(2, 10)
    counter = CompileCounterWithBackend("eager")
    for _ in range(2):
        torch_checks.same(torch.compile(module, backend=counter)(x), module(x))
        torch_checks.same(torch.compile(module, backend=BACKEND)(x), module(x))
    assert counter.frame_count == 1, "the other backend's graphs are kept"


def test_disabled_and_reset() -> None:
    module, x = modules()[0], torch.randn(2, 10)
    ours = torch.compile(module, backend=BACKEND)
    before = torch_checks.loaded()
    torch_checks.same(torch.compiler.disable(ours)(x), module(x))
    assert torch_checks.loaded() == before
    torch_checks.same(ours(x), module(x))
    torch._dynamo.reset()
    torch_checks.same(ours(x), module(x))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes(mode: str) -> None:
    module, x = modules()[0], torch.randn(2, 10)
    torch_checks.same(torch.compile(module, backend=BACKEND, mode=mode)(x), module(x))
