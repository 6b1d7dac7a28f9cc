"""What changed inputs reach: REACH and the kernels themselves, on the parts of tiles that run, over what an earlier request left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from kernel_graphs import run_node
from small_graphs import GRAPHS, random_grids

from aspen_mp.planner.ir.graph import VIEW_OPS, Graph, Node, Tensor
from aspen_mp.planner.layout.grids import TILE_AXES, Grid
from aspen_mp.planner.layout.storage import Storage, assign_storage
from aspen_mp.planner.ops.streams import reach as reach_op
from aspen_mp.planner.ops.table import params
from aspen_mp.planner.tiling import reach
from aspen_mp.shm.tables import LIMITS, NUMBERS
from aspen_mp.workers import _kernels

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[list[int], list[int]]
RANK = LIMITS["rank"]


def random_box(rng: np.random.Generator, shape: Sequence[int]) -> Box:
    """A small box in most cases, at times all of the tensor."""
    lo = [int(rng.integers(0, d)) for d in shape]
    hi = [int(rng.integers(a, min(d, a + 3) if rng.random() < 0.7 else d)) + 1 for a, d in zip(lo, shape, strict=True)]
    return lo, hi


def place(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(*box, strict=True))


def parts_of(node: Node, changes: Sequence[Sequence[Box]], isa: str | None = None, mode: int = 0) -> tuple[Array, Array]:
    """What REACH writes: a row for each tile, and the counts. `mode`: in place of the number of boxes."""
    words = np.zeros(node.inputs[0].shape, np.int32)
    for row, found in zip(words, changes, strict=False):
        row[0] = mode or len(found)
        for k, (lo, hi) in enumerate(found):
            row[1 + 2 * k * RANK :][: len(lo)] = lo
            row[1 + (2 * k + 1) * RANK :][: len(hi)] = hi
    parts, counts = (np.full(t.shape, 7, t.dtype) for t in node.outputs)
    assert _kernels.call(reach_op.NAME, [parts, counts, words], params(node), [0, 0], list(parts.shape), isa=isa) == 0
    return parts, counts


class Kept:
    """All values of a graph, of which a request computes parts again."""

    def __init__(self, storage: Storage, grids: Sequence[Grid], feeds: dict[Tensor, Array]) -> None:
        self.storage, self.grids, self.values = storage, grids, dict(feeds)
        for node in storage.nodes:
            self._compute(node)

    def value(self, t: Tensor | None) -> Array | None:
        if t is None:
            return None
        return t.value() if t.is_const else self.values[t]

    def _compute(self, node: Node) -> list[Array]:
        found = run_node(node, [self.value(t) for t in node.inputs])
        self.values.update(zip(node.outputs, found, strict=True))
        return found

    def update(self, parts: Array, feeds: dict[Tensor, Array]) -> None:
        """The next request: kernels run on parts of tiles, over what is there."""
        rows, base = {}, 1
        for step, grid in zip(self.storage.steps, self.grids, strict=True):
            rows[id(step)] = (parts[base : base + grid.n], grid)
            base += grid.n
        self.values.update(feeds)
        for one in self.storage.nodes:
            if one.op in VIEW_OPS or one.op == "concat":
                self._compute(one)
                continue
            parts, grid = rows[id(one)]
            self._update(one, boxes_of(one, parts, grid))

    def _update(self, node: Node, boxes: Sequence[Box]) -> None:
        if node.op == "OPAQUE":
            if boxes:
                self._compute(node)
            return
        outs = [self.values[t].copy() for t in node.outputs]
        found = run_node(node, [self.value(t) for t in node.inputs], outs, boxes)
        self.values.update(zip(node.outputs, found, strict=True))


def boxes_of(node: Node, parts: Array, grid: Grid) -> list[Box]:
    """The boxes of a node's output that run. Each lies within its tile."""
    found, shape = [], node.output.shape
    axes = min(len(shape), TILE_AXES)
    for part, lo, hi in zip(parts.astype(np.int64), *grid.boxes(), strict=True):
        begin, end = part[:axes], part[TILE_AXES : TILE_AXES + axes]
        if part[0] >= part[TILE_AXES]:
            continue
        assert (begin >= lo[:axes]).all()
        assert (end <= hi[:axes]).all()
        found.append(([*begin.tolist(), *[0] * (len(shape) - axes)], [*end.tolist(), *shape[axes:]]))
    return found


