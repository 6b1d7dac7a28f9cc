"""Boxes, and operations on them in many places."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Shape

Boxes = npt.NDArray[np.int64]
Region = tuple[Boxes, Boxes]


def whole(shape: Shape, n: int) -> Region:
    """All of a tensor, for each of n boxes."""
    hi = np.empty((n, len(shape)), np.int64)
    hi[:] = shape
    return np.zeros_like(hi), hi


def broadcast(shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Numpy broadcasting: trailing axes align, axes of dimension 1 are read at 0."""
    rank = len(shape)
    skip = lo.shape[1] - rank
    lo, hi = lo[:, skip:].copy(), hi[:, skip:].copy()
    for axis in range(rank):
        if shape[axis] == 1:
            lo[:, axis], hi[:, axis] = 0, 1
    return lo, hi


def clipped(at: Boxes, dim: int) -> Boxes:
    """Within 0 … dim, as `np.clip` does in several times the time."""
    return np.asarray(np.minimum(np.maximum(at, 0), dim))


def full_axes(axes: tuple[int, ...], shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The box itself, whole on `axes`."""
    lo, hi = lo.copy(), hi.copy()
    for axis in axes:
        lo[:, axis], hi[:, axis] = 0, shape[axis]
    return lo, hi


def strides(shape: Shape) -> list[int]:
    """Row-major, in elements."""
    return [prod(shape[k + 1 :]) for k in range(len(shape))]


def digits_of(first: Boxes, last: Boxes, strides: list[int]) -> list[tuple[Boxes, Boxes]]:
    """Hull, per digit, of the numbers first…last (inclusive) written with the given strides (largest first, the last one 1)."""
    digits = []
    for k, stride in enumerate(strides):
        top = first // stride, last // stride
        digits.append(top)
        if k + 1 < len(strides):
            same = top[0] == top[1]
            first = np.where(same, first - top[0] * stride, 0)
            last = np.where(same, last - top[1] * stride, stride - 1)
    return digits


def extremes(values: Boxes, lo: Boxes, hi: Boxes) -> tuple[Boxes, Boxes]:
    """Least and greatest of values[lo:hi] for each box; with no axis, of all values."""
    if lo.shape[1] == 0:
        return np.full(len(lo), values.min()), np.full(len(lo), values.max())
    spans, inverse = np.unique(np.concatenate([lo, hi], axis=1), axis=0, return_inverse=True)
    least = np.array([values[a:b].min() for a, b in spans], np.int64)
    most = np.array([values[a:b].max() for a, b in spans], np.int64)
    inverse = inverse.reshape(-1)
    return least[inverse], most[inverse]
