"""Nodes without a kernel: serialised as models of their own, for the workers' Python side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from onnx import FunctionProto, NodeProto, helper, numpy_helper

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.frontends.functions import called, subgraphs
from aspen_mp.planner.frontends.tensors import Store
from aspen_mp.planner.ir.graph import Node, Tensor

_EMBED = 1024  # constants of at most this many bytes travel inside the model


def lower_opaque(node: Node, inputs: Sequence[Tensor | None], functions: Iterable[FunctionProto], store: Store) -> Node:
    """The OPAQUE node for an ONNX node whose inputs are lowered already. Its outputs are the ONNX node's used ones, new tensors."""
    assert node.source is not None
    outputs = [t for t in node.outputs if t.name]
    feeds = {name: tensor for name, tensor in zip(node.source.names, inputs, strict=False) if name and tensor is not None}
    wanted = {name: t for name, t in zip(node.source.proto.output, node.outputs, strict=True) if t.name}
    model, operands = build([node.source.proto], feeds, wanted, node.source.opsets, functions, store)
    results = [Tensor(t.name, t.shape, t.dtype) for t in outputs]
    opaque = Node("OPAQUE", node.name, list(operands), results, {"model": model}, node.onnx_op)
    for tensor in results:
        tensor.producer = opaque
    return opaque


def build(
    nodes: Sequence[NodeProto],
    feeds: dict[str, Tensor],
    wanted: Mapping[str, Tensor | None],
    opsets: dict[str, int],
    functions: Iterable[FunctionProto],
    store: Store,
    types: Mapping[str, onnx.TypeProto] | None = None,
) -> tuple[bytes, list[Tensor]]:
    """A serialised model of `nodes`, and the tensors that are its inputs, in order. Small weights and constants that are not plain tensors
    become initializers. `wanted`: the outputs; None where the type is not known. `types`: of values that nodes give, as far as known, for
    operators whose results have a type that their inputs do not tell."""
    initializers, infos, operands = [], [], []
    for name, tensor in feeds.items():
        if embedded(tensor):
            initializers.append(numpy_helper.from_array(_plain(tensor), name))
        else:
            infos.append(_info(name, tensor))
            operands.append(tensor)
    outputs = [_info(name, tensor) for name, tensor in wanted.items()]
    said = [helper.make_value_info(name, types[name]) for n in nodes for name in n.output if types and name in types]
    graph = helper.make_graph([_whole(n, store) for n in nodes], "opaque", infos, outputs, initializers, value_info=said)
    if any(n.op_type == "Scatter" for n in nodes):
        opsets = {**opsets, "": max(opsets.get("", 1), 11)}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, functions=[_filled(f, store) for f in called(nodes, functions)])
    return model.SerializeToString(), operands


def embedded(tensor: Tensor) -> bool:
    """Whether it travels inside the model of an opaque node that reads it. A constant that follows from input shapes does
    not: the model would be another at each length of a shape bucket."""
    small = tensor.nbytes <= _EMBED and tensor.weight_key is not None
    return tensor.is_const and (small or not tensors.is_plain(tensor.dtype))


def _info(name: str, tensor: Tensor | None) -> onnx.ValueInfoProto:
    """Its type. Shapes are those of the operands, which may be others in each request."""
    if tensor is None or not tensors.is_plain(tensor.dtype):
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, tensors.elem_type(tensor.dtype), None)


def _plain(tensor: Tensor) -> Any:
    return tensor.value().copy() if tensor.dtype != tensors.OBJECT else tensor.value()


def _whole(node: NodeProto, store: Store) -> NodeProto:
    """The node with the data of its constants inside."""
    if node.op_type == "Scatter" and not node.domain:  # the old name of ScatterElements, which is all that onnx.reference knows
        node = NodeProto(op_type="ScatterElements", name=node.name, input=node.input, output=node.output, attribute=node.attribute)
    if not any(a.HasField("t") or a.HasField("g") or a.tensors or a.graphs for a in node.attribute):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    _fill(copy, store)
    return copy


def _filled(function: FunctionProto, store: Store) -> FunctionProto:
    """The function with the data of its constants inside."""
    copy = FunctionProto()
    copy.CopyFrom(function)
    for node in copy.node:
        _fill(node, store)
    return copy


def _fill(node: NodeProto, store: Store) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            attribute.t.CopyFrom(store.whole(attribute.t))
        for tensor in attribute.tensors:
            tensor.CopyFrom(store.whole(tensor))
    for graph in subgraphs(node):
        for tensor in graph.initializer:
            tensor.CopyFrom(store.whole(tensor))
        for inner in graph.node:
            _fill(inner, store)
