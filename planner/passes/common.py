"""Common sub-expressions: two nodes that do the same to the same tensors become one."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried

_SMALL: Final = 1 << 16
"""Bytes of constants that are compared by value: of those that rules make, not of the model's."""


def share(graph: Graph) -> None:
    """Keeps the first of equal nodes. Opaque nodes may be random, so they all stay. Graph outputs stay, too, since they need places of
    their own, and nodes of several outputs, which are parts of long layers."""
    replaced: dict[Tensor, Tensor] = {}
    seen: dict[tuple[Any, ...], list[Node]] = {}
    outputs = set(graph.outputs)
    kept = []
    for node in graph.nodes:
        if replaced:
            node.inputs = [replaced.get(t, t) if t is not None else None for t in node.inputs]
        if node.op == "OPAQUE" or len(node.outputs) > 1:
            kept.append(node)
            continue
        key = (node.op, node.output.shape, node.output.dtype, tuple([_who(t) for t in node.inputs]))
        alike = seen.setdefault(key, [])
        first = next((other for other in alike if _attributes(other) == _attributes(node)), None)
        if first is None:
            alike.append(node)
        if first is None or node.output in outputs:
            kept.append(node)
        else:
            replaced[node.output] = first.output
            reasons.tell(partial(_reason, node.name, first.name))
    graph.nodes = kept


def _reason(name: str, first: str) -> Reason:
    return Reason("fusion", "no op", f"{first!r} computes the same", tried=(Tried("an op of its own", "twice the work"),), node=name)


def _attributes(node: Node) -> str:
    return repr(sorted(node.attrs.items()))


def _who(tensor: Tensor | None) -> Any:
    """Equal where values are: rules make small constants anew. Single integers are left out, which may be equal at one length alone of
    those that a plan is for."""
    if tensor is None or tensor.data is None or tensor.weight_key is not None or tensor.nbytes > _SMALL or tensor.dtype.hasobject:
        return id(tensor)
    if tensor.size < 2 and tensor.dtype.kind in "iu":
        return id(tensor)
    return (tensor.shape, tensor.dtype, tensor.data.tobytes())
