"""Small operators as numpy calls against ONNX's evaluator, and the choice among boxes against its definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aspen_mp.planner.frontends.evaluate import NotComputed, evaluate
from aspen_mp.workers.fallback import _boxes, boxes, numpy_operators
from aspen_mp.workers.fallback.operators import Evaluator

N = helper.make_node
RNG = np.random.default_rng(11)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)
TIES = RNG.integers(-2, 3, (3, 4, 5))
BYTES = TIES.astype(np.int8)
MASK = X > 0
I3 = np.array([2, -1, 0])


def i64(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


CASES: list[tuple[str, int, list[Any], dict[str, Any]]] = [
    *[("Shape", 15, [X], a) for a in ({}, {"start": 1}, {"start": -2, "end": 2})],
    ("Size", 13, [X], {}),
    ("Identity", 13, [X], {}),
    ("Reshape", 13, [X, i64(0, -1)], {}),
    ("Reshape", 14, [np.zeros((0, 3), np.float32), i64(3, 0)], {"allowzero": 1}),
    ("Squeeze", 11, [X[:1]], {"axes": [0]}),
    ("Squeeze", 13, [X[:1, :1]], {}),
    ("Unsqueeze", 11, [X], {"axes": [0, 2]}),
    ("Unsqueeze", 13, [X, i64(-1, 0)], {}),
    *[("Flatten", 13, [X], {"axis": k}) for k in (0, 1, -1, 3)],
    ("Flatten", 13, [X[:, :0]], {}),
    *[("Transpose", 13, [X], a) for a in ({}, {"perm": [1, 2, 0]})],
    ("Slice", 9, [X], {"starts": [1, -3], "ends": [9, -1], "axes": [0, 2]}),
    ("Slice", 13, [X, i64(9, 0), i64(-9, 2), i64(0, -1), i64(-2, 1)], {}),
    ("Slice", 13, [X, i64(1), i64(2**62)], {}),
    *[("Gather", 13, [X, i], {"axis": k}) for i in (I3, i64(1, 1).reshape(2, 1), np.array(-1)) for k in (0, 1, -1)],
    *[("GatherElements", 13, [X, TIES % 3], {"axis": k}) for k in (0, 1, 2)],
    *[("GatherND", 13, [X, RNG.integers(-3, 3, (2, 6, k))], {}) for k in (1, 2, 3)],
    ("GatherND", 13, [X, RNG.integers(0, 4, (3, 2, 1))], {"batch_dims": 1}),
    ("ScatterElements", 13, [X, i64(1, -1, 0, 2).reshape(1, 4, 1), X[:1, :, :1]], {"axis": 2}),
    ("ScatterElements", 16, [X, i64(1, 1).reshape(1, 1, 2), X[:1, :1, :2]], {"axis": 2, "reduction": "add"}),
    ("ScatterND", 13, [X, i64(2, 0).reshape(2, 1), X[:2] * 2], {}),
    ("ScatterND", 16, [X, i64(2, 2).reshape(2, 1), X[:2] * 2], {"reduction": "mul"}),
    ("Concat", 13, [X, X[:, :2], X[:, :0]], {"axis": 1}),
    ("Expand", 13, [X[:, :1], i64(2, 1, 4, 5)], {}),
    ("ConstantOfShape", 13, [i64(2, 3)], {}),
    ("ConstantOfShape", 13, [i64(2, 3)], {"value": helper.make_tensor("v", TensorProto.INT64, [1], [7])}),
    ("Range", 13, [np.array(7), np.array(-3), np.array(-3)], {}),
    ("Range", 13, [np.array(0, np.float32), np.array(1, np.float32), np.array(0.1, np.float32)], {}),
    ("NonZero", 13, [MASK], {}),
    ("Compress", 11, [X, np.array([True, False, True])], {"axis": 0}),
    ("Compress", 11, [X, X.reshape(-1) > 1], {}),
    *[("CumSum", 14, [TIES, np.array(k)], {"exclusive": e, "reverse": r}) for k in (0, -1) for e in (0, 1) for r in (0, 1)],
    ("DequantizeLinear", 19, [BYTES, np.array(0.25, np.float32)], {}),
    *[("DequantizeLinear", 19, [BYTES, X[0, 0, :n], BYTES[0, 0, :n]], {"axis": k}) for k, n in ((1, 4), (2, 5))],
    ("DequantizeLinear", 21, [BYTES, np.ones((3, 2, 5), np.float32)], {"axis": 1, "block_size": 2}),
    *[("Cast", 13, [X * 3], {"to": k}) for k in (TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.FLOAT16)],
    ("Clip", 13, [X, np.array(-0.5, np.float32), np.array(0.5, np.float32)], {}),
    ("Clip", 13, [X], {}),
    ("Where", 13, [MASK, X, X[:, :1]], {}),
    *[(op, 13, [X, X[:, :1] + 3], {}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "Greater")],
    *[(op, 16, [TIES, TIES[:1]], {}) for op in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "LessOrEqual", "GreaterOrEqual")],
    *[(op, 13, [MASK, MASK[:1]], {}) for op in ("And", "Or", "Xor")],
    ("Not", 13, [MASK], {}),
    *[(op, 13, [X], {}) for op in ("Neg", "Abs", "Floor", "Ceil", "Exp", "Sigmoid", "Relu")],
    *[(op, 13, [np.abs(X) + 1], {}) for op in ("Sqrt", "Log")],
    *[(op, 11, [X], a) for op in ("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin") for a in ({}, {"axes": [1], "keepdims": 0})],
    ("ReduceSum", 13, [X, i64(0, -1)], {}),
    ("ReduceSum", 13, [X, i64()], {"noop_with_empty_axes": 1}),
]


@pytest.mark.parametrize(("op", "opset", "inputs", "attributes"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_operators_agree(op: str, opset: int, inputs: list[Any], attributes: dict[str, Any]) -> None:
    names = [f"x{k}" for k in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([N(op, names, ["y"], **attributes)], "g", infos, [helper.make_empty_tensor_value_info("y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    feeds = dict(zip(names, inputs, strict=True))
    (got,), (want,) = (kind(proto).run(None, feeds) for kind in (Evaluator, ReferenceEvaluator))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("origin", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("sizes", [None, (1, 2, 9, 4), (1, 2, 1, 13), (1, 2, 5, 6)])
def test_images_are_resized_as_by_others(mode: str, origin: str, sizes: tuple[int, ...] | None) -> None:
    x = RNG.standard_normal((1, 2, 5, 6)).astype(np.float32)
    node = N(
        "Resize", ["x", "", "scales", "sizes"] if sizes else ["x", "", "scales"], ["y"], mode=mode, coordinate_transformation_mode=origin
    )
    scales = np.zeros(0, np.float32) if sizes else np.array([1, 1, 1.7, 0.6], np.float32)
    call = numpy_operators.compile_node(node, 13)
    assert call is not None
    got = call(x, None, scales, *([i64(*sizes)] if sizes else []))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    held = [numpy_helper.from_array(i64(*sizes), "sizes")] if sizes else [numpy_helper.from_array(scales, "scales")]
    names = ["x", "", "", "sizes"] if sizes else ["x", "", "scales"]
    del node.input[:]
    node.input.extend(names)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_other_ways_to_resize_are_left_to_the_evaluator() -> None:
    for attributes in ({}, {"mode": "linear", "antialias": 1}, {"mode": "cubic", "exclude_outside": 1}, {"mode": "nearest"}):
        assert numpy_operators.compile_node(N("Resize", ["x", "", "s"], ["y"], **attributes), 18) is None
    assert numpy_operators.compile_node(N("Resize", ["x", "s"], ["y"], mode="linear"), 10) is None


def test_narrow_types_are_left_to_the_evaluator() -> None:
    """Which knows what is too large for them."""
    for kind in (TensorProto.FLOAT8E5M2, TensorProto.BFLOAT16, TensorProto.STRING):
        assert numpy_operators.compile_node(N("Cast", ["x"], ["y"], to=kind), 21) is None
    assert numpy_operators.plain([X, None, MASK])
    assert not any(numpy_operators.plain([np.zeros(2, dtype)]) for dtype in (ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, object))


def test_division_of_integers_is_cut_off() -> None:
    call = numpy_operators.compile_node(N("Div", ["x", "y"], ["z"]), 14)
    assert call is not None
    assert call(np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])).tolist() == [3, -3, -3, 3]
    with pytest.raises(ZeroDivisionError):
        call(np.array([1]), np.array([0]))


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements"])
def test_indices_out_of_range_are_errors(op: str) -> None:
    call = numpy_operators.compile_node(N(op, ["x", "i"], ["y"]), 13)
    assert call is not None
    for k in (3, -4):
        with pytest.raises(IndexError):
            call(np.zeros((3, 1), np.float32), np.full((1, 1), k), *([np.zeros((1, 1), np.float32)] if op == "ScatterElements" else []))


@settings(deadline=None)
@given(st.integers(0, 7), st.integers(0, 6), st.booleans(), st.sampled_from([0, 1]), st.sampled_from([np.float32, np.int64, np.uint8]))
def test_the_first_of_equal_ones_comes_first(n: int, k: int, largest: bool, axis: int, dtype: Any) -> None:
    x = np.random.default_rng(n).integers(0, 4, (n, 3) if axis == 0 else (3, n)).astype(dtype)
    call = numpy_operators.compile_node(N("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=int(largest)), 11)
    assert call is not None
    if k > n:
        with pytest.raises(ValueError, match="axis"):
            call(x, i64(k))
        return
    best, places = call(x, i64(k))
    assert (best.dtype, places.dtype) == (dtype, np.int64)
    for row, values, found in zip(*(a.T if axis == 0 else a for a in (x, best, places)), strict=True):
        order = sorted(range(n), key=lambda i: (-int(row[i]) if largest else int(row[i]), i))[:k]
        assert found.tolist() == order
        assert np.array_equal(values, row[order])


@pytest.mark.parametrize(("opset", "attributes", "lengths"), [(11, {"split": [1, 3]}, []), (13, {}, [i64(1, 3)])])
def test_parts(opset: int, attributes: dict[str, Any], lengths: list[Any]) -> None:
    call = numpy_operators.compile_node(N("Split", ["x", *(["s"] * len(lengths))], ["a", "b"], axis=1, **attributes), opset)
    assert call is not None
    assert [part.shape for part in call(X, *lengths)] == [(3, 1, 5), (3, 3, 5)]


def test_graphs_with_bodies_and_missing_inputs() -> None:
    """What numpy computes and what ONNX's evaluator does, side by side, within a body too."""
    then = helper.make_graph([N("Neg", ["a"], ["t"])], "t", [], [helper.make_empty_tensor_value_info("t")])
    other = helper.make_graph([N("Erf", ["a"], ["e"])], "e", [], [helper.make_empty_tensor_value_info("e")])
    nodes = [
        N("Clip", ["x", "", "most"], ["a"]),
        N("ReduceMax", ["a"], ["m"], keepdims=0),
        N("Greater", ["m", "least"], ["c"]),
        N("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "most", "least")]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info("y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    for least in (-9, 9):
        feeds = {"x": X, "most": np.array(0.25, np.float32), "least": np.array(least, np.float32)}
        assert np.array_equal(Evaluator(proto).run(None, feeds)[0], ReferenceEvaluator(proto).run(None, feeds)[0])


# ---- boxes


def greedy(corners: Any, areas: Any, overlap: Any, most: int) -> list[int]:
    """By definition, one pair after the other."""
    kept: list[int] = []
    for k in range(len(corners)):
        if len(kept) == most:
            break
        for other in kept:
            low, high = np.maximum(corners[k, :2], corners[other, :2]), np.minimum(corners[k, 2:], corners[other, 2:])
            shared = np.prod(np.maximum(high - low, np.float32(0)))
            union = areas[k] + areas[other] - shared
            if areas[k] > 0 and areas[other] > 0 and union > 0 and shared / union > overlap:
                break
        else:
            kept.append(k)
    return kept


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 150),
    st.integers(0, 200),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.sampled_from([0.02, 0.3, 3.0]),
    st.sampled_from([1, 5, 40]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_best_boxes(n: int, most: int, overlap: float, size: float, kinds: int, damaged: bool, seed: int) -> None:
    """Of one class and of several that were moved apart, small and large ones, points, and numbers that are none."""
    rng = np.random.default_rng(seed)
    at = rng.random((n, 2)) + 10 * rng.integers(0, kinds, (n, 1))
    corners = np.concatenate([at, at + size * rng.random((n, 2)) * rng.integers(0, 5, (n, 1))], 1).astype(np.float32)
    if damaged and n:
        corners[rng.integers(0, n), rng.integers(0, 4)] = rng.choice([np.nan, np.inf, -np.inf])
    with np.errstate(all="ignore"):
        areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        assert _boxes.best(corners, areas, overlap, most).tolist() == greedy(corners, areas, np.float32(overlap), most)


def test_scores_decide_and_some_are_too_low() -> None:
    regions = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1], [5, 5, 6, 6], [1, 1, 0, 0]]], np.float32)
    scores = np.array([[[0.3, 0.9, 0.5, 0.1], [0.9, 0.1, 0.5, 0.9]]], np.float32)
    assert boxes.non_max_suppression(regions, scores, 9, 0.5, 0.2, False).tolist() == [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 2]]
    assert boxes.non_max_suppression(regions, scores, 1, 0.5, None, False).tolist() == [[0, 0, 1], [0, 1, 0]]
    assert boxes.non_max_suppression(regions, scores, 0, 0.5, None, False).shape == (0, 3)
    assert boxes.non_max_suppression(regions, scores, 9, -1.0, None, False).tolist() == [[0, 0, 1], [0, 1, 0]]


_BF16 = ml_dtypes.bfloat16
FOREIGN = [("Transpose", ml_dtypes.int4), ("Transpose", ml_dtypes.float8_e4m3fn)]
FOREIGN += [(op, _BF16) for op in ("Transpose", "TopK", "Max", "Relu", "Sqrt")]


@pytest.mark.parametrize(("op", "dtype"), FOREIGN)
def test_constants_of_types_that_numpy_does_not_have(op: str, dtype: Any) -> None:
    """Computed by numpy, or left to `onnx.reference`: the types are no fault of the model's."""
    x = np.arange(6).reshape(2, 3).astype(dtype)
    more = {"TopK": [i64(2)], "Max": [x]}.get(op, [])
    names = [f"x{k}" for k in range(1 + len(more))]
    node = N(op, names, ["y", "i"] if op == "TopK" else ["y"])
    try:
        found = evaluate(node, {"": 18}, [x, *more])[0]
    except NotComputed:
        return
    want = {"Transpose": x.T, "TopK": x[:, :0:-1], "Sqrt": np.sqrt(x.astype(np.float32))}.get(op, x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float32), np.asarray(want).astype(np.float32), rtol=0.1)
