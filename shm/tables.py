"""Layout and opcodes as numpy dtypes and dictionaries, made from the C headers by `_tables`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aspen_mp.shm.bindings import _tables

LAYOUT_HASH: int = _tables.LAYOUT_HASH
LIMITS: dict[str, int] = _tables.LIMITS
ROLES: dict[str, int] = _tables.ROLES
NUMBERS: dict[str, int] = _tables.NUMBERS
"""The numbers of numbers.h."""
SPACES: dict[str, int] = _tables.SPACES
UNARY: dict[str, int] = _tables.UNARY
BINARY: dict[str, int] = _tables.BINARY
TERNARY: dict[str, int] = _tables.TERNARY
REDUCE: dict[str, int] = _tables.REDUCE
PAD_MODES: dict[str, int] = _tables.PAD_MODES
VALUE_KINDS: dict[str, int] = _tables.VALUE_KINDS
NUMBER_TABLES: dict[str, int] = _tables.NUMBER_TABLES

_C_TYPES = {"uint8_t": "u1", "uint16_t": "<u2", "uint32_t": "<u4", "uint64_t": "<u8", "int64_t": "<i8", "float": "<f4"}


@dataclass(frozen=True)
class Kernel:
    """One row of ASPEN_KERNELS: how many inputs, i64 parameters and outputs a call of the kernel has (`ANY_PARAMS`,
    `ANY_OUTPUTS`: any number; OPAQUE's 0 outputs, too)."""

    name: str
    code: int
    min_inputs: int
    max_inputs: int
    n_params: int
    n_outputs: int


def _dtype(struct: str) -> np.dtype[np.void]:
    rows = _tables.FIELDS[struct]
    names = [name for name, *_ in rows]
    formats = [(_C_TYPES[ctype], (count,)) if count > 1 else _C_TYPES[ctype] for _, ctype, _, _, count in rows]
    offsets = [offset for _, _, offset, _, _ in rows]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": max(o + b for _, _, o, b, _ in rows)})


PLAN_HEADER = _dtype("plan_header")
OP = _dtype("op")
OPERAND = _dtype("operand")
TILE = _dtype("tile")
VALUE = _dtype("value")
NUMBER = _dtype("number")
TRACE_RECORD = _dtype("trace_record")
TRACE_RING = _dtype("trace_ring")

KERNELS: dict[str, Kernel] = {row[0]: Kernel(*row[:5], row[6]) for row in _tables.KERNEL_ROWS}
KERNEL_BY_CODE: dict[int, Kernel] = {k.code: k for k in KERNELS.values()}

DTYPES: dict[str, int] = {name: code for name, code, *_ in _tables.DTYPE_ROWS}
DTYPE_BYTES: dict[int, int] = {code: nbytes for _, code, nbytes, *_ in _tables.DTYPE_ROWS}


def _numpy_dtypes() -> dict[int, np.dtype[np.generic]]:
    import ml_dtypes

    table = {}
    for _, code, _, _, _, name, _ in _tables.DTYPE_ROWS:
        if name and name != "object":
            table[code] = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    return table


NUMPY_BY_CODE: dict[int, np.dtype[np.generic]] = _numpy_dtypes()
CODE_BY_NUMPY: dict[np.dtype[np.generic], int] = {d: c for c, d in NUMPY_BY_CODE.items()}
