"""Networks as quantisation tools write them: pairs of QuantizeLinear and DequantizeLinear are functions, and become epilogues; alone they
are one kernel each; levels that fit a tensor are found while the network runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_graphs import run_model
from net_tools import Net, check, lowered, ops
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from peer_tools import exact_sums

from aspen_mp.planner import api

U8, I8 = np.uint8, np.int8


def pair(net: Net, x: str, scale: float, zero: Any, back: tuple[float, Any] | None = None) -> str:
    there = net.constant(np.float32(scale)), net.constant(zero)
    here = there if back is None else (net.constant(np.float32(back[0])), net.constant(back[1]))
    return net("DequantizeLinear", net("QuantizeLinear", x, *there), *here)


def opcodes(nodes: list[Any]) -> list[str]:
    return [n.attrs["opcode"] if n.op == "UNARY" else n.attrs["act"][0] for n in nodes if n.op == "UNARY" or "act" in n.attrs]


@pytest.mark.parametrize("zero", [U8(0), U8(117), U8(255), I8(-128), I8(0), I8(127)])
def test_a_pair_is_a_function(zero: Any) -> None:
    net = Net(opset=21, x=(40, 50))
    nodes = check(net, pair(net, "x", 0.013, zero), scale=2.0, tolerance=0, reference=True)
    assert ops(nodes) == ["UNARY"]
    assert opcodes(nodes) == ["FAKE_QUANTIZE"]


def test_pairs_become_epilogues_between_products() -> None:
    net = Net(opset=21, x=(1, 8, 6, 6))
    x = pair(net, "x", 0.02, I8(0))
    y = pair(net, net("Relu", net("Conv", x, net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4)), 0.1, I8(-128))
    y = pair(net, net("Conv", y, net.weight(8, 8, 1, 1), net.weight(8)), 0.2, I8(3))
    nodes = check(net, net("Relu", net("Add", y, x)), tolerance=0.02)
    assert [n.op for n in nodes][:2] == ["UNARY", "CONV"]
    assert "CAST" not in ops(nodes)
    assert opcodes(nodes).count("FAKE_QUANTIZE") >= 2


def test_levels_are_kept_by_what_chooses_among_values() -> None:
    net = Net(opset=21, x=(1, 4, 8, 8))
    y = pair(net, "x", 0.1, U8(128))
    y = pair(net, net("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), 0.1, U8(128))
    y = pair(net, net("Transpose", y, perm=[0, 2, 3, 1]), 0.1, U8(128))
    nodes = check(net, net("Neg", y), tolerance=0, reference=True)
    assert ops(nodes) == ["QUANTIZE", "POOL", "DEQUANTIZE", "UNARY"]


def test_others_are_left_as_they_are() -> None:
    """Other parameters on the way back, one scale a channel, results that somebody else reads."""
    net = Net(opset=21, x=(2, 3, 4))
    other = pair(net, "x", 0.1, U8(128), (0.2, U8(128)))
    scales, zeros = net.constant(np.array([0.1, 0.2, 0.3], np.float32)), net.constant(np.array([1, 2, 3], U8))
    channels = net("DequantizeLinear", net("QuantizeLinear", "x", scales, zeros, axis=1), scales, zeros, axis=1)
    nodes = check(net, other, channels, tolerance=0, reference=True)
    assert ops(nodes) == ["QUANTIZE", "DEQUANTIZE"] * 2


def test_bytes_that_others_read_are_made_besides() -> None:
    net = Net(opset=21, x=(2, 3, 4))
    scale, zero = net.constant(np.float32(0.1)), net.constant(U8(128))
    quantised = net("QuantizeLinear", "x", scale, zero)
    back = net("DequantizeLinear", quantised, scale, zero)
    nodes = check(net, back, net("Cast", quantised, to=1), tolerance=0, reference=True)
    assert sorted(ops(nodes)) == ["CAST", "QUANTIZE", "UNARY"]
    assert "FAKE_QUANTIZE" in opcodes(nodes)


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan, -1.0])
def test_scales_that_make_no_levels(scale: float) -> None:
    net = Net(opset=21, x=(2, 3))
    nodes = lowered(net.model(pair(net, "x", scale, U8(0))), {"x": np.ones((2, 3), np.float32)}).nodes
    assert "FAKE_QUANTIZE" not in opcodes(nodes)


@pytest.mark.parametrize(("zero", "functions"), [(I8(-128), ["FAKE_QUANTIZE"]), (I8(-127), ["RELU", "FAKE_QUANTIZE"])])
def test_no_level_is_below_zero(zero: Any, functions: list[str]) -> None:
    net = Net(opset=21, x=(4, 50))
    nodes = check(net, pair(net, net("Relu", "x"), 0.05, zero), tolerance=0, reference=True)
    assert opcodes(nodes) == functions


def alone(op: str, inputs: dict[str, Any], outputs: dict[str, Any], opset: int = 21, **attrs: Any) -> onnx.ModelProto:
    """A model of one operator; arrays among the inputs are constants, dtypes with shapes are fed. Outputs by dtype."""
    kind = helper.np_dtype_to_tensor_dtype
    fed = [helper.make_tensor_value_info(n, kind(np.dtype(x[0])), x[1]) for n, x in inputs.items() if isinstance(x, tuple)]
    held = [numpy_helper.from_array(x, n) for n, x in inputs.items() if not isinstance(x, tuple)]
    results = [helper.make_tensor_value_info(n, kind(np.dtype(t)), None) for n, t in outputs.items()]
    graph = helper.make_graph([helper.make_node(op, list(inputs), list(outputs), **attrs)], op, fed, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def agrees(model: onnx.ModelProto, feeds: dict[str, Any], *, exact: bool = True) -> dict[str, int]:
    """The kernels of a model, whose results are onnxruntime's."""
    want = onnxruntime.InferenceSession(model.SerializeToString(), exact_sums(), providers=["CPUExecutionProvider"]).run(None, feeds)
    counts: dict[str, int] = {}
    for got, wanted in zip(run_model(api.load(model), feeds, counts=counts), want, strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(got, wanted) if exact else np.allclose(got, wanted, rtol=1e-6, atol=1e-6)
    assert "OPAQUE" not in counts
    return counts


@pytest.mark.parametrize(
    "shape",
    [(), (1,), (5000,), (1, 128, 768), (3, 1, 700), (1, 6000), (2, 3, 40, 50), (1, 64, 9, 9), (1, 4, 6, 7, 30), (1, 1, 1, 4097)],
    ids=str,
)
@pytest.mark.parametrize("offset", [-50.0, -1.0, 0.0, 50.0])
def test_bytes_of_levels_that_fit(shape: tuple[int, ...], offset: float) -> None:
    x = np.asarray(np.random.default_rng(len(shape)).standard_normal(shape) * 3 + offset, np.float32)
    model = alone("DynamicQuantizeLinear", {"x": (np.float32, shape)}, {"y": U8, "scale": np.float32, "zero": U8})
    counts = agrees(model, {"x": x})
    for got, want in zip(run_model(api.load(model), {"x": x}), ReferenceEvaluator(model).run(None, {"x": x}), strict=True):
        assert np.array_equal(got, want)
    assert {n: k for n, k in counts.items() if not n.startswith("view.")} == {"MINMAX": 1, "QPARAMS": 1, "QUANTIZE": 1}


@pytest.mark.parametrize(
    "values", [[0.0] * 6, [-0.0] * 6, [7.0] * 6, [1e-44, 0.0], [3e38, -3e38, 1.0], [np.inf, 1.0], [-np.inf, 1.0]], ids=str
)
def test_levels_of_odd_values(values: list[float]) -> None:
    """As onnxruntime has them, which is not always as ONNX defines them: a range that is empty has scale 1."""
    x = np.array(values, np.float32)
    agrees(alone("DynamicQuantizeLinear", {"x": (np.float32, x.shape)}, {"y": U8, "scale": np.float32, "zero": U8}), {"x": x})


def test_levels_of_what_is_no_number() -> None:
    x = np.array([np.nan, 1.0, -3.0], np.float32)
    model = alone("DynamicQuantizeLinear", {"x": (np.float32, x.shape)}, {"y": U8, "scale": np.float32, "zero": U8})
    y, scale, zero = run_model(api.load(model), {"x": x})
    assert y.tolist() == [0, 0, 0]
    assert np.isnan(scale)
    assert zero == 255


def test_levels_of_nothing() -> None:
    model = alone("DynamicQuantizeLinear", {"x": (np.float32, (3, 0))}, {"y": U8, "scale": np.float32, "zero": U8})
    y, scale, zero = run_model(api.load(model), {"x": np.zeros((3, 0), np.float32)})
    assert (y.shape, y.dtype, float(scale), int(zero)) == ((3, 0), U8, 1.0, 0)


@pytest.mark.parametrize("given", [{"scale", "zero"}, set()], ids=["known", "computed"])
@pytest.mark.parametrize(("axis", "parameters"), [(1, ()), (1, (6,)), (-1, (9,)), (0, (2,))])
@pytest.mark.parametrize("dtype", [I8, U8, np.int16, np.uint16])
def test_levels_there_and_back(dtype: Any, axis: int, parameters: tuple[int, ...], given: set[str]) -> None:
    """One kernel each way, of a tensor or an axis, whether scales are known or not."""
    rng = np.random.default_rng(9)
    info, shape = np.iinfo(dtype), (2, 6, 9)
    values = {
        "x": (rng.standard_normal(shape) * 90).astype(np.float32),
        "q": rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True),
        "scale": (rng.random(parameters) + 0.1).astype(np.float32),
        "zero": rng.integers(info.min, info.max, parameters, dtype=dtype, endpoint=True),
    }
    values["scale"], values["zero"] = np.asarray(values["scale"], np.float32), np.asarray(values["zero"], dtype)
    for op, x, out in (("QuantizeLinear", "x", dtype), ("DequantizeLinear", "q", np.float32)):
        names = (x, "scale", "zero")
        inputs = {n: values[n] if n in given else (values[n].dtype, values[n].shape) for n in names}
        counts = agrees(alone(op, inputs, {"y": out}, axis=axis), {n: values[n] for n in names if n not in given}, exact=out != np.float32)
        assert counts[op.removesuffix("Linear").upper()] == 1
        assert not {"UNARY", "BINARY", "CAST"} & set(counts)


def test_biases_of_integers_in_levels_of_32_bits() -> None:
    q = np.array([2**31 - 1, -(2**31), 2**24 + 1, -5, 0], np.int32)
    inputs = {"q": (np.int32, q.shape), "scale": np.float32(0.03), "zero": np.int32(0)}
    assert agrees(alone("DequantizeLinear", inputs, {"y": np.float32}), {"q": q})["DEQUANTIZE"] == 1


def test_a_product_of_bytes_that_were_fitted() -> None:
    """As onnxruntime's tool writes networks that are quantised while they run."""
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((2, 30, 70)).astype(np.float32), rng.integers(-128, 128, (70, 40)).astype(I8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero", "w_zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=1),
        helper.make_node("Mul", ["scale", "w_scale"], ["step"]),
        helper.make_node("Mul", ["real", "step"], ["y"]),
    ]
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in (("w", w), ("w_zero", I8(0)), ("w_scale", np.float32(0.02)))]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "product", [info("x", 1, x.shape)], [info("y", 1, None)], held)
    counts = agrees(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {"x": x}, exact=False)
    assert (counts["MINMAX"], counts["QPARAMS"], counts["QUANTIZE"]) == (1, 1, 1)
