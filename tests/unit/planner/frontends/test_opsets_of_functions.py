"""Functions of a model that import another opset, in which their operators mean or look something else: numpy says what is right.

onnxruntime takes the model's opset for some of these, and onnx.reference knows the newest meaning of others, so neither is a reference."""

from __future__ import annotations

from collections.abc import Callable
from math import erf

import numpy as np
import pytest
from kernel_graphs import run_model
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from aspen_mp.planner import api

N = helper.make_node
X = np.random.default_rng(11).standard_normal((2, 3, 4)).astype(np.float32)
Array = np.ndarray


def axes(*values: int) -> NodeProto:
    return N("Constant", [], ["axes"], value=numpy_helper.from_array(np.array(values, np.int64)))


def softmax(a: Array) -> Array:
    """Over all axes but the first."""
    powers = np.exp(a)
    return powers / powers.sum((1, 2), keepdims=True)


def largest(a: Array) -> Array:
    flat = a.reshape(len(a), -1)
    return (flat == flat.max(1, keepdims=True)).astype(np.float32).reshape(a.shape)


BODIES: dict[str, tuple[int, list[NodeProto], Callable[[Array], Array]]] = {
    "softmax of everything behind an axis": (12, [N("Softmax", ["a"], ["b"], axis=1)], softmax),
    "softmax of an axis": (13, [N("Softmax", ["a"], ["b"], axis=1)], lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True)),
    "logarithms of it": (11, [N("LogSoftmax", ["a"], ["b"], axis=1)], lambda a: np.log(softmax(a))),
    "largest": (11, [N("Hardmax", ["a"], ["b"], axis=1)], largest),
    "axes as attributes": (
        11,
        [N("Unsqueeze", ["a"], ["q"], axes=[0]), N("Squeeze", ["q"], ["r"], axes=[0]), N("Neg", ["r"], ["b"])],
        lambda a: -a,
    ),
    "axes as inputs": (13, [axes(0), N("Unsqueeze", ["a", "axes"], ["q"]), N("Squeeze", ["q", "axes"], ["b"])], lambda a: a),
    "sum over an attribute": (11, [N("ReduceSum", ["a"], ["b"], axes=[1])], lambda a: a.sum(1, keepdims=True)),
    "sum over an input": (13, [axes(1), N("ReduceSum", ["a", "axes"], ["b"])], lambda a: a.sum(1, keepdims=True)),
    "mean over an attribute": (13, [N("ReduceMean", ["a"], ["b"], axes=[2], keepdims=0)], lambda a: a.mean(2)),
    "mean over an input": (18, [axes(2), N("ReduceMean", ["a", "axes"], ["b"], keepdims=0)], lambda a: a.mean(2)),
    "bounds as attributes": (10, [N("Clip", ["a"], ["b"], min=-0.5, max=0.5)], lambda a: np.clip(a, -0.5, 0.5)),
    "parts as an attribute": (
        11,
        [N("Split", ["a"], ["p", "q"], axis=2, split=[1, 3]), N("Concat", ["q", "p"], ["b"], axis=2)],
        lambda a: np.roll(a, -1, 2),
    ),
    "margins as an attribute": (
        10,
        [N("Pad", ["a"], ["b"], pads=[0, 0, 1, 0, 1, 0], mode="constant", value=2.0)],
        lambda a: np.pad(a, ((0, 0), (0, 1), (1, 0)), constant_values=2),
    ),
    "a part by attributes": (9, [N("Slice", ["a"], ["b"], axes=[2], starts=[1], ends=[3])], lambda a: a[:, :, 1:3]),
    "an operator of a later opset": (20, [N("Gelu", ["a"], ["b"])], lambda a: a * (1 + np.vectorize(erf)(a / np.sqrt(2))) / 2),
}


def build(name: str, opset: int) -> ModelProto:
    """Computes -|F(2 x)|, where F is called through another function; the nodes stand in no order."""
    version, body, _ = BODIES[name]
    inner = helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("", version)])
    imports = [helper.make_opsetid("local", 1), helper.make_opsetid("", 18)]
    outer = helper.make_function("local", "G", ["a"], ["b"], [N("F", ["a"], ["b"], domain="local")], imports)
    nodes = [N("Neg", ["m"], ["y"]), N("Mul", ["x", "two"], ["h"]), N("G", ["h"], ["z"], domain="local"), N("Abs", ["z"], ["m"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3, 4]), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.float32(2), "two")])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=[inner, outer], ir_version=10)


@pytest.mark.parametrize("opset", [9, 13, 17, 21, 24])
@pytest.mark.parametrize("name", BODIES)
def test_functions(name: str, opset: int) -> None:
    (got,) = run_model(api.load(build(name, opset)), {"x": X})
    want = -np.abs(BODIES[name][2](2 * X.astype(np.float64)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
