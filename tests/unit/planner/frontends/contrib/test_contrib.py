"""Operators of onnxruntime's own, as its optimizer and its quantisation tools write them, against onnxruntime; what of them has no rule is
refused when the model is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from contrib_tools import array, case, compared, info, model, small
from kernel_graphs import run_model
from onnx import TensorProto, helper

from aspen_mp.planner import api
from aspen_mp.shm.errors import UnsupportedModelError

WIDTH = {"g": array(8), "b": array(8), "c": array(8)}
SUM = {"y": np.float32, " ": np.float32, "  ": np.float32, "sum": np.float32}
FEEDS = {
    "x": array(2, 3, 8),
    "s": array(2, 3, 8),
    "t": array(2, 3, 5),
    "m": np.array([[1, 1, 0], [1, 1, 1]], np.int32),
    "p": array(2, 3, 8, 8),
    "z": array(2, 4, 8, 8),
    "r": array(4, 8),
}
KERNEL = {"w": array(4, 3, 3, 3), "b": array(4)}
MATRIX = {"w": array(5, 8), "b": array(5)}
HEADS = {"w": array(8, 24), "b": array(24)}
REAL = [
    case("product", "FusedMatMul", "x w", {"w": array(6, 8)}, transB=1, alpha=0.5),
    case("transposed-product", "FusedMatMul", "x t", transA=1),
    case("gelu", "Gelu", "x"),
    case("gelu-with-bias", "BiasGelu", "x b", WIDTH),
    case("fast-gelu", "FastGelu", "x"),
    case("fast-gelu-with-bias", "FastGelu", "x b", WIDTH),
    case("quick-gelu", "QuickGelu", "x", alpha=1.5),
    case("skip-norm", "SkipLayerNormalization", "x s g b c", WIDTH, SUM),
    case("skip-norm-without-bias", "SkipLayerNormalization", "x s g", WIDTH, epsilon=1e-3),
    case("skip-norm-bias-alone", "SkipLayerNormalization", "x s g  c", WIDTH),
    case("skip-simple-norm", "SkipSimplifiedLayerNormalization", "x s g c", WIDTH, SUM, epsilon=1e-5),
    case("simple-norm", "SimplifiedLayerNormalization", "x g", WIDTH, domain="", axis=-1, epsilon=1e-5, stash_type=1),
    case("norm-of-old-opsets", "LayerNormalization", "x g b", WIDTH, domain="", version=13, axis=-1, epsilon=1e-5),
    case("attention", "Attention", "x w b", HEADS, num_heads=2),
    case("causal-attention", "Attention", "x w b", HEADS, num_heads=2, unidirectional=1),
    case("masked-attention", "Attention", "x w b m", HEADS, num_heads=2),
    case(
        "attention-of-sizes", "Attention", "x w b", {"w": array(8, 20), "b": array(20)}, num_heads=2, qkv_hidden_sizes=[8, 8, 4], scale=0.3
    ),
    case("conv-relu", "FusedConv", "p w b", KERNEL, activation="Relu", pads=[1, 1, 1, 1], strides=[2, 2]),
    case("conv-clip", "FusedConv", "p w b", KERNEL, activation="Clip", activation_params=[-0.5, 0.5]),
    case("conv-leaky", "FusedConv", "p w", KERNEL, activation="LeakyRelu", activation_params=[0.2]),
    case("conv-sum", "FusedConv", "p w b z", KERNEL, activation="Relu", pads=[1, 1, 1, 1]),
    case("gemm", "FusedGemm", "r w b", MATRIX, activation="LeakyRelu", activation_alpha=0.3, transB=1, alpha=0.7),
]


@pytest.mark.parametrize(("op", "inputs", "constants", "outputs", "more"), REAL)
def test_fused(op: str, inputs: list[str], constants: dict[str, Any], outputs: Any, more: dict[str, Any]) -> None:
    for got, want in zip(*compared(op, inputs, constants, outputs, more, FEEDS), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


BYTE = {"y": np.uint8}
STEPS = {"s": np.float32(0.03), "z": np.uint8(120), "t": np.float32(0.02), "u": np.uint8(110), "v": np.float32(0.05), "o": np.uint8(128)}
WEIGHTS = {
    "w": small(np.int8, 8, 5),
    "ws": np.abs(array(5)) * 0.02 + 0.01,
    "wz": np.zeros(5, np.int8),
    "i": small(np.int16, 5).astype(np.int32),
}
QUANTISED = [
    case("sum", "QLinearAdd", "a s z b t u v o", STEPS, BYTE),
    case("product", "QLinearMul", "a s z b t u v o", STEPS, BYTE),
    case("sigmoid", "QLinearSigmoid", "a s z v o", STEPS, BYTE),
    case("leaky", "QLinearLeakyRelu", "a s z v o", STEPS, BYTE, alpha=0.2),
    case("softmax", "QLinearSoftmax", "a s z v o", STEPS | {"v": np.float32(1 / 256), "o": np.uint8(0)}, BYTE, axis=-1, opset=13),
    case("mean", "QLinearGlobalAveragePool", "p s z v o", STEPS, BYTE),
    case("pool", "QLinearAveragePool", "p s z v o", STEPS, BYTE, kernel_shape=[2, 2], strides=[2, 2]),
    case("joined", "QLinearConcat", "v o a s z b t u", STEPS, BYTE, axis=1),
    case("gemm", "QGemm", "a s z w ws wz i v o", STEPS | WEIGHTS, BYTE),
    case("gemm-of-floats", "QGemm", "a s z w ws wz i", STEPS | WEIGHTS),
    case("integer-product", "MatMulIntegerToFloat", "a w s ws z wz f", STEPS | WEIGHTS | {"f": array(5)}),
]
BYTES = {"a": small(np.uint8, 4, 8), "b": small(np.uint8, 4, 8), "p": small(np.uint8, 2, 3, 6, 6)}


@pytest.mark.parametrize(("op", "inputs", "constants", "outputs", "more"), QUANTISED)
def test_quantised(op: str, inputs: list[str], constants: dict[str, Any], outputs: Any, more: dict[str, Any]) -> None:
    """To one step of eight bits: sums are made in floats here."""
    (got,), (want,) = compared(op, inputs, constants, outputs, more, BYTES)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    else:
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


REFUSED = {
    "absent": ("SparseAttention", {}, "has no implementation here: load the model with attention to all tokens"),
    "search": ("GreedySearch", {}, "load the decoder alone"),
    "device": ("PagedAttention", {}, "is not implemented for CPUs, even in onnxruntime"),
    "unknown": ("Frobnicate", {}, "is not a known onnxruntime operator"),
    "attribute": ("LinearAttention", {"state_window": 2}, "state_window"),
    "input": ("GatedAdd", {"inputs": 4}, "a gate that is projected"),
    "activation": ("FusedConv", {"activation": "Softsign"}, "'Softsign'"),
    "layout": ("Conv", {"domain": "com.microsoft.nchwc"}, "ORT_ENABLE_EXTENDED"),
    "custom": ("Foo", {"domain": "my.ops"}, "functions of the model"),
    "later": ("Gelu", {"domain": ""}, "since opset 20"),
}


@pytest.mark.parametrize(("op", "more", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_rule_is_refused_by_name(op: str, more: dict[str, Any], message: str) -> None:
    attributes = {name: value for name, value in more.items() if name != "inputs"}
    proto = model(op, {"x": FEEDS["x"], "s": FEEDS["s"]}, ["x", "s"] * (more.get("inputs", 2) // 2), {}, {"y": np.float32}, **attributes)
    proto.opset_import.append(helper.make_opsetid(more.get("domain") or "com.other", 1))
    with pytest.raises(UnsupportedModelError, match=rf"node 'it' \({op}\).*{message}"):
        api.load(proto)


def branches(condition: str) -> onnx.ModelProto:
    """Gelu of x, or its negative, by c or by what is computed of it (d)."""
    nodes = [helper.make_node("Gelu", ["x"], ["r"], name="inner", domain="com.microsoft"), helper.make_node("Neg", ["x"], ["r"])]
    one, other = (helper.make_graph([node], "b", [], [info("r", FEEDS["x"])]) for node in nodes)
    outer = [helper.make_node("Not", ["c"], ["d"]), helper.make_node("If", [condition], ["y"], then_branch=one, else_branch=other)]
    feeds = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), info("x", FEEDS["x"])]
    graph = helper.make_graph(outer, "g", feeds, [info("y", FEEDS["x"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)


@pytest.mark.parametrize("condition", ["c", "d"])
def test_in_branches(condition: str) -> None:
    """The condition is asked for, or computed, before the branch becomes nodes of the model."""
    proto = branches(condition)
    for value in (True, False):
        feeds = {"c": np.array(value), "x": FEEDS["x"]}
        (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
        np.testing.assert_allclose(run_model(api.load(proto), feeds)[0], want, rtol=1e-4, atol=1e-5)


def test_in_bodies_they_are_refused() -> None:
    inside = branches("d").graph.node[1]
    body = helper.make_graph(
        [inside],
        "b",
        [helper.make_tensor_value_info("k", TensorProto.INT64, []), helper.make_tensor_value_info("more", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("more", TensorProto.BOOL, []), info("y", FEEDS["x"])],
    )
    nodes = [helper.make_node("Not", ["c"], ["d"]), helper.make_node("Loop", ["n", "c"], ["z"], body=body)]
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), info("x", FEEDS["x"]), info("n", np.array(3))]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    with pytest.raises(UnsupportedModelError, match=r"'inner' \(Gelu\).*sub-graph"):
        api.load(helper.make_model(graph, opset_imports=imports, ir_version=8))
