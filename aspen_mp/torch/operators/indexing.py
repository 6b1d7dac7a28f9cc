"""Reading and writing at places that tensors name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import INT64, Builder, Scalar, Value, positive
from aspen_mp.torch.operators.elementwise import scaled
from aspen_mp.torch.registry import Unsupported, aten


def _from_front(b: Builder, index: Value) -> Value:
    """Indices of an operator that takes no negative ones: these become the largest integer, with which the request fails."""
    bounded = b.emit("Max", index, b.constant(-1, index.dtype), shape=index.shape)
    return b.emit("BitwiseAnd", bounded, b.constant(torch.iinfo(index.dtype).max, index.dtype), shape=index.shape)


@aten("embedding.default")
def _embedding(b: Builder, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return b.emit("Gather", weight, _from_front(b, indices), axis=0)


@aten("index_select.default")
def _index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    return b.emit("Gather", x, _from_front(b, index), axis=positive(dim, x.rank)) if x.rank else x


@aten("gather.default")
def _gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if x.rank == 0 or index.rank == 0:
        raise Unsupported("gathering scalars")
    return b.emit("GatherElements", x, _from_front(b, index), axis=positive(dim, x.rank))


def _indexed(indices: Sequence[Value | None]) -> list[int]:
    """Axes that have an index; Unsupported for masks."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    for axis in axes:
        index = indices[axis]
        assert index is not None
        if index.dtype in (torch.bool, torch.uint8):
            raise Unsupported("a mask selects as many elements as it has ones")
    return axes


def _tuples(b: Builder, indices: Sequence[Value | None], axes: list[int], shape: Sequence[Any]) -> Value:
    """[*common shape, len(axes)]: indices that are broadcast against each other, side by side."""
    target = b.ints(shape)
    columns = []
    for axis in axes:
        index = indices[axis]
        assert index is not None
        wide = b.cast(index, INT64) if len(axes) == 1 else b.emit("Expand", b.cast(index, INT64), target, shape=shape)
        columns.append(b.emit("Unsqueeze", wide, b.ints([-1])))
    return columns[0] if len(columns) == 1 else b.emit("Concat", *columns, axis=-1)


def _common(b: Builder, indices: Sequence[Value | None], axes: list[int]) -> list[Any]:
    """The shape that indices have together."""
    shapes = [index.shape for axis in axes if (index := indices[axis]) is not None]
    rank = max(map(len, shapes))
    common: list[Any] = [1] * rank
    for shape in shapes:
        for k, n in enumerate(shape):
            place = rank - len(shape) + k
            if sizes.same(common[place], 1):
                common[place] = n
    return common


@aten("index.Tensor", "_unsafe_index.Tensor")
def _index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    axes = _indexed(indices)
    if not axes:
        return x
    if len(axes) == 1:
        index = indices[axes[0]]
        assert index is not None
        return b.emit("Gather", x, b.cast(index, INT64), axis=axes[0])
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    shape = _common(b, indices, axes)
    kept = [axis for axis in range(x.rank) if axis not in axes]
    front = b.transpose(x, [*axes, *kept])
    taken = b.emit("GatherND", front, _tuples(b, indices, axes, shape))
    if not together or axes[0] == 0:
        return taken
    before = [axis for axis in kept if axis < axes[0]]
    n, m = len(shape), len(before)
    return b.transpose(taken, [*range(n, n + m), *range(n), *range(n + m, n + len(kept))])


@aten("index_put.default", "_unsafe_index_put.default")
def _index_put(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    masks = [index for index in indices if index is not None and index.dtype == torch.bool]
    if masks:
        return _masked_put(b, x, indices, values, accumulate)
    axes = _indexed(indices)
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    shape = _common(b, indices, axes)
    kept = [axis for axis in range(x.rank) if axis not in axes]
    rest = [x.shape[axis] for axis in kept]
    before = [x.shape[axis] for axis in kept if axis < axes[0]] if together else []
    after = rest[len(before) :]
    updates = b.emit("Expand", b.cast(values, x.dtype), b.ints([*before, *shape, *after]), shape=[*before, *shape, *after])
    n, m = len(shape), len(before)
    if m:
        updates = b.transpose(updates, [*range(m, m + n), *range(m), *range(m + n, m + n + len(after))])
    order = [*axes, *kept]
    front = b.transpose(x, order)
    written = b.emit("ScatterND", front, _tuples(b, indices, axes, shape), updates, reduction="add" if accumulate else None)
    return b.transpose(written, [order.index(axis) for axis in range(x.rank)])


def _masked_put(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    """x[mask] = number."""
    mask = indices[0]
    if len(indices) != 1 or mask is None or values.rank or accumulate:
        raise Unsupported("writing several values where a mask is set")
    if mask.rank < x.rank:
        mask = b.reshape(mask, [*mask.shape, *[1] * (x.rank - mask.rank)])
    return b.emit("Where", mask, b.cast(values, x.dtype), x, dtype=x.dtype)


@aten("scatter.src", "scatter_add.default")
def _scatter(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(b, x, dim, index, source, "add" if b.made_for("scatter_add") else None)


@aten("scatter.value")
def _scatter_value(b: Builder, x: Value, dim: int, index: Value, value: Scalar) -> Value:
    if x.rank == 0 or index.rank == 0:
        raise Unsupported("scattering into a scalar, or from one")
    updates = b.expand(b.number(value, x.dtype), index.shape)
    return b.emit("ScatterElements", x, _from_front(b, index), updates, axis=positive(dim, x.rank))


@aten("scatter_reduce.two")
def _scatter_reduce(b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True) -> Value:
    names = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    if reduce not in names or not include_self:
        raise Unsupported(f"scattering by {reduce} without what is there")
    return _scattered(b, x, dim, index, source, names[reduce])


def _scattered(b: Builder, x: Value, dim: int, index: Value, source: Value, reduction: str | None) -> Value:
    if x.rank == 0 or index.rank == 0 or source.rank == 0:
        raise Unsupported("scattering into a scalar, or from one")
    if not all(map(sizes.same, index.shape, source.shape)):
        ends = b.ints(index.shape)
        source = b.emit("Slice", source, b.ints([0] * index.rank), ends, b.ints(range(index.rank)), shape=index.shape)
    return b.emit("ScatterElements", x, _from_front(b, index), b.cast(source, x.dtype), axis=positive(dim, x.rank), reduction=reduction)


@aten("index_add.default")
def _index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Scalar = 1) -> Value:
    if x.rank == 0:
        raise Unsupported("adding to a scalar")
    axis = positive(dim, x.rank)
    source = scaled(b, source, alpha)
    order = [axis, *[k for k in range(x.rank) if k != axis]]
    places = b.emit("Unsqueeze", _from_front(b, b.cast(index, INT64)), b.ints([-1]))
    written = b.emit("ScatterND", b.transpose(x, order), places, b.transpose(b.cast(source, x.dtype), order), reduction="add")
    return b.transpose(written, [order.index(k) for k in range(x.rank)])


@aten("index_copy.default")
def _index_copy(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    if x.rank == 0:
        raise Unsupported("copying into a scalar")
    axis = positive(dim, x.rank)
    order = [axis, *[k for k in range(x.rank) if k != axis]]
    places = b.emit("Unsqueeze", _from_front(b, b.cast(index, INT64)), b.ints([-1]))
    written = b.emit("ScatterND", b.transpose(x, order), places, b.transpose(b.cast(source, x.dtype), order))
    return b.transpose(written, [order.index(k) for k in range(x.rank)])
