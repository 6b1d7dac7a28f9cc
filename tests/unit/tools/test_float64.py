"""The evaluation in float64 that `run --check float64` compares with, beside onnxruntime's float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.shm.errors import UnsupportedModelError
from aspen_mp.tools import float64

RNG = np.random.default_rng(2)


def model_of(op: str, shapes: list[tuple[int, ...]], domain: str = "", **attributes: Any) -> onnx.ModelProto:
    """One operator; all inputs but the first are constants."""
    names = [f"x{k}" for k in range(len(shapes))]
    stored = [numpy_helper.from_array(RNG.standard_normal(s).astype(np.float32), n) for s, n in zip(shapes[1:], names[1:], strict=True)]
    node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
    ends = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shapes[0]), helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 19), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("Conv", [(2, 6, 9, 8), (8, 3, 3, 2), (8,)], {"group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 1]}),
    ("Conv", [(1, 4, 7, 7), (5, 4, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", [(1, 4, 11), (4, 1, 3), (4,)], {"group": 4}),
    ("Conv", [(1, 2, 4, 5, 6), (3, 2, 2, 3, 2), (3,)], {"pads": [1, 0, 1, 0, 1, 0]}),
    ("AveragePool", [(1, 3, 7, 8)], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", [(1, 3, 7, 8)], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("AveragePool", [(1, 3, 8, 8)], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("MaxPool", [(1, 3, 8, 8)], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("Gemm", [(3, 7), (5, 7), (5,)], {"transB": 1, "alpha": 0.5}),
    ("BatchNormalization", [(2, 4, 3, 3), (4,), (4,), (4,)], {}),
]


@pytest.mark.parametrize(("op", "shapes", "attributes"), CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)])
def test_agrees_with_onnxruntime(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    model = model_of(op, shapes, **attributes)
    if op == "BatchNormalization":
        model.graph.node[0].input.append("v")
        model.graph.initializer.append(numpy_helper.from_array(np.full(4, 0.7, np.float32), "v"))
    x = RNG.standard_normal(shapes[0]).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x0": x})
    (got,) = float64.evaluate(model, {"x0": x}, ["y"])
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_sums_that_f32_loses_are_kept() -> None:
    """Terms of 1 between 1e9 and -1e9: nothing on the way is rounded to f32."""
    model = model_of("Conv", [(1, 3, 1, 1), (1, 3, 1, 1)])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([1e9, 1, -1e9], np.float32).reshape(1, 3, 1, 1), "x1"))
    (got,) = float64.evaluate(model, {"x0": np.ones((1, 3, 1, 1), np.float32)}, ["y"])
    assert got.item() == 1.0


def test_types_that_nodes_name_are_doubles_too() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["c"], value_float=0.1),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("Add", ["f", "c"], ["a"]),
        helper.make_node("Add", ["a", "z"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "types", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    x = np.array([1 + 2**-20, 3], np.float32)
    (got,) = float64.evaluate(model, {"x": x}, ["y"])
    np.testing.assert_array_equal(got, x.astype(np.float64) + np.float64(np.float32(0.1)))


def test_what_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="FusedNothing"):
        float64.evaluate(model_of("FusedNothing", [(2, 2)], domain="com.microsoft"), {"x0": np.ones((2, 2), np.float32)}, ["y"])
