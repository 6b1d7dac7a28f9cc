"""Linear quantisation. Results are those of ONNX's definition: products of integers are exact. Where the weights are constant, kernels for
bytes compute them. Else those for single precision do, whose sums are cut into parts that a float holds exactly."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Node, Shape, Tensor
from aspen_mp.planner.lower.builder import F32, Builder, NoKernel, axis_of, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.products import Window, convolve, window
from aspen_mp.planner.lower.registry import rule

_STORED = {"int8", "uint8", "int16", "uint16"}
_BYTES = {"int8", "uint8"}
_I32, _U8 = np.dtype(np.int32), np.dtype(np.uint8)
_BLOCK = 2048
"""Elements whose extremes are found together, at least."""
_FEW = 4
"""Blocks that are better than many which lie in small pieces."""
_EXACT = 1 << 24
"""Whole numbers up to here are floats."""


def _parameter(b: Builder, tensor: Tensor, node: Node, rank: int) -> Tensor:
    """Scale or zero point beside the data: one for all, or one for each index of an axis."""
    if tensor.size == 1:
        return b.reshape(tensor, (1,) * rank)
    if len(tensor.shape) != 1 or node.attrs.get("block_size", 0):
        raise NoKernel("no kernel has scales by blocks")
    return b.insert_axes(tensor, [axis_of(node.attrs.get("axis", 1), rank)], rank)


@rule("QuantizeLinear")
def _quantize(b: Builder, node: Node) -> Tensor:
    x, scale, zero = data(node), data(node, 1), optional(node, 2)
    require_f32(x, scale)
    to = node.output.dtype
    if to.name not in _STORED:
        raise NoKernel(f"no kernel computes {to}")
    rank = len(x.shape)
    return b.quantize(x, _parameter(b, scale, node, rank), None if zero is None else _parameter(b, zero, node, rank), to)


@rule("DequantizeLinear")
def _dequantize(b: Builder, node: Node) -> Tensor:
    x, scale, zero = data(node), data(node, 1), optional(node, 2)
    require_f32(scale)
    if x.dtype.name not in _STORED | {"int32"}:
        raise NoKernel(f"no kernel computes {x.dtype}")
    rank = len(x.shape)
    return b.dequantize(x, _parameter(b, scale, node, rank), None if zero is None else _parameter(b, zero, node, rank))


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(b: Builder, node: Node) -> list[Tensor]:
    """Quantises to bytes of a scale and a zero point that fit the data."""
    x = data(node)
    require_f32(x)
    if x.size == 0:
        return [b.constant(np.zeros(x.shape, _U8)), b.constant(np.float32(1)), b.constant(_U8.type(0))]
    whole = x if x.shape else b.reshape(x, (1,))
    axis = b.decide(lambda: _blocks(whole.shape)[0])
    blocks = b.decide(lambda: _blocks(whole.shape)[1])
    assert isinstance(axis, int)
    assert isinstance(blocks, int)
    scale = b.emit("QPARAMS", [b.emit("MINMAX", [whole], (blocks, 2), F32, axis=axis)], (), F32)
    zero = b.output(scale, (), _U8)
    return [b.quantize(x, scale, zero, _U8), scale, zero]


def _blocks(shape: Shape) -> tuple[int, int]:
    """The axis along which a tensor is cut for its extremes, and the number of blocks. The axis is one that no layout has innermost, if
    that is long enough: a block of an inner axis is read in small pieces. All sizes in a range have the blocks of the largest."""
    wanted = -(-prod(shape) // _BLOCK)
    inner = {len(shape) - 1} | ({1} if len(shape) in (4, 5) else set())  # channels may come last
    outer = [k for k in range(len(shape)) if k not in inner and shape[k] >= min(wanted, _FEW)]
    axis = max(outer or range(len(shape)), key=lambda k: min(shape[k], wanted))
    return axis, min(shape[axis], wanted)


@rule("FakeQuantize")
def _fake_quantize(b: Builder, node: Node) -> Tensor:
    """A function of our own: `passes.quantization`."""
    return b.unary("FAKE_QUANTIZE", data(node), node.attrs["scale"], node.attrs["lowest"])


@rule("LookUp")
def _look_up(b: Builder, node: Node) -> Tensor:
    """A function of our own: `passes.byte_tables`."""
    x = data(node)
    return b.emit("LOOKUP", [x, data(node, 1)], x.shape, node.output.dtype)


@rule("MatMulInteger")
def _matmul_integer(b: Builder, node: Node) -> Tensor:
    return _product(b, node, data(node), data(node, 1), optional(node, 2), optional(node, 3))


@rule("QLinearMatMul")
def _qlinear_matmul(b: Builder, node: Node) -> Tensor:
    x, xs, xz, y, ys, yz, zs, zz = (data(node, k) for k in range(8))
    sums = _product(b, node, x, y, xz, yz)
    factor = b.binary("DIV", b.binary("MUL", _of_rows(b, xs, x), _of_columns(b, ys)), _of_columns(b, zs))
    return _requantised(b, node, sums, factor, zz)


@rule("ConvInteger")
def _conv_integer(b: Builder, node: Node) -> Tensor:
    return _convolution(b, node, data(node), data(node, 1), optional(node, 2), optional(node, 3))


@rule("QLinearConv")
def _qlinear_conv(b: Builder, node: Node) -> Tensor:
    x, xs, xz, w, ws, wz, ys, yz = (data(node, k) for k in range(8))
    bias, rank = optional(node, 8), len(x.shape)
    sums = _convolution(b, node, x, w, xz, wz, bias)
    scale = b.insert_axes(ws, [1], rank) if ws.size > 1 else b.reshape(ws, ())
    factor = b.binary("DIV", b.binary("MUL", b.reshape(xs, ()), scale), b.reshape(ys, ()))
    return _requantised(b, node, sums, factor, yz)


def _requantised(b: Builder, node: Node, sums: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    to = node.output.dtype
    if to.name not in _BYTES or zero.size != 1:
        raise NoKernel(f"no kernel gives {to}, or the result has several zero points")
    return b.quantize(sums, factor, b.reshape(zero, ()), to, times=True)


def _of_rows(b: Builder, parameter: Tensor, x: Tensor) -> Tensor:
    """Scale or zero point of a left factor: one of all, or one of each row."""
    if parameter.size == 1:
        return b.reshape(parameter, ())
    if len(parameter.shape) != 1 or len(x.shape) < 2:
        raise NoKernel("each row of each matrix has a parameter of its own")
    return b.reshape(parameter, (parameter.size, 1))


def _of_columns(b: Builder, parameter: Tensor) -> Tensor:
    """That of a right factor: one of all, or one of each column."""
    if parameter.size > 1 and len(parameter.shape) != 1:
        raise NoKernel("each column of each matrix has a parameter of its own")
    return b.reshape(parameter, ()) if parameter.size == 1 else parameter


def _product(b: Builder, node: Node, x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None) -> Tensor:
    """(x - x_zero) @ (y - y_zero) in int32."""
    if min(len(x.shape), len(y.shape)) < 2 or x.size == 0 or y.size == 0:
        raise NoKernel("a factor is a vector or empty")
    if _packable(x, y, y_zero):
        zero = None if x_zero is None else _of_rows(b, x_zero, x)
        return b.reshape(b.qgemm(x, y, zero, y_zero), node.output.shape)
    if _alike(x, y, y_zero):
        return b.qmatmul(x, y, None if x_zero is None else _of_rows(b, x_zero, x), y_zero)
    left = _widened(b, x, None if x_zero is None else _of_rows(b, x_zero, x))
    right = _widened(b, y, None if y_zero is None else _of_columns(b, y_zero))
    depth, total = x.shape[-1], None
    for start, stop in _parts(right, -2, 0):
        part = (start, stop) != (0, depth)
        product = b.gemm(_cut(b, left, -1, start, stop) if part else left, _cut(b, right, -2, start, stop) if part else right, exact=True)
        whole = b.cast(product, _I32)
        total = whole if total is None else b.binary("ADD", total, whole)
    assert total is not None
    return b.reshape(total, node.output.shape)


def _packable(x: Tensor, y: Tensor, y_zero: Tensor | None) -> bool:
    """Whether a product's right factor is a weight: one matrix, with zero points of columns."""
    if {x.dtype.name, y.dtype.name} - _BYTES or not y.is_const or prod(y.shape[:-2]) != 1:
        return False
    return y_zero is None or (y_zero.is_const and (y_zero.size == 1 or len(y_zero.shape) == 1))


