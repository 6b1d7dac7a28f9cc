"""Values of constant sub-expressions: numpy for the operators of shape arithmetic, ONNX's reference implementation for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper

from aspen_mp.planner.frontends.tensors import is_plain, numpy_dtype
from aspen_mp.shm.errors import ModelInvalidError

Array = npt.NDArray[Any]
Attrs = dict[str, Any]

RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"})

OURS = frozenset({"LSTM", "GRU", "RNN", "GlobalLpPool", "Det", "GridSample", "STFT", "Hardmax", "RoiAlign", "MaxRoiPool", "AffineGrid"})
OURS |= {"ConvTranspose", "DeformConv", "LRN", "MaxPool", "StringNormalizer", "Unique", "Upsample"}
"""Operators that ONNX's reference implementation computes wrongly (with some options) or not at all: workers do, so they are never
constants."""

_OURS_BEFORE = {"BatchNormalization": 14, "Softmax": 13, "LogSoftmax": 13}
"""The same as operators were before an opset."""

VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Expand"})
"""Operators whose value is a numpy view of the first input's."""

LOOPING = frozenset({"Resize", "Upsample", "ConvTranspose", "RoiAlign", "MaxRoiPool", "GridSample", "DeformConv", "TfIdfVectorizer"})
LOOPING |= {
    "MaxPool",
    "AveragePool",
    "LpPool",
    "MaxUnpool",
    "Conv",
    "ConvInteger",
    "QLinearConv",
    "NonMaxSuppression",
}
"""Operators that ONNX's reference implementation computes one element after the other."""


def _axes(attrs: Attrs, inputs: Sequence[Array | None], position: int = 1) -> list[int] | None:
    if len(inputs) > position and inputs[position] is not None:
        return [int(a) for a in np.atleast_1d(inputs[position])]  # type: ignore[arg-type]
    axes = attrs.get("axes")
    return None if axes is None else [int(a) for a in axes]


def _reshape(a: Attrs, x: Array, shape: Array | None = None) -> Array:
    target = [int(d) for d in (a["shape"] if shape is None else shape)]
    if not a.get("allowzero", 0):
        target = [x.shape[k] if d == 0 else d for k, d in enumerate(target)]
    return x.reshape(target)


def _squeeze(a: Attrs, x: Array, axes: Array | None = None) -> Array:
    which = _axes(a, [x, axes])
    return np.squeeze(x) if which is None else np.squeeze(x, tuple(which))


def _unsqueeze(a: Attrs, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(_axes(a, [x, axes]) or ()))


def _flatten(a: Attrs, x: Array) -> Array:
    axis = a.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), -1) if x.size else x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))


def slices(a: Attrs, shape: Sequence[int], inputs: Sequence[Array | None]) -> tuple[slice, ...]:
    """Python's slices for a Slice over an array of this shape; `inputs` are those after the data."""
    given = [*inputs, None, None, None, None]
    starts = a["starts"] if given[0] is None else given[0]
    ends = a["ends"] if given[1] is None else given[1]
    axes = a.get("axes") if given[2] is None else given[2]
    steps = [1] * len(starts) if given[3] is None else given[3]
    axes = range(len(starts)) if axes is None else axes
    out = [slice(None)] * len(shape)
    for first, last, axis, by in zip(starts, ends, axes, steps, strict=True):
        dim, step = shape[int(axis)], int(by)
        start = int(first) + dim if first < 0 else int(first)
        end = int(last) + dim if last < 0 else int(last)
        if step > 0:
            out[int(axis)] = slice(min(max(start, 0), dim), min(max(end, 0), dim), step)
        else:
            start, end = min(max(start, -1), dim - 1), min(max(end, -1), dim - 1)
            out[int(axis)] = slice(start if start >= 0 else 0, None if end < 0 else end, step) if start >= 0 else slice(0, 0, step)
    return tuple(out)


def _slice(a: Attrs, x: Array, *rest: Array | None) -> Array:
    return x[slices(a, x.shape, rest)]


def _gather(a: Attrs, x: Array, indices: Array) -> Array:
    axis = a.get("axis", 0)
    dim = x.shape[axis]
    if indices.size and (indices.min() < -dim or indices.max() >= dim):
        raise IndexError(f"index outside axis {axis} of {dim}")
    return np.take(x, np.where(indices < 0, indices + dim, indices), axis)


def _gather_elements(a: Attrs, x: Array, indices: Array) -> Array:
    """ONNX's evaluator counts indices around, takes no axis of more than 32 entries, and no indices that are fewer on other axes."""
    axis = a.get("axis", 0)
    dim = x.shape[axis]
    if indices.size and (indices.min() < -dim or indices.max() >= dim):
        raise IndexError(f"index outside axis {axis} of {dim}")
    at: list[Any] = list(np.indices(indices.shape, sparse=True))
    at[axis] = indices
    return np.asarray(x[tuple(at)])


