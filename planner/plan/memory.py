"""Where activations lie in the arena, and the edges that make sharing it safe.

There are no barriers, so memory may pass from one tensor to another only where the tile graph itself orders every tile that touched the
old one before every tile that writes the new one. Buffers get offsets by size, largest first, among those whose lives (in layers, with a
margin so that a worker that runs ahead does not have to wait) do not meet. Then, layer by layer, every tile that writes recycled bytes is
checked against the exact set of its ancestors; where that lacks a tile of an old tenant, an anti-dependency is added, through one JOIN
tile per old tenant. The same sets drop every edge that a longer path implies.

Graphs of very many buffers or tiles (`MANY_BUFFERS`, `EXACT_TILES`) are ordinary to neither: what takes time by the square is left out for
them.

Sets of tiles are Python integers used as bit sets: a union of two sets of 5,000 tiles takes 0.1 µs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.job import progress
from aspen_mp.planner.layout.storage import ARENA, Buffer, Storage, aligned
from aspen_mp.planner.tiling.edges import TileGraph

Ints = npt.NDArray[np.int64]

MARGIN = 2
"""Layers between the last reader of a buffer and the first writer of the next one in its place, where memory allows it at all times."""
MANY_BUFFERS = 4096
"""Of more, none is compared with all others: they get their places in the order in which they are written."""
EXACT_TILES = 32_000
"""Above so many tiles, ancestor sets are not kept: every recycled buffer gets its anti-dependencies, and no edge is dropped."""


@dataclass(eq=False, slots=True)
class Tenant:
    """The life of an arena buffer: its bytes, and the steps that write and read it."""

    buffer: Buffer
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        return min(self.writers)

    @property
    def last(self) -> int:
        return max(*self.writers, *self.readers) if self.readers else max(self.writers)

    @property
    def end(self) -> int:
        return self.buffer.offset + self.buffer.nbytes

    def steps(self) -> list[int]:
        return sorted({*self.writers, *self.readers})


def tenants(storage: Storage) -> list[Tenant]:
    """Arena buffers that some step writes, by first writer."""
    table: dict[int, Tenant] = {}

    def of(buffer: Buffer) -> Tenant:
        life = table.get(id(buffer))
        if life is None:
            life = table[id(buffer)] = Tenant(buffer)
        return life

    for k, node in enumerate(storage.steps):
        for t in node.outputs:
            ref = storage.refs[t]
            if ref.buffer.space == ARENA:
                of(ref.buffer).writers.append(k)
        for x in node.inputs:
            if x is not None and storage.refs[x].buffer.space == ARENA:
                of(storage.refs[x].buffer).readers.append(k)
    return sorted((t for t in table.values() if t.writers), key=lambda t: t.first)


def stay(lives: Sequence[Tenant], buffer: Buffer | None) -> None:
    """Let a buffer live until the last step, as if that read it."""
    last = max((life.last for life in lives), default=0)
    for life in lives:
        if life.buffer is buffer:
            life.readers.append(last)


def assign_offsets(lives: Sequence[Tenant], *, reuse: bool = True) -> int:
    """Gives every buffer its offset from the start of the activations; returns the bytes needed."""
    if not reuse:
        total = 0
        for life in lives:
            life.buffer.offset = total
            total += aligned(life.buffer.nbytes)
        return total
    if len(lives) > MANY_BUFFERS:
        return _offsets_in_order(lives)
    by_size = sorted(lives, key=lambda t: -t.buffer.nbytes)
    first = np.array([t.first for t in by_size], np.int64)
    last = np.array([t.last for t in by_size], np.int64) + MARGIN
    start = np.zeros(len(by_size), np.int64)
    end = np.zeros(len(by_size), np.int64)
    total = 0
    for k, life in enumerate(by_size):
        size = aligned(life.buffer.nbytes)
        near = (first[:k] <= last[k]) & (first[k] <= last[:k])
        begins, ends = start[:k][near], np.maximum.accumulate(np.sort(end[:k][near]))
        offset = _gap(begins, end[:k][near], size) if len(ends) else 0
        life.buffer.offset = offset
        start[k], end[k] = offset, offset + size
        total = max(total, offset + size)
    return total


def _offsets_in_order(lives: Sequence[Tenant]) -> int:
    """The same in the order in which buffers are written first, each in the smallest gap that those before it leave: a little more memory,
    found in time that grows with their number."""
    gaps: list[tuple[int, int]] = []  # (bytes, start), sorted
    start_of: dict[int, int] = {}  # of a gap, by its end
    end_of: dict[int, int] = {}
    leaving: list[tuple[int, int, int]] = []  # (last step with its margin, start, end), a heap
    total = 0

    def forget(start: int, end: int) -> None:
        del gaps[bisect_left(gaps, (end - start, start))], end_of[start], start_of[end]

    def give_back(start: int, end: int) -> None:
        if start in start_of:
            start, middle = start_of[start], start
            forget(start, middle)
        if end in end_of:
            middle, end = end, end_of[end]
            forget(middle, end)
        insort(gaps, (end - start, start))
        end_of[start], start_of[end] = end, start

    for life in sorted(lives, key=lambda t: t.first):
        while leaving and leaving[0][0] < life.first:
            give_back(*heappop(leaving)[1:])
        size = aligned(life.buffer.nbytes)
        at = bisect_left(gaps, (size, 0))
        if at < len(gaps):
            start = gaps[at][1]
            end = end_of[start]
            forget(start, end)
        else:  # behind all others, from the last gap on if it reaches there
            start, end = start_of.get(total, total), total
            if start < end:
                forget(start, end)
        life.buffer.offset = start
        if start + size < end:
            give_back(start + size, end)
        total = max(total, start + size)
        if size:
            heappush(leaving, (life.last + MARGIN, start, start + size))
    return total


def _gap(starts: Ints, ends: Ints, size: int) -> int:
    """The lowest address of the smallest gap of at least `size` bytes between runs [start, end), else the end of all."""
    order = np.argsort(starts, kind="stable")
    starts, tops = starts[order], np.maximum.accumulate(ends[order])
    floors = np.concatenate([np.zeros(1, np.int64), tops[:-1]])
    room = starts - floors
    fits = np.flatnonzero(room >= size)
    return int(floors[fits[np.argmin(room[fits])]]) if len(fits) else int(tops[-1])


def order_recycling(graph: TileGraph, lives: Sequence[Tenant], n_steps: int) -> tuple[Ints, Ints]:
    """Adds anti-dependencies (and their JOIN tiles) to the graph and drops implied edges. Returns all edges (parent, child)."""
    return _Ordering(graph, lives, n_steps).run()


class _Ordering:
    def __init__(self, graph: TileGraph, lives: Sequence[Tenant], n_steps: int) -> None:
        self.graph = graph
        self.exact = graph.n <= EXACT_TILES
        parents, children = graph.edges()
        counts = np.bincount(children, minlength=graph.n)
        begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        listed = parents.tolist()
        ends = begin.tolist()
        self.parents: list[list[int]] = [listed[a:b] for a, b in pairwise(ends)]
        self.base = graph.base.tolist()
        self.above: list[int | None] = [None] * graph.n  # of each tile, its ancestors; of a JOIN too (JOINs have no bit themselves)
        self.old = _previous(lives)
        self.writes: dict[int, list[Tenant]] = {}
        for life in lives:
            for k in set(life.writers):
                self.writes.setdefault(k, []).append(life)
        self.n_steps = n_steps
        self.touched: dict[int, int] = {}
        self.joins: dict[int, int] = {}

    def run(self) -> tuple[Ints, Ints]:
        for k in progress.over(range(self.n_steps), "memory"):
            self._step(k)
        if self.exact:
            for join in range(self.graph.op_tiles, len(self.parents)):
                self._set_above(join)
        children = np.repeat(np.arange(len(self.parents)), [len(p) for p in self.parents])
        parents = np.fromiter((p for row in self.parents for p in row), np.int64, len(children))
        return parents, children

    def _set_above(self, tile: int) -> int:
        """Computes the ancestors of a tile whose parents' are known (or are JOINs of earlier steps), and drops its implied edges."""
        known = self.above[tile]
        if known is not None:
            return known
        tiles = self.graph.op_tiles
        union = 0
        bits = 0
        joins = []
        for p in self.parents[tile]:
            above = self.above[p]
            union |= self._set_above(p) if above is None else above
            if p < tiles:
                bits |= 1 << p
            else:
                joins.append(p)
        if union & bits:
            self.parents[tile] = [p for p in self.parents[tile] if p >= tiles or not union >> p & 1]
        above = union | bits
        self.above[tile] = above
        return above

    def _set(self, steps: Iterable[int]) -> int:
        """All tiles of these steps."""
        out = 0
        for k in steps:
            out |= ((1 << (self.base[k + 1] - self.base[k])) - 1) << self.base[k]
        return out

    def _touching(self, life: Tenant) -> int:
        if id(life) not in self.touched:
            self.touched[id(life)] = self._set(life.steps())
        return self.touched[id(life)]

    def _step(self, k: int) -> None:
        tiles = range(self.base[k], self.base[k + 1])
        if not self.exact:
            self._wait_for_all(k, tiles)
            return
        above = [self._set_above(t) for t in tiles]
        for life in self.writes.get(k, ()):
            for old in self.old[id(life)]:
                need = self._touching(old)
                late = [t for t, a in zip(tiles, above, strict=True) if need & ~a]
                if not late:
                    continue
                join = self._join(old)
                before = self.above[join] or 0
                for t in late:
                    self.parents[t].append(join)
                    above[t - tiles.start] |= before
                    self.above[t] = above[t - tiles.start]

    def _wait_for_all(self, k: int, tiles: range) -> None:
        """`_step` where nobody knows what a tile waits for anyway."""
        for life in self.writes.get(k, ()):
            for old in self.old[id(life)]:
                join = self.joins.get(id(old))
                if join is None:
                    below = list(chain.from_iterable(range(self.base[s], self.base[s + 1]) for s in old.steps()))
                    if not below:
                        continue
                    join = self.joins[id(old)] = self.graph.join(old.last)
                    self.parents.append(below)
                for t in tiles:
                    self.parents[t].append(join)

    def _join(self, old: Tenant) -> int:
        """The JOIN tile after everything that touches a tenant."""
        join = self.joins.get(id(old))
        if join is None:
            join = self.joins[id(old)] = self.graph.join(old.last)
            need = self._touching(old)
            below = 0
            for t in _members(need):
                below |= self.above[t] or 0
            self.parents.append(_members(need & ~below))  # those that precede another of them are implied
            self.above.append(need | below)
        return join


