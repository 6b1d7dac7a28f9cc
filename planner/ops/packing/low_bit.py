"""Weights of 4, 8 or 16 bits, as models store them and as QNBITGEMM reads them (``workers/kernels/gemm/low_bit.h``).

Those of 4 or 8 are (q - z) * s, with a scale and perhaps a zero point for each column and block of terms. Those of 16 are f16 or bf16.

A product takes its weights as they are stored whatever the number of its rows. So plans of a model for all lengths share one copy, and
memory is halved. Few rows read half the bytes; for many a panel becomes floats once a tile, in Strassen's products, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Stored, Tensor

_KINDS: Final = {
    np.dtype(ml_dtypes.int4): (4, 8),
    np.dtype(ml_dtypes.uint4): (4, 0),
    np.dtype(np.int8): (8, 128),
    np.dtype(np.uint8): (8, 0),
}
"""Bits of a weight, and the number that makes it a level from 0 on."""
_HALVES: Final = {np.dtype(np.float16): 0, np.dtype(ml_dtypes.bfloat16): 1}
"""Types of 16 bits, as the kernel numbers them."""
_SCALES: Final = frozenset({np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})
PANEL: Final = 32


@dataclass(frozen=True, slots=True)
class Form:
    """How a weight [K, N] is packed. ``bits``: of a weight. ``block``: terms of a column that share a scale. ``zeros``: whether each block
    has a zero point; else all have ``zero``. Weights of 16 bits have neither scales nor zero points, and ``zero`` is 1 for bf16, else 0."""

    bits: int
    block: int
    zeros: bool
    zero: int


def packed_shape(depth: int, columns: int, bits: int, block: int, zeros: bool) -> tuple[int, int]:
    """Panels and bytes of each."""
    per, header = 32 // bits, 0 if bits == 16 else PANEL * (5 if zeros else 4)
    return -(-columns // PANEL), -(-depth // block) * header + -(-depth // per) * 4 * PANEL


def whole_groups(depth: int, bits: int, block: int) -> bool:
    """Whether the terms of a block fill words of 32 bits, which the kernel asks for."""
    return block >= 1 and (block % (32 // bits) == 0 or block >= depth)


def form_of(stored: Stored) -> Form | None:
    """How QNBITGEMM takes a weight, if it does."""
    values, scale, zero = stored.values, stored.scale, stored.zero
    if scale is None:
        fits = values.dtype in _HALVES and len(values.shape) == 2 and 0 not in values.shape and values.is_const
        return Form(16, values.shape[0], False, _HALVES[values.dtype]) if fits else None
    if values.dtype not in _KINDS or scale.dtype not in _SCALES or len(values.shape) != 2 or 0 in values.shape or not scale.is_const:
        return None
    if not values.is_const or (zero is not None and (not zero.is_const or zero.dtype != values.dtype or zero.shape != scale.shape)):
        return None
    bits, offset = _KINDS[values.dtype]
    depth, columns = values.shape
    if stored.block:
        block = stored.block
        if stored.axis != 0 or scale.shape != (-(-depth // block), columns):
            return None
    else:
        block = depth
        if scale.size != 1 and (stored.axis != 1 or scale.shape != (columns,)):
            return None
    block = min(block, depth)
    if not whole_groups(depth, bits, block):
        return None
    if zero is None:
        return Form(bits, block, False, offset)
    points = zero.value().astype(np.int32) + offset
    first = int(points.reshape(-1)[0])
    return Form(bits, block, True, 0) if (points != first).any() else Form(bits, block, False, first)


def transposed(stored: Stored, perm: tuple[int, ...]) -> Stored | None:
    """The same of a transposed matrix."""
    if perm != (1, 0) or len(stored.values.shape) != 2:
        return None
    parts = [None if t is None else _transposed(t) for t in (stored.values, stored.scale, stored.zero)]
    values, scale, zero = parts
    assert values is not None
    return Stored(values, scale, zero, 1 - stored.axis, stored.block)


def _transposed(tensor: Tensor) -> Tensor:
    """A matrix; a vector stays as it is."""
    if len(tensor.shape) != 2:
        return tensor

    def pack(out: npt.NDArray[Any]) -> None:
        out[...] = tensor.value().T

    key = None if tensor.weight_key is None else f"{tensor.weight_key}|transposed"
    return Tensor(f"{tensor.name}|transposed", tensor.shape[::-1], tensor.dtype, weight_key=key, pack=pack)


def pack(stored: Stored, form: Form, out: npt.NDArray[Any]) -> None:
    """Writes panels (`packed_shape`, u8)."""
    if stored.scale is None:
        _pack_halves(stored.values.value(), out)
        return
    offset = _KINDS[stored.values.dtype][1]
    levels = stored.values.value()
    depth, columns = levels.shape
    rows = -(-depth // form.block)
    scales = np.broadcast_to(stored.scale.value().astype(np.float32), (rows, columns))
    points = None
    if form.zeros and stored.zero is not None:
        points = np.broadcast_to((stored.zero.value().astype(np.int16) + offset).astype(np.uint8), (rows, columns))
    out[...] = 0
    for panel, row in enumerate(out):
        span = slice(PANEL * panel, min(PANEL * panel + PANEL, columns))
        words = _words((levels[:, span].astype(np.int16) + offset).astype(np.uint8), form.bits)
        _write_panel(row, form, depth, words, scales[:, span], None if points is None else points[:, span])


def _pack_halves(values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    halves = values.view(np.uint16)
    for panel, row in enumerate(out):
        row[...] = _words(halves[:, PANEL * panel : PANEL * panel + PANEL], 16).reshape(-1).view(np.uint8)


def _words(levels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16], bits: int) -> npt.NDArray[np.uint32]:
    """[K, n] → [ceil(K / terms of a word), 32]."""
    per, (depth, n) = 32 // bits, levels.shape
    wide = np.zeros((-(-depth // per), per, PANEL), np.uint32)
    wide.reshape(-1, PANEL)[:depth, :n] = levels
    shifts = np.arange(per, dtype=np.uint32)[:, None] * np.uint32(bits)
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(wide << shifts, axis=1)
    return words


def _write_panel(
    row: npt.NDArray[np.uint8],
    form: Form,
    depth: int,
    words: npt.NDArray[np.uint32],
    scales: npt.NDArray[np.float32],
    points: npt.NDArray[np.uint8] | None,
) -> None:
    """Whole blocks, then the rest of a last one."""
    header, groups, n = PANEL * (5 if form.zeros else 4), -(-form.block // (32 // form.bits)), scales.shape[1]
    size = header + groups * 4 * PANEL
    full = depth // form.block
    for first, count in ((0, full), (full, len(scales) - full)):
        if count == 0:
            continue
        body = row[first * size : first * size + full * size] if first == 0 else row[first * size :]
        body = body.reshape(count, -1)
        body[:, : 4 * PANEL].view(np.float32)[:, :n] = scales[first : first + count]
        if points is not None:
            body[:, 4 * PANEL : 4 * PANEL + n] = points[first : first + count]
        used = words[first * groups :][: count * groups]
        body[:, header:] = np.ascontiguousarray(used).view(np.uint8).reshape(count, -1)
