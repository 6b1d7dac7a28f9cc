"""Shapes, views and parts of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import INT64, Builder, Scalar, Value, positive, static
from aspen_mp.torch.registry import Unsupported, aten

_END = 2**63 - 1
_MOST_GATHERED = 1 << 18
"""Elements whose places are written down."""


@aten("view.default", "_unsafe_view.default", "_reshape_copy.default", "view_copy.default")
def _view(b: Builder, x: Value, *_: Any) -> Value:
    return b.reshape(x, b.shape)


@aten("permute.default", "permute_copy.default")
def _permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.transpose(x, [positive(d, x.rank) for d in dims])


@aten("t.default", "t_copy.default")
def _t(b: Builder, x: Value) -> Value:
    return b.transpose(x, list(reversed(range(x.rank))))


@aten("transpose.int", "transpose_copy.int")
def _transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    perm = list(range(x.rank))
    if x.rank:
        first, second = positive(first, x.rank), positive(second, x.rank)
        perm[first], perm[second] = perm[second], perm[first]
    return b.transpose(x, perm)


@aten("expand.default", "expand_copy.default")
def _expand(b: Builder, x: Value, size: Sequence[Any], *, implicit: bool = False) -> Value:
    shape = b.shape
    if len(shape) == x.rank and all(map(sizes.same, shape, x.shape)):
        return x
    return b.expand(x, shape)


@aten("unsqueeze.default", "unsqueeze_copy.default")
def _unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    return b.emit("Unsqueeze", x, b.ints([positive(dim, x.rank + 1)]))


@aten("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.dims", "squeeze_copy.dim")
def _squeeze(b: Builder, x: Value, dim: Sequence[int] | int | None = None) -> Value:
    if dim is None:
        dim = range(x.rank)
    dims = [dim] if isinstance(dim, int) else dim
    ones = [positive(d, x.rank) for d in dims if x.rank and sizes.same(x.shape[d], 1)]
    if x.rank - len(ones) != len(b.shape):
        raise Unsupported("a size that depends on data may be 1")
    return b.emit("Squeeze", x, b.ints(ones)) if ones else x


@aten("slice.Tensor", "slice_copy.Tensor")
def _slice(b: Builder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    begin, stop = (0 if start is None else start), (_END if end is None else end)
    axis = positive(dim, x.rank)
    whole = sizes.same(stop, _END) or sizes.same(stop, x.shape[axis])
    if sizes.same(begin, 0) and sizes.same(step, 1) and whole:
        return x
    return b.emit("Slice", x, b.ints([begin]), b.ints([stop]), b.ints([axis]), b.ints([step]), shape=b.shape)


@aten("select.int", "select_copy.int")
def _select(b: Builder, x: Value, dim: int, index: Any) -> Value:
    plain = sizes.plain(index)
    place = b.constant(plain, INT64) if isinstance(plain, int) else b.number(index, INT64)
    return b.emit("Gather", x, place, axis=positive(dim, x.rank))


@aten("split.Tensor", "split_copy.Tensor", "split_with_sizes.default", "split_with_sizes_copy.default")
def _split(b: Builder, x: Value, parts: Any, dim: int = 0) -> tuple[Value, ...]:
    axis = positive(dim, x.rank)
    shapes = [tuple(part.shape) for part in b.out]
    if len(shapes) == 1:
        return (x,)
    return tuple(b.emit_all("Split", [x, b.ints([shape[axis] for shape in shapes])], [x.dtype] * len(shapes), shapes, axis=axis))


@aten("unbind.int", "unbind_copy.int")
def _unbind(b: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = positive(dim, x.rank)
    return tuple(b.emit("Gather", x, b.constant(place, INT64), axis=axis) for place in range(len(b.out)))


@aten("cat.default")
def _cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    kept = [b.cast(x, b.dtype) for x in tensors if not (len(b.shape) != 1 and x.rank == 1 and sizes.same(x.shape[0], 0))]
    if len(kept) == 1:
        return kept[0]
    return b.emit("Concat", *kept, axis=positive(dim, len(b.shape)))


@aten("stack.default")
def _stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = positive(dim, len(b.shape))
    return b.emit("Concat", *[b.emit("Unsqueeze", b.cast(x, b.dtype), b.ints([axis])) for x in tensors], axis=axis)


@aten("repeat.default")
def _repeat(b: Builder, x: Value, repeats: Sequence[Any]) -> Value:
    if len(repeats) > x.rank:
        x = b.reshape(x, [*[1] * (len(repeats) - x.rank), *x.shape])
    return b.emit("Tile", x, b.ints(repeats)) if repeats else x


@aten("flip.default")
def _flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    over = [positive(d, x.rank) for d in dims]
    if not over:
        return x
    ends, n = [-(2**63) + 1] * len(over), len(over)
    return b.emit("Slice", x, b.ints([-1] * n), b.ints(ends), b.ints(over), b.ints([-1] * n), shape=x.shape)


@aten("roll.default")
def _roll(b: Builder, x: Value, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Value:
    if not dims:
        count: Any = math.prod(x.shape)
        return b.reshape(_rolled(b, b.reshape(x, [count]), shifts[0], 0), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(b, x, shift, positive(dim, x.rank))
    return x


def _rolled(b: Builder, x: Value, shift: Any, axis: int) -> Value:
    size = x.shape[axis]
    known = isinstance(sizes.plain(shift), int) and isinstance(sizes.plain(size), int)
    if sizes.same(shift, 0) or sizes.same(size, 0) or (known and shift % size == 0):
        return x
    cut = b.ints([-shift % size]) if known else b.emit("Mod", b.size(-shift), b.size(size), dtype=INT64, shape=(1,))
    axes = b.ints([axis])
    last, first = b.emit("Slice", x, cut, b.ints([_END]), axes), b.emit("Slice", x, b.ints([0]), cut, axes)
    return b.emit("Concat", last, first, shape=x.shape, axis=axis)


@aten("constant_pad_nd.default")
def _constant_pad(b: Builder, x: Value, pad: Sequence[Any], *rest: Any, value: Scalar = 0) -> Value:
    if b.made_for("pad"):
        mode = rest[0] if rest else "constant"
        if mode != "constant":
            raise Unsupported(f"padding by {mode}")
        rest = rest[1:]
    value = rest[0] if rest else value
    return padded(b, x, pad, value or 0)


def padded(b: Builder, x: Value, pad: Sequence[Any], value: Scalar | None, mode: str = "constant") -> Value:
    """`pad`: begin and end of the last axis, of the one before it …"""
    axes = [x.rank - 1 - k for k in range(len(pad) // 2)]
    known = [sizes.plain(n) for n in pad]
    if all(sizes.same(n, 0) for n in pad):
        return x
    fill = None if value is None else b.constant(value, x.dtype)
    return b.emit("Pad", x, b.ints([*known[::2], *known[1::2]]), fill, b.ints(axes), shape=b.shape, mode=mode)


@aten("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def _reflection_pad(b: Builder, x: Value, pad: Sequence[Any]) -> Value:
    return _repeated(b, x, pad, "reflect")


@aten("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def _replication_pad(b: Builder, x: Value, pad: Sequence[Any]) -> Value:
    return _repeated(b, x, pad, "edge")


def _repeated(b: Builder, x: Value, pad: Sequence[Any], mode: str) -> Value:
    """What is negative in `pad` cuts off the result. ONNX's Pad cuts the tensor first, and repeats what is left."""
    added, cut = ([limit(n, 0) for n in pad] for limit in (torch.sym_max, torch.sym_min))
    return padded(b, padded(b, x, added, None, mode), cut, None)


