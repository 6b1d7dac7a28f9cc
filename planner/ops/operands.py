"""What kernels see of a node's tensors: operands of the rank that they expect, broadcast where they want it."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Node, Shape, Tensor
from aspen_mp.planner.layout.storage import ELEMENTWISE

_LIKE_OUTPUT = {"GEMM": (2, 3), "QNBITGEMM": (2, 3), "QGEMM": (2, 3, 4, 5), "QCONV": (3, 4), "CONV": (3,), "WINO": (3,), "DWCONV": (3,)}
_LIKE_OUTPUT |= {"DGEMM": (2,), "BGEMM": (2, 3), "BCONV": (3,), "NORM": (1, 2)}
"""Inputs that kernels read with the box of the output."""


def seen(node: Node, i: int, x: Tensor, strides: Shape) -> tuple[Shape, Shape]:
    """Dims and strides that a kernel sees: axes of one element that are broadcast get the output's dimension and stride 0."""
    out = node.output.shape
    if node.op in ELEMENTWISE or i in _LIKE_OUTPUT.get(node.op, ()):
        want: Shape = out
    elif (
        (node.op in ("QNBITGEMM", "QGEMM", "BGEMM") and i == 0)
        or (node.op == "GEMM" and (i == 0 or (i == 1 and not node.attrs["packed_b"])))
        or node.op == "DGEMM"
    ):
        want = (*out[:-2], *x.shape[-2:])
    elif node.op == "ATTENTION":
        want = (*out[:-2], *x.shape[-2:]) if i < 3 else (*out[:-1], _keys(node))
    else:
        return x.shape, strides
    return want, tuple(0 if d == 1 and w != 1 else s for d, w, s in zip(x.shape, want, strides, strict=True))


def _keys(node: Node) -> int:
    k = node.inputs[1]
    assert k is not None
    return k.shape[-2]
