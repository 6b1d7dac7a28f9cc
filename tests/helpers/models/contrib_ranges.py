"""The ranges of onnxruntime's own quantised operators, by their documentation.

Each is what the operator of real numbers gives between DequantizeLinear and QuantizeLinear, or a sum of products times its scales."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
from onnx import helper
from value_ranges import RULES, Evaluator, Range, Rule, attributes_of, dequantised, need, of, optional, product, quantised

_INT32: Final = np.dtype(np.int32)


def _real(inputs: list[Range | None], k: int, axis: int = 1) -> Range:
    return dequantised(need(inputs, k), need(inputs, k + 1), optional(inputs, k + 2), axis)


def _levels(y: Range, inputs: list[Range | None], k: int) -> list[Range]:
    zero = need(inputs, k + 1)
    return [quantised(y, need(inputs, k), zero, zero.dtype)]


def _of_one(op: str, *names: str) -> Rule:
    def rule(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
        attributes = {n: v for n, v in attributes_of(node).items() if n in names}
        x = _real(inputs, 0)
        if not attributes_of(node).get("channels_last"):
            return _levels(run.apply(op, x, **attributes), inputs, 3)
        rank = len(x.shape)
        first = Range(*(np.moveaxis(v, -1, 1) for v in (x.low, x.high)), x.dtype)
        y = run.apply(op, first, **attributes)
        assert len(y.shape) == rank
        return _levels(Range(*(np.moveaxis(v, 1, -1) for v in (y.low, y.high)), y.dtype), inputs, 3)

    return rule


def _of_two(op: str) -> Rule:
    def rule(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
        return _levels(run.apply(op, _real(inputs, 0), _real(inputs, 3)), inputs, 6)

    return rule


def _mean(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    a = attributes_of(node)
    return _levels(run.apply("ReduceMean", _real(inputs, 0), of(np.array(a["axes"])), keepdims=a.get("keepdims", 1)), inputs, 3)


def _where(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    return _levels(run.apply("Where", inputs[0], _real(inputs, 1), _real(inputs, 4)), inputs, 7)


def _concat(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    parts = [_real(inputs, k) for k in range(2, len(inputs), 3)]
    return _levels(run.apply("Concat", *parts, axis=attributes_of(node)["axis"]), inputs, 0)


def _sums(run: Evaluator, x: Range, w: Range, x_zero: Range | None, w_zero: Range | None) -> Range:
    """(x - zero) @ (w - zero), exactly."""
    sides = [
        Range(v.low - (0 if z is None else z.high), v.high - (0 if z is None else z.low), _INT32) for v, z in ((x, x_zero), (w, w_zero))
    ]
    return product(run, helper.make_node("MatMul", ["x", "w"], ["y"]), *sides)


def _gemm(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """The scale of C is alpha times those of both factors, so it is added to the sums."""
    a = attributes_of(node)
    x, w = (need(inputs, k) for k in (0, 3))
    x = Range(x.low.T, x.high.T, x.dtype) if a.get("transA") else x
    w = Range(w.low.T, w.high.T, w.dtype) if a.get("transB") else w
    sums, c = _sums(run, x, w, optional(inputs, 2), optional(inputs, 5)), optional(inputs, 6)
    if c is not None:
        sums = Range(sums.low + c.low, sums.high + c.high, _INT32)
    y = _scaled(sums, of(np.float32(a.get("alpha", 1.0))), need(inputs, 1), need(inputs, 4))
    return _levels(y, inputs, 7) if optional(inputs, 7) is not None else [y]


def _scaled(sums: Range, *factors: Range) -> Range:
    low, high = [sums.low], [sums.high]
    for factor in factors:
        sides = [v * f for v in low + high for f in (factor.low, factor.high)]
        low, high = [np.minimum.reduce(sides)], [np.maximum.reduce(sides)]
    room = 2.0**-21 * np.maximum(np.abs(low[0]), np.abs(high[0]))
    return Range(low[0] - room, high[0] + room, np.dtype(np.float32))


def _added(run: Evaluator, y: Range, bias: Range | None) -> list[Range]:
    return [y if bias is None else run.apply("Add", y, bias)]


def _to_float(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x, w, x_scale, w_scale = (need(inputs, k) for k in range(4))
    sums = _sums(run, x, w, optional(inputs, 4), optional(inputs, 5))
    return _added(run, _scaled(sums, x_scale, w_scale), optional(inputs, 6))


def _dynamic(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    q, scale, zero = run(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), [inputs[0]])
    sums = _sums(run, q, need(inputs, 1), zero, optional(inputs, 3))
    return _added(run, _scaled(sums, scale, need(inputs, 2)), optional(inputs, 4))


def _attention(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """(x, weights, bias, scale, scale, mask, zero, zero), without a mask: queries, keys and values stand side by side."""
    x, w, bias, x_scale, w_scale = (need(inputs, k) for k in range(5))
    heads, (batch, length, _) = attributes_of(node)["num_heads"], x.shape
    joined = _added(run, _scaled(_sums(run, x, w, optional(inputs, 6), optional(inputs, 7)), x_scale, w_scale), bias)[0]
    width = joined.shape[-1] // 3
    perms: list[Any] = [(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)]
    shape = (batch, length, heads, width // heads)
    q, k, v = (
        Range(*(s[..., n * width : (n + 1) * width].reshape(shape).transpose(perm) for s in (joined.low, joined.high)), joined.dtype)
        for n, perm in enumerate(perms)
    )
    scores = _scaled(run.apply("MatMul", q, k), of(np.float32((width // heads) ** -0.5)))
    seen = run.apply("MatMul", run.apply("Softmax", scores, axis=-1), v)
    return [Range(*(s.transpose(0, 2, 1, 3).reshape(batch, length, width) for s in (seen.low, seen.high)), seen.dtype)]


def _nbits(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """(x, bytes [N, blocks, bytes of a block], scales, zero points). The lowest bits of a byte come first."""
    a = attributes_of(node)
    bits, size, depth, width = (a[n] for n in ("bits", "block_size", "K", "N"))

    def unpacked(x: Range, count: int) -> np.ndarray[Any, Any]:
        stored = x.low.astype(np.int64).reshape(width, -1)
        parts = [stored >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
        return np.stack(parts, -1).reshape(width, -1)[:, :count].astype(np.float64)

    blocks, zeros = -(-depth // size), optional(inputs, 3)
    points = np.full((width, blocks), float(1 << (bits - 1))) if zeros is None else unpacked(zeros, blocks)
    scales = need(inputs, 2).low.reshape(width, blocks)
    values = unpacked(need(inputs, 1), blocks * size).reshape(width, blocks, size)
    real = ((values - points[..., None]) * scales[..., None]).reshape(width, -1)[:, :depth].T
    x = need(inputs, 0)
    return [product(run, helper.make_node("MatMul", ["x", "w"], ["y"]), x, Range(real, real, x.dtype))]


_POOL: Final = ("count_include_pad", "kernel_shape", "pads", "strides")
RULES.update(
    {
        "QLinearAdd": _of_two("Add"),
        "QLinearMul": _of_two("Mul"),
        "QLinearAveragePool": _of_one("AveragePool", *_POOL),
        "QLinearGlobalAveragePool": _of_one("GlobalAveragePool"),
        "QLinearLeakyRelu": _of_one("LeakyRelu", "alpha"),
        "QLinearSigmoid": _of_one("Sigmoid"),
        "QLinearSoftmax": _of_one("Softmax", "axis"),
        "QLinearReduceMean": _mean,
        "QLinearWhere": _where,
        "QLinearConcat": _concat,
        "QGemm": _gemm,
        "QAttention": _attention,
        "MatMulIntegerToFloat": _to_float,
        "DynamicQuantizeMatMul": _dynamic,
        "MatMulNBits": _nbits,
    }
)
