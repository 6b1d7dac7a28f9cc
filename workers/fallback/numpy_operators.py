"""ONNX operators as numpy calls, for whoever computes them without a plan. The planner folds constants by them. Workers run by them what
detectors do with their boxes behind the network proper: hundreds of Gather, Slice, Concat, Greater … on a few numbers each.
`onnx.reference` takes several microseconds of bookkeeping for each, and a loop for some.

`compile_node` gives a function for a node that numpy computes as ONNX defines it, and None where it is not so. A function may still return
`NotImplemented` for operands that it does not take; then `onnx.reference` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]
Call = Callable[..., Any]
"""Inputs, None where missing, to the output, or a tuple of several. A value of one element may be a scalar of numpy."""

_PLAIN: Final = frozenset("?bhilqBHILQefd")
"""Dtypes by their characters: kinds do not tell numpy's own from those of ml_dtypes."""
SMALLEST_OPSET: Final = 7
"""The opset before which operators broadcast otherwise."""


def compile_node(node: NodeProto, opset: int) -> Call | None:
    """Return a call that computes a node of the default domain in this opset; None where `onnx.reference` is to do it."""
    made = _TABLE.get(node.op_type) if node.domain in {"", "ai.onnx"} and opset >= SMALLEST_OPSET else None
    if made is None or any(attribute.ref_attr_name for attribute in node.attribute):
        return None
    return made({a.name: helper.get_attribute_value(a) for a in node.attribute}, opset)


def plain(values: Sequence[Any]) -> bool:
    """Whether these are arrays of numbers of numpy's own."""
    return all(v is None or (isinstance(v, np.ndarray) and v.dtype.char in _PLAIN) for v in values)


# ---- shapes and places


def _shape(a: Attrs, opset: int) -> Call:
    start, end = a.get("start", 0), a.get("end")
    return lambda x: np.array(x.shape[start:end], np.int64)


def _reshape(a: Attrs, opset: int) -> Call:
    keep = not a.get("allowzero", 0)

    def run(x: Array, shape: Array) -> Array:
        target = shape.tolist()
        if keep and 0 in target:
            target = [x.shape[k] if d == 0 else d for k, d in enumerate(target)]
        return x.reshape(target)

    return run


def _axes(a: Attrs, given: Array | None) -> tuple[int, ...] | None:
    if given is not None:
        return tuple(np.atleast_1d(given).tolist())
    return tuple(a["axes"]) if "axes" in a else None


def _squeeze(a: Attrs, opset: int) -> Call:
    return lambda x, axes=None: np.squeeze(x, _axes(a, axes))


def _unsqueeze(a: Attrs, opset: int) -> Call:
    return lambda x, axes=None: np.expand_dims(x, _axes(a, axes) or ())


def _flatten(a: Attrs, opset: int) -> Call:
    axis = a.get("axis", 1)

    def run(x: Array) -> Array:
        at = axis + x.ndim if axis < 0 else axis
        return x.reshape(int(np.prod(x.shape[:at])), int(np.prod(x.shape[at:])))

    return run


def _transpose(a: Attrs, opset: int) -> Call:
    return lambda x: x.transpose(a.get("perm"))


