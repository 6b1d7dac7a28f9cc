"""Products of matrices."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, broadcast, whole

GROUP = 8
"""Rows of ATTENTION that look at the same keys, at most."""


def _gemm(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1 and (node.op == "QNBITGEMM" or node.attrs.get("packed_b", False)):
        out_lo, out_hi = whole(shape, len(lo))
        first, last = lo[:, -1] // 32, (hi[:, -1] + 31) // 32
        if len(node.inputs) > 6:  # of a pair of panels both are read
            first, last = first // 2 * 2, np.minimum((last + 1) // 2 * 2, shape[0])
        out_lo[:, 0], out_hi[:, 0] = first, last
        return out_lo, out_hi
    if i == 6:
        out_lo, out_hi = lo.copy(), hi.copy()
        out_lo[:, -2], out_hi[:, -2] = lo[:, -2] // 2, (hi[:, -2] + 1) // 2
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
        return out_lo, out_hi
    out_lo, out_hi = broadcast(shape, lo, hi)
    if i == 0:
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    elif i == 1:
        out_lo[:, -2], out_hi[:, -2] = 0, shape[-2]
    return out_lo, out_hi


def _qgemm(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        out_lo, out_hi = whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, -1] // 32, (hi[:, -1] + 31) // 32
        return out_lo, out_hi
    out_lo, out_hi = broadcast(shape, lo, hi)
    if i == 0:
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    return out_lo, out_hi


def _strassen(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    lo, hi = lo.copy(), hi.copy()
    lo[:, -2], hi[:, -2] = 2 * lo[:, -2], np.minimum(2 * hi[:, -2], shape[-2])
    lo[:, -1], hi[:, -1] = 0, shape[-1]
    return lo, hi


def _attention(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = broadcast(shape, lo, hi)
    if i in (1, 2):
        keys = np.full(len(lo), shape[-2])
        if node.attrs["causal"] and node.attrs["fill"] == -np.inf:
            keys = np.clip(hi[:, -2] + GROUP + node.attrs["offset"], 0, shape[-2])
        out_lo[:, -2], out_hi[:, -2] = 0, keys
    if i in (0, 1, 3):
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    return out_lo, out_hi


RULES: dict[str, Rule] = {
    "GEMM": _gemm,
    "QNBITGEMM": _gemm,
    "DGEMM": _gemm,
    "QGEMM": _qgemm,
    "BGEMM": _qgemm,
    "STRASSEN": _strassen,
    "ATTENTION": _attention,
}
