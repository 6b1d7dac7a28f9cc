"""Kernels along axes: sums, the largest, running sums."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, full_axes, whole
from aspen_mp.planner.ops.call import F32, F64, I64, NUMBERS, Call, all_f32, all_of, in_range, need, ranked, shaped
from aspen_mp.planner.ops.elementwise import all_of_it
from aspen_mp.planner.ops.params import Param, choice, integer, reserved
from aspen_mp.planner.ops.spec import PLAIN_NS, Cost, Input, Layout, OpSpec, along, each, inputs, last_of
from aspen_mp.shm.tables import DTYPES, REDUCE

_REDUCTION_NS = {"LOG_SUM": 0.1, "LOG_SUM_EXP": 0.28}
"""An element of a reduction that takes more than a few instructions."""
RUNNING_NS, RUNNING_ROWS = 2.6, 8
"""A term of a running sum, and how many of them CUMSUM computes beside each other where they do not lie side by side."""


def _running_ns(node: Node, sums: float) -> float:
    """Sums along an axis wait for each other: a few rows are as slow as one."""
    rows = prod(node.output.shape) / max(node.output.shape[node.attrs["axis"]], 1)
    return float(sums * max(RUNNING_NS / min(max(rows, 1.0), RUNNING_ROWS), PLAIN_NS))


def _reduce_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return full_axes(node.attrs["axes"], shape, lo, hi)


def whole_axis(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The box, whole along the axis."""
    return full_axes((node.attrs["axis"],), shape, lo, hi)


def _cumsum_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    axis, exclusive = node.attrs["axis"], int(node.attrs["exclusive"])
    lo, hi = lo.copy(), hi.copy()
    if node.attrs["reverse"]:
        lo[:, axis], hi[:, axis] = lo[:, axis] + exclusive, shape[axis]
    else:
        lo[:, axis], hi[:, axis] = 0, hi[:, axis] - exclusive
    return lo, hi


def _minmax_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The blocks' indices along the axis."""
    axis, blocks = node.attrs["axis"], node.output.shape[0]
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, axis], out_hi[:, axis] = lo[:, 0] * shape[axis] // blocks, hi[:, 0] * shape[axis] // blocks
    return out_lo, out_hi


def same_shape(call: Call) -> None:
    """The output has the shape of the input, of which the first parameter is an axis."""
    shaped(call.input(0), call.out.shape, "shape of input 0")
    in_range(call, 0, "axis", 0, max(len(call.out.shape), 1))


def _reduce_checks(call: Call) -> None:
    out, x = call.out.shape, call.input(0).shape
    in_range(call, 0, "opcode", 0, len(REDUCE))
    mask = in_range(call, 1, "axes", 0, 1 << len(out))
    shaped(call.out, [1 if mask >> k & 1 else d for k, d in enumerate(x)], "shape of the output")
    need(len(x) == len(out), "rank of input 0", len(x), len(out))


def _argreduce_checks(call: Call) -> None:
    x = call.input(0).shape
    axis = in_range(call, 1, "axis", 0, max(len(x), 1))
    in_range(call, 0, "mode", 0, 2)
    need(call.out.dtype == I64, "dtype of the output", call.out.dtype, I64)
    shaped(call.out, [1 if k == axis else d for k, d in enumerate(x)], "shape of the output")


def _softmax_checks(call: Call) -> None:
    all_of(call, F64 if call.out.dtype == F64 else F32)
    same_shape(call)


def _topk_checks(call: Call) -> None:
    x, out = call.input(0), call.out
    axis = in_range(call, 0, "axis", 0, max(len(out.shape), 1))
    need(len(x.shape) == len(out.shape) and len(out.shape) >= 1, "rank of input 0", len(x.shape), len(out.shape))
    need(x.dtype in NUMBERS or x.dtype in (DTYPES["F16"], DTYPES["BF16"]), "dtype of input 0", x.dtype, "a number")
    need(out.dtype == I64, "dtype of the output", out.dtype, I64)
    need(out.shape[axis] <= x.shape[axis], "length of the output", out.shape[axis], x.shape[axis])
    shaped(x, (*out.shape[:axis], x.shape[axis], *out.shape[axis + 1 :]), "shape of input 0")


