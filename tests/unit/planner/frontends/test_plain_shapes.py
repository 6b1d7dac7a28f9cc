"""Shapes that are found without ONNX's inference are those that it finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper

from aspen_mp.planner.frontends.binding import plain_shapes
from aspen_mp.planner.frontends.evaluate import attributes
from aspen_mp.planner.ir.graph import Tensor

Shape = tuple[int, ...]
SIDES = st.integers(1, 6)


def inferred(node: NodeProto, shapes: list[Shape]) -> Shape | None:
    """What ONNX says; None where it refuses."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(node.input, shapes, strict=True)]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return None
    return tuple(d.dim_value for d in found.graph.output[0].type.tensor_type.shape.dim)


@st.composite
def cases(draw: st.DrawFn) -> tuple[NodeProto, list[Shape]]:
    op = draw(st.sampled_from(sorted(plain_shapes.NAMES)))
    shape = tuple(draw(st.lists(SIDES, min_size=0, max_size=5)))
    shapes, attrs = [shape], dict[str, Any]()
    if op in {"Add", "Sub", "Mul", "Div"}:
        other = tuple(draw(st.sampled_from([1, d])) for d in shape[draw(st.integers(0, len(shape))) :])
        shapes = draw(st.permutations([shape, draw(st.sampled_from([other, tuple(draw(st.lists(SIDES, max_size=3)))]))]))
    elif op == "BatchNormalization":
        shapes += [(draw(st.sampled_from([*shape[1:2], 3])),)] * 4
    elif op == "Concat":
        attrs["axis"] = draw(st.integers(-len(shape) - 1, len(shape)))
        if shape and draw(st.booleans()):
            at = attrs["axis"] % len(shape)
            shapes += [(*shape[:at], draw(SIDES), *shape[at + 1 :])]
        shapes += draw(st.sampled_from([[], [shape]]))
    elif op == "Conv":
        n = max(len(shape) - 2, 0)
        several = st.lists(st.integers(1, 3), min_size=n, max_size=n)
        w = (draw(SIDES), *shape[1:2], *draw(several))
        shapes += [w, *draw(st.sampled_from([[], [w[:1]]]))]
        around = st.lists(st.integers(0, 2), min_size=2 * n, max_size=2 * n)
        for name, values in (("strides", several), ("dilations", several), ("pads", around)):
            if n and draw(st.booleans()):
                attrs[name] = draw(values)
        if n and draw(st.booleans()):
            attrs["kernel_shape"] = draw(st.sampled_from([list(w[2:]), [2] * n]))
        if draw(st.integers(0, 4)) == 0:
            attrs["auto_pad"] = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER"]))
    return helper.make_node(op, [f"x{k}" for k in range(len(shapes))], ["y"], **attrs), list(shapes)


@seed(1)
@settings(max_examples=1500, deadline=None, derandomize=True)
@given(cases())
def test_plain_shapes_are_those_of_onnx(case: tuple[NodeProto, list[Shape]]) -> None:
    node, shapes = case
    tensors = [Tensor(name, shape, np.dtype(np.float32)) for name, shape in zip(node.input, shapes, strict=True)]
    found = plain_shapes.typed(node.op_type, tensors, attributes(node))
    if found is not None:
        assert found == (np.dtype(np.float32), inferred(node, shapes)), (node, shapes)


def test_common_layers_are_plain() -> None:
    """Or nothing would be compared above."""
    x, w = Tensor("x", (1, 3, 33, 50), np.dtype(np.float32)), Tensor("w", (8, 3, 3, 3), np.dtype(np.float32))
    conv = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1])
    assert plain_shapes.typed("Conv", [x, w], attributes(conv)) == (x.dtype, (1, 8, 17, 25))
    assert plain_shapes.typed("Add", [x, x], {}) == (x.dtype, x.shape)


def test_types_that_differ_are_left_to_onnx() -> None:
    x, i = Tensor("x", (2,), np.dtype(np.float32)), Tensor("i", (2,), np.dtype(np.int64))
    assert plain_shapes.typed("Add", [x, i], {}) is None
