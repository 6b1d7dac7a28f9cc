"""Deadlines and shares as users meet them: arguments, errors, counts. What workers make of them is tested in
`tests/stress/processes/test_timed_requests.py`."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp.errors import AspenError, DeadlineMissed, RequestError

X = np.ones(2, np.float32)
LONG_MS = 1e7
SIZE = 4096


def adding(name: str = "adding") -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    return helper.make_model(
        helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], name, [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )


def heavy() -> onnx.ModelProto:
    """Thirty products of large matrices: minutes of core time, and few tiles to plan. No test runs it."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE]) for name in "xy")
    nodes = [helper.make_node("MatMul", ["x", "x"], ["a0"])]
    nodes += [helper.make_node("MatMul", ["x", f"a{k}"], [f"a{k + 1}"]) for k in range(29)]
    nodes.append(helper.make_node("Relu", ["a29"], ["y"]))
    return helper.make_model(helper.make_graph(nodes, "heavy", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])


def counts(runtime: aspen_mp.Runtime, name: str) -> dict[str, Any]:
    (model,) = [model for model in runtime.status()["models"] if model["name"] == name]
    scheduled: dict[str, Any] = model["scheduled"]
    return scheduled


def test_results_come_with_deadlines(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(adding("timed"))

    def check(result: dict[str, npt.NDArray[Any]]) -> None:
        assert (result["y"] == 2).all()

    for _ in range(3):
        check(model.run({"x": X}, deadline_ms=LONG_MS))
        check(model.run({"x": X}, deadline_ms=LONG_MS, on_late="run", priority="high", timeout=1e6))
    check(model.submit({"x": X}, deadline_ms=LONG_MS).result())
    check(asyncio.run(model.run_async({"x": X}, deadline_ms=LONG_MS)))
    for result in model.map([{"x": X}] * 3, deadline_ms=LONG_MS):
        check(result)

    async def stream() -> None:
        async for result in model.map_async([{"x": X}] * 3, deadline_ms=LONG_MS):
            check(result)

    asyncio.run(stream())
    found = counts(shared_runtime, "timed")
    assert (found["requests"], found["missed"], found["refused"], found["expired"]) == (14, 0, 0, 0)
    assert found["run_s"] > 0


def test_late_results_come_if_they_are_wanted(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(adding("late"))
    assert (model.run({"x": X}, deadline_ms=1e-6, on_late="run")["y"] == 2).all()
    assert (model.submit({"x": X}, deadline_ms=1e-6, on_late="run").result()["y"] == 2).all()
    assert counts(shared_runtime, "late")["missed"] == 2


def test_a_deadline_that_has_passed(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(adding("passed"))
    model.run({"x": X})
    with pytest.raises(DeadlineMissed, match=r"model 'passed': the deadline of 1e-06 ms has passed.*on_late=\"run\"") as raised:
        model.run({"x": X}, deadline_ms=1e-6)
    assert isinstance(raised.value, AspenError | TimeoutError)
    assert (raised.value.deadline_ms, raised.value.predicted_ms) == (1e-6, None)
    assert raised.value.late_ms is not None
    assert isinstance(model.submit({"x": X}, deadline_ms=1e-6).exception(), DeadlineMissed)
    results = list(model.map([{"x": X}] * 3, deadline_ms=1e-6, return_exceptions=True))
    assert [type(result) for result in results] == [DeadlineMissed] * 3
    assert shared_runtime.status()["requests"]["passed"]["missed"] == 5
    assert pickle.loads(pickle.dumps(raised.value)).deadline_ms == 1e-6


def test_a_deadline_that_cannot_be_met_is_refused_at_once(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(heavy(), name="heavy", instances=1)
    x = np.ones((SIZE, SIZE), np.float32)
    with pytest.raises(DeadlineMissed, match="model 'heavy': the deadline of 1500 ms cannot be met, the result is predicted") as raised:
        model.submit({"x": x}, deadline_ms=1500).result()
    assert raised.value.predicted_ms is not None
    assert raised.value.predicted_ms > 1500
    assert raised.value.late_ms is None
    found = counts(shared_runtime, "heavy")
    assert (found["requests"], found["refused"]) == (0, 1)


def test_wrong_arguments(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(adding())
    for wrong, error in ((0, ValueError), (-1, ValueError), (float("nan"), ValueError), ("5", TypeError), (True, TypeError)):
        with pytest.raises(error, match="deadline_ms must be"):
            model.run({"x": X}, deadline_ms=wrong)  # type: ignore[arg-type]
        with pytest.raises(error, match="deadline_ms must be"):
            model.map([], deadline_ms=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_late must be 'drop' or 'run', not 'wait'"):
        model.submit({"x": X}, deadline_ms=5, on_late="wait")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="priority 'urgent' is unknown"):
        model.run({"x": X}, priority="urgent", deadline_ms=5)
    for wrong in (0, 1000, float("nan")):
        with pytest.raises(ValueError, match=r"share must be from 0\.01 to 100"):
            shared_runtime.load(adding(), share=wrong)
    with pytest.raises(TypeError, match="share must be a number"):
        shared_runtime.load(adding(), share="2")  # type: ignore[arg-type]


def test_a_share_makes_another_model(shared_runtime: aspen_mp.Runtime) -> None:
    models = [shared_runtime.load(adding("shared"), share=share) for share in (1.0, 2.0, 2.0)]
    for model in models:
        assert (model.run({"x": X})["y"] == 2).all()
    found = [model for model in shared_runtime.status()["models"] if model["name"] == "shared"]
    assert sorted((model["share"], model["scheduled"]["requests"]) for model in found) == [(1.0, 1), (2.0, 2)]
