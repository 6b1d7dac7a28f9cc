"""Kernels of elements: each stands for itself."""

from __future__ import annotations

from aspen_mp.planner.ops.checks.call import F32, I32, Call, Rule, activation, in_range, need, shaped
from aspen_mp.shm.tables import BINARY, DTYPES, TERNARY, UNARY

_LEVELS = {DTYPES[name] for name in ("I8", "U8", "I16", "U16")}


def _elementwise(n: int, opcodes: int | None) -> Rule:
    def rule(call: Call) -> None:
        if opcodes is not None:
            in_range(call, 0, "opcode", 0, opcodes)
        for i in range(n):
            shaped(call.input(i), call.out.shape, f"shape of input {i}")

    return rule


def _binary(call: Call) -> None:
    _elementwise(2, len(BINARY))(call)
    activation(call, 1)


def _ternary(call: Call) -> None:
    _elementwise(3, len(TERNARY))(call)
    activation(call, 1)


def _same_dtype(call: Call) -> None:
    _elementwise(1, None)(call)
    need(call.input(0).dtype == call.out.dtype, "dtype of input 0", call.input(0).dtype, call.out.dtype)


def _levels_of(call: Call, stored: int) -> None:
    """Scale and zero point beside whole numbers of this dtype."""
    for i in range(2):
        shaped(call.input(i), call.out.shape, f"shape of input {i}")
    zero = call.optional(2)
    shaped(zero, call.out.shape, "shape of input 2")
    need(call.input(1).dtype == F32, "dtype of input 1", call.input(1).dtype, F32)
    need(zero is None or zero.dtype == stored, "dtype of input 2", zero and zero.dtype, stored)


def _quantize(call: Call) -> None:
    in_range(call, 0, "times", 0, 2)
    need(call.input(0).dtype in (F32, I32), "dtype of input 0", call.input(0).dtype, (F32, I32))
    need(call.out.dtype in _LEVELS, "dtype of the output", call.out.dtype, sorted(_LEVELS))
    _levels_of(call, call.out.dtype)


def _dequantize(call: Call) -> None:
    x = call.input(0)
    need(call.out.dtype == F32, "dtype of the output", call.out.dtype, F32)
    need(x.dtype in _LEVELS | {I32}, "dtype of input 0", x.dtype, sorted(_LEVELS | {I32}))
    _levels_of(call, x.dtype)


RULES: dict[str, Rule] = {
    "UNARY": _elementwise(1, len(UNARY)),
    "BINARY": _binary,
    "TERNARY": _ternary,
    "CAST": _elementwise(1, None),
    "COPY": _same_dtype,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
}
