"""Single operators beside onnxruntime (matrices of bytes: beside their products in whole numbers), once with their inputs given and once
with all of them constant: options in which ONNX's reference implementation, which computes constants and what has no kernel, goes its own
ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api

RNG = np.random.default_rng(11)
Feeds = list[Any]


def values(*shape: int, dtype: Any = np.float32) -> Any:
    return np.asarray(RNG.standard_normal(shape) * 2).astype(dtype)


def whole(*shape: int, low: int = -6, high: int = 6, dtype: Any = np.int64) -> Any:
    return RNG.integers(low, high, shape).astype(dtype)


def words(*given: str) -> Any:
    return np.array(given, object)


def model(op: str, opset: int, inputs: Feeds, attributes: dict[str, Any], constants: set[int], outputs: int, kinds: list[int]) -> Any:
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    stored = [numpy_helper.from_array(np.asarray(inputs[k]), names[k]) for k in constants if names[k]]
    infos = []
    for k, x in enumerate(inputs):
        if x is not None and k not in constants:
            kind = TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
            infos.append(helper.make_tensor_value_info(names[k], kind, x.shape))
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    declared = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(results, kinds, strict=True)]
    graph = helper.make_graph([node], "g", infos, declared, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def bytes_of(*shape: int) -> Any:
    return whole(*shape, low=0, high=256, dtype=np.uint8)


def signed(*shape: int) -> Any:
    return whole(*shape, low=-128, high=128, dtype=np.int8)


def scaled(scale: float, zero: int, kind: Any = np.uint8) -> Feeds:
    return [np.array(scale, np.float32), np.array(zero, kind)]


F, L, B, S, D = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING, TensorProto.DOUBLE
U8, I32 = TensorProto.UINT8, TensorProto.INT32
BOXES = np.concatenate([RNG.uniform(0, 9, (2, 70, 2)), RNG.uniform(1, 6, (2, 70, 2))], -1).astype(np.float32)
SCORES = np.round(RNG.random((2, 3, 70)), 1).astype(np.float32)
ROIS = np.array([[0, 1, 1, 5, 6], [1, 0, 2, 3, 2], [0, 4, 4, 9, 9]], np.float32)
IMAGE = values(2, 3, 6, 7)
GRAMS = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 4], "ngram_indexes": list(range(7))}
POOL = {"pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}

WEIGHTS = [signed(3, 2, 3) // np.int8(2), np.array([0.01, 0.03, 0.02], np.float32), np.zeros(3, np.int8)]
"""Of 7 bits: see `in_whole_numbers`."""
QUANTISED: Feeds = [bytes_of(2, 2, 9), *scaled(0.05, 120), *WEIGHTS, *scaled(0.2, 90)]

CASES: list[tuple[str, int, Feeds, dict[str, Any], list[int]]] = [
    ("NonMaxSuppression", 11, [BOXES, SCORES, np.array([9]), np.array([0.4], np.float32), np.array([0.3], np.float32)], {}, [L]),
    ("NonMaxSuppression", 11, [BOXES, SCORES, np.array(50), np.array(0.2, np.float32)], {"center_point_box": 1}, [L]),
    ("NonMaxSuppression", 10, [BOXES, SCORES], {}, [L]),
    ("NonMaxSuppression", 10, [BOXES, SCORES, np.array([3])], {}, [L]),
    ("MaxRoiPool", 11, [IMAGE, ROIS], {"pooled_shape": [2, 3], "spatial_scale": 0.7}, [F]),
    ("RoiAlign", 16, [IMAGE, ROIS[:, 1:], np.array([0, 1, 0])], {"output_height": 2, "output_width": 3, "sampling_ratio": 0}, [F]),
    (
        "RoiAlign",
        16,
        [IMAGE, ROIS[:, 1:], np.array([0, 1, 0])],
        {"output_height": 2, "output_width": 2, "mode": "max", "sampling_ratio": 2},
        [F],
    ),
    ("RoiAlign", 10, [IMAGE, ROIS[:, 1:] - 3, np.array([0, 1, 0])], {"output_height": 3, "spatial_scale": 0.5}, [F]),
    ("OneHot", 11, [whole(3, 4, low=-6, high=7), np.array([5]), values(2)], {"axis": 1}, [F]),
    ("OneHot", 11, [values(4, 2), np.array([4], np.float32), values(2)], {}, [F]),
    ("OneHot", 9, [whole(4, low=0, high=3), np.array(3), whole(2)], {"axis": 0}, [L]),
    ("CumSum", 11, [values(2, 5), np.array([1])], {"exclusive": 1, "reverse": 1}, [F]),
    ("CumSum", 14, [whole(2, 5, 3), np.array([-2], np.int32)], {}, [L]),
    ("AffineGrid", 20, [values(1, 2, 3), np.array([1, 2, 5, 4])], {}, [F]),
    ("AffineGrid", 20, [values(2, 3, 4), np.array([2, 1, 3, 1, 5])], {"align_corners": 1}, [F]),
    ("BatchNormalization", 9, [values(2, 3, 4, dtype="f8"), *(np.abs(values(3, dtype="f8")) for _ in range(4))], {"epsilon": 1e-2}, [D]),
    ("BatchNormalization", 9, [values(2, 3), *(np.abs(values(3)) for _ in range(4))], {}, [F]),
    ("ConvTranspose", 11, [values(1, 6, 4, 5), values(6, 1, 1, 2), values(2)], {"group": 2, "strides": [2, 1]}, [F]),
    (
        "ConvTranspose",
        11,
        [values(1, 4, 3, 2, 4), values(4, 2, 2, 2, 1)],
        {"group": 2, "dilations": [2, 1, 1], "pads": [0, 1, 0, 1, 0, 0]},
        [F],
    ),
    ("ConvTranspose", 11, [values(1, 2, 4, 5), values(2, 3, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, [F]),
    ("MaxPool", 12, [values(2, 3, 6)], {"kernel_shape": [2], "auto_pad": "SAME_UPPER"}, [F, L]),
    ("MaxPool", 12, [values(2, 3, 5, 6)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "storage_order": 1}, [F, L]),
    ("MaxPool", 12, [values(1, 2, 4, 5, 6)], {"kernel_shape": [1, 2, 3], "auto_pad": "SAME_LOWER", "dilations": [1, 1, 1]}, [F]),
    ("LRN", 13, [values(2, 5, 3, 2)], {"size": 3, "alpha": 0.5}, [F]),
    ("GlobalMaxPool", 9, [values(2, 3, 7)], {}, [F]),
    ("GroupNormalization", 21, [values(2, 6, 4), values(6), values(6)], {"num_groups": 2}, [F]),
    (
        "DeformConv",
        19,
        [values(1, 4, 5, 6), values(2, 4, 2, 2), values(1, 16, 4, 5), values(2), values(1, 8, 4, 5)],
        {"offset_group": 2},
        [F],
    ),
    ("Col2Im", 18, [values(2, 12, 18), np.array([4, 3, 3]), np.array([2, 1, 1])], {"pads": [0, 0, 0, 0, 0, 0], "strides": [2, 1, 1]}, [F]),
    ("Softmax", 11, [values(2, 3, 4, dtype="f8")], {"axis": 1}, [D]),
    ("Softmax", 12, [values(5)], {"axis": -1}, [F]),
    ("LogSoftmax", 7, [values(2, 3, 4, dtype="f8")], {"axis": 0}, [D]),
    ("Softsign", 7, [values()], {}, [F]),
    ("ReduceLogSum", 18, [np.abs(values(2, 3)) + 1, np.array([], np.int64)], {"noop_with_empty_axes": 1}, [F]),
    ("ReduceSumSquare", 18, [values(2, 3), np.array([], np.int64)], {"noop_with_empty_axes": 1}, [F]),
    ("ReduceL1", 13, [values(3, 1)], {"axes": [1], "keepdims": 0}, [F]),
    ("ReduceLogSumExp", 11, [values()], {}, [F]),
    ("ReduceLogSum", 13, [whole(4, 3, low=1, high=50, dtype=np.int32)], {"axes": [0]}, [I32]),
    ("Unique", 11, [np.array([[3, 1, 3], [3, 1, 3], [0, 2, 0]], np.float32)], {"axis": 1, "sorted": 0}, [F, L, L, L]),
    ("Unique", 11, [np.array([3, 0, 2, 3, 1], np.float64)], {"sorted": 0}, [D, L, L, L]),
    ("StringNormalizer", 10, [words("the", "Ünï")], {"stopwords": ["The"], "is_case_sensitive": 1}, [S]),
    ("StringConcat", 20, [words("a", "b"), words("c")], {}, [S]),
    ("TfIdfVectorizer", 9, [whole(2, 5, low=0, high=8)], {"mode": "TFIDF", **GRAMS, **POOL}, [F]),
    ("Dropout", 10, [values(2, 5)], {}, [F, B]),
    ("Upsample", 9, [values(1, 2, 3, 4), np.array([1, 1, 2, 2.5], np.float32)], {"mode": "linear"}, [F]),
    ("Resize", 10, [values(1, 2, 3, 4), np.array([1, 1, 1.5, 2], np.float32)], {"mode": "linear"}, [F]),
    ("Resize", 19, [whole(1, 2, 5, 4, dtype=np.int8), None, None, np.array([1, 2, 3, 7])], {"mode": "linear"}, [TensorProto.INT8]),
    ("Scatter", 9, [values(3, 4), whole(2, 4, low=0, high=1), values(2, 4)], {"axis": 0}, [F]),
    ("Pad", 13, [whole(5), np.array([-1, 2]), np.array(4)], {}, [L]),
    ("TopK", 11, [values(3, 9, dtype="f8"), np.array([4])], {"axis": 1, "largest": 0}, [D, L]),
    ("TopK", 9, [values(3, 9)], {"axis": 0, "k": 2}, [F, L]),
    ("GatherND", 12, [values(2, 3, 4, 5), whole(2, 3, 2, 1, low=-4, high=4)], {"batch_dims": 2}, [F]),
    ("GatherND", 11, [whole(3, 4), np.array([[0, -1], [2, 3]])], {}, [L]),
    ("ScatterND", 16, [values(4, 5, 2), np.array([[[0, 1]], [[-1, 2]], [[0, 1]]]), values(3, 1, 2)], {"reduction": "mul"}, [F]),
    ("ScatterND", 11, [values(4, 5, 2), np.array([[2], [0]]), values(2, 5, 2)], {}, [F]),
    ("ScatterElements", 18, [whole(3, 4), np.array([[0, 0], [-1, 2]]), whole(2, 2)], {"axis": 1, "reduction": "max"}, [L]),
    ("ScatterElements", 18, [values(3, 4), np.zeros((0, 4), np.int64), values(0, 4)], {"axis": 0}, [F]),
    (
        "ConvInteger",
        10,
        [whole(1, 4, 5, 6, low=0, high=255, dtype=np.uint8), whole(6, 2, 3, 2, dtype=np.int8), np.array(7, np.uint8)],
        {"group": 2},
        [I32],
    ),
    ("MatMulInteger", 10, [whole(2, 3, 600, low=0, high=256, dtype=np.uint8), whole(600, 5, low=-128, high=128, dtype=np.int8)], {}, [I32]),
    ("MatMulInteger", 10, [bytes_of(2, 4, 7), signed(2, 7, 3), np.array(250, np.uint8), np.array(-3, np.int8)], {}, [I32]),
    ("QLinearMatMul", 10, [bytes_of(4, 70), *scaled(0.02, 9), signed(70, 6), *scaled(0.01, -2, np.int8), *scaled(0.3, 100)], {}, [U8]),
    ("ConvInteger", 10, [bytes_of(1, 70, 4, 5), signed(3, 70, 3, 2), np.array(7, np.uint8)], {"pads": [1, 0, 1, 1]}, [I32]),
    ("QLinearConv", 10, [*QUANTISED, np.array([3, -70, 900], np.int32)], {"strides": [2]}, [U8]),
    ("QLinearConv", 10, [*QUANTISED[:5], np.array([1, 0, -1], np.int8), *QUANTISED[6:]], {"pads": [1, 1]}, [U8]),
    ("Constant", 7, [], {"value": numpy_helper.from_array(whole(2, 3, dtype=np.int32))}, [I32]),
]


def in_whole_numbers(op: str, inputs: Feeds) -> Any:
    """MatMulInteger or QLinearMatMul. Where a processor has no instruction that sums four products of bytes, those of unlike signs saturate
    two by two in onnxruntime; of 7 bits they do not (`WEIGHTS`)."""
    if op == "MatMulInteger":
        a, b, *zeros = (x.astype(np.int64) for x in inputs)
        left, right = [*zeros, 0, 0][:2]
        return ((a - left) @ (b - right)).astype(np.int32)
    a, a_scale, left, b, b_scale, right, scale, zero = (x.astype(np.float64) for x in inputs)
    return np.clip(np.rint((a - left) @ (b - right) * a_scale * b_scale / scale) + zero, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("constant", [False, True], ids=["given", "constant"])
@pytest.mark.parametrize("case", CASES, ids=[f"{k}-{c[0]}-{c[1]}" for k, c in enumerate(CASES)])
def test_results_are_the_same(case: tuple[str, int, Feeds, dict[str, Any], list[int]], constant: bool) -> None:
    op, opset, inputs, attributes, kinds = case
    proto = model(op, opset, inputs, attributes, set(range(len(inputs))) if constant else set(), len(kinds), kinds)
    feeds = {} if constant else {f"x{k}": x for k, x in enumerate(inputs) if x is not None}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if op in ("MatMulInteger", "QLinearMatMul"):
        wanted = [in_whole_numbers(op, inputs)]
    else:
        wanted = onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
    for got, want in zip(run_model(api.load(proto), feeds), wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype == object:
            assert got.tolist() == want.tolist()
        elif want.dtype == np.uint8:  # quantised: others round once more on the way
            assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 if want.dtype.kind == "f" else 0)


def test_an_index_outside_fails_the_request() -> None:
    proto = model("GatherND", 12, [values(2, 3), np.array([[0, 1]])], {}, set(), 1, [F])
    with pytest.raises(AssertionError, match="kernel error 1"):
        run_model(api.load(proto), {"x0": values(2, 3), "x1": np.array([[1, -4]])})


def test_axes_of_pads_may_be_short_integers() -> None:
    inputs = [values(2, 3), np.array([1, 2]), None, np.array([-1], np.int32)]
    proto = model("Pad", 18, inputs, {}, {1}, 1, [F])
    feeds = {"x0": inputs[0], "x3": inputs[3]}
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(run_model(api.load(proto), feeds)[0], wanted)


@pytest.mark.parametrize("constant", [False, True], ids=["given", "constant"])
def test_products_of_integers_are_exact(constant: bool) -> None:
    """Of the greatest terms, so many that floats would round, and enough rows and columns for Strassen's algorithm."""
    x, w = np.full((96, 1600), 255, np.uint8), whole(1600, 800, low=-128, high=128, dtype=np.int8)
    w[:, 3:90] = -128
    inputs = [x, w, np.array(0, np.uint8), np.array(127, np.int8)]
    proto = model("MatMulInteger", 10, inputs, {}, {1, 2, 3} if constant else set(), 1, [I32])
    counts: dict[str, int] = {}
    feeds = {f"x{k}": v for k, v in enumerate(inputs) if k == 0 or not constant}
    (got,) = run_model(api.load(proto), feeds, counts=counts)
    assert "OPAQUE" not in counts
    np.testing.assert_array_equal(got, x.astype(np.int64) @ (w.astype(np.int64) - 127))


