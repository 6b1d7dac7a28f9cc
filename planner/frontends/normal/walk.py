"""Ways through the parts of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import GraphProto, ModelProto

from aspen_mp.planner.frontends.check import all_nodes
from aspen_mp.planner.frontends.functions import subgraphs


def graphs_in(nodes: Any) -> Iterator[GraphProto]:
    """The sub-graphs in the nodes of a list, at any depth."""
    for node in all_nodes(nodes):
        if node.attribute:
            yield from subgraphs(node)


def scopes(proto: ModelProto) -> Iterator[tuple[Any, Any]]:
    """Node list and opset imports of the model and of each of its functions."""
    yield proto.graph.node, proto.opset_import
    for function in proto.functions:
        yield function.node, function.opset_import
