"""Region maps: which part of an input a part of the output needs.

`input_region` is the one place where an op says this. Tile edges, halos of fused stacks, incremental execution and streaming input follow
from it. A region is a box in the logical axes (ONNX order) of the input: the smallest box around the elements read wherever that can be
computed, and never less than them. A box with hi ≤ lo on any axis is empty: nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner import winograd
from aspen_mp.planner.ir import Node, Shape
from aspen_mp.planner.params import depth

Boxes = npt.NDArray[np.int64]
Region = tuple[Boxes, Boxes]


def input_region(node: Node, i: int, lo: Boxes, hi: Boxes) -> Region:
    """What input `i` of a kernel-level `node` must hold before boxes [lo, hi) of its first output can be computed.

    `lo`, `hi`: int64 [n, rank of the output], boxes within the output and not empty. Returns the same for the input: int64 [n, rank of the
    input], within the input. An OPAQUE node reads all of every input.
    """
    tensor = node.inputs[i]
    if tensor is None:
        raise ValueError(f"{node.name} has no input {i}")
    rule = _RULES.get(node.op)
    if rule is None:
        raise KeyError(f"{node.name}: no region map for {node.op}")
    return rule(node, i, tensor.shape, lo, hi)


# ---------------------------------------------------------------------------------------------------------------- helpers


def _whole(shape: Shape, n: int) -> Region:
    hi = np.empty((n, len(shape)), np.int64)
    hi[:] = shape
    return np.zeros_like(hi), hi


def _broadcast(shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Numpy broadcasting: trailing axes align, axes of dimension 1 are read at 0."""
    rank = len(shape)
    skip = lo.shape[1] - rank
    lo, hi = lo[:, skip:].copy(), hi[:, skip:].copy()
    for axis in range(rank):
        if shape[axis] == 1:
            lo[:, axis], hi[:, axis] = 0, 1
    return lo, hi


