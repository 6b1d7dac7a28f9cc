"""Graphs that a runtime does not load, and faults of rules: PyTorch runs them, and a line of the log says why."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch.nn import functional as F  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.shm.errors import PlanError, ResourceLimitError  # noqa: E402
from aspen_mp.torch import backend, registry, weights  # noqa: E402

CALLS: dict[str, Callable[[Any], Any]] = {
    "isnan": torch.isnan,
    "neg": torch.neg,
    "pow": lambda x: x ** x.abs(),
    "cumsum": lambda x: x.cumsum(-1, dtype=x.dtype),
    "sum": lambda x: x.sum(-1, dtype=x.dtype),
    "prod": lambda x: x.prod(-1, dtype=x.dtype),
    "heaviside": lambda x: torch.heaviside(x, x),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "conv2d": lambda x: F.conv2d(x, x[:, :, :2, :2]),
    "sort": lambda x: torch.sort(x, -1).values,
    "mean of halves": lambda x: (x / 2).mean(-1),
    "celu": F.celu,
    "remainder": lambda x: x % 3,
    "matmul": lambda x: x @ x.mT,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture
def compiled(runtime: Any) -> Iterator[Any]:
    torch._dynamo.reset()

    def compiled(function: Any) -> Any:
        return torch.compile(function, backend=backend.aspen_mp, options={"runtime": runtime, "min_block_size": 1})

    with torch.no_grad():
        yield compiled
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.parametrize("name", CALLS)
def test_types_that_eager_takes(compiled: Any, name: str) -> None:
    for dtype in DTYPES:
        torch._dynamo.reset()
        x = torch.arange(16).reshape(1, 1, 4, 4).remainder(5).to(dtype)
        try:
            want = CALLS[name](x)
        except Exception as error:
            with pytest.raises(type(error)):
                CALLS[name](x)
            continue
        got = compiled(CALLS[name])(x)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-3)


def test_a_fault_of_a_rule(compiled: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a fault")

    monkeypatch.setitem(registry.RULES, "relu.default", fault)
    x = torch.randn(4, 4)
    with caplog.at_level(logging.WARNING, "aspen_mp.torch"):
        torch.testing.assert_close(compiled(lambda x: torch.relu(x) * 2 + 1)(x), torch.relu(x) * 2 + 1)


@pytest.mark.parametrize("refused", [PlanError, ResourceLimitError])
def test_a_graph_that_is_not_loaded(compiled: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: Any) -> None:
    loads = []

    def load(*_: Any, **__: Any) -> Any:
        loads.append(1)
        raise refused("there is a reason")

    monkeypatch.setattr(weights, "load", load)
    state = torch.zeros(4)

    def function(x: Any) -> Any:
        state.add_(1)
        return torch.relu(x) * 2 + state

    run, x = compiled(function), torch.randn(4, 4)
    with caplog.at_level(logging.WARNING, "aspen_mp.torch"):
        for calls in range(1, 4):
            torch.testing.assert_close(run(x), torch.relu(x) * 2 + calls)
    assert len(loads) == (1 if refused is PlanError else 3)
    assert [record for record in caplog.records if "there is a reason" in record.getMessage()]
