"""A network of the zoo as converters to half precision write it: weights and everything between in f16, inputs and outputs in f32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

KEPT = {"Resize": (1, 2)}
"""Inputs of operators that stay f32 whatever the data are."""


def in_f16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, rewritten in place. Numbers that f16 does not have become its largest ones."""
    graph = model.graph
    kept = {name for node in graph.node for k, name in enumerate(node.input) if k in KEPT.get(node.op_type, ())}
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _narrow(tensor)
    begin, end = [], []
    names: dict[str, str] = {}
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            names[value.name] = f"{value.name}/f16"
            begin.append(_cast(value.name, names[value.name], TensorProto.FLOAT16))
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            names[value.name] = f"{value.name}/f16"
            end.append(_cast(names[value.name], value.name, TensorProto.FLOAT))
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _narrow(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    nodes = [*begin, *graph.node, *end]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return model


def _narrow(tensor: TensorProto) -> None:
    if tensor.data_type != TensorProto.FLOAT:
        return
    most = np.finfo(np.float16).max
    narrow = np.clip(numpy_helper.to_array(tensor), -most, most).astype(np.float16)
    tensor.CopyFrom(numpy_helper.from_array(narrow, tensor.name))


def _cast(source: str, target: str, to: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}/Cast", to=to)
