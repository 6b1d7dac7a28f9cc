"""Changes of a model before it is loaded, by options of a session: dimensions, initializers, external data, seeds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, external_data_helper, helper, numpy_helper

from aspen_mp.compat.onnxruntime.errors import InvalidArgument
from aspen_mp.compat.onnxruntime.options import changes_models
from aspen_mp.compat.onnxruntime.values.ort_value import plain
from aspen_mp.planner.frontends.evaluate import RANDOM
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.shm.errors import ExternalDataError, ModelParseError

_STEP: Final = 1_000_003
"""Tells seeds apart from the numbers of operators."""


def read(source: Any) -> ModelProto:
    """The model, without its external data; a copy of one that is there already. ModelParseError for bytes that are none."""
    if isinstance(source, ModelProto):
        copy = ModelProto()
        copy.CopyFrom(source)
        return copy
    try:
        if isinstance(source, (bytes, bytearray, memoryview)):
            return onnx.load_from_string(bytes(source))
        return onnx.load(os.fspath(source), load_external_data=False)
    except DecodeError as error:
        raise ModelParseError(f"not an ONNX model: {error}") from None


def complete(model: ModelProto, source: Any) -> None:
    """Reads what is left of its external data, from the folder that the model came from. ExternalDataError where that fails."""
    if not isinstance(source, (str, os.PathLike)):
        return
    try:
        external_data_helper.load_external_data_for_model(model, os.path.dirname(os.path.abspath(os.fspath(source))))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ExternalDataError(f"external data of {os.fspath(source)!r} cannot be read: {error}") from None


def edited(source: Any, options: Any, seed: int | None) -> Any:
    """`source` itself where nothing is to be changed; otherwise the changed model. InvalidArgument where it lacks what is named."""
    if not changes_models(options) and seed is None:
        return source
    model = read(source)
    seeded = seed is not None and _place_seeds(model, seed)
    if not changes_models(options) and not seeded:
        return source
    if changes_models(options):
        _fix_dimensions(model, options._dims_by_name, options._dims_by_denotation)
        _replace(model, options._initializers)
        _supply(model, options._external, options._files)
    complete(model, source)
    return model


def _fix_dimensions(model: ModelProto, by_name: dict[str, int], by_denotation: dict[str, int]) -> None:
    graph = model.graph
    named = dict(by_name)
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.denotation in by_denotation and not dim.HasField("dim_value"):
                if dim.dim_param:
                    named.setdefault(dim.dim_param, by_denotation[dim.denotation])
                dim.dim_value = by_denotation[dim.denotation]
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named:
                dim.dim_value = named[dim.dim_param]


def _replace(model: ModelProto, values: dict[str, Any]) -> None:
    """Initializers that OrtValues stand in for, where the model has them."""
    for tensor in model.graph.initializer:
        if tensor.name in values:
            _fill(tensor, plain(values[tensor.name]))


def _supply(model: ModelProto, values: dict[str, Any], files: dict[str, bytes]) -> None:
    missing = set(values)
    for tensor in tensors(model.graph):
        if tensor.name in values:
            _fill(tensor, plain(values[tensor.name]))
            missing.discard(tensor.name)
        elif tensor.data_location == TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            data = files.get(entries.get("location", ""))
            if data is not None:
                _cut(tensor, data, int(entries.get("offset", 0)), entries.get("length"))
    if missing:
        raise InvalidArgument(f"the model has no initializer {', '.join(map(repr, sorted(missing)))} for the external data that is given")


def _fill(tensor: TensorProto, array: Any) -> None:
    new = numpy_helper.from_array(array, tensor.name)
    if new.data_type != tensor.data_type or list(new.dims) != list(tensor.dims):
        wanted = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        raise InvalidArgument(
            f"initializer {tensor.name!r} is {wanted} {list(tensor.dims)}, but the given value is {array.dtype} {list(array.shape)}"
        )
    tensor.CopyFrom(new)


def _cut(tensor: TensorProto, data: bytes, offset: int, length: str | None) -> None:
    end = len(data) if length is None else offset + int(length)
    if not 0 <= offset <= end <= len(data):
        raise InvalidArgument(
            f"initializer {tensor.name!r} is at bytes {offset} to {end} of a file, of which only {len(data)} bytes are given"
        )
    tensor.raw_data = data[offset:end]
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _place_seeds(model: ModelProto, seed: int) -> bool:
    """Gives random operators that have no seed one that follows from `seed`. Whether there were any."""
    count = 0
    for graph in (model.graph, *model.functions):
        for node in nodes(graph):
            if node.domain in {"", "ai.onnx"} and node.op_type in RANDOM and all(a.name != "seed" for a in node.attribute):
                count += 1
                node.attribute.append(helper.make_attribute("seed", float((seed * _STEP + count) % (1 << 24))))
    return count > 0


def tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Initializers of a graph and of the graphs in it, and values of constants."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
        for inner in subgraphs(node):
            yield from tensors(inner)


def nodes(graph: GraphProto | Any) -> Iterable[NodeProto]:
    """Nodes of a graph or function, and of the graphs in it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from nodes(inner)
