"""Types and shapes of a node's outputs, from those of its inputs and the values of small constant ones.

Common operators have rules of our own (`plain_shapes`), as have those that ONNX's inference gets wrong (`own_shapes`); all others are given
to ONNX's inference. Nodes that are alike in all that is looked at are inferred once.
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper, shape_inference

from aspen_mp.planner.frontends import own_shapes, tensors
from aspen_mp.planner.frontends.binding import plain_shapes
from aspen_mp.planner.frontends.binding.items import Item, Types
from aspen_mp.planner.frontends.check import domain_of, inference_opset, name_of, schema, taking_bfloat16
from aspen_mp.planner.frontends.classical import result_types
from aspen_mp.planner.frontends.onnx import OnnxModel
from aspen_mp.planner.ir.graph import Shape, Tensor
from aspen_mp.shm.errors import ModelInvalidError, TooLarge, UnsupportedModelError

_COMPARED = 256  # bytes of the model's constants that are compared
_HINT = 8192  # values of more bytes never decide shapes

_BY_LARGE_VALUES = own_shapes.NAMES | {"Range"}
"""Operators of whose inputs more is looked at than shapes and the values that ONNX's inference is given."""

_SHAPED_AS_INPUT = {"GroupNormalization"}  # no shape inference in onnx

VALUE_INPUTS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (2, 3),
    "Upsample": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "OneHot": (1,),
    "TopK": (1,),
    "Split": (1,),
    "SplitToSequence": (1,),
    "CenterCropPad": (1,),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "BlackmanWindow": (0,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "MaxUnpool": (2,),
    "If": (0,),
    **{f"Reduce{kind}": (1,) for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")},
}
"""Inputs whose values decide output shapes (or, for If, which nodes there are)."""


@dataclass(frozen=True, slots=True)
class Typed:
    """The facts about nodes that are alike: dtype and shape of each output, None where nobody reads it. `void`: they have no elements;
    `plain`: workers can hold them."""

    outputs: tuple[tuple[np.dtype[Any], Shape] | None, ...]
    void: bool
    plain: bool

    def by_name(self, entry: Item) -> Types:
        return {name: typed for name, typed in zip(entry.gives, self.outputs, strict=True) if typed is not None}


class Inference:
    """Infers the types of nodes' outputs. `used`: names that somebody reads; nothing else is inferred, and the caller adds to it."""

    def __init__(self, model: OnnxModel, used: Set[str], of_model: dict[str, TensorProto] | None = None) -> None:
        self._model, self._used = model, used
        self._limit = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._hints: dict[int, tuple[Tensor, TensorProto]] = {}
        self._of_model = {} if of_model is None else of_model  # hints for constants of the model, by their keys
        self._inferred: dict[tuple[Any, ...], Typed | None] = {}
        self._plain: dict[tuple[np.dtype[Any], Shape], Typed] = {}

    def fork(self, used: Set[str]) -> Inference:
        """An inference for a copy of the binder: the known constants of the model stay known."""
        return Inference(self._model, used, self._of_model)

    def types(self, entry: Item, inputs: list[Tensor | None]) -> Typed | None:
        """`_infer`, checked, once for nodes that are alike in all that it looks at; None where an output is unknown."""
        if entry.op in plain_shapes.NAMES and not entry.domain and len(entry.gives) == 1:
            plain = plain_shapes.typed(entry.op, inputs, entry.attrs)
            if plain is not None:
                if plain not in self._plain:
                    self._check_sizes(entry, {entry.gives[0]: plain})
                    self._plain[plain] = Typed((plain,), 0 in plain[1], True)
                return self._plain[plain]
        if entry.nested or entry.op in _BY_LARGE_VALUES or entry.domain:
            return self._typed(entry, inputs)
        key = (
            *(entry.op, tuple(entry.opsets.items()), tuple([a.SerializeToString() for a in entry.proto.attribute]) if entry.attrs else ()),
            tuple([name in self._used for name in entry.gives]),
            tuple([None if t is None else (t.dtype, t.shape, _told(t) if _decides(t) else None) for t in inputs]),
        )
        if key not in self._inferred:
            self._inferred[key] = self._typed(entry, inputs)
        return self._inferred[key]

    def _typed(self, entry: Item, inputs: list[Tensor | None]) -> Typed | None:
        types = self._infer(entry, inputs)
        if types is None:
            return None
        self._check_sizes(entry, types)
        plain = all(tensors.is_plain(dtype) for dtype, _ in types.values())
        void = plain and all(0 in shape for _, shape in types.values())
        return Typed(tuple([types.get(name) for name in entry.gives]), void, plain)

    def _infer(self, entry: Item, inputs: list[Tensor | None]) -> Types | None:
        """Dtype and shape of each output, or None where any is unknown."""
        proto, domain = entry.proto, domain_of(entry.proto)
        version = entry.opsets.get(domain, 1)
        if domain in {result_types.DOMAIN, result_types.ONNXRUNTIME}:
            said = result_types.types(domain, proto.op_type, entry.attrs, inputs)
            if said is not None or domain == result_types.ONNXRUNTIME:
                return None if said is None else {n: typed for n, typed in zip(proto.output, said, strict=False) if n in self._used}
        found = schema(proto.op_type, version, domain)
        if found is None:
            raise UnsupportedModelError(f"{name_of(proto)}: no operator {proto.op_type} in opset {version} of domain {domain!r}")
        if domain == "" and any(t is not None and t.dtype == tensors.BFLOAT16 for t in inputs):
            found = taking_bfloat16(proto.op_type, version) or found
        if domain == "" and (later := inference_opset(proto, version)) != version:
            found = schema(proto.op_type, later, "") or found
        if proto.op_type == "STFT" and not any(a.name == "onesided" for a in proto.attribute):
            # ONNX's inference takes a missing attribute for 0, its definition for 1.
            proto = _with_attribute(proto, "onesided", 1)
        if domain == "":
            if proto.op_type == "Range":
                self._check_range(entry, inputs)
            shape = own_shapes.shape(proto, inputs, entry.attrs, version)
            if shape is not None:
                return self._of_shape(entry, inputs, shape)
        if proto.op_type in _SHAPED_AS_INPUT and domain == "" and inputs[0] is not None:
            return {proto.output[0]: (inputs[0].dtype, inputs[0].shape)}
        types, hints = {}, {}
        for name, tensor in zip(entry.names, inputs, strict=True):
            if tensor is not None:
                if tensor.shape is None:
                    return None
                types[name] = type_proto(tensor.dtype, tensor.shape)
                if _decides(tensor):
                    hints[name] = self._hint(name, tensor)
        if proto.op_type == "Pad" and domain == "" and len(inputs) > 3 and inputs[3] is not None and entry.names[3] in hints:
            axes = inputs[3].value().astype(np.int64)  # ONNX's inference reads no others
            hints[entry.names[3]] = numpy_helper.from_array(axes, entry.names[3])
        opsets = [tensors.opset_id(d, v) for d, v in entry.opsets.items()]
        try:
            result = shape_inference.infer_node_outputs(found, proto, types, hints, {}, opsets, self._model.proto.ir_version)
        except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, IndexError) as error:
            if not found.has_type_and_shape_inference_function or entry.nested:
                return None
            shapes = ", ".join(f"{n!r} {list(t.shape)}" for n, t in zip(entry.names, inputs, strict=True) if t is not None)
            if "overflow" in str(error):
                raise TooLarge(f"{name_of(proto)}: with inputs {shapes}, the shape of an output is too large for ONNX: {error}") from None
            raise ModelInvalidError(f"{name_of(proto)} does not take inputs {shapes}: {' '.join(str(error).split())}") from None
        if proto.op_type == "Attention" and domain == "":
            result.update(_presents(entry, inputs))
        return self._outputs(entry, result)

    def _check_range(self, entry: Item, inputs: list[Tensor | None]) -> None:
        """ONNX's inference gives such a range no elements, where others refuse it: a model that gets here by mistake should not go on."""
        values = [t.value() for t in inputs if t is not None and t.is_const and t.size == 1]
        if len(values) == 3 and (values[2] == 0 or not all(np.isfinite(v) for v in values)):
            start, limit, delta = (v.item() for v in values)
            raise ModelInvalidError(f"{name_of(entry.proto)} cannot go from {start} to {limit} in steps of {delta}")

    def _of_shape(self, entry: Item, inputs: list[Tensor | None], shape: Shape) -> Types:
        """The types of a node whose result has the type of its first input."""
        first = next(t for t in inputs if t is not None)
        return {entry.gives[0]: (first.dtype, shape)}

    def _outputs(self, entry: Item, result: dict[str, onnx.TypeProto]) -> Types | None:
        out = {}
        for name in entry.proto.output:
            if name not in self._used:
                continue
            proto = result.get(name)
            if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
                return None
            shape = []
            for dim in proto.tensor_type.shape.dim:
                if not dim.HasField("dim_value"):
                    return None
                if dim.dim_value < 0:
                    raise ModelInvalidError(f"{name_of(entry.proto)}: output {name!r} would have the negative dimension {dim.dim_value}")
                shape.append(dim.dim_value)
            out[name] = (tensors.numpy_dtype(proto.tensor_type.elem_type), tuple(shape))
        return out

    def _hint(self, name: str, tensor: Tensor) -> TensorProto:
        key = tensor.weight_key
        hint = self._of_model.get(key) if key is not None else self._hints.get(id(tensor), (tensor, None))[1]
        if hint is None:
            hint = numpy_helper.from_array(np.ascontiguousarray(tensor.value()).reshape(tensor.shape), name)
            if key is not None:
                self._of_model[key] = hint
            else:
                self._hints[id(tensor)] = (tensor, hint)
        return hint

    def _check_sizes(self, entry: Item, types: Types) -> None:
        for name, (dtype, shape) in types.items():
            nbytes = prod(shape) * max(dtype.itemsize, 1)
            if nbytes > self._limit:
                raise TooLarge(
                    f"{name_of(entry.proto)}: output {name!r} of shape {list(shape)} needs {nbytes} bytes; "
                    f"the limit is {self._limit}, four times this machine's memory"
                )