def _alike(x: Tensor, y: Tensor, y_zero: Tensor | None) -> bool:
    """Whether both factors are bytes with the same leading axes, and the right one, which is not constant, has one zero point."""
    return (
        not {x.dtype.name, y.dtype.name} - _BYTES
        and not y.is_const
        and x.shape[:-2] == y.shape[:-2]
        and (y_zero is None or y_zero.size == 1)
    )


def _convolution(
    b: Builder, node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """The convolution of x - x_zero with w - w_zero, plus a bias [OC], in int32; the padding is x_zero."""
    spatial, kernel, groups = x.shape[2:], w.shape[2:], int(node.attrs.get("group", 1))
    if len(spatial) not in {1, 2} or x.size == 0:
        raise NoKernel(f"no kernel convolves over {len(spatial)} axes")
    if x_zero is not None and x_zero.size != 1:
        raise NoKernel("the data have several zero points")
    strides, dilations, begin, _ = window(node, kernel, spatial)
    depthwise = groups == x.shape[1] > 1
    if (groups == 1 or depthwise) and _stored(x, w, w_zero, bias):
        lift = len(spatial) == 1  # a row of an image
        image, weights = (b.reshape(t, (*t.shape[:2], 1, *t.shape[2:])) if lift else t for t in (x, w))
        both = {"strides": strides, "dilations": dilations, "pads": begin}
        attrs = {name: (*((0 if name == "pads" else 1,) * lift), *values) for name, values in both.items()}
        out = (*node.output.shape[:2], *(1,) * lift, *node.output.shape[2:])
        convolution = b.qdwconv if depthwise else b.qconv
        sums = convolution(image, weights, x_zero, w_zero, bias, out, kernel=weights.shape[2:], **attrs)
        return b.reshape(sums, node.output.shape)
    left = _widened(b, x, None if x_zero is None else b.reshape(x_zero, ()))
    zero = None if w_zero is None else b.reshape(w_zero, ()) if w_zero.size == 1 else b.insert_axes(w_zero, [0], len(w.shape))
    right, shape = _widened(b, w, zero), node.output.shape
    if len(spatial) == 1:  # a row of an image
        left, right = b.reshape(left, (*x.shape[:2], 1, *spatial)), b.reshape(right, (*w.shape[:2], 1, *kernel))
        strides, dilations, begin, shape = [1, *strides], [1, *dilations], [0, *begin], (*shape[:2], 1, shape[2])
    parts, total = _parts(right, 1, len(spatial)), None
    if groups > 1 and len(parts) > 1:
        raise NoKernel("groups have too many terms for exact sums")
    for start, stop in parts:
        one, other = (left, right) if len(parts) == 1 else (_cut(b, t, 1, start, stop) for t in (left, right))
        product = convolve(b, one, other, None, shape, Window(groups, strides, dilations, begin, exact=True))
        whole = b.cast(product, _I32)
        total = whole if total is None else b.binary("ADD", total, whole)
    assert total is not None
    total = b.reshape(total, node.output.shape)
    return total if bias is None else b.binary("ADD", total, b.insert_axes(bias, [1], len(total.shape)))


def _stored(x: Tensor, w: Tensor, w_zero: Tensor | None, bias: Tensor | None) -> bool:
    """Whether a convolution's weights are constant bytes, and all that goes with each of its outputs is constant."""
    if {x.dtype.name, w.dtype.name} - _BYTES or not w.is_const or (bias is not None and not bias.is_const):
        return False
    return w_zero is None or (w_zero.is_const and (w_zero.size == 1 or len(w_zero.shape) == 1))


def _widened(b: Builder, x: Tensor, zero: Tensor | None) -> Tensor:
    """x - zero as floats; a constant where both are."""
    if x.dtype.name not in _BYTES:
        raise NoKernel(f"no kernel computes {x.dtype}")
    if x.is_const and (zero is None or zero.is_const):
        offset = np.zeros((), np.float32) if zero is None else zero.value().astype(np.float32)
        key = None if x.weight_key is None else f"{x.weight_key}|widened{list(offset.shape)}{offset.tobytes().hex()}"
        return Tensor(f"{x.name}|widened", x.shape, F32, weight_key=key, pack=partial(_widen, x, offset))
    wide = b.cast(x, F32)
    return wide if zero is None else b.binary("SUB", wide, b.cast(zero, F32))


def _widen(source: Tensor, offset: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    np.subtract(source.value(), offset, out=out, dtype=np.float32)


def _parts(right: Tensor, axis: int, window_axes: int) -> list[tuple[int, int]]:
    """Spans of the axis along which products are added, whose sums are exact whatever is on the left. A term is at most 255 on either side,
    and less where constants say so. Each step of the axis has a product for each element of the last `window_axes`."""
    rank = len(right.shape)
    axis, window = axis % rank, tuple(range(rank - window_axes, rank))
    depth, taps = right.shape[axis], prod(right.shape[k] for k in window)
    if not right.is_const:
        most = _EXACT // (255 * 255 * taps)
        if most == 0:
            raise NoKernel("windows have too many taps for exact sums")
        return _even(depth, -(-depth // most))
    rows = np.moveaxis(np.abs(right.value()).sum(window, dtype=np.float64, keepdims=True), axis, 0)
    for count in range(1, depth + 1):
        parts = _even(depth, count)
        if all(rows[start:stop].sum(0).max() * 255 <= _EXACT for start, stop in parts):
            return parts
    raise NoKernel("windows have too many taps for exact sums")


def _even(depth: int, count: int) -> list[tuple[int, int]]:
    size = -(-depth // count)
    return [(start, min(start + size, depth)) for start in range(0, depth, size)]


def _cut(b: Builder, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Part of an axis; of a constant a constant."""
    axis = axis % len(x.shape)
    shape = tuple(stop - start if k == axis else d for k, d in enumerate(x.shape))
    if x.is_const:
        index = tuple(slice(start, stop) if k == axis else slice(None) for k in range(len(shape)))
        return b.derived(x, f"part{axis}.{start}.{stop}", shape, lambda v: v[index])
    return b.slice(x, [start if k == axis else 0 for k in range(len(shape))], [1] * len(shape), shape)
