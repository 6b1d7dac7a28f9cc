"""Calls of kernels: an op as its kernel sees it, and questions that checks of all families ask about it.

A check sees the shapes and dtypes of output and inputs and the i64 parameters, as written down in ``workers/kernels/kernel.h``. It raises
`Misfit`, which names the part that does not fit. Kernels trust a plan in this: a call that passes cannot make one leave its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aspen_mp.shm.tables import DTYPES, UNARY

Shape = tuple[int, ...]
F32, F64, BF16, I8, U8 = DTYPES["F32"], DTYPES["F64"], DTYPES["BF16"], DTYPES["I8"], DTYPES["U8"]
I32, U32, I64, BOOL = DTYPES["I32"], DTYPES["U32"], DTYPES["I64"], DTYPES["BOOL"]
NUMBERS = {DTYPES[name] for name in ("F32", "F64", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")}
LIMIT = 1 << 31
"""Sizes, strides and paddings of windows stay below this, so that their products with dimensions fit 64 bits."""


class Misfit(Exception):
    """(what, value, bound): the part of an op that its kernel does not allow."""


class Arg(NamedTuple):
    """An operand as a kernel sees it."""

    dtype: int
    shape: Shape
    dense: bool
    """Contiguous and row-major."""


class Call(NamedTuple):
    """An op. ``inputs`` has an entry for each input, None where it is absent. ``more``: outputs behind the first."""

    out: Arg
    inputs: Sequence[Arg | None]
    params: Sequence[int]
    more: Sequence[Arg] = ()

    def input(self, i: int) -> Arg:
        x = self.inputs[i] if i < len(self.inputs) else None
        if x is None:
            raise Misfit(f"input {i}", "absent", "required")
        return x

    def optional(self, i: int) -> Arg | None:
        return self.inputs[i] if i < len(self.inputs) else None


Check = Callable[[Call], None]


def need(ok: bool, what: str, value: object, bound: object) -> None:
    """Raises `Misfit` unless `ok`."""
    if not ok:
        raise Misfit(what, value, bound)


def in_range(call: Call, i: int, name: str, lo: int, hi: int) -> int:
    """Parameter `i`, which must be in [lo, hi)."""
    value = call.params[i]
    if not lo <= value < hi:
        raise Misfit(name, value, f"{lo} … {hi - 1}")
    return value


def shaped(arg: Arg | None, shape: Sequence[int], what: str) -> None:
    """An operand that is there must have this shape."""
    if arg is not None and arg.shape != tuple(shape):
        raise Misfit(what, arg.shape, tuple(shape))


def all_of(call: Call, dtype: int) -> None:
    """All operands that are there must have this dtype."""
    for k, arg in enumerate([call.out, *call.more, *call.inputs]):
        if arg is not None and arg.dtype != dtype:
            raise Misfit(f"dtype of operand {k}", arg.dtype, dtype)


def all_f32(call: Call) -> None:
    """All operands that are there must be f32."""
    all_of(call, F32)


def is_f32(arg: Arg | None, what: str) -> None:
    """An operand that is there must be f32."""
    if arg is not None and arg.dtype != F32:
        raise Misfit(f"dtype of {what}", arg.dtype, F32)


def is_float(arg: Arg | None, what: str) -> None:
    """An operand that is there must be f32, or stored as bf16."""
    if arg is not None and arg.dtype not in (F32, BF16):
        raise Misfit(f"dtype of {what}", arg.dtype, (F32, BF16))


def has_function(call: Call, i: int) -> None:
    """Parameter `i` must be the code of a function."""
    in_range(call, i, "activation", 0, len(UNARY))


def ranked(arg: Arg, rank: int, what: str) -> None:
    """An operand must have `rank` axes."""
    if len(arg.shape) != rank:
        raise Misfit(f"rank of {what}", len(arg.shape), rank)


def scaled(call: Call, first: int, channels: int) -> None:
    """Two inputs of a matrix kernel from number `first` on: scale and shift, both or neither."""
    scale, shift = call.optional(first), call.optional(first + 1)
    if scale is None and shift is None:
        return
    need((scale is None) == (shift is None), f"input {first + 1}", shift and "present", f"present if and only if input {first} is")
    for i, arg in ((first, scale), (first + 1, shift)):
        shaped(arg, (channels,), f"shape of input {i}")
        need(arg is None or arg.dense, f"strides of input {i}", "not contiguous", "contiguous")
