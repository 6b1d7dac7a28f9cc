"""Kernels along axes: sums, norms, the largest."""

from __future__ import annotations

from math import prod

from aspen_mp.planner.ops.checks.call import (
    F32,
    F64,
    I64,
    LIMIT,
    NUMBERS,
    Arg,
    Call,
    Rule,
    activation,
    all_f32,
    all_of,
    in_range,
    need,
    ranked,
    shaped,
)
from aspen_mp.shm.tables import DTYPES, REDUCE


def _along(axis_param: int) -> Rule:
    def rule(call: Call) -> None:
        shaped(call.input(0), call.out.shape, "shape of input 0")
        in_range(call, axis_param, "axis", 0, max(len(call.out.shape), 1))

    return rule


def _reduce(call: Call) -> None:
    out, x = call.out.shape, call.input(0).shape
    in_range(call, 0, "opcode", 0, len(REDUCE))
    mask = in_range(call, 1, "axes", 0, 1 << len(out))
    shaped(call.out, [1 if mask >> k & 1 else d for k, d in enumerate(x)], "shape of the output")
    need(len(x) == len(out), "rank of input 0", len(x), len(out))


def _argreduce(call: Call) -> None:
    x = call.input(0).shape
    axis = in_range(call, 1, "axis", 0, max(len(x), 1))
    in_range(call, 0, "mode", 0, 2)
    need(call.out.dtype == I64, "dtype of the output", call.out.dtype, I64)
    shaped(call.out, [1 if k == axis else d for k, d in enumerate(x)], "shape of the output")


def _softmax(call: Call) -> None:
    all_of(call, F64 if call.out.dtype == F64 else F32)
    _along(0)(call)


def _norm(call: Call) -> None:
    all_f32(call)
    _along(0)(call)
    in_range(call, 1, "mode", 0, 2)
    shaped(call.optional(1), call.out.shape, "shape of input 1")
    shaped(call.optional(2), call.out.shape, "shape of input 2")


def _minmax(call: Call) -> None:
    all_f32(call)
    x = call.input(0)
    axis = in_range(call, 0, "axis", 0, len(x.shape))
    ranked(call.out, 2, "the output")
    blocks = call.out.shape[0]
    shaped(call.out, (blocks, 2), "shape of the output")
    need(1 <= blocks <= x.shape[axis], "blocks of the output", blocks, f"1 … {x.shape[axis]}")
    need(blocks * x.shape[axis] < 1 << 62, "blocks of the output", blocks, "64 bits")


def _qparams(call: Call) -> None:
    x, zero = call.input(0), call.more[0] if call.more else None
    need(zero is not None and zero.dtype == DTYPES["U8"], "dtype of the second output", zero and zero.dtype, DTYPES["U8"])
    for what, arg in (("the output", call.out), ("input 0", x)):
        need(arg.dtype == F32, f"dtype of {what}", arg.dtype, F32)
    for what, one in (("the output", call.out), ("the second output", zero)):
        need(one is not None and prod(one.shape) == 1, f"shape of {what}", one and one.shape, "one element")
    ranked(x, 2, "input 0")
    shaped(x, (x.shape[0], 2), "shape of input 0")


def _topk(call: Call) -> None:
    x, out = call.input(0), call.out
    axis = in_range(call, 0, "axis", 0, max(len(out.shape), 1))
    need(len(x.shape) == len(out.shape) and len(out.shape) >= 1, "rank of input 0", len(x.shape), len(out.shape))
    need(x.dtype in NUMBERS or x.dtype in (DTYPES["F16"], DTYPES["BF16"]), "dtype of input 0", x.dtype, "a number")
    need(out.dtype == I64, "dtype of the output", out.dtype, I64)
    need(out.shape[axis] <= x.shape[axis], "length of the output", out.shape[axis], x.shape[axis])
    shaped(x, (*out.shape[:axis], x.shape[axis], *out.shape[axis + 1 :]), "shape of input 0")


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


def _moments(call: Call) -> None:
    x = call.input(0)
    need(x.dtype == F32, "dtype of input 0", x.dtype, F32)
    _blocks_and_groups(call.out, x, "the output")


def _standardize(call: Call) -> None:
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
    activation(call, 1)


def _lrn(call: Call) -> None:
    all_f32(call)
    shaped(call.input(0), call.out.shape, "shape of input 0")
    need(len(call.out.shape) >= 2, "rank of the output", len(call.out.shape), "at least 2")
    in_range(call, 0, "size", 1, LIMIT)


RULES: dict[str, Rule] = {
    "MINMAX": _minmax,
    "QPARAMS": _qparams,
    "REDUCE": _reduce,
    "ARGREDUCE": _argreduce,
    "SOFTMAX": _softmax,
    "NORM": _norm,
    "MOMENTS": _moments,
    "STANDARDIZE": _standardize,
    "LRN": _lrn,
    "CUMSUM": _along(0),
    "TOPK": _topk,
}
