"""Attributes of kernel-level nodes → the i64 parameters of a kernel call.

An `OpSpec` lists those of its kernel, and their meaning; ``workers/kernels/kernel.h`` gives their meaning to the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aspen_mp.shm.tables import UNARY

Attrs = Mapping[str, Any]
Act = tuple[str, float, float]
"""A scalar function as an attribute: a name of ASPEN_UNARY, and the function's two parameters."""
NO_ACT: Act = ("IDENTITY", 0.0, 0.0)


def bits(value: float) -> int:
    """The bits of a double as a signed 64-bit integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


@dataclass(frozen=True, slots=True)
class Param:
    """An attribute of a kernel-level node, and the parameters that a kernel has of it: `words` of them, made by `of` from all attributes.
    An attribute without words is for the planner alone."""

    name: str
    about: str
    words: int
    of: Callable[[Attrs], Sequence[int]]


def _value(attrs: Attrs, name: str, default: Any) -> Any:
    return attrs[name] if default is None else attrs.get(name, default)


def integer(name: str, about: str, default: int | None = None) -> Param:
    """A whole number, or a flag; `default` where the attribute may be absent."""
    return Param(name, about, 1, lambda a: (int(_value(a, name, default)),))


def integers(name: str, words: int, about: str, default: Sequence[int] | None = None) -> Param:
    """A parameter of `words` whole numbers."""
    return Param(name, about, words, lambda a: _value(a, name, default))


def counted(name: str, about: str) -> Param:
    """How many whole numbers there are, and eight of them."""
    return Param(name, about, 9, lambda a: (len(a[name]), *a[name], *[0] * (8 - len(a[name]))))


def real(name: str, about: str, default: float | None = None) -> Param:
    """A number as the bits of a double."""
    return Param(name, about, 1, lambda a: (bits(_value(a, name, default)),))


def choice(name: str, table: Mapping[str, int], about: str, default: str | None = None) -> Param:
    """One of the names of a table, as its code there."""
    return Param(name, about, 1, lambda a: (table[_value(a, name, default)],))


def activation(name: str, about: str, default: Act | None = None) -> Param:
    """A scalar function with its two parameters (`Act`)."""

    def of(attrs: Attrs) -> Sequence[int]:
        function, a, b = _value(attrs, name, default)
        return UNARY[function], bits(a), bits(b)

    return Param(name, about, 3, of)


def reserved(words: int) -> Param:
    """Parameters that are zero."""
    return Param("", "reserved", words, lambda a: (0,) * words)


def noted(name: str, about: str) -> Param:
    """An attribute that kernels do not see."""
    return Param(name, about, 0, lambda a: ())
