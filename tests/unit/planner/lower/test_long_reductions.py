"""Reductions of many elements go in two steps; drawn shapes, axes and functions against numpy in double precision."""

from __future__ import annotations

import random

import numpy as np
import pytest
from kernel_graphs import run_model
from net_tools import lowered
from onnx import TensorProto, helper

from aspen_mp.planner import api
from aspen_mp.planner.lower import reductions

Array = np.ndarray
FUNCTIONS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
    "ReduceSumSquare": lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims),
    "ReduceLogSum": lambda x, axis, keepdims: np.log(np.sum(x, axis=axis, keepdims=keepdims)),
    "ReduceLogSumExp": lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims)),
}


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("seed", range(8))
def test_in_two_steps(op: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "LONG", 60)
    monkeypatch.setattr(reductions, "PART", 16)
    rng = random.Random(f"{op} {seed}")
    rank = rng.choice([1, 2, 3, 4])
    shape = [rng.choice([1, 2, 3, 5, 16, 32, 61, 100, 130]) for _ in range(rank)]
    while np.prod(shape) > 20_000:
        shape[rng.randrange(rank)] = 2
    axes = sorted(rng.sample(range(rank), rng.randint(1, rank)))
    if np.prod([shape[a] for a in axes]) <= 60:
        shape[axes[0]] = 161
    whole = op in {"ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare", "ReduceMean"} and rng.random() < 0.3
    values = np.random.default_rng(seed)
    x = values.integers(-40, 40, shape).astype(np.int32) if whole else (values.random(shape) * 0.02 + 0.99).astype(np.float32)
    keep = rng.randint(0, 1)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(op, ["x", "axes"], ["y"], keepdims=keep)
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info("y", kind, None)],
            [helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    found = run_model(api.load(model), {"x": x})[0]
    want = FUNCTIONS[op](x.astype(np.float64), axis=tuple(axes), keepdims=bool(keep))
    assert found.shape == want.shape, (shape, axes)
    if whole:
        assert (found == (np.trunc(want) if op == "ReduceMean" else want)).all(), (shape, axes)
    else:
        assert np.abs(found - want).max() <= 3e-6 * np.abs(want).max(), (shape, axes)
    steps = [node for node in lowered(model, {"x": x}).nodes if node.op == "REDUCE"]
    assert len(steps) > 1 or (whole and op == "ReduceMean"), (shape, axes)
    assert all(np.prod([node.inputs[0].shape[a] for a in node.attrs["axes"]]) <= 60 for node in steps) or (whole and op == "ReduceMean")