def _slice(a: Attrs, opset: int) -> Call:
    if opset < 10:
        return lambda x: x[slices(x.shape, a["starts"], a["ends"], a.get("axes"))]

    def run(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
        others = [None if given is None else given.tolist() for given in (axes, steps)]
        return np.asarray(x[slices(x.shape, starts.tolist(), ends.tolist(), *others)])

    return run


def slices(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> tuple[slice, ...]:
    """The part that Slice takes of an array of this shape."""
    which = range(len(starts)) if axes is None else axes
    by = [1] * len(starts) if steps is None else steps
    out = [slice(None)] * len(shape)
    for first, last, axis, step in zip(starts, ends, which, by, strict=True):
        dim = shape[axis]
        start = first + dim if first < 0 else first
        end = last + dim if last < 0 else last
        if step > 0:
            out[axis] = slice(min(max(start, 0), dim), min(max(end, 0), dim), step)
        else:
            start, end = min(max(start, -1), dim - 1), min(max(end, -1), dim - 1)
            out[axis] = slice(start, None if end < 0 else end, step) if start >= 0 else slice(0, 0, step)
    return tuple(out)


def _checked(x: Array, indices: Array, axis: int) -> None:
    dim = x.shape[axis]
    if indices.size and (indices.min() < -dim or indices.max() >= dim):
        raise IndexError(f"an index lies outside axis {axis}, which has {dim} elements")


def _gather(a: Attrs, opset: int) -> Call:
    axis = a.get("axis", 0)

    def run(x: Array, indices: Array) -> Array:
        return np.asarray(x.take(indices, axis))  # which counts from the end, too, and raises IndexError

    return run


def _gather_elements(a: Attrs, opset: int) -> Call:
    axis = a.get("axis", 0)

    def run(x: Array, indices: Array) -> Array:
        return np.asarray(x[_elements(x, indices, axis)])

    return run


def _elements(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    _checked(x, indices, axis)
    at: list[Array] = list(np.indices(indices.shape, sparse=True))
    at[axis] = indices
    return tuple(at)


_REDUCTIONS: Final = {b"add": np.add, b"mul": np.multiply, b"min": np.minimum, b"max": np.maximum}


def _written(a: Attrs) -> Callable[[Array, tuple[Array, ...], Array], Array]:
    """A copy of an array with updates at some places. Where several go to one place, each counts."""
    function = _REDUCTIONS.get(a.get("reduction", b"none"))

    def run(x: Array, places: tuple[Array, ...], updates: Array) -> Array:
        out = x.copy()
        if function is None:
            out[places] = updates
        else:
            function.at(out, places, updates)
        return out

    return run


def _scatter_elements(a: Attrs, opset: int) -> Call:
    axis, written = a.get("axis", 0), _written(a)
    return lambda x, indices, updates: written(x, _elements(x, indices, axis), updates)


def _places(indices: Array) -> tuple[Array, ...]:
    return tuple([indices[..., k] for k in range(indices.shape[-1])])


def _gather_nd(a: Attrs, opset: int) -> Call | None:
    if a.get("batch_dims", 0):
        return None

    def run(x: Array, indices: Array) -> Any:
        return np.asarray(x[_places(indices)]) if indices.shape[-1] else NotImplemented

    return run


def _scatter_nd(a: Attrs, opset: int) -> Call:
    written = _written(a)
    return lambda x, indices, updates: written(x, _places(indices), updates) if indices.shape[-1] else NotImplemented


def _concat(a: Attrs, opset: int) -> Call:
    axis = a["axis"]
    return lambda *xs: np.concatenate(xs, axis)


def _split(a: Attrs, opset: int) -> Call | None:
    axis, parts = a.get("axis", 0), a.get("num_outputs")
    if parts is not None or (opset < 13 and "split" not in a):
        return None  # how many there are to be, the number of outputs says

    def run(x: Array, lengths: Array | None = None) -> Any:
        sizes = a.get("split") if lengths is None else lengths.tolist()
        if sizes is None:
            return NotImplemented
        ends = list(accumulate([0, *sizes]))
        if ends[-1] != x.shape[axis]:
            raise ValueError(f"parts of {sizes} do not add up to an axis of {x.shape[axis]}")
        before = (slice(None),) * (axis % x.ndim)
        return tuple(x[(*before, slice(i, j))] for i, j in pairwise(ends))

    return run


def _expand(a: Attrs, opset: int) -> Call:
    return lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))


def _constant_of_shape(a: Attrs, opset: int) -> Call:
    fill = numpy_helper.to_array(a["value"]) if "value" in a else np.zeros(1, np.float32)
    return lambda shape: np.broadcast_to(fill.reshape(()), shape.tolist())  # of one element's memory, however large


def _constant(a: Attrs, opset: int) -> Call | None:
    if "value" in a:
        value = numpy_helper.to_array(a["value"])
    elif "value_int" in a or "value_ints" in a:
        value = np.array(a.get("value_int", a.get("value_ints")), np.int64)
    elif "value_float" in a or "value_floats" in a:
        value = np.array(a.get("value_float", a.get("value_floats")), np.float32)
    else:
        return None
    value.flags.writeable = False
    return lambda: value


def range_length(start: Array, limit: Array, delta: Array) -> int:
    """How many numbers Range gives, of scalars or vectors of one. Other numbers than integers are counted in double precision, as
    onnxruntime does: in single precision 1.1 - 0.1 is 1, and a number is missing."""
    first, last, step = start.item(), limit.item(), delta.item()
    if isinstance(first, int):
        return max(-((first - last) // step), 0) if step else 0
    return max(int(np.ceil((float(last) - float(first)) / float(step))), 0) if step else 0


def _range(a: Attrs, opset: int) -> Call:
    def run(start: Array, limit: Array, delta: Array) -> Any:
        if start.dtype.char not in _PLAIN or not start.size == limit.size == delta.size == 1:
            return NotImplemented
        if not delta.any():
            raise ValueError("the step of the range is 0")
        if start.dtype.kind not in "iu" and not all(np.isfinite(v).all() for v in (start, limit, delta)):
            raise ValueError("the range has no end")
        steps = np.arange(range_length(start, limit, delta))
        wide = np.int64 if start.dtype.kind in "iu" else np.float64
        return np.asarray(start.astype(wide).reshape(()) + steps.astype(wide) * delta.astype(wide).reshape(())).astype(start.dtype)

    return run


def _nonzero(a: Attrs, opset: int) -> Call:
    return lambda x: np.array(np.nonzero(x), np.int64) if x.ndim else NotImplemented


def _top_k(a: Attrs, opset: int) -> Call | None:
    """Equal ones in the order in which they stand: also where any order is allowed."""
    axis, largest = a.get("axis", -1), bool(a.get("largest", 1))
    if opset < 10:
        return None

    def run(x: Array, k: Array) -> tuple[Array, Array]:
        most = int(k.reshape(-1)[0])
        n = x.shape[axis]
        if not 0 <= most <= n:
            raise ValueError(f"{most} elements are asked of an axis of {n}")
        turned = np.moveaxis(x, axis, -1)
        # Ascending, the last of equal ones stands last: of an axis that is turned around twice that is the first.
        order = n - 1 - np.argsort(turned[..., ::-1], -1, kind="stable")[..., ::-1] if largest else np.argsort(turned, -1, kind="stable")
        order = order[..., :most]
        best = np.take_along_axis(turned, order, -1)
        return np.ascontiguousarray(np.moveaxis(best, -1, axis)), np.ascontiguousarray(np.moveaxis(order, -1, axis)).astype(np.int64)

    return run


def _compress(a: Attrs, opset: int) -> Call:
    return lambda x, condition: np.compress(condition, x, a.get("axis"))


# ---- numbers


def _binary(function: Call) -> Callable[[Attrs, int], Call]:
    return lambda a, opset: function


def _unary(function: Call) -> Callable[[Attrs, int], Call]:
    return lambda a, opset: function


def _divide(x: Array, y: Array) -> Any:
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    if not y.all():
        raise ZeroDivisionError("an integer is divided by zero")
    return x // y if x.dtype.kind == "u" else (np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))).astype(x.dtype)


def _many(function: Call) -> Callable[[Attrs, int], Call]:
    def run(first: Array, *others: Array) -> Array:
        for x in others:
            first = function(first, x)
        return np.asarray(first)

    return lambda a, opset: run


def _product(x: Array, y: Array) -> Array:
    """numpy has no fast products of halves."""
    if x.dtype.char == y.dtype.char == "e":
        return np.asarray(np.matmul(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype))
    return np.asarray(np.matmul(x, y))


def _gemm(a: Attrs, opset: int) -> Call:
    alpha, beta, turned = a.get("alpha", 1.0), a.get("beta", 1.0), (a.get("transA", 0), a.get("transB", 0))

    def run(x: Array, y: Array, z: Array | None = None) -> Any:
        if x.dtype.kind != "f":
            return NotImplemented
        out = _product(x.T if turned[0] else x, y.T if turned[1] else y)
        out = out if alpha == 1 else out * x.dtype.type(alpha)
        return out if z is None else out + (z if beta == 1 else z * x.dtype.type(beta))

    return run


def _clip(a: Attrs, opset: int) -> Call | None:
    if opset < 11:
        return None

    def run(x: Array, least: Array | None = None, most: Array | None = None) -> Array:
        x = x if least is None else np.maximum(x, least)
        return np.asarray(x if most is None else np.minimum(x, most))

    return run


def _cast(a: Attrs, opset: int) -> Call | None:
    to = helper.tensor_dtype_to_np_dtype(a["to"])
    if to.char not in _PLAIN:
        return None
    return lambda x: NotImplemented if x.dtype.kind in "VO" else x.astype(to)


def _cumsum(a: Attrs, opset: int) -> Call:
    return lambda x, axis: cumsum(x, axis, a.get("exclusive", 0), a.get("reverse", 0))


def cumsum(x: Array, axis: Array, exclusive: int | None = None, reverse: int | None = None) -> Array:
    """CumSum; the axis may come as a vector of one."""
    k = int(axis.reshape(()))
    turned = np.flip(x, k) if reverse else x
    sums = np.cumsum(turned, k, dtype=x.dtype)
    if exclusive and x.size:
        sums = np.concatenate([np.zeros_like(np.take(sums, [0], k)), np.delete(sums, -1, k)], k)
    return np.ascontiguousarray(np.flip(sums, k)) if reverse else sums


def _dequantize(a: Attrs, opset: int) -> Call | None:
    """Not for blocks and other types of results: those are of opsets that `onnx.reference` has."""
    if a.get("block_size", 0) or a.get("output_dtype", 0):
        return None
    axis = a.get("axis", 1)

    def run(x: Array, scale: Array, zero: Array | None = None) -> Any:
        if scale.ndim > 1:
            return NotImplemented
        shape = [1] * x.ndim
        if scale.size != 1:
            shape[axis] = -1
        wide = x.astype(np.float32)
        wide = wide if zero is None else wide - zero.astype(np.float32).reshape(shape)
        return (wide * scale.astype(np.float32).reshape(shape)).astype(scale.dtype)

    return run


def _reduce(function: Call) -> Callable[[Attrs, int], Call]:
    def made(a: Attrs, opset: int) -> Call:
        keep, nothing = bool(a.get("keepdims", 1)), bool(a.get("noop_with_empty_axes", 0))

        def run(x: Array, axes: Array | None = None) -> Any:
            which = _axes(a, axes) if x.ndim else None  # a scalar's last axis is named, too
            if not which and nothing:
                return x
            if not x.size:
                return NotImplemented
            return np.asarray(function(x, axis=which or None, keepdims=keep)).astype(x.dtype, copy=False)

        return run

    return made


def _sigmoid(x: Array) -> Any:
    if not x.ndim:
        return 1 / (1 + np.exp(-x))
    one = np.ones((), x.dtype)  # numbers of Python take as long to convert as a short array takes
    y = np.negative(x)
    np.add(np.exp(y, y), one, y)
    return np.divide(one, y, y)


def _identity(a: Attrs, opset: int) -> Call:
    return lambda x: x


FRACTIONAL_CORNERS: Final = 19
"""Opset from which on ONNX's tests of Resize align corners by the old length times the scale. Before, that product is rounded down, as in
onnxruntime and PyTorch."""

_ORIGINS: Final[dict[bytes, Callable[[Array, int, float, float], Array]]] = {
    b"half_pixel": lambda at, old, new, scale: (at + 0.5) / scale - 0.5,
    b"pytorch_half_pixel": lambda at, old, new, scale: (at + 0.5) / scale - 0.5 if len(at) > 1 else at * 0,
    b"asymmetric": lambda at, old, new, scale: at / scale,
    b"align_corners": lambda at, old, new, scale: at * (old - 1) / (new - 1) if new != 1 else at * 0,
}
"""Places on the old axis of those on the new one, `at`: (at, old length, new length, scale)."""


def resized(length: int, scale: float) -> int:
    """The length of an axis times a scale, counted in single precision as onnxruntime does: 10 times 0.7 is 7."""
    return int(np.floor(np.float32(length) * np.float32(scale)))


def _resize(a: Attrs, opset: int) -> Call | None:
    """Linear and cubic ones, axis by axis."""
    mode, origin = a.get("mode", b"nearest"), _ORIGINS.get(a.get("coordinate_transformation_mode", b"half_pixel"))
    others = a.get("antialias", 0) or a.get("exclude_outside", 0) or a.get("keep_aspect_ratio_policy", b"stretch") != b"stretch"
    if opset < 11 or mode not in {b"linear", b"cubic"} or origin is None or others:
        return None
    cubic = a.get("cubic_coeff_a", -0.75) if mode == b"cubic" else None

    def run(x: Array, roi: Array | None, scales: Array | None = None, sizes: Array | None = None) -> Any:
        if x.dtype.kind != "f" or not x.size:
            return NotImplemented
        given = sizes is not None and sizes.size > 0
        numbers = sizes if given else scales
        axes = a.get("axes", range(x.ndim))
        if numbers is None or len(numbers) != len(axes):
            return NotImplemented
        out = x
        for axis, number in zip(axes, numbers.tolist(), strict=True):
            old = x.shape[axis]
            new, scale = (number, number / old) if given else (resized(old, number), number)
            if new == old and scale == 1:
                continue
            length = old * scale if opset >= FRACTIONAL_CORNERS and not given else new
            weights = _weights(origin(np.arange(new, dtype=np.float64), old, length, scale), old, cubic).astype(x.dtype)
            out = np.moveaxis(np.moveaxis(out, axis, -1) @ weights, -1, axis)
        return np.ascontiguousarray(out)

    return run


def _weights(at: Array, old: int, cubic: float | None) -> Array:
    """[old, new]: of the elements of an axis in what lies at these places; beyond its ends stand the last ones."""
    low = np.floor(at)
    part = at - low
    if cubic is None:
        parts = [(0, 1 - part), (1, part)]
    else:
        near = [((cubic + 2) * d - (cubic + 3)) * d * d + 1 for d in (part, 1 - part)]
        far = [((cubic * d - 5 * cubic) * d + 8 * cubic) * d - 4 * cubic for d in (1 + part, 2 - part)]
        parts = [(-1, far[0]), (0, near[0]), (1, near[1]), (2, far[1])]
    weights = np.zeros((old, len(at)))
    for step, weight in parts:
        np.add.at(weights, (np.clip(low.astype(np.int64) + step, 0, old - 1), np.arange(len(at))), weight)
    return weights


_TABLE: Final[dict[str, Callable[[Attrs, int], Call | None]]] = {
    "Shape": _shape,
    "Size": lambda a, opset: lambda x: np.array(x.size, np.int64),
    "Identity": _identity,
    "Constant": _constant,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Concat": _concat,
    "Split": _split,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "NonZero": _nonzero,
    "TopK": _top_k,
    "Compress": _compress,
    "Resize": _resize,
    "Cast": _cast,
    "CumSum": _cumsum,
    "DequantizeLinear": _dequantize,
    "Clip": _clip,
    "Where": lambda a, opset: lambda c, x, y: np.asarray(np.where(c, x, y)),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
    "MatMul": _binary(_product),
    "Gemm": _gemm,
    "Max": _many(np.maximum),
    "Min": _many(np.minimum),
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "Greater": _binary(np.greater),
    "LessOrEqual": _binary(np.less_equal),
    "GreaterOrEqual": _binary(np.greater_equal),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Xor": _binary(np.logical_xor),
    "Not": _unary(np.logical_not),
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Sqrt": _unary(np.sqrt),
    "Exp": _unary(np.exp),
    "Log": _unary(np.log),
    "Sigmoid": _unary(_sigmoid),
    "Relu": lambda a, opset: lambda x: np.maximum(x, x.dtype.type(0)),
    "ReduceProd": _reduce(np.multiply.reduce),
    "ReduceSum": _reduce(np.add.reduce),
    "ReduceMax": _reduce(np.maximum.reduce),
    "ReduceMin": _reduce(np.minimum.reduce),
}

NAMES: Final = frozenset(_TABLE)
"""Operators of the default domain that `compile_node` knows, with some attributes at least."""
