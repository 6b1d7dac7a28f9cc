"""`SessionOptions.optimized_model_filepath`: the model with functions inlined and constants folded, as a file.

It is ONNX, and made of the model's own operators: the planner's rewrites are not ONNX and are not in it.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, external_data_helper, inliner, numpy_helper, shape_inference

from aspen_mp.compat.onnxruntime.errors import Unsupported
from aspen_mp.compat.onnxruntime.models import edits
from aspen_mp.compat.onnxruntime.options import GraphOptimizationLevel
from aspen_mp.planner.frontends import evaluate
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.shm.errors import ModelInvalidError

_LARGEST: Final = 1 << 26
"""Bytes of a constant; larger ones stay the operators that make them."""
_KEPT: Final = frozenset({"QuantizeLinear", "DequantizeLinear", "If", "Loop", "Scan"})
"""Quantised weights stay what they are, as in onnxruntime: what reads the file looks for them."""
_FILE: Final = "session.optimized_model_external_initializers_file_name"
_LEAST: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
_FORMAT: Final = "session.save_model_format"


def write(source: Any, options: Any, path: str | os.PathLike[str]) -> None:
    """Writes the model that `source` is to `path`, and its large tensors to another file where the options name one (`_FILE`, `_LEAST`).
    With optimization off, constants are not folded. Unsupported for onnxruntime's own format; FileNotFoundError without the folder."""
    entries = _entries(options)
    path = Path(path)
    if entries[_FORMAT].upper() == "ORT" or path.suffix == ".ort":
        raise Unsupported("aspen-mp cannot write files of onnxruntime's own format. Give an optimized_model_filepath that ends in .onnx")
    model = edits.read(source)
    edits.complete(model, source)
    model = optimized(model, folded=options.graph_optimization_level != GraphOptimizationLevel.ORT_DISABLE_ALL)
    if entries[_FILE]:
        least = int(entries[_LEAST] or 1024)
        (path.parent / entries[_FILE]).unlink(missing_ok=True)  # what is written there is appended
        as_bytes(model)
        external_data_helper.convert_model_to_external_data(model, location=entries[_FILE], size_threshold=least)
    onnx.save(model, path)


def as_bytes(model: ModelProto) -> None:
    """Tensors of numbers stored as such become tensors of bytes, which are what can be written to another file."""
    for tensor in edits.tensors(model.graph):
        if not tensor.HasField("raw_data") and tensor.data_type != TensorProto.STRING:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))


def _entries(options: Any) -> dict[str, str]:
    found = {}
    for key in (_FILE, _LEAST, _FORMAT):
        try:
            found[key] = options.get_session_config_entry(key)
        except (KeyError, RuntimeError):  # ours, or onnxruntime's own options
            found[key] = ""
    return found


def optimized(model: ModelProto, *, folded: bool = True) -> ModelProto:
    """The model with its functions inlined and, if `folded`, constants folded and shapes inferred."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    if not folded:
        return model
    fold(model.graph, {o.domain: o.version for o in model.opset_import})
    return _inferred(model)


def _inferred(model: ModelProto) -> ModelProto:
    """With the types and shapes that inference finds; without, where it fails, as it does for operators that it does not know."""
    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except (shape_inference.InferenceError, ValueError):  # also: larger than a protobuf message may be
        return model


def fold(graph: GraphProto, opsets: dict[str, int]) -> None:
    """Nodes that depend on constants alone become initializers; identities go. Inputs stay inputs, also those that have defaults."""
    given = {value.name for value in graph.input}
    constants = {t.name: t for t in graph.initializer if t.name not in given}
    values: dict[str, Any] = {}
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in graph.node:
        _follow(node, renamed)
        if node.op_type == "Identity" and node.domain in {"", "ai.onnx"} and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
            continue
        found = _computed(node, opsets, constants, values)
        if found is None:
            kept.append(node)
            continue
        for name, array in zip(node.output, found, strict=False):
            if name:
                values[name] = array
                constants[name] = _tensor(node, name, array)
    _keep_used(graph, kept, constants)


def _follow(node: NodeProto, renamed: dict[str, str]) -> None:
    for at, name in enumerate(node.input):
        node.input[at] = renamed.get(name, name)
    for graph in subgraphs(node):
        for inner in edits.nodes(graph):
            for at, name in enumerate(inner.input):
                inner.input[at] = renamed.get(name, name)
        for output in graph.output:
            output.name = renamed.get(output.name, output.name)


def _computed(node: NodeProto, opsets: dict[str, int], constants: dict[str, TensorProto], values: dict[str, Any]) -> list[Any] | None:
    """The values of a node's outputs; None where it is to stay."""
    if node.domain not in {"", "ai.onnx"} or node.op_type in _KEPT | evaluate.RANDOM or any(True for _ in subgraphs(node)):
        return None
    if any(name and name not in constants for name in node.input):
        return None
    if node.op_type == "Constant" and any(a.name == "sparse_value" for a in node.attribute):
        return None
    inputs = [_value(name, constants, values) if name else None for name in node.input]
    version = opsets.get("", opsets.get("ai.onnx", 1))
    whole = bool(inputs) and inputs[0] is not None and inputs[0].dtype.kind in "iu"
    if node.op_type != "Constant" and evaluate.left_to_workers(node, version, whole):
        return None
    try:
        found = evaluate.evaluate(node, {"": version}, inputs)
    except ModelInvalidError:  # the load says what is wrong with it
        return None
    tensors = all(isinstance(x, np.ndarray) and x.nbytes <= _LARGEST for x in found if x is not None)
    return found if tensors else None


def _value(name: str, constants: dict[str, TensorProto], values: dict[str, Any]) -> Any:
    if name not in values:
        values[name] = numpy_helper.to_array(constants[name])
    return values[name]


def _tensor(node: NodeProto, name: str, array: Any) -> TensorProto:
    if node.op_type == "Constant":  # as it was written: numpy does not know all types
        for attribute in node.attribute:
            if attribute.name == "value":
                tensor = TensorProto()
                tensor.CopyFrom(attribute.t)
                tensor.name = name
                return tensor
    return numpy_helper.from_array(array, name)


def _keep_used(graph: GraphProto, kept: list[NodeProto], constants: dict[str, TensorProto]) -> None:
    """The graph of these nodes, with the constants that they read."""
    used = Counter(name for node in kept for name in node.input)
    for node in kept:
        for inner in subgraphs(node):
            used.update(_read(inner))
    used.update(value.name for value in graph.output)
    given = {value.name for value in graph.input}
    stay = [t for t in graph.initializer if t.name in given]
    stay += [t for name, t in constants.items() if used[name]]
    copies = []
    for tensor in stay:
        copy = TensorProto()
        copy.CopyFrom(tensor)
        copies.append(copy)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(copies)


def _read(graph: GraphProto) -> list[str]:
    return [*(name for node in edits.nodes(graph) for name in node.input), *(value.name for value in graph.output)]
