"""Constants: dense, named, each once, and of the type that an input of the same name declares."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper
from onnx.helper import get_attribute_value, make_tensor

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.frontends.check import all_nodes, name_of
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.planner.frontends.normal.walk import graphs_in, scopes
from aspen_mp.planner.frontends.wire import INLINE_LIMIT, reference
from aspen_mp.shm.errors import ModelInvalidError, ResourceLimitError

log = logging.getLogger("aspen_mp.planner")

_MOST_NAMED: Final = 5
_OVERRIDABLE: Final = 4
"""IR version from which on an input with an initializer may be given by the caller; before, every initializer had to be an input."""
_MOST_ELEMENTS: Final = 2**31
_KINDS: Final = {
    **dict.fromkeys(("value_float", "value_floats"), TensorProto.FLOAT),
    **dict.fromkeys(("value_int", "value_ints"), TensorProto.INT64),
    **dict.fromkeys(("value_string", "value_strings"), TensorProto.STRING),
}
"""Attributes of Constant that hold no tensor: the type of the tensor that they stand for."""


# ---------------------------------------------------------------------------------------------------------------- sparse


def make_dense(proto: ModelProto, store: tensors.Store) -> None:
    """Replaces sparse constants by dense ones of the same name, which take memory only where they are not zero, until they are read."""
    _initializers(proto.graph, store)
    for nodes, _ in scopes(proto):
        for node in all_nodes(nodes):
            if not node.attribute:
                continue
            for graph in subgraphs(node):
                _initializers(graph, store)
            if node.op_type == "Constant":
                _value(node, store)


def make_ends_dense(proto: ModelProto) -> frozenset[str]:
    """Declares inputs and outputs that are sparse tensors as dense ones of the same shape, which callers convert; returns their names."""
    names = set()
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.HasField("sparse_tensor_type"):
            sparse = value.type.sparse_tensor_type
            value.type.tensor_type.MergeFromString(sparse.SerializeToString())  # the same fields
            names.add(value.name)
    return frozenset(names)


def _value(node: NodeProto, store: tensors.Store) -> None:
    """The value of a Constant node."""
    for attribute in node.attribute:
        if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
            try:
                tensor = _dense(attribute.sparse_tensor, store)
            except ModelInvalidError as error:
                raise ModelInvalidError(f"{name_of(node)}: {error}") from None
            attribute.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor))


def _initializers(graph: GraphProto, store: tensors.Store) -> None:
    graph.initializer.extend(_dense(sparse, store) for sparse in graph.sparse_initializer)
    del graph.sparse_initializer[:]


def _dense(sparse: SparseTensorProto, store: tensors.Store) -> TensorProto:
    name = sparse.values.name
    result = TensorProto(name=name, data_type=sparse.values.data_type, dims=sparse.dims)
    shape, dtype = tensors.shape_of(result), tensors.dtype_of(result)
    if prod(shape) > _MOST_ELEMENTS:
        raise ResourceLimitError(f"sparse tensor {name!r} of shape {list(shape)} has too many elements")
    values = store.array(sparse.values).reshape(-1)
    places = _places(sparse, values.size, shape, store)
    if dtype == tensors.OBJECT:
        strings = np.full(prod(shape), "", object)
        strings[places] = values
        return numpy_helper.from_array(strings.reshape(shape), name)
    dense = np.zeros(prod(shape), dtype)
    dense[places] = values
    if tensors.stored_bytes(result) <= INLINE_LIMIT or tensors.is_packed(result):
        return numpy_helper.from_array(dense.reshape(shape), name)
    result.MergeFromString(reference(len(store.spans)))
    store.spans.append(dense.view(np.uint8).data)
    return result


def _places(sparse: SparseTensorProto, count: int, shape: tuple[int, ...], store: tensors.Store) -> npt.NDArray[np.int64]:
    """Where in the flat dense tensor the values go, in whatever order they are stored."""
    what = f"sparse tensor {sparse.values.name!r}"
    if not count and not sparse.indices.dims:
        return np.empty(0, np.int64)
    stored = store.array(sparse.indices)
    if stored.dtype.kind not in "iu":
        raise ModelInvalidError(f"{what}: its indices are {stored.dtype}, not integers")
    indices = stored.astype(np.int64)
    flat = indices.ndim == 1
    if indices.shape != ((count,) if flat else (count, len(shape))):
        raise ModelInvalidError(f"{what}: indices of shape {list(indices.shape)} do not place {count} values in shape {list(shape)}")
    bounds: Any = prod(shape) if flat else np.array(shape, np.int64)
    if np.any(indices < 0) or np.any(indices >= bounds):
        raise ModelInvalidError(f"{what}: an index is outside shape {list(shape)}")
    if not count:
        return np.empty(0, np.int64)
    places = indices if flat else np.ravel_multi_index(tuple(indices.T), shape) if shape else np.zeros(count, np.int64)
    if len(np.unique(places)) < count:
        raise ModelInvalidError(f"{what}: two values have the same index, so it does not say which one counts")
    return np.asarray(places, np.int64)


# ----------------------------------------------------------------------------------------------------------- initializers


def settle(proto: ModelProto, store: tensors.Store) -> None:
    """Removes initializers without names, which nothing can read, and repetitions of others; compares them with the inputs of their names.
    In models from before IR version 4 those inputs go.

    Where constants of the model's own graph share a name, the last Constant node counts, else the last initializer, as in onnxruntime. In
    sub-graphs they must be the same."""
    for nodes, _ in scopes(proto):
        for graph in graphs_in(nodes):
            _unique(graph, partial(_refuse_others, store=store))
    _gather(proto.graph)
    if twice := _unique(proto.graph, _refuse_other_types):
        log.warning(
            "constants share a name: %s. The last Constant node of a name counts, else the last initializer. Give each a name of its own",
            ", ".join(map(repr, twice[:_MOST_NAMED])) + (" …" if len(twice) > _MOST_NAMED else ""),
        )
    known = {tensor.name: tensor for tensor in proto.graph.initializer}
    for at in reversed(range(len(proto.graph.input))):
        value = proto.graph.input[at]
        if value.name in known:
            _agrees(value.name, known[value.name], value.type)
            if proto.ir_version < _OVERRIDABLE:
                del proto.graph.input[at]


def _gather(graph: GraphProto) -> None:
    """Makes initializers of the Constant nodes that share their name with an initializer, an input or another Constant node."""
    constants = [node for node in graph.node if node.op_type == "Constant" and not node.domain and len(node.output) == 1 and node.output[0]]
    names = Counter(node.output[0] for node in constants)
    names.update(names.keys() & {value.name for value in (*graph.input, *graph.initializer)})
    shared = [node for node in constants if names[node.output[0]] > 1]
    graph.initializer.extend(_tensor(node) for node in shared)
    for node in shared:
        graph.node.remove(node)


def _tensor(node: NodeProto) -> TensorProto:
    """The value of a Constant node, with the name of its output."""
    if len(node.attribute) != 1:
        raise ModelInvalidError(f"{name_of(node)} has {len(node.attribute)} attributes, but a constant has one value")
    (attribute,) = node.attribute
    name, kind, value = node.output[0], attribute.name, get_attribute_value(attribute)
    if attribute.type == AttributeProto.TENSOR:
        tensor = TensorProto()
        tensor.CopyFrom(value)
        tensor.name = name
        return tensor
    if kind not in _KINDS:
        raise ModelInvalidError(f"{name_of(node)}: {kind!r} is not an attribute that holds a constant")
    return make_tensor(name, _KINDS[kind], [len(value)] if kind.endswith("s") else [], value if kind.endswith("s") else [value])


def _unique(graph: GraphProto, compare: Callable[[TensorProto, TensorProto], None]) -> list[str]:
    """Keeps the last initializer of each name, and returns the names that there were twice. `compare` raises where two of a name cannot
    stand for each other."""
    known: dict[str, int] = {}
    twice: dict[str, None] = {}
    spare: set[int] = set()
    for at, tensor in enumerate(graph.initializer):
        if tensor.name in known:
            compare(graph.initializer[known[tensor.name]], tensor)
            spare.add(known[tensor.name])
            twice[tensor.name] = None
        elif not tensor.name:
            spare.add(at)
            continue
        known[tensor.name] = at
    for at in sorted(spare, reverse=True):
        del graph.initializer[at]
    return list(twice)


def _refuse_other_types(one: TensorProto, other: TensorProto) -> None:
    if one.data_type != other.data_type or one.dims != other.dims:
        raise ModelInvalidError(f"constant {one.name!r} is there twice, with other types or shapes. Give one of them another name")


def _refuse_others(one: TensorProto, other: TensorProto, store: tensors.Store) -> None:
    if not _same(one, other, store):
        raise ModelInvalidError(f"initializer {one.name!r} is there twice, with other values, so it does not say which ones count")


def _same(one: TensorProto, other: TensorProto, store: tensors.Store) -> bool:
    if one.data_type != other.data_type or one.dims != other.dims:
        return False
    a, b = (np.ascontiguousarray(store.array(tensor)) for tensor in (one, other))
    if a.dtype == tensors.OBJECT:
        return bool(np.all(a == b))
    return bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))  # NaN and -0 as they are


def _agrees(name: str, tensor: TensorProto, declared: Any) -> None:
    if not declared.HasField("tensor_type"):
        if declared.WhichOneof("value") is not None:
            raise ModelInvalidError(f"input {name!r} is not a tensor, but its initializer is")
        return
    kind = declared.tensor_type
    if kind.elem_type not in {0, tensor.data_type}:
        types = [TensorProto.DataType.Name(t) if t in TensorProto.DataType.values() else str(t) for t in (kind.elem_type, tensor.data_type)]
        raise ModelInvalidError(f"input {name!r} is declared as {types[0]}, but its initializer is {types[1]}")
    if not kind.HasField("shape"):
        return
    want = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in kind.shape.dim]
    if len(want) != len(tensor.dims) or any(w not in {None, d} for w, d in zip(want, tensor.dims, strict=True)):
        shape = ["?" if d is None else d for d in want]
        raise ModelInvalidError(f"input {name!r} is declared with shape {shape}, but its initializer has shape {list(tensor.dims)}")
