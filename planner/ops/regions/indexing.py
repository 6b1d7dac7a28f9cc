"""Kernels that read or write where other operands say."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, full_axes


def _gather(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    data, indices = node.inputs[0], node.inputs[1]
    assert data is not None
    assert indices is not None
    axis, q = node.attrs["axis"], len(indices.shape)
    if i == 1:
        return lo[:, axis : axis + q].copy(), hi[:, axis : axis + q].copy()
    dim = np.zeros((len(lo), 1), np.int64)
    out_lo = np.concatenate([lo[:, :axis], dim, lo[:, axis + q :]], axis=1)
    out_hi = np.concatenate([hi[:, :axis], dim + shape[axis], hi[:, axis + q :]], axis=1)
    if indices.data is not None and q <= 1:
        values = np.atleast_1d(indices.data).astype(np.int64)
        values = np.where(values < 0, values + shape[axis], values)
        first, last = extremes(values, lo[:, axis : axis + q], hi[:, axis : axis + q])
        out_lo[:, axis], out_hi[:, axis] = np.clip(first, 0, shape[axis]), np.clip(last + 1, 0, shape[axis])
    return out_lo, out_hi


def extremes(values: Boxes, lo: Boxes, hi: Boxes) -> tuple[Boxes, Boxes]:
    """Least and greatest of values[lo:hi] for each box; with no axis, of all values."""
    if lo.shape[1] == 0:
        return np.full(len(lo), values.min()), np.full(len(lo), values.max())
    spans, inverse = np.unique(np.concatenate([lo, hi], axis=1), axis=0, return_inverse=True)
    least = np.array([values[a:b].min() for a, b in spans], np.int64)
    most = np.array([values[a:b].max() for a, b in spans], np.int64)
    inverse = inverse.reshape(-1)
    return least[inverse], most[inverse]


def _gather_elements(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        return lo.copy(), hi.copy()
    return full_axes((node.attrs["axis"],), shape, lo, hi)


def _index(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    last = np.full((len(lo), 1), shape[-1], np.int64)
    return np.concatenate([lo, 0 * last], axis=1), np.concatenate([hi, last], axis=1)


def _scatter(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Any update may fall into any box along the axis; along others updates stay where they are."""
    if i == 0:
        return lo.copy(), hi.copy()
    dims = np.array(shape, np.int64)
    return full_axes((node.attrs["axis"],), shape, np.minimum(lo, dims), np.minimum(hi, dims))


RULES: dict[str, Rule] = {
    "GATHER": _gather,
    "GATHER_ELEMENTS": _gather_elements,
    "INDEX": _index,
    "SCATTER": _scatter,
}
