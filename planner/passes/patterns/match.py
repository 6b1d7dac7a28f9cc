"""Patterns as data: the form of an expression over kernels, and whether a tensor is computed by one.

    Call("TERNARY", "WHERE", (Call("UNARY", "ISNAN", (Operand("p"),)), Number(0.0), Operand("p")))
    Product((Call("UNARY", "SIGMOID", (Operand("x"),)), Operand("x")))

A name that occurs twice stands for the same tensor. Matching looks at kernels only; views between them are the caller's affair.

Exporters multiply in every order and nesting, and divide where they could multiply. A `Product` is therefore the set of its factors: those
that are multiplied, those that it is divided by, and one number for all constants. A factor that others read, too, is not taken apart. So
the argument of a function stays one factor even where it is a product itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Generic, TypeVar

import ml_dtypes
import numpy as np

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.passes.rewrite import Rewriter, no_act, scalar_of

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float16), _BFLOAT16})
_ROUNDED = 2.0**-11
"""Relative error of a constant that an exporter has written with four digits, or rounded to half precision."""
_MULTIPLIED = 2.0**-22
"""Relative error of a product of constants each of which is rounded to f32."""
_MOST = 16
"""Products that are taken apart for one set of factors, and the highest power of a factor."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Operand:
    """Any tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of one element: of this value, or any. `near`: within the rounding of a constant, where every float format rounds the
    value. Near 1 or 0.5, which are exact, another number is meant."""

    value: float | None = None
    name: str = ""
    near: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """The result of a kernel: `op`, and `opcode` where it has one. `either`: the two inputs may stand in any order. `given`: the function's
    own numbers a and b. `name`: the node's key in `Match.calls`; nodes of one name have the same attributes."""

    op: str
    opcode: str | None
    inputs: tuple[Pattern, ...]
    either: bool = False
    given: tuple[Number, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Product:
    """`constant` · `over` … / `under` …, however nested and ordered. `rest`: the name under which further factors are found in
    `Match.rests`; without it there may be none. Patterns that seldom match should stand first."""

    over: tuple[Pattern, ...]
    under: tuple[Pattern, ...] = ()
    constant: Number = Number(1.0, near=True)
    rest: str = ""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several spellings."""

    patterns: tuple[Pattern, ...]
    ends: tuple[frozenset[Key] | None, ...] = field(init=False, repr=False, compare=False)
    """For each spelling the kernels that may compute it, None if anything may."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", tuple(map(_possible, self.patterns)))


@dataclass(frozen=True, slots=True)
class Named:
    """A pattern under a name: an `Operand` of that name elsewhere stands for the same tensor."""

    name: str
    pattern: Pattern


Pattern = Operand | Number | Call | Product | AnyOf | Named
Key = tuple[str, str | None]
_PRODUCTS = frozenset({("BINARY", b) for b in ("MUL", "DIV", "POW")} | {("UNARY", u) for u in ("NEG", "RECIPROCAL", "SQUARE")})


def _possible(pattern: Pattern) -> frozenset[Key] | None:
    if isinstance(pattern, Call):
        return frozenset({(pattern.op, pattern.opcode)})
    if isinstance(pattern, Named):
        return _possible(pattern.pattern)
    if isinstance(pattern, Product):
        if len(pattern.over) != 1 or pattern.under:
            return _PRODUCTS
        alone = _possible(pattern.over[0])
        return None if alone is None else _PRODUCTS | alone
    if isinstance(pattern, AnyOf):
        return None if None in pattern.ends else frozenset().union(*(e for e in pattern.ends if e is not None))
    return None


