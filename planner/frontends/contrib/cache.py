"""Caches of keys and values that GroupQueryAttention keeps quantised: signed bytes, or two numbers of four bits in each byte. A scale goes
with them, one for all or one for each head and column.

Inside, numbers of four bits are bytes like the others: opened where they come in, closed where they go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from aspen_mp.planner.frontends.contrib.body import Body

_SCALES: Final = {"k": 12, "v": 13}
_MIDDLE: Final = 8
"""The number that is added to a number of four bits, so that it has no sign."""


@dataclass(frozen=True, slots=True)
class Held:
    """How keys or values are held: `bits` each, `scale` a value's name, `count` heads; `own`: each head and column has a scale."""

    bits: int
    scale: str
    count: int
    own: bool


def held(b: Body, what: str, count: int) -> Held | None:
    """How the keys ("k") or values ("v") are held; None where they are real."""
    kind = b.get(f"{what}_quant_type", b"NONE").decode()
    if kind == "NONE":
        return None
    bits, scale = int(b.get("kv_cache_bit_width", 0)), b.name(_SCALES[what])
    if kind not in {"PER_TENSOR", "PER_CHANNEL"} or bits not in {4, 8}:
        raise b.unknown(f"has a quantised cache of the kind {kind!r} with {bits} bits")
    if not scale:
        raise b.invalid(f"has a quantised cache without the input {what}_scale")
    return Held(bits, scale, count, kind == "PER_CHANNEL")


def rounded(b: Body, h: Held, x: str) -> str:
    """Real keys or values [batch, tokens, heads · d] as bytes."""
    scale = b.emit("Reshape", h.scale, b.ints(1, 1, -1)) if h.own else h.scale
    levels = b.emit("Round", b.emit("Div", b.cast(x, np.float32), scale))
    most = 1 << (h.bits - 1)
    limits = (b.constant(np.float32(v)) for v in (-most, most - 1))
    return b.cast(b.emit("Clip", levels, *limits), np.int8)


def real(b: Body, h: Held, x: str) -> str:
    """Bytes [batch, heads, places, d] as keys or values of the type of the queries."""
    scale = b.emit("Reshape", h.scale, b.ints(1, h.count, 1, -1)) if h.own else h.scale
    return b.cast(b.emit("Mul", b.cast(x, np.float32), scale), b.tensor(0).dtype)


def opened(b: Body, h: Held, past: str) -> str:
    """The content of a cache as bytes; the first of two numbers of four bits is in the lower ones."""
    if h.bits == 8 or not past:
        return past
    whole = b.cast(past, np.int32)
    high = b.emit("Div", whole, b.constant(np.int32(16)))
    low = b.emit("Sub", whole, b.emit("Mul", high, b.constant(np.int32(16))))
    pairs = b.emit("Concat", b.emit("Unsqueeze", low, b.ints(4)), b.emit("Unsqueeze", high, b.ints(4)), axis=4)
    numbers = b.emit("Sub", b.emit("Reshape", pairs, b.ints(0, 0, 0, -1)), b.constant(np.int32(_MIDDLE)))
    return b.cast(numbers, np.int8)


def closed(b: Body, h: Held, x: str) -> str:
    """Bytes [batch, heads, places, d] as the cache stores them."""
    if h.bits == 8:
        return x
    pairs = b.emit("Reshape", b.emit("Add", b.cast(x, np.int32), b.constant(np.int32(_MIDDLE))), b.ints(0, 0, 0, -1, 2))
    low, high = (b.emit("Gather", pairs, b.constant(np.int64(k)), axis=4) for k in (0, 1))
    return b.cast(b.emit("Add", low, b.emit("Mul", high, b.constant(np.int32(16)))), np.uint8)
