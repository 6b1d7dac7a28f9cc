"""The values that a quantised network may have: for each element the lowest and the highest.

They are computed in float64, by ONNX's definition. A range is one value where arithmetic is exact. Otherwise it has room for sums in any
order, and for products that are not rounded in between. A level is a range of two where that decides to which one a value is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, np.dtype[Any]]
F32: Final = np.dtype(np.float32)
ROUNDING: Final = {F32: 2.0**-22, np.dtype(np.float16): 2.0**-10, np.dtype(ml_dtypes.bfloat16): 2.0**-7, np.dtype(np.float64): 0.0}
"""Relative error of a few roundings in a row."""
_FUNCTION_ERROR: Final = 4e-6
"""Relative error of exponentials and the like."""
_EXACT: Final = 2.0**24
"""Whole numbers up to here are floats of 32 bits."""


@dataclass(frozen=True)
class Range:
    """`low` and `high`: float64, of the same shape, both included. `dtype`: the type of the tensor."""

    low: Array
    high: Array
    dtype: np.dtype[Any]

    @property
    def exact(self) -> bool:
        return bool(np.array_equal(self.low, self.high))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    def holds(self, found: Array) -> bool:
        """Whether an array may be this tensor."""
        wide = found.astype(np.float64)
        return found.dtype == self.dtype and found.shape == self.shape and bool(((self.low <= wide) & (wide <= self.high)).all())


def of(value: Any) -> Range:
    """The range of a known tensor."""
    array = np.asarray(value)
    wide = array.astype(np.float64)
    return Range(wide, wide, array.dtype)


def _rounded(low: Array, high: Array, dtype: np.dtype[Any], slack: Array | float = 0.0) -> Range:
    """Return the range of real numbers in a type of floats."""
    largest = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(over="ignore"):
        known = (low == high) & (low.astype(dtype).astype(np.float64) == low)
    room = np.where(known, 0.0, largest * ROUNDING[dtype] + (1e-40 if dtype == F32 else 1e-7)) + slack
    return Range(low - room, high + room, dtype)


def _corners(f: Callable[[Array, Array], Array], x: Range, y: Range, dtype: np.dtype[Any]) -> Range:
    """A function of two arguments that is monotone in each."""
    found = [f(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
    return _rounded(np.minimum.reduce(found), np.maximum.reduce(found), dtype)


def evaluated(node: onnx.NodeProto, arrays: Sequence[Array | None], opset: int) -> list[Array]:
    """The node's results by ONNX's own evaluator."""
    feeds = {n: x for n, x in zip(node.input, arrays, strict=False) if n and x is not None}
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in node.output]
    model = helper.make_model(helper.make_graph([node], "g", infos, outs), opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    return [np.asarray(x) for x in ReferenceEvaluator(model).run(None, feeds)]


class Evaluator:
    """Evaluates nodes one by one. `opset`: of ONNX's own operators."""

    def __init__(self, opset: int) -> None:
        self.opset = opset

    def __call__(self, node: onnx.NodeProto, inputs: Sequence[Range | None]) -> list[Range]:
        """The node's results. KeyError: nothing is known about the operator."""
        given = list(inputs)
        rule = RULES[node.op_type]
        return rule(self, node, given)

    def apply(self, op: str, *inputs: Range | None, **attributes: Any) -> Range:
        """The first result of an operator."""
        names = [f"i{k}" if x is not None else "" for k, x in enumerate(inputs)]
        return self(helper.make_node(op, names, ["o"], **attributes), inputs)[0]

    def plain(self, node: onnx.NodeProto, arrays: Sequence[Array | None]) -> Array:
        return evaluated(node, arrays, self.opset)[0]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


Rule = Callable[[Evaluator, onnx.NodeProto, list[Range | None]], list[Range]]


def need(inputs: Sequence[Range | None], k: int) -> Range:
    x = inputs[k]
    assert x is not None
    return x


def optional(inputs: Sequence[Range | None], k: int) -> Range | None:
    return inputs[k] if k < len(inputs) else None


# -------------------------------------------------------------------------------------------------- moves, choices, functions


