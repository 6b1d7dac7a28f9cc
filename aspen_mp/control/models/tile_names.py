"""What a tile is called, and how long it may well take: read from its plan segment with few small reads. Without numpy: `status` may be
asked often, and when a worker has died or hangs nothing should have to be imported, which takes descriptors and memory."""

from __future__ import annotations

import math
import struct
from typing import Final

from aspen_mp.shm.bindings import _tables
from aspen_mp.system import descriptors

SLOW_NS: Final = 20.0
"""An element in the slowest kernel on a slow machine."""
_PLACES: Final = {kind: {name: (offset, nbytes) for name, _, offset, nbytes, _ in rows} for kind, rows in _tables.FIELDS.items()}
_SIZES: Final = {kind: max(offset + nbytes for offset, nbytes in places.values()) for kind, places in _PLACES.items()}
_OPAQUE: Final = next(row[1] for row in _tables.KERNEL_ROWS if row[0] == "OPAQUE")
_DIM: Final = 8
"""Bytes of a dimension."""


def _bytes(fd: int, kind: str, name: str, base: int = 0) -> bytes:
    offset, nbytes = _PLACES[kind][name]
    return descriptors.pread(fd, nbytes, base + offset)


def _field(fd: int, kind: str, name: str, base: int = 0) -> int:
    return int.from_bytes(_bytes(fd, kind, name, base), "little")


def _at(fd: int, kind: str, table: str, number: int) -> int:
    return _field(fd, "plan_header", table) + number * _SIZES[kind]


def op_of_tile(fd: int, tile: int) -> int:
    """The number of the op that a tile of the plan behind `fd` belongs to; 0 where there is no such tile."""
    if not 0 <= tile < _field(fd, "plan_header", "n_tiles"):
        return 0
    return _field(fd, "tile", "op", _at(fd, "tile", "tiles", tile))


def op_name(fd: int, number: int) -> str:
    """ "node name (op type)" of an op; empty where there is no such op."""
    if not 0 <= number < _field(fd, "plan_header", "n_ops"):
        return ""
    op = _at(fd, "op", "ops", number)
    name = _field(fd, "plan_header", "blobs") + _field(fd, "op", "name", op)
    return descriptors.pread(fd, _field(fd, "op", "name_bytes", op), name).decode("utf-8", "replace")


def op_of(fd: int, tile: int) -> str:
    """ "node name (op type)" of the op that a tile belongs to; empty where there is no such tile."""
    return op_name(fd, op_of_tile(fd, tile)) if 0 <= tile < _field(fd, "plan_header", "n_tiles") else ""


def longest_ns(fd: int) -> float:
    """What a tile of the plan behind `fd` takes at most, by the plan's estimate for an average tile of each op. Tiles that Python executes
    do not count: they cannot be cut."""
    size = _SIZES["op"]
    ops = descriptors.pread(fd, size * _field(fd, "plan_header", "n_ops"), _field(fd, "plan_header", "ops"))
    kernel, cost = _PLACES["op"]["kernel"][0], _PLACES["op"]["cost_ns"][0]
    costs = (struct.unpack_from("<f", ops, at + cost)[0] for at in range(0, len(ops), size) if ops[at + kernel] != _OPAQUE)
    return max(costs, default=0.0)


def memory(fd: int) -> tuple[int, int]:
    """At which depths tiles of the plan behind `fd` wait for memory, a bit each, and how many cores that do leave others nothing."""
    return _field(fd, "plan_header", "memory"), _field(fd, "plan_header", "memory_cores")


def tile_estimate(fd: int, tile: int) -> tuple[str, bool, float]:
    """What the op of a tile is called, whether Python executes it, and how long the tile may well take, in seconds.

    That is the plan's estimate, and no less than `SLOW_NS` an element of the op's largest operand: estimates are made for sizing tiles, and
    err widely for what no network has.
    """
    number = op_of_tile(fd, tile)
    op = _at(fd, "op", "ops", number)
    first = _field(fd, "op", "operand", op)
    elements = 0
    for k in range(_field(fd, "op", "n_outputs", op) + _field(fd, "op", "n_inputs", op)):
        operand = _at(fd, "operand", "operands", first + k)
        dims = _bytes(fd, "operand", "dims", operand)[: _DIM * _field(fd, "operand", "rank", operand)]
        elements = max(elements, math.prod(dim for (dim,) in struct.iter_unpack("<q", dims)))
    cost_ns: float = struct.unpack("<f", _bytes(fd, "op", "cost_ns", op))[0]
    return op_name(fd, number), _field(fd, "op", "kernel", op) == _OPAQUE, max(cost_ns, SLOW_NS * elements) / 1e9
