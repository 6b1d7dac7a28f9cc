"""Kernel-level graphs by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Stored, Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.ops.packing import byte_taps, low_bit, winograd
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.ops.products import left_factors

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

    def by_strassen(self, x: Tensor, outputs: int) -> Tensor:
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
        return self.node("QGEMM", inputs, (*x.shape[:-1], outputs), dtype, zeros=zeros, act=NO_ACT)

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
        form = low_bit.form_of(weight.stored)
        assert form is not None
        packed = Builder().packed_nbits(weight, form)
        attrs = {"bits": form.bits, "block": form.block, "zeros": form.zeros, "zero": form.zero}
        beside = self.const(*[1] * (len(x.shape) - 1), outputs, weight=True) if bias else None
        return self.node("QNBITGEMM", [x, packed, beside, residual], (*x.shape[:-1], outputs), alpha=1.0, act=NO_ACT, **attrs)

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
        depthwise: bool = False,
    ) -> Tensor:
        """A convolution of bytes `x` that keeps the image's size but for strides. `zero`: of x; `columns`: zero points of the weights; of
        int32 without factor and bias; uint8 in steps of 4; `depthwise`: each output is made of one channel."""
        n, channels, *image = x.shape
        pads = [(k - 1) * dilation // 2 for k in kernel]
        size = [(d + 2 * a - (k - 1) * dilation - 1) // stride + 1 for d, a, k in zip(image, pads, kernel, strict=True)]
        of = np.dtype(np.uint8 if columns else np.int8)
        self.count += 1
        data, key = self.rng.integers(0, 5, (outputs, 1 if depthwise else channels, *kernel)).astype(of), f"w{self.count}"
        points = Tensor(f"z{self.count}", (outputs,), of, data=self.rng.integers(0, 3, outputs).astype(of)) if columns else None
        constant = Tensor(f"k{self.count}", (outputs,), np.dtype(np.int32), data=self.rng.integers(-9, 9, outputs).astype(np.int32))
        pack = byte_taps.packed if depthwise else Builder().packed_bytes
        weight, first = pack(Tensor(f"c{self.count}", data.shape, of, data=data, weight_key=key), points, constant)
        inputs = [x, weight, None, None, None, zero]
        attrs: dict[str, Any] = {"kernel": kernel, "strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": tuple(pads)}
        if dtype != np.int32:
            factor = self.const(1, outputs, 1, 1, weight=True)
            assert factor.data is not None
            factor.data[...] = factor.data / 64
            inputs[2:5] = [self.const(outputs, weight=True), residual, factor]
        if dtype == np.uint8:
            attrs.update(scale=4.0, zero=3)
        attrs["parts" if depthwise else "zeros"] = first
        return self.node("QDWCONV" if depthwise else "QCONV", inputs, (n, outputs, *size), dtype, act=NO_ACT, **attrs)

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
