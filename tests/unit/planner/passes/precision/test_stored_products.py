"""Networks quantised statically: which of their products are made of the bytes themselves, and which are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_graphs import run_model
from net_tools import Net, check, lowered, ops
from onnx import TensorProto
from plan_requests import plan_request

from aspen_mp.planner import api
from aspen_mp.planner.ir.graph import Node

BIAS, RESIDUAL, FACTOR, ZERO = 2, 3, 4, 5
DEPTH, COLUMNS = 21, 40
U8, I8 = np.uint8, np.int8


def levels(net: Net, x: str, kind: Any = U8, scale: float = 0.03) -> tuple[str, str, str]:
    """Scale and zero point, and bytes of `x`."""
    step, zero = net.number(scale), net.constant(np.array({U8: 117, I8: -3}.get(kind, 5), kind))
    return step, zero, net("QuantizeLinear", x, step, zero)


def data(net: Net, x: str, kind: Any = U8, scale: float = 0.03) -> str:
    step, zero, q = levels(net, x, kind, scale)
    return net("DequantizeLinear", q, step, zero)


def weight(net: Net, *shape: int, kind: Any = I8, axis: int | None = None, points: bool = False, **attrs: Any) -> str:
    """Of one scale, or one for each index of an axis; zero points are like scales."""
    info = np.iinfo(kind)
    values = net.constant(net.rng.integers(max(info.min, -300), min(info.max, 300) + 1, shape).astype(kind))
    many = () if axis is None else (shape[axis],)
    scales = net.constant((net.rng.random(many) * 0.02 + 0.001).astype(np.float32))
    more = [net.constant(net.rng.integers(0, 9, many).astype(kind))] if points else []
    given = {} if axis is None else {"axis": axis}
    return net("DequantizeLinear", values, scales, *more, **given, **attrs)


def made(net: Net, *outputs: str, tolerance: float = 1e-5, scale: float = 1.0) -> list[Node]:
    return check(net, *outputs, tolerance=tolerance, scale=scale, reference=True)


def present(node: Node) -> set[int]:
    return {i for i, t in enumerate(node.inputs) if t is not None and i > 1}


def refused(net: Net, y: str, tolerance: float = 1e-5) -> None:
    assert not {"QGEMM", "QCONV"} & set(ops(made(net, y, tolerance=tolerance)))


@pytest.mark.parametrize("kind", [U8, I8])
@pytest.mark.parametrize("stored", [U8, I8])
@pytest.mark.parametrize("axis", [None, 1, -1])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("shape", [(4, DEPTH), (2, 3, DEPTH)], ids=str)
def test_matmul(kind: Any, stored: Any, axis: int | None, points: bool, shape: tuple[int, ...]) -> None:
    net = Net(opset=21, x=shape)
    product = net("MatMul", data(net, "x", kind), weight(net, DEPTH, COLUMNS, kind=stored, axis=axis, points=points))
    quantize, node = made(net, net("Relu", net("Add", product, net.weight(COLUMNS))))
    assert (quantize.op, node.op) == ("QUANTIZE", "QGEMM")
    assert present(node) == {BIAS, FACTOR, ZERO}
    assert node.attrs["act"][0] == "RELU"


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_transposed_weights(axis: int | None) -> None:
    """Scales of terms are no factor of the sums."""
    net = Net(opset=21, x=(4, DEPTH))
    w = net("Transpose", weight(net, COLUMNS, DEPTH, axis=axis, points=True), perm=[1, 0])
    nodes = made(net, net("MatMul", data(net, "x"), w))
    assert ("QGEMM" in ops(nodes)) == (axis != 1)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("axis", ["none", "columns"])
@pytest.mark.parametrize("bias", [None, (), (1,), (COLUMNS,), (1, COLUMNS), (4, 1), (4, COLUMNS)], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, -2.0), (-1.5, 0.0)])
def test_gemm(swapped: bool, axis: str, bias: tuple[int, ...] | None, alpha: float, beta: float) -> None:
    net = Net(opset=21, x=(4, DEPTH))
    shape = (COLUMNS, DEPTH) if swapped else (DEPTH, COLUMNS)
    w = weight(net, *shape, kind=U8, axis=None if axis == "none" else int(not swapped), points=True)
    more = [] if bias is None else [net.weight(*bias)]
    quantize, node, *_ = made(net, net("Gemm", data(net, "x"), w, *more, transB=int(swapped), alpha=alpha, beta=beta))
    assert (quantize.op, node.op) == ("QUANTIZE", "QGEMM")
    assert {FACTOR, ZERO} <= present(node)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("bias", ["none", "floats", "integers"])
@pytest.mark.parametrize(
    ("image", "kernel", "attrs"),
    [
        ((9, 8), (3, 3), {"pads": [1, 1, 1, 1]}),
        ((9, 8), (1, 1), {}),
        ((9, 8), (3, 2), {"strides": [2, 1], "dilations": [1, 3], "pads": [0, 2, 3, 1]}),
        ((9, 8), (4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((9, 8), (4, 3), {"auto_pad": "SAME_LOWER"}),
        ((17,), (5,), {"strides": [2], "pads": [2, 1]}),
        ((17,), (1,), {}),
    ],
    ids=str,
)
def test_conv(axis: int | None, bias: str, image: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any]) -> None:
    net = Net(opset=21, x=(2, 6, *image))
    more = {"none": lambda: [], "floats": lambda: [net.weight(33)], "integers": lambda: [biases(net, 33)]}[bias]()
    y = net("Conv", data(net, "x", I8), weight(net, 33, 6, *kernel, axis=axis, points=True), *more, **attrs)
    quantize, node, *others = made(net, net("Relu", y))
    assert (quantize.op, node.op) == ("QUANTIZE", "QCONV")
    if len(image) == 1:  # a view is between the sums and the rest
        return
    assert not others
    assert present(node) == {FACTOR, ZERO} | ({BIAS} if bias != "none" else set())
    assert node.attrs["act"][0] == "RELU"


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("stored", [U8, I8])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(
    ("image", "kernel", "attrs"),
    [
        ((9, 8), (3, 3), {"pads": [1, 1, 1, 1]}),
        ((9, 8), (5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
        ((9, 8), (3, 2), {"strides": [2, 1], "dilations": [1, 3], "pads": [0, 2, 3, 1]}),
        ((9, 8), (4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((17,), (5,), {"strides": [2], "pads": [2, 1]}),
    ],
    ids=str,
)
def test_depthwise(
    axis: int | None, stored: Any, repeats: int, image: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    net, outputs = Net(opset=21, x=(2, 33, *image)), 33 * repeats
    w = weight(net, outputs, 1, *kernel, kind=stored, axis=axis, points=True)
    y = net("Conv", data(net, "x", U8), w, biases(net, outputs), group=33, **attrs)
    quantize, node, *others = made(net, net("Relu", y))
    assert (quantize.op, node.op) == ("QUANTIZE", "QDWCONV")
    if len(image) == 1:  # a view is between the sums and the rest
        return
    assert not others
    assert present(node) == {FACTOR, ZERO, BIAS}
    assert node.attrs["act"][0] == "RELU"


def test_bytes_from_end_to_end() -> None:
    """An inverted residual: what expands, what is depthwise and what projects are three kernels, with bytes between them."""
    net = Net(opset=21, x=(1, 8, 6, 7))
    x = data(net, "x")
    y = data(net, net("Clip", net("Conv", x, weight(net, 40, 8, 1, 1, axis=0), biases(net, 40)), net.number(0.0), net.number(6.0)))
    y = net("Conv", y, weight(net, 40, 1, 3, 3, axis=0), biases(net, 40), group=40, pads=[1] * 4)
    y = data(net, net("Clip", y, net.number(0.0), net.number(6.0)))
    y = net("Conv", y, weight(net, 8, 40, 1, 1, axis=0), biases(net, 8))
    nodes = made(net, net("Add", y, x), tolerance=0.02)
    assert ops(nodes) == ["QUANTIZE", "QCONV", "QDWCONV", "QCONV"]
    assert [n.output.dtype for n in nodes[1:]] == [np.uint8, np.uint8, np.float32]


def biases(net: Net, n: int) -> str:
    """As tools write them."""
    values, scale = net.constant(net.rng.integers(-9000, 9000, n).astype(np.int32)), net.number(1e-4)
    return net("DequantizeLinear", values, scale, net.constant(np.int32(0)))


def test_a_residual_and_bytes_between() -> None:
    """Two layers are two kernels behind the first bytes: what one writes the other reads."""
    net = Net(opset=21, x=(1, 8, 6, 7))
    x = data(net, "x")
    y = data(net, net("Relu", net("Conv", x, weight(net, 33, 8, 3, 3, axis=0), biases(net, 33), pads=[1] * 4)), scale=0.05)
    y = net("Conv", y, weight(net, 8, 33, 1, 1, axis=0), biases(net, 8))
    nodes = made(net, net("Relu", net("Add", y, x)), tolerance=0.02)
    assert ops(nodes) == ["QUANTIZE", "QCONV", "QCONV"]
    assert nodes[-2].output.dtype == np.uint8
    assert RESIDUAL in present(nodes[-1])


def test_bytes_from_outside() -> None:
    """Nobody in the graph quantises them."""
    net = Net(opset=21, x=(4, DEPTH))
    q = net("Cast", "x", to=TensorProto.INT8)
    x = net("DequantizeLinear", q, net.number(0.1))
    nodes = made(net, net("MatMul", x, weight(net, DEPTH, COLUMNS)), scale=30.0)
    assert ops(nodes) == ["CAST", "QGEMM"]
    assert present(nodes[-1]) == {FACTOR}


def test_several_readers() -> None:
    """The bytes are made once, and what others read is made of them: no level is found a second time."""
    net = Net(opset=21, x=(4, DEPTH))
    x = data(net, "x")
    y, z = (net("MatMul", x, weight(net, DEPTH, n)) for n in (COLUMNS, DEPTH))
    nodes = made(net, y, net("Neg", z), net("Neg", x))
    assert sorted(ops(nodes)) == ["DEQUANTIZE", "QGEMM", "QGEMM", "QUANTIZE", "UNARY"]
    assert next(n.attrs["opcode"] for n in nodes if n.op == "UNARY") == "NEG"


def test_what_was_read_may_be_a_result() -> None:
    net = Net(opset=21, x=(4, DEPTH))
    x = data(net, "x")
    nodes = made(net, net("MatMul", x, weight(net, DEPTH, COLUMNS)), x)
    assert sorted(ops(nodes)) == ["DEQUANTIZE", "QGEMM", "QUANTIZE"]


def test_levels_are_kept_where_no_product_reads_them() -> None:
    net = Net(opset=21, x=(4, DEPTH), r=(4, DEPTH))
    nodes = made(net, net("MatMul", data(net, "x"), weight(net, DEPTH, COLUMNS)), net("Add", data(net, "r"), net.weight(DEPTH)))
    assert sorted(ops(nodes)) == ["BINARY", "QGEMM", "QUANTIZE", "UNARY"]


# ------------------------------------------------------------------------------------------------------------------ what prevents it


def test_processors_that_do_not_sum_bytes() -> None:
    """There convolutions are of floats, other products are not."""
    net = Net(opset=21, x=(1, 6, 5, 5))
    y = net("Flatten", net("Conv", data(net, "x"), weight(net, 8, 6, 3, 3, axis=0)))
    model = net.model(net("MatMul", data(net, y, scale=0.2), weight(net, 72, 9)))
    counts: dict[str, int] = {}
    run_model(api.load(model), {"x": np.ones((1, 6, 5, 5), np.float32)}, plan_request(sums_bytes=False), counts)
    assert counts["QGEMM"] == 1
    assert "QCONV" not in counts


def test_groups() -> None:
    net = Net(opset=21, x=(1, 6, 5, 5))
    refused(net, net("Conv", data(net, "x"), weight(net, 8, 3, 3, 3, axis=0), group=2))


def test_volumes() -> None:
    net = Net(opset=21, x=(1, 3, 4, 5, 5))
    refused(net, net("Conv", data(net, "x"), weight(net, 8, 3, 2, 3, 3, axis=0)))


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv"])
def test_weights_that_are_not_constant(op: str) -> None:
    image = (3, 3) if op == "Conv" else ()
    net = Net(opset=21, x=(6, 6, *image), w=(6, 6, *image))
    refused(net, net(op, data(net, "x"), data(net, "w", I8)))


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(("op", "shape", "axis"), [("MatMul", (6, 7), 0), ("Gemm", (6, 7), 0), ("Conv", (7, 6, 1, 1), 1)])
def test_scales_of_terms(op: str, shape: tuple[int, ...], axis: int, points: bool) -> None:
    net = Net(opset=21, x=(3, 6, *[4] * (len(shape) - 2)))
    refused(net, net(op, data(net, "x"), weight(net, *shape, axis=axis, points=points)))


def test_scales_of_terms_of_a_square() -> None:
    """As many as there are columns."""
    net = Net(opset=21, x=(3, 6))
    refused(net, net("Gemm", data(net, "x"), weight(net, 6, 6, axis=1), transB=1))


def test_scales_of_blocks() -> None:
    net = Net(opset=21, x=(3, 6))
    values = net.constant(net.rng.integers(-128, 128, (6, 8)).astype(I8))
    scales = net.constant((net.rng.random((2, 8)) + 0.1).astype(np.float32))
    refused(net, net("MatMul", data(net, "x"), net("DequantizeLinear", values, scales, axis=0, block_size=3)))


@pytest.mark.parametrize(("kind", "stored"), [(np.uint16, I8), (np.int16, I8), (U8, np.int16), (U8, np.uint16)])
def test_words(kind: Any, stored: Any) -> None:
    net = Net(opset=21, x=(3, DEPTH))
    refused(net, net("MatMul", data(net, "x", kind), weight(net, DEPTH, COLUMNS, kind=stored)), tolerance=1e-4)


def test_integers_as_weights() -> None:
    net = Net(opset=21, x=(3, DEPTH))
    refused(net, net("MatMul", data(net, "x"), biases(net, DEPTH)))


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_the_data_by_an_axis(axis: int) -> None:
    net = Net(opset=21, x=(3, DEPTH))
    n = (3, DEPTH)[axis]
    scales, zeros = net.weight(n, positive=True, scale=0.01), net.constant(np.arange(n).astype(U8))
    x = net("DequantizeLinear", net("QuantizeLinear", "x", scales, zeros, axis=axis), scales, zeros, axis=axis)
    refused(net, net("MatMul", x, weight(net, DEPTH, COLUMNS)))


def test_scales_of_the_data_that_are_computed() -> None:
    net = Net(opset=21, x=(3, DEPTH), s=(1,))
    scale, zero = net("ReduceMax", net("Add", net("Abs", "s"), net.number(0.05)), keepdims=0), net.constant(U8(100))
    x = net("DequantizeLinear", net("QuantizeLinear", "x", scale, zero), scale, zero)
    refused(net, net("MatMul", x, weight(net, DEPTH, COLUMNS)))


@pytest.mark.parametrize(("op", "terms"), [("MatMul", 33025), ("MatMul", 33026), ("Gemm", 33026), ("Gemm", 70000), ("Conv", 33026)])
def test_sums_that_32_bits_do_not_hold(op: str, terms: int) -> None:
    """The largest products there are, one beyond what is certain to fit."""
    image = (1, 1) if op == "Conv" else ()
    net = Net(opset=21, x=(2, terms, *image))
    step, zero = net.number(0.01), net.constant(U8(0))
    x = net("DequantizeLinear", net("QuantizeLinear", net("Abs", "x"), step, zero), step, zero)
    values = np.full((3, terms, *image) if op == "Conv" else (terms, 3), 255, U8)
    nodes = made(net, net(op, x, net("DequantizeLinear", net.constant(values), step)), scale=1000.0, tolerance=1e-3)
    assert ("QGEMM" in ops(nodes)) == (terms == 33025)
    assert "QCONV" not in ops(nodes)


def test_a_left_factor_that_is_transposed() -> None:
    net = Net(opset=21, x=(DEPTH, 4))
    refused(net, net("Gemm", data(net, "x"), weight(net, DEPTH, COLUMNS), transA=1))


@pytest.mark.parametrize("shape", [(2, DEPTH, COLUMNS), (DEPTH,)], ids=str)
def test_weights_that_are_no_matrix(shape: tuple[int, ...]) -> None:
    net = Net(opset=21, x=(2, 3, DEPTH))
    refused(net, net("MatMul", data(net, "x"), weight(net, *shape)))


def test_a_vector_times_a_matrix() -> None:
    net = Net(opset=21, x=(DEPTH,))
    refused(net, net("MatMul", data(net, "x"), weight(net, DEPTH, COLUMNS)))


def test_weights_on_the_left() -> None:
    net = Net(opset=21, x=(DEPTH, 4))
    refused(net, net("MatMul", weight(net, COLUMNS, DEPTH), data(net, "x")))


def test_floats_on_the_left() -> None:
    net = Net(opset=21, x=(4, DEPTH))
    refused(net, net("MatMul", "x", weight(net, DEPTH, COLUMNS)))


def test_a_bias_that_is_computed() -> None:
    net = Net(opset=21, x=(4, DEPTH), b=(COLUMNS,))
    refused(net, net("Gemm", data(net, "x"), weight(net, DEPTH, COLUMNS), net("Neg", "b")))


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan, -1.0])
def test_scales_that_are_none(scale: float) -> None:
    net = Net(opset=21, x=(4, DEPTH))
    with np.errstate(all="ignore"):
        y = net("MatMul", data(net, "x", scale=scale), weight(net, DEPTH, COLUMNS))
        nodes = lowered(net.model(y), {"x": np.ones((4, DEPTH), np.float32)}).nodes
    assert "QGEMM" not in [n.op for n in nodes]


def test_products_without_terms_are_left_alone() -> None:
    """Their sums are zeros: no kernel for bytes is asked."""
    net = Net(opset=21, x=(4, 0))
    refused(net, net("MatMul", data(net, "x"), weight(net, 0, COLUMNS)))
