"""Quantised values that are only moved stay bytes. Tools write DequantizeLinear before a Reshape or Transpose, and QuantizeLinear with the
same parameters behind it. The bytes behind are those before, moved. QuantizeLinear behind a Concat goes before it, so that the kernels of
its parts write bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Shape, Tensor
from aspen_mp.planner.passes.precision.quantization import parameters

_MOVES: Final = frozenset(
    {"DepthToSpace", "Flatten", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Their results are among their first input's values, and in the same order whatever these stand for."""
_BYTES: Final = frozenset({np.dtype(np.int8), np.dtype(np.uint8)})
_LARGEST_SCALE: Final = 1e36
"""Any byte times a scale up to here is a float."""


def move_bytes(graph: Graph) -> None:
    """Rewrites such QuantizeLinear nodes as moves of bytes, and leaves out those behind which nothing has changed."""
    if not graph.has("DequantizeLinear"):
        return
    _quantize_parts(graph)
    producer, outputs = graph.producers(), set(graph.outputs)
    moved: dict[tuple[int, Tensor], Tensor] = {}
    replaced: dict[Tensor, Tensor] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        if replaced:
            node.inputs = [None if t is None else replaced.get(t, t) for t in node.inputs]
        found = _source(node, producer) if _gives_bytes(node) and node.output not in outputs else None
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


def _gives_bytes(node: Node) -> bool:
    return node.op == "QuantizeLinear" and node.output.dtype in _BYTES


def _quantize_parts(graph: Graph) -> None:
    """Rewrites QuantizeLinear of a Concat that nothing else reads as Concat of the quantised parts."""
    producer, uses = graph.producers(), graph.uses()
    kept: list[Node] = []
    for node in graph.nodes:
        x = node.inputs[0] if _gives_bytes(node) else None
        joined = None if x is None else producer.get(x)
        if x is None or joined is None or joined.op != "Concat" or uses[x] > 1 or parameters(node) is None:
            kept.append(node)
            continue
        parts = [
            _made(node, [part, *node.inputs[1:]], f"{node.output.name}~{k}", part.shape, kept)
            for k, part in enumerate(joined.inputs)
            if part is not None
        ]
        kept.append(Node("Concat", joined.name, list(parts), [node.output], dict(joined.attrs), joined.onnx_op))
        node.output.producer = kept[-1]
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
    return _made(move, [x, *move.inputs[1:]], f"{move.output.name}~bytes", move.output.shape, kept, x.dtype)


def _made(like: Node, inputs: list[Tensor | None], name: str, shape: Shape, kept: list[Node], dtype: np.dtype[Any] | None = None) -> Tensor:
    """The result of another node of the same kind."""
    result = Tensor(name, shape, dtype or like.output.dtype)
    kept.append(Node(like.op, like.name, inputs, [result], dict(like.attrs), like.onnx_op))
    result.producer = kept[-1]
    return result
