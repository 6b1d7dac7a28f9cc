"""Quantised values that are only moved stay bytes. Tools write DequantizeLinear before a Reshape or Transpose, and QuantizeLinear with the
same parameters behind it. The bytes behind are those before, moved. The same holds for tables of stored bytes, of which Gather takes rows.
QuantizeLinear behind a Concat or Where goes before it, so that the kernels of its parts write bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.passes.precision.quantization import parameters

_MOVES: Final = frozenset(
    {*("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split")}
    | {"Squeeze", "Tile", "Transpose", "Unsqueeze"}
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
    moved: dict[tuple[int, Tensor], Node] = {}
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
        for move, out in reversed(trail):
            key = id(move), x
            if key not in moved:
                moved[key] = _on_bytes(move, x, node)
                kept.append(moved[key])
            x = moved[key].outputs[move.outputs.index(out)]
        replaced[node.output] = x
    if replaced:
        graph.nodes = kept
        graph.nodes = graph.read_nodes()


def _gives_bytes(node: Node) -> bool:
    return node.op == "QuantizeLinear" and node.output.dtype in _BYTES


def _quantize_parts(graph: Graph) -> None:
    """Rewrites QuantizeLinear of a Concat or Where that nothing else reads: the parts are quantised."""
    producer, uses = graph.producers(), graph.uses()
    kept: list[Node] = []
    for node in graph.nodes:
        x = node.inputs[0] if _gives_bytes(node) else None
        joined = None if x is None else producer.get(x)
        if x is None or joined is None or uses[x] > 1 or parameters(node) is None or not _joins(joined, producer):
            kept.append(node)
            continue
        parts: list[Tensor | None] = list(joined.inputs)
        for k, part in enumerate(joined.inputs):
            if part is not None and not (joined.op == "Where" and k == 0):
                parts[k] = _quantized(node, part, f"{node.output.name}~{k}", kept)
        kept.append(Node(joined.op, joined.name, parts, [node.output], dict(joined.attrs), joined.onnx_op, joined.source))
        node.output.producer = kept[-1]
    graph.nodes = kept
    graph.nodes = graph.read_nodes()


def _joins(node: Node, producer: dict[Tensor, Node]) -> bool:
    """Whether the parts of a node may be quantised before it. The parts of a Where are larger than its result: one has to be bytes."""
    if node.op != "Where":
        return node.op == "Concat"
    made = [producer.get(t) for t in node.inputs[1:] if t is not None]
    return any(part is not None and part.op == "DequantizeLinear" for part in made)


def _quantized(node: Node, part: Tensor, name: str, kept: list[Node]) -> Tensor:
    """Return the levels of another tensor, as a QuantizeLinear node makes them."""
    if part.is_const and part.size == 1:
        return Tensor(name, part.shape, node.output.dtype, data=_levels_of(node, part.value()))
    result = Tensor(name, part.shape, node.output.dtype)
    kept.append(Node(node.op, node.name, [part, *node.inputs[1:]], [result], dict(node.attrs), node.onnx_op, node.source))
    result.producer = kept[-1]
    return result


def _levels_of(node: Node, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The levels of constants, as QuantizeLinear rounds them."""
    beside, info = parameters(node), np.iinfo(node.output.dtype)
    assert beside is not None
    steps = np.rint(value.astype(np.float32) / np.float32(beside[0])) + np.float32(beside[1])
    return np.asarray(np.clip(np.where(np.isnan(steps), info.min, steps), info.min, info.max).astype(node.output.dtype))


def _source(node: Node, producer: dict[Tensor, Node]) -> tuple[Tensor, list[tuple[Node, Tensor]]] | None:
    """The bytes that a QuantizeLinear node gives back, and the moves on the way with what is read of them, the last one first. None where
    it gives others."""
    trail: list[tuple[Node, Tensor]] = []
    x = node.inputs[0]
    while x is not None and (before := producer.get(x)) is not None and _moves(before):
        trail.append((before, x))
        x = before.inputs[0]
    here = parameters(node)
    if x is None or here is None or here[0] > _LARGEST_SCALE:
        return None
    if x.is_const:
        return (x.stored.values, trail) if trail and x.stored is not None and _stored_at(x, here, node.output.dtype) else None
    before = producer.get(x)
    if before is None or before.op != "DequantizeLinear" or before.inputs[0] is None or before.inputs[0].dtype != node.output.dtype:
        return None
    return (before.inputs[0], trail) if parameters(before) == here else None


def _stored_at(x: Tensor, parameters: tuple[float, float], dtype: np.dtype[Any]) -> bool:
    """Whether a constant is stored as bytes of these parameters."""
    stored = x.stored
    if stored is None or stored.scale is None or stored.block or stored.values.dtype != dtype or stored.scale.dtype != np.float32:
        return False
    if stored.scale.size != 1 or (stored.zero is not None and stored.zero.size != 1):
        return False
    zero = 0.0 if stored.zero is None else float(stored.zero.value().reshape(()))
    return (float(stored.scale.value().reshape(())), zero) == parameters


def _moves(node: Node) -> bool:
    if node.op not in _MOVES or node.inputs[0] is None or (node.op != "Split" and len(node.outputs) != 1):
        return False
    if node.op == "Pad":
        return len(node.inputs) < 3 or node.inputs[2] is None or (node.inputs[2].is_const and node.inputs[2].size == 1)
    if node.op == "Resize":
        known = node.attrs.get("mode", "nearest"), node.attrs.get("coordinate_transformation_mode", "half_pixel")
        return known[0] == "nearest" and bool(known[1] != "tf_crop_and_resize")
    return True


def _on_bytes(move: Node, x: Tensor, like: Node) -> Node:
    """The same move of bytes. `like`: the QuantizeLinear node behind, with the parameters of these bytes."""
    inputs: list[Tensor | None] = [x, *move.inputs[1:]]
    if move.op == "Pad" and move.attrs.get("mode", "constant") == "constant":
        given = move.inputs[2] if len(move.inputs) > 2 else None
        value = np.zeros((), np.float32) if given is None else given.value().reshape(())
        fill = Tensor(f"{move.output.name}~fill", (), x.dtype, data=_levels_of(like, value))
        inputs = [*[*inputs, None, None][:2], fill, *inputs[3:]]
    results = [Tensor(out.name and f"{out.name}~bytes", out.shape, x.dtype) for out in move.outputs]  # no name: nobody reads it
    made = Node(move.op, move.name, inputs, results, dict(move.attrs), move.onnx_op, move.source)
    for result in results:
        result.producer = made
    return made
