"""Patterns as data: what an expression over kernels looks like, and whether a tensor is computed by one.

    Call("TERNARY", "WHERE", (Call("UNARY", "ISNAN", (Value("p"),)), Number(0.0), Value("p")))

A name that occurs twice stands for the same tensor. Matching looks at kernels only; views between them are the caller's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aspen_mp.planner.ir import Node, Tensor
from aspen_mp.planner.passes.rewrite import Rewriter, no_act, scalar_of


@dataclass(frozen=True, slots=True)
class Value:
    """Any tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of one element: of this value, or any."""

    value: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """The result of a kernel: `op`, and `opcode` where it has one. `either`: the two inputs may stand in any order."""

    op: str
    opcode: str | None
    inputs: tuple[Pattern, ...]
    either: bool = False


Pattern = Value | Number | Call


@dataclass(slots=True)
class Match:
    """What the names of a pattern stand for, and the nodes that it covers, the one that computes the matched tensor first."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


def matches(rewriter: Rewriter, tensor: Tensor | None, pattern: Pattern) -> Iterator[Match]:
    """All ways in which `tensor` is computed by `pattern`: several where operands may swap places."""
    yield from _matches(rewriter, tensor, pattern, Match())


def first_match(rewriter: Rewriter, tensor: Tensor | None, pattern: Pattern) -> Match | None:
    return next(matches(rewriter, tensor, pattern), None)


def _matches(rewriter: Rewriter, tensor: Tensor | None, pattern: Pattern, found: Match) -> Iterator[Match]:
    if tensor is None:
        return
    if isinstance(pattern, Value):
        if found.tensors.get(pattern.name, tensor) is tensor:
            yield Match({**found.tensors, pattern.name: tensor}, found.numbers, found.nodes)
    elif isinstance(pattern, Number):
        value = scalar_of(tensor)
        if value is not None and (pattern.value is None or value == pattern.value):
            known = found.numbers.get(pattern.name, value) if pattern.name else value
            if known == value:
                yield Match(found.tensors, {**found.numbers, pattern.name: value} if pattern.name else found.numbers, found.nodes)
    else:
        node = rewriter.made_by(tensor, pattern.op)
        if node is None or not no_act(node) or node.attrs.get("opcode") != pattern.opcode or len(node.inputs) != len(pattern.inputs):
            return
        start = Match(found.tensors, found.numbers, [*found.nodes, node])
        for inputs in (node.inputs, node.inputs[::-1]) if pattern.either else (node.inputs,):
            yield from _all(rewriter, list(zip(inputs, pattern.inputs, strict=True)), start)


def _all(rewriter: Rewriter, pairs: Sequence[tuple[Tensor | None, Pattern]], found: Match) -> Iterator[Match]:
    if not pairs:
        yield found
        return
    (tensor, pattern), *rest = pairs
    for one in _matches(rewriter, tensor, pattern, found):
        yield from _all(rewriter, rest, one)


def closed(rewriter: Rewriter, nodes: Sequence[Node]) -> bool:
    """Whether nobody but these nodes reads their results, the first one's left aside."""
    return all(_readers(nodes, t) == rewriter.uses.get(t, 0) and t not in rewriter.kept for n in nodes[1:] for t in n.outputs)


def _readers(nodes: Sequence[Node], tensor: Tensor) -> int:
    return sum(n.inputs.count(tensor) for n in nodes)