def _minmax_checks(call: Call) -> None:
    all_f32(call)
    x = call.input(0)
    axis = in_range(call, 0, "axis", 0, len(x.shape))
    ranked(call.out, 2, "the output")
    blocks = call.out.shape[0]
    shaped(call.out, (blocks, 2), "shape of the output")
    need(blocks >= 1, "blocks of the output", blocks, "1 or more")
    need(blocks * x.shape[axis] < 1 << 62, "blocks of the output", blocks, "64 bits")


def _qparams_checks(call: Call) -> None:
    x, zero = call.input(0), call.more[0] if call.more else None
    need(zero is not None and zero.dtype == DTYPES["U8"], "dtype of the second output", zero and zero.dtype, DTYPES["U8"])
    for what, arg in (("the output", call.out), ("input 0", x)):
        need(arg.dtype == F32, f"dtype of {what}", arg.dtype, F32)
    for what, one in (("the output", call.out), ("the second output", zero)):
        need(one is not None and prod(one.shape) == 1, f"shape of {what}", one and one.shape, "one element")
    ranked(x, 2, "input 0")
    shaped(x, (x.shape[0], 2), "shape of input 0")


def _reduce_ns(node: Node) -> float:
    return max(PLAIN_NS, _REDUCTION_NS.get(node.attrs["opcode"], 0.0))


X = Input("x")
AXIS = integer("axis", "along which it computes, not negative")

SPECS = (
    OpSpec(
        name="REDUCE",
        inputs=(X,),
        params=(
            choice("opcode", REDUCE, "a name of ASPEN_REDUCE"),
            Param("axes", "that become one element long, not negative", 1, lambda a: (sum(1 << axis for axis in a["axes"]),)),
        ),
        region=_reduce_region,
        checks=_reduce_checks,
        layout=Layout.SPREADS,
        batch_rank=1,
        cost=Cost(inputs, _reduce_ns),
    ),
    OpSpec(
        name="ARGREDUCE",
        inputs=(X,),
        params=(
            choice("mode", {"max": 0, "min": 1}, "which element it looks for"),
            AXIS,
            integer("select_last", "whether of equal elements the last counts"),
            reserved(1),
        ),
        region=whole_axis,
        checks=_argreduce_checks,
        layout=Layout.FOLLOWS,
        cost=Cost(inputs, each(1.9)),
    ),
    OpSpec(
        name="SOFTMAX",
        inputs=(X,),
        params=(AXIS, integer("log", "whether the result is the logarithm")),
        region=whole_axis,
        checks=_softmax_checks,
        layout=Layout.FOLLOWS,
        whole_axes=along,
        batch_rank=1,
        cost=Cost(element_ns=each(0.34)),
    ),
    OpSpec(
        name="CUMSUM",
        inputs=(X,),
        params=(
            AXIS,
            integer("exclusive", "whether a sum is of the elements before its own"),
            integer("reverse", "whether it begins at the end"),
        ),
        region=_cumsum_region,
        checks=same_shape,
        layout=Layout.FOLLOWS,
        whole_axes=along,
        run_lines=8,
        cost=Cost(ns=_running_ns),
    ),
    OpSpec(
        name="TOPK",
        inputs=(X,),
        params=(AXIS, integer("largest", "whether the greatest elements are best; the output is where they are")),
        region=whole_axis,
        checks=_topk_checks,
        whole_axes=along,
        cost=Cost(inputs, each(1.2), scratch=lambda node: 16 * int(node.output.shape[node.attrs["axis"]])),
    ),
    OpSpec(
        name="MINMAX",
        inputs=(X,),
        params=(replace(AXIS, about="cut into the blocks of which the output [blocks, 2] has least and greatest"),),
        region=_minmax_region,
        checks=_minmax_checks,
        whole_axes=last_of(1),
        cost=Cost(inputs, each(0.03)),
    ),
    OpSpec(
        name="QPARAMS",
        inputs=(Input("extremes", "MINMAX of a tensor; the outputs are scale and zero point, of one element each"),),
        outputs=2,
        region=all_of_it,
        checks=_qparams_checks,
        cost=Cost(inputs),
    ),
)