def _divide(a: Attrs, x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        if not y.all():
            raise ZeroDivisionError("integer division by zero")
        quotient = np.abs(x) // np.abs(y)
        return (np.sign(x) * np.sign(y) * quotient).astype(x.dtype) if x.dtype.kind == "i" else x // y
    return np.divide(x, y)


def _cast(a: Attrs, x: Array) -> Array | None:
    if "to" not in a:
        return None
    to = numpy_dtype(a["to"])
    if to.kind in "VO" or x.dtype.kind in "VO" or not is_plain(to):
        return None
    return x.astype(to)


def _cumsum(a: Attrs, x: Array, axis: Array) -> Array:
    k = int(axis.reshape(()))
    turned = np.flip(x, k) if a.get("reverse", 0) else x
    sums = np.cumsum(turned, k, dtype=x.dtype)
    if a.get("exclusive", 0) and x.size:
        sums = np.concatenate([np.zeros_like(np.take(sums, [0], k)), np.delete(sums, -1, k)], k)
    return np.flip(sums, k) if a.get("reverse", 0) else sums


def _constant_of_shape(a: Attrs, shape: Array) -> Array:
    value = a.get("value")
    fill = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    return np.broadcast_to(fill.reshape(()), [int(d) for d in shape])


def _concat(a: Attrs, *xs: Array) -> Array:
    return np.concatenate(xs, a.get("axis", 1))


def _expand(a: Attrs, x: Array, shape: Array) -> Array:
    target = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
    return np.broadcast_to(x, target)


def _reduce(function: Callable[..., Array]) -> Callable[..., Array | None]:
    def run(a: Attrs, x: Array, axes: Array | None = None) -> Array | None:
        if x.size == 0 and function in {np.max, np.min}:
            return None
        which = _axes(a, [x, axes])
        if not which and a.get("noop_with_empty_axes", 0):
            return x
        return np.asarray(function(x, axis=tuple(which) if which else None, keepdims=bool(a.get("keepdims", 1)))).astype(x.dtype)

    return run


def _dequantize(a: Attrs, x: Array, scale: Array, zero: Array | None = None) -> Array | None:
    """Nothing for blocks and other types of results: those are of opsets that the reference implementation has."""
    if a.get("block_size", 0) or a.get("output_dtype", 0) or scale.ndim > 1:
        return None
    shape = [1] * x.ndim
    if scale.size != 1:
        shape[a.get("axis", 1)] = -1
    wide = x.astype(np.float32)
    wide = wide if zero is None else wide - zero.astype(np.float32).reshape(shape)
    return (wide * scale.astype(np.float32).reshape(shape)).astype(scale.dtype)


def _binary(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, x, y: function(x, y)


def _unary(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, x: function(x)


_TABLE: dict[str, Callable[..., Array | None]] = {
    "Identity": lambda a, x: x,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Transpose": lambda a, x: x.transpose(a.get("perm")),
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Concat": _concat,
    "Cast": _cast,
    "Expand": _expand,
    "CumSum": _cumsum,
    "ConstantOfShape": _constant_of_shape,
    "Range": lambda a, start, limit, delta: np.arange(start.item(), limit.item(), delta.item()).astype(start.dtype),
    "Where": lambda a, c, x, y: np.asarray(np.where(c, x, y)),
    "Div": _divide,
    "DequantizeLinear": _dequantize,
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "Greater": _binary(np.greater),
    "LessOrEqual": _binary(np.less_equal),
    "GreaterOrEqual": _binary(np.greater_equal),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Not": _unary(np.logical_not),
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Sqrt": _unary(np.sqrt),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}


def left_to_workers(node: NodeProto, version: int, whole_numbers: bool) -> bool:
    """Whether a node of the default domain stays one although its inputs (`whole_numbers`: the first of integers) are constant."""
    if node.op_type == "Resize":  # of weights, such as positions, it is best done once
        return whole_numbers or attributes(node).get("mode", "nearest") == "nearest"
    if node.op_type == "Dropout":
        return len(node.output) > 1 and bool(node.output[1])
    return node.op_type in OURS | RANDOM or version < _OURS_BEFORE.get(node.op_type, 0)


def quick(node: NodeProto) -> bool:
    """Whether numpy alone computes an operator."""
    return node.op_type in _TABLE and node.domain in {"", "ai.onnx"}


def attributes(node: NodeProto) -> Attrs:
    """A node's attributes as Python values: numbers, str, lists, TensorProto, GraphProto."""
    out: Attrs = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        out[attribute.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return out


class NotComputed(ModelInvalidError):
    """ONNX's reference implementation refuses a node with its constant inputs. That may be its own lack: a kernel may know better."""


def evaluate(node: NodeProto, opsets: dict[str, int], inputs: Sequence[Array | None], functions: Sequence[Any] = ()) -> list[Any]:
    """The outputs of a node whose inputs are all known. Raises ModelInvalidError where the operator refuses them, NotComputed where it is
    not numpy that does."""
    kind: type[ModelInvalidError] = ModelInvalidError
    try:
        with np.errstate(all="ignore"):
            rule = _TABLE.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
            if rule is not None and all(x is None or x.dtype != object for x in inputs):
                value = rule(attributes(node), *inputs)
                if value is not None:
                    return [np.asarray(value)]
            kind = NotComputed
            return _reference(node, opsets, inputs, functions)
    except MemoryError:
        raise
    except Exception as error:  # whatever an operator's implementation raises is the model's fault
        raise kind(f"node {node.name!r} ({node.op_type}) cannot be computed from its constant inputs: {error}") from None


def _reference(node: NodeProto, opsets: dict[str, int], inputs: Sequence[Array | None], functions: Sequence[Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    names = {name: x for name, x in zip(node.input, inputs, strict=False) if name and x is not None}
    infos = [onnx.ValueInfoProto(name=name) for name in names]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "constant", infos, outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    found = iter(ReferenceEvaluator(model).run(None, names))
    return [next(found) if name else None for name in node.output]
