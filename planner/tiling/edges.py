"""Which tiles a tile has to wait for.

The boxes of a node's tiles go through `regions.input_region` to its inputs, on through views and concats to the nodes that compute
something, and there become ranges of grid cells. All of it is done for all tiles of a node at once. Where many tiles need the same many
tiles, a JOIN tile stands between: n + m edges instead of n · m.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost.cross_core_traffic import Flow
from aspen_mp.planner.ir.graph import VIEW_OPS, Node, Tensor
from aspen_mp.planner.job import progress
from aspen_mp.planner.layout.grids import Grid
from aspen_mp.planner.layout.storage import Storage, item_bytes
from aspen_mp.planner.ops.spec import OPAQUE
from aspen_mp.planner.ops.table import input_region
from aspen_mp.planner.tiling._wiring import Piece, connect, wire

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


@dataclass(frozen=True, slots=True)
class Reads:
    """What the tiles of a step wait for, in numbers that hold whatever the other steps are cut into, and for other steps that read alike: a
    tile is a number in its step, and a step its place among those that this one reads from (`EdgeBuilder.sources`).

    Tile `children[i]` waits for `parents[i]` of step `steps[i]`, and reads `nbytes[i]` of it. `joins`: ranges of tiles that many wait for,
    (step, first, last); `members[i]` of `member_steps[i]` is in range `member_of[i]`, of `member_bytes[i]`, and tile `readers[i]` waits for
    range `reads[i]`.
    """

    steps: Ints
    parents: Ints
    children: Ints
    nbytes: npt.NDArray[np.float32]
    joins: list[tuple[int, int, int]]
    member_of: Ints
    member_steps: Ints
    members: Ints
    member_bytes: npt.NDArray[np.float32]
    reads: Ints
    readers: Ints
    _piece: list[Piece] = field(init=False, default_factory=list, repr=False)

    @property
    def piece(self) -> Piece:
        """The same as `wire` takes it."""
        if not self._piece:
            direct = (self.steps, self.parents, self.children, self.nbytes)
            ranges = (self.member_of, self.member_steps, self.members, self.member_bytes)
            self._piece.append(Piece(*direct, self.joins, *ranges, self.reads, self.readers))
        return self._piece[0]


@dataclass(frozen=True, slots=True)
class Wiring:
    """A tile graph with END as its last tile, as `simulate.Tiles` has it. Tiles of step k are ``base[k] … base[k + 1] - 1``, then JOINs
    (`TileGraph.join_step`). `flow`: what is read; its groups are the JOINs."""

    base: Ints
    join_step: list[int]
    flow: Flow
    child_begin: npt.NDArray[np.uint32]
    children: npt.NDArray[np.uint32]
    parent_counts: npt.NDArray[np.uint32]
    initial: npt.NDArray[np.uint32]

    @property
    def n(self) -> int:
        return len(self.parent_counts)


def barriers(grids: Sequence[Grid]) -> TileGraph:
    """The tile graph of a runtime with operator barriers: a JOIN after all tiles of each step, before all of the next. It orders every two
    steps, so it needs no edges for data and none for memory that is used again."""
    graph = TileGraph(_bases(grids))
    before: Ints | None = None
    for k, grid in enumerate(grids):
        if not grid.n:
            continue
        tiles = np.arange(graph.base[k], graph.base[k + 1])
        if before is not None:
            join = graph.join(k - 1)
            graph.add(before, np.full(len(before), join))
            graph.add(np.full(len(tiles), join), tiles)
        before = tiles
    return graph


def _bases(grids: Sequence[Grid]) -> Ints:
    base = np.zeros(len(grids) + 1, np.int64)
    np.cumsum([g.n for g in grids], out=base[1:])
    return base


@dataclass(slots=True)
class Cells:
    """For some tiles of a node, the cells [first, last] of the grid of `step` that they read, arrays [tiles, axes], and of which they read
    what lies in the boxes from `lo` to `hi`, arrays [tiles, rank]. `item`: bytes of an element."""

    step: int
    tiles: Ints
    first: Ints
    last: Ints
    lo: Ints
    hi: Ints
    item: int


class EdgeBuilder:
    """Tile graphs of one kernel-level graph for different grids. What a step reads depends on its grid and those of the steps that it
    reads from alone, and is worked out once for each.

    `kinds`: one a step. Steps of one kind that take what steps of the same kinds make, by the same views and concats, read alike where they
    are cut alike: that is worked out once for all of them, as the layers of a transformer are. None: for each step by itself."""

    def __init__(self, storage: Storage, kinds: Sequence[Hashable] | None = None) -> None:
        self.storage = storage
        self.step = {id(node): k for k, node in enumerate(storage.steps)}
        self.leaves: dict[int, list[tuple[Tensor, int]]] = {}
        for node in storage.nodes:
            if node.op == "concat":
                self._leaves(node)  # inner ones first
        ways = [self._way(node) for node in storage.steps]
        sources = [sorted({*made}) for _, made in ways]
        self.sources = [np.array(steps, np.int64) for steps in sources]
        """Steps that compute something that each step reads, directly or through views and concats."""
        self.readers: list[list[int]] = [[] for _ in storage.steps]
        for k, steps in enumerate(sources):
            for s in steps:
                self.readers[s].append(k)
        own = range(len(ways)) if kinds is None else kinds
        places = ({step: i for i, step in enumerate(steps)} for steps in sources)
        self._paths = _numbers((kind, way, tuple([at[s] for s in made])) for kind, (way, made), at in zip(own, ways, places, strict=True))
        self.alike = _numbers((path, tuple([own[s] for s in made])) for path, (_, made) in zip(self._paths, ways, strict=True))
        """The same number for steps that read alike."""
        self.known: dict[tuple[int, tuple[Grid, ...]], Reads | None] = {}
        self._cuts: dict[Grid, int] = {}
        self._same_cuts: dict[Hashable, int] = {}
        self._worked_out: dict[Hashable, tuple[Reads | None, int]] = {}
        """What is in `known`, for steps of any kinds whose results are read by the same paths and cut at the same places."""
        self.followed = 0
        """Steps that those in `known` read from, each as often as it has been looked at."""
        self.grids: list[Grid] = []
        self.reads: list[Reads | None] = []

    def graph(self, grids: Sequence[Grid]) -> TileGraph:
        """The tile graph for one grid a step."""
        base = _bases(grids)
        graph = TileGraph(base)
        self._read_all(grids)
        found = [(k, reads) for k, reads in enumerate(self.reads) if reads is not None]
        if not found:
            return graph
        all_reads = [reads for _, reads in found]
        first = np.repeat(base[[k for k, _ in found]], [len(r.children) for r in all_reads])
        steps, parents = np.concatenate([self.sources[k][r.steps] for k, r in found]), np.concatenate([r.parents for r in all_reads])
        graph.add(base[steps] + parents, first + np.concatenate([r.children for r in all_reads]))
        joins: dict[tuple[int, int, int], int] = {}
        for k, r in found:
            if not r.joins:
                continue
            sources = self.sources[k]
            keys = [(int(sources[step]), begin, end) for step, begin, end in r.joins]
            fresh = np.array([key not in joins for key in keys])
            ids = np.array([joins[key] if key in joins else joins.setdefault(key, graph.join(key[0])) for key in keys], np.int64)
            some = fresh[r.member_of]
            graph.add((base[sources[r.member_steps]] + r.members)[some], ids[r.member_of[some]])
            graph.add(ids[r.reads], base[k] + r.readers)
        return graph

    def wiring(self, grids: Sequence[Grid]) -> Wiring:
        """The same, sooner, and as the simulator takes it; edges that are there twice stay."""
        base = _bases(grids)
        self._read_all(grids)
        pieces = [None if reads is None else reads.piece for reads in self.reads]
        begin, children, counts, initial, join_step, flow = wire(base, pieces, self.sources)
        return Wiring(base, join_step, Flow(int(base[-1]), *flow), begin, children, counts, initial)

    def cells(self, grids: Sequence[Grid]) -> list[list[Cells]]:
        """What the tiles of each step read of others' tiles. Tiles with empty boxes read nothing."""
        found = []
        for node, grid in zip(self.storage.steps, grids, strict=True):
            lo, hi = grid.boxes()
            found.append(self._read(node, np.flatnonzero((lo < hi).all(axis=1)), lo, hi, grids))
        return found

    def _way(self, node: Node) -> tuple[tuple[Hashable, ...], list[int]]:
        """By which views and concats a step's inputs come to it, in the order in which they are followed, and which steps from."""
        out: list[Hashable] = []
        made: list[int] = []
        todo = node.inputs[::-1]
        while todo:
            x = todo.pop()
            source = None if x is None else self.storage.producer.get(x)
            if x is None or source is None:
                out.append(None)
            elif source.op == "concat":
                leaves = self._leaves(source)
                out.append((x.shape, source.attrs["axis"], tuple((leaf.shape, offset) for leaf, offset in leaves)))
                todo += [leaf for leaf, _ in reversed(leaves)]
            elif source.op in VIEW_OPS:
                out.append((x.shape, source.op, tuple(sorted((name, str(value)) for name, value in source.attrs.items()))))
                todo.append(source.inputs[0])
            else:
                out.append((x.shape, source.op == OPAQUE, item_bytes(source.output)))
                made.append(self.step[id(source)])
        return tuple(out), made

    def _read_all(self, grids: Sequence[Grid]) -> None:
        """Brings `reads` up to date: of steps whose grid has changed since the last time, or one that they read from."""
        todo: Iterable[int] = progress.over(range(len(grids)), "edges")
        if len(self.grids) != len(grids):
            self.reads = [None] * len(grids)
        else:
            changed = [k for k, grid in enumerate(grids) if grid is not self.grids[k]]
            todo = {*changed, *(reader for k in changed for reader in self.readers[k])}
        for k in todo:
            grid = grids[k]
            key = (self.alike[k], (grid, *(grids[s] for s in self.sources[k].tolist())))
            if key not in self.known:
                same = (self._paths[k], *map(self._cut, key[1]))
                if same not in self._worked_out:
                    found = self._read(self.storage.steps[k], np.arange(grid.n), *grid.boxes(), grids) if grid.n else []
                    self._worked_out[same] = (_connect(found, grids, self.sources[k]) if found else None), len(found)
                self.known[key], followed = self._worked_out[same]
                self.followed += followed
            self.reads[k] = self.known[key]
        self.grids = list(grids)

    def _cut(self, grid: Grid) -> int:
        """The same number for grids that are cut at the same places."""
        number = self._cuts.get(grid)
        if number is None:
            places = (grid.shape, grid.order, tuple([cuts.tobytes() for cuts in grid.cuts]))
            number = self._cuts[grid] = self._same_cuts.setdefault(places, len(self._same_cuts))
        return number

    def _read(self, node: Node, tiles: Ints, lo: Ints, hi: Ints, grids: Sequence[Grid]) -> list[Cells]:
        """What some of a node's tiles read, followed through views and concats to the nodes that compute it. `lo`, `hi`: of all."""
        lo, hi = lo[tiles], hi[tiles]
        out: list[Cells] = []
        todo: list[tuple[Tensor, Ints, Ints, Ints]] = []
        for i, x in enumerate(node.inputs):
            if x is None or x not in self.storage.producer:
                continue
            if node.op == OPAQUE:
                todo.append((x, tiles, np.zeros((1, len(x.shape)), np.int64), np.array([x.shape], np.int64).reshape(1, -1)))
            else:
                todo.append((x, tiles, *input_region(node, i, lo, hi)))
        while todo:
            t, tiles, lo, hi = todo.pop()
            there = hi > lo
            if not there.all():
                some = there.all(axis=1)
                tiles, lo, hi = tiles[some], lo[some], hi[some]
            if not len(tiles):
                continue
            source = self.storage.producer[t]
            if source.op == "concat":
                axis = source.attrs["axis"]
                for x, offset in self._leaves(source):
                    part_lo, part_hi = lo.copy(), hi.copy()
                    np.maximum(lo[:, axis] - offset, 0, out=part_lo[:, axis])
                    np.minimum(hi[:, axis] - offset, x.shape[axis], out=part_hi[:, axis])
                    todo.append((x, tiles, part_lo, part_hi))
            elif source.op in VIEW_OPS:
                x = source.inputs[0]
                assert x is not None
                if x in self.storage.producer:
                    todo.append((x, tiles, *input_region(source, 0, lo, hi)))
            elif grids[self.step[id(source)]].n:
                out.append(self._cells(self.step[id(source)], tiles, lo, hi, grids))
        return out

    def _leaves(self, node: Node) -> list[tuple[Tensor, int]]:
        """Computed inputs of a concat, those of nested concats in their place, with their offsets along the axis."""
        found = self.leaves.get(id(node))
        if found is None:
            found = []
            offset = 0
            for x in node.inputs:
                assert x is not None
                inner = self.storage.producer.get(x)
                if inner is not None and inner.op == "concat" and inner.attrs["axis"] == node.attrs["axis"]:
                    found += [(t, offset + at) for t, at in self._leaves(inner)]
                elif inner is not None:
                    found.append((x, offset))
                offset += x.shape[node.attrs["axis"]]
            self.leaves[id(node)] = found
        return found

    def _cells(self, step: int, tiles: Ints, lo: Ints, hi: Ints, grids: Sequence[Grid]) -> Cells:
        grid = grids[step]
        first = np.zeros((len(tiles), len(grid.cuts)), np.int64)
        last = np.zeros_like(first)
        if self.storage.steps[step].op != OPAQUE:  # its only tile gives every output
            for axis, cuts in enumerate(grid.cuts):
                if len(cuts) > 2:
                    first[:, axis] = cuts.searchsorted(lo[:, axis], "right") - 1
                    last[:, axis] = cuts.searchsorted(hi[:, axis], "left") - 1
        return Cells(step, tiles, first, last, lo, hi, item_bytes(self.storage.steps[step].output))


def _numbers(ways: Iterable[Hashable]) -> list[int]:
    """A number for each, the same for equal ones."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(way, len(numbers)) for way in ways]


def _connect(found: list[Cells], grids: Sequence[Grid], sources: Ints) -> Reads:
    """Edges and JOINs from all these cells. `sources`: the steps that they are of, in order."""
    own = [grids[c.step] for c in found]
    limit = WIDEN * sum(grid.n + len(c.tiles) for grid, c in zip(own, found, strict=True))
    unit = 1
    while (edges := connect([_widen(c, grid, unit) for c, grid in zip(found, own, strict=True)], own, sources, limit)) is None:
        unit *= 2
    return Reads(*edges)


def _widen(cells: Cells, grid: Grid, unit: int) -> Cells:
    """Rounds ranges outwards to multiples of `unit` cells on each axis. More edges than needed are harmless: a node's tiles only ever wait
    for those of earlier nodes. At the latest when all ranges are whole, one JOIN tile takes them all."""
    if unit == 1:
        return cells
    last = np.minimum(cells.last // unit * unit + unit, np.array(grid.counts, np.int64)) - 1
    return replace(cells, first=cells.first // unit * unit, last=last)
