"""Which tiles a tile has to wait for.

The boxes of a node's tiles go through `regions.input_region` to its inputs, on through views and concats to the nodes that compute
something, and there become ranges of grid cells. All of it is done for all tiles of a node at once. Where many tiles need the same many
tiles, a JOIN tile stands between: n + m edges instead of n · m.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir import VIEW_OPS, Node, Tensor
from aspen_mp.planner.policy import Grid
from aspen_mp.planner.regions import input_region
from aspen_mp.planner.storage import Storage

Ints = npt.NDArray[np.int64]

WIDEN = 16
"""Ranges are rounded outwards to coarser cells when a pair of nodes would have more than this many edges per tile."""


@dataclass(slots=True)
class TileGraph:
    """Tiles and edges. Tiles of ``steps[k]`` are ``base[k] … base[k + 1] - 1``; JOIN tiles follow, each known by the last step that its
    parents belong to (``join_step``). Edges are pairs (parent, child), in pieces."""

    base: Ints
    join_step: list[int] = field(default_factory=list)
    parents: list[Ints] = field(default_factory=list)
    children: list[Ints] = field(default_factory=list)

    @property
    def op_tiles(self) -> int:
        return int(self.base[-1])

    @property
    def n(self) -> int:
        return self.op_tiles + len(self.join_step)

    def add(self, parents: Ints, children: Ints) -> None:
        self.parents.append(parents)
        self.children.append(children)

    def join(self, step: int) -> int:
        self.join_step.append(step)
        return self.n - 1

    def edges(self) -> tuple[Ints, Ints]:
        """All edges once, sorted by child, then parent."""
        if not self.parents:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        n = max(self.n, 1)
        keys = np.unique(np.concatenate(self.children) * n + np.concatenate(self.parents))
        return keys % n, keys // n


def build_edges(storage: Storage, grids: Sequence[Grid]) -> TileGraph:
    """The tile graph of data dependencies."""
    base = np.zeros(len(grids) + 1, np.int64)
    np.cumsum([g.n for g in grids], out=base[1:])
    return _Builder(storage, grids, TileGraph(base)).run()


class _Builder:
    def __init__(self, storage: Storage, grids: Sequence[Grid], graph: TileGraph) -> None:
        self.storage, self.grids, self.graph = storage, grids, graph
        self.step = {id(node): k for k, node in enumerate(storage.steps)}
        self.joins: dict[tuple[int, int], int] = {}

    def run(self) -> TileGraph:
        for k, node in enumerate(self.storage.steps):
            if self.grids[k].n:
                self._step(k, node)
        return self.graph

    def _step(self, k: int, node: Node) -> None:
        lo, hi = self.grids[k].boxes()
        tiles = np.arange(len(lo))
        found: dict[int, list[tuple[Ints, Ints, Ints]]] = {}
        for i, t in enumerate(node.inputs):
            if t is None or t.is_const:
                continue
            if node.op == "OPAQUE":
                box = np.zeros((1, len(t.shape)), np.int64), np.array([t.shape], np.int64).reshape(1, -1)
            else:
                box = input_region(node, i, lo, hi)
            for step, *cells in self._sources(t, tiles, *box):
                found.setdefault(step, []).append((cells[0], cells[1], cells[2]))
        for step, parts in found.items():
            tile, first, last = (np.concatenate(p) for p in zip(*parts, strict=True))
            self._connect(step, int(self.graph.base[k]), tile, first, last)

    def _sources(self, t: Tensor, tiles: Ints, lo: Ints, hi: Ints) -> Iterator[tuple[int, Ints, Ints, Ints]]:
        """(step, tiles, first cell, last cell [n, axes]) for everything that computes part of boxes of `t`."""
        node = self.storage.producer.get(t)
        if node is None:
            return
        some = (hi > lo).all(axis=1)
        if not some.all():
            tiles, lo, hi = tiles[some], lo[some], hi[some]
        if not len(tiles):
            return
        if node.op in VIEW_OPS or node.op == "concat":
            for i, x in enumerate(node.inputs):
                assert x is not None
                if not x.is_const:
                    yield from self._sources(x, tiles, *input_region(node, i, lo, hi))
            return
        step = self.step[id(node)]
        grid = self.grids[step]
        if not grid.n:
            return
        if node.op == "OPAQUE":
            zero = np.zeros((len(tiles), len(grid.cuts)), np.int64)
            yield step, tiles, zero, zero
            return
        first = np.empty((len(tiles), len(grid.cuts)), np.int64)
        last = np.empty_like(first)
        for axis, cuts in enumerate(grid.cuts):
            if len(cuts) == 2:
                first[:, axis] = last[:, axis] = 0
            else:
                first[:, axis] = np.searchsorted(cuts, lo[:, axis], "right") - 1
                last[:, axis] = np.searchsorted(cuts, hi[:, axis], "left") - 1
        yield step, tiles, first, last

    def _connect(self, step: int, base: int, tiles: Ints, first: Ints, last: Ints) -> None:
        """Edges from the cells [first, last] of `step` to tiles `base + tiles`."""
        grid = self.grids[step]
        steps = np.array(grid.steps(), np.int64)
        exact = first, last
        unit = 1
        while True:
            cells = np.prod(last - first + 1, axis=1)
            codes = (first @ steps) * grid.n + last @ steps
            _, index, inverse, readers = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
            size = cells[index]
            direct = size * readers <= size + readers + 2
            edges = int(np.where(direct, size * readers, size + readers).sum())
            if edges <= WIDEN * (grid.n + len(tiles)):
                break
            unit *= 2
            first, last = self._widen(grid, *exact, unit)
        keep = direct[inverse]
        parents, which = _expand(first[keep], last[keep], steps)
        start = int(self.graph.base[step])
        self.graph.add(start + parents, base + tiles[keep][which])
        if not direct.all():
            self._joined(step, codes, first, last, base + tiles, ~keep)

    def _joined(self, step: int, codes: Ints, first: Ints, last: Ints, tiles: Ints, mask: npt.NDArray[np.bool_]) -> None:
        unique, index, inverse = np.unique(codes[mask], return_index=True, return_inverse=True)
        steps = np.array(self.grids[step].steps(), np.int64)
        ids = np.empty(len(unique), np.int64)
        fresh = []
        for j, code in enumerate(unique.tolist()):
            join = self.joins.get((step, code))
            if join is None:
                join = self.joins[step, code] = self.graph.join(step)
                fresh.append(j)
            ids[j] = join
        if fresh:
            rows = index[fresh]
            parents, which = _expand(first[mask][rows], last[mask][rows], steps)
            self.graph.add(int(self.graph.base[step]) + parents, ids[fresh][which])
        self.graph.add(ids[inverse], tiles[mask])

    @staticmethod
    def _widen(grid: Grid, first: Ints, last: Ints, unit: int) -> tuple[Ints, Ints]:
        """Rounds ranges outwards to multiples of `unit` cells on each axis. More edges than needed are harmless: a node's tiles only ever
        wait for those of earlier nodes. At the latest when all ranges are whole, one JOIN tile takes them all."""
        counts = np.array(grid.counts, np.int64)
        return first // unit * unit, np.minimum(last // unit * unit + unit, counts) - 1


def _expand(first: Ints, last: Ints, steps: Ints) -> tuple[Ints, Ints]:
    """Numbers of all cells of ranges [first, last], and the range each belongs to."""
    lengths = last - first + 1
    sizes = np.prod(lengths, axis=1)
    which = np.repeat(np.arange(len(sizes)), sizes)
    at = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    cells = (first @ steps)[which]
    for axis in range(first.shape[1] - 1, -1, -1):
        n = lengths[which, axis]
        cells += at % n * steps[axis]
        at //= n
    return cells, which
