"""Weights of few bits, with a scale for each block of a column: MatMulNBits, MatMulBnb4 and GatherBlockQuantized.

Factors become constants as ONNX stores them, 4-bit integers where they have four bits, which DequantizeLinear makes real by blocks. A
reader may multiply the stored form; else the factors become f32 once. Tables are read as bytes, and only the rows that were asked for
become real.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import ml_dtypes
import numpy as np

from aspen_mp.planner.frontends.contrib.body import Array, Body, Rule

_BITS: Final = {2: np.dtype(np.uint8), 4: np.dtype(ml_dtypes.uint4), 8: np.dtype(np.uint8)}
_FLOATS: Final = {np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
_NIBBLES: Final = {np.dtype(ml_dtypes.uint4): np.dtype(np.uint8), np.dtype(ml_dtypes.int4): np.dtype(np.int8)}


def _matmul(b: Body) -> list[str]:
    """(x, blocks of each column's bytes, scales, zero points, order of columns, bias). Scales and sums are f32 in half precision, too."""
    bits, size, depth, width = _bits(b), b.get("block_size", 0), b.get("K", 0), b.get("N", 0)
    blocks = -(-depth // max(size, 1))
    if size < 1 or b.tensor(1).size * 8 != width * blocks * size * bits or b.tensor(2).size != width * blocks:
        raise b.invalid(
            f"has weights {list(b.tensor(1).shape)} and scales {list(b.tensor(2).shape)} for {depth} x {width} in blocks of {size}"
        )
    scale = b.derived(f"scales of {blocks} x {width}", [2], (blocks, width), np.float32, partial(_columns, width=width, count=blocks))
    how, zeros = f"{bits} bits, {depth} x {width}", b.optional(3)
    if zeros is not None and zeros.dtype in _FLOATS:
        unpacked = partial(_real, bits=bits, size=size, depth=depth, width=width)
        weight = b.derived(f"real weights of {how}, blocks of {size}", [1, 2, 3], (depth, width), np.float32, unpacked)
    else:
        values = b.derived(f"weights of {how}", [1], (depth, width), _BITS[bits], partial(_unpacked, bits=bits, width=width, count=depth))
        inputs = [values, scale, _zero_points(b, bits, blocks, width)]
        weight = b.emit("DequantizeLinear", *inputs, axis=0, block_size=size)
    half = b.tensor(0).dtype != np.float32
    y = b.emit("MatMul", b.cast(b.name(0), np.float32) if half else b.name(0), weight)
    return [b.plus(b.cast(y, b.tensor(0).dtype) if half else y, b.name(5))]


def _zero_points(b: Body, bits: int, blocks: int, width: int) -> str:
    """[blocks, columns]; the middle of the range where there are none."""
    shape, dtype = (blocks, width), _BITS[bits]
    if b.name(3):
        return b.derived(
            f"zero points of {bits} bits, {blocks} x {width}", [3], shape, dtype, partial(_unpacked, bits=bits, width=width, count=blocks)
        )
    return b.derived(
        f"no zero points of {bits} bits, {blocks} x {width}", [2], shape, dtype, lambda _: np.full(shape, 1 << (bits - 1)).astype(dtype)
    )


def _bits(b: Body) -> int:
    bits = int(b.get("bits", 4))
    if bits not in _BITS:
        raise b.unknown(f"has weights of {bits} bits")
    return bits


def _columns(stored: Array, width: int, count: int) -> Array:
    return stored.reshape(width, count).T


def _unpacked(stored: Array, bits: int, width: int, count: int) -> Array:
    """The first `count` numbers of each column, side by side: [count, columns]. The first is in the lowest bits of a byte."""
    return packed_numbers(stored.reshape(width, -1), bits)[:, :count].T.astype(_BITS[bits])


def packed_numbers(stored: Array, bits: int) -> Array:
    """Those in the bytes of the last axis, as bytes."""
    if bits == 8:
        return stored
    parts = [stored >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*stored.shape[:-1], -1)


def _real(stored: Array, scales: Array, zeros: Array, bits: int, size: int, depth: int, width: int) -> Array:
    """(value - zero) * scale, for zero points that are not whole numbers."""
    values = packed_numbers(stored.reshape(width, -1), bits).reshape(width, -1, size).astype(np.float32)
    scales, zeros = (t.reshape(width, -1, 1).astype(np.float32) for t in (scales, zeros))
    return ((values - zeros) * scales).reshape(width, -1)[:, :depth].T


# ------------------------------------------------------------------------------------------------------------------ tables


def _gather(b: Body) -> list[str]:
    """(table, indices, scales, zero points)."""
    table, rank = b.tensor(0), len(b.tensor(0).shape)
    if table.dtype not in {np.dtype(np.uint8), *_NIBBLES}:
        raise b.unknown(f"has a table of {table.dtype}")
    bits = _bits(b) if table.dtype == np.uint8 else 8
    along, blocked, size = b.get("gather_axis", 0) % rank, b.get("quantize_axis", 1) % rank, b.get("block_size", 128)
    if bits < 8 and blocked != rank - 1:
        raise b.unknown("has several numbers in a byte along another axis than the last")
    values, zeros = _as_bytes(b, 0, bits, table.shape[-1] * 8 // bits), ""
    if b.name(3):
        zeros = _as_bytes(b, 3, bits, b.tensor(2).shape[-1])
    elif table.dtype == np.uint8:
        zeros = b.constant(np.uint8(1 << (_bits(b) - 1)))
    scale, shape, axis = b.name(2), [*table.shape[:-1], table.shape[-1] * 8 // bits], blocked
    if along != blocked:  # the rows that are asked for, not the whole table
        values, scale = (b.emit("Gather", x, b.name(1), axis=along) for x in (values, scale))
        zeros = b.emit("Gather", zeros, b.name(1), axis=along) if b.name(3) else zeros
        shape[along : along + 1] = b.tensor(1).shape
        axis += len(b.tensor(1).shape) - 1 if along < blocked else 0
    real = _dequantised(b, values, scale, zeros, shape, axis, size)
    return [b.emit("Gather", real, b.name(1), axis=along) if along == blocked else real]


def _dequantised(b: Body, values: str, scale: str, zeros: str, shape: Sequence[int], axis: int, size: int) -> str:
    """(value - zero) * scale, blocks being an axis of their own."""
    dtype, length = b.tensor(2).dtype, shape[axis]
    blocks = -(-length // size)
    if blocks * size > length:
        pads = [0] * (2 * len(shape))
        pads[len(shape) + axis] = blocks * size - length
        values = b.emit("Pad", values, b.ints(*pads))
    lead, behind = [0] * axis, shape[axis + 1 :]
    real = b.cast(b.emit("Reshape", values, b.ints(*lead, blocks, size, *behind)), dtype)
    if zeros:
        whole = b.cast(zeros, dtype)
        real = b.emit("Sub", real, b.emit("Unsqueeze", whole, b.ints(axis + 1)) if b.name(3) else whole)
    real = b.emit("Mul", real, b.emit("Unsqueeze", scale, b.ints(axis + 1)))
    real = b.emit("Reshape", real, b.ints(*lead, blocks * size, *behind))
    return b.cut(real, axis, 0, length) if blocks * size > length else real


def _as_bytes(b: Body, k: int, bits: int, last: int) -> str:
    """Input k, one number in a byte, `last` along the last axis."""
    tensor = b.tensor(k)
    if tensor.dtype == np.uint8 and bits == 8:
        return b.name(k)
    shape, dtype = (*tensor.shape[:-1], last), _NIBBLES.get(tensor.dtype, np.dtype(np.uint8))
    return b.derived(f"bytes of {bits} bits, {last}", [k], shape, dtype, partial(_bytes, bits=bits, last=last))


def _bytes(stored: Array, bits: int, last: int) -> Array:
    return stored.astype(_NIBBLES[stored.dtype]) if stored.dtype in _NIBBLES else packed_numbers(stored, bits)[..., :last]


# --------------------------------------------------------------------------------------------- codes of four bits (bitsandbytes)

_CODES: Final = {
    0: (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4, -0.0, -1 / 192, -2 / 3, -1.0, -1 / 3, -1 / 2, -1 / 6, -1 / 4),
    1: (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
}
"""The value of each code, times the largest of its block. FP4 has a sign, two bits of exponent and one of mantissa; NF4 has quantiles of a
normal distribution."""


def _coded_matmul(b: Body) -> list[str]:
    """(x, codes of all rows of weights [N, K] one behind the other, the largest of each block)."""
    kind, size, depth, width = b.get("quant_type", 1), b.get("block_size", 0), b.get("K", 0), b.get("N", 0)
    if kind not in _CODES:
        raise b.unknown(f"has weights of the type {kind}")
    if size < 1 or b.tensor(1).size != -(-depth * width // 2) or b.tensor(2).size != -(-depth * width // size):
        raise b.invalid(
            f"has codes {list(b.tensor(1).shape)} and scales {list(b.tensor(2).shape)} for {width} x {depth} in blocks of {size}"
        )
    turned = bool(b.get("transB", 1))
    decoded = partial(_decoded, kind=kind, size=size, depth=depth, width=width, turned=turned)
    shape = (depth, width) if turned else (width, depth)
    weight = b.derived(f"codes of type {kind}, {width} x {depth}, blocks of {size}, {turned}", [1, 2], shape, np.float32, decoded)
    half = b.tensor(0).dtype != np.float32
    y = b.emit("MatMul", b.cast(b.name(0), np.float32) if half else b.name(0), weight)
    return [b.cast(y, b.tensor(0).dtype) if half else y]


def _decoded(codes: Array, largest: Array, kind: int, size: int, depth: int, width: int, turned: bool) -> Array:
    """The first of a byte is in its higher bits."""
    numbers = np.stack([codes >> 4, codes & 15], -1).reshape(-1)[: depth * width]
    scales = np.repeat(largest.astype(np.float32), size)[: depth * width]
    weights = (np.array(_CODES[kind], np.float32)[numbers] * scales).reshape(width, depth)
    return weights.T if turned else weights


RULES: Final[dict[str, Rule]] = {"GatherBlockQuantized": _gather, "MatMulBnb4": _coded_matmul, "MatMulNBits": _matmul}
UNKNOWN: Final = {"MatMulNBits": {"weight_prepacked"}}
REFUSED: Final = {"MatMulNBits": {4: "its terms in another order"}}