def _elementwise(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return _broadcast(shape, lo, hi)


def _full_axes(axes: tuple[int, ...], shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The box itself, whole on `axes`."""
    lo, hi = lo.copy(), hi.copy()
    for axis in axes:
        lo[:, axis], hi[:, axis] = 0, shape[axis]
    return lo, hi


# ------------------------------------------------------------------------------------------------------------------ views


@lru_cache(maxsize=4096)
def _reshape_groups(source: Shape, target: Shape) -> tuple[tuple[range, range, tuple[int, ...] | None], ...]:
    """Cuts a reshape into independent groups of axes (of source, of target, strides of the refined axes or None).

    Within a group, all boundaries of both sides (as strides in elements) are merged; if each divides the next larger one, the group is
    also a reshape over "refined" axes that every axis of either side is a run of. Then hulls are exact.
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
        marks = sorted({1, a, *_strides(source[i:i_end]), *_strides(target[j:j_end])})
        chain = all(y % x == 0 for x, y in pairwise(marks))
        groups.append((src, dst, tuple(reversed(marks)) if chain else None))
    return tuple(reversed(groups))


def _strides(shape: Shape) -> list[int]:
    return [prod(shape[k + 1 :]) for k in range(len(shape))]


def _split_range(first: Boxes, last: Boxes, strides: list[int]) -> list[tuple[Boxes, Boxes]]:
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
        return _whole(shape, len(lo))
    out_lo = np.zeros((len(lo), len(shape)), np.int64)
    out_hi = np.ones((len(lo), len(shape)), np.int64)
    for src, dst, marks in _reshape_groups(shape, target):
        if len(src) == 1 and len(dst) == 1:
            out_lo[:, src.start], out_hi[:, src.start] = lo[:, dst.start], hi[:, dst.start]
        elif marks is None:
            first, last = _hull_of_digits(lo, hi, dst, target)
            for axis, (a, b) in zip(src, _split_range(first, last, _strides(shape[src.start : src.stop])), strict=True):
                out_lo[:, axis], out_hi[:, axis] = a, b + 1
        else:
            _refined(shape, target, src, dst, marks, (lo, hi), (out_lo, out_hi))
    return out_lo, out_hi


def _refined(source: Shape, target: Shape, src: range, dst: range, marks: tuple[int, ...], box: Region, out: Region) -> None:
    lo, hi = box
    digits: dict[int, tuple[Boxes, Boxes]] = {}
    for axis, stride in zip(dst, _strides(target[dst.start : dst.stop]), strict=True):
        inner = [m // stride for m in marks if stride <= m < stride * target[axis]]
        if inner:
            for m, digit in zip(inner, _split_range(lo[:, axis], hi[:, axis] - 1, inner), strict=True):
                digits[m * stride] = digit
    for axis, stride in zip(src, _strides(source[src.start : src.stop]), strict=True):
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


# ---------------------------------------------------------------------------------------------------- products and windows


def _gemm(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1 and (node.op == "NGEMM" or node.attrs["packed_b"]):
        out_lo, out_hi = _whole(shape, len(lo))
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
    out_lo, out_hi = _broadcast(shape, lo, hi)
    if i == 0:
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    elif i == 1:
        out_lo[:, -2], out_hi[:, -2] = 0, shape[-2]
    return out_lo, out_hi


def _igemm(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        out_lo, out_hi = _whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, -1] // 32, (hi[:, -1] + 31) // 32
        return out_lo, out_hi
    out_lo, out_hi = _broadcast(shape, lo, hi)
    if i == 0:
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    return out_lo, out_hi


def _iconv(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        out_lo, out_hi = _whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, 1] // 32, (hi[:, 1] + 31) // 32
        return out_lo, out_hi
    if i == 0:
        lo, hi = lo.copy(), hi.copy()
        lo[:, 1], hi[:, 1] = 0, shape[1]
        return _windows(node, shape, lo, hi)
    if i == 2:
        return lo[:, 1:2].copy(), hi[:, 1:2].copy()
    return _whole(shape, len(lo)) if i == 5 else _broadcast(shape, lo, hi)


def _strassen(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    lo, hi = lo.copy(), hi.copy()
    lo[:, -2], hi[:, -2] = 2 * lo[:, -2], np.minimum(2 * hi[:, -2], shape[-2])
    lo[:, -1], hi[:, -1] = 0, shape[-1]
    return lo, hi


GROUP = 8
"""Rows of ATTENTION that look at the same keys, at most."""


def _attention(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = _broadcast(shape, lo, hi)
    if i in (1, 2):
        keys = np.full(len(lo), shape[-2])
        if node.attrs["causal"] and node.attrs["fill"] == -np.inf:
            keys = np.clip(hi[:, -2] + GROUP + node.attrs["offset"], 0, shape[-2])
        out_lo[:, -2], out_hi[:, -2] = 0, keys
    if i in (0, 1, 3):
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    return out_lo, out_hi


def _window(lo: Boxes, hi: Boxes, kernel: int, stride: int, dilation: int, pad: int, dim: int) -> tuple[Boxes, Boxes]:
    """Input range of outputs [lo, hi) of a sliding window; the padding needs nothing."""
    first = lo * stride - pad
    last = (hi - 1) * stride - pad + (kernel - 1) * dilation
    return np.clip(first, 0, dim), np.clip(last + 1, 0, dim)


def _windows(node: Node, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    a = node.attrs
    first = len(shape) - 2
    axes = [(first + k, (a["kernel"][k], a["strides"][k], a["dilations"][k], a["pads"][k])) for k in range(2)]
    if len(shape) == 5:
        axes.append((2, depth(a)))
    for axis, window in axes:
        lo[:, axis], hi[:, axis] = _window(lo[:, axis].copy(), hi[:, axis].copy(), *window, shape[axis])
    return lo, hi


def _conv(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    groups = node.attrs["groups"]
    per_group = node.output.shape[1] // groups
    first, last = lo[:, 1] // per_group, (hi[:, 1] - 1) // per_group
    if i == 0:
        lo, hi = lo.copy(), hi.copy()
        channels = shape[1] // groups
        lo[:, 1], hi[:, 1] = first * channels, (last + 1) * channels
        return _windows(node, shape, lo, hi)
    if i == 1:
        return _conv_weights(node, shape, lo, hi, first, last)
    if i in (6, 7):
        channels = shape[0] // groups
        return (first * channels)[:, None], ((last + 1) * channels)[:, None]
    if i in (2, 4, 5):
        return lo[:, 1:2].copy(), hi[:, 1:2].copy()
    return _broadcast(shape, lo, hi)


def _bconv(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return _iconv(node, 2 if i in (4, 5) else i, shape, lo, hi)


def _conv_weights(node: Node, shape: Shape, lo: Boxes, hi: Boxes, first: Boxes, last: Boxes) -> Region:
    out_lo, out_hi = _whole(shape, len(lo))
    if node.op == "DWCONV":
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1], hi[:, 1]
        return out_lo, out_hi
    out_lo[:, 0], out_hi[:, 0] = first, last + 1
    per_group = node.output.shape[1] // node.attrs["groups"]
    same = first == last
    out_lo[:, 1] = np.where(same, (lo[:, 1] - first * per_group) // 32, 0)
    out_hi[:, 1] = np.where(same, (hi[:, 1] - first * per_group + 31) // 32, shape[1])
    return out_lo, out_hi


def _wino(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """As CONV, but every block that the box cuts is computed whole, as far as it lies in the image."""
    if i == 0:
        sides = winograd.blocks_of(node.attrs["kernel"], node.attrs["strides"], node.attrs["block"]).sides
        lo, hi = lo.copy(), hi.copy()
        for axis, block in zip((len(shape) - 2, len(shape) - 1), sides, strict=True):
            lo[:, axis] = lo[:, axis] // block * block
            hi[:, axis] = np.minimum(-(-hi[:, axis] // block) * block, node.output.shape[axis])
    elif i == 1:
        out_lo, out_hi = _whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, 1] // 32, (hi[:, 1] + 31) // 32
        return out_lo, out_hi
    return _conv(node, i, shape, lo, hi)


def _pwdw(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All input channels of what the depthwise half's windows see; of weights and biases what belongs to the channels."""
    if i == 0:
        lo, hi = _windows(node, shape, lo.copy(), hi.copy())
        lo[:, 1], hi[:, 1] = 0, shape[1]
        return lo, hi
    if i in (2, 4):
        return lo[:, 1:2].copy(), hi[:, 1:2].copy()
    out_lo, out_hi = _whole(shape, len(lo))
    if i == 3:
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1], hi[:, 1]
    else:
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1] // 32, (hi[:, 1] + 31) // 32
    return out_lo, out_hi


def _pool(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return _windows(node, shape, lo.copy(), hi.copy())


def _lrn(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    size = node.attrs["size"]
    lo, hi = lo.copy(), hi.copy()
    lo[:, 1] = np.maximum(lo[:, 1] - (size - 1) // 2, 0)
    hi[:, 1] = np.minimum(hi[:, 1] + size // 2, shape[1])
    return lo, hi


# ------------------------------------------------------------------------------------------------------- along whole axes


def _reduce(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return _full_axes(node.attrs["axes"], shape, lo, hi)


def _whole_axis(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return _full_axes((node.attrs["axis"],), shape, lo, hi)


def _norm(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i > 0:
        return _broadcast(shape, lo, hi)
    return _full_axes(tuple(range(node.attrs["axis"], len(shape))), shape, lo, hi)


def _moments(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All channels of the groups, the hull of the blocks' pixels."""
    _, blocks, groups, _ = node.output.shape
    size, pixels = shape[1] // groups, prod(shape[2:])
    out_lo, out_hi = _whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    out_lo[:, 1], out_hi[:, 1] = lo[:, 2] * size, hi[:, 2] * size
    first, last = lo[:, 1] * pixels // blocks, hi[:, 1] * pixels // blocks - 1
    for axis, (a, b) in enumerate(_split_range(first, last, _strides(shape[2:])), 2):
        out_lo[:, axis], out_hi[:, axis] = a, b + 1
    return out_lo, out_hi


def _standardize(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i in (0, 4):
        return lo.copy(), hi.copy()
    if i > 1:
        return _broadcast(shape, lo[:, :2], hi[:, :2])
    size = node.output.shape[1] // shape[2]
    out_lo, out_hi = _whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    out_lo[:, 2], out_hi[:, 2] = lo[:, 1] // size, (hi[:, 1] - 1) // size + 1
    return out_lo, out_hi


def _extremes_of_blocks(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The blocks' indices along the axis."""
    axis, blocks = node.attrs["axis"], node.output.shape[0]
    out_lo, out_hi = _whole(shape, len(lo))
    out_lo[:, axis], out_hi[:, axis] = lo[:, 0] * shape[axis] // blocks, hi[:, 0] * shape[axis] // blocks
    return out_lo, out_hi


def _cumsum(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    axis, exclusive = node.attrs["axis"], int(node.attrs["exclusive"])
    lo, hi = lo.copy(), hi.copy()
    if node.attrs["reverse"]:
        lo[:, axis], hi[:, axis] = lo[:, axis] + exclusive, shape[axis]
    else:
        lo[:, axis], hi[:, axis] = 0, hi[:, axis] - exclusive
    return lo, hi


# --------------------------------------------------------------------------------------------------------------- indexing


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
        first, last = _extremes(values, lo[:, axis : axis + q], hi[:, axis : axis + q])
        out_lo[:, axis], out_hi[:, axis] = np.clip(first, 0, shape[axis]), np.clip(last + 1, 0, shape[axis])
    return out_lo, out_hi


def _extremes(values: Boxes, lo: Boxes, hi: Boxes) -> tuple[Boxes, Boxes]:
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
    return _full_axes((node.attrs["axis"],), shape, lo, hi)


def _index(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    last = np.full((len(lo), 1), shape[-1], np.int64)
    return np.concatenate([lo, 0 * last], axis=1), np.concatenate([hi, last], axis=1)


def _scatter(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Any update may fall into any box along the axis; along others updates stay where they are."""
    if i == 0:
        return lo.copy(), hi.copy()
    dims = np.array(shape, np.int64)
    return _full_axes((node.attrs["axis"],), shape, np.minimum(lo, dims), np.minimum(hi, dims))


# --------------------------------------------------------------------------------------------------------------- recurrent layers


UNITS = 16
"""Of a panel of packed recurrent weights."""


def _recurrent(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """A run's steps up to the last one that the box needs: of that one the box's units, if their gates need no others of the same step."""
    steps, _, _, hidden = node.output.shape
    reverse, first = node.attrs["reverse"], node.attrs["first"]
    form = node.attrs.get("form", "")
    if form in ("gates", "output"):
        return _half_step(i, shape, lo, hi, form == "gates", (first, 0 if reverse else shape[0] - 1))
    last = steps - 1 - lo[:, 0] if reverse else hi[:, 0] - 1
    if node.op == "LSTM":
        last = np.where(lo[:, 0] == 0, steps - 1, last)  # the tile that also writes the cell state
    alone = (last == 0) & (form != "reset first")
    units = np.where(alone, lo[:, 3], 0), np.where(alone, hi[:, 3], hidden)
    out_lo, out_hi = _whole(shape, len(lo))
    if i == 0:
        out_lo[:, 0] = first + steps - 1 - last if reverse else first
        out_hi[:, 0] = first + steps if reverse else first + last + 1
        out_lo[:, 1], out_hi[:, 1] = lo[:, 2], hi[:, 2]
        out_lo[:, 2], out_hi[:, 2] = units[0], shape[2] - hidden + units[1]
    elif i == 1:
        out_lo[:, 0], out_hi[:, 0] = units[0] // UNITS, -(-units[1] // UNITS)
    elif i == 2 or node.op == "LSTM":
        step = shape[0] - 1 if i == 2 and not reverse else 0
        out_lo[:, 0], out_hi[:, 0] = step, step + 1
        out_lo[:, 2], out_hi[:, 2] = lo[:, 2], hi[:, 2]
        if i == 3:
            out_lo[:, 3], out_hi[:, 3] = units
    else:
        out_lo[:, 0], out_hi[:, 0] = units
    return out_lo, out_hi


def _half_step(i: int, shape: Shape, lo: Boxes, hi: Boxes, gates: bool, steps: tuple[int, int]) -> Region:
    """Of a GRU that resets first. `steps`: of P, and of the state before."""
    out_lo, out_hi = _whole(shape, len(lo))
    if i == 0:
        hidden = shape[2] // 3
        out_lo[:, 0], out_hi[:, 0] = steps[0], steps[0] + 1
        out_lo[:, 1], out_hi[:, 1] = lo[:, 2], hi[:, 2]
        out_lo[:, 2], out_hi[:, 2] = (0 if gates else 2 * hidden) + lo[:, 3], (hidden if gates else 2 * hidden) + hi[:, 3]
    elif i == 1:
        out_lo[:, 0], out_hi[:, 0] = lo[:, 3] // UNITS, -(-hi[:, 3] // UNITS)
    else:
        out_lo[:, 2], out_hi[:, 2] = lo[:, 2], hi[:, 2]
        if i == 2:
            out_lo[:, 0], out_hi[:, 0] = steps[1], steps[1] + 1
            if not gates:
                out_lo[:, 3], out_hi[:, 3] = lo[:, 3], hi[:, 3]
    return out_lo, out_hi


# ------------------------------------------------------------------------------------------------------- padding and resizing


def _pad(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        return _whole(shape, len(lo))
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


_EXACT = 1 << 20
"""Positions on shorter axes, and halves of them, are exact in single precision."""


def _resize(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    a, target = node.attrs, node.output.shape
    lo, hi = lo.copy(), hi.copy()
    for axis, dim in enumerate(shape):
        scale = a["scales"][axis]
        if scale == 1.0 and dim == target[axis]:
            continue
        # The kernel's arithmetic may round differently from this one, nearest elements are found in single precision: unless the scale is
        # a power of two, stay on the safe side.
        long = max(dim, target[axis])
        exact = np.frexp(scale)[0] == 0.5 and a["coordinate"] != "align_corners" and long < _EXACT
        slack = 0.0 if exact else max(1e-4, 1e-6 * long)
        first = _source(lo[:, axis], scale, dim, target[axis], a["coordinate"]) - slack
        last = _source(hi[:, axis] - 1, scale, dim, target[axis], a["coordinate"]) + slack
        first, last = np.minimum(first, last), np.maximum(first, last)
        if a["mode"] == "nearest":
            low, high = _nearest(first, a["nearest"]), _nearest(last, a["nearest"])
        else:
            before, after = (0, 1) if a["mode"] == "linear" else (1, 2)
            low, high = np.floor(first) - before, np.floor(last) + after
        lo[:, axis] = np.clip(low, 0, dim - 1).astype(np.int64)
        hi[:, axis] = np.clip(high, 0, dim - 1).astype(np.int64) + 1
    return lo, hi


def _source(x: Boxes, scale: float, dim: int, target: int, coordinate: str) -> npt.NDArray[Any]:
    """Where output position x lies on the input axis (ONNX Resize, coordinate_transformation_mode)."""
    if coordinate == "asymmetric":
        return x / scale
    if coordinate == "align_corners":
        return np.zeros(len(x)) if target == 1 else x * (dim - 1) / (target - 1)
    if coordinate == "pytorch_half_pixel" and target == 1:
        return np.zeros(len(x))
    if coordinate == "half_pixel_symmetric":
        return dim / 2 * (1 - target / (scale * dim)) + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def _nearest(x: npt.NDArray[Any], rounding: str) -> npt.NDArray[Any]:
    if rounding == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if rounding == "round_prefer_ceil":
        return np.floor(x + 0.5)
    out: npt.NDArray[Any] = np.floor(x) if rounding == "floor" else np.ceil(x)
    return out


# ------------------------------------------------------------------------------------------------------------ sampled images


def _image(shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All pixels of the box's channels of its batch entries."""
    out_lo, out_hi = _whole(shape, len(lo))
    out_lo[:, :2], out_hi[:, :2] = lo[:, :2], hi[:, :2]
    return out_lo, out_hi


def _gridsample(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Points are read anywhere; each has its own place in the grid."""
    if i == 0:
        return _image(shape, lo, hi)
    out_lo, out_hi = _whole(shape, len(lo))
    for axis in range(len(shape) - 1):
        out_lo[:, axis], out_hi[:, axis] = lo[:, axis + (axis > 0)], hi[:, axis + (axis > 0)]
    return out_lo, out_hi


def _roialign(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Which image a region is of is read; where that is known the images between the first and the last one, else all."""
    if i > 0:
        out_lo, out_hi = _whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
        return out_lo, out_hi
    out_lo, out_hi = _image(shape, lo, hi)
    batches = node.inputs[2]
    assert batches is not None
    out_lo[:, 0], out_hi[:, 0] = 0, shape[0]
    if batches.data is not None:
        first, last = _extremes(batches.data.astype(np.int64), lo[:, :1], hi[:, :1])
        out_lo[:, 0], out_hi[:, 0] = np.clip(first, 0, shape[0]), np.clip(last + 1, 0, shape[0])
    return out_lo, out_hi


def _deform(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Places are read anywhere; of offsets and mask what belongs to the pixels, for any channels."""
    out_lo, out_hi = _whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    if i > 0:
        out_lo[:, 2:], out_hi[:, 2:] = lo[:, 2:], hi[:, 2:]
        return out_lo, out_hi
    inner = shape[1] // node.attrs["groups"]
    a, b = lo[:, 1], hi[:, 1] - 1
    group = prod(node.attrs["kernel"]) * inner
    same = a // inner == b // inner  # channels of one tap
    ends = a // group == b // group  # several taps of a group have its first and last channel
    first, last = a // group * inner, b // group * inner
    from_tap = same | (~ends & (a % group >= group - inner))
    to_tap = same | (~ends & (b % group < inner))
    out_lo[:, 1] = first + np.where(from_tap, a % inner, 0)
    out_hi[:, 1] = last + np.where(to_tap, b % inner + 1, inner)
    return out_lo, out_hi


def _all_of_it(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return _whole(shape, len(lo))


_RULES: dict[str, Callable[[Node, int, Shape, Boxes, Boxes], Region]] = {
    "view.reshape": _reshape,
    "view.transpose": _transpose,
    "view.slice": _slice,
    "view.expand": _elementwise,
    "concat": _concat,
    "GEMM": _gemm,
    "NGEMM": _gemm,
    "IGEMM": _igemm,
    "ICONV": _iconv,
    "BGEMM": _igemm,
    "BCONV": _bconv,
    "STRASSEN": _strassen,
    "CONV": _conv,
    "DWCONV": _conv,
    "PWDW": _pwdw,
    "WINO": _wino,
    "POOL": _pool,
    "UNARY": _elementwise,
    "BINARY": _elementwise,
    "TERNARY": _elementwise,
    "CAST": _elementwise,
    "COPY": _elementwise,
    "QUANTIZE": _elementwise,
    "DEQUANTIZE": _elementwise,
    "EXTREMES": _extremes_of_blocks,
    "LEVELS": _all_of_it,
    "PAD": _pad,
    "REDUCE": _reduce,
    "ARGREDUCE": _whole_axis,
    "SOFTMAX": _whole_axis,
    "NORM": _norm,
    "MOMENTS": _moments,
    "STANDARDIZE": _standardize,
    "LRN": _lrn,
    "GATHER": _gather,
    "GATHER_ELEMENTS": _gather_elements,
    "RESIZE": _resize,
    "GRIDSAMPLE": _gridsample,
    "ROIALIGN": _roialign,
    "DEFORM": _deform,
    "CUMSUM": _cumsum,
    "TOPK": _whole_axis,
    "INDEX": _index,
    "SCATTER": _scatter,
    "ATTENTION": _attention,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "OPAQUE": _all_of_it,
}
