"""What follows products of bytes: residuals that stay bytes, and sums that are counted in levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from net_tools import Net, check, ops
from onnx import TensorProto
from test_stored_products import BIAS, FACTOR, RESIDUAL, biases, data, levels, present, weight

from aspen_mp.planner.ir.graph import Node

U8, I8 = np.uint8, np.int8
LEVEL = 1.0
"""How far a float next to a middle may come out, in units of the output's scale."""


def projected(net: Net, x: str, channels: int = 8, outputs: int = 33) -> str:
    return net("Conv", x, weight(net, outputs, channels, 1, 1, axis=0), biases(net, outputs))


def near(net: Net, y: str, scale: float, kind: Any = U8, zero: int | None = None) -> list[Node]:
    """The kernels of `y`, written as bytes. Floats may lie next to the middle between two levels. zero: of the bytes."""
    q = net("QuantizeLinear", y, net.number(scale), net.constant(kind(zero))) if zero is not None else levels(net, y, kind, scale)[2]
    return check(net, net("Cast", q, to=TensorProto.FLOAT), tolerance=LEVEL, scale=1.0, reference=True)[:-1]


@pytest.mark.parametrize("kind", [U8, I8])
@pytest.mark.parametrize("act", ["", "Relu"])
def test_a_block_of_residuals(kind: Any, act: str) -> None:
    """The way past a block is a convolution of its own, as ResNets have it: every product reads and writes bytes."""
    net = Net(opset=21, x=(1, 8, 6, 7))
    x = data(net, "x", kind)
    past, inner = data(net, projected(net, x), kind, 0.05), data(net, projected(net, x), kind, 0.07)
    y = net("Add", inner, past)
    nodes = near(net, net(act, y) if act else y, 0.08, kind, np.iinfo(kind).min if act else None)
    assert ops(nodes) == ["QUANTIZE", "QCONV", "QCONV"]
    assert [n.output.dtype for n in nodes[1:]] == [kind, kind]
    last = nodes[-1]
    assert last.inputs[RESIDUAL] is nodes[1].output
    assert last.attrs["residual_scale"] == pytest.approx(0.05 / 0.07)
    assert last.attrs["scale"] == pytest.approx(0.08 / 0.07)
    assert last.attrs["act"][:2] == ("FAKE_QUANTIZE", 1.0)
    assert nodes[1].attrs["scale"] == 1.0


@pytest.mark.parametrize("shape", [(1, 8, 6, 7), (4, 8)], ids=str)
def test_residuals_that_others_read(shape: tuple[int, ...]) -> None:
    """What others read is made for them; the product reads the bytes."""
    net = Net(opset=21, x=shape)
    x = data(net, "x")
    y = projected(net, x, outputs=8) if len(shape) == 4 else net("MatMul", x, weight(net, 8, 8, axis=1))
    nodes = check(net, net("Add", y, x), net("Neg", x), tolerance=1e-4, reference=True)
    assert sorted(ops(nodes)) == sorted(["QUANTIZE", "DEQUANTIZE", "UNARY", "QCONV" if len(shape) == 4 else "QGEMM"])
    product = next(n for n in nodes if n.op in {"QCONV", "QGEMM"})
    assert product.inputs[RESIDUAL] is not None
    assert product.inputs[RESIDUAL].dtype == U8
    assert product.attrs["residual_scale"] == np.float32(0.03)
    assert product.attrs["residual_zero"] == 117


def test_levels_that_others_read_stay_floats() -> None:
    net = Net(opset=21, x=(1, 8, 6, 7))
    x = data(net, "x")
    past = data(net, projected(net, x), scale=0.05)
    nodes = check(net, net("Add", data(net, projected(net, x), scale=0.07), past), net("Neg", past), tolerance=0.08, reference=True)
    assert all(n.inputs[RESIDUAL].dtype == np.float32 for n in nodes if n.op == "QCONV" and RESIDUAL in present(n))


@pytest.mark.parametrize("act", ["", "Relu", "Clip"])
def test_scales_go_into_factor_and_bias(act: str) -> None:
    net = Net(opset=21, x=(1, 8, 6, 7))
    y = projected(net, data(net, "x"))
    more = [net.number(0.0), net.number(6.0)] if act == "Clip" else []
    nodes = near(net, net(act, y, *more) if act else y, 0.04)
    node = nodes[-1]
    assert node.attrs["scale"] == 1.0
    assert {FACTOR, BIAS} <= present(node)
    if act == "Clip":
        assert node.attrs["act"] == ("CLIP", 0.0, pytest.approx(150.0))


@pytest.mark.parametrize(("high", "zero", "left"), [(np.inf, 0, 0), (np.inf, 5, 1), (10.2, 0, 0), (10.0, 0, 1)], ids=str)
def test_limits_that_bytes_have_anyway(high: float, zero: int, left: int) -> None:
    net = Net(opset=21, x=(3, 5))
    nodes = near(net, net("Clip", "x", net.number(0.0), net.number(high)), 0.04, zero=zero)
    assert [n.op for n in nodes] == ["UNARY"] * left + ["QUANTIZE"]


@pytest.mark.parametrize("act", ["Sigmoid", "Elu", "HardSwish"])
def test_functions_of_values_keep_the_scale(act: str) -> None:
    net = Net(opset=21, x=(1, 8, 6, 7))
    y = net("Mul", net.number(1.0), net(act, projected(net, data(net, "x"))))
    node = near(net, y, 0.04)[-1]
    assert "scale" not in node.attrs or node.attrs["scale"] != 1.0 or node.op != "QCONV"


def test_factors_too_small_to_be_divided_stay() -> None:
    net = Net(opset=21, x=(1, 8, 6, 7))
    step, zero = net.number(1e-25), net.constant(U8(3))
    x = net("DequantizeLinear", net("QuantizeLinear", "x", net.number(0.03), zero), step, zero)
    node = near(net, projected(net, x), 1e9)[-1]
    assert node.attrs["scale"] == np.float32(1e9)