def _moved(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """Results are among the values, or grow with them; integers beside them are exact."""
    dtype = next(x.dtype for x in inputs[1 if node.op_type == "Where" else 0 :] if x is not None)

    def sides(high: bool) -> list[Array]:
        arrays = [
            None if x is None else (x.high if high else x.low) if x.dtype == dtype and dtype.kind != "b" else x.low.astype(x.dtype)
            for x in inputs
        ]
        if dtype == np.int64:
            arrays = [None if a is None else a.astype(np.int64) for a in arrays]
        return [np.asarray(a, np.float64) for a in evaluated(node, arrays, run.opset)]

    return [Range(low, high, dtype) for low, high in zip(sides(False), sides(True), strict=True)]


def _windows(node: onnx.NodeProto, x: Array, fill: float) -> Array:
    """The windows of a pooling, as axes behind the others. ONNX's evaluator has other windows where pads differ."""
    a, n = attributes_of(node), x.ndim - 2
    pads = a.get("pads", [0] * 2 * n)
    wide = np.pad(x, [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)], constant_values=fill)
    found = np.lib.stride_tricks.sliding_window_view(wide, a["kernel_shape"], tuple(range(2, x.ndim)))
    return found[(slice(None), slice(None), *(slice(None, None, s) for s in a.get("strides", [1] * n)))]


