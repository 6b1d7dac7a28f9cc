"""FlatBuffers, as far as files of adapters need them: tables, strings and vectors, little-endian.

A table begins with the distance back to its vtable, which says how far into the table each field lies (0: it has the default). Strings,
vectors and tables in a table are distances forward. Reading checks every distance: a file may hold anything.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_ID: Final = slice(4, 8)
"""Where a file says what it is."""


class BrokenBuffer(ValueError):
    """Bytes that are not what they say."""


def identifier(data: memoryview) -> bytes:
    """Return the four letters that say what the file is."""
    return bytes(data[_ID])


class Table:
    """A table that is read."""

    __slots__ = ("_at", "_data", "_fields")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        vtable = at - self._number(_I32, at)
        size = self._number(_U16, vtable)
        if size < 4 or size % 2:
            raise BrokenBuffer(f"a vtable of {size} bytes")
        self._fields = [self._number(_U16, vtable + k) for k in range(4, size, 2)]

    @classmethod
    def root(cls, data: memoryview) -> Table:
        """Return the outermost table."""
        if len(data) < _ID.stop:
            raise BrokenBuffer(f"a file of {len(data)} bytes")
        return cls(data, _U32.unpack_from(data)[0])

    def _number(self, form: struct.Struct, at: int) -> int:
        if not 0 <= at <= len(self._data) - form.size:
            raise BrokenBuffer(f"position {at} of a file of {len(self._data)} bytes")
        number: int = form.unpack_from(self._data, at)[0]
        return number

    def _place(self, field: int) -> int | None:
        """Where a field lies. None: it has the default."""
        offset = self._fields[field] if field < len(self._fields) else 0
        return self._at + offset if offset else None

    def number(self, field: int) -> int:
        """Return a field of 32 bits; 0 is the default."""
        at = self._place(field)
        return 0 if at is None else self._number(_I32, at)

    def vector(self, field: int, size: int) -> memoryview:
        """Return the bytes of a vector whose elements have `size` bytes; strings are vectors of bytes."""
        at = self._place(field)
        if at is None:
            return self._data[:0]
        begin = at + self._number(_U32, at)
        end = begin + 4 + size * self._number(_U32, begin)
        if end > len(self._data):
            raise BrokenBuffer(f"a vector up to {end} in a file of {len(self._data)} bytes")
        return self._data[begin + 4 : end]

    def tables(self, field: int) -> list[Table]:
        """Return the tables of a vector."""
        at = self._place(field)
        if at is None:
            return []
        begin = at + self._number(_U32, at) + 4
        places = range(begin, begin + len(self.vector(field, 4)), 4)
        return [Table(self._data, place + self._number(_U32, place)) for place in places]


class Writer:
    """A file that is written from its beginning: what lies behind a distance comes later."""

    def __init__(self, letters: bytes) -> None:
        self.data = bytearray(bytes(4) + letters)

    def here(self, at: int) -> None:
        """The distance at `at` leads to what comes next."""
        _U32.pack_into(self.data, at, len(self.data) - at)

    def _pad(self, before: int, alignment: int) -> None:
        """Aligns the bytes behind the next `before` bytes."""
        self.data += bytes(-(len(self.data) + before) % alignment)

    def table(self, at: int, values: Sequence[int | None]) -> list[int]:
        """Writes a table of 32-bit fields, to which the distance at `at` leads. Returns their places. None: a distance that comes later."""
        size = 4 + 2 * len(values)
        self._pad(size, 4)
        self.data += struct.pack(f"<{2 + len(values)}H", size, 4 + 4 * len(values), *range(4, 4 + 4 * len(values), 4))
        self.here(at)
        places = [len(self.data) + 4 + 4 * k for k in range(len(values))]
        self.data += struct.pack(f"<{1 + len(values)}i", size, *(value or 0 for value in values))
        return places

    def vector(self, at: int, count: int, content: bytes | memoryview, alignment: int = 4) -> int:
        """Writes a vector of `count` elements, to which the distance at `at` leads. Returns where its elements begin."""
        self._pad(4, max(alignment, 4))
        self.here(at)
        self.data += _U32.pack(count)
        begin = len(self.data)
        self.data += content
        return begin

    def string(self, at: int, text: str) -> None:
        """Writes a string, which ends in a byte of 0."""
        encoded = text.encode()
        self.vector(at, len(encoded), encoded + b"\0")