@aten("tril.default", "triu.default")
def _triangle(b: Builder, x: Value, diagonal: int = 0) -> Value:
    wide = b.cast(x, torch.int32) if x.dtype == torch.bool else x
    return b.cast(b.emit("Trilu", wide, b.constant(diagonal, INT64), shape=x.shape, upper=int(b.made_for("triu"))), x.dtype)


@aten("pixel_shuffle.default")
def _pixel_shuffle(b: Builder, x: Value, factor: int) -> Value:
    if x.rank != 4:
        raise Unsupported("pixels of anything but images")
    return b.emit("DepthToSpace", x, blocksize=int(factor), mode="CRD")


@aten("pixel_unshuffle.default")
def _pixel_unshuffle(b: Builder, x: Value, factor: int) -> Value:
    n, c, h, w = static(x.shape, "the image")
    split = b.reshape(x, [n, c, h // factor, factor, w // factor, factor])
    return b.reshape(b.transpose(split, [0, 1, 3, 5, 2, 4]), b.shape)


@aten("unfold.default")
def _unfold(b: Builder, x: Value, dim: int, size: int, step: int) -> Value:
    if x.rank == 0:
        if sizes.same(size, 0):
            raise Unsupported("no windows of a scalar")
        return b.reshape(x, [1])
    axis, windows = positive(dim, x.rank), static([b.shape[positive(dim, x.rank)]], "the number of windows")[0]
    places = np.arange(windows)[:, None] * step + np.arange(size)[None, :]
    taken = b.emit("Gather", x, b.constant(places, INT64), axis=axis)
    return b.transpose(taken, [*range(axis + 1), *range(axis + 2, x.rank + 1), axis + 1])


@aten("diagonal.default", "diagonal_copy.default")
def _diagonal(b: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    first, second = positive(dim1, x.rank), positive(dim2, x.rank)
    n = static([b.shape[-1]], "the diagonal")[0]
    kept = [axis for axis in range(x.rank) if axis not in (first, second)]
    front = b.transpose(x, [first, second, *kept])
    along = np.arange(n)
    places = np.stack([along + max(-offset, 0), along + max(offset, 0)], 1)
    taken = b.emit("GatherND", front, b.constant(places, INT64))
    return b.transpose(taken, [*range(1, x.rank - 1), 0])


@aten("select_scatter.default")
def _select_scatter(b: Builder, x: Value, source: Value, dim: int, index: Any) -> Value:
    axis = positive(dim, x.rank)
    place = static([index], "the place")[0]
    return _replaced(b, x, b.emit("Unsqueeze", source, b.ints([axis])), axis, place, place + 1)


@aten("slice_scatter.default")
def _slice_scatter(b: Builder, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    axis = positive(dim, x.rank)
    n = sizes.plain(x.shape[axis])
    begin, stop = sizes.plain(0 if start is None else start), sizes.plain(_END if end is None else end)
    if sizes.same(begin, 0) and sizes.same(step, 1) and (sizes.same(stop, _END) or sizes.same(stop, n)):
        return source
    begin, stop, n = static([begin, stop, n], "the slice")
    begin, stop = (positive(place, n) for place in (begin, stop))
    begin, stop = min(max(begin, 0), n), min(max(stop, 0), n)
    source = source if len(source.shape) == x.rank else b.expand(source, [*x.shape[:axis], max(stop - begin, 0), *x.shape[axis + 1 :]])
    if step == 1:
        return _replaced(b, x, source, axis, begin, stop)
    places = np.arange(begin, stop, step)
    front = b.transpose(x, [axis, *[k for k in range(x.rank) if k != axis]])
    updates = b.transpose(source, [axis, *[k for k in range(x.rank) if k != axis]])
    written = b.emit("ScatterND", front, b.constant(places[:, None], INT64), updates)
    return b.transpose(written, [*range(1, axis + 1), 0, *range(axis + 1, x.rank)])


def _replaced(b: Builder, x: Value, source: Value, axis: int, begin: int, stop: int) -> Value:
    """With `source` in place of a run along an axis."""
    if stop <= begin:
        return x
    n = static([x.shape[axis]], "the axis")[0]
    begin, stop = positive(begin, n), stop if begin >= 0 else stop + n
    axes, pieces = b.ints([axis]), []
    if begin:
        pieces.append(b.emit("Slice", x, b.ints([0]), b.ints([begin]), axes))
    pieces.append(b.cast(source, x.dtype))
    if stop < n:
        pieces.append(b.emit("Slice", x, b.ints([stop]), b.ints([n]), axes))
    return b.emit("Concat", *pieces, axis=axis) if len(pieces) > 1 else pieces[0]


@aten("as_strided.default", "as_strided_copy.default")
def _as_strided(b: Builder, x: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Value:
    """Where it says what holds already, nothing: strides of axes of one element are free. Else elements are gathered from an input that
    lies in the usual order, which windows over tokens do."""
    fake = b.node.args[0].meta["val"]
    same = len(size) == x.rank and all(map(sizes.same, size, x.shape))
    moving = [axis for axis, n in enumerate(size) if not sizes.same(n, 1)]
    if same and sizes.same(offset or 0, 0) and all(sizes.same(stride[axis], fake.stride()[axis]) for axis in moving):
        return x
    shape, steps = static(size, "other strides over the same memory"), static(stride, "other strides over the same memory")
    if math.prod(shape) > _MOST_GATHERED or not fake.is_contiguous() or fake.storage_offset():
        raise Unsupported("other strides over the same memory")
    places = np.full(shape, offset or 0, np.int64)
    for axis, (n, step) in enumerate(zip(shape, steps, strict=True)):
        places += (np.arange(n) * step).reshape(-1, *[1] * (len(shape) - axis - 1))
    return b.emit("Gather", b.reshape(x, [-1]), b.constant(places, INT64), axis=0)
