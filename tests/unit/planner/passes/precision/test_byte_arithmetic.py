"""Sums, differences and products of bytes: which of them are computed without floats in memory."""

from __future__ import annotations

import numpy as np
import pytest
from net_tools import Net, check, ops
from onnx import TensorProto
from test_stored_products import levels

from aspen_mp.planner.ir.graph import Node

U8, I8 = np.uint8, np.int8


def data(net: Net, x: str, kind: type = U8, scale: float = 0.03) -> str:
    """Bytes that come from outside, dequantised."""
    of = net("Mul", net("Abs", x), net.number(60.0)) if kind is U8 else net("Mul", x, net.number(30.0))
    stored = net("Cast", of, to=TensorProto.UINT8 if kind is U8 else TensorProto.INT8)
    return net("DequantizeLinear", stored, net.number(scale), net.constant(kind(7)))


def kernels(nodes: list[Node]) -> list[str]:
    """Without those that make the bytes from outside."""
    return [op for op in ops(nodes) if op not in {"UNARY", "CAST"} and not op.startswith("view.")]


def bytes_of(net: Net, y: str, kind: type = U8, scale: float = 0.05) -> list[Node]:
    """The kernels of `y`, written as bytes; their results are the reference's."""
    return check(net, net("Cast", levels(net, y, kind, scale)[2], to=TensorProto.FLOAT), tolerance=0.0, reference=True)[:-1]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("kinds", [(U8, U8, U8), (I8, U8, I8), (U8, I8, U8)], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 6, 7), (3, 5, 1, 1), (1, 5, 6, 7), (1, 1, 1, 1)], ids=str)
def test_two_tensors(op: str, kinds: tuple[type, type, type], shape: tuple[int, ...]) -> None:
    net = Net(opset=21, x=(3, 5, 6, 7), y=shape)
    x, y = data(net, "x", kinds[0]), data(net, "y", kinds[1], 0.02)
    nodes = bytes_of(net, net(op, x, y), kinds[2])
    assert [op for op in kernels(nodes) if op != "BINARY"] == ["QBINARY"]
    assert nodes[-1].output.dtype == kinds[2]


def test_gates_of_tables() -> None:
    """A gate that is a function of bytes, as in squeeze and excitation."""
    net = Net(opset=21, x=(2, 5, 6, 7), y=(2, 5, 1, 1))
    gate = data(net, net("Sigmoid", data(net, "y")), U8, 0.004)
    nodes = bytes_of(net, net("Mul", data(net, "x"), gate))
    assert [op for op in kernels(nodes) if op != "BINARY"] == ["LOOKUP", "QBINARY"]


def test_a_function_of_the_sum() -> None:
    net = Net(opset=21, x=(2, 5), y=(2, 5))
    nodes = bytes_of(net, net("Relu", net("Add", data(net, "x"), data(net, "y"))))
    assert [op for op in kernels(nodes) if op != "BINARY"] == ["QBINARY"]
    assert nodes[-1].attrs["act"][0] == "RELU"


@pytest.mark.parametrize("other", ["floats", "reader", "quotient", "channels"])
def test_others_stay(other: str) -> None:
    net = Net(opset=21, x=(2, 5), y=(2, 5))
    x, y = data(net, "x"), data(net, "y", U8, 0.02)
    if other == "channels":
        scales, zeros = net.weight(5, positive=True), net.constant(np.arange(5).astype(U8))
        y = net("DequantizeLinear", net("QuantizeLinear", "y", scales, zeros, axis=1), scales, zeros, axis=1)
    total = net("Div" if other == "quotient" else "Add", x, "y" if other == "floats" else y)
    more = [net("Neg", total)] if other == "reader" else []
    q = net("Cast", levels(net, total, U8, 0.05)[2], to=TensorProto.FLOAT)
    assert "QBINARY" not in ops(check(net, q, *more, tolerance=1e-5, scale=1.0, reference=True))


@pytest.mark.parametrize("kind", [U8, I8])
@pytest.mark.parametrize(
    ("attrs", "bytes_"),
    [
        ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, True),
        ({"kernel_shape": [2, 2], "strides": [2, 2]}, True),
        ({"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 2], "count_include_pad": 1}, True),
        ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, False),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}, False),
        ({"kernel_shape": [10, 9]}, False),
    ],
    ids=str,
)
def test_averages(kind: type, attrs: dict[str, object], bytes_: bool) -> None:
    net = Net(opset=21, x=(2, 35, 12, 14))
    y = net("AveragePool", data(net, "x", kind), **attrs)
    q = net("Cast", levels(net, y, kind, 0.05)[2], to=TensorProto.FLOAT)
    nodes = check(net, q, tolerance=1.0, scale=1.0, reference=True)[:-1]  # an average may lie between two levels
    assert ("QDWCONV" in ops(nodes), "POOL" in ops(nodes)) == (bytes_, not bytes_)
    assert nodes[-1].output.dtype == kind


def test_averages_of_whole_images_serve_all_sizes() -> None:
    net = Net(opset=21, x=(2, 35, 5, 6))
    q = net("Cast", levels(net, net("GlobalAveragePool", data(net, "x")), U8, 0.05)[2], to=TensorProto.FLOAT)
    assert "POOL" in ops(check(net, q, tolerance=1.0, scale=1.0, reference=True))
