"""MOVED and REFRESH: small changes of an activation end between them (`workers/kernels/movement/moved.c`)."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, clipped, whole
from aspen_mp.planner.ops.call import F32, I32, LIMIT, Call, in_range, need, ranked, shaped
from aspen_mp.planner.ops.params import integer
from aspen_mp.planner.ops.spec import Cost, Input, Layout, OpSpec, each, inputs
from aspen_mp.planner.ops.streams.reach import WORDS

MOVED, REFRESH = "MOVED", "REFRESH"
SEEN = 1
"""The input of MOVED that is the output of REFRESH, as the request before left it."""
_MOVED_NS, _REFRESH_NS = 0.15, 0.1
_ROWS, _COLUMNS = 2, 3
"""Axes of an image."""


def _blocks(shape: Shape, side: int) -> Shape:
    return (shape[0], -(-shape[_ROWS] // side), -(-shape[_COLUMNS] // side))


def _axes(node: Node) -> tuple[tuple[int, int, int], ...]:
    """(axis of the images, axis of blocks, elements of a block along it)."""
    side = node.attrs["side"]
    return (0, 0, 1), (_ROWS, 1, side), (_COLUMNS, 2, side)


def _moved_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All channels of the blocks."""
    if i > SEEN:
        return whole(shape, len(lo))
    begin, end = whole(shape, len(lo))
    for axis, block_axis, side in _axes(node):
        begin[:, axis], end[:, axis] = lo[:, block_axis] * side, clipped(hi[:, block_axis] * side, shape[axis])
    return begin, end


def _refresh_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 0:
        return lo, hi
    if i > 1:
        return whole(shape, len(lo))
    begin, end = whole(shape, len(lo))
    for axis, block_axis, side in _axes(node):
        begin[:, block_axis], end[:, block_axis] = lo[:, axis] // side, -(-hi[:, axis] // side)
    return begin, end


def _changes(call: Call, i: int) -> None:
    arg = call.input(i)
    need(arg.dtype == I32 and arg.dense, f"dtype of input {i}", arg.dtype, I32)
    ranked(arg, 2, f"input {i}")
    need(arg.shape[0] > 0 and arg.shape[1] == WORDS, f"shape of input {i}", arg.shape, f"[lines, {WORDS}]")


def _moved_checks(call: Call) -> None:
    side, x = in_range(call, 0, "side", 1, LIMIT), call.input(0)
    ranked(x, 4, "input 0")
    need(x.dtype == F32, "dtype of input 0", x.dtype, F32)
    shaped(call.input(SEEN), x.shape, f"shape of input {SEEN}")
    need(call.input(SEEN).dtype == F32, f"dtype of input {SEEN}", call.input(SEEN).dtype, F32)
    _changes(call, 2)
    need(call.out.dtype == I32 and call.out.dense, "dtype of the output", call.out.dtype, I32)
    shaped(call.out, _blocks(x.shape, side), "shape of the output")
    for k, arg in enumerate(call.more, 1):
        need(arg.dtype == F32 and arg.dense, f"dtype of output {k}", arg.dtype, F32)
        shaped(arg, (*call.out.shape[:2], 1), f"shape of output {k}")


def _refresh_checks(call: Call) -> None:
    side, x = in_range(call, 0, "side", 1, LIMIT), call.input(0)
    ranked(x, 4, "input 0")
    need(x.dtype == F32 and call.out.dtype == F32, "dtype", (x.dtype, call.out.dtype), F32)
    shaped(call.out, x.shape, "shape of the output")
    need(call.input(1).dtype == I32, "dtype of input 1", call.input(1).dtype, I32)
    shaped(call.input(1), _blocks(x.shape, side), "shape of input 1")
    _changes(call, 2)


_SIDE = integer("side", "rows and columns of a block")

SPECS = (
    OpSpec(
        name=MOVED,
        inputs=(
            Input("images", "X[N, C, H, W], f32"),
            Input("seen", "as X: the output of REFRESH before this request"),
            Input("changes", "as REACH's"),
        ),
        params=(_SIDE,),
        outputs=3,
        region=_moved_region,
        checks=_moved_checks,
        partial=True,
        whole_axes=lambda node: frozenset({2}),
        cost=Cost(inputs, each(_MOVED_NS)),
    ),
    OpSpec(
        name=REFRESH,
        inputs=(
            Input("images", "X[N, C, H, W], f32"),
            Input("marks", "[N, rows, columns], i32: the frame in which a block moved last"),
            Input("changes", "as REACH's"),
        ),
        params=(_SIDE,),
        region=_refresh_region,
        checks=_refresh_checks,
        layout=Layout.FOLLOWS,
        cost=Cost(element_ns=each(_REFRESH_NS)),
    ),
)
