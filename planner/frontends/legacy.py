"""Operators as opsets 1 to 6 define them, rewritten as opset 7 does. Older opsets have broadcasting that must be asked for and starts at an
axis, and memory that an operator may take over (`consumed_inputs`). Some of their attributes have become inputs, and some inputs
attributes. Opset 7 is where kernels, ONNX's own evaluator and other runtimes begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.shm.errors import ModelInvalidError, UnsupportedModelError

MODERN: Final = 7
"""The opset of the result of `modern`."""

_FORGOTTEN = {"consumed_inputs", "is_test", "output_sequence"}
"""Attributes without a meaning where nothing is trained."""

_PLAIN = (
    *("Abs", "Ceil", "Clip", "Dropout", "Elu", "Exp", "Floor", "HardSigmoid", "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean"),
    *("Min", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Sum", "Tanh", "GRU", "LSTM", "RNN"),
)
_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")
_TRAINED = "normalises by the batch's own statistics, as in training: export the model for inference (is_test = 1)"
CONVERT: Final = "convert the model to opset 7 or later (onnx.version_converter), or export it anew"

Inputs = Sequence[Tensor | None]


def why_not(node: NodeProto, version: int, nested: bool) -> str:
    """Why an old node cannot be run; empty where it can, or is not old."""
    if version >= MODERN or node.op_type not in _RULES:
        return ""
    if node.op_type == "BatchNormalization" and not _value(node, "is_test", 0):
        return _TRAINED
    return f"is of opset {version}, in a sub-graph, where such nodes cannot be run: {CONVERT}" if nested else ""


def modern(node: NodeProto, op: str, version: int, inputs: Inputs) -> list[NodeProto] | None:
    """The meaning of a node (of `op`, in the default domain), in nodes of opset 7; None where it may stay as it is. `inputs` are known,
    maybe by shape alone."""
    if op == "BatchNormalization" and version < 9 and not _value(node, "spatial", 1):
        return _by_element(node)
    rule = _RULES.get(op) if version < MODERN else None
    return rule(node, inputs) if rule is not None else None


def _value(node: NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name and not a.ref_attr_name), default)


def _again(node: NodeProto, without: set[str] = _FORGOTTEN, inputs: Sequence[str] | None = None, **attributes: Any) -> NodeProto:
    """The node with other attributes, and inputs where they are given."""
    new = helper.make_node(node.op_type, node.input if inputs is None else inputs, node.output, name=node.name, **attributes)
    new.attribute.extend(a for a in node.attribute if a.name not in without and a.name not in attributes)
    return new


def _name(node: NodeProto) -> str:
    return repr(node.name or node.output[0])


def _inner(node: NodeProto, what: str) -> str:
    return f"{node.output[0]}\0{what}"


def _constant(name: str, value: Any) -> NodeProto:
    return helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(np.asarray(value)))


def _known(node: NodeProto, inputs: Inputs, k: int) -> list[int]:
    """The integers in input k, which opset 1 stores as floats."""
    tensor = inputs[k]
    if tensor is None or not tensor.is_const:
        raise UnsupportedModelError(f"node {_name(node)} ({node.op_type}) computes its input {node.input[k]!r}: {CONVERT}")
    return [int(v) for v in tensor.value().reshape(-1)]


def _plain(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    return [_again(node)]


def _gemm(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    return [_again(node, {*_FORGOTTEN, "broadcast"})]


def _broadcasting(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    x, y = inputs[:2]
    gone = {*_FORGOTTEN, "broadcast", "axis"}
    axis = _value(node, "axis", None) if _value(node, "broadcast", 0) else None
    if axis is None or x is None or y is None:
        return [_again(node, gone)]
    behind = len(x.shape) - (axis + len(x.shape) if axis < 0 else axis) - len(y.shape)
    if behind < 0:
        raise ModelInvalidError(
            f"node {_name(node)} ({node.op_type}): {node.input[1]!r} does not fit behind axis {axis} of {node.input[0]!r}"
        )
    return _with_axes_behind(node, gone, len(y.shape), behind)


def _with_axes_behind(node: NodeProto, gone: set[str], rank: int, behind: int) -> list[NodeProto]:
    """The node, its second input with `behind` axes of length 1 behind its own."""
    if not behind:
        return [_again(node, gone)]
    wide = _inner(node, "wide")
    axes = list(range(rank, rank + behind))
    return [helper.make_node("Unsqueeze", [node.input[1]], [wide], name=wide, axes=axes), _again(node, gone, [node.input[0], wide])]


def _prelu(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    """A slope of one axis belongs to the channels."""
    x, slope = inputs[:2]
    of_channels = x is not None and slope is not None and len(slope.shape) == 1 and slope.size > 1
    return _with_axes_behind(node, _FORGOTTEN, 1, max(len(x.shape) - 2, 0) if x is not None and of_channels else 0)


def _batch_norm(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    return [_again(node)] if _value(node, "spatial", 1) else _by_element(node)


def _by_element(node: NodeProto) -> list[NodeProto]:
    """Statistics for each element of a picture: (x - mean) / sqrt(variance + epsilon) * scale + bias."""
    x, scale, bias, mean, variance = node.input
    names = [_inner(node, what) for what in ("epsilon", "wide", "deviation", "centred", "unit", "scaled")]
    epsilon, wide, deviation, centred, unit, scaled = names
    steps = [
        ("Add", [variance, epsilon], wide),
        ("Sqrt", [wide], deviation),
        ("Sub", [x, mean], centred),
        ("Div", [centred, deviation], unit),
        ("Mul", [unit, scale], scaled),
        ("Add", [scaled, bias], node.output[0]),
    ]
    nodes = [helper.make_node(op, inputs, [output], name=f"{node.name}/{op}") for op, inputs, output in steps]
    return [_constant(epsilon, np.float32(_value(node, "epsilon", 1e-5))), *nodes]


def _cast(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    to = _value(node, "to", b"")
    return [_again(node, to=onnx.TensorProto.DataType.Value(to.decode().upper()) if isinstance(to, bytes) else to)]


def _concat(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    return [_again(node, axis=_value(node, "axis", 1))]


def _pad(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    pads = _value(node, "paddings", None) or _value(node, "pads", [])
    return [_again(node, {*_FORGOTTEN, "paddings"}, pads=list(pads))]


def _reshape(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    if len(node.input) > 1:
        return [_again(node)]
    shape = _inner(node, "shape")
    target = np.array(_value(node, "shape", []), np.int64)
    return [_constant(shape, target), _again(node, {*_FORGOTTEN, "shape"}, [node.input[0], shape])]


def _selu(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    """Opset 6 has more digits."""
    return [_again(node, alpha=_value(node, "alpha", 1.6732), gamma=_value(node, "gamma", 1.0507))]


def _split(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    if len(node.input) < 2 or not node.input[1]:
        return [_again(node)]
    return [_again(node, inputs=node.input[:1], split=_known(node, inputs, 1))]


def _tile(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    x = inputs[0]
    if len(node.input) < 3 or x is None:
        return [_again(node)]
    (tiles,), (axis,) = _known(node, inputs, 1), _known(node, inputs, 2)
    repeats = np.ones(len(x.shape), np.int64)
    repeats[axis] = tiles
    name = _inner(node, f"repeats {repeats.tolist()}")  # equal names are equal constants, whatever the shapes of inputs
    return [_constant(name, repeats), _again(node, inputs=[node.input[0], name])]


def _upsample(node: NodeProto, inputs: Inputs) -> list[NodeProto]:
    scales = [1.0, 1.0, float(_value(node, "height_scale", 1.0)), float(_value(node, "width_scale", 1.0))]
    return [_again(node, {*_FORGOTTEN, "height_scale", "width_scale"}, scales=scales)]


_RULES: dict[str, Callable[[NodeProto, Inputs], list[NodeProto]]] = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_BROADCASTING, _broadcasting),
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Concat": _concat,
    "Gemm": _gemm,
    "PRelu": _prelu,
    "Pad": _pad,
    "Reshape": _reshape,
    "Selu": _selu,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _upsample,
}
"""Operators that opsets 2 to 7 define anew, where that matters."""
