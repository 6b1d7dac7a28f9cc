"""Sums, means, extremes, sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import INT64, Builder, Scalar, Value, in_float32, positive
from aspen_mp.torch.registry import Unsupported, aten

Dims = Sequence[int] | int | None


def axes(x: Value, dim: Dims) -> list[int]:
    """Axes of a reduction; all of them where none is given. A scalar has none, though PyTorch lets dimensions 0 and -1 be named."""
    if x.rank == 0:
        return []
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return list(range(x.rank))
    return [positive(d, x.rank) for d in ([dim] if isinstance(dim, int) else dim)]


def reduced(b: Builder, op: str, x: Value, dim: Dims, keepdim: bool) -> Value:
    if x.rank == 0:
        return b.emit("Identity", x)
    over = axes(x, dim)
    shape = [1 if axis in over else n for axis, n in enumerate(x.shape)]
    shape = shape if keepdim else [n for axis, n in enumerate(x.shape) if axis not in over]
    return b.emit(op, x, b.ints(over), shape=shape, keepdims=int(keepdim))


@aten("sum.default", "sum.dim_IntList")
def _sum(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduced(b, "ReduceSum", b.cast(x, b.dtype), dim, keepdim)


@aten("mean.default", "mean.dim")
def _mean(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduced(b, "ReduceMean", b.cast(x, b.dtype), dim, keepdim)


@aten("prod.default", "prod.dim_int")
def _prod(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduced(b, "ReduceProd", b.cast(x, b.dtype), dim, keepdim)


@aten("amax.default", "amin.default", "max.default", "min.default")
def _extremes(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return _extreme(b, b.made_for("amax") or b.made_for("max"), x, dim, keepdim)


def _extreme(b: Builder, greatest: bool, x: Value, dim: Dims, keepdim: bool) -> Value:
    wide = b.cast(x, torch.int32) if x.dtype in (torch.bool, torch.int8, torch.uint8, torch.int16) else x
    return b.cast(reduced(b, "ReduceMax" if greatest else "ReduceMin", wide, dim, keepdim), x.dtype)


@aten("max.dim", "min.dim")
def _extreme_and_place(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    greatest = b.made_for("max")
    return _extreme(b, greatest, x, dim, keepdim), _place(b, greatest, x, dim, keepdim)


@aten("argmax.default", "argmin.default")
def _arg(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    greatest = b.made_for("argmax")
    if dim is None:
        place = _place(b, greatest, b.reshape(x, [-1])._replace(shape=(-1,)), 0, False)
        return b.reshape(place, [1] * x.rank) if keepdim else place
    return _place(b, greatest, x, dim, keepdim)


def _place(b: Builder, greatest: bool, x: Value, dim: int, keepdim: bool) -> Value:
    if x.rank == 0:
        return b.constant(0, INT64)
    x = b.cast(x, torch.int32) if x.dtype == torch.bool else x
    return b.emit("ArgMax" if greatest else "ArgMin", x, dtype=INT64, axis=positive(dim, x.rank), keepdims=int(keepdim))


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _logical(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    flags = b.cast(b.cast(x, torch.bool), torch.int32)
    found = reduced(b, "ReduceMax" if b.made_for("any") else "ReduceMin", flags, dim, keepdim)
    return b.cast(found, b.dtype)


def _moments(b: Builder, x: Value, dim: Dims, correction: Scalar | None, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean. Halves are summed and counted in float32, as by PyTorch."""
    over, x = axes(x, dim), widened(b, x)
    mean = reduced(b, "ReduceMean", x, over, True)
    apart = b.emit("Sub", x, mean, shape=x.shape)
    squares = b.emit("Mul", apart, apart, shape=x.shape)
    count, lost = math.prod(x.shape[axis] for axis in over), 1 if correction is None else correction
    if sizes.same(lost, 0):
        variance = reduced(b, "ReduceMean", squares, over, keepdim)
    else:
        variance = b.emit("Div", reduced(b, "ReduceSum", squares, over, keepdim), _freedom(b, count, lost, x.dtype))
    if not keepdim:
        mean = b.emit("Squeeze", mean, b.ints(over)) if over else mean
    return variance, mean


