"""Quantised operators. Those between two quantisations become ONNX's operator between DequantizeLinear and QuantizeLinear, which is their
definition. Those that quantise while they run become products of integers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aspen_mp.planner.frontends.contrib.attention import attended
from aspen_mp.planner.frontends.contrib.body import Body, Rule
from aspen_mp.planner.frontends.contrib.spellings import channels_last


def _between(op: str, *attributes: str) -> Rule:
    """The operator of one real input between both conversions: (x, scale, zero, scale, zero)."""

    def rule(b: Body) -> list[str]:
        if not b.get("channels_last", 0):
            return [b.quantised(b.emit(op, b.real(0), **b.kept(attributes)), 3)]
        return [b.quantised(channels_last(b, b.real(0), op, **b.kept(attributes)), 3)]

    return rule


def _arithmetic(op: str) -> Rule:
    def rule(b: Body) -> list[str]:
        return [b.quantised(b.emit(op, b.real(0), b.real(3)), 6)]

    return rule


def _where(b: Body) -> list[str]:
    """(condition, x, scale, zero, y, scale, zero, scale, zero)."""
    return [b.quantised(b.emit("Where", b.name(0), b.real(1), b.real(4)), 7)]


def _matmul(b: Body) -> list[str]:
    """ONNX's own operator, which onnxruntime's tool writes in this domain where the bytes are floats."""
    return [b.emit("QLinearMatMul", *map(b.name, range(8)))]


def _dynamic_bytes(b: Body) -> list[str]:
    """ONNX's own operator, for any type of floats: the scale is of the input's."""
    x, outs = b.tensor(0), [f"{b.node.output[0]}\0{what}" for what in ("bytes", "scale", "zero")]
    if x.dtype == np.float32:
        return b.several("DynamicQuantizeLinear", b.name(0), outs=outs)
    y, scale, zero = b.several("DynamicQuantizeLinear", b.cast(b.name(0), np.float32), outs=outs)
    return [y, b.cast(scale, x.dtype), zero]


def _mean(b: Body) -> list[str]:
    axes = b.get("axes", None)
    y = b.emit("ReduceMean", b.real(0), b.ints(*axes) if axes else "", keepdims=b.get("keepdims", 1))
    return [b.quantised(y, 3)]


def _convolution(b: Body) -> list[str]:
    """ONNX's own operator, but that channels may come last; weights are [M, C / groups, …] all the same."""
    attributes, others = b.kept(("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")), [b.name(k) for k in range(1, 9)]
    if b.get("channels_last", 0):
        return [channels_last(b, b.name(0), "QLinearConv", *others, **attributes)]
    return [b.emit("QLinearConv", b.name(0), *others, **attributes)]


def _concat(b: Body) -> list[str]:
    parts = [b.real(k) for k in range(2, len(b.node.input), 3)]
    return [b.quantised(b.emit("Concat", *parts, axis=b.get("axis", 1)), 0)]


def _gemm(b: Body) -> list[str]:
    """The bias is of 32 bits, its scale that of the product, `alpha` included."""
    transposed, alpha = b.get("transB", 0), b.get("alpha", 1.0)
    inputs = [b.real(0), b.real(3, axis=0 if transposed else 1)]
    if b.name(6):
        scale = b.emit("Mul", b.name(1), b.name(4))
        if alpha != 1.0:
            scale = b.emit("Mul", scale, b.number(alpha, 1))
        inputs.append(b.emit("Mul", b.emit("Cast", b.name(6), to=1), scale))  # float32
    y = b.emit("Gemm", *inputs, **b.kept(("alpha", "transA", "transB")))
    return [b.quantised(y, 7) if b.name(7) else y]


def _quantize(b: Body) -> list[str]:
    return [b.emit("QuantizeLinear", *map(b.name, range(3)), axis=b.get("axis", 1))]


def _dequantize(b: Body) -> list[str]:
    return [b.emit("DequantizeLinear", *map(b.name, range(3)), axis=b.get("axis", 1))]


def _softmax(b: Body) -> list[str]:
    """Softmax of the opset in an attribute; before 13 all axes from `axis` on are one."""
    shape = b.tensor(0).shape
    axis = b.get("axis", -1) % max(len(shape), 1)
    if b.get("opset", 13) >= 13 or axis == len(shape) - 1:
        return [b.quantised(b.emit("Softmax", b.real(0), axis=axis), 3)]
    flat = b.emit("Softmax", b.emit("Flatten", b.real(0), axis=axis), axis=1)
    return [b.quantised(b.emit("Reshape", flat, b.emit("Shape", b.name(0))), 3)]


# --------------------------------------------------------------------------------------------------- products of integers


def _product(b: Body, x: str, w: str, x_scale: str, w_scale: str, x_zero: str, w_zero: str, bias: str) -> str:
    """As quantize_dynamic spells it: one kernel computes it (`passes.integer_products`)."""
    sums = b.emit("MatMulInteger", x, w, x_zero, w_zero)
    return b.plus(b.emit("Mul", b.emit("Cast", sums, to=1), b.emit("Mul", x_scale, w_scale)), bias)  # float32


def _to_float(b: Body) -> list[str]:
    """(a, b, scale, scale, zero, zero, bias)."""
    if b.tensor(2).size == 1:
        return [_product(b, *(b.name(k) for k in range(7)))]
    reals = []
    for k in (0, 1):
        scale, rank = b.tensor(k + 2), len(b.tensor(k).shape)
        along: dict[str, Any] = {"axis": rank - 1} if scale.size > 1 else {}
        reals.append(b.emit("DequantizeLinear", b.name(k), b.name(k + 2), b.name(k + 4), **along))
    return [b.plus(b.emit("MatMul", *reals), b.name(6))]


def _dynamic(b: Body) -> list[str]:
    """(a, b, scale, zero, bias): the left factor is quantised here."""
    outs = [f"{b.node.output[0]}\0{what}" for what in ("bytes", "scale", "zero")]
    x, x_scale, x_zero = b.several("DynamicQuantizeLinear", b.name(0), outs=outs)
    return [_product(b, x, b.name(1), x_scale, b.name(2), x_zero, b.name(3), b.name(4))]


def _attention(b: Body) -> list[str]:
    """(x, weights, bias, scale, scale, mask, zero, zero, keys and values)."""
    projected = _product(b, *(b.name(k) for k in (0, 1, 3, 4, 6, 7, 2)))
    return attended(b, projected, b.tensor(1).shape[1], mask=5, past=8, bias=-1)


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
RULES: Final[dict[str, Rule]] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_bytes,
    "DynamicQuantizeMatMul": _dynamic,
    "MatMulIntegerToFloat": _to_float,
    "QAttention": _attention,
    "QGemm": _gemm,
    "QLinearAdd": _arithmetic("Add"),
    "QLinearAveragePool": _between("AveragePool", *_POOL),
    "QLinearConcat": _concat,
    "QLinearConv": _convolution,
    "QLinearGlobalAveragePool": _between("GlobalAveragePool"),
    "QLinearLeakyRelu": _between("LeakyRelu", "alpha"),
    "QLinearMatMul": _matmul,
    "QLinearMul": _arithmetic("Mul"),
    "QLinearReduceMean": _mean,
    "QLinearSigmoid": _between("Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": _quantize,
}
UNKNOWN: Final = {"QAttention": {"do_rotary", "past_present_share_buffer"}}
