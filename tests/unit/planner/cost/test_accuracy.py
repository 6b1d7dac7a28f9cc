"""Algorithms are chosen under a budget of error, from the weights and the option alone."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plan_requests import plan_request

from aspen_mp.planner import api
from aspen_mp.planner.cost import accuracy
from aspen_mp.planner.job.options import ACCURACIES, Accuracy


def chain(channels: int, size: int, layers: int = 3, kernel: tuple[int, int] = (3, 3), scale: float = 1.0) -> onnx.ModelProto:
    """Convolutions one behind the other, with random weights."""
    rng = np.random.default_rng(0)
    nodes, stored = [], []
    for k in range(layers):
        w = (scale * rng.standard_normal((channels, channels, *kernel)) / math.sqrt(channels * math.prod(kernel))).astype(np.float32)
        stored.append(numpy_helper.from_array(w, f"w{k}"))
        pads = [kernel[0] // 2, kernel[1] // 2] * 2
        nodes.append(helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=pads, name=f"conv{k}"))
    shape = [1, channels, size, size]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kernels(model: onnx.ModelProto, level: Accuracy, workers: int = 1) -> list[str]:
    opened = api.load(model.SerializeToString())
    bindings = {v.name: api.Binding(v.dtype, tuple(v.shape)) for v in opened.signature.inputs}
    plan = api.plan_stage(opened, [bindings], workers=workers, request=plan_request(accuracy=level)).plan
    assert plan is not None
    return [row.kernel for row in plan.info if row.kernel.startswith(("CONV", "WINO"))]


def side(kernel: str) -> int:
    """Of the blocks of a kernel as plans name it; 1 for direct sums."""
    return max(map(int, kernel.removeprefix("WINO ").split("x"))) if kernel.startswith("WINO") else 1


CHAINS = [(16, 96, (3, 3)), (64, 96, (3, 3)), (64, 28, (3, 3)), (256, 20, (3, 3)), (32, 64, (5, 5)), (128, 17, (1, 7)), (160, 30, (7, 1))]


@pytest.mark.parametrize(("channels", "size", "kernel"), CHAINS)
def test_no_layer_is_above_its_bound(channels: int, size: int, kernel: tuple[int, int]) -> None:
    model = chain(channels, size, kernel=kernel)
    weights = [numpy_helper.to_array(t) for t in model.graph.initializer]
    sides = {level: [side(k) for k in kernels(model, level)] for level in ACCURACIES}
    for level in ACCURACIES:
        budget = accuracy.Budget(accuracy.bound(level, [w[0].size for w in weights]), accuracy.LIKENESS[level])
        for w, block in zip(weights, sides[level], strict=True):
            if block > 1:
                assert budget.allows(accuracy.layer_of(w), (1, 1), block)
    for strict, default, fast in zip(sides["strict"], sides["default"], sides["fast"], strict=True):
        assert strict <= default <= fast


def test_levels_differ_where_they_should() -> None:
    """Few channels and many pixels: the largest blocks are fastest, and too inexact."""
    model = chain(64, 96)
    sides = {level: side(kernels(model, level)[0]) for level in ACCURACIES}
    assert sides["fast"] == 6 > sides["default"] > sides["strict"]


def test_choice_depends_on_weights_and_option_alone() -> None:
    model = chain(96, 40)
    found = {tuple(kernels(model, "default", workers)) for workers in (1, 2, 16)}
    found.add(tuple(kernels(chain(96, 40, scale=1e-3), "default")))
    assert len(found) == 1


def test_bound() -> None:
    assert accuracy.bound("fast", [10**9]) == math.inf
    assert accuracy.bound("strict", [9]) == 1.5
    assert accuracy.bound("default", [576] * 50) == 4.0
    deep = [accuracy.bound("default", [4608] * n) for n in (100, 1000, 10_000, 10**6)]
    assert deep == sorted(deep, reverse=True)
    assert deep[0] == 4.0 > deep[2] >= deep[3] == 1.5
    error = math.sqrt(sum(accuracy.direct_error(4608) ** 2 for _ in range(1000)))
    assert deep[1] * error <= accuracy.LARGEST_ERROR * 1.0001 or deep[1] == 1.5
    assert accuracy.bound("default", []) == 4.0
