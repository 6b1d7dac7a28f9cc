"""Padding."""

from __future__ import annotations

from math import prod

from aspen_mp.planner.ops.checks.call import LIMIT, Call, Rule, in_range, need
from aspen_mp.shm.tables import PAD_MODES


def _pad(call: Call) -> None:
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


RULES: dict[str, Rule] = {"PAD": _pad}
