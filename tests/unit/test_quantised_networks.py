"""Networks as quantisation tools write them: pairs of QuantizeLinear and DequantizeLinear are functions, and become epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from net_tools import Net, check, lowered, ops

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
    assert opcodes(nodes).count("FAKE_QUANTIZE") == 1


def test_others_are_left_as_they_are() -> None:
    """Other parameters on the way back, one scale a channel, results that somebody else reads."""
    net = Net(opset=21, x=(2, 3, 4))
    other = pair(net, "x", 0.1, U8(128), (0.2, U8(128)))
    scales, zeros = net.constant(np.array([0.1, 0.2, 0.3], np.float32)), net.constant(np.array([1, 2, 3], U8))
    channels = net("DequantizeLinear", net("QuantizeLinear", "x", scales, zeros, axis=1), scales, zeros, axis=1)
    nodes = check(net, other, channels, tolerance=0, reference=True)
    assert "FAKE_QUANTIZE" not in opcodes(nodes)
    assert "CAST" in ops(nodes)


def test_bytes_that_others_read_are_made_besides() -> None:
    net = Net(opset=21, x=(2, 3, 4))
    scale, zero = net.constant(np.float32(0.1)), net.constant(U8(128))
    quantised = net("QuantizeLinear", "x", scale, zero)
    back = net("DequantizeLinear", quantised, scale, zero)
    nodes = check(net, back, net("Cast", quantised, to=1), tolerance=0, reference=True)
    assert "FAKE_QUANTIZE" in opcodes(nodes)
    assert "CAST" in ops(nodes)


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
