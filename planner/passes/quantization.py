"""QuantizeLinear and DequantizeLinear one behind the other, as tools write quantised networks, are a function of one argument: it rounds a
value to one of 256 levels. As such it becomes the epilogue of what comes before."""

from __future__ import annotations

from typing import Final

import numpy as np

from aspen_mp.planner.ir import Graph, Node, Tensor

_F32: Final = np.dtype(np.float32)
_BYTES: Final = frozenset({np.dtype(np.int8), np.dtype(np.uint8)})
_KEEP_LEVELS: Final = frozenset({"Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Their results are among their first input's values."""


def round_to_levels(graph: Graph) -> None:
    """Rewrites pairs with equal scales and zero points of one element as FakeQuantize, and leaves out those that change nothing."""
    producer = graph.producers()
    kept: list[Node] = []
    for node in graph.nodes:
        levels = _levels(node, producer)
        if levels is not None:
            x, scale, lowest = levels
            if node.output not in graph.outputs and _on_levels(x, scale, lowest, producer):
                graph.replace(node.output, x)
                continue
            node.op, node.inputs, node.attrs, node.source = "FakeQuantize", [x], {"scale": scale, "lowest": lowest}, None
        kept.append(node)
    for op in ("QuantizeLinear", "Relu"):  # nobody may read them any more, the second because of the first
        uses = graph.uses()
        kept = [n for n in kept if n.op != op or uses.get(n.output, 0)]
    graph.nodes = kept


def _levels(node: Node, producer: dict[Tensor, Node]) -> tuple[Tensor, float, float] | None:
    """(x, scale, lowest level) if the node gives back what was quantised from x."""
    if node.op != "DequantizeLinear" or node.inputs[0] is None:
        return None
    back = producer.get(node.inputs[0])
    if back is None or back.op != "QuantizeLinear" or back.inputs[0] is None or node.inputs[0].dtype not in _BYTES:
        return None
    x, there, here = back.inputs[0], _parameters(back), _parameters(node)
    if there is None or there != here or x.dtype != _F32 or node.output.dtype != _F32:
        return None
    scale, zero = there
    lowest = float(np.iinfo(node.inputs[0].dtype).min) - zero
    before = producer.get(x)
    if lowest == 0.0 and before is not None and before.op == "Relu" and before.inputs[0] is not None:
        x = before.inputs[0]  # the lowest level is 0 itself
    return x, scale, lowest


def _parameters(node: Node) -> tuple[float, float] | None:
    """Scale and zero point, where both are known and of one element."""
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or not scale.is_const or scale.size != 1 or scale.dtype != _F32:
        return None
    if zero is not None and (not zero.is_const or zero.size != 1):
        return None
    value = float(scale.value().reshape(()))
    return (value, 0.0 if zero is None else float(zero.value().reshape(()))) if 0.0 < value < np.inf else None


def _on_levels(x: Tensor, scale: float, lowest: float, producer: dict[Tensor, Node]) -> bool:
    """Whether all values of x are levels already."""
    node = producer.get(x)
    while node is not None and node.op in _KEEP_LEVELS and node.inputs[0] is not None and x is node.output:
        x = node.inputs[0]
        node = producer.get(x)
    return node is not None and node.op == "FakeQuantize" and node.attrs == {"scale": scale, "lowest": lowest}
