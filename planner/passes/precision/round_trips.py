"""Names every QuantizeLinear and DequantizeLinear that has stayed an op of its own, and why. Each costs a way through f32 and back."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import NETWORK, Reason, Tried
from aspen_mp.planner.passes.precision.integer_products import PRODUCTS

CHOICE: Final = "an op between bytes and f32"
"""The choice in the reason for such an op."""
_LEVELS: Final = ("QuantizeLinear", "DequantizeLinear")
_MOVES: Final = frozenset({"view.reshape", "view.transpose", "view.slice", "view.expand", "COPY"})
_F32: Final = np.dtype(np.float32)
_BYTES: Final = frozenset({np.dtype(np.int8), np.dtype(np.uint8)})


def name_round_trips(graph: Graph) -> None:
    """Records a reason for each such op, and one for the network that lists them. The graph stays as it is."""
    if not reasons.asked():
        return
    readers, producer = graph.consumers(), graph.producers()
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.onnx_op.rpartition(" ")[2] not in _LEVELS:
            continue
        rule = ""
        if node.op == "QUANTIZE":
            rule = _why_quantized(node, graph, readers, producer)
        elif node.op == "DEQUANTIZE" or (node.op == "UNARY" and node.attrs["opcode"] == "FAKE_QUANTIZE"):
            rule = _why_real(node, graph, readers, producer)
        elif node.op == "OPAQUE":
            rule = "no kernel computes it, so it runs with onnx.reference"
        if rule:
            found[node.name] = rule
            reasons.tell(partial(Reason, "precision", CHOICE, rule, node=node.name))
    if found:
        tried = tuple([Tried(f"{name!r} in bytes", rule) for name, rule in found.items()])
        many = "1 conversion of levels stays an op" if len(found) == 1 else f"{len(found)} conversions of levels stay ops"
        reasons.tell(lambda: Reason("precision", many, "each reads or writes values in f32", tried=tried, node=NETWORK))


Readers = dict[Tensor, list[tuple[Node, int]]]


def _why_quantized(node: Node, graph: Graph, readers: Readers, producer: dict[Tensor, Node]) -> str:
    """Why f32 is rounded to levels by an op of its own."""
    x, scale, zero = node.inputs[0], node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    while x is not None and (move := producer.get(x)) is not None and move.op in _MOVES:
        x = move.inputs[0]
    before = None if x is None else producer.get(x)
    if before is None or x is None:
        return "it reads an input of the network or a constant, which is f32"
    if node.output.dtype not in _BYTES:
        return f"its levels are {node.output.dtype}, and kernels multiply bytes"
    if any(t is not None and not t.is_const for t in (scale, zero)):
        return "its scale or zero point is computed by the network"
    if any(t is not None and t.size != 1 for t in (scale, zero)):
        return "it has a scale or zero point for each index of an axis"
    if before.op == "DEQUANTIZE" or (before.op == "UNARY" and before.attrs["opcode"] == "FAKE_QUANTIZE"):
        return f"its scale or zero point differs from that of {_named(before)}"
    if before.op in PRODUCTS and (len(readers.get(x, ())) > 1 or x in graph.outputs):
        return f"others read the result of {_named(before)} in f32, too"
    return f"it reads the result of {_named(before)}, which is computed in f32"


def _why_real(node: Node, graph: Graph, readers: Readers, producer: dict[Tensor, Node]) -> str:
    """Why levels become f32 by an op of its own."""
    if node.op == "DEQUANTIZE" and node.inputs[0] is not None and node.inputs[0].dtype not in _BYTES:
        return f"its levels are {node.inputs[0].dtype}, and kernels multiply bytes"
    before = producer.get(node.inputs[0]) if node.inputs[0] is not None else None
    differs = node.op == "DEQUANTIZE" and before is not None and before.op == "QUANTIZE" and _differ(before, node)
    ahead = f"its scale or zero point differs from that of {_named(before)}, and " if differs and before is not None else ""
    todo, seen = [node.output], dict[str, None]()
    while todo:
        tensor = todo.pop()
        if tensor in graph.outputs:
            seen["it gives an output of the network, which is f32"] = None
        for reader, _ in readers.get(tensor, ()):
            if reader.op in _MOVES or reader.op == "concat":
                todo.append(reader.output)
            elif reader.op in PRODUCTS:
                seen[f"the kernel of {_named(reader)} adds it in f32"] = None
            elif reader.op == "QUANTIZE":
                seen[f"{_named(reader)} rounds its result to levels of another scale or zero point"] = None
            else:
                seen[f"its result feeds {_named(reader)}, which is computed in f32"] = None
    rules = list(seen)
    more = f", as are {len(rules) - 1} more" if len(rules) > 1 else ""
    return f"{ahead}{rules[0]}{more}"


def _differ(there: Node, here: Node) -> bool:
    """Whether two conversions have unlike parameters."""
    pairs = zip([*there.inputs[1:], None], [*here.inputs[1:], None], strict=False)
    return any((a is None) != (b is None) or (a is not None and b is not None and not _same(a, b)) for a, b in pairs)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.is_const and b.is_const and a.size == b.size and np.array_equal(a.value().reshape(-1), b.value().reshape(-1)))


def _named(node: Node) -> str:
    return f"{(node.onnx_op or node.op).partition(' ')[0]} {node.name!r}"