def test_no_operator_of_detectors_and_quantised_models_is_opaque() -> None:
    """Those in the middle of many networks have kernels."""
    lowered = {"TopK", "GatherND", "ScatterND", "ScatterElements", "OneHot", "AffineGrid", "MatMulInteger", "QLinearMatMul", "QLinearConv"}
    lowered |= {"RoiAlign", "DeformConv", "CumSum"}
    for op, opset, inputs, attributes, kinds in CASES:
        if op in lowered:
            known = {k for k in range(1, len(inputs)) if op in {"TopK", "OneHot", "AffineGrid", "CumSum"}}
            proto = model(op, opset, inputs, attributes, known, len(kinds), kinds)
            counts: dict[str, int] = {}
            run_model(api.load(proto), {f"x{k}": x for k, x in enumerate(inputs) if k not in known}, counts=counts)
            assert "OPAQUE" not in counts, op


def test_weights_that_are_computed_once_stay_constants() -> None:
    """Positions that are resized, weights that are standardised by BatchNormalization in training."""
    statistics = [np.ones(4, np.float32), *(np.zeros(4, np.float32) for _ in range(3))]
    for op, opset, inputs, attributes, outputs in (
        ("Resize", 17, [values(1, 4, 5, 5), None, None, np.array([1, 4, 7, 7])], {"mode": "cubic"}, 1),
        ("BatchNormalization", 17, [values(1, 4, 30), *statistics], {"training_mode": 1}, 3),
    ):
        proto = model(op, opset, inputs, attributes, set(range(len(inputs))), outputs, [F] * outputs)
        counts: dict[str, int] = {}
        (got, *_) = run_model(api.load(proto), {}, counts=counts)
        np.testing.assert_allclose(got, onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {})[0], rtol=1e-4, atol=1e-5)
        assert counts.keys() <= {"COPY"}