@dataclass(slots=True)
class Match:
    """The tensors of a pattern's names, and the nodes that it covers, the one that computes the matched tensor first."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    calls: dict[str, Node] = field(default_factory=dict)
    rests: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Factors:
    """A tensor as constant · over / under, and the nodes that have been taken apart."""

    constant: float = 1.0
    over: list[Tensor] = field(default_factory=list)
    under: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


class Matcher:
    """Matches tensors of one graph. `rounding`: conversions between floats and broadcasts may stand anywhere in a pattern and do not count;
    results then differ by their rounding."""

    def __init__(self, rewriter: Rewriter, *, rounding: bool = False) -> None:
        self.rewriter = rewriter
        self.rounding = rounding
        self._tolerance = max(_ROUNDED, rewriter.graph.rounding)
        self._taken_apart: dict[Tensor, _Factors] = {}

    def matches(self, tensor: Tensor | None, pattern: Pattern) -> Iterator[Match]:
        """All ways in which `tensor` is computed by `pattern`: several where operands may swap places."""
        if tensor is not None:
            self.begin()
            yield from self.more(tensor, pattern)

    def begin(self) -> None:
        """Forgets the facts about the graph before."""
        self._taken_apart.clear()

    def more(self, tensor: Tensor, pattern: Pattern) -> Iterator[Match]:
        """`matches`, for another pattern since `begin`."""
        yield from self._match(tensor, pattern, Match())

    def _match(self, tensor: Tensor | None, pattern: Pattern, found: Match) -> Iterator[Match]:
        if tensor is None:
            return
        if isinstance(pattern, Call):
            yield from self._call(tensor, pattern, found)
        elif isinstance(pattern, Operand):
            known = found.tensors.get(pattern.name)
            if known is None:
                yield Match({**found.tensors, pattern.name: tensor}, found.numbers, found.nodes, found.calls, found.rests)
            elif known is tensor or (self.rounding and self.widened(known) is self.widened(tensor)):
                yield found
        elif isinstance(pattern, Number):
            value = scalar_of(tensor)
            with_number = None if value is None else self._number(value, pattern, found)
            if with_number is not None:
                yield with_number
        elif isinstance(pattern, Product):
            yield from self._product(tensor, pattern, found)
        elif isinstance(pattern, AnyOf):
            node = self._maker(tensor, [])
            key = None if node is None else (node.op, node.attrs.get("opcode"))
            for one, ends in zip(pattern.patterns, pattern.ends, strict=True):
                if ends is None or key in ends:
                    yield from self._match(tensor, one, found)
        else:
            for m in self._match(tensor, Operand(pattern.name), found):
                yield from self._match(tensor, pattern.pattern, m)

    def _number(self, value: float, pattern: Number, found: Match) -> Match | None:
        want = pattern.value
        if want is not None and value != want:
            tolerance = self._tolerance if float(_BFLOAT16.type(want)) != want else _MULTIPLIED
            if not pattern.near or not abs(value - want) <= tolerance * abs(want):
                return None
        if not pattern.name:
            return found
        if found.numbers.get(pattern.name, value) != value:
            return None
        return Match(found.tensors, {**found.numbers, pattern.name: value}, found.nodes, found.calls, found.rests)

    # ---------------------------------------------------------------------------------------------------------------- kernels

    def _call(self, tensor: Tensor, pattern: Call, found: Match) -> Iterator[Match]:
        between: list[Node] = []
        node = self._maker(tensor, between)
        if node is None or node.op != pattern.op or node.attrs.get("opcode") != pattern.opcode or len(node.inputs) != len(pattern.inputs):
            return
        if not no_act(node):
            return
        start: Match | None = Match(found.tensors, found.numbers, [*found.nodes, *between, node], found.calls, found.rests)
        for number, attribute in zip(pattern.given, ("a", "b"), strict=False):
            start = self._number(node.attrs[attribute], number, start) if start is not None else None
        if start is None:
            return
        if pattern.name:
            known = start.calls.get(pattern.name, node)
            if known is not node and known.attrs != node.attrs:
                return
            start = Match(start.tensors, start.numbers, start.nodes, {**start.calls, pattern.name: node}, start.rests)
        yield from self._all(node.inputs, pattern.inputs, start)
        if pattern.either:
            yield from self._all(node.inputs[::-1], pattern.inputs, start)

    def _maker(self, tensor: Tensor, between: list[Node]) -> Node | None:
        """The node that computes the tensor, where rounding does not count; nodes that only round are added to `between`."""
        node = self.rewriter.producer.get(tensor)
        while self.rounding and node is not None and _only_rounds(node):
            between.append(node)
            node = self.rewriter.producer.get(_source(node))
        return node

    def _all(self, tensors: Sequence[Tensor | None], patterns: Sequence[Pattern], found: Match) -> Iterator[Match]:
        if not patterns:
            yield found
            return
        for one in self._match(tensors[0], patterns[0], found):
            yield from self._all(tensors[1:], patterns[1:], one)

    def widened(self, tensor: Tensor) -> Tensor:
        """The narrowest tensor of exactly the same values: the source of conversions to wider floats."""
        node = self.rewriter.producer.get(tensor)
        while node is not None and node.op == "CAST" and _only_rounds(node) and _source(node).dtype.itemsize < tensor.dtype.itemsize:
            tensor = _source(node)
            node = self.rewriter.producer.get(tensor)
        return tensor

    # --------------------------------------------------------------------------------------------------------------- products

    def _product(self, tensor: Tensor, pattern: Product, found: Match) -> Iterator[Match]:
        if len(pattern.over) == 1 and not pattern.under and not pattern.rest:
            yield from self._scaled(tensor, pattern, found)
            return
        factors = self.factors(tensor)
        more = len(factors.over) - len(pattern.over)
        if len(factors.under) != len(pattern.under) or more < 0 or (more and not pattern.rest):
            return
        start = self._number(factors.constant, pattern.constant, found)
        if start is None or not isfinite(factors.constant):
            return
        start = Match(start.tensors, start.numbers, [*start.nodes, *factors.nodes], start.calls, start.rests)
        for under, _ in self._assigned(factors.under, pattern.under, start):
            for over, left in self._assigned(factors.over, pattern.over, under):
                if not pattern.rest:
                    yield over
                elif pattern.rest not in over.rests:
                    yield Match(over.tensors, over.numbers, over.nodes, over.calls, {**over.rests, pattern.rest: tuple(left)})
                elif sorted(map(id, over.rests[pattern.rest])) == sorted(map(id, left)):
                    yield over

    def _scaled(self, tensor: Tensor, pattern: Product, found: Match) -> Iterator[Match]:
        """One factor and a number: any product in between may be the factor."""
        ways: list[tuple[float, Tensor, tuple[Node, ...]]] = [(1.0, tensor, ())]
        while len(ways) <= _MOST:
            constant, source, nodes = ways[-1]
            node = self.rewriter.producer.get(source)
            parts = self._parts(node) if node is not None and no_act(node) and source.dtype in FLOATS else None
            if node is None or parts is None:
                break
            inner: Tensor | None = None
            for part, times in parts:
                value = -1.0 if part is None else scalar_of(part) if part.is_const else None
                if value is not None and (value != 0.0 or times > 0):
                    constant *= value**times
                elif inner is not None or part is None or times != 1:
                    inner = None
                    break
                else:
                    inner = part
            if inner is None:
                break
            ways.append((constant, inner, (*nodes, node)))
        for constant, source, nodes in reversed(ways):
            start = self._number(constant, pattern.constant, found)
            if start is not None:
                start = Match(start.tensors, start.numbers, [*start.nodes, *nodes], start.calls, start.rests)
                yield from self._match(source, pattern.over[0], start)

    def _assigned(self, tensors: list[Tensor], patterns: Sequence[Pattern], found: Match) -> Iterator[tuple[Match, list[Tensor]]]:
        """A tensor for each pattern, in all ways, and the tensors that are left."""
        if not patterns:
            yield found, tensors
            return
        for k, tensor in enumerate(tensors):
            if tensor in tensors[:k]:
                continue
            for one in self._match(tensor, patterns[0], found):
                yield from self._assigned(tensors[:k] + tensors[k + 1 :], patterns[1:], one)

    def factors(self, tensor: Tensor) -> _Factors:
        """The tensor as a product."""
        known = self._taken_apart.get(tensor)
        if known is None:
            known = self._taken_apart[tensor] = _Factors()
            self._take_apart(tensor, 1, known, True)
        return known

    def _take_apart(self, tensor: Tensor, power: int, out: _Factors, top: bool) -> None:
        value = scalar_of(tensor) if tensor.is_const else None
        if value is not None and (value != 0.0 or power > 0):
            for _ in range(abs(power)):
                out.constant = out.constant * value if power > 0 else out.constant / value
            return
        node = self.rewriter.producer.get(tensor)
        if node is not None and (top or self.rewriter.only_use(tensor)) and tensor.dtype in FLOATS and no_act(node):
            parts = self._parts(node)
            if parts is not None and len(out.nodes) < _MOST and all(abs(power * times) <= _MOST for _, times in parts):
                out.nodes.append(node)
                for part, times in parts:
                    if part is None:
                        out.constant = -out.constant if power % 2 else out.constant
                    else:
                        self._take_apart(part, power * times, out, False)
                return
        (out.over if power > 0 else out.under).extend([tensor] * abs(power))

    def _parts(self, node: Node) -> list[tuple[Tensor | None, int]] | None:
        """The factors that a node multiplies, to which powers; None stands for -1."""
        if self.rounding and _only_rounds(node):
            return [(node.inputs[0], 1)]
        opcode = node.attrs.get("opcode")
        if node.op == "BINARY":
            if opcode == "MUL":
                return [(node.inputs[0], 1), (node.inputs[1], 1)]
            if opcode == "DIV":
                return [(node.inputs[0], 1), (node.inputs[1], -1)]
            exponent = scalar_of(node.inputs[1]) if opcode == "POW" else None
            return [(node.inputs[0], int(exponent))] if exponent in {3.0, 4.0} else None
        if node.op == "UNARY":
            if opcode == "NEG":
                return [(None, 1), (node.inputs[0], 1)]
            if opcode == "RECIPROCAL":
                return [(node.inputs[0], -1)]
            if opcode == "SQUARE":
                return [(node.inputs[0], 2)]
        return None


def _source(node: Node) -> Tensor:
    source = node.inputs[0]
    assert source is not None
    return source


def _only_rounds(node: Node) -> bool:
    """A conversion between floats, or a broadcast."""
    if node.op == "CAST":
        return node.output.dtype in FLOATS and _source(node).dtype in FLOATS
    return node.op == "view.expand"


def matches(rewriter: Rewriter, tensor: Tensor | None, pattern: Pattern) -> Iterator[Match]:
    """All ways in which `tensor` is computed by `pattern`, exactly."""
    yield from Matcher(rewriter).matches(tensor, pattern)


# ------------------------------------------------------------------------------------------------------------------------ tables


@dataclass(frozen=True, slots=True)
class Row(Generic[_T]):
    """A spelling and its meaning. `where`: a condition on its numbers."""

    pattern: Pattern
    meaning: _T
    where: Callable[[Mapping[str, float]], bool] | None = None


class Table(Generic[_T]):
    """Rows by name. A node is compared only with the rows that may end in such a node. It must also have the kernels that a row cannot do
    without before it, such as a norm's root or a GELU's error function. Only arithmetic may stand between."""

    def __init__(self, rows: Mapping[str, Row[_T]]) -> None:
        self.rows = dict(rows)
        self._bits: dict[Key, int] = {}
        self._by_key: dict[Key, list[tuple[Row[_T], int]]] = {}
        for row in self.rows.values():
            ends = _ends(row.pattern)
            needed = 0
            for key in _needed(row.pattern) - (ends if len(ends) == 1 else set()):
                needed |= self._bits.setdefault(key, 1 << len(self._bits))
            for key in ends:
                self._by_key.setdefault(key, []).append((row, needed))

    def rewrite(self, matcher: Matcher, replace: Callable[[Node, _T, Match], bool]) -> None:
        """Calls `replace` with every match at every node, in the order of the graph and of the table, until it returns True. Then
        the node is looked at again; no row may lead back to where another started."""
        rewriter = matcher.rewriter
        before: dict[Tensor, int] = {}
        for node in rewriter.live():
            if not rewriter.alive(node) or node.op not in _ARITHMETIC:
                continue
            while True:
                key = (node.op, node.attrs.get("opcode"))
                mark = self._mark(node, before)
                rows = self._by_key.get(key, ()) if node.output.dtype in FLOATS else ()
                may_end_here = [row for row, needed in rows if needed & mark == needed]
                if not may_end_here or not self._rewrite(matcher, node, may_end_here, replace):
                    break
            before[node.output] = mark | self._bits.get(key, 0)

    def _rewrite(self, matcher: Matcher, node: Node, rows: Sequence[Row[_T]], replace: Callable[[Node, _T, Match], bool]) -> bool:
        matcher.begin()
        for row in rows:
            for m in matcher.more(node.output, row.pattern):
                if (row.where is None or row.where(m.numbers)) and replace(node, row.meaning, m):
                    return True
        return False

    @staticmethod
    def _mark(node: Node, before: Mapping[Tensor, int]) -> int:
        """The kernels before the node, a bit for each one that some row needs."""
        mark = 0
        if node.op in _ARITHMETIC:
            for tensor in node.inputs:
                if tensor is not None:
                    mark |= before.get(tensor, 0)
        return mark


_ARITHMETIC = frozenset({"UNARY", "BINARY", "TERNARY", "REDUCE", "CAST", "view.expand"})


def _ends(pattern: Pattern) -> set[Key]:
    """The kernels that may compute the last value of a pattern."""
    if isinstance(pattern, Call):
        return {(pattern.op, pattern.opcode)}
    if isinstance(pattern, AnyOf):
        return set().union(*map(_ends, pattern.patterns))
    if isinstance(pattern, Named):
        return _ends(pattern.pattern)
    if isinstance(pattern, Product):
        return {("BINARY", "MUL"), ("BINARY", "DIV")} | (set() if pattern.over else {("UNARY", "RECIPROCAL")})
    raise ValueError("a row is an expression")


def _needed(pattern: Pattern) -> set[Key]:
    """The kernels that all matches of a pattern have."""
    if isinstance(pattern, Call):
        return set().union({(pattern.op, pattern.opcode)}, *map(_needed, pattern.inputs))
    if isinstance(pattern, AnyOf):
        return set.intersection(*map(_needed, pattern.patterns))
    if isinstance(pattern, Named):
        return _needed(pattern.pattern)
    if isinstance(pattern, Product):
        return set().union(*map(_needed, (*pattern.over, *pattern.under)))
    return set()


def closed(rewriter: Rewriter, nodes: Sequence[Node]) -> bool:
    """Whether nobody but these nodes reads their results, the first one's left aside."""
    return all(_readers(nodes, t) == rewriter.uses.get(t, 0) and t not in rewriter.kept for n in nodes[1:] for t in n.outputs)


def _readers(nodes: Sequence[Node], tensor: Tensor) -> int:
    return sum(n.inputs.count(tensor) for n in nodes)


def spares(rewriter: Rewriter, nodes: Sequence[Node]) -> bool:
    """Whether one of the nodes dies when the first one reads none of them any more: then others may follow."""
    root = nodes[0]
    return any(
        all(root.inputs.count(t) == rewriter.uses.get(t, 0) > 0 and t not in rewriter.kept for t in n.outputs)
        for n in nodes[1:]
        if n is not root
    )
