"""Kernels that move elements: padding, and reading or writing where other operands say."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, extremes, full_axes, whole
from aspen_mp.planner.ops.call import I32, I64, LIMIT, NUMBERS, Call, in_range, need, shaped
from aspen_mp.planner.ops.params import choice, counted, integer
from aspen_mp.planner.ops.spec import NO_AXES, Axes, Cost, Input, Layout, OpSpec, each
from aspen_mp.shm.tables import PAD_MODES

SCATTER_REDUCTIONS = {"none": 0, "add": 1, "mul": 2, "min": 3, "max": 4}


def _pad_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
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


def _gather_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
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


def _gather_elements_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        return lo.copy(), hi.copy()
    return full_axes((node.attrs["axis"],), shape, lo, hi)


def _index_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    last = np.full((len(lo), 1), shape[-1], np.int64)
    return np.concatenate([lo, 0 * last], axis=1), np.concatenate([hi, last], axis=1)


def _scatter_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Any update may fall into any box along the axis; along others updates stay where they are."""
    if i == 0:
        return lo.copy(), hi.copy()
    dims = np.array(shape, np.int64)
    return full_axes((node.attrs["axis"],), shape, np.minimum(lo, dims), np.minimum(hi, dims))


def _pad_checks(call: Call) -> None:
    out, x, value = call.out.shape, call.input(0), call.optional(1)
    mode = in_range(call, 0, "mode", 0, len(PAD_MODES))
    need(len(x.shape) == len(out), "rank of input 0", len(x.shape), len(out))
    in_range(call, 1, "rank", len(out), len(out) + 1)
    for k in range(len(out)):
        in_range(call, 2 + k, "begin", -LIMIT, LIMIT)
    need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    if value is not None:
        need(prod(value.shape) >= 1, "shape of input 1", value.shape, "one element")
        need(value.dtype == call.out.dtype, "dtype of input 1", value.dtype, call.out.dtype)
    need(mode == PAD_MODES["CONSTANT"] or 0 not in x.shape or 0 in out, "shape of input 0", x.shape, "not empty")


def _gather_checks(call: Call) -> None:
    x, index = call.input(0), call.input(1)
    axis = in_range(call, 0, "axis", 0, max(len(x.shape), 1))
    need(len(x.shape) >= 1, "rank of input 0", 0, "at least 1")
    need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    shaped(call.out, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), "shape of the output")


def _gather_elements_checks(call: Call) -> None:
    x, index = call.input(0), call.input(1)
    axis = in_range(call, 0, "axis", 0, max(len(x.shape), 1))
    need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    need(len(x.shape) == len(index.shape) and len(x.shape) >= 1, "rank of input 1", len(index.shape), len(x.shape))
    shaped(call.out, index.shape, "shape of the output")
    fits = all(i <= d for k, (i, d) in enumerate(zip(index.shape, x.shape, strict=True)) if k != axis)
    need(fits, "shape of input 1", index.shape, x.shape)


def _index_checks(call: Call) -> None:
    index = call.input(0)
    count = in_range(call, 0, "number of axes", 1, 9)
    need(index.dtype in (I32, I64), "dtype of input 0", index.dtype, (I32, I64))
    need(call.out.dtype == I64, "dtype of the output", call.out.dtype, I64)
    shaped(index, (*call.out.shape, count), "shape of input 0")
    need(min(call.params[1 : 1 + count]) >= 0, "dimension", min(call.params[1 : 1 + count]), "not negative")
    need(prod(call.params[1 : 1 + count]) < 1 << 62, "number of places", call.params[1 : 1 + count], "64 bits")


def _scatter_checks(call: Call) -> None:
    x, index, updates = call.input(0), call.input(1), call.input(2)
    axis = in_range(call, 0, "axis", 0, max(len(x.shape), 1))
    reduction = in_range(call, 1, "reduction", 0, 5)
    need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    need(x.dtype == updates.dtype == call.out.dtype, "dtype of inputs 0 and 2", (x.dtype, updates.dtype), call.out.dtype)
    need(reduction == 0 or x.dtype in NUMBERS, "dtype of input 0", x.dtype, "a number")
    shaped(call.out, x.shape, "shape of the output")
    need(len(x.shape) == len(index.shape) and len(x.shape) >= 1, "rank of input 1", len(index.shape), len(x.shape))
    shaped(updates, index.shape, "shape of input 2")
    fits = all(i <= d for k, (i, d) in enumerate(zip(index.shape, x.shape, strict=True)) if k != axis)
    need(fits, "shape of input 1", index.shape, x.shape)


def _scatter_axes(node: Node) -> Axes:
    """Each tile looks at all indices along the axis: a waste where they are many."""
    indices, axis = node.inputs[1], node.attrs["axis"]
    assert indices is not None
    return frozenset({axis}) if indices.shape[axis] * 4 > node.output.shape[axis] else NO_AXES


AXIS = integer("axis", "of X that the indices count, not negative")
X, INDICES = Input("x"), Input("indices", "i32 or i64, negative ones wrap")

SPECS = (
    OpSpec(
        name="PAD",
        inputs=(X, Input("value", "one element, of paddings that are constant", True)),
        params=(
            choice("mode", PAD_MODES, "a name of ASPEN_PAD_MODES"),
            counted("begin", "elements in front, per axis; negative ones are left out"),
        ),
        region=_pad_region,
        checks=_pad_checks,
        layout=Layout.SPREADS,
    ),
    OpSpec(
        name="GATHER",
        inputs=(X, INDICES),
        params=(AXIS,),
        region=_gather_region,
        checks=_gather_checks,
        by_value=True,
        cost=Cost(picks=True),
    ),
    OpSpec(
        name="GATHER_ELEMENTS",
        inputs=(X, INDICES),
        params=(AXIS,),
        region=_gather_elements_region,
        checks=_gather_elements_checks,
        layout=Layout.FOLLOWS,
        cost=Cost(element_ns=each(1.9)),
    ),
    OpSpec(
        name="INDEX",
        inputs=(Input("indices", "[…, axes]"),),
        params=(counted("dims", "of a tensor's first axes, of which the output is places"),),
        region=_index_region,
        checks=_index_checks,
        cost=Cost(element_ns=each(2.0)),
    ),
    OpSpec(
        name="SCATTER",
        inputs=(X, INDICES, Input("updates", "as the indices")),
        params=(AXIS, choice("reduction", SCATTER_REDUCTIONS, "what becomes of an element and its updates, by ONNX's names")),
        region=_scatter_region,
        checks=_scatter_checks,
        layout=Layout.FOLLOWS,
        whole_axes=_scatter_axes,
        cost=Cost(element_ns=each(0.4)),
    ),
)
