"""The sign of computed values, as far as it is known whatever the inputs are.

A power of a half is a root but for two values: (-0)^-½ is +∞ where 1/√-0 is -∞, and (-∞)^½ is +∞ where √-∞ is not a number. Where neither
can occur, as in every norm, the root will do.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from aspen_mp.planner.ir.graph import Node, Tensor

_DEEP = 12
"""Kernels that are looked through."""
_MOST = 1 << 16
"""Bytes of a constant that are looked through."""


class Sign(IntEnum):
    """The sign of all elements that are numbers. Each level implies those before it."""

    ANY = 0
    NOT_BELOW = 1
    """None is less than 0; -0 may be among them."""
    PLUS = 2
    """The sign bit of none is set."""


_PLUS = frozenset({"SQUARE", "ABS", "EXP", "SIGMOID", "SOFTPLUS"})


def sign_of(tensor: Tensor, deep: int = _DEEP) -> Sign:
    """The sign of a tensor of a graph at kernel level."""
    if tensor.data is not None:
        return _of_constant(tensor)
    node = tensor.producer
    if node is None or deep == 0 or tensor.dtype.kind not in "fV":
        return Sign.ANY
    if node.op in {"view.reshape", "view.transpose", "view.expand", "view.slice", "CAST"}:
        return _of_input(node, 0, deep)
    if node.op == "UNARY":
        return _of_unary(node, deep)
    if node.op == "BINARY":
        return _of_binary(node, deep)
    if node.op == "REDUCE":
        opcode = node.attrs["opcode"]
        if opcode in {"SUM_SQUARE", "L1", "L2"}:
            return Sign.PLUS
        return _of_input(node, 0, deep) if opcode in {"MEAN", "SUM"} else Sign.ANY
    return Sign.ANY


def _of_input(node: Node, k: int, deep: int) -> Sign:
    source = node.inputs[k]
    return Sign.ANY if source is None else sign_of(source, deep - 1)


def _of_constant(tensor: Tensor) -> Sign:
    data = tensor.data
    assert data is not None
    if data.dtype.kind not in "fV" or data.nbytes > _MOST:
        return Sign.ANY
    value = data.astype(np.float64)
    if not np.signbit(value).any():
        return Sign.PLUS
    return Sign.NOT_BELOW if not (value < 0).any() else Sign.ANY


def _of_unary(node: Node, deep: int) -> Sign:
    opcode = node.attrs["opcode"]
    if opcode in _PLUS:
        return Sign.PLUS
    if opcode == "RELU" or (opcode == "CLIP" and node.attrs["a"] >= 0):
        return Sign.NOT_BELOW
    if opcode == "SQRT":  # numbers below 0 become NaN
        return max(_of_input(node, 0, deep), Sign.NOT_BELOW)
    if opcode == "RECIPROCAL":
        return Sign.PLUS if _of_input(node, 0, deep) is Sign.PLUS else Sign.ANY
    return Sign.ANY


def _of_binary(node: Node, deep: int) -> Sign:
    opcode = node.attrs["opcode"]
    if opcode == "MUL" and node.inputs[0] is node.inputs[1]:
        return Sign.PLUS
    if opcode not in {"ADD", "MUL", "DIV", "MAX"}:
        return Sign.ANY
    first, second = _of_input(node, 0, deep), _of_input(node, 1, deep)
    if opcode == "MAX":  # of -0 and +0 either
        return min(max(first, second), Sign.NOT_BELOW) if min(first, second) < Sign.PLUS else Sign.PLUS
    if opcode == "ADD" and Sign.ANY not in {first, second}:
        return max(first, second)
    if opcode == "DIV" and second is not Sign.PLUS:  # 1 / -0
        return Sign.ANY
    return min(first, second)
