"""Views of a tensor, and tensors put together: no kernels, but regions."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, digits_of, strides, whole
from aspen_mp.planner.ops.elementwise import elementwise
from aspen_mp.planner.ops.spec import Input, Layout, OpSpec


@lru_cache(maxsize=4096)
def _reshape_groups(source: Shape, target: Shape) -> tuple[tuple[range, range, tuple[int, ...] | None], ...]:
    """Cuts a reshape into independent groups of axes (of source, of target, strides of the refined axes or None).

    Within a group, all boundaries of both sides (as strides in elements) are merged. If each divides the next larger one, the group is also
    a reshape over "refined" axes. Every axis of either side is a run of these. Then hulls are exact.
    """
    groups = []
    i, j = len(source), len(target)
    while i > 0 or j > 0:
        i_end, j_end = i, j
        a = b = 1
        if i > 0:
            i -= 1
            a = source[i]
        if j > 0:
            j -= 1
            b = target[j]
        while a != b:
            if (a < b and i > 0) or j == 0:
                i -= 1
                a *= source[i]
            else:
                j -= 1
                b *= target[j]
        src, dst = range(i, i_end), range(j, j_end)
        marks = sorted({1, a, *strides(source[i:i_end]), *strides(target[j:j_end])})
        chain = all(y % x == 0 for x, y in pairwise(marks))
        groups.append((src, dst, tuple(reversed(marks)) if chain else None))
    return tuple(reversed(groups))


def _hull_of_digits(lo: Boxes, hi: Boxes, axes: range, shape: Shape) -> tuple[Boxes, Boxes]:
    """First and last row-major number in a box over `axes`."""
    first = np.zeros(len(lo), np.int64)
    last = np.zeros(len(lo), np.int64)
    for axis in axes:
        first = first * shape[axis] + lo[:, axis]
        last = last * shape[axis] + hi[:, axis] - 1
    return first, last


def _reshape(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    target = node.output.shape
    if prod(shape) == 0:
        return whole(shape, len(lo))
    out_lo = np.zeros((len(lo), len(shape)), np.int64)
    out_hi = np.ones((len(lo), len(shape)), np.int64)
    for src, dst, marks in _reshape_groups(shape, target):
        if len(src) == 1 and len(dst) == 1:
            out_lo[:, src.start], out_hi[:, src.start] = lo[:, dst.start], hi[:, dst.start]
        elif marks is None:
            first, last = _hull_of_digits(lo, hi, dst, target)
            for axis, (a, b) in zip(src, digits_of(first, last, strides(shape[src.start : src.stop])), strict=True):
                out_lo[:, axis], out_hi[:, axis] = a, b + 1
        else:
            _refined(shape, target, src, dst, marks, (lo, hi), (out_lo, out_hi))
    return out_lo, out_hi


def _refined(source: Shape, target: Shape, src: range, dst: range, marks: tuple[int, ...], box: Region, out: Region) -> None:
    lo, hi = box
    digits: dict[int, tuple[Boxes, Boxes]] = {}
    for axis, stride in zip(dst, strides(target[dst.start : dst.stop]), strict=True):
        inner = [m // stride for m in marks if stride <= m < stride * target[axis]]
        if inner:
            for m, digit in zip(inner, digits_of(lo[:, axis], hi[:, axis] - 1, inner), strict=True):
                digits[m * stride] = digit
    for axis, stride in zip(src, strides(source[src.start : src.stop]), strict=True):
        first = np.zeros(len(lo), np.int64)
        last = np.zeros(len(lo), np.int64)
        for m in marks:
            if stride <= m < stride * source[axis]:
                first += digits[m][0] * (m // stride)
                last += digits[m][1] * (m // stride)
        out[0][:, axis], out[1][:, axis] = first, last + 1


def _transpose(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    inverse = np.argsort(node.attrs["perm"])
    return lo[:, inverse], hi[:, inverse]


def _slice(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    starts, steps = np.array(node.attrs["starts"], np.int64), np.array(node.attrs["steps"], np.int64)
    first, last = starts + lo * steps, starts + (hi - 1) * steps
    return np.minimum(first, last), np.maximum(first, last) + 1


def _concat(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    axis = node.attrs["axis"]
    offset = sum(t.shape[axis] for t in node.inputs[:i] if t is not None)
    lo, hi = lo.copy(), hi.copy()
    lo[:, axis] = np.clip(lo[:, axis] - offset, 0, shape[axis])
    hi[:, axis] = np.clip(hi[:, axis] - offset, 0, shape[axis])
    return lo, hi


_X = (Input("x"),)
SPECS = (
    OpSpec(name="view.reshape", inputs=_X, region=_reshape, batch_rank=1),
    OpSpec(name="view.transpose", inputs=_X, region=_transpose, batch_rank=1),
    OpSpec(name="view.slice", inputs=_X, region=_slice, layout=Layout.SPREADS, batch_rank=1),
    OpSpec(name="view.expand", inputs=_X, region=elementwise, batch_rank=1),
    OpSpec(name="concat", region=_concat, layout=Layout.SPREADS, batch_rank=1),
)
"""Their attributes: `aspen_mp.planner.ir.graph`."""
