"""Kernels in numpy, of whole operators. What they read of NaN comes out as NaN."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from aspen_mp.planner.ops.packing import winograd
from aspen_mp.planner.ops.products import BYTES_HEADER
from aspen_mp.planner.ops.sampling import GRID_MODES, GRID_PADDINGS, ROI_MODES
from aspen_mp.shm.tables import BINARY, KERNEL_BY_CODE, NUMBERS, PAD_MODES, REDUCE, UNARY
from aspen_mp.workers import _kernels
from aspen_mp.workers.fallback import boxes, sampling

Array = np.ndarray[Any, np.dtype[Any]]
STACK_WORDS, STACK_REFS = NUMBERS["STACK_WORDS"], NUMBERS["STACK_REFS"]


def unpack(panels: Array, n: int) -> Array:
    return np.concatenate(list(panels), axis=1)[:, :n]


def _double(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _name(table: dict[str, int], code: int) -> str:
    return next(n for n, c in table.items() if c == code)


def _unary(opcode: int, x: Array, a: float = 0.0, b: float = 0.0) -> Array:
    match _name(UNARY, opcode):
        case "IDENTITY":
            return x
        case "RELU":
            return np.maximum(x, 0)
        case "SIGMOID":
            return 1 / (1 + np.exp(-x))
        case "NEG":
            return -x
        case "ABS":
            return np.abs(x)
        case "TANH":
            return np.tanh(x)
        case "CLIP":
            return np.clip(x, a, b)
    raise AssertionError(opcode)


def _act(p: Sequence[int], x: Array) -> Array:
    return _unary(p[0], x, _double(p[1]), _double(p[2]))


def _gemm(
    out: Sequence[int], p: Sequence[int], a: Array, b: Array, bias: Array | None = None, residual: Array | None = None, *more: Array | None
) -> Array:
    if p[0]:
        b = unpack(b, out[-1])
    y = np.einsum("...mk,...kn->...mn", a.astype(np.float64), b.astype(np.float64)) * _double(p[1])
    return _act(p[2:5], y + (0 if bias is None else bias) + (0 if residual is None else residual))


def _dgemm(out: Sequence[int], p: Sequence[int], a: Array, b: Array, bias: Array | None = None) -> Array:
    apart = a[..., None] - b[..., None, :, :]
    sums = {0: lambda: a @ b, 1: lambda: (apart**2).sum(-2), 2: lambda: np.abs(apart).sum(-2)}[p[4]]()
    return _act(p[1:4], sums * _double(p[0]) + (0 if bias is None else bias))


def _qnbitgemm(
    out: Sequence[int], p: Sequence[int], a: Array, b: Array, bias: Array | None = None, residual: Array | None = None, *more: Array | None
) -> Array:
    """Of 4 bits; blocks are whole words. p: alpha, ACT(3), residual_last, bits, block, zeros, zero."""
    depth, words, header = a.shape[-1], p[6] // 8, 5 if p[7] else 4
    w = np.zeros((len(b), -(-depth // p[6]) * p[6], 32))
    for k in range(0, depth, p[6]):
        block = np.ascontiguousarray(b[:, k // p[6] * (header + 4 * words) * 32 :][:, : (header + 4 * words) * 32])
        scale = block[:, :128].view(np.float32)[:, None]
        zero = block[:, 128:160][:, None].astype(np.float64) if p[7] else p[8]
        found = np.ascontiguousarray(block[:, 32 * header :]).view(np.uint32).reshape(len(b), -1, 1, 32)
        levels = (found >> (4 * np.arange(8, dtype=np.uint32))[:, None] & 15).reshape(len(b), -1, 32)
        w[:, k : k + levels.shape[1]] = (levels - zero) * scale
    matrix = np.concatenate(list(w[:, :depth]), 1)[:, : out[-1]]
    y = a.astype(np.float64) @ matrix * _double(p[0]) + (0 if bias is None else bias)
    early, late = (residual, 0) if p[4] == 0 and residual is not None else (0, 0 if residual is None else residual)
    y = _act(p[1:4], y + early)
    return y * late if p[4] == 2 and residual is not None else y + late


def _unpack_pairs(w: Array, columns: int, taps: int = 1) -> Array:
    """Words → [taps, terms, columns]; an odd number of terms has one more, of zeros."""
    halves = np.stack([w << 16, w & 0xFFFF0000], axis=2).astype(np.uint32).view(np.float32)  # panel, pair, half, column
    terms = halves.reshape(len(w), taps, -1, 32).transpose(1, 2, 0, 3)
    return terms.reshape(taps, terms.shape[1], -1)[..., :columns].astype(np.float64)


def _rounded(x: Array) -> Array:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def _bgemm(
    out: Sequence[int], p: Sequence[int], a: Array, b: Array, bias: Array | None = None, residual: Array | None = None, *more: Array | None
) -> Array:
    """p: alpha, ACT(3), residual_last."""
    y = _rounded(a) @ _unpack_pairs(b, out[-1])[0, : a.shape[-1]] * _double(p[0]) + (0 if bias is None else bias)
    early, late = (residual, 0) if p[4] == 0 and residual is not None else (0, 0 if residual is None else residual)
    y = _act(p[1:4], y + early)
    return y * late if p[4] == 2 and residual is not None else y + late


def _bconv(out: Sequence[int], p: Sequence[int], x: Array, w: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
    y, weights = np.zeros(out), _unpack_pairs(w, out[1], p[0] * p[1])
    for k, tap in enumerate(_windows(_rounded(x), out, p[:8], 0.0)):
        y += np.einsum("nchw,co->nohw", tap, weights[k, : x.shape[1]])
    y = y + (0 if bias is None else bias[:, None, None])
    return _act(p[8:11], y if residual is None or p[11] else y + residual) + (residual if residual is not None and p[11] else 0)


def _qgemm(
    out: Sequence[int],
    p: Sequence[int],
    a: Array,
    b: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    factor: Array | None = None,
    zero: Array | None = None,
) -> Array:
    terms, constants = _unpack_bytes(b, out[-1], a.shape[-1], bool(p[0]))
    left = a.astype(np.float64) - (0 if zero is None else zero[..., :1].astype(np.float64))
    return _finish_bytes(p[1:], np.einsum("...mk,nk->...mn", left, terms[:, 0]) + constants, bias, residual, factor)


def _qmatmul(out: Sequence[int], p: Sequence[int], a: Array, b: Array, *more: Array | None) -> Array:
    """QGEMM for each index of the leading axes."""
    made = np.zeros(out)
    for index in np.ndindex(*out[:-2]):
        panels = b[index].astype(np.int8).reshape(b.shape[-3], -1, 32, 4)
        made[index] = _qgemm(out[-2:], p, a[index], panels, *(None if x is None else np.broadcast_to(x, out)[index] for x in more))
    return made


def _qpack(out: Sequence[int], p: Sequence[int], b: Array, zero: Array | None = None) -> Array:
    made = np.zeros(out, np.int8)
    shift = 128 if b.dtype == np.uint8 else 0
    point = (0 if zero is None else int(zero.reshape(-1)[0])) - shift
    for index in np.ndindex(*b.shape[:-2]):
        panels = made[index].reshape(out[-3], -1, 32, 4)
        terms = b[index].astype(np.int64) - shift
        for j in range(b.shape[-1]):
            head = np.array([terms[:, j].sum(), point, 0], np.int32)
            panels[j // 32, :BYTES_HEADER, j % 32] = head.view(np.int8).reshape(BYTES_HEADER, 4)
            padded = np.zeros(-(-len(terms) // 4) * 4, np.int8)
            padded[: len(terms)] = terms[:, j]
            panels[j // 32, BYTES_HEADER:, j % 32] = padded.reshape(-1, 4)
    return made


def _headers(b: Array, columns: int) -> list[Array]:
    """Of the panels of bytes: sums, zero points and constants, [columns] each."""
    return [np.concatenate(list(np.ascontiguousarray(b[:, i]).view(np.int32)[..., 0]))[:columns] for i in range(3)]


def _unpack_bytes(b: Array, columns: int, depth: int, zeros: bool) -> tuple[Array, Array]:
    """[columns, taps, depth] less their zero points, and constants."""
    _, points, constants = _headers(b, columns)
    body = b[:, BYTES_HEADER:].transpose(0, 2, 1, 3)
    terms = body.reshape(len(b) * 32, -1, -(-depth // 4) * 4)[:columns, :, :depth]
    return terms.astype(np.float64) - points[:, None, None] * zeros, constants


def _finish_bytes(p: Sequence[int], y: Array, bias: Array | None, residual: Array | None, factor: Array | None) -> Array:
    """p: ACT(3), residual_last, scale and zero of bytes, which `in_levels` needs, scale and zero of a residual of bytes."""
    if residual is not None and residual.dtype.kind in "iu":
        residual = (residual.astype(np.float64) - p[7]) * _double(p[6])
    y = y * (1 if factor is None else factor) + (0 if bias is None else bias)
    early, late = (residual, 0) if p[3] == 0 and residual is not None else (0, 0 if residual is None else residual)
    y = _act(p[:3], y + early)
    return y * late if p[3] == 2 and residual is not None else y + late


def in_levels(kernel: str, p: Sequence[int], y: Any, dtype: np.dtype[Any]) -> Any:
    """What products of bytes write where their output is bytes."""
    if kernel not in {"QGEMM", "QMATMUL", "QCONV", "QDWCONV"} or dtype.name not in {"int8", "uint8"}:
        return y
    info = np.iinfo(dtype)
    return np.clip(np.rint(y / _double(p[-4])) + p[-3], info.min, info.max)


def _qconv(
    out: Sequence[int],
    p: Sequence[int],
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    factor: Array | None = None,
    zero: Array | None = None,
) -> Array:
    terms, constants = _unpack_bytes(w, out[1], x.shape[1], bool(p[0]))
    left = x.astype(np.float64) - (0 if zero is None else zero.astype(np.float64).reshape(()))
    y = np.zeros(out)
    for k, tap in enumerate(_windows(left, out, p[1:9], 0.0)):
        y += np.einsum("nchw,oc->nohw", tap, terms[:, k])
    return _finish_bytes(p[9:], y + constants[:, None, None], None if bias is None else bias[:, None, None], residual, factor)


def _qdwconv(
    out: Sequence[int],
    p: Sequence[int],
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    factor: Array | None = None,
    zero: Array | None = None,
) -> Array:
    _, _, constants = _headers(w, out[1])
    taps = w[:, BYTES_HEADER:].reshape(len(w), p[0], -(-p[1] // 4), p[2], 32, 4).sum(1, dtype=np.float64)
    taps = taps.transpose(0, 3, 1, 4, 2).reshape(len(w) * 32, -1, p[2])[: out[1], : p[1]]  # channel, row, column
    left = np.repeat(x.astype(np.float64) - (0 if zero is None else zero.astype(np.float64).reshape(())), out[1] // x.shape[1], axis=1)
    y = np.zeros(out)
    for tap, weight in zip(_windows(left, out, p[1:9], 0.0), taps.reshape(out[1], -1).T, strict=True):
        y += tap * weight[:, None, None]
    return _finish_bytes(p[9:], y + constants[:, None, None], None if bias is None else bias[:, None, None], residual, factor)


def _windows(x: Array, out: Sequence[int], p: Sequence[int], fill: float) -> list[Array]:
    """[N, C, OH, OW] for each tap; p: KH, KW, strides, dilations, pad top, left."""
    kh, kw, sh, sw, dh, dw, top, left = p
    n, c, h, w = x.shape
    oh, ow = out[2:]
    big = np.full((n, c, top + h + (oh * sh + kh * dh), left + w + (ow * sw + kw * dw)), fill)
    big[:, :, top : top + h, left : left + w] = x
    return [
        big[:, :, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw] for i in range(kh) for j in range(kw)
    ]


def _conv(out: Sequence[int], p: Sequence[int], x: Array, w: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
    groups = p[0]
    per_in, per_out = x.shape[1] // groups, out[1] // groups
    y = np.zeros(out)
    for g in range(groups):
        weights = unpack(w[g], per_out).reshape(-1, per_in, per_out)
        for k, tap in enumerate(_windows(x[:, g * per_in : (g + 1) * per_in].astype(np.float64), out, p[1:9], 0.0)):
            y[:, g * per_out : (g + 1) * per_out] += np.einsum("nchw,co->nohw", tap, weights[k])
    y = y + (0 if bias is None else bias[:, None, None]) + (0 if residual is None else residual)
    return _act(p[9:12], y)


def _wino(out: Sequence[int], p: Sequence[int], x: Array, u: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
    """Block by block, as the kernel: a value that is missing anywhere in a block's input is missing in all of the block."""
    sides = winograd.axes(p[1:3], p[3:5], p[16])
    (mh, mw), (sh, sw), (th, tw) = ([getattr(s, name) for s in sides] for name in ("block", "stride", "side"))
    (ah, _, bh), (aw, _, bw) = (s.matrices() for s in sides)
    n, _, oh, ow = out
    rows, columns = -(-oh // mh), -(-ow // mw)
    seen = x[:, :, : (oh - 1) * sh + p[1] - p[7], : (ow - 1) * sw + p[2] - p[8]]
    big = np.zeros((n, x.shape[1], (rows - 1) * mh * sh + th, (columns - 1) * mw * sw + tw))
    big = np.pad(big, ((0, 0), (0, 0), (0, p[7] + seen.shape[2]), (0, p[8] + seen.shape[3])))
    big[:, :, p[7] : p[7] + seen.shape[2], p[8] : p[8] + seen.shape[3]] = seen
    y = np.zeros((n, u.shape[0] * 32, rows * mh, columns * mw))
    which = np.minimum(np.arange(th), sides[0].weights - 1)[:, None] * sides[1].weights + np.minimum(np.arange(tw), sides[1].weights - 1)
    weights = u.transpose(1, 2, 0, 3).reshape(u.shape[1], x.shape[1], -1).astype(np.float64)[which]
    for i in range(rows):
        for j in range(columns):
            part = big[:, :, i * mh * sh : i * mh * sh + th, j * mw * sw : j * mw * sw + tw]
            patch = np.einsum("ap,ncab,bq->npqc", bh, part, bw)
            product = np.einsum("npqc,pqco->npqo", patch, weights)
            y[:, :, i * mh : i * mh + mh, j * mw : j * mw + mw] = np.einsum("pi,npqo,qj->noij", ah, product, aw)
    y = y[:, : out[1], :oh, :ow]
    y = y + (0 if bias is None else bias[:, None, None]) + (0 if residual is None else residual)
    return _act(p[9:12], y)


def _dwconv(out: Sequence[int], p: Sequence[int], x: Array, w: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
    y = sum(tap * w[k][:, None, None] for k, tap in enumerate(_windows(x.astype(np.float64), out, p[1:9], 0.0)))
    return _act(p[9:12], y + (0 if bias is None else bias[:, None, None]) + (0 if residual is None else residual))


def _pwdw(out: Sequence[int], p: Sequence[int], x: Array, w: Array, bias: Array | None, d: Array, late: Array | None = None) -> Array:
    one = [1, 1, 1, 1, 1, 1, 1, 0, 0, *p[:3]]
    wide = _conv((x.shape[0], out[1], *x.shape[2:]), one, x, w, bias)
    return _dwconv(out, [out[1], *p[3:14]], wide, d, late)


def _pool(out: Sequence[int], p: Sequence[int], x: Array, scale: Array | None = None, shift: Array | None = None) -> Array:
    taps = list(_windows(x.astype(np.float64), out, p[1:9], -np.inf if p[0] == 0 else 0.0))
    if p[0] == 0:
        y = np.maximum.reduce(taps)
    else:
        top, left, bottom, right = p[7:11] if p[11] else (0, 0, 0, 0)
        counted = np.ones((1, 1, x.shape[2] + top + bottom, x.shape[3] + left + right))
        number = sum(_windows(counted, out, [*p[1:7], p[7] - top, p[8] - left], 0.0))
        y = sum(taps) / np.maximum(number, 1)
    if scale is not None and shift is not None:
        y = y * scale[:, None, None] + shift[:, None, None]
    return _act(p[12:15], y)


def _stack(out: Sequence[int], p: Sequence[int], *inputs: Array | None) -> tuple[Array, ...]:
    """Step by step, each as a kernel of its own."""
    made: list[Array] = []
    outputs: dict[int, Array] = {}
    for k in range(p[0]):
        code, count, height, width, output, *rest = p[1 + k * STACK_WORDS : 1 + (k + 1) * STACK_WORDS]
        refs, params = rest[:count], rest[STACK_REFS:]
        operands = [made[-2 - r] if r < -1 else None if r == -1 else inputs[r] for r in refs]
        made.append(NUMPY_KERNELS[KERNEL_BY_CODE[code].name]((*out[:2], height, width), params, *operands))
        outputs[output] = made[-1]
    return tuple([outputs[i] for i in sorted(outputs) if i >= 0])


def _binary(out: Sequence[int], p: Sequence[int], a: Array, b: Array) -> Array:
    f = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MAX": np.maximum}[_name(BINARY, p[0])]
    return _act(p[1:4], f(a, b))


def _qbinary(out: Sequence[int], p: Sequence[int], a: Array, b: Array) -> Array:
    x, y = ((v.astype(np.float64) - p[k + 1]) * _double(p[k]) for v, k in ((a, 4), (b, 6)))
    return np.clip(np.rint(_binary(out, p, x, y) / _double(p[8])) + p[9], 0, 255)


def _reduce(out: Sequence[int], p: Sequence[int], x: Array) -> Array:
    assert p[0] == REDUCE["SUM"]
    return x.sum(axis=tuple(i for i in range(x.ndim) if p[1] >> i & 1), keepdims=True)


def _softmax(out: Sequence[int], p: Sequence[int], x: Array) -> Array:
    e = np.exp(x - x.max(axis=p[0], keepdims=True))
    return e / e.sum(axis=p[0], keepdims=True)


def _norm(out: Sequence[int], p: Sequence[int], x: Array, scale: Array | None = None, bias: Array | None = None) -> Array:
    axes = tuple(range(p[0], x.ndim))
    x = x.astype(np.float64)
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + _double(p[2]))
    return y * (1 if scale is None else scale) + (0 if bias is None else bias)


def _moments(out: Sequence[int], p: Sequence[int], x: Array) -> Array:
    pixels = x.astype(np.float64).reshape(out[0], out[2], x.shape[1] // out[2], -1)
    cuts = [b * pixels.shape[3] // out[1] for b in range(out[1] + 1)]
    parts = [pixels[..., begin:end] for begin, end in pairwise(cuts)]
    found = [np.stack([part.mean((2, 3)), part.var((2, 3)) * part[0, 0].size], axis=-1) for part in parts]
    return np.stack(found, axis=1)


def _standardize(
    out: Sequence[int],
    p: Sequence[int],
    x: Array,
    moments: Array,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """From the moments alone, which must be those of all blocks."""
    blocks, groups = moments.shape[1:3]
    pixels = int(np.prod(out[2:]))
    sizes = np.diff([b * pixels // blocks for b in range(blocks + 1)])[:, None] * (out[1] // groups)
    mean = (moments[..., 0] * sizes).sum(1) / sizes.sum()
    squares = (moments[..., 1] + sizes * (moments[..., 0] - mean[:, None]) ** 2).sum(1)
    mean, deviation = (np.repeat(v, out[1] // groups, axis=1) for v in (mean, np.sqrt(squares / sizes.sum() + _double(p[0]))))
    at = (slice(None), slice(None), *[None] * (len(out) - 2))
    y = (x - mean[at]) / deviation[at]
    y = y * (1 if scale is None else scale[at]) + (0 if shift is None else shift[at])
    return _act(p[1:4], y + (0 if residual is None else residual))


def _minmax(out: Sequence[int], p: Sequence[int], x: Array) -> Array:
    cuts = [b * x.shape[p[0]] // out[0] for b in range(out[0] + 1)]
    parts = [x.take(range(begin, end), p[0]) for begin, end in pairwise(cuts)]
    return np.array([(np.minimum(part.min(), 0), np.maximum(part.max(), 0)) for part in parts])


def _qparams(out: Sequence[int], p: Sequence[int], extremes: Array) -> tuple[Array, Array]:
    low, high = extremes.min(), extremes.max()
    scale = np.float32((high - low) / 255)
    return np.asarray(scale), np.rint(np.clip(-low / scale, 0, 255))


def _quantize(out: Sequence[int], p: Sequence[int], x: Array, scale: Array, zero: Array) -> Array:
    return np.clip(np.rint(x / scale) + zero, 0, 255)


def _gridsample(out: Sequence[int], p: Sequence[int], x: Array, grid: Array) -> Array:
    mode, padding = _name(GRID_MODES, p[0]), _name(GRID_PADDINGS, p[1])
    return sampling.grid_sample(x, np.nan_to_num(grid), mode, padding, bool(p[2])) + 0 * grid.sum(-1)[:, None]


def _roialign(out: Sequence[int], p: Sequence[int], x: Array, rois: Array, batches: Array) -> Array:
    options = {"output_height": out[2], "output_width": out[3], "mode": _name(ROI_MODES, p[0]), "sampling_ratio": p[1]}
    options["spatial_scale"] = _double(p[2])
    y = boxes.roi_align(x, np.nan_to_num(rois), np.clip(batches, 0, len(x) - 1), options, bool(p[3]))
    return y + 0 * rois.sum(1)[:, None, None, None]


def _deform(out: Sequence[int], p: Sequence[int], x: Array, offsets: Array, mask: Array | None = None) -> Array:
    """The kernel itself, which takes offsets that are no numbers for places outside."""
    y = np.empty(out, np.float32)
    assert _kernels.call("DEFORM", [y, x.astype(np.float32), np.nan_to_num(offsets).astype(np.float32), mask], p, [0] * 4, out) == 0
    return y + 0 * offsets.sum(1)[:, None]


def _pad(out: Sequence[int], p: Sequence[int], x: Array, value: Array | None = None) -> Array:
    assert p[0] == PAD_MODES["CONSTANT"]
    y = np.zeros(out)
    inner = tuple(slice(max(b, 0), min(b + d, o)) for b, d, o in zip(p[2:], x.shape, out, strict=False))
    source = tuple(slice(s.start - b, s.stop - b) for s, b in zip(inner, p[2:], strict=False))
    y[inner] = x[source]
    return y


NUMPY_KERNELS: dict[str, Callable[..., Any]] = {
    "GEMM": _gemm,
    "QNBITGEMM": _qnbitgemm,
    "QGEMM": _qgemm,
    "QMATMUL": _qmatmul,
    "QPACK": _qpack,
    "QCONV": _qconv,
    "QDWCONV": _qdwconv,
    "BGEMM": _bgemm,
    "BCONV": _bconv,
    "DGEMM": _dgemm,
    "STRASSEN": lambda out, p, x: np.zeros(out),
    "CONV": _conv,
    "WINO": _wino,
    "DWCONV": _dwconv,
    "PWDW": _pwdw,
    "POOL": _pool,
    "STACK": _stack,
    "UNARY": lambda out, p, x: _unary(p[0], x, _double(p[1]), _double(p[2])),
    "BINARY": _binary,
    "QBINARY": _qbinary,
    "COPY": lambda out, p, x: x,
    "CAST": lambda out, p, x: x,
    "QUANTIZE": _quantize,
    "LOOKUP": lambda out, p, x, table: table[x.astype(np.int64) - np.iinfo(x.dtype).min],
    "DEQUANTIZE": lambda out, p, x, scale, zero: (x.astype(np.float64) - zero) * scale,
    "MINMAX": _minmax,
    "QPARAMS": _qparams,
    "PAD": _pad,
    "REDUCE": _reduce,
    "SOFTMAX": _softmax,
    "NORM": _norm,
    "MOMENTS": _moments,
    "STANDARDIZE": _standardize,
    "GATHER": lambda out, p, x, i: np.take(x, i, axis=p[0]),
    "GRIDSAMPLE": _gridsample,
    "ROIALIGN": _roialign,
    "DEFORM": _deform,
    "CUMSUM": lambda out, p, x: np.cumsum(x, axis=p[0]),
}
