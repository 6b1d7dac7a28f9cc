"""Quantised values that are only moved stay bytes. Tools write DequantizeLinear before a Reshape or Transpose, and QuantizeLinear with the
same parameters behind it. The bytes behind are those before, moved."""

from __future__ import annotations

from typing import Final

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.passes.precision.quantization import parameters

_MOVES: Final = frozenset({"DepthToSpace", "Flatten", "Identity", "Reshape", "Slice", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"})
_LARGEST_SCALE: Final = 1e36
"""Any byte times a scale up to here is a float."""


def move_bytes(graph: Graph) -> None:
    """Rewrites such QuantizeLinear nodes as moves of bytes, and leaves out those behind which nothing has changed."""
    if not graph.has("DequantizeLinear"):
        return
    producer, outputs = graph.producers(), set(graph.outputs)
    moved: dict[tuple[int, Tensor], Tensor] = {}
    replaced: dict[Tensor, Tensor] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        if replaced:
            node.inputs = [None if t is None else replaced.get(t, t) for t in node.inputs]
        found = None if node.op != "QuantizeLinear" or node.output in outputs else _source(node, producer)
        if found is None:
            kept.append(node)
            continue
        x, trail = found
        for move in reversed(trail):
            x = moved.get((id(move), x)) or moved.setdefault((id(move), x), _on_bytes(move, x, kept))
        replaced[node.output] = x
    if replaced:
        graph.nodes = kept
        graph.nodes = graph.read_nodes()


def _source(node: Node, producer: dict[Tensor, Node]) -> tuple[Tensor, list[Node]] | None:
    """The bytes that a QuantizeLinear node gives back, and the moves on the way, the last one first; None where it gives others."""
    trail: list[Node] = []
    before = None if node.inputs[0] is None else producer.get(node.inputs[0])
    while before is not None and before.op in _MOVES and len(before.outputs) == 1 and before.inputs[0] is not None:
        trail.append(before)
        before = producer.get(before.inputs[0])
    if before is None or before.op != "DequantizeLinear" or before.inputs[0] is None or before.inputs[0].dtype != node.output.dtype:
        return None
    there, here = parameters(before), parameters(node)
    if there is None or there != here or there[0] > _LARGEST_SCALE:
        return None
    return before.inputs[0], trail


def _on_bytes(move: Node, x: Tensor, kept: list[Node]) -> Tensor:
    result = Tensor(f"{move.output.name}~bytes", move.output.shape, x.dtype)
    kept.append(Node(move.op, move.name, [x, *move.inputs[1:]], [result], dict(move.attrs), move.onnx_op))
    result.producer = kept[-1]
    return result
