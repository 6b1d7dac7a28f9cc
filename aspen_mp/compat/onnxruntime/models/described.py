"""Inputs, outputs and metadata of a model in onnxruntime's words, and texts as requests take them."""

from __future__ import annotations

import copy
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aspen_mp.compat.onnxruntime.errors import InvalidArgument
from aspen_mp.compat.onnxruntime.options import ModelMetadata, NodeArg, SessionOptions
from aspen_mp.compat.onnxruntime.providers import CPU
from aspen_mp.compat.onnxruntime.values import elements

_INFERRED: Final = re.compile(r"unk__\d+")

if TYPE_CHECKING:
    from aspen_mp.client.signature import ValueInfo


def node_arg(value: ValueInfo) -> NodeArg:
    """An input or output as onnxruntime shows it."""
    words = value.type or f"tensor({elements.word(value.dtype)})"
    shape = [None if _made_up(d, f"{value.name}.{axis}") else d for axis, d in enumerate(value.shape or ())]
    return NodeArg(value.name, shape, words)


def _made_up(dim: int | str | None, own: str) -> bool:
    """Whether the model does not name the dimension: the planner calls it after tensor and axis then, ONNX's inference by a number."""
    return dim == own or (isinstance(dim, str) and _INFERRED.fullmatch(dim) is not None)


@dataclass(frozen=True, slots=True)
class OrtEpAssignedNode:
    """A node of the model."""

    domain: str
    op_type: str
    name: str


@dataclass(frozen=True, slots=True)
class OrtEpAssignedSubgraph:
    """Nodes of the model that one provider runs."""

    ep_name: str
    _nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self._nodes)


def assigned(source: Any) -> list[OrtEpAssignedSubgraph]:
    """Each node of the model that `source` is, on the CPU."""
    nodes = [OrtEpAssignedNode(node.domain, node.op_type, node.name) for node in _model(source).graph.node]
    return [OrtEpAssignedSubgraph(CPU, (node,)) for node in nodes]


def metadata(source: Any) -> ModelMetadata:
    """The metadata of the model file `source`."""
    model = _model(source)
    return ModelMetadata(
        producer_name=model.producer_name,
        graph_name=model.graph.name,
        domain=model.domain,
        description=model.doc_string,
        graph_description=model.graph.doc_string,
        version=model.model_version,
        custom_metadata_map={p.key: p.value for p in model.metadata_props},
    )


def _model(source: Any) -> Any:
    import onnx

    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, (bytes, bytearray, memoryview)):
        return onnx.load_from_string(bytes(source))
    return onnx.load(os.fspath(source), load_external_data=False)


def configured(options: Any, meta: ModelMetadata) -> Any:
    """Options as the model's metadata (``ort_config``, JSON) want them: a copy of those given, changed. InvalidArgument for bad JSON."""
    text_ = meta.custom_metadata_map.get("ort_config")
    if text_ is None:
        return options
    try:
        wanted = json.loads(text_).get("session_options", {})
        entries = dict(wanted)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the model's metadata 'ort_config' cannot be read as session options: {error}") from None
    made = copy.copy(options) if isinstance(options, SessionOptions) else SessionOptions()
    for name, value in entries.items():
        if name not in SessionOptions.__dataclass_fields__ or name.startswith("_"):
            raise InvalidArgument(f"the model's metadata 'ort_config' have an unknown option {name!r}")
        known = getattr(made, name)
        setattr(made, name, bool(value) if isinstance(known, bool) else value)
    return made


def text(value: Any) -> Any:
    """An array of str objects from what onnxruntime takes for one: lists, and arrays of str, bytes, void or objects. Bytes are UTF-8, with
    zeros at the end as padding; the zeros of void count. InvalidArgument for bytes that are not text."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "V":
        value = value.astype(object)
    array = np.asarray(value)
    if array.dtype.kind == "O" and {str}.issuperset(map(type, array.ravel().tolist())):
        return array
    try:
        if array.dtype.kind == "S":
            return np.char.decode(array, "utf-8").astype(object)
        if array.dtype.kind != "O":
            return array.astype(str).astype(object)
        flat = [item.decode() if isinstance(item, bytes) else item if isinstance(item, str) else str(item) for item in array.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"an input of strings has bytes that are not UTF-8: {error}") from None
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(array.shape)
