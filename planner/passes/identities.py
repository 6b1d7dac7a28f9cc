"""Arithmetic that changes nothing: plus 0, times 1, a choice whose condition is the same everywhere."""

from __future__ import annotations

from functools import partial

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.passes.rewrite import Rewriter, no_act

_MOST = 1 << 16  # bytes of a constant that are looked through
_COPY = (Tried("a copy", "not needed"),)
_NEUTRAL = {"ADD": 0, "SUB": 0, "MUL": 1, "DIV": 1}


def drop_identities(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    replaced: dict[Tensor, Tensor] = {}
    for node in rewriter.live():
        if replaced:
            node.inputs = [replaced.get(t, t) if t is not None else None for t in node.inputs]
        same = _same(node)
        if same is not None and node.output not in rewriter.kept:
            replaced[node.output] = same
            reasons.tell(partial(Reason, "fusion", "no op", "its result is its input", tried=_COPY, node=node.name))
    if replaced:
        graph.nodes = [n for n in graph.nodes if replaced.keys().isdisjoint(n.outputs)]


def _same(node: Node) -> Tensor | None:
    """The input that the node's output equals."""
    found: Tensor | None = None
    if node.op == "BINARY" and node.attrs["opcode"] in _NEUTRAL and no_act(node):
        neutral = _NEUTRAL[node.attrs["opcode"]]
        for k in (1,) if node.attrs["opcode"] in {"SUB", "DIV"} else (1, 0):
            if _everywhere(node.inputs[k], neutral):
                found = node.inputs[1 - k]
                break
    elif node.op == "TERNARY" and node.attrs["opcode"] == "WHERE":
        condition = uniform(node.inputs[0])
        if condition is not None:
            found = node.inputs[1 if condition else 2]
    elif node.op == "UNARY" and node.attrs["opcode"] == "IDENTITY":
        found = node.inputs[0]
    return found if found is not None and found.shape == node.output.shape and found.dtype == node.output.dtype else None


def uniform(tensor: Tensor | None) -> float | None:
    """The value of a small constant whose elements are all the same."""
    if tensor is None or tensor.data is None or tensor.nbytes > _MOST or tensor.size == 0 or tensor.dtype.kind not in "biuf":
        return None
    first = tensor.data.item(0)
    return float(first) if bool(np.all(tensor.data == first)) else None


def _everywhere(tensor: Tensor | None, value: float) -> bool:
    """Whether a small constant is this, all of it; most are not, by their first element."""
    if tensor is None or tensor.data is None or tensor.size == 0 or tensor.dtype.kind not in "biuf" or tensor.data.item(0) != value:
        return False
    return uniform(tensor) == value
