"""Kernels that read or write where other operands say."""

from __future__ import annotations

from math import prod

from aspen_mp.planner.ops.checks.call import I32, I64, NUMBERS, Call, Rule, in_range, need, shaped


def _gather(call: Call) -> None:
    x, index = call.input(0), call.input(1)
    axis = in_range(call, 0, "axis", 0, max(len(x.shape), 1))
    need(len(x.shape) >= 1, "rank of input 0", 0, "at least 1")
    need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    shaped(call.out, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), "shape of the output")


def _gather_elements(call: Call) -> None:
    x, index = call.input(0), call.input(1)
    axis = in_range(call, 0, "axis", 0, max(len(x.shape), 1))
    need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    need(len(x.shape) == len(index.shape) and len(x.shape) >= 1, "rank of input 1", len(index.shape), len(x.shape))
    shaped(call.out, index.shape, "shape of the output")
    fits = all(i <= d for k, (i, d) in enumerate(zip(index.shape, x.shape, strict=True)) if k != axis)
    need(fits, "shape of input 1", index.shape, x.shape)


def _index(call: Call) -> None:
    index = call.input(0)
    count = in_range(call, 0, "number of axes", 1, 9)
    need(index.dtype in (I32, I64), "dtype of input 0", index.dtype, (I32, I64))
    need(call.out.dtype == I64, "dtype of the output", call.out.dtype, I64)
    shaped(index, (*call.out.shape, count), "shape of input 0")
    need(min(call.params[1 : 1 + count]) >= 0, "dimension", min(call.params[1 : 1 + count]), "not negative")
    need(prod(call.params[1 : 1 + count]) < 1 << 62, "number of places", call.params[1 : 1 + count], "64 bits")


def _scatter(call: Call) -> None:
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


RULES: dict[str, Rule] = {
    "GATHER": _gather,
    "GATHER_ELEMENTS": _gather_elements,
    "INDEX": _index,
    "SCATTER": _scatter,
}