def _maximum(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x = need(inputs, 0)
    axes = tuple(range(len(x.shape), 2 * len(x.shape) - 2))
    return [Range(*(_windows(node, side, -np.inf).max(axes) for side in (x.low, x.high)), x.dtype)]


def _largest(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x = need(inputs, 0)
    return [Range(*(side.max(tuple(range(2, side.ndim)), keepdims=True) for side in (x.low, x.high)), x.dtype)]


def _average(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x = need(inputs, 0)
    axes = tuple(range(len(x.shape), 2 * len(x.shape) - 2))
    count = _windows(node, np.ones(x.shape), float(attributes_of(node).get("count_include_pad", 0))).sum(axes)
    low, high, size = (_windows(node, v, 0.0).sum(axes) / count for v in (x.low, x.high, np.maximum(np.abs(x.low), np.abs(x.high))))
    return [_rounded(low, high, x.dtype, 4 * ROUNDING[x.dtype] * size)]


def _averaged(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """Linear, with factors of at least 0."""
    x = need(inputs, 0)
    others = [None if t is None else t.low.astype(t.dtype) for t in inputs[1:]]
    low, high, size = (run.plain(node, [side, *others]) for side in (x.low, x.high, np.maximum(np.abs(x.low), np.abs(x.high))))
    return [_rounded(low, high, x.dtype, 4 * ROUNDING[x.dtype] * np.abs(size))]


def _falling(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x = need(inputs, 0)
    return [Range(-x.high, -x.low, x.dtype)]


_SLOPES: Final = {"Erf": 1.13, "Gelu": 1.2, "HardSwish": 1.5, "Mish": 1.1, "Sigmoid": 0.25, "Softplus": 1.0, "Swish": 1.1, "Tanh": 1.0}
_RISING: Final = ("Elu", "Exp", "HardSigmoid", "LeakyRelu", "Selu", "Sqrt")


def _sloped(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """A function with a steepest slope."""
    x = need(inputs, 0)
    y = run.plain(node, [(x.low + x.high) / 2])
    room = (x.high - x.low) / 2 * _SLOPES[node.op_type] + _FUNCTION_ERROR * (np.abs(y) + 0.05 * np.minimum(np.abs(x.low), 1.0))
    return [_rounded(y - room, y + room, x.dtype)]


def _rising(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x = need(inputs, 0)
    low, high = run.plain(node, [x.low]), run.plain(node, [x.high])
    return [_rounded(low, high, x.dtype, _FUNCTION_ERROR * np.maximum(np.abs(low), np.abs(high)))]


def _softmax(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x = need(inputs, 0)
    y, spread = run.plain(node, [(x.low + x.high) / 2]), float((x.high - x.low).max(initial=0.0))
    return [_rounded(y * np.exp(-spread) * (1 - 8e-6), y * np.exp(spread) * (1 + 8e-6), x.dtype)]


def _layer_norm(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """Normalise over the last axis. A change of all values by r at most changes the normalised ones by 2 r (1 + |y|) / deviation."""
    x, scale = need(inputs, 0), need(inputs, 1)
    shift = optional(inputs, 2)
    middle = (x.low + x.high) / 2
    centred = middle - middle.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + attributes_of(node).get("epsilon", 1e-5))
    y = centred / deviation
    size = np.abs(middle).max(-1, keepdims=True)
    radius = ((x.high - x.low) / 2).max(-1, keepdims=True) + 2e-6 * size
    room = (2 * radius / deviation * (1 + np.abs(y)) + 1e-5 * np.abs(y)) * np.abs(scale.low)
    y = y * scale.low + (0.0 if shift is None else shift.low)
    return [_rounded(y - room, y + room, x.dtype)]


def _arithmetic(f: Callable[[Array, Array], Array]) -> Rule:
    def rule(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
        x, y = need(inputs, 0), need(inputs, 1)
        return [_corners(f, x, y, x.dtype)]

    return rule


def _sloped_below(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * slope, x)


def _prelu(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x, slope = need(inputs, 0), need(inputs, 1)
    found = _corners(_sloped_below, x, slope, x.dtype)
    crosses = (x.low < 0) & (x.high > 0)
    return [
        Range(np.where(crosses, np.minimum(found.low, 0), found.low), np.where(crosses, np.maximum(found.high, 0), found.high), x.dtype)
    ]


def _cast(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x, to = need(inputs, 0), np.dtype(helper.tensor_dtype_to_np_dtype(attributes_of(node)["to"]))
    return [_rounded(x.low, x.high, to) if to in ROUNDING else Range(np.trunc(x.low), np.trunc(x.high), to)]


# ------------------------------------------------------------------------------------------------------------------ products


def unit(x: Array) -> float:
    """The largest power of two of which all elements are multiples."""
    mantissa, exponent = np.frexp(x[x != 0])
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponent - 53).min(initial=2.0**100))


def product(run: Evaluator, node: onnx.NodeProto, x: Range, w: Range, bias: Array | float = 0.0) -> Range:
    """A bilinear operator of its first two inputs. `bias`: float64, added behind it, with the shape of the result."""
    middles, radii = zip(*(((t.low + t.high) / 2, (t.high - t.low) / 2) for t in (x, w)), strict=True)
    y = run.plain(node, middles) + bias
    size = run.plain(node, [np.abs(m) + r for m, r in zip(middles, radii, strict=True)]) + np.abs(bias)
    room = np.zeros(())
    if not (x.exact and w.exact):
        room = run.plain(node, [np.abs(middles[0]), radii[1]]) + run.plain(node, [radii[0], np.abs(middles[1]) + radii[1]])
    if x.dtype.kind in "iu":
        return Range(np.rint(y - room), np.rint(y + room), np.dtype(np.int32))
    step = min(unit(middles[0]) * unit(middles[1]), unit(np.asarray(bias)))
    if x.exact and w.exact and float(size.max(initial=0.0)) <= _EXACT * step:
        return Range(y, y, x.dtype)
    terms = float(run.plain(node, [np.ones_like(m) for m in middles]).max(initial=1.0)) + 8
    error = ROUNDING[x.dtype] if x.dtype != F32 else 2.0**-24
    return Range(y - room - terms * error * size, y + room + terms * error * size, x.dtype)


def _two(node: onnx.NodeProto, op: str = "") -> onnx.NodeProto:
    """The node without its inputs behind the first two."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.op_type, plain.domain = op or node.op_type, ""
    del plain.input[:]
    plain.input.extend(["x", "w"])
    return plain


def _convolved(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x, w, bias = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    if bias is None:
        return [product(run, _two(node), x, w)]
    assert np.abs(bias.high - bias.low).max(initial=0.0) <= 1e-5 * max(np.abs(bias.low).max(initial=0.0), 1e-30)
    room = ((bias.high - bias.low) / 2).reshape(-1, *[1] * (len(x.shape) - 2))
    y = product(run, _two(node), x, w, ((bias.high + bias.low) / 2).reshape(room.shape))
    return [Range(y.low - room, y.high + room, y.dtype)]


def _multiplied(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    return [product(run, _two(node), need(inputs, 0), need(inputs, 1))]


def _gemm(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x, w, c, a = need(inputs, 0), need(inputs, 1), optional(inputs, 2), attributes_of(node)
    x = Range(x.low.T, x.high.T, x.dtype) if a.get("transA") else x
    w = Range(w.low.T, w.high.T, w.dtype) if a.get("transB") else w
    alpha, beta = of(np.float32(a.get("alpha", 1.0))), of(np.float32(a.get("beta", 1.0)))
    if alpha.low == 1.0 and beta.low == 1.0 and c is not None and c.exact:
        return [product(run, helper.make_node("MatMul", ["x", "w"], ["y"]), x, w, c.low)]
    y = _corners(np.multiply, product(run, helper.make_node("MatMul", ["x", "w"], ["y"]), x, w), alpha, x.dtype)
    return [y if c is None else _corners(np.add, y, _corners(np.multiply, c, beta, x.dtype), x.dtype)]


# -------------------------------------------------------------------------------------------------------------- quantisation


def beside(parameter: Range | None, shape: tuple[int, ...], axis: int, block: int) -> tuple[Array, Array]:
    """Scales or zero points as they stand beside the data."""
    if parameter is None:
        return np.zeros(()), np.zeros(())
    sides = []
    for side in (parameter.low, parameter.high):
        if side.size == 1:
            sides.append(side.reshape(()))
        elif block:
            sides.append(np.repeat(side, block, axis)[tuple(slice(0, d) for d in shape)])
        else:
            sides.append(side.reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))]))
    return sides[0], sides[1]


def limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    info = ml_dtypes.iinfo(dtype) if dtype.name in {"int4", "uint4", "int2", "uint2"} else np.iinfo(dtype)
    return float(info.min), float(info.max)


def quantised(x: Range, scale: Range, zero: Range | None, to: np.dtype[Any], axis: int = 1, block: int = 0) -> Range:
    (small, large), (zero_low, zero_high) = (beside(p, x.shape, axis, block) for p in (scale, zero))
    steps = [x.low / small, x.low / large, x.high / small, x.high / large]
    low, high = np.minimum.reduce(steps), np.maximum.reduce(steps)
    if x.dtype == F32 and scale.dtype == F32:
        with np.errstate(over="ignore"):
            once = (x.low.astype(F32) / np.broadcast_to(small, x.shape).astype(F32)).astype(np.float64)
        known = (x.low == x.high) & (x.low.astype(F32) == x.low) & (small == large)
    else:
        once, known = low, (low == high) & (low.astype(x.dtype).astype(np.float64) == low)
    room = ROUNDING[max(x.dtype, scale.dtype, key=lambda d: ROUNDING[d])]
    low = np.where(known, once, low - np.abs(low) * room)
    high = np.where(known, once, high + np.abs(high) * room)
    if to.kind not in "iu" and to.name not in {"int4", "uint4"}:
        least, most = float(ml_dtypes.finfo(to).min), float(ml_dtypes.finfo(to).max)
        return Range(*(np.clip(v, least, most).astype(F32).astype(to).astype(np.float64) for v in (low, high)), to)
    least, most = limits(to)
    return Range(np.clip(np.rint(low) + zero_low, least, most), np.clip(np.rint(high) + zero_high, least, most), to)


def _quantize(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    a, zero = attributes_of(node), optional(inputs, 2)
    named = a.get("output_dtype", 0)
    to = zero.dtype if zero is not None else np.dtype(helper.tensor_dtype_to_np_dtype(named) if named else np.uint8)
    return [quantised(need(inputs, 0), need(inputs, 1), zero, to, a.get("axis", 1), a.get("block_size", 0))]


def dequantised(x: Range, scale: Range, zero: Range | None = None, axis: int = 1, block: int = 0, to: np.dtype[Any] | None = None) -> Range:
    (small, large), (zero_low, zero_high) = (beside(p, x.shape, axis, block) for p in (scale, zero))
    to = to or scale.dtype
    low, high = x.low - zero_high, x.high - zero_low
    found = [low * small, low * large, high * small, high * large]
    low, high = np.minimum.reduce(found), np.maximum.reduce(found)
    if to != F32:
        return _rounded(low, high, to)
    once = [np.asarray(v, F32).astype(np.float64) for v in (low, high)]  # rounded, or not
    room = 2.0**-23 * np.abs(high) if x.dtype == np.int32 and np.abs(x.low).max(initial=0.0) > _EXACT else 0.0
    return Range(np.minimum(low, once[0]) - room, np.maximum(high, once[1]) + room, to)


def _dequantize(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    a = attributes_of(node)
    named = a.get("output_dtype", 0)
    to = np.dtype(helper.tensor_dtype_to_np_dtype(named)) if named else None
    return [dequantised(need(inputs, 0), need(inputs, 1), optional(inputs, 2), a.get("axis", 1), a.get("block_size", 0), to)]


def _dynamic(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    x, bytes_ = need(inputs, 0), np.dtype(np.uint8)
    ends = [(min(float(side.min()), 0.0), max(float(side.max()), 0.0)) for side in (x.low, x.high)]
    if x.exact and x.dtype == F32:
        low, high = (np.float32(v) for v in ends[0])
        scale = of((high - low) / np.float32(255) if high > low else np.float32(1))  # as onnxruntime: ONNX would divide by 0
        zero = of(np.uint8(np.clip(np.rint(-low / np.float32(scale.low)), 0, 255)))
    else:
        scale = _rounded(*(np.asarray((high - low) / 255) for low, high in ends), F32)
        steps = np.array([-low / s for low, _ in ends for s in (scale.low, scale.high)])
        sides = np.rint(steps.min() * (1 - 2**-22)), np.rint(steps.max() * (1 + 2**-22))
        zero = Range(*(np.asarray(np.clip(v, 0, 255), np.float64) for v in sides), bytes_)
    return [quantised(x, scale, zero, bytes_), scale, zero]


def _less(x: Range, zero: Range | None, axis: int | None = None) -> Range:
    """Integers less their zero points, which belong to one axis where there are several."""
    low, high = beside(zero, x.shape, axis if axis is not None else -1, 0)
    return Range(x.low - high, x.high - low, np.dtype(np.int32))


def _rows(x: Range) -> int | None:
    return len(x.shape) - 2 if len(x.shape) > 1 else None


def _integers(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """ConvInteger and MatMulInteger."""
    x, w = need(inputs, 0), need(inputs, 1)
    if node.op_type == "ConvInteger":
        return [product(run, _two(node, "Conv"), _less(x, optional(inputs, 2)), _less(w, optional(inputs, 3), 0))]
    return [product(run, _two(node, "MatMul"), _less(x, optional(inputs, 2), _rows(x)), _less(w, optional(inputs, 3)))]


def requantised(sums: Range, factor: Array, zero: Range) -> Range:
    """Sums of integers times a factor, as levels."""
    found = [sums.low * factor, sums.high * factor]
    low, high = np.minimum(*found), np.maximum(*found)
    exact = (low == high) & (low.astype(F32) == low) & (np.asarray(factor).astype(F32) == factor)
    room = np.where(exact, 0.0, 2.0**-21 * np.maximum(np.abs(low), np.abs(high)))
    least, most = limits(zero.dtype)
    return Range(*(np.clip(np.rint(v) + zero.low, least, most) for v in (low - room, high + room)), zero.dtype)


def _between(run: Evaluator, node: onnx.NodeProto, inputs: list[Range | None]) -> list[Range]:
    """QLinearConv and QLinearMatMul."""
    x, xs, xz, w, ws, wz, ys, yz = (need(inputs, k) for k in range(8))
    if node.op_type == "QLinearConv":
        ones = [1] * (len(x.shape) - 2)
        bias = optional(inputs, 8)
        sums = product(run, _two(node, "Conv"), _less(x, xz), _less(w, wz, 0), 0.0 if bias is None else bias.low.reshape(-1, *ones))
        return [requantised(sums, (xs.low * ws.low / ys.low).reshape(-1, *ones), yz)]
    sums = product(run, _two(node, "MatMul"), _less(x, xz, _rows(x)), _less(w, wz))
    rows = xs.low.reshape(-1, 1) if xs.low.size > 1 else xs.low.reshape(())
    return [
        requantised(sums, rows * ws.low.reshape(-1) / ys.low if ws.low.size > 1 else rows * ws.low.reshape(()) / ys.low.reshape(()), yz)
    ]


RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("Clip", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Max", "Min", "Pad"), _moved),
    **dict.fromkeys(("ReduceMax", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"), _moved),
    **dict.fromkeys(("Unsqueeze", "Where"), _moved),
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean"), _averaged),
    **dict.fromkeys(_SLOPES, _sloped),
    **dict.fromkeys(_RISING, _rising),
    "Resize": lambda run, node, inputs: (_averaged if attributes_of(node).get("mode", b"nearest") == b"linear" else _moved)(
        run, node, inputs
    ),
    "MaxPool": _maximum,
    "GlobalMaxPool": _largest,
    "AveragePool": _average,
    "Neg": _falling,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "Add": _arithmetic(np.add),
    "Sub": _arithmetic(np.subtract),
    "Mul": _arithmetic(np.multiply),
    "Div": _arithmetic(np.divide),
    "PRelu": _prelu,
    "Cast": _cast,
    "Conv": _convolved,
    "ConvTranspose": _convolved,
    "MatMul": _multiplied,
    "Gemm": _gemm,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "ConvInteger": _integers,
    "MatMulInteger": _integers,
    "QLinearConv": _between,
    "QLinearMatMul": _between,
}
