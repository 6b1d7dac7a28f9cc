"""Results that have no name although their operator must give them. Nothing reads them, so any name will do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from onnx import ModelProto, NodeProto, defs

from aspen_mp.planner.frontends.check import all_nodes
from aspen_mp.planner.frontends.normal.walk import scopes

_SINGLE: Final = defs.OpSchema.FormalParameterOption.Single


def name(proto: ModelProto) -> None:
    """Names results that an operator's definition does not let a node leave out."""
    taken: set[str] = set()
    for nodes, imports in scopes(proto):
        versions = {entry.domain: entry.version for entry in imports}
        for node in all_nodes(nodes):
            if "" in node.output:
                if not taken:
                    taken = _names(proto)
                _complete(node, versions.get(node.domain, 0), taken)


def _complete(node: NodeProto, version: int, taken: set[str]) -> None:
    try:
        formal = defs.get_schema(node.op_type, version, node.domain).outputs
    except defs.SchemaError:
        return
    for k, output in enumerate(node.output):
        if not output and k < len(formal) and formal[k].option == _SINGLE:
            node.output[k] = _fresh(f"{node.op_type}.{formal[k].name}", taken.__contains__)
            taken.add(node.output[k])


def _fresh(stem: str, is_taken: Callable[[Any], bool]) -> str:
    found, n = stem, 0
    while is_taken(found):
        n += 1
        found = f"{stem}.{n}"
    return found


def _names(proto: ModelProto) -> set[str]:
    """Every name of a value anywhere in the model."""
    names = {value.name for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer)}
    for function in proto.functions:
        names.update(function.input, function.output)
    for nodes, _ in scopes(proto):
        for node in all_nodes(nodes):
            names.update(node.input, node.output)
    return names
