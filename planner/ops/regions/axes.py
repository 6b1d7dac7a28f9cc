"""Kernels along axes: sums, norms, the largest."""

from __future__ import annotations

from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, broadcast, digits_of, full_axes, strides, whole
from aspen_mp.planner.ops.regions.elementwise import all_of_it


def _reduce(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return full_axes(node.attrs["axes"], shape, lo, hi)


def _whole_axis(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return full_axes((node.attrs["axis"],), shape, lo, hi)


def _norm(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i > 0:
        return broadcast(shape, lo, hi)
    return full_axes(tuple(range(node.attrs["axis"], len(shape))), shape, lo, hi)


def _moments(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All channels of the groups, the hull of the blocks' pixels."""
    _, blocks, groups, _ = node.output.shape
    size, pixels = shape[1] // groups, prod(shape[2:])
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    out_lo[:, 1], out_hi[:, 1] = lo[:, 2] * size, hi[:, 2] * size
    first, last = lo[:, 1] * pixels // blocks, hi[:, 1] * pixels // blocks - 1
    for axis, (a, b) in enumerate(digits_of(first, last, strides(shape[2:])), 2):
        out_lo[:, axis], out_hi[:, axis] = a, b + 1
    return out_lo, out_hi


def _standardize(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i in (0, 4):
        return lo.copy(), hi.copy()
    if i > 1:
        return broadcast(shape, lo[:, :2], hi[:, :2])
    size = node.output.shape[1] // shape[2]
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    out_lo[:, 2], out_hi[:, 2] = lo[:, 1] // size, (hi[:, 1] - 1) // size + 1
    return out_lo, out_hi


def _extremes_of_blocks(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The blocks' indices along the axis."""
    axis, blocks = node.attrs["axis"], node.output.shape[0]
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, axis], out_hi[:, axis] = lo[:, 0] * shape[axis] // blocks, hi[:, 0] * shape[axis] // blocks
    return out_lo, out_hi


def _lrn(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    size = node.attrs["size"]
    lo, hi = lo.copy(), hi.copy()
    lo[:, 1] = np.maximum(lo[:, 1] - (size - 1) // 2, 0)
    hi[:, 1] = np.minimum(hi[:, 1] + size // 2, shape[1])
    return lo, hi


def _cumsum(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    axis, exclusive = node.attrs["axis"], int(node.attrs["exclusive"])
    lo, hi = lo.copy(), hi.copy()
    if node.attrs["reverse"]:
        lo[:, axis], hi[:, axis] = lo[:, axis] + exclusive, shape[axis]
    else:
        lo[:, axis], hi[:, axis] = 0, hi[:, axis] - exclusive
    return lo, hi


RULES: dict[str, Rule] = {
    "MINMAX": _extremes_of_blocks,
    "QPARAMS": all_of_it,
    "REDUCE": _reduce,
    "ARGREDUCE": _whole_axis,
    "SOFTMAX": _whole_axis,
    "NORM": _norm,
    "MOMENTS": _moments,
    "STANDARDIZE": _standardize,
    "LRN": _lrn,
    "CUMSUM": _cumsum,
    "TOPK": _whole_axis,
}
