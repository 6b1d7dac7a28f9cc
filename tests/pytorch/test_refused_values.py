"""Compiled modules refuse what eager PyTorch refuses: indices out of range, divisions of integers by zero. What it takes, they take."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")

from torch.nn import functional as F  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.errors import DeadlineMissed, PoisonTile, QueueFull, RequestCancelled, RequestError, RequestTimeout  # noqa: E402
from aspen_mp.torch import refusals  # noqa: E402

ROWS, COLUMNS = 5, 4
FIRST, WIDE, CUBE = torch.arange(20.0).view(5, 4), torch.arange(40.0).view(5, 8) / 8, torch.arange(60.0).view(3, 5, 4)
LABELS = torch.log_softmax(torch.arange(15.0).view(3, 5).sin(), -1)
Call = Callable[..., Any]

INDEXED: dict[str, tuple[int, Call]] = {
    "embedding": (ROWS, lambda i: F.embedding(i, WIDE) * 2),
    "embedding of rows": (ROWS, lambda i: F.embedding(i.view(1, 3), FIRST) + 1),
    "embedding, padded": (ROWS, lambda i: F.embedding(i, FIRST, padding_idx=1) + 1),
    "embedding of a computed index": (ROWS, lambda i: F.embedding((i - 1) + 1, FIRST) + 1),
    "gather 0": (ROWS, lambda i: torch.gather(FIRST * 2, 0, i.view(3, 1).repeat(1, 4)) + 1),
    "gather 1": (COLUMNS, lambda i: torch.gather(FIRST * 2, -1, i.expand(5, 3)) + 1),
    "take": (20, lambda i: torch.take(FIRST * 2, i) + 1),
    "take_along_dim": (COLUMNS, lambda i: torch.take_along_dim(FIRST * 2, i.expand(5, 3), 1) + 1),
    "index_select 0": (ROWS, lambda i: torch.index_select(FIRST * 2, 0, i) + 1),
    "index_select -1": (COLUMNS, lambda i: torch.index_select(CUBE * 2, -1, i) + 1),
    "x[i]": (ROWS, lambda i: (FIRST * 2)[i] + 1),
    "x[:, i]": (COLUMNS, lambda i: (FIRST * 2)[:, i] + 1),
    "x[i, i]": (COLUMNS, lambda i: (FIRST * 2)[i, i] + 1),
    "x[:, i, i]": (COLUMNS, lambda i: (CUBE * 2)[:, i, i] + 1),
    "x[i, :, i]": (3, lambda i: (CUBE * 2)[i, :, i] + 1),
    "index_put": (ROWS, lambda i: torch.index_put(FIRST * 2, (i,), WIDE[:3, :4]) + 1),
    "index_put, added": (ROWS, lambda i: torch.index_put(FIRST * 2, (i,), torch.ones(4), accumulate=True) + 1),
    "scatter": (ROWS, lambda i: torch.scatter(FIRST * 2, 0, i.view(3, 1), WIDE) + 1),
    "scatter of a number": (COLUMNS, lambda i: torch.scatter(FIRST * 2, 1, i.view(1, 3), 7.0) + 1),
    "scatter_add": (COLUMNS, lambda i: torch.scatter_add(FIRST * 2, 1, i.expand(5, 3), WIDE) + 1),
    "scatter_reduce": (ROWS, lambda i: torch.scatter_reduce(FIRST[:, 0] * 2, 0, i, WIDE[0, :3], "amax") + 1),
    "index_add": (ROWS, lambda i: torch.index_add(FIRST * 2, 0, i, WIDE[:3, :4]) + 1),
    "index_add, scaled": (COLUMNS, lambda i: torch.index_add(FIRST * 2, 1, i, WIDE[:, :3], alpha=3) + 1),
    "index_copy": (ROWS, lambda i: torch.index_copy(FIRST[:, 0] * 2, 0, i, WIDE[0, :3]) + 1),
    "index_copy 1": (COLUMNS, lambda i: torch.index_copy(FIRST * 2, 1, i, WIDE[:, :3]) + 1),
    "index_fill": (ROWS, lambda i: torch.index_fill(FIRST * 2, 0, i, 7.0) + 1),
    "nll_loss": (5, lambda i: F.nll_loss(LABELS * 2, i) + 1),
    "nll_loss of pixels": (5, lambda i: F.nll_loss((LABELS * 2).T.reshape(1, 5, 1, 3), i.view(1, 1, 3), reduction="sum") + 1),
    "nll_loss, weighed": (5, lambda i: F.nll_loss(LABELS * 2, i, WIDE[0, :5] + 1, ignore_index=2, reduction="none") + 1),
    "cross_entropy": (5, lambda i: F.cross_entropy(LABELS * 2, i, ignore_index=-1, reduction="none") + 1),
    "cross_entropy, smoothed": (5, lambda i: F.cross_entropy(LABELS * 2, i, label_smoothing=0.1) + 1),
}
"""Calls with three indices, and the extent of the axis that these name."""
CHECKED_BY_PYTORCH: dict[str, tuple[int, Call]] = {
    "one_hot": (5, lambda i: F.one_hot(i, 5).float() * 2 + 1),
    "embedding_bag": (ROWS, lambda i: F.embedding_bag(i.view(1, 3), FIRST, mode="sum") * 2 + 1),
    "put": (20, lambda i: torch.put(FIRST * 2, i, WIDE[0, :3]) + 1),
    "index_reduce": (ROWS, lambda i: torch.index_reduce(FIRST * 2, 0, i, WIDE[:3, :4], "amin") + 1),
}
"""The same of operators that stay with PyTorch."""
DIVISIONS: dict[str, Call] = {
    "//": lambda x, y: (x // y) + 1,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor") + 1,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc") + 1,
    "%": lambda x, y: (x % y) + 1,
    "fmod": lambda x, y: torch.fmod(x, y) + 1,
    "/": lambda x, y: (x / y) + 1,
    "**": lambda x, y: (x**y) + 1,
    "number // x": lambda x, y: (7 // y) + x,
    "number % x": lambda x, y: (7 % y) + x,
}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=1) as runtime:
        yield runtime


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        with torch.no_grad():
            return call(*args)
    except Exception as error:
        return error


def compiled(call: Callable[..., Any], runtime: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(call, backend="aspen_mp", dynamic=False, options={"min_block_size": 1, "runtime": runtime})  # type: ignore[no-any-return]


def check(got: Any, want: Any, case: Any, by_pytorch: bool = False) -> None:
    if not isinstance(want, Exception):
        assert not isinstance(got, Exception), (case, got)
        assert (got.dtype, got.shape) == (want.dtype, want.shape), case
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6, equal_nan=True, msg=lambda text: f"{case}: {text}")
        return
    assert isinstance(got, type(want)), (case, got, want)
    if not by_pytorch:
        assert isinstance(got, RequestError), (case, got)
        assert str(got) == str(want), case


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("name", [*INDEXED, *CHECKED_BY_PYTORCH])
def test_indices_have_the_bounds_of_eager_pytorch(name: str, dtype: Any, runtime: Any) -> None:
    n, call = (INDEXED | CHECKED_BY_PYTORCH)[name]
    good = torch.tensor([0, n - 1, 1], dtype=dtype)
    right = outcome(call, good)
    if isinstance(right, Exception):
        pytest.skip(f"PyTorch takes no indices of {dtype}")
    ours = compiled(call, runtime)
    far = torch.iinfo(dtype)
    for value in (-1, 2, 1 - n, -n, -n - 1, n - 1, n, n + 1, -100, far.max, far.min, far.min + 1):
        indices = torch.tensor([0, value, 1], dtype=dtype)
        check(outcome(ours, indices), outcome(call, indices), value, name in CHECKED_BY_PYTORCH)
        check(outcome(ours, good), right, "the call after")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", list(DIVISIONS))
def test_integers_are_divided_as_by_eager_pytorch(name: str, dtype: Any, runtime: Any) -> None:
    if name == "**" and torch.iinfo(dtype).bits < 32:
        pytest.skip("ONNX's Pow takes no such integers")
    call = DIVISIONS[name]
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = torch.tensor([7, least, most, 0], dtype=dtype)
    ones = torch.ones(4, dtype=dtype)
    ours = compiled(call, runtime)
    right = outcome(call, numbers, ones)
    signed = [] if least == 0 else [[-1, 1, -1, -1], [2, -3, -2, -1], [0, 1, -2, 0], [least, least, least, least]]
    for given in ([1, 0, 1, 1], [0, 0, 0, 0], [3, 2, 1, 7], [most, most, most, most], [1, 1, 1, 0], *signed):
        divisor = torch.tensor(given, dtype=dtype)
        check(outcome(ours, numbers, divisor), outcome(call, numbers, divisor), given)
        check(outcome(ours, numbers, ones), right, "the call after")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8], ids=str)
@pytest.mark.parametrize("name", ["//", "floor", "trunc", "%", "fmod"])
def test_the_least_integer_divided_by_minus_one_wraps(name: str, dtype: Any, runtime: Any) -> None:
    """Builds of PyTorch differ: some end the process."""
    least = torch.iinfo(dtype).min
    numbers, divisors = torch.tensor([least, 1, least], dtype=dtype), torch.tensor([-1, -1, -1], dtype=dtype)
    want = [least, -1, least] if name in ("//", "floor", "trunc") else [0, 0, 0]
    assert (outcome(compiled(DIVISIONS[name], runtime), numbers, divisors) - 1).tolist() == want


def test_what_eager_pytorch_takes_is_computed_and_logged_once(runtime: Any, caplog: Any) -> None:
    def fill(x: Any, i: Any) -> Any:
        return x.index_fill(0, i, 3.0) * 2

    ours, x = compiled(fill, runtime), torch.ones(4)
    with caplog.at_level(logging.WARNING, "aspen_mp.torch"):
        for place in (-1, 2, -2):
            i = torch.tensor([place])
            assert torch.equal(ours(x, i), fill(x, i))
    assert [record.name for record in caplog.records] == ["aspen_mp.torch"]
    assert "out of range" in caplog.text


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("base", [-1, -2.5, -0.0, 2])
def test_powers_of_negative_numbers_with_pytorch(base: float, dynamic: bool, runtime: Any) -> None:
    """FX prints `(-1) ** x` as `-1 ** x`."""

    def power(x: Any, i: Any) -> Any:
        return (base ** (x + 1))[i] * int(base) ** x.shape[0]

    torch._dynamo.reset()
    ours = torch.compile(power, backend="aspen_mp", dynamic=dynamic, options={"min_block_size": 1, "runtime": runtime})
    for n in (3, 4, 5):
        for place in (0, 1, -1, -2):
            for differentiable in (False, True):
                x, i = torch.arange(float(n)).requires_grad_(differentiable), torch.tensor([place])
                check(ours(x, i).detach(), power(x, i).detach(), (n, place))


def test_an_optimized_module_whose_weights_are_given_back(runtime: Any) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    good, bad = torch.tensor([[1, 9]]), torch.tensor([[1, -1]])
    want, refusal = outcome(module, good), outcome(module, bad)
    aspen_mp.optimize(module, runtime=runtime, release=True)
    for _ in range(2):
        check(outcome(module, good), want, "good")
        check(outcome(module, bad), refusal, "bad")


def test_arguments_that_a_module_writes_to_are_as_eager_pytorch_leaves_them(runtime: Any) -> None:
    def write(x: Any, i: Any) -> Any:
        x.add_(1)
        x[i] = 5.0
        return x * 2

    ours = compiled(write, runtime)
    for place in (1, 4, -1, -5, 2):
        mine, theirs, i = torch.zeros(4), torch.zeros(4), torch.tensor([place])
        check(outcome(ours, mine, i), outcome(write, theirs, i), place)
        assert torch.equal(mine, theirs)


def test_an_error_is_chained_and_travels(runtime: Any) -> None:
    ours = compiled(lambda i: F.embedding(i, FIRST) * 2, runtime)
    with torch.no_grad(), pytest.raises(IndexError) as caught:
        ours(torch.tensor([7]))
    error = caught.value
    assert type(error.__cause__) is IndexError
    assert type(error).__name__ == "IndexError"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args) == (type(error), error.args)
    assert type(refusals.refused(RuntimeError, ())) is type(refusals.refused(RuntimeError, ("x",)))


@pytest.mark.parametrize("kind", [QueueFull, RequestTimeout, DeadlineMissed, RequestCancelled, PoisonTile])
def test_other_failures_are_raised_as_they_are(kind: type[Exception]) -> None:
    module = torch.fx.symbolic_trace(lambda x: x + 1)

    def run(x: Any) -> Any:
        raise kind("a message")

    with pytest.raises(kind) as caught:
        refusals.with_pytorch(run, module)(torch.ones(1))
    assert type(caught.value) is kind
