"""Operators of onnxruntime's own (com.microsoft), said in ONNX's operators. Its optimizer and quantisation tools and the builders of
published language models write them. Each has one rule, written with `body.py`, in the file of its family. The files are `products.py`,
`norms.py`, `attention.py`, `grouped.py`, `cache.py`, `quantised.py`, `blocks.py`, `distances.py`, `linear.py`, `experts.py` and
`spellings.py`. `absent.py` lists those without a rule, and why they have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from onnx import NodeProto

from aspen_mp.planner.frontends.classical.result_types import LEFT
from aspen_mp.planner.frontends.contrib import attention, blocks, distances, experts, grouped, linear, norms, products, quantised, spellings
from aspen_mp.planner.frontends.contrib.absent import why_absent
from aspen_mp.planner.frontends.contrib.body import ADVICE, Body, Rule
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.planner.ir.graph import Tensor

DOMAIN: Final = "com.microsoft"
OPSET: Final = 27
"""The opset of the result of `plain`."""

MISPLACED: Final = frozenset({"SimplifiedLayerNormalization", "LayerNormalization"})
"""Operators that onnxruntime writes into ONNX's own domain, also for opsets that do not have them."""

OF_ANY_FLOAT: Final = frozenset({"DynamicQuantizeLinear"})
"""Operators of ONNX's own domain that quantisation tools write for other floats than ONNX's definition takes."""

_NORMALISED = 17  # ONNX has LayerNormalization from this opset on
_LAYOUT = "is made for the machine that onnxruntime optimized it on: save it with ORT_ENABLE_EXTENDED at most, or load the original model"

_FAMILIES = (products, norms, attention, grouped, quantised, blocks, distances, spellings, linear, experts)
_RULES: Final[dict[str, Rule]] = {op: rule for family in _FAMILIES for op, rule in family.RULES.items()}
_UNKNOWN: Final[dict[str, set[str]]] = {
    op: names for family in (attention, grouped, quantised, blocks, linear, experts) for op, names in family.UNKNOWN.items()
}
"""Attributes that change what an operator does in ways that have no rule here."""
_REFUSED: Final[dict[str, dict[int, str]]] = {
    op: what for family in (attention, grouped, blocks, spellings) for op, what in family.REFUSED.items()
}
"""Inputs that do, and their meaning."""
_NEEDS: Final = {**grouped.NEEDS, **spellings.NEEDS}
NAMES: Final = frozenset(_RULES)
"""Operators that have a rule."""


def place(nodes: Iterable[NodeProto], version: int) -> None:
    """Puts operators that are onnxruntime's into its domain: those that this version of ONNX's own domain does not have."""
    _place(nodes, MISPLACED if version < _NORMALISED else MISPLACED - {"LayerNormalization"})


def _place(nodes: Iterable[NodeProto], absent: frozenset[str]) -> None:
    for node in nodes:
        if node.op_type in absent and node.domain == "":
            node.domain = DOMAIN
        if node.attribute:
            for graph in subgraphs(node):
                _place(graph.node, absent)


def within(node: NodeProto) -> bool:
    """Whether a node's sub-graphs hold operators of the domain that are said in others: their nodes have to become nodes of the model."""
    inside = [inner for graph in subgraphs(node) for inner in graph.node]
    return any((inner.domain == DOMAIN and inner.op_type not in LEFT) or within(inner) for inner in inside)


def why_not(node: NodeProto, nested: bool) -> str:
    """Why a node of onnxruntime's domains cannot be run, and what to do; empty where it can. `nested`: it is in a sub-graph other than a
    branch, which becomes nodes of the model once its condition is known."""
    if node.domain != DOMAIN:
        return _LAYOUT
    if node.op_type in LEFT:
        return ""
    if node.op_type not in _RULES:
        return why_absent(node.op_type)
    if nested:
        return f"is an operator of onnxruntime's own, in a sub-graph, where it cannot be run: {ADVICE}"
    given = {a.name for a in node.attribute if a.i or a.f or a.s or a.ints}
    unknown = given & _UNKNOWN.get(node.op_type, set())
    if unknown:
        return f"has the attribute {', '.join(sorted(unknown))}, which is not known here: {ADVICE}"
    for k, what in _REFUSED.get(node.op_type, {}).items():
        if k < len(node.input) and node.input[k]:
            return f"has {what}, which is not known here: {ADVICE}"
    if node.op_type in {"FusedConv", "FusedGemm"}:
        kind = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "activation"), "")
        return "" if kind in {"", "Clip", *products.ACTIVATIONS} else f"has the activation {kind!r}, which is not known here: {ADVICE}"
    return ""


def needs(node: NodeProto) -> tuple[str, ...]:
    """The inputs of a node of the domain whose values have to be known before it can be said in others."""
    return tuple(node.input[k] for k in _NEEDS.get(node.op_type, ()) if k < len(node.input) and node.input[k])


def plain(node: NodeProto, inputs: Sequence[Tensor | None]) -> tuple[list[NodeProto], dict[str, Tensor]]:
    """The nodes that a node of the domain stands for, and constants that they read. `inputs` are known, maybe by shape alone."""
    body = Body(node, inputs)
    results = _RULES[node.op_type](body)
    for name, result in zip(node.output, results, strict=False):
        if name:
            body.emit("Identity", result, out=name)
    missing = [name for k, name in enumerate(node.output) if name and (k >= len(results) or not results[k])]
    if missing:
        raise body.unknown(f"gives {', '.join(map(repr, missing))}")
    return body.nodes, body.constants
