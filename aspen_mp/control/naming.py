"""What a tile is called, read from its plan segment with few small reads and without numpy: for `status`, which may be asked often."""

from __future__ import annotations

import os
from typing import Final

from aspen_mp.shm import _tables

_PLACES: Final = {struct: {name: (offset, nbytes) for name, _, offset, nbytes, _ in rows} for struct, rows in _tables.FIELDS.items()}
_SIZES: Final = {struct: max(offset + nbytes for offset, nbytes in places.values()) for struct, places in _PLACES.items()}


def _field(fd: int, struct: str, name: str, base: int = 0) -> int:
    offset, nbytes = _PLACES[struct][name]
    return int.from_bytes(os.pread(fd, nbytes, base + offset), "little")


def op_of(fd: int, tile: int) -> str:
    """ "node name (op type)" of the op that a tile of the plan behind `fd` belongs to; empty where there is no such tile."""
    if not 0 <= tile < _field(fd, "plan_header", "n_tiles"):
        return ""
    number = _field(fd, "tile", "op", _field(fd, "plan_header", "tiles") + tile * _SIZES["tile"])
    op = _field(fd, "plan_header", "ops") + number * _SIZES["op"]
    name = _field(fd, "plan_header", "blobs") + _field(fd, "op", "name", op)
    return os.pread(fd, _field(fd, "op", "name_bytes", op), name).decode("utf-8", "replace")
