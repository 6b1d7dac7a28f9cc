"""Rotary embedding: the spelling of models and the operator become two element-wise kernels, and projections before it still merge."""

from __future__ import annotations

import numpy as np
import pytest
from net_tools import Net, check, ops

from aspen_mp.planner.ir.graph import Node

B, H, S, D = 2, 3, 5, 8


def rotated(net: Net, x: str, cos: str, sin: str, *, first_negated: bool = False) -> str:
    def part(begin: int, end: int) -> str:
        return net("Slice", x, net.constant([begin]), net.constant([end]), net.constant([3]), net.constant([1]))

    low, high = part(0, D // 2), part(D // 2, np.iinfo(np.int64).max)
    turned = net("Concat", high, net("Neg", low), axis=-1) if first_negated else net("Concat", net("Neg", high), low, axis=-1)
    return net("Add", net("Mul", x, cos), net("Mul", turned, sin))


def opcodes(nodes: list[Node]) -> list[str]:
    return sorted(f"{n.op} {n.attrs['opcode']}" for n in nodes if n.op in {"UNARY", "BINARY", "TERNARY"})


@pytest.mark.parametrize("shape", [(1, 1, S, D), (B, 1, S, D), (S, D), (B, H, S, D)])
def test_angles_given(shape: tuple[int, ...]) -> None:
    net = Net(x=(B, H, S, D), cos=shape, sin=shape)
    nodes = check(net, rotated(net, "x", "cos", "sin"))
    assert opcodes(nodes) == ["BINARY MUL", "BINARY MUL", "TERNARY FMA"]  # the first gives the sine its signs


def test_angles_known_and_shared() -> None:
    """Constant angles cost nothing at run time, and all layers read the same ones."""
    net = Net(x=(B, H, S, D), y=(B, 1, S, D))
    cos, sin = net.weight(1, 1, S, D), net.weight(1, 1, S, D)
    nodes = check(net, rotated(net, "x", cos, sin), rotated(net, "y", cos, sin))
    assert opcodes(nodes) == ["BINARY MUL"] * 2 + ["TERNARY FMA"] * 2
    assert len({id(n.inputs[1]) for n in nodes if n.op == "BINARY"}) == 1


def test_the_other_direction_is_left_alone() -> None:
    net = Net(x=(B, H, S, D), cos=(S, D), sin=(S, D))
    nodes = check(net, rotated(net, "x", "cos", "sin", first_negated=True))
    assert "concat" in ops(nodes)


def test_projections_merge() -> None:
    net = Net(x=(B, S, 32))
    heads = []
    cos, sin = net.weight(1, 1, S, D), net.weight(1, 1, S, D)
    for _ in range(2):
        y = net("Reshape", net("MatMul", "x", net.weight(32, 4 * D)), net.constant([B, S, 4, D]))
        heads.append(rotated(net, net("Transpose", y, perm=[0, 2, 1, 3]), cos, sin))
    nodes = check(net, net("MatMul", heads[0], net("Transpose", heads[1], perm=[0, 1, 3, 2])))
    assert sorted(ops(nodes)) == ["BINARY", "BINARY", "GEMM", "GEMM", "TERNARY", "TERNARY"]


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("width", [0, 4])
def test_operator(interleaved: int, flat: bool, width: int) -> None:
    net = Net(opset=23, x=(B, S, H * D) if flat else (B, H, S, D))
    half = (width or D) // 2
    cos, sin = net.weight(B, S, half), net.weight(B, S, half)
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": width} | ({"num_heads": H} if flat else {})
    nodes = check(net, net("RotaryEmbedding", "x", cos, sin, **attrs))
    assert opcodes(nodes) == ["BINARY MUL", "TERNARY FMA"]
    assert "OPAQUE" not in ops(nodes)