def widened(b: Builder, x: Value) -> Value:
    """Halves as float32, in which PyTorch adds them up."""
    return b.cast(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _freedom(b: Builder, count: Any, correction: Any, dtype: Any) -> Value:
    """The count less the correction, at least 0."""
    known = [sizes.plain(count), sizes.plain(correction)]
    if all(isinstance(number, int | float) for number in known):
        return b.constant(max(known[0] - known[1], 0), dtype)
    return b.emit("Max", b.emit("Sub", b.number(count, dtype), b.number(correction, dtype)), b.constant(0, dtype))


@aten("var.correction", "std.correction")
def _var(b: Builder, x: Value, dim: Dims = None, *, correction: Scalar | None = None, keepdim: bool = False) -> Value:
    variance, _ = _moments(b, x, dim, correction, keepdim)
    return b.cast(b.emit("Sqrt", variance) if b.made_for("std") else variance, b.dtype)


@aten("var_mean.correction", "std_mean.correction")
def _var_mean(b: Builder, x: Value, dim: Dims = None, *, correction: Scalar | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    variance, mean = _moments(b, x, dim, correction, keepdim)
    return b.cast(b.emit("Sqrt", variance) if b.made_for("std_mean") else variance, x.dtype), b.cast(mean, x.dtype)


@aten("linalg_vector_norm.default")
def _vector_norm(b: Builder, x: Value, ord: Scalar = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return b.cast(_norm(b, widened(b, b.cast(x, b.dtype)), ord, dim, keepdim), b.dtype)


def _norm(b: Builder, x: Value, ord: Scalar, dim: Dims, keepdim: bool) -> Value:
    if ord == 0:
        there = b.emit("Not", b.emit("Equal", x, b.constant(0, x.dtype), dtype=torch.bool))
        return reduced(b, "ReduceSum", b.cast(there, x.dtype)._replace(shape=x.shape), dim, keepdim)
    size = b.emit("Abs", x, shape=x.shape)
    if x.rank == 0:
        return size
    if ord in (1, 2):
        return reduced(b, f"ReduceL{int(ord)}", x, dim, keepdim)
    if math.isinf(ord):
        return reduced(b, "ReduceMax" if ord > 0 else "ReduceMin", size, dim, keepdim)
    power = b.emit("Pow", size, b.constant(ord, x.dtype), shape=x.shape)
    return b.emit("Pow", reduced(b, "ReduceSum", power, dim, keepdim), b.constant(1.0 / ord, x.dtype))


@aten("logsumexp.default")
@in_float32
def _logsumexp(b: Builder, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    return reduced(b, "ReduceLogSumExp", b.cast(x, b.dtype), dim, keepdim)


@aten("cumsum.default")
def _cumsum(b: Builder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = b.cast(x, b.dtype)
    return b.emit("CumSum", x, b.constant(positive(dim, x.rank), INT64)) if x.rank else b.emit("Identity", x)


def _refuse_ties(b: Builder, x: Value) -> None:
    """Raise Unsupported where places of equal elements are asked for: PyTorch's algorithm decides them. They are rare in wide floats."""
    if 1 in b.used and x.dtype not in (torch.float32, torch.float64):
        raise Unsupported("the places of elements, some of which may be equal")


@aten("topk.default")
def _topk(b: Builder, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    if x.rank == 0:
        raise Unsupported("the greatest of a scalar")
    _refuse_ties(b, x)
    found = b.emit_all("TopK", [x, b.size(k)], [x.dtype, INT64], axis=positive(dim, x.rank), largest=int(largest), sorted=int(sorted))
    return found[0], found[1]


@aten("sort.default", "sort.stable")
def _sort(
    b: Builder, x: Value, *arguments: Any, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    """Equal elements keep their order, which PyTorch promises where `stable` is set."""
    dim = arguments[0] if arguments else dim
    descending = arguments[1] if len(arguments) > 1 else descending
    if x.rank == 0 or x.dtype == torch.bool:
        raise Unsupported("sorting a scalar, or bools")
    if not stable:
        _refuse_ties(b, x)
    axis = positive(dim, x.rank)
    found = b.emit_all("TopK", [x, b.size(x.shape[axis])], [x.dtype, INT64], axis=axis, largest=int(descending), sorted=1)
    return found[0], found[1]