def changed(rng: np.random.Generator, feeds: dict[Tensor, Array]) -> tuple[list[list[Box]], dict[Tensor, Array]]:
    """Boxes of some inputs, and the inputs with other values there."""
    changes, after = [], {}
    for t, x in feeds.items():
        found = [random_box(rng, x.shape) for _ in range(rng.integers(0, 4))] if x.size else []
        y = np.array(x)
        for box in found:
            y[place(box)] = rng.standard_normal(y[place(box)].shape)
        changes.append(found)
        after[t] = y
    return changes, after


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_parts_give_the_bits_of_whole_requests(make) -> None:
    """Nothing that a change reaches stays as it was, and no kernel's bits depend on where a part begins or ends."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        graph = make(GraphBuilder())
        storage = assign_storage(graph)
        grids = random_grids(seed)(storage, 2)
        given = [t for _, t in storage.inputs]
        node = reach.with_reach(storage, grids, "bits")[0].steps[0]
        feeds = {t: rng.standard_normal(t.shape).astype(t.dtype) for t in given}
        kept = Kept(storage, grids, feeds)
        for _ in range(6):
            changes, feeds = changed(rng, feeds)
            kept.update(parts_of(node, changes)[0], feeds)
            want = Kept(storage, grids, feeds)
            for one in storage.nodes:
                for t in one.outputs:
                    assert kept.values[t].tobytes() == want.values[t].tobytes(), f"seed {seed}, {one.op} {one.name}, changes {changes}"


class Arrival:
    """An input of which ever more rows along one axis are there."""

    def __init__(self, rng: np.random.Generator, x: Array) -> None:
        self.rng, self.x, self.there = rng, x, 0
        self.axis = int(rng.integers(0, max(x.ndim, 1)))
        self.length = x.shape[self.axis] if x.ndim else 1

    @property
    def missing(self) -> Box:
        """An empty box once all is there. A number has one row."""
        if not self.x.ndim:
            return [self.there], [1]
        lo = [self.there if axis == self.axis else 0 for axis in range(self.x.ndim)]
        return lo, [0 if self.there == self.length else d for d in self.x.shape]

    def more(self, all_of_it: bool) -> Array:
        """The input with some more rows, and anything in place of the rest."""
        self.there = self.length if all_of_it else min(self.length, self.there + int(self.rng.integers(0, 1 + self.length // 2)))
        y = np.full(self.x.shape, np.nan if self.x.dtype.kind == "f" else 1, self.x.dtype)
        if self.x.ndim:
            there = (slice(None),) * self.axis + (slice(0, self.there),)
            y[there] = self.x[there]
        elif all_of_it:
            y[...] = self.x
        return y


def ready(counts: Array, k: int, value: Array) -> Array:
    """The part of an output that REACH calls computed."""
    axis, rows = (int(word) for word in counts.ravel()[reach_op.COUNTS + 2 * k :][:2])
    return value if axis < 0 else value.reshape(value.shape or (1,))[(slice(None),) * axis + (slice(0, rows),)]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_inputs_that_arrive_give_the_bits_of_whole_requests(make) -> None:
    """Bands of rows, over anything that was there before: what REACH calls computed has its last bits, as all has at the end."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        graph = make(GraphBuilder())
        storage = assign_storage(graph)
        grids = random_grids(seed)(storage, 2)
        node = reach.with_reach(storage, grids, "bits")[0].steps[0]
        given = [t for _, t in storage.inputs]
        want = Kept(storage, grids, {t: rng.standard_normal(t.shape).astype(t.dtype) for t in given})
        kept = Kept(storage, grids, {t: rng.standard_normal(t.shape).astype(t.dtype) for t in given})
        arrivals = [Arrival(rng, want.values[t]) for t in given]
        before, mode = [one.missing for one in arrivals], NUMBERS["REACH_FIRST"]
        for band in range(6):
            feeds = {t: one.more(band == 5) for t, one in zip(given, arrivals, strict=True)}
            now = [one.missing for one in arrivals]
            parts, counts = parts_of(node, [list(both) for both in zip(now, before, strict=True)], mode=mode)
            kept.update(parts, feeds)
            before, mode = now, NUMBERS["REACH_ARRIVING"]
            for k, (name, t) in enumerate(storage.outputs):
                got, last = (ready(counts, k, values.value(t)) for values in (kept, want))
                assert got.tobytes() == last.tobytes(), f"seed {seed}, band {band}, output {name}"
        assert all(counts.ravel()[reach_op.COUNTS :: 2] == -1)
        for one in storage.nodes:
            for t in one.outputs:
                assert kept.values[t].tobytes() == want.values[t].tobytes(), f"seed {seed}, {one.op} {one.name}"


def opaque_of_two(b: GraphBuilder, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[Graph, Node]:
    """An opaque node whose outputs have shapes that may say nothing of each other, and a reader of the second one."""
    made = b.node("OPAQUE", [b.input(3, 4)], first)
    assert made.producer is not None
    other = Tensor("other", second, made.dtype, producer=made.producer)
    made.producer.outputs.append(other)
    return b.graph(made, b.unary(other)), made.producer


@pytest.mark.parametrize("first", [(5,), (), (0,), (0, 6), (2, 6), (2, 3, 6)], ids=str)
def test_outputs_of_opaque_nodes(first: tuple[int, ...]) -> None:
    """Any change reaches all outputs of an opaque node, and all that reads them, whatever the first one's shape says."""
    graph, _ = opaque_of_two(GraphBuilder(), first, (2, 6))
    storage = assign_storage(graph)
    one = Grid(first, tuple(np.array([0, length], np.int64) for length in first), tuple(range(len(first))))
    grids = [one if node.op == "OPAQUE" else grid for node, grid in zip(storage.steps, random_grids(1)(storage, 2), strict=True)]
    node = reach.with_reach(storage, grids, "bits")[0].steps[0]
    parts, _ = parts_of(node, [[([1, 1], [2, 2])]])
    assert len(parts) == 1 + sum(grid.n for grid in grids)
    assert (parts[1:, 0] < parts[1:, TILE_AXES]).all(), parts
    parts, _ = parts_of(node, [[]])
    assert (parts[1:, 0] >= parts[1:, TILE_AXES]).all(), parts
