"""Nodes behind their inputs.

The order of a graph that is sorted already stays as it is. Otherwise the inputs of a node come right before the first node that reads them.
A node reads its inputs and the outer values of its sub-graphs, so every graph is gone through once, the inner ones first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from aspen_mp.planner.frontends.check import name_of
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.shm.errors import ModelInvalidError

Reads = dict[str, NodeProto]
"""Names that are read, and the first node that reads each."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """A graph's name in messages, and the names that it defines besides its nodes' outputs, each with its kind."""

    what: str
    given: dict[str, str]


def sort(proto: ModelProto) -> None:
    """Sorts the model's graph, its sub-graphs and functions. ModelInvalidError for a cycle, a name that is defined twice or not at all,
    inputs and outputs without a name, and inputs without a type."""
    graph = proto.graph
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for k, value in enumerate(values):
            if not value.name:
                raise ModelInvalidError(f"graph {kind} {k} has no name")
            if kind == "input" and value.type.WhichOneof("value") is None:
                raise ModelInvalidError(f"graph input {value.name!r} has no type")
    free = _graph(graph, "graph")
    if free:
        raise _undefined(free, "the graph")
    for function in proto.functions:
        what = f"function {function.domain}.{function.name}"
        scope = _Scope(what, dict.fromkeys(function.input, "an input"))
        free, defined = _nodes(function.node, scope)
        if free:
            raise _undefined(free, what)
        _outputs(function.output, defined, what)


def _undefined(free: Reads, what: str) -> ModelInvalidError:
    name, node = next(iter(free.items()))
    return ModelInvalidError(f"{name_of(node)} reads {name!r}, which {what} does not define: no input, initializer or node is called so")


def _graph(graph: GraphProto, what: str) -> Reads:
    """Sorts a graph; returns the outer names that it reads."""
    given: dict[str, str] = {}
    for value in graph.input:
        if value.name in given and value.name:
            raise ModelInvalidError(f"{what}: two inputs are called {value.name!r}")
        given[value.name] = "an input"
    given.update((tensor.name, "an initializer") for tensor in graph.initializer)
    scope = _Scope(what, given)
    free, defined = _nodes(graph.node, scope)
    _outputs([value.name for value in graph.output], defined, what)
    return free


def _outputs(names: Iterable[str], defined: Collection[str], what: str) -> None:
    for name in names:
        if not name or name not in defined:
            raise ModelInvalidError(f"{what} output {name!r} is computed by no node")


def _nodes(nodes: Any, scope: _Scope) -> tuple[Reads, Collection[str]]:
    """Sorts a list of nodes, returns the undefined names that they read, and the names that are defined then."""
    read = list(map(_reads, nodes))
    known = _known(nodes, read, scope)
    if known is not None:
        return {}, known
    makers: dict[str, int] = {}
    for k, node in enumerate(nodes):
        for name in node.output:
            if name:
                if name in scope.given:
                    raise ModelInvalidError(f"{name_of(node)} gives {name!r}, which is {scope.given[name]}, too. Give it another name")
                if name in makers:
                    other = nodes[makers[name]]
                    raise ModelInvalidError(f"{name_of(node)} gives {name!r}, and so does {name_of(other)}. Give one of them another name")
                makers[name] = k
    free: Reads = {}
    needs: list[list[int]] = []
    is_sorted = True
    for k, (node, names) in enumerate(zip(nodes, read, strict=True)):
        mine = []
        for name in names:
            if name in makers:
                mine.append(makers[name])
            elif name not in scope.given:
                free.setdefault(name, node)
        is_sorted = is_sorted and all(other < k for other in mine)
        needs.append(mine)
    if not is_sorted:
        ranks = iter(_ranks(nodes, needs, scope.what))
        nodes.sort(key=lambda _: next(ranks))
    return free, scope.given.keys() | makers.keys()


def _known(nodes: Any, read: Sequence[Collection[str]], scope: _Scope) -> set[str] | None:
    """The names that are defined. None where a node reads a name before its definition, or a name is defined twice; most graphs have
    neither."""
    known = set(scope.given)
    for node, names in zip(nodes, read, strict=True):
        given = list(node.output)
        if "" in given:
            given = [name for name in given if name]
        if not (known.issuperset(names) and known.isdisjoint(given)) or (len(given) > 1 and len(set(given)) < len(given)):
            return None
        known.update(given)
    return known


def _reads(node: NodeProto) -> Collection[str]:
    names = list(node.input)
    if "" in names:
        names = [name for name in names if name]
    if node.attribute:
        for graph in subgraphs(node):
            names += _graph(graph, f"{name_of(node)}: sub-graph {graph.name!r}")
    return dict.fromkeys(names) if len(names) > 1 else names


def _ranks(nodes: Any, needs: list[list[int]], what: str) -> list[int]:
    """The place of each node in an order in which `needs` (positions of other nodes) come first."""
    ranks = [-1] * len(needs)
    count = 0
    for start in range(len(needs)):
        if ranks[start] >= 0:
            continue
        path = [start]
        below = {start: iter(needs[start])}
        while path:
            other = next(below[path[-1]], None)
            if other is None:
                done = path.pop()
                del below[done]
                ranks[done] = count
                count += 1
            elif other in below:
                names = [name_of(nodes[k]) for k in path[path.index(other) :]]
                way = " → ".join([*names[:8], *["…"] * (len(names) > 8), names[0]])
                raise ModelInvalidError(f"{what}: nodes form a cycle: {way}")
            elif ranks[other] < 0:
                path.append(other)
                below[other] = iter(needs[other])
    return ranks
