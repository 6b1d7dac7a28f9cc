"""Data-dependent shapes that end where they began: a few rows are picked (NonZero), and something is computed for each. The results are
written to their places in a tensor whose shape is known (ScatterElements, ScatterND). Loops over experts are exported so.

Each such group of nodes is one opaque node of an ordinary stage. No stage ends there, and no plan follows from the number of rows. Groups
that read nothing of each other, as experts, are separate nodes, which workers execute side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aspen_mp.planner.frontends.binding.items import Item
from aspen_mp.planner.ir.graph import Node, Tensor

_ENDS: Final = {"ScatterElements", "ScatterND"}
_PICKS: Final = {"NonZero", "Compress"}
"""Operators with which a group begins."""
_MOST_WORK: Final = 1 << 30
"""Multiply-adds of a product, twice, if all rows were picked. Larger ones are worth a plan for the number of rows, and all cores."""
_MOST_ELEMENTS: Final = {np.dtype(np.float32): 1 << 62, np.dtype(np.float64): 1 << 62, np.dtype(np.float16): 1 << 22}
"""Most elements of matrices that numpy multiplies by: those of halves are widened each time."""


@dataclass(slots=True, eq=False)
class Group:
    """Nodes, in order, and the results that have a shape before they are computed, by name.

    `known`: elements of the largest value that they read, constants aside. `left`: how often nodes to come read its values without a known
    shape. `spoilt`: the nodes cannot run as one. `into`: the group that this one has become a part of.
    """

    number: int
    members: list[Item] = field(default_factory=list)
    results: dict[str, Tensor] = field(default_factory=dict)
    known: int = 0
    left: int = 0
    spoilt: bool = False
    into: Group | None = None

    def last(self) -> Group:
        group = self
        while group.into is not None:
            group = group.into
        return group


class Enclosed:
    """Finds groups while a binder goes through a model's nodes in order. A group is closed as soon as nobody else can read its values."""

    def __init__(
        self,
        outputs: Collection[str],
        known: Callable[[str], Tensor | None],
        light: Callable[[Item], bool],
        close: Callable[[list[Item], list[Tensor]], Node | None],
    ) -> None:
        """`outputs`: of the model. `light`: whether numpy does an operator in no time. `close`: makes a node of a group, and its results
        known; None where that cannot be one."""
        self.outputs = set(outputs)
        self.known, self.light, self.close = known, light, close
        self.open: dict[str, Group] = {}  # values whose shape data decide
        self.shut: dict[str, Group] = {}  # results whose shape is known again
        self.gone: set[int] = set()  # members of closed groups, by id
        self._expected: list[Item] = []  # that are not among the readers yet
        self._readers: Counter[str] = Counter()
        self._groups = 0

    def expect(self, entries: Iterable[Item]) -> None:
        """Nodes that are still to come."""
        self._expected += entries

    def begin(self, entry: Item) -> None:
        """A node of which only data can tell the results' shapes."""
        if entry.op in _PICKS and not entry.domain:
            self._join(entry, Group(self._groups))
            self._groups += 1

    def go_on(self, entry: Item) -> Node | None:
        """A node whose inputs are not all known; what the group has become that it ends."""
        mine = {self.open[name].last() for name in entry.names if name in self.open} if self.open else None
        if not mine:
            return None
        group = self._merged(mine | {self.shut[name].last() for name in entry.names if name in self.shut})
        group.left -= len({name for name in entry.names if name in self.open})
        group.spoilt |= not all(not name or name in self.open or name in self.shut or self.known(name) is not None for name in entry.names)
        group.spoilt |= entry.opsets != group.members[0].opsets
        group.spoilt |= not (self.light(entry) or self._small_product(entry, group))
        self._join(entry, group)
        return self._closed(group) if not group.left and not group.spoilt else None

    def _closed(self, group: Group) -> Node | None:
        inside = Counter(name for entry in group.members for name in set(entry.names))
        readers = self._counted()
        read = [t for name, t in group.results.items() if name in self.outputs or readers[name] > inside[name]]
        node = self.close(group.members, read) if read else None
        if node is not None:
            self.gone.update(map(id, group.members))
            for name in group.results:  # known, or read by nobody else
                del self.shut[name]
        return node

    def _merged(self, groups: Collection[Group]) -> Group:
        first, *others = sorted(groups, key=lambda group: group.number)
        for other in others:
            first.members += other.members
            first.results |= other.results
            first.known = max(first.known, other.known)
            first.left += other.left
            first.spoilt |= other.spoilt
            other.into = first
        return first

    def _join(self, entry: Item, group: Group) -> None:
        tensors = [self.known(name) for name in entry.names if name]
        group.known = max([group.known, *(t.size for t in tensors if t is not None and not t.is_const)])
        group.members.append(entry)
        target = self._target(entry, group)
        if target is None:
            self.open.update(dict.fromkeys(entry.outputs, group))
            readers = self._counted()
            group.left += sum(readers[name] for name in entry.outputs)
            group.spoilt |= not self.outputs.isdisjoint(entry.outputs)
        else:
            name = entry.outputs[0]
            self.shut[name] = group
            group.results[name] = Tensor(name, target.shape, target.dtype)

    def _counted(self) -> Counter[str]:
        """How many of the nodes that were to come read each value. Most models have no groups: then nobody counts."""
        for entry in self._expected:
            self._readers.update(set(entry.names))
        self._expected.clear()
        return self._readers

    def _target(self, entry: Item, group: Group) -> Tensor | None:
        """The tensor that a node writes the rows to, if its shape is known."""
        if entry.proto.op_type not in _ENDS or entry.proto.domain:
            return None
        return self.known(entry.names[0]) or group.results.get(entry.names[0])

    def _small_product(self, entry: Item, group: Group) -> bool:
        """Whether it is a product of picked rows and a constant matrix that takes numpy less time than a plan takes."""
        if entry.proto.op_type not in {"MatMul", "Gemm"} or entry.proto.domain or entry.names[0] not in self.open:
            return False
        factor = self.known(entry.names[1])
        if factor is None or not factor.is_const or len(factor.shape) != 2 or factor.size > _MOST_ELEMENTS.get(factor.dtype, 0):
            return False
        return 2 * group.known * max(factor.shape) <= _MOST_WORK
