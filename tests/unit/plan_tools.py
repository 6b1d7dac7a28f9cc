"""What planner tests share: graphs by hand, numpy kernels, and an executor of plan bytes that knows nothing of how the plan was made.

The executor computes whole operators in numpy and keeps a tile's box of the result, on buffers full of NaN: an element comes out NaN
exactly if something that it depends on was not there yet. So it is an element-level check of the tile graph that shares no code with the
region maps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from aspen_mp.planner import nbits, winograd
from aspen_mp.planner.ir import Graph, Node, Stored, Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.params import BYTES_HEADER, GRID_MODES, GRID_PADDINGS, NO_ACT, ROI_MODES, left_factors, params
from aspen_mp.planner.plan import Plan
from aspen_mp.shm.tables import (
    BINARY,
    DTYPES,
    KERNEL_BY_CODE,
    NUMPY_BY_CODE,
    OP,
    OPERAND,
    PAD_MODES,
    PLAN_HEADER,
    REDUCE,
    SPACES,
    TILE,
    UNARY,
)
from aspen_mp.workers import _kernels, boxes, sampling

Array = np.ndarray[Any, np.dtype[Any]]
F32 = np.dtype(np.float32)


class GraphBuilder:
    """Kernel-level graphs by hand. Methods return the output tensor; constants are small integers, so that sums are exact in fp32."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self.count = 0

    def input(self, *shape: int) -> Tensor:
        t = Tensor(f"in{len(self.inputs)}", shape, F32)
        self.inputs.append(t)
        return t

    def const(self, *shape: int, weight: bool = False) -> Tensor:
        self.count += 1
        data = self.rng.integers(-2, 3, shape).astype(np.float32)
        return Tensor(f"c{self.count}", shape, F32, data=data, weight_key=f"w{self.count}" if weight else None)

    def node(self, op: str, inputs: Sequence[Tensor | None], shape: Sequence[int], dtype: Any = F32, **attrs: Any) -> Tensor:
        self.count += 1
        out = Tensor(f"t{self.count}", tuple(int(d) for d in shape), np.dtype(dtype))
        node = Node(op, f"n{self.count}", list(inputs), [out], attrs, op.title())
        out.producer = node
        self.nodes.append(node)
        return out

    def conv(self, x: Tensor, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, residual: Tensor | None = None) -> Tensor:
        n, c, h, w = x.shape
        pad = kernel // 2
        size = [(d + 2 * pad - kernel) // stride + 1 for d in (h, w)]
        per = outputs // groups
        raw = self.rng.integers(-2, 3, (groups, kernel * kernel * (c // groups), per)).astype(np.float32)
        panels = np.stack([pack(g) for g in raw])
        self.count += 1
        weight = Tensor(f"c{self.count}", panels.shape, F32, data=panels, weight_key=f"w{self.count}")
        return self.node(
            "CONV",
            [x, weight, self.const(outputs, weight=True), residual],
            (n, outputs, *size),
            groups=groups,
            kernel=(kernel, kernel),
            strides=(stride, stride),
            dilations=(1, 1),
            pads=(pad, pad),
            act=NO_ACT,
        )

    def wino(
        self,
        x: Tensor,
        outputs: int,
        block: int = 4,
        pads: Sequence[int] = (1, 1, 1, 1),
        residual: Tensor | None = None,
        kernel: tuple[int, int] = (3, 3),
        stride: int = 1,
    ) -> Tensor:
        """pads: top, left, bottom, right."""
        n, c, *image = x.shape
        raw = self.rng.integers(-2, 3, (outputs, c, *kernel)).astype(np.float32)
        self.count += 1
        strides = (stride, stride)
        pack = partial(winograd.pack, block, raw, strides=strides)
        weight = Tensor(f"c{self.count}", winograd.packed_shape(raw.shape, block, strides), F32, weight_key=f"w{self.count}", pack=pack)
        height, width = ((d + pads[i] + pads[i + 2] - k) // stride + 1 for i, (d, k) in enumerate(zip(image, kernel, strict=True)))
        return self.node(
            "WINO",
            [x, weight, self.const(outputs, weight=True), residual],
            (n, outputs, height, width),
            groups=1,
            kernel=kernel,
            strides=strides,
            dilations=(1, 1),
            pads=tuple(pads[:2]),
            act=NO_ACT,
            block=block,
        )

    def dwconv(self, x: Tensor, kernel: int = 3) -> Tensor:
        c = x.shape[1]
        w = self.const(kernel * kernel, c, weight=True)
        pad = kernel // 2
        attrs = {"groups": c, "kernel": (kernel, kernel), "strides": (1, 1), "dilations": (1, 1), "pads": (pad, pad), "act": NO_ACT}
        return self.node("DWCONV", [x, w, None, None], x.shape, **attrs)

    def stack(self, x: Tensor, channels: int, kernel: int = 3, stride: int = 1) -> Tensor:
        """A pointwise convolution and a depthwise one, as one kernel."""
        panels = pack(self.rng.integers(-2, 3, (x.shape[1], channels)).astype(np.float32))[None]
        self.count += 1
        w = Tensor(f"c{self.count}", panels.shape, F32, data=panels, weight_key=f"w{self.count}")
        d = self.const(kernel * kernel, channels, weight=True)
        size = [(n + kernel // 2 * 2 - kernel) // stride + 1 for n in x.shape[2:]]
        pads = (kernel // 2,) * 2
        return self.node(
            "PWDW",
            [x, w, self.const(channels, weight=True), d, None],
            (x.shape[0], channels, *size),
            in_act=("RELU", 0.0, 0.0),
            kernel=(kernel, kernel),
            strides=(stride, stride),
            dilations=(1, 1),
            pads=pads,
            act=NO_ACT,
        )

    def pool(self, x: Tensor, kernel: int = 2, stride: int = 2, mode: str = "max") -> Tensor:
        n, c, h, w = x.shape
        size = [(d - kernel) // stride + 1 for d in (h, w)]
        attrs = {"kernel": (kernel,) * 2, "strides": (stride,) * 2, "dilations": (1, 1), "pads": (0,) * 4, "count_include_pad": False}
        return self.node("POOL", [x], (n, c, *size), mode=mode, **attrs)

    def linear(self, x: Tensor, outputs: int, residual: Tensor | None = None) -> Tensor:
        panels = pack(self.rng.integers(-2, 3, (x.shape[-1], outputs)).astype(np.float32))
        self.count += 1
        weight = Tensor(f"c{self.count}", panels.shape, F32, data=panels, weight_key=f"w{self.count}")
        bias = self.const(*[1] * (len(x.shape) - 1), outputs, weight=True)
        return self.node("GEMM", [x, weight, bias, residual], (*x.shape[:-1], outputs), packed_b=True, alpha=1.0, act=NO_ACT)

    def by_sevens(self, x: Tensor, outputs: int) -> Tensor:
        out = self.linear(x, outputs)
        assert out.producer is not None
        made = self.node("STRASSEN", [x], left_factors(x.shape))
        out.producer.inputs += [None] * (6 - len(out.producer.inputs)) + [made]
        self.nodes.remove(out.producer)
        self.nodes.append(out.producer)
        return out

    def whole(self, x: Tensor, dtype: Any) -> Tensor:
        """Bytes of what lies between 0 and 100, whole numbers and their neighbours below rounded alike."""
        self.count += 1
        little = Tensor(f"c{self.count}", (1,) * len(x.shape), F32, data=np.full((1,) * len(x.shape), 0.3719, np.float32))
        between = self.node("UNARY", [self.binary(x, little)], x.shape, opcode="CLIP", a=0.0, b=100.0)
        return self.node("CAST", [between], x.shape, dtype, saturate=True)

    def by_bytes(
        self,
        x: Tensor,
        outputs: int,
        residual: Tensor | None = None,
        zero: Tensor | None = None,
        columns: bool = True,
        dtype: Any = np.float32,
    ) -> Tensor:
        """A product of bytes `x`. `zero`: of x; `columns`: zero points of the weights; of int32 without factor and bias."""
        ones, of = [1] * (len(x.shape) - 1), np.dtype(np.uint8 if columns else np.int8)
        self.count += 1
        data, key = self.rng.integers(0, 5, (x.shape[-1], outputs)).astype(of), f"w{self.count}"
        points = Tensor(f"z{self.count}", (outputs,), of, data=self.rng.integers(0, 3, outputs).astype(of)) if columns else None
        weight, zeros = Builder().packed_bytes(Tensor(f"c{self.count}", data.shape, of, data=data, weight_key=key), points)
        inputs = [x, weight, None, None, None, zero]
        if dtype == np.float32:
            factor = self.const(*ones, outputs, weight=True)
            assert factor.data is not None
            factor.data[...] = factor.data / 64
            inputs[2:5] = [self.const(*ones, outputs, weight=True), residual, factor]
        return self.node("IGEMM", inputs, (*x.shape[:-1], outputs), dtype, zeros=zeros, act=NO_ACT)

    def by_bits(self, x: Tensor, outputs: int, residual: Tensor | None = None, points: bool = True, bias: bool = True) -> Tensor:
        """A product with weights of 4 bits in blocks of 8. `points`: with zero points of columns and blocks."""
        self.count += 1
        depth, key, of = x.shape[-1], f"w{self.count}", np.dtype(ml_dtypes.int4)
        rows = -(-depth // 8)

        def part(name: str, value: Array, dtype: Any) -> Tensor:
            return Tensor(f"{name}{self.count}", value.shape, np.dtype(dtype), data=value.astype(dtype), weight_key=f"{key}{name}")

        values, scale = part("q", self.rng.integers(-2, 3, (depth, outputs)), of), part("s", self.rng.integers(1, 3, (rows, outputs)), F32)
        zero = part("z", self.rng.integers(0, 2, (rows, outputs)), of) if points else None
        weight = Tensor(f"c{self.count}", values.shape, F32, weight_key=key, stored=Stored(values, scale, zero, 0, 8))
        assert weight.stored is not None
        form = nbits.form_of(weight.stored)
        assert form is not None
        packed = Builder().packed_nbits(weight, form)
        attrs = {"bits": form.bits, "block": form.block, "zeros": form.zeros, "zero": form.zero}
        beside = self.const(*[1] * (len(x.shape) - 1), outputs, weight=True) if bias else None
        return self.node("NGEMM", [x, packed, beside, residual], (*x.shape[:-1], outputs), alpha=1.0, act=NO_ACT, **attrs)

    def conv_bytes(
        self,
        x: Tensor,
        outputs: int,
        kernel: tuple[int, int] = (3, 3),
        stride: int = 1,
        dilation: int = 1,
        residual: Tensor | None = None,
        zero: Tensor | None = None,
        columns: bool = True,
        dtype: Any = np.float32,
    ) -> Tensor:
        """A convolution of bytes `x` that keeps the image's size but for strides. `zero`: of x; `columns`: zero points of the weights; of
        int32 without factor and bias; uint8 in steps of 4."""
        n, channels, *image = x.shape
        pads = [(k - 1) * dilation // 2 for k in kernel]
        size = [(d + 2 * a - (k - 1) * dilation - 1) // stride + 1 for d, a, k in zip(image, pads, kernel, strict=True)]
        of = np.dtype(np.uint8 if columns else np.int8)
        self.count += 1
        data, key = self.rng.integers(0, 5, (outputs, channels, *kernel)).astype(of), f"w{self.count}"
        points = Tensor(f"z{self.count}", (outputs,), of, data=self.rng.integers(0, 3, outputs).astype(of)) if columns else None
        constant = Tensor(f"k{self.count}", (outputs,), np.dtype(np.int32), data=self.rng.integers(-9, 9, outputs).astype(np.int32))
        weight, zeros = Builder().packed_bytes(Tensor(f"c{self.count}", data.shape, of, data=data, weight_key=key), points, constant)
        inputs = [x, weight, None, None, None, zero]
        attrs: dict[str, Any] = {"kernel": kernel, "strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": tuple(pads)}
        if dtype != np.int32:
            factor = self.const(1, outputs, 1, 1, weight=True)
            assert factor.data is not None
            factor.data[...] = factor.data / 64
            inputs[2:5] = [self.const(outputs, weight=True), residual, factor]
        if dtype == np.uint8:
            attrs.update(scale=4.0, zero=3)
        return self.node("ICONV", inputs, (n, outputs, *size), dtype, zeros=zeros, act=NO_ACT, **attrs)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return self.node("GEMM", [a, b, None, None], (*lead, a.shape[-2], b.shape[-1]), packed_b=False, alpha=1.0, act=NO_ACT)

    def unary(self, x: Tensor, opcode: str = "RELU") -> Tensor:
        return self.node("UNARY", [x], x.shape, opcode=opcode, a=0.0, b=0.0)

    def binary(self, a: Tensor, b: Tensor, opcode: str = "ADD") -> Tensor:
        return self.node("BINARY", [a, b], np.broadcast_shapes(a.shape, b.shape), opcode=opcode, act=NO_ACT)

    def reduce(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        shape = [1 if i in axes else d for i, d in enumerate(x.shape)]
        return self.node("REDUCE", [x], shape, opcode="SUM", axes=tuple(axes))

    def softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        return self.node("SOFTMAX", [x], x.shape, axis=axis % len(x.shape), log=False)

    def norm(self, x: Tensor) -> Tensor:
        scale = self.const(*[1] * (len(x.shape) - 1), x.shape[-1], weight=True)
        return self.node("NORM", [x, scale, None], x.shape, axis=len(x.shape) - 1, mode="layer", eps=1e-5)

    def pad(self, x: Tensor, begin: Sequence[int], end: Sequence[int]) -> Tensor:
        shape = [d + b + e for d, b, e in zip(x.shape, begin, end, strict=True)]
        return self.node("PAD", [x, None], shape, mode="CONSTANT", begin=tuple(begin))

    def gather(self, x: Tensor, indices: Sequence[int], axis: int) -> Tensor:
        self.count += 1
        idx = Tensor(f"c{self.count}", (len(indices),), np.dtype(np.int64), data=np.array(indices, np.int64))
        return self.node("GATHER", [x, idx], (*x.shape[:axis], len(indices), *x.shape[axis + 1 :]), axis=axis)

    def cumsum(self, x: Tensor, axis: int) -> Tensor:
        return self.node("CUMSUM", [x], x.shape, axis=axis, exclusive=False, reverse=False)

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        return self.node("view.reshape", [x], shape, x.dtype)

    def transpose(self, x: Tensor, *perm: int) -> Tensor:
        return self.node("view.transpose", [x], [x.shape[p] for p in perm], x.dtype, perm=perm)

    def slice(self, x: Tensor, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Tensor:
        return self.node("view.slice", [x], shape, x.dtype, starts=tuple(starts), steps=tuple(steps))

    def expand(self, x: Tensor, *shape: int) -> Tensor:
        return self.node("view.expand", [x], shape, x.dtype)

    def concat(self, inputs: Sequence[Tensor], axis: int) -> Tensor:
        shape = list(inputs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in inputs)
        return self.node("concat", inputs, shape, inputs[0].dtype, axis=axis)

    def graph(self, *outputs: Tensor) -> Graph:
        return Graph("test", self.inputs, list(outputs), self.nodes)


def pack(w: Array) -> Array:
    """[K, N] → [ceil(N / 32), K, 32], zero-padded."""
    k, n = w.shape
    panels = np.zeros((-(-n // 32), k, 32), w.dtype)
    for p in range(len(panels)):
        panels[p, :, : min(32, n - 32 * p)] = w[:, 32 * p : 32 * p + 32]
    return panels


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


def _ngemm(
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


def _igemm(
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


def _unpack_bytes(b: Array, columns: int, depth: int, zeros: bool) -> tuple[Array, Array]:
    """[columns, taps, depth] less their zero points, and constants."""
    _, points, constants = (np.concatenate(list(np.ascontiguousarray(b[:, i]).view(np.int32)[..., 0]))[:columns] for i in range(3))
    body = b[:, BYTES_HEADER:].transpose(0, 2, 1, 3)
    terms = body.reshape(len(b) * 32, -1, -(-depth // 4) * 4)[:columns, :, :depth]
    return terms.astype(np.float64) - points[:, None, None] * zeros, constants


def _finish_bytes(p: Sequence[int], y: Array, bias: Array | None, residual: Array | None, factor: Array | None) -> Array:
    """p: ACT(3), residual_last, scale, zero of unsigned bytes."""
    y = y * (1 if factor is None else factor) + (0 if bias is None else bias)
    early, late = (residual, 0) if p[3] == 0 and residual is not None else (0, 0 if residual is None else residual)
    y = _act(p[:3], y + early)
    y = y * late if p[3] == 2 and residual is not None else y + late
    return y if _double(p[4]) == 1.0 else np.clip(np.rint(y / _double(p[4])) + p[5], 0, 255)


def _iconv(
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


def _pool(out: Sequence[int], p: Sequence[int], x: Array) -> Array:
    taps = _windows(x.astype(np.float64), out, p[1:9], -np.inf if p[0] == 0 else 0.0)
    return np.maximum.reduce(taps) if p[0] == 0 else sum(taps) / len(taps)


def _binary(out: Sequence[int], p: Sequence[int], a: Array, b: Array) -> Array:
    f = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MAX": np.maximum}[_name(BINARY, p[0])]
    return _act(p[1:4], f(a, b))


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


def _extremes(out: Sequence[int], p: Sequence[int], x: Array) -> Array:
    cuts = [b * x.shape[p[0]] // out[0] for b in range(out[0] + 1)]
    parts = [x.take(range(begin, end), p[0]) for begin, end in pairwise(cuts)]
    return np.array([(np.minimum(part.min(), 0), np.maximum(part.max(), 0)) for part in parts])


def _levels(out: Sequence[int], p: Sequence[int], extremes: Array) -> tuple[Array, Array]:
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
    "NGEMM": _ngemm,
    "IGEMM": _igemm,
    "ICONV": _iconv,
    "BGEMM": _bgemm,
    "BCONV": _bconv,
    "STRASSEN": lambda out, p, x: np.zeros(out),
    "CONV": _conv,
    "WINO": _wino,
    "DWCONV": _dwconv,
    "PWDW": _pwdw,
    "POOL": _pool,
    "UNARY": lambda out, p, x: _unary(p[0], x, _double(p[1]), _double(p[2])),
    "BINARY": _binary,
    "COPY": lambda out, p, x: x,
    "CAST": lambda out, p, x: x,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": lambda out, p, x, scale, zero: (x.astype(np.float64) - zero) * scale,
    "EXTREMES": _extremes,
    "LEVELS": _levels,
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


def _view(node: Node, x: Array) -> Array:
    out = node.output.shape
    match node.op:
        case "view.reshape":
            return x.reshape(out)
        case "view.transpose":
            return x.transpose(node.attrs["perm"])
        case "view.expand":
            return np.broadcast_to(x, out)
    index = [s + np.arange(d) * step for s, step, d in zip(node.attrs["starts"], node.attrs["steps"], out, strict=True)]
    return x[np.ix_(*index)]


def evaluate(graph: Graph, feeds: Sequence[Array]) -> list[Array]:
    """The graph's outputs, node by node."""
    values: dict[Tensor, Array] = dict(zip(graph.inputs, feeds, strict=True))

    def get(t: Tensor | None) -> Array | None:
        if t is None:
            return None
        return t.value() if t.is_const else values[t]

    for node in graph.nodes:
        inputs = [get(t) for t in node.inputs]
        if node.op.startswith("view."):
            y = _view(node, inputs[0])
        elif node.op == "concat":
            y = np.concatenate(inputs, axis=node.attrs["axis"])
        else:
            y = NUMPY_KERNELS[node.op](node.output.shape, params(node), *inputs)
        for t, found in zip(node.outputs, y if isinstance(y, tuple) else (y,), strict=True):
            values[t] = np.asarray(found, dtype=t.dtype)
    return [get(t) for t in graph.outputs]


def _filled(nbytes: int) -> bytearray:
    return bytearray(np.full(-(-nbytes // 4), np.nan, np.float32).tobytes())


class PlanExecutor:
    """Runs the bytes of a plan segment on NaN-filled memory, one tile at a time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.segment = bytes(plan.segment())
        self.header = np.frombuffer(self.segment, PLAN_HEADER, 1)[0]
        h = self.header
        self.ops = np.frombuffer(self.segment, OP, h["n_ops"], int(h["ops"]))
        self.operands = np.frombuffer(self.segment, OPERAND, h["n_operands"], int(h["operands"]))
        self.params = np.frombuffer(self.segment, np.int64, h["n_params"], int(h["params"]))
        self.tiles = np.frombuffer(self.segment, TILE, h["n_tiles"], int(h["tiles"]))
        self.children = np.frombuffer(self.segment, np.uint32, h["n_children"], int(h["children"]))
        self.missing = np.frombuffer(self.segment, np.uint32, h["n_tiles"], int(h["parent_counts"])).copy()
        self.initial = np.frombuffer(self.segment, np.uint32, h["n_initial"], int(h["initial"]))
        directory, size = plan.default_directory()
        weights = bytearray(size)
        for item in plan.weights:
            at = directory[item.key][1]
            item.write(memoryview(weights)[at : at + item.nbytes])
        arena, request = _filled(int(h["arena_bytes"])), _filled(int(h["request_bytes"]))
        self.spaces = {SPACES["ARENA"]: arena, SPACES["REQUEST"]: request, SPACES["PLAN"]: self.segment, SPACES["WEIGHTS"]: weights}

    def array(self, operand: Any) -> Array | None:
        if operand["dtype"] == DTYPES["NONE"]:
            return None
        rank = int(operand["rank"])
        dtype = NUMPY_BY_CODE[int(operand["dtype"])]
        dims = tuple(operand["dims"][:rank].tolist())
        strides = tuple(s * dtype.itemsize for s in operand["strides"][:rank].tolist())
        # One flat array and as_strided: np.ndarray refuses negative strides that start inside the buffer.
        flat = np.frombuffer(self.spaces[int(operand["space"])], np.uint8)
        start = flat[int(operand["offset"]) :][:0].view(dtype)
        return np.lib.stride_tricks.as_strided(start, dims, strides)

    def io(self, info: Any) -> Array:
        request = self.spaces[SPACES["REQUEST"]]
        return np.frombuffer(request, info.dtype, int(np.prod(info.shape)), info.offset).reshape(info.shape)

    def tile(self, t: int) -> None:
        tile = self.tiles[t]
        op = self.ops[tile["op"]]
        kernel = KERNEL_BY_CODE[int(op["kernel"])].name
        if kernel in ("JOIN", "END"):
            return
        first = int(op["operand"])
        out, *more = (self.array(self.operands[first + i]) for i in range(op["n_outputs"]))
        inputs = [self.array(self.operands[first + 1 + len(more) + i]) for i in range(op["n_inputs"])]
        p = self.params[int(op["param"]) : int(op["param"]) + int(op["n_params"])].tolist()
        found = NUMPY_KERNELS[kernel](out.shape, p, *inputs)
        whole, *others = (np.asarray(y) for y in (found if isinstance(found, tuple) else (found,)))
        for one, y in zip(more, others, strict=True):
            one[...] = y
        box = tuple(slice(lo, hi) for lo, hi in zip(tile["lo"].tolist(), tile["hi"].tolist(), strict=True))[: out.ndim]
        out[box] = whole[box]

    def run(self, feeds: Sequence[Array], order: str = "fifo", seed: int = 0) -> list[Array]:
        """Executes every tile in a legal order; all must become ready, END last."""
        for info, x in zip(self.plan.inputs, feeds, strict=True):
            self.io(info)[...] = x
        rng = np.random.default_rng(seed)
        missing = self.missing.tolist()
        ready = self.initial.tolist()
        done: list[int] = []
        with np.errstate(all="ignore"):
            while ready:
                k = {"fifo": 0, "lifo": len(ready) - 1, "random": int(rng.integers(len(ready)))}[order]
                t = ready.pop(k)
                self.tile(t)
                done.append(t)
                begin = int(self.tiles[t]["children"])
                for c in self.children[begin : begin + int(self.tiles[t]["n_children"])].tolist():
                    missing[c] -= 1
                    assert missing[c] >= 0
                    if missing[c] == 0:
                        ready.append(c)
        assert sorted(done) == list(range(len(self.tiles))), "a tile never became ready"
        assert done[-1] == self.header["end_tile"]
        return [self.io(info).copy() for info in self.plan.outputs]
