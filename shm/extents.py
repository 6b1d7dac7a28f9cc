"""Extents of a request: the word that says them, and the values that follow from them (``shm/protocol/layout.h``). Light."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aspen_mp.shm.bindings import _tables

MOST_EXTENTS: Final = 3
FLOOR: Final = _tables.VALUE_KINDS["FLOOR"]
PRODUCT: Final = _tables.VALUE_KINDS["PRODUCT"]
SUM: Final = _tables.VALUE_KINDS["SUM"]

Row = tuple[int, int, int, int, int, int]
"""A value: its kind, `u`, `v`, `a`, `b`, `c`, as `struct aspen_value` has them."""


def bits(n: int) -> int:
    """The bits of the word for each of `n` extents."""
    return {0: 32, 1: 32, 2: 16}.get(n, 11)


def room(n: int) -> list[int]:
    """The largest value of each of `n` extents."""
    return [(1 << min(bits(n), 31, 32 - bits(n) * k)) - 1 for k in range(n)]


def word(extents: Sequence[int]) -> int:
    """The word of extents that have room in it."""
    return sum(extent << bits(len(extents)) * k for k, extent in enumerate(extents))


def extents_of(found: int, n: int) -> tuple[int, ...]:
    """The extents that a word says."""
    return tuple(found >> bits(n) * k & (1 << bits(n)) - 1 for k in range(n))


def values_at(rows: Sequence[Row], extents: Sequence[Any]) -> list[Any]:
    """All values, the extents first: integers, or arrays of them if each extent is an array."""
    found = list(extents)
    for kind, u, v, a, b, c in rows:
        if kind == FLOOR:
            found.append((a * found[u] + b) // c)
        elif kind == PRODUCT:
            found.append(found[u] * found[v])
        else:
            found.append(a * found[u] + b * found[v])
    return found