def unknown_values(entry: Item, inputs: list[Tensor | None]) -> tuple[str, ...]:
    """The values, not known yet, that would decide the shapes of a node's outputs; none if only running it can tell."""
    positions = VALUE_INPUTS.get(entry.proto.op_type, ()) if domain_of(entry.proto) == "" else ()
    if entry.proto.op_type == "Resize" and entry.opsets.get("", 1) < 11:
        positions = (1,)
    values = []
    for k in positions:
        tensor = inputs[k] if k < len(entry.proto.input) else None
        if tensor is not None and not tensor.is_const and tensors.is_plain(tensor.dtype) and tensor.nbytes <= _HINT:
            values.append(entry.names[k])
    return tuple(dict.fromkeys(values))


def _decides(tensor: Tensor) -> bool:
    """Whether shape inference is given the tensor's value."""
    data = tensor.data
    return data is not None and data.nbytes <= _HINT and data.size < 1024 and tensor.dtype != tensors.OBJECT


def _told(tensor: Tensor) -> object:
    """A value that shape inference is given: the same for equal small ones, or for the same constant of the model."""
    assert tensor.data is not None
    return tensor.data.tobytes() if tensor.weight_key is None or tensor.nbytes <= _COMPARED else tensor.weight_key


def _presents(entry: Item, inputs: list[Tensor | None]) -> dict[str, onnx.TypeProto]:
    """Keys and values that Attention gives where there are no past ones: ONNX's inference does not know their shapes."""
    found = {}
    for k, name in enumerate(entry.proto.output[1:3], 1):
        x, past = inputs[k], inputs[k + 3] if len(inputs) > k + 3 else None
        if name and x is not None and past is None:
            heads = int(entry.attrs.get("kv_num_heads", 1))
            flat = len(x.shape) == 3
            shape = (x.shape[0], heads, x.shape[1], x.shape[2] // heads) if flat else x.shape
            found[name] = type_proto(x.dtype, shape)
    return found


def _with_attribute(proto: NodeProto, name: str, value: int) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(proto)
    copy.attribute.append(helper.make_attribute(name, value))
    return copy


@lru_cache(maxsize=8192)
def type_proto(dtype: np.dtype[Any], shape: Shape) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(tensors.elem_type(dtype), shape)
