"""Inlining of functions (the model's own and those by which ONNX defines operators) and of branches whose condition is known. Every name
inside is made unique."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

MOST_DEEP: Final = 64
"""Functions in functions."""
_UNTOLD: Final = 1 << 62
"""Stands for this many nodes, or more."""


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured(node: NodeProto) -> list[str]:
    """Names of outer values that the node's sub-graphs read, each once, in order of first use."""
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        _free(graph, set(), found)
    return list(found)


def expanded(nodes: Iterable[NodeProto], functions: Mapping[tuple[str, str, str], FunctionProto]) -> Iterator[tuple[NodeProto, float]]:
    """Each node of a graph, and how many nodes it becomes when functions are replaced by their bodies. The count is infinite where they
    call each other in a circle, or more than `MOST_DEEP` deep. Counted, not made: each function is looked at once, however often it is
    called."""
    known: dict[tuple[str, str, str], float] = {}

    def count(node: NodeProto, depth: int) -> float:
        key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)
        if key not in functions:
            return 1
        if depth > MOST_DEEP:
            return inf
        if key not in known:
            known[key] = inf  # for whom it calls
            total = sum(count(inner, depth + 1) for inner in functions[key].node)
            known[key] = total if total == inf else min(total, _UNTOLD)
        return known[key]

    for node in nodes:
        yield node, count(node, 0)


def called(nodes: Iterable[NodeProto], functions: Iterable[FunctionProto]) -> list[FunctionProto]:
    """The functions that nodes call, also in sub-graphs and through others; each behind those that it calls itself."""
    known = {(f.domain, f.name, f.overload): f for f in functions}
    found: dict[tuple[str, str, str], FunctionProto] = {}

    def visit(inner: Iterable[NodeProto]) -> None:
        for node in inner:
            for graph in subgraphs(node):
                visit(graph.node)
            key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)
            if key in known and key not in found:
                visit(known[key].node)
                found[key] = known[key]

    visit(nodes)
    return list(found.values())


def _free(graph: GraphProto, bound: set[str], found: dict[str, None]) -> None:
    bound = bound | _bound(graph)
    for node in graph.node:
        for name in node.input:
            if name and name not in bound:
                found.setdefault(name)
        for inner in subgraphs(node):
            _free(inner, bound, found)
        bound.update(node.output)
    for output in graph.output:
        if output.name not in bound:
            found.setdefault(output.name)


def _rename_graph(graph: GraphProto, names: dict[str, str], attributes: dict[str, AttributeProto]) -> None:
    """Renames outer values inside a sub-graph. Names that the sub-graph defines itself stay, unless an outer value is called so now."""
    own = _bound(graph)
    for node in graph.node:
        own.update(node.output)
    inside = {old: new for old, new in names.items() if old not in own}
    outer = set(inside.values())
    for name in sorted(own & outer):
        if name:
            inside[name] = _unlike(name, own | outer)
    for value in (*graph.input, *graph.initializer, *graph.value_info, *graph.output):
        value.name = inside.get(value.name, value.name)
    for node in graph.node:
        _rename(node, inside, attributes)


def _bound(graph: GraphProto) -> set[str]:
    """The names that a graph defines without its nodes."""
    return {value.name for value in (*graph.input, *graph.initializer)}


def _unlike(name: str, taken: set[str]) -> str:
    while name in taken:
        name += ".inner"
    return name


def _rename(node: NodeProto, names: dict[str, str], attributes: dict[str, AttributeProto]) -> None:
    for k, name in enumerate(node.input):
        node.input[k] = names.get(name, name)
    for k, name in enumerate(node.output):
        node.output[k] = names.get(name, name)
    resolved: list[AttributeProto] = []
    changed = False
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            changed = True
            actual = attributes.get(attribute.ref_attr_name)
            if actual is not None:
                copy = AttributeProto()
                copy.CopyFrom(actual)
                copy.name = attribute.name
                resolved.append(copy)
        else:
            resolved.append(attribute)
    if changed:
        copies = []
        for attribute in resolved:
            copy = AttributeProto()
            copy.CopyFrom(attribute)
            copies.append(copy)
        del node.attribute[:]
        node.attribute.extend(copies)
    for graph in subgraphs(node):
        _rename_graph(graph, names, attributes)


def _copies(nodes: Iterable[NodeProto], names: dict[str, str], attributes: dict[str, AttributeProto], prefix: str) -> list[NodeProto]:
    nodes = list(nodes)
    for node in nodes:
        for name in node.output:
            if name:
                names.setdefault(name, f"{prefix}/{name}")
    out = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{prefix}/{node.name or node.op_type}"
        _rename(copy, names, attributes)
        out.append(copy)
    return out


def call(function: FunctionProto, node: NodeProto, prefix: str) -> list[NodeProto]:
    """The body of `function` as `node` calls it. The body's opset versions are the function's own."""
    names: dict[str, str] = {}
    for k, formal in enumerate(function.input):
        names[formal] = node.input[k] if k < len(node.input) else ""
    given: dict[str, Any] = {a.name: a for a in function.attribute_proto}
    given.update({a.name: a for a in node.attribute})
    forwarded: list[NodeProto] = []
    for k, formal in enumerate(function.output):
        actual = node.output[k] if k < len(node.output) and node.output[k] else f"{prefix}/{formal}"
        if formal in names:  # an input handed on unchanged
            forwarded.append(NodeProto(op_type="Identity", name=f"{prefix}/{formal}", input=[names[formal]], output=[actual]))
        else:
            names[formal] = actual
    return [*_copies(function.node, names, given, prefix), *forwarded]


def branch(graph: GraphProto, node: NodeProto, prefix: str) -> tuple[list[NodeProto], dict[str, Any]]:
    """The nodes of a branch of `node` (an If), and its constants by their new names."""
    names: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for tensor in graph.initializer:
        names[tensor.name] = f"{prefix}/{tensor.name}"
        constants[names[tensor.name]] = tensor
    forwarded: list[NodeProto] = []
    produced = {name for inner in graph.node for name in inner.output if name}
    for k, output in enumerate(graph.output):
        actual = node.output[k] if k < len(node.output) and node.output[k] else f"{prefix}/{output.name}.{k}"
        if output.name in produced and output.name not in names:
            names[output.name] = actual
        else:
            source = names.get(output.name, output.name)
            forwarded.append(NodeProto(op_type="Identity", name=f"{prefix}/{output.name}", input=[source], output=[actual]))
    return [*_copies(graph.node, names, {}, prefix), *forwarded], constants