def _members(bits: int) -> list[int]:
    raw = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(raw, bitorder="little")).tolist()


def _previous(lives: Sequence[Tenant]) -> dict[int, list[Tenant]]:
    """For each tenant those that own some of its bytes just before it. Earlier ones need no thought: each tenant waits for its own."""
    bounds: list[int] = [0]  # runs of bytes [bounds[i], bounds[i + 1]) belong to owners[i]
    owners: list[Tenant | None] = [None]
    out: dict[int, list[Tenant]] = {}
    for life in lives:
        lo, hi = life.buffer.offset, life.end
        if hi <= lo:
            out[id(life)] = []
            continue
        i = bisect_right(bounds, lo) - 1
        j = bisect_right(bounds, hi - 1) - 1
        found = {id(t): t for t in owners[i : j + 1] if t is not None}
        out[id(life)] = sorted(found.values(), key=lambda t: t.first)
        tail = owners[j]
        stop = bounds[j + 1] if j + 1 < len(bounds) else None
        new_bounds, new_owners = ([bounds[i]], [owners[i]]) if bounds[i] < lo else ([], [])
        new_bounds.append(lo)
        new_owners.append(life)
        if stop is None or stop > hi:
            new_bounds.append(hi)
            new_owners.append(tail)
        bounds[i : j + 1], owners[i : j + 1] = new_bounds, new_owners
    return out
