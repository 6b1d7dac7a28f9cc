"""Dead code: nodes that no output needs."""

from __future__ import annotations

from collections.abc import Sequence

from aspen_mp.planner.ir.graph import Graph, Node, Tensor


def remove_dead(graph: Graph) -> None:
    """Drops nodes whose results nobody reads, and graph inputs that nobody reads."""
    needed: set[Tensor | None] = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    kept.reverse()
    graph.nodes = kept
    graph.inputs = [t for t in graph.inputs if t in needed]


def own_outputs(graph: Graph, names: Sequence[str]) -> None:
    """Gives every graph output a tensor of its own, computed by a node and named as the model names it. Outputs that are inputs, constants,
    or the same value twice become copies."""
    taken: set[Tensor] = set()
    sources = set(graph.inputs)
    for k, name in enumerate(names):
        tensor = graph.outputs[k]
        if tensor in sources or tensor.is_const or tensor in taken or tensor.producer is None:
            copy = Tensor(name, tensor.shape, tensor.dtype)
            copy.producer = Node("COPY", f"output {name}", [tensor], [copy], {}, "Identity")
            graph.nodes.append(copy.producer)
            graph.outputs[k] = tensor = copy
        tensor.name = name
        taken.add(tensor)
