"""The model that ONNX's checker and shape inference see: without long tensors, and with a name wherever they want one.

Normal models come in (`normal`), so nothing is wrong with the result that is right with the model."""

from __future__ import annotations

from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.planner.frontends.said import UNNAMED


def of(proto: ModelProto) -> ModelProto:
    """A copy of a normal model in which long tensors are graph inputs, or of known shape and all zero, and everything has a name."""
    light = ModelProto()
    light.CopyFrom(proto)
    graph = light.graph
    graph.name = graph.name or "graph"
    known = {i.name for i in graph.input}
    kept = []
    for tensor in graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            kept.append(tensor)
        elif tensor.name not in known:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    kept = [_copy(t) for t in kept]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    _untyped(graph)
    _lighten(graph.node, graph.input)
    for function in light.functions:
        _lighten(function.node)
    return light


def _untyped(graph: GraphProto) -> None:
    """Outputs whose type has no element type, and knowledge of values that has no type, say nothing."""
    for value in graph.output:
        if value.type.HasField("tensor_type") and not value.type.tensor_type.elem_type:
            value.ClearField("type")
    for at in reversed(range(len(graph.value_info))):
        kind = graph.value_info[at].type
        if kind.WhichOneof("value") is None or (kind.HasField("tensor_type") and not kind.tensor_type.elem_type):
            del graph.value_info[at]


def _lighten(nodes: Any, inputs: Any = None) -> None:
    """Replaces constants that are references, at any depth: by `inputs` of a graph where there are some, else by zeros of their shape."""
    replaced: dict[int, list[NodeProto]] = {}
    for k, node in enumerate(nodes):
        if not node.name:
            node.name = UNNAMED + ", ".join(map(repr, node.output))
        if not node.attribute:
            continue
        for graph in subgraphs(node):
            graph.name = graph.name or "graph"
            _untyped(graph)
            _lighten(graph.node)
            _lighten_initializers(graph)
        tensor = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None) if node.op_type == "Constant" else None
        if tensor is None or tensor.data_location != TensorProto.EXTERNAL:
            continue
        if inputs is None:
            replaced[k] = _zeros(tensor, node.output[0])
        else:
            inputs.append(helper.make_tensor_value_info(node.output[0], tensor.data_type, tensor.dims))
            replaced[k] = []
    if replaced:
        kept = [new for k, node in enumerate(nodes) for new in replaced.get(k, [_copy_node(node)])]
        del nodes[:]
        nodes.extend(kept)


def _lighten_initializers(graph: GraphProto) -> None:
    kept, zeros = [], []
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            zeros.extend(_zeros(tensor, tensor.name))
        else:
            kept.append(_copy(tensor))
    if zeros:
        nodes = [_copy_node(n) for n in graph.node]
        del graph.node[:]
        del graph.initializer[:]
        graph.node.extend([*zeros, *nodes])
        graph.initializer.extend(kept)


def _zeros(tensor: TensorProto, name: str) -> list[NodeProto]:
    shape = f"{name}\0shape"
    zero = helper.make_tensor("", tensor.data_type, [1], b"\0" * tensors.dtype_of(tensor).itemsize, raw=True)
    return [
        helper.make_node("Constant", [], [shape], value=helper.make_tensor("", TensorProto.INT64, [len(tensor.dims)], tensor.dims)),
        helper.make_node("ConstantOfShape", [shape], [name], value=zero),
    ]


def _copy_node(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def _copy(tensor: TensorProto) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    return copy
