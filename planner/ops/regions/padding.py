"""Padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, whole


def _pad(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        return whole(shape, len(lo))
    mode = node.attrs["mode"]
    out_lo, out_hi = np.empty((len(lo), len(shape)), np.int64), np.empty((len(lo), len(shape)), np.int64)
    for axis, dim in enumerate(shape):
        first, last = lo[:, axis] - node.attrs["begin"][axis], hi[:, axis] - 1 - node.attrs["begin"][axis]
        out_lo[:, axis], out_hi[:, axis] = _PADDINGS[mode](first, last, dim)
    return out_lo, out_hi


def _pad_constant(first: Boxes, last: Boxes, dim: int) -> tuple[Boxes, Boxes]:
    return np.clip(first, 0, dim), np.clip(last + 1, 0, dim)


def _pad_edge(first: Boxes, last: Boxes, dim: int) -> tuple[Boxes, Boxes]:
    return np.clip(first, 0, dim - 1), np.clip(last, 0, dim - 1) + 1


def _pad_reflect(first: Boxes, last: Boxes, dim: int) -> tuple[Boxes, Boxes]:
    """Positions -k read k, positions dim - 1 + k read dim - 1 - k; what is reflected more than once may read anything."""
    if dim == 1:
        return np.zeros_like(first), np.ones_like(first)
    inside = np.clip(first, 0, dim), np.clip(last + 1, 0, dim)
    left = -np.minimum(last, -1), -first + 1  # mirror images of the part before 0
    right = 2 * (dim - 1) - last, 2 * (dim - 1) - np.maximum(first, dim) + 1
    lo = np.where(inside[0] < inside[1], inside[0], dim)
    hi = np.where(inside[0] < inside[1], inside[1], 0)
    lo = np.where(first < 0, np.minimum(lo, left[0]), lo)
    hi = np.where(first < 0, np.maximum(hi, left[1]), hi)
    lo = np.where(last >= dim, np.minimum(lo, right[0]), lo)
    hi = np.where(last >= dim, np.maximum(hi, right[1]), hi)
    twice = (first < 1 - dim) | (last > 2 * (dim - 1))
    return np.where(twice, 0, lo), np.where(twice, dim, hi)


def _pad_wrap(first: Boxes, last: Boxes, dim: int) -> tuple[Boxes, Boxes]:
    """Exact when the range stays in one period, else the whole axis."""
    same = first // dim == last // dim
    return np.where(same, first % dim, 0), np.where(same, last % dim + 1, dim)


_PADDINGS: dict[str, Callable[[Boxes, Boxes, int], tuple[Boxes, Boxes]]] = {
    "CONSTANT": _pad_constant,
    "EDGE": _pad_edge,
    "REFLECT": _pad_reflect,
    "WRAP": _pad_wrap,
}


RULES: dict[str, Rule] = {
    "PAD": _pad,
}
