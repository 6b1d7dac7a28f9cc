"""The builder for lowering rules: emits kernel-level nodes and views, folds views of constants, packs weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import accuracy
from aspen_mp.planner.cost.algorithms import Phases
from aspen_mp.planner.ir.graph import Node, Shape, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.packing import byte_taps, low_bit, winograd
from aspen_mp.planner.ops.params import NO_ACT, Act
from aspen_mp.planner.ops.products import BYTES_GROUP, BYTES_HEADER, packed_bytes, run_time_panels

F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)
BOOL = np.dtype(np.bool_)
I8 = np.dtype(np.int8)
U8 = np.dtype(np.uint8)
I32 = np.dtype(np.int32)
I64 = np.dtype(np.int64)
MAX_RANK = 8
_SMALL = 1 << 16
broadcast = lru_cache(maxsize=4096)(np.broadcast_shapes)
"""The shape that these shapes broadcast to; layers repeat each other. Raises ValueError."""


class NoKernel(Exception):
    """No kernel serves this node (dtype, rank, options …): it runs as an opaque one. The text says why, for messages."""


Choices = list[int | Phases]
"""Choices of lowering that depend on shapes. That of a convolution is the side of Winograd's blocks, 0 for direct sums, or phases."""


class Builder:
    """Emits nodes into `nodes` under the name of the ONNX node being lowered. `budget`: how much error a layer's algorithm may add.
    `layers`: of weights that have been looked at, by their keys, whatever the input shapes were. `choices`: where it is empty, choices
    are noted there; else lowering follows it. `any_size`: the nodes do not depend on the shapes. `by_rows`: inputs arrive by
    rows."""

    def __init__(
        self,
        winograd: bool = True,
        bf16: bool = False,
        budget: accuracy.Budget = accuracy.UNLIMITED,
        layers: dict[str, accuracy.Layer] | None = None,
        choices: Choices | None = None,
        any_size: bool = False,
        by_rows: bool = False,
    ) -> None:
        self.winograd = winograd
        self.bf16 = bf16
        self.budget = budget
        self.nodes: list[Node] = []
        self.name = ""
        self.onnx_op = ""
        self._packed: dict[str, Tensor] = {}
        self._layers: dict[str, accuracy.Layer] = {} if layers is None else layers
        self._unnamed: dict[Tensor, accuracy.Layer] = {}
        self._once: dict[tuple[Tensor | None, str], Tensor] = {}
        self._serial = 0
        self.any_size = any_size
        self.by_rows = by_rows
        self._noted: Choices = [] if choices is None else choices
        self._followed = iter(list(self._noted))

    def start(self, node: Node) -> None:
        self.name, self.onnx_op = node.name, node.onnx_op or node.op
        reasons.about(node.name)

    def emit(self, op: str, inputs: Sequence[Tensor | None], shape: Shape, dtype: np.dtype[Any], **attrs: Any) -> Tensor:
        """A new node and its output."""
        if len(shape) > MAX_RANK:
            raise NoKernel(f"a tensor has {len(shape)} axes, more than {MAX_RANK}")
        self._serial += 1
        out = Tensor(f"{self.name}#{self._serial}", tuple(shape), dtype)
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        node = Node(op, self.name, trimmed, [out], attrs, self.onnx_op)
        out.producer = node
        self.nodes.append(node)
        return out

    def output(self, of: Tensor, shape: Shape, dtype: np.dtype[Any] | None = None) -> Tensor:
        """Another output of the node that computes `of`, of the same dtype where nothing else is said."""
        assert of.producer is not None
        self._serial += 1
        out = Tensor(f"{self.name}#{self._serial}", shape, of.dtype if dtype is None else dtype, producer=of.producer)
        of.producer.outputs.append(out)
        return out

    # ------------------------------------------------------------------------------------------------------ constants

    def constant(self, value: npt.ArrayLike, dtype: np.dtype[Any] | None = None) -> Tensor:
        """A constant of the plan."""
        array = np.asarray(value, dtype)
        self._serial += 1
        return Tensor(f"{self.name}#{self._serial}", array.shape, array.dtype, data=array)

    def once(self, source: Tensor | None, tag: str, make: Callable[[], Tensor]) -> Tensor:
        """A constant that many nodes derive from the same one, or from none: made for the first of them."""
        if (source, tag) not in self._once:
            self._once[source, tag] = make()
        return self._once[source, tag]

    def derived(
        self, source: Tensor, tag: str, shape: Shape, function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], view: bool = False
    ) -> Tensor:
        """A constant computed from another: at once where that is small or a numpy view, else when it is written. `tag` names the function
        and all its parameters."""
        key = None if source.weight_key is None else f"{source.weight_key}|{tag}"
        if key is not None and key in self._packed:
            return self._packed[key]
        name = f"{source.name}|{tag}"
        if source.data is not None and (view or source.nbytes <= _SMALL):
            tensor = Tensor(name, shape, source.dtype, data=function(source.data).reshape(shape), weight_key=key)
        else:
            tensor = Tensor(name, shape, source.dtype, weight_key=key, pack=partial(_write, source, function))
        if key is not None:
            self._packed[key] = tensor
        return tensor

    # ---------------------------------------------------------------------------------------------------------- views

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        if shape == tensor.shape:
            return tensor
        shape = tuple(int(d) for d in shape)
        if shape == tensor.shape:
            return tensor
        if prod(shape) != tensor.size:
            raise NoKernel(f"{list(tensor.shape)} cannot be reshaped to {list(shape)}")
        if tensor.is_const:
            return self.derived(tensor, f"reshape{list(shape)}", shape, lambda x: x.reshape(shape), view=_contiguous(tensor))
        if len(shape) > MAX_RANK:
            raise NoKernel(f"a tensor has {len(shape)} axes, more than {MAX_RANK}")
        if tensor.producer is not None and tensor.producer.op == "view.reshape":
            source = tensor.producer.inputs[0]
            assert source is not None
            return self.reshape(source, shape)
        return self.emit("view.reshape", [tensor], shape, tensor.dtype)

    def transpose(self, tensor: Tensor, perm: Sequence[int]) -> Tensor:
        perm = tuple(int(p) for p in perm)
        shape = tuple(tensor.shape[p] for p in perm)
        if perm == tuple(range(len(perm))):
            return tensor
        if tensor.is_const:
            moved_constant = self.derived(tensor, f"transpose{list(perm)}", shape, lambda x: x.transpose(perm), view=True)
            if tensor.stored is not None and moved_constant.stored is None:
                moved_constant.stored = low_bit.transposed(tensor.stored, perm)
            return moved_constant
        moved = [p for p in perm if tensor.shape[p] != 1]
        if moved == sorted(moved):  # only axes of dimension 1 move
            return self.reshape(tensor, shape)
        return self.emit("view.transpose", [tensor], shape, tensor.dtype, perm=perm)

    def slice(self, tensor: Tensor, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Tensor:
        starts, steps, shape = tuple(starts), tuple(steps), tuple(shape)
        if shape == tensor.shape and all(s == 0 and (t == 1 or d == 1) for s, t, d in zip(starts, steps, shape, strict=True)):
            return tensor
        if tensor.is_const:
            index = tuple(_slice(s, t, d) for s, t, d in zip(starts, steps, shape, strict=True))
            if tensor.data is not None and tensor.weight_key is None:
                return self.derived(tensor, "slice", shape, lambda x: x[index], view=True)
        return self.emit("view.slice", [tensor], shape, tensor.dtype, starts=starts, steps=steps)

    def expand(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        shape = tuple(int(d) for d in shape)
        if shape == tensor.shape:
            return tensor
        return self.emit("view.expand", [tensor], shape, tensor.dtype)

    def align(self, tensor: Tensor, rank: int) -> Tensor:
        """Leading axes of dimension 1 up to `rank`."""
        missing = rank - len(tensor.shape)
        return self.reshape(tensor, (1,) * missing + tensor.shape) if missing else tensor

    def insert_axes(self, tensor: Tensor, axes: Sequence[int], rank: int) -> Tensor:
        """The tensor's axes put at `axes` of a tensor of `rank` axes, 1 elsewhere (a vector of channels beside an image, say)."""
        shape = [1] * rank
        for axis, dim in zip(axes, tensor.shape, strict=True):
            shape[axis] = dim
        return self.reshape(tensor, shape)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        parts = [p for p in parts if p.shape[axis] != 0]
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        return self.emit("concat", parts, tuple(shape), parts[0].dtype, axis=axis)

    # -------------------------------------------------------------------------------------------------------- kernels

    def copy(self, tensor: Tensor) -> Tensor:
        return self.emit("COPY", [tensor], tensor.shape, tensor.dtype)

    def unary(self, opcode: str, x: Tensor, a: float = 0.0, b: float = 0.0, dtype: np.dtype[Any] | None = None) -> Tensor:
        return self.emit("UNARY", [x], x.shape, x.dtype if dtype is None else dtype, opcode=opcode, a=a, b=b)

    def binary(self, opcode: str, x: Tensor, y: Tensor, dtype: np.dtype[Any] | None = None) -> Tensor:
        shape = x.shape if x.shape == y.shape else broadcast(x.shape, y.shape)
        x, y = self.align(x, len(shape)), self.align(y, len(shape))
        return self.emit("BINARY", [x, y], shape, x.dtype if dtype is None else dtype, opcode=opcode, act=NO_ACT)

    def ternary(self, opcode: str, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        shape = broadcast(x.shape, y.shape, z.shape)
        x, y, z = (self.align(t, len(shape)) for t in (x, y, z))
        return self.emit("TERNARY", [x, y, z], shape, z.dtype, opcode=opcode, act=NO_ACT)

    def cast(self, x: Tensor, dtype: np.dtype[Any], saturate: bool = True) -> Tensor:
        if x.dtype == dtype:
            return x
        if x.dtype.kind == "c" or dtype.kind == "c":
            raise NoKernel("no kernel computes complex numbers")
        if x.is_const and x.nbytes <= _SMALL and x.data is not None and not (x.placed and dtype.kind not in "iub"):
            key = None if x.weight_key is None else f"{x.weight_key}|{dtype}"
            return Tensor(f"{x.name}|{dtype}", x.shape, dtype, data=x.data.astype(dtype), weight_key=key)
        return self.emit("CAST", [x], x.shape, dtype, saturate=saturate)

    def quantize(self, x: Tensor, scale: Tensor, zero: Tensor | None, dtype: np.dtype[Any], times: bool = False) -> Tensor:
        """round(x / scale) + zero, as near as `dtype` has it; with `times`, of x * scale."""
        return self.emit("QUANTIZE", [x, *self._beside(x, scale, zero)], x.shape, dtype, times=times)

    def dequantize(self, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        """(x - zero) * scale."""
        return self.emit("DEQUANTIZE", [x, *self._beside(x, scale, zero)], x.shape, F32)

    def _beside(self, x: Tensor, *parameters: Tensor | None) -> list[Tensor | None]:
        if any(np.broadcast_shapes(x.shape, t.shape) != x.shape for t in parameters if t is not None):
            raise ValueError(f"{[t.shape for t in parameters if t is not None]} beside {x.shape}")
        return [None if t is None else self.align(t, len(x.shape)) for t in parameters]

    def reduce(self, opcode: str, x: Tensor, axes: Sequence[int], keepdims: bool = True) -> Tensor:
        kept = tuple(1 if k in axes else d for k, d in enumerate(x.shape))
        out = self.emit("REDUCE", [x], kept, x.dtype, opcode=opcode, axes=tuple(sorted(axes)))
        return out if keepdims else self.reshape(out, [d for k, d in enumerate(x.shape) if k not in axes])

    def softmax(self, x: Tensor, axis: int, log: bool = False) -> Tensor:
        return self.emit("SOFTMAX", [x], x.shape, x.dtype, axis=axis, log=log)

    def gemm(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        alpha: float = 1.0,
        act: Act = NO_ACT,
        **attrs: bool,
    ) -> Tensor:
        """act(alpha * a @ b + bias) for ranks ≥ 2. A constant b of two axes (others 1) is packed, in the bits that it is stored in where
        these are few. f64 is not packed."""
        batch = broadcast(a.shape[:-2], b.shape[:-2])
        shape = (*batch, a.shape[-2], b.shape[-1])
        a = self.align(a, len(shape))
        if a.dtype == F64 and b.dtype == F64:
            bias = None if bias is None else self.align(bias, len(shape))
            return self.emit("DGEMM", [a, self.align(b, len(shape)), bias], shape, F64, alpha=alpha, act=act)
        require_f32(a, b)
        packed = b.is_const and prod(b.shape[:-2]) == 1
        bias = None if bias is None else self.align(bias, len(shape))
        form = low_bit.form_of(b.stored) if packed and b.stored is not None and not attrs else None
        reasons.tell(partial(_of_weights, packed, form))
        if form is not None and not (form.bits == 16 and self.bf16):  # those are multiplied in pairs, from 16 bits, too
            few = {"bits": form.bits, "block": form.block, "zeros": form.zeros, "zero": form.zero}
            return self.emit("QNBITGEMM", [a, self.packed_nbits(b, form), bias, None], shape, F32, alpha=alpha, act=act, **few)
        b = self.packed_panels(self.reshape(b, b.shape[-2:])) if packed else self.align(b, len(shape))
        return self.emit("GEMM", [a, b, bias, None], shape, F32, packed_b=packed, alpha=alpha, act=act, **attrs)

    def qgemm(self, a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
        """(a - a_zero) @ (b - b_zero) in int32, of bytes, for ranks ≥ 2 and a constant b of two axes (others 1). `a_zero`: one element or
        one a row; `b_zero`: a constant of one element or one a column."""
        rank = max(len(a.shape), len(b.shape))
        a = self.align(a, rank)
        panels, zeros = self.packed_bytes(self.reshape(b, b.shape[-2:]), b_zero)
        zero = None if a_zero is None else self.align(a_zero, rank)
        if zero is not None and np.broadcast_shapes(zero.shape, (*a.shape[:-1], 1)) != (*a.shape[:-1], 1):
            raise ValueError(f"zero points {list(zero.shape)} of rows {list(a.shape)}")
        shape = (*a.shape[:-1], b.shape[-1])
        return self.emit("QGEMM", [a, panels, None, None, None, zero], shape, I32, zeros=zeros, act=NO_ACT)

    def qmatmul(self, a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
        """As `qgemm`, for factors [..., M, K] and [..., K, N] with the same leading axes. `b_zero`: of one element."""
        unsigned, known = b.dtype == np.uint8, b_zero is None or b_zero.is_const
        point = 0 if b_zero is None or not known else int(b_zero.value().reshape(()))
        shape = (*b.shape[:-2], *run_time_panels(*b.shape[-2:]))
        packed = [b] if b_zero is None else [b, self.reshape(b_zero, (1,))]
        panels = self.emit("QPACK", packed, shape, I8, granules=(32, BYTES_GROUP))
        zero = None if a_zero is None else self.align(a_zero, len(a.shape))
        zeros = not known or point != (128 if unsigned else 0)
        return self.emit("QMATMUL", [a, panels, None, None, None, zero], (*a.shape[:-1], b.shape[-1]), I32, zeros=zeros, act=NO_ACT)

    def qconv(
        self, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, constant: Tensor | None, shape: Shape, **window: Shape
    ) -> Tensor:
        """The convolution of x - x_zero [N, C, H, W] with the constant w - w_zero [OC, C, KH, KW], of bytes, plus an i32 constant [OC], in
        int32. `x_zero`: one element; the padding is x_zero. `w_zero`: a constant of one element or OC. `window`: attributes of QCONV."""
        panels, zeros = self.packed_bytes(w, w_zero, constant)
        zero = None if x_zero is None else self.reshape(x_zero, (1,))
        return self.emit("QCONV", [x, panels, None, None, None, zero], shape, I32, zeros=zeros, act=NO_ACT, **window)

    def qdwconv(
        self, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, constant: Tensor | None, shape: Shape, **window: Shape
    ) -> Tensor:
        """As `qconv`, of weights [OC, 1, KH, KW], where each of the OC = M C channels is made of one of input."""
        panels, parts = byte_taps.packed(w, w_zero, constant)
        zero = None if x_zero is None else self.reshape(x_zero, (1,))
        return self.emit("QDWCONV", [x, panels, None, None, None, zero], shape, I32, parts=parts, act=NO_ACT, **window)

    # -------------------------------------------------------------------------------------------------------- weights

    def packed_panels(self, b: Tensor) -> Tensor:
        """[K, N] → [ceil(N / 32), K, 32], zero-padded."""
        k, n = b.shape
        panels = -(-n // 32)
        return self._pack(b, "panels", (panels, k, 32), _pack_panels)

    def packed_nbits(self, b: Tensor, form: low_bit.Form) -> Tensor:
        """A stored [K, N] → panels of QNBITGEMM (`low_bit.packed_shape`, u8)."""
        assert b.stored is not None
        key = None if b.weight_key is None else f"{b.weight_key}|{form.bits} bits"
        found = self._packed.get(key) if key is not None else None
        if found is None:
            shape = low_bit.packed_shape(b.shape[0], b.shape[1], form.bits, form.block, form.zeros)
            found = Tensor(f"{b.name}|{form.bits} bits", shape, U8, weight_key=key, pack=partial(low_bit.pack, b.stored, form))
            if key is not None:
                self._packed[key] = found
        return found

    def packed_bytes(self, b: Tensor, zero: Tensor | None, constant: Tensor | None = None) -> tuple[Tensor, bool]:
        """Bytes [K, N] or [OC, C, KH, KW] → panels of QGEMM or QCONV (`params.packed_bytes`, i8), and whether any zero point is not 0.
        `zero`: a constant of one element or one a column; `constant`: i32, as many, an addend of the sums. Unsigned bytes are stored less
        128, and so are their zero points. ValueError: `constant` or `zero` fits another number of columns."""
        columns = b.shape[0 if len(b.shape) == 4 else 1]
        for what, tensor in (("zero points", zero), ("constants", constant)):
            if tensor is not None and tensor.size not in {1, columns}:
                raise ValueError(f"{tensor.size} {what} of {columns} columns")
        zeros = np.zeros(columns, np.int32) + (0 if zero is None else zero.value().astype(np.int32).reshape(-1))
        zeros = zeros - 128 if b.dtype == np.uint8 else zeros
        more = np.zeros(columns, np.int32) + (0 if constant is None else constant.value().astype(np.int32).reshape(-1))
        shape = packed_bytes(b.shape[1], columns, prod(b.shape[2:])) if len(b.shape) == 4 else packed_bytes(*b.shape)
        tag = f"bytes {hashlib.sha256(zeros.tobytes() + more.tobytes()).hexdigest()[:32]}"
        return self._pack(b, tag, shape, partial(_pack_bytes, zeros, more), I8), bool(zeros.any())

    def packed_conv(self, w: Tensor, groups: int) -> Tensor:
        """[OC, C/G, KH, KW] or [OC, C/G, KD, KH, KW] → [G, ceil(OC/G / 32), KD*KH*KW*C/G, 32], zero-padded."""
        oc, c = w.shape[:2]
        panels = -(-(oc // groups) // 32)
        if planes_are_channels(w, groups):
            return self.packed_conv(self.derived(w, "planes", (oc, w.shape[2] * c, *w.shape[3:]), lambda v: np.moveaxis(v, 2, 1)), 1)
        return self._pack(w, f"conv{groups}", (groups, panels, prod(w.shape[2:]) * c, 32), partial(_pack_conv, groups))

    def packed_winograd(self, w: Tensor, block: int, strides: tuple[int, int]) -> Tensor:
        """[OC, C, KH, KW] or [OC, C, KD, KH, KW] → `winograd.packed_shape`, transformed and zero-padded."""
        shape = winograd.packed_shape(w.shape, block, strides)
        return self._pack(w, f"winograd{block}/{strides[0]}", shape, partial(winograd.pack, block, strides=strides))

    def decide(self, choose: Callable[[], int | Phases]) -> int | Phases:
        """Returns the next choice that depends on shapes: that of `choose`, unless it follows another graph's."""
        found = next(self._followed, None)
        if found is None:
            found = choose()
            self._noted.append(found)
        return found

    def accurate(self, w: Tensor, strides: tuple[int, int], block: int) -> bool:
        """Whether a convolution with weights `w` may run in blocks of `block` by Winograd's algorithm: for the error that it adds."""
        if self.budget == accuracy.UNLIMITED:
            return True
        return self.budget.allows(self._layer(w), strides, block)

    def _layer(self, w: Tensor) -> accuracy.Layer:
        layer = self._unnamed.get(w) if w.weight_key is None else self._layers.get(w.weight_key)
        if layer is None:
            layer = accuracy.layer_of(w.value())
            if w.weight_key is None:
                self._unnamed[w] = layer
            else:
                self._layers[w.weight_key] = layer
        return layer

    def packed_depthwise(self, w: Tensor) -> Tensor:
        """[OC, 1, KH, KW] or [OC, 1, KD, KH, KW] → [KD*KH*KW, OC]."""
        return self._pack(w, "depthwise", (prod(w.shape[2:]), w.shape[0]), _pack_depthwise)

    def packed_recurrent(self, r: Tensor, direction: int, gates: tuple[int, int], gates_first: bool = False) -> Tensor:
        """[directions, all gates · H, H] → [ceil(H / 16), H, gates, 16] of one direction, zero-padded: gates `gates[0]` to `gates[1]` of 16
        units side by side. `gates_first`: all of the first two gates, then the third, in as many floats (GRU that resets first)."""
        hidden = r.shape[2]
        tag = f"recurrent{direction}, {gates}" + ", gates first" * gates_first
        shape = (-(-hidden // 16), hidden, gates[1] - gates[0], 16)
        return self._pack(r, tag, shape, partial(pack_recurrent, direction, gates, gates_first))

    def _pack(
        self,
        source: Tensor,
        tag: str,
        shape: Shape,
        write: Callable[[npt.NDArray[Any], npt.NDArray[Any]], None],
        dtype: np.dtype[Any] = F32,
    ) -> Tensor:
        key = None if source.weight_key is None else f"{source.weight_key}|{tag}"
        found = self._packed.get(key) if key is not None else None
        if found is None:
            found = Tensor(f"{source.name}|{tag}", shape, dtype, weight_key=key, pack=partial(_write_packed, source, write))
            if key is not None:
                self._packed[key] = found
        return found


def _of_weights(packed: bool, form: low_bit.Form | None) -> Reason:
    """How the weights of a product are read."""
    if not packed:
        rule = "the right factor is computed, or there are several"
        return Reason("algorithm", "direct sums", rule, tried=(Tried("packed weights", rule), Tried("Strassen's algorithm", rule)))
    if form is None:
        return Reason(
            "precision", "f32 weights", "as the model stores them", tried=(Tried("weights of few bits", "they are not stored so"),)
        )
    return Reason("precision", f"weights of {form.bits} bits", "as the model stores them", tried=(Tried("f32 weights", "more to read"),))


FEW_CHANNELS = 16
"""With fewer, CONV takes the planes of a volume for more channels."""


def planes_are_channels(w: Tensor, groups: int) -> bool:
    """Whether packed weights [OC, C, KD, KH, KW] are those of a convolution of KD * C channels."""
    return len(w.shape) == 5 and w.shape[2] > 1 and groups == 1 and w.shape[1] < FEW_CHANNELS and w.shape[4] > 1


def _slice(start: int, step: int, dim: int) -> slice:
    stop = start + step * dim
    return slice(start, None if stop < 0 else stop, step)


def _contiguous(tensor: Tensor) -> bool:
    return tensor.data is not None and bool(tensor.data.flags.c_contiguous)


def _write(source: Tensor, function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], out: npt.NDArray[Any]) -> None:
    out[...] = function(source.value()).reshape(out.shape)


def _write_packed(source: Tensor, write: Callable[[npt.NDArray[Any], npt.NDArray[Any]], None], out: npt.NDArray[Any]) -> None:
    write(source.value(), out)


def _pack_panels(b: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    k, n = b.shape
    full = n // 32
    out[:full] = b[:, : full * 32].reshape(k, full, 32).transpose(1, 0, 2)
    if n % 32:
        out[full, :, : n % 32] = b[:, full * 32 :]
        out[full, :, n % 32 :] = 0


def _pack_bytes(zeros: npt.NDArray[np.int32], more: npt.NDArray[np.int32], b: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """[K, N], or [OC, C, KH, KW] tap by tap."""
    stored = (b ^ 128).view(np.int8) if b.dtype == np.uint8 else b
    taps = stored.transpose(2, 3, 1, 0).reshape(-1, b.shape[1], b.shape[0]) if b.ndim == 4 else stored[np.newaxis]
    n_taps, depth, _ = taps.shape
    out[...] = 0
    head = out[:, :BYTES_HEADER].view(np.int32)[..., 0]  # panel, sum or zero point or constant, column
    for panel in range(len(out)):
        span = slice(32 * panel, 32 * panel + 32)
        columns = taps[..., span]
        width = columns.shape[-1]
        head[panel, :, :width] = columns.sum(axis=(0, 1), dtype=np.int32), zeros[span], more[span]
        terms = np.zeros((n_taps, -(-depth // BYTES_GROUP) * BYTES_GROUP, width), np.int8)
        terms[:, :depth] = columns
        out[panel, BYTES_HEADER:, :width] = terms.reshape(-1, BYTES_GROUP, width).transpose(0, 2, 1)


def _pack_conv(groups: int, w: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    oc, c, taps = w.shape[0], w.shape[1], prod(w.shape[2:])
    n = oc // groups
    rows = w.reshape(groups, n, c, taps).transpose(0, 3, 2, 1)  # group, tap, channel, output channel
    full = n // 32
    shaped = out.reshape(groups, out.shape[1], taps, c, 32)
    for panel in range(full):
        shaped[:, panel] = rows[..., panel * 32 : panel * 32 + 32]
    if n % 32:
        shaped[:, full, ..., : n % 32] = rows[..., full * 32 :]
        shaped[:, full, ..., n % 32 :] = 0


def _pack_depthwise(w: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    out[...] = w.reshape(w.shape[0], -1).T


def pack_recurrent(k: int, gates: tuple[int, int], gates_first: bool, r: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Direction k of `r` [directions, all gates · H, H], as `Builder.packed_recurrent` has it."""
    panels, hidden, count, units = out.shape
    wide = np.zeros((panels * units, count, hidden), np.float32)
    wide[:hidden] = r[k].reshape(-1, hidden, hidden)[gates[0] : gates[1]].transpose(1, 0, 2)
    moved = wide.reshape(panels, units, count, hidden).transpose(0, 3, 2, 1)
    if not gates_first:
        out[...] = moved
        return
    flat = out.reshape(-1)
    n = panels * hidden * 2 * units
    flat[:n].reshape(panels, hidden, 2, units)[...] = moved[:, :, :2]
    flat[n:].reshape(panels, hidden, 1, units)[...] = moved[:, :, 2:]


def one_float(*tensors: Tensor | None) -> np.dtype[Any]:
    """The dtype of all of them, f32 or f64."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if dtypes not in ({F32}, {F64}):
        raise NoKernel(f"no kernel computes {' and '.join(sorted(map(str, dtypes)))}")
    return dtypes.pop()


def require_f32(*tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None and tensor.dtype != F32:
            raise NoKernel(f"no kernel computes {tensor.dtype}")


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise NoKernel(f"there is no axis {axis} among {rank}")
    return axis + rank if axis < 0 else axis


def scalar(tensor: Tensor | None) -> float | None:
    """The value of a constant of one element, else None."""
    if tensor is None or not tensor.is_const or tensor.size != 1:
        return None
    return float(tensor.value().reshape(()))


def ints(tensor: Tensor | None) -> list[int]:
    """The values of a constant vector of integers."""
    if tensor is None or not tensor.is_const:
        raise NoKernel("the value of an input is not known")
    return [int(v) for v in tensor.value().reshape(-1)]
