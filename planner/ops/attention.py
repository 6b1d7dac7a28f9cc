"""Attention: scores, softmax and values of queries in one kernel."""

from __future__ import annotations

from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, broadcast
from aspen_mp.planner.ops.call import BOOL, F32, LIMIT, Call, in_range, need, shaped
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.params import choice, integer, real, reserved
from aspen_mp.planner.ops.spec import Cost, Input, OpSpec, Seen, TileModel
from aspen_mp.shm.tables import NUMBERS

GUARDS = {"none": 0, "nan": 1, "unseen": 2}

SCORE_NS = 0.5
"""A score of ATTENTION besides its multiply-adds: mask, maximum, exponential, sum."""
PACK_NS = 0.7
"""An element of K or V that ATTENTION moves to scratch memory."""
FEW_QUERIES, PACK_FEW_NS = NUMBERS["PACK_ROWS"], 0.1
"""For fewer rows V is read in place, and packing is hardly more than moving elements of K."""
KEYS = NUMBERS["KEYS"]
"""Keys that ATTENTION takes at a time."""


def scores(node: Node) -> float:
    """How many scores an ATTENTION node computes: those that causal masking skips are not."""
    k, shape = node.inputs[1], node.output.shape
    assert k is not None
    rows, keys = shape[-2], k.shape[-2]
    if node.attrs["causal"]:
        first = node.attrs["offset"] + 1  # keys of the first row; the last row has rows - 1 more
        seen = (max(min(first, keys), 0) + max(min(first + rows - 1, keys), 0)) / 2
        return float(max(seen, 1.0) * prod(shape[:-1]))
    return float(prod(shape[:-1]) * keys)


def _attention_flops(node: Node) -> float:
    a = node.inputs[0]
    return 2.0 * scores(node) * (a.shape[-1] + node.output.shape[-1]) if a is not None else 0.0


GROUP = 8
"""Rows of ATTENTION that look at the same keys, at most."""


def _attention_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = broadcast(shape, lo, hi)
    if i in (1, 2):
        keys = np.full(len(lo), shape[-2])
        if node.attrs["causal"] and node.attrs["fill"] == -np.inf:
            keys = np.clip(hi[:, -2] + GROUP + node.attrs["offset"], 0, shape[-2])
        out_lo[:, -2], out_hi[:, -2] = 0, keys
    if i in (0, 1, 3):
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    return out_lo, out_hi


def _attention_checks(call: Call) -> None:
    out, q, k, v, mask = call.out.shape, call.input(0), call.input(1), call.input(2), call.optional(3)
    for name, arg in (("the output", call.out), ("input 0", q), ("input 1", k), ("input 2", v)):
        need(arg.dtype == F32, f"dtype of {name}", arg.dtype, F32)
    need(mask is None or mask.dtype in (F32, BOOL), "dtype of input 3", mask and mask.dtype, (F32, BOOL))
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    need(len(q.shape) == len(out) == len(k.shape), "rank of inputs 0 and 1", (len(q.shape), len(k.shape)), len(out))
    depth, keys = q.shape[-1], k.shape[-2]
    shaped(q, (*out[:-1], depth), "shape of input 0")
    shaped(k, (*out[:-2], keys, depth), "shape of input 1")
    shaped(v, (*out[:-2], keys, out[-1]), "shape of input 2")
    shaped(mask, (*out[:-1], keys), "shape of input 3")
    in_range(call, 1, "causal", 0, 2)
    in_range(call, 2, "offset", -LIMIT, LIMIT)
    in_range(call, 5, "guard", 0, len(GUARDS))
    in_range(call, 6, "mask_first", 0, 2)


def _attention_scratch(node: Node) -> int:
    q, k, v = node.inputs[:3]
    assert q is not None
    assert k is not None
    assert v is not None
    keys, values = min(k.shape[-2], KEYS), -(-v.shape[-1] // PANEL) * PANEL
    rows = node.output.size // max(node.output.shape[-1], 1)
    return 4 * (-(-keys // PANEL) * PANEL * q.shape[-1] + keys * values + 8 * (KEYS + 16) + KEYS + rows * (values + 4) + 64)


SPECS = (
    OpSpec(
        name="ATTENTION",
        inputs=(
            Input("q", "[…, M, D]", seen=Seen.MATRICES),
            Input("k", "[…, N, D]", seen=Seen.MATRICES),
            Input("v", "[…, N, Dv]", seen=Seen.MATRICES),
            Input("mask", "[…, M, N]: f32 is added to scores; where bool is not true, they are `fill`", True, Seen.SCORES),
        ),
        params=(
            real("scale", "of the scores Q K^T"),
            integer("causal", "whether query i sees keys up to i + offset alone"),
            integer("offset", "see causal"),
            real("fill", "scores that are not seen"),
            real("softcap", "bounds the scores; 0: nothing does"),
            choice("guard", GUARDS, "which rows become 0: those that come out NaN, or those that see nothing"),
            integer("mask_first", "whether the causal fill replaces what a mask was added to"),
            reserved(1),
        ),
        region=_attention_region,
        checks=_attention_checks,
        batch_rank=3,
        cost=Cost(_attention_flops, tiles=TileModel.ATTENTION, hides=True, scratch=_attention_scratch),
    ),
)
