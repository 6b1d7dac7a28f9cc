"""Normalisations."""

from __future__ import annotations

from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, broadcast, digits_of, full_axes, strides, whole
from aspen_mp.planner.ops.call import F32, F64, LIMIT, Arg, Call, all_f32, has_function, in_range, need, ranked, shaped
from aspen_mp.planner.ops.params import activation, choice, integer, real
from aspen_mp.planner.ops.reductions import same_shape
from aspen_mp.planner.ops.spec import Cost, Input, Layout, OpSpec, Seen, each, inputs, last_of

NORM_MODES = {"layer": 0, "rms": 1}


def _norm_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i > 0:
        return broadcast(shape, lo, hi)
    return full_axes(tuple(range(node.attrs["axis"], len(shape))), shape, lo, hi)


def _moments_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All channels of the groups, the hull of the blocks' pixels."""
    _, blocks, groups, _ = node.output.shape
    size, pixels = shape[1] // groups, prod(shape[2:])
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    out_lo[:, 1], out_hi[:, 1] = lo[:, 2] * size, hi[:, 2] * size
    first, last = lo[:, 1] * pixels // blocks, hi[:, 1] * pixels // blocks - 1
    for axis, (a, b) in enumerate(digits_of(first, last, strides(shape[2:])), 2):
        out_lo[:, axis], out_hi[:, axis] = a, b + 1
    return out_lo, out_hi


def _standardize_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i in (0, 4):
        return lo.copy(), hi.copy()
    if i > 1:
        return broadcast(shape, lo[:, :2], hi[:, :2])
    size = node.output.shape[1] // shape[2]
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    out_lo[:, 2], out_hi[:, 2] = lo[:, 1] // size, (hi[:, 1] - 1) // size + 1
    return out_lo, out_hi


def _lrn_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    size = node.attrs["size"]
    lo, hi = lo.copy(), hi.copy()
    lo[:, 1] = np.maximum(lo[:, 1] - (size - 1) // 2, 0)
    hi[:, 1] = np.minimum(hi[:, 1] + size // 2, shape[1])
    return lo, hi


def _norm_checks(call: Call) -> None:
    all_f32(call)
    same_shape(call)
    in_range(call, 1, "mode", 0, 2)
    shaped(call.optional(1), call.out.shape, "shape of input 1")
    shaped(call.optional(2), call.out.shape, "shape of input 2")


def _blocks_and_groups(moments: Arg, x: Arg, what: str) -> None:
    """Moments [N, blocks, groups, 2] of x [N, C, spatial axes]: no block is empty."""
    need(moments.dtype == F64, f"dtype of {what}", moments.dtype, F64)
    ranked(moments, 4, what)
    need(len(x.shape) >= 3, "rank of input 0", len(x.shape), "at least 3")
    _, blocks, groups, _ = moments.shape
    shaped(moments, (x.shape[0], blocks, groups, 2), f"shape of {what}")
    need(1 <= blocks <= prod(x.shape[2:]), f"blocks of {what}", blocks, f"1 … {prod(x.shape[2:])}")
    need(blocks * prod(x.shape[2:]) < 1 << 62, f"blocks of {what}", blocks, "64 bits")
    need(groups >= 1 and x.shape[1] % groups == 0, f"groups of {what}", groups, f"a divisor of {x.shape[1]}")


def _moments_checks(call: Call) -> None:
    x = call.input(0)
    need(x.dtype == F32, "dtype of input 0", x.dtype, F32)
    _blocks_and_groups(call.out, x, "the output")


def _standardize_checks(call: Call) -> None:
    out, x, moments = call.out, call.input(0), call.input(1)
    for what, arg in (
        ("the output", out),
        ("input 0", x),
        ("input 2", call.optional(2)),
        ("input 3", call.optional(3)),
        ("input 4", call.optional(4)),
    ):
        need(arg is None or arg.dtype == F32, f"dtype of {what}", arg and arg.dtype, F32)
    shaped(x, out.shape, "shape of input 0")
    shaped(call.optional(4), out.shape, "shape of input 4")
    _blocks_and_groups(moments, x, "input 1")
    for i in (2, 3):
        arg = call.optional(i)
        need(arg is None or arg.shape in ((1, out.shape[1]), out.shape[:2]), f"shape of input {i}", arg and arg.shape, out.shape[:2])
    has_function(call, 1)


def _lrn_checks(call: Call) -> None:
    all_f32(call)
    shaped(call.input(0), call.out.shape, "shape of input 0")
    need(len(call.out.shape) >= 2, "rank of the output", len(call.out.shape), "at least 2")
    in_range(call, 0, "size", 1, LIMIT)


def _moments_scratch(node: Node) -> int:
    x = node.inputs[0]
    assert x is not None
    return 32 * (-(-x.shape[1] // 16) * 16 + 1)


SCALE, SHIFT = Input("scale", "[1 or N, C]", True), Input("shift", "[1 or N, C]", True)

SPECS = (
    OpSpec(
        name="NORM",
        inputs=(Input("x"), Input("scale", "", True, Seen.OUTPUT), Input("bias", "", True, Seen.OUTPUT)),
        params=(
            integer("axis", "from which on all are normalised together"),
            choice("mode", NORM_MODES, "by mean and variance, or by the root of the mean square"),
            real("eps", "added to the variance"),
        ),
        region=_norm_region,
        checks=_norm_checks,
        layout=Layout.FOLLOWS,
        whole_axes=lambda node: frozenset(range(node.attrs["axis"], len(node.output.shape))),
        batch_rank=1,
        cost=Cost(element_ns=each(0.2)),
    ),
    OpSpec(
        name="MOMENTS",
        inputs=(Input("x", "[N, C, spatial axes]; the output is [N, blocks of pixels, groups of channels, mean and squared deviations]"),),
        region=_moments_region,
        checks=_moments_checks,
        whole_axes=last_of(2, 3),  # pixels are cut: channels lie side by side
        batch_rank=1,
        cost=Cost(inputs, each(0.06), scratch=_moments_scratch),
    ),
    OpSpec(
        name="STANDARDIZE",
        inputs=(
            Input("x", "[N, C, spatial axes]"),
            Input("moments", "MOMENTS of X"),
            SCALE,
            SHIFT,
            Input("residual", "as the output", True),
        ),
        params=(real("eps", "added to the variance"), activation("act", "behind scale, shift and residual")),
        region=_standardize_region,
        checks=_standardize_checks,
        layout=Layout.SPREADS,
        batch_rank=1,
        cost=Cost(element_ns=each(0.05), scratch=_moments_scratch),
    ),
    OpSpec(
        name="LRN",
        inputs=(Input("x", "[N, C, …]"),),
        params=(integer("size", "channels that count"), real("alpha", "ONNX's"), real("beta", "ONNX's"), real("bias", "ONNX's")),
        region=_lrn_region,
        checks=_lrn_checks,
        layout=Layout.SPREADS,
        whole_axes=last_of(1),
        batch_rank=1,
        cost=Cost(element_ns=each(1.0)),
    ),
)
