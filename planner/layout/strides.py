"""Arithmetic on shapes and strides (in elements): which views are only another way of walking the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

Strides = tuple[int, ...]
MARKED_BYTES = 1 << 26
"""Most memory that `overlap` marks byte by byte."""


def dense(shape: Sequence[int], order: Sequence[int] | None = None) -> Strides:
    """Strides of a gapless array whose axes lie in memory in `order`, outermost first (row-major if not given)."""
    return _dense(tuple(shape), None if order is None else tuple(order))


@lru_cache(maxsize=4096)
def _dense(shape: tuple[int, ...], order: tuple[int, ...] | None) -> Strides:
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def same(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Do both strides walk the same elements? Strides of axes of one element do not matter."""
    return all(d <= 1 or x == y for d, x, y in zip(shape, a, b, strict=True))


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Axes from the largest stride to the smallest. Axes of one element or of stride 0 keep their place in the logical order next to the
    axis that precedes them."""
    real = [a for a, d in enumerate(shape) if d > 1 and strides[a] != 0]
    out = sorted(real, key=lambda a: -abs(strides[a]))
    rest = [a for a in range(len(shape)) if a not in real]
    for axis in rest:
        at = out.index(axis - 1) + 1 if axis - 1 in out else 0
        out.insert(at, axis)
    return tuple(out)


def reshape(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Strides | None:
    """Strides under which the same memory reads as shape `new`, or None where no strides do (the elements have to be copied)."""
    if 0 in shape:
        return dense(new)
    old = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    out = [0] * len(new)
    o = n = 0
    last = 1
    while n < len(new) and o < len(old):
        n_end, o_end = n + 1, o + 1
        n_size, o_size = new[n], old[o][0]
        while n_size != o_size:
            if n_size < o_size:
                n_size *= new[n_end]
                n_end += 1
            else:
                o_size *= old[o_end][0]
                o_end += 1
        for k in range(o, o_end - 1):
            if old[k][1] != old[k + 1][0] * old[k + 1][1]:
                return None
        last = old[o_end - 1][1]
        for k in range(n_end - 1, n - 1, -1):
            out[k] = last
            last *= new[k]
        last = old[o_end - 1][1]
        n, o = n_end, o_end
    for k in range(n, len(new)):  # trailing axes of one element
        out[k] = last
    return tuple(out)


def transpose(strides: Sequence[int], perm: Sequence[int]) -> Strides:
    """Strides of ``view.transpose``: axis i of the result is axis ``perm[i]`` of the input."""
    return tuple(strides[p] for p in perm)


def untranspose(strides: Sequence[int], perm: Sequence[int]) -> Strides:
    """Strides of the input from those of the result of ``view.transpose``."""
    out = [0] * len(perm)
    for i, p in enumerate(perm):
        out[p] = strides[i]
    return tuple(out)


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Lowest and highest element reached, relative to element (0, 0, …); (0, -1) where there is none."""
    if 0 in shape:
        return 0, -1
    low = sum((d - 1) * s for d, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((d - 1) * s for d, s in zip(shape, strides, strict=True) if s > 0)
    return low, high


def overlap(a: Run, b: Run) -> bool | None:
    """Do two operands of one space share a byte? None: it cannot be told cheaply."""
    if a.low > b.high or b.low > a.high:
        return False
    exact = _overlap_by_digits(a, b)
    return exact if exact is not None else _overlap_by_marking(a, b)


class Run(NamedTuple):
    """The bytes of an operand: from `low` on, an axis for each (length, stride in bytes > 0), bytes within an element included. `high` is
    the last one."""

    low: int
    high: int
    axes: tuple[tuple[int, int], ...]

    @property
    def gapless(self) -> bool:
        """Does it touch every byte from `low` to `high`?"""
        reach = 0
        for d, stride in sorted(self.axes, key=lambda axis: axis[1]):
            if stride > reach + 1:
                return False
            reach += (d - 1) * stride
        return True

    @classmethod
    def of(cls, offset: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Run | None:
        """`offset` in bytes, `strides` in elements. None if there are no elements."""
        if 0 in shape:
            return None
        low = offset + itemsize * sum((d - 1) * s for d, s in zip(shape, strides, strict=True) if s < 0)
        axes = [(d, abs(s) * itemsize) for d, s in zip(shape, strides, strict=True) if d > 1 and s != 0]
        axes.append((itemsize, 1))
        return cls(low, low + sum((d - 1) * s for d, s in axes), tuple(axes))


def _overlap_by_digits(a: Run, b: Run) -> bool | None:
    """Writes addresses as digits to the bases that the strides make. When every stride divides the next larger one and no sum of digits
    carries, both operands are boxes of digits."""
    units = sorted({s for _, s in (*a.axes, *b.axes)}, reverse=True)
    if any(x % y for x, y in pairwise(units)):
        return None
    origin = min(a.low, b.low)
    boxes = []
    for run in (a, b):
        rest, above, box = run.low - origin, 0, []
        for unit in units:
            digit, rest = divmod(rest, unit)
            length = 1 + sum(d - 1 for d, s in run.axes if s == unit)
            if above and digit + length > above // unit:
                return None
            box.append((digit, digit + length))
            above = unit
        boxes.append(box)
    return all(x[0] < y[1] and y[0] < x[1] for x, y in zip(*boxes, strict=True))


def _overlap_by_marking(a: Run, b: Run) -> bool | None:
    low, high = max(a.low, b.low), min(a.high, b.high)
    if max(a.high, b.high) - min(a.low, b.low) > MARKED_BYTES or low > high:
        return None if low <= high else False
    origin = min(a.low, b.low)
    mark = np.zeros(max(a.high, b.high) - origin + 1, np.bool_)

    def view(run: Run) -> npt.NDArray[np.bool_]:
        return as_strided(mark[run.low - origin :], [d for d, _ in run.axes], [s for _, s in run.axes])

    view(a)[...] = True
    return bool(view(b).any())
