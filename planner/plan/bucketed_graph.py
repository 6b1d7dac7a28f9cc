"""A graph at the extents of a shape bucket: what of its plan changes with the extent, and that nothing else does.

Texts have any number of tokens, and a cache of keys one more at every step; to plan takes longer than to run. So one plan serves all
*extents* of such a length from `least` to `most`: it is planned for `most`, and says how its numbers change with the extent (*slopes*).
Tiles, their edges and the memory plan are those of `most`; at a smaller extent boxes end where the tensors do, and some are empty.

Nothing in the planner computes with unknown lengths. The model is lowered for a few extents, the ends of the range and neighbours among
them, and what comes out is compared: the same nodes over the same tensors, numbers that grow by the same step throughout (or at every
other extent: pairs of rows), constants that are the beginnings of those for `most`. A constant may also be the end of that for `most`
(distances from the last token), or hold integers that grow evenly (places of tokens): there is a row of it for each extent. Where that
does not hold the bucket has no plan (`NoBucket`), and each length has one. Edges that another extent needs and `most` does not (rows
counted from the end) become edges between all tiles of both nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.planner.layout.grids import Grid
from aspen_mp.planner.layout.storage import ARENA, PLAN, REQUEST, WEIGHTS, Buffer, Ref, Storage, item_bytes
from aspen_mp.planner.ops.spec import OPAQUE
from aspen_mp.planner.ops.table import params, seen
from aspen_mp.planner.plan.extents import at
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.tiling.edges import Cells, EdgeBuilder, TileGraph
from aspen_mp.shm.tables import LIMITS, SLOPE, SLOPE_TABLES

Ints = npt.NDArray[np.int64]
RANK = LIMITS["rank"]


class NoBucket(Exception):
    """The graph has no plan for a shape bucket; the text says why, for people who look for the reason. `elsewhere`: it may have one for a
    part of the bucket."""

    def __init__(self, why: str, *, elsewhere: bool = True) -> None:
        super().__init__(why)
        self.elsewhere = elsewhere


@dataclass(frozen=True, slots=True)
class ShapeBucket:
    """A range of extents of one length. `per`: how much longer each axis of an input is where the extent is one more, by the input's
    name."""

    least: int
    most: int
    per: Mapping[str, tuple[int, ...]]

    def extents(self) -> list[int]:
        """Those that are looked at: neighbours, the other end, and the middle."""
        return list(dict.fromkeys([self.most, self.most - 1, self.least, (self.least + self.most) // 2]))

    @property
    def typical(self) -> int:
        """The extent for which algorithms are chosen that have other constants: as many times the shortest as the longest is of it."""
        return round(math.sqrt(self.least * self.most))

    def shape(self, name: str, shape: Sequence[int], extent: int, other: int) -> tuple[int, ...]:
        """Of an input at another extent, given the one that it has at `extent`."""
        per = self.per.get(name) or (0,) * len(shape)
        return tuple(dim + k * (other - extent) for dim, k in zip(shape, per, strict=True))


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What a plan's operands and parameters are, in the order in which `build` writes them; offsets from the operand's buffer."""

    dims: Ints
    strides: Ints
    offsets: Ints
    params: Ints
    fixed: npt.NDArray[np.bool_]
    """Operands that lie in weights."""
    buffers: Sequence[Buffer | None]
    """Of each operand, as it is where the length is longest."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How numbers shrink with the extent: by `per` at every `every`-th one, `rest` of which are over at `most`."""

    per: Ints
    every: Ints
    rest: Ints

    @classmethod
    def of(cls, found: Mapping[int, Ints], what: str) -> Steps:
        """Given the numbers at some extents, two neighbours at the end among them. Raises NoBucket."""
        steps, wrong = cls.nearest(found)
        if wrong.any():
            numbers = [int(v[wrong][0]) for v in found.values()]
            raise NoBucket(f"{what} does not grow evenly: {numbers} at {list(found)}", elsewhere=False)
        return steps

    @classmethod
    def nearest(cls, found: Mapping[int, Ints]) -> tuple[Steps, npt.NDArray[np.bool_]]:
        """The same, and which numbers do not follow these steps."""
        most, least = max(found), min(found)
        last = found[most] - found[max(most - 1, least)]
        zero = np.zeros_like(last)
        steps = cls(last, zero + 1, zero)
        uneven = np.any([steps.at(found[most], most - extent) != values for extent, values in found.items()], axis=0)
        pairs = np.where(last == 0, (found[most] - found[least]) // max((most - least) // 2, 1), last)
        steps = cls(np.where(uneven, pairs, last), zero + 1 + uneven, np.where(uneven & (last != 0), 1, 0))
        return steps, np.any([steps.at(found[most], most - extent) != values for extent, values in found.items()], axis=0)

    def at(self, at_most: Ints, less: int) -> Ints:
        """The numbers at an extent so much smaller."""
        return np.asarray(at_most - self.per * ((less + self.rest) // self.every))


class BucketedGraph:
    """The same graph at several extents: `add` each, then `compare`. `slopes`: of the plan's numbers, as `shm/protocol/layout.h` has them.
    `shapes`: how those of its inputs and outputs change, in their order."""

    def __init__(self, bucket: ShapeBucket, most: Storage) -> None:
        self.bucket = bucket
        self.storages: dict[int, Storage] = {}
        self.slopes = np.zeros(0, SLOPE)
        self.shapes: tuple[list[Steps], list[Steps]] = [], []
        self._most = most
        self._twins: dict[int, dict[int, Buffer]] = {}
        self._rows: dict[int, int] = {}

    def add(self, extent: int, storage: Storage) -> None:
        """The graph at another extent, `most` first. Raises NoBucket where it is another one."""
        self._twins[extent] = alike(self._most, storage)
        self.storages[extent] = storage

    def mostly_the_same(self) -> None:
        """Raises NoBucket where much of the graph has the length in it, or much more memory is needed where it is longest."""
        _mostly_the_same(self._most, self.storages[self.bucket.least])

    def keeps_busy(self, plan: Plan, workers: int) -> None:
        """Raises NoBucket where the plan leaves cores without tiles at the shortest extent, or takes much memory."""
        if plan.activation_bytes + plan.request_bytes > POLICY.broad_bytes:
            raise NoBucket(f"takes {plan.activation_bytes + plan.request_bytes} bytes")
        tiles = at(plan, self.bucket.least)[2]
        there = np.bincount(tiles["op"][(tiles["lo"] < tiles["hi"]).all(axis=1)], minlength=len(plan.ops))
        ns = np.array([tile_cost.whole_ns(node) for node in self.storages[self.bucket.least].steps])
        cores = np.where(ns < POLICY.shared_ns, workers, np.clip(there[plan.ops["n_outputs"] > 0], 1, workers))
        if (ns / cores).sum() > (1 + POLICY.idle_share) * ns.sum() / workers:
            raise NoBucket(f"of {workers} cores some have no tiles at the shortest length")

    def compare(self) -> None:
        """Raises NoBucket where numbers or constants do not follow from the extent."""
        for buffer in self._most.constants:
            if buffer.space == PLAN:
                self._table(buffer)
        numbers = {extent: self._numbers(extent) for extent in self.storages}
        _keep_strides(numbers, self.bucket.most)
        self.slopes = self._slopes(numbers)
        self.shapes = self._shapes("inputs"), self._shapes("outputs")

    def _table(self, buffer: Buffer) -> None:
        """Integers that grow with the extent, such as places of tokens, and constants that are the ends of those for `most`, such as
        distances from the last token: there is a row of them for each extent."""
        consts = {extent: twins[id(buffer)].const for extent, twins in self._twins.items() if id(buffer) in twins}
        if len(consts) < len(self.storages) or any(c is None for c in consts.values()):
            return
        values = {extent: np.ascontiguousarray(c.value()) for extent, c in consts.items() if c is not None}
        large = values[self.bucket.most]
        if all(v.shape == large.shape for v in values.values()):
            if large.dtype.kind not in "iu" or all(np.array_equal(v, large) for v in values.values()):
                return
            steps = Steps.of({extent: v.astype(np.int64) for extent, v in values.items()}, f"{buffer.name!r}")
            rows: Callable[[int], npt.NDArray[np.generic]] = partial(steps.at, large.astype(np.int64))
        else:
            found = _ends(values, large)
            if found is None:
                return
            rows = found
        least, most = self.bucket.least, self.bucket.most
        if (most - least + 1) * large.nbytes > POLICY.most_table_bytes:
            raise NoBucket(f"{buffer.name!r} has other values at another length")
        table = np.stack([rows(most - extent) for extent in range(least, most + 1)]).astype(large.dtype)
        buffer.const, buffer.nbytes = Tensor(buffer.name, table.shape, table.dtype, data=table), table.nbytes
        self._rows[id(buffer)] = large.size
        for tensor, ref in self._most.refs.items():
            if ref.buffer is buffer:
                self._most.refs[tensor] = Ref(buffer, ref.offset + (most - least) * large.size, ref.strides)

    def _numbers(self, extent: int) -> _Numbers:
        """Of one extent. What constants hold is taken from those for `most`, with their strides."""
        storage, most = self.storages[extent], self._most
        rows: list[tuple[tuple[int, ...], tuple[int, ...], int, bool]] = []
        buffers: list[Buffer | None] = []
        values: list[int] = []
        for node, large in zip(storage.steps, most.steps, strict=True):
            rows += [_row(t.shape, storage.refs[t], t) for t in node.outputs]
            buffers += [None if t is None else most.refs[t].buffer for t in (*large.outputs, *large.inputs)]
            for i, x in enumerate(node.inputs):
                if x is None:
                    rows.append(((), (), 0, False))
                    continue
                ref, twin = storage.refs[x], large.inputs[i]
                assert twin is not None
                if ref.buffer.space == PLAN:
                    there = most.refs[twin]
                    back = (self.bucket.most - extent) * self._rows.get(id(there.buffer), 0)
                    ref = _begins(x, ref, twin, Ref(there.buffer, there.offset - back, there.strides))
                shape, strides = seen(node, i, x, ref.strides)
                rows.append(_row(shape, Ref(ref.buffer, ref.offset, strides), x))
            values.extend(params(node))
        dims, strides_of = np.ones((len(rows), RANK), np.int64), np.zeros((len(rows), RANK), np.int64)
        for k, (shape, strides, _, _) in enumerate(rows):
            dims[k, : len(shape)], strides_of[k, : len(strides)] = shape, strides
        offsets, fixed = np.array([r[2] for r in rows], np.int64), np.array([r[3] for r in rows], bool)
        return _Numbers(dims, strides_of, offsets, np.array(values, np.int64), fixed, buffers)

    def _slopes(self, numbers: Mapping[int, _Numbers]) -> npt.NDArray[np.void]:
        rows = []
        fixed = numbers[self.bucket.most].fixed
        for table, name in (("dims", "DIM"), ("strides", "STRIDE"), ("offsets", "OFFSET"), ("params", "PARAM")):
            steps = Steps.of({extent: getattr(n, table) for extent, n in numbers.items()}, f"one of the {table}")
            if table != "params" and (steps.per < 0).any():
                raise NoBucket(f"{table} of an operand grow where the length shrinks")
            if table in {"strides", "offsets"} and steps.per[fixed].any():
                raise NoBucket(f"{table} of a weight change")
            per = steps.per.reshape(-1)
            some = np.flatnonzero(per)
            found = np.zeros(len(some), SLOPE)
            found["table"], found["index"], found["per"] = SLOPE_TABLES[name], some, per[some]
            found["every"], found["rest"] = steps.every.reshape(-1)[some], steps.rest.reshape(-1)[some]
            rows.append(found)
        return np.concatenate(rows)

    def _shapes(self, which: str) -> list[Steps]:
        rows = zip(*(getattr(s, which) for s in self.storages.values()), strict=True)
        return [Steps.of({e: np.array(t.shape, np.int64) for e, (_, t) in zip(self.storages, row, strict=True)}, row[0][0]) for row in rows]

    def grids(self, extent: int, grids: Sequence[Grid]) -> list[Grid]:
        """Those of `most`, ending where the tensors do."""
        out = []
        for node, grid in zip(self.storages[extent].steps, grids, strict=True):
            shape = node.output.shape
            cuts = tuple(np.minimum(cuts, dim) for cuts, dim in zip(grid.cuts, shape, strict=False))
            out.append(Grid(shape, cuts, grid.order))
        return out

    def cover(self, graph: TileGraph, grids: Sequence[Grid]) -> None:
        """Adds what tiles wait for at other extents to the graph of `most`.

        What a tile reads of another node's tiles is a range of them along each axis, whose ends go one way as the extent grows: what holds
        at the ends of the range (and between them, to be sure) holds throughout. Only where rows of several batches have become one axis
        does the place within a batch go back and forth: who reads such rows waits for all tiles of a node that is cut there.
        """
        most = EdgeBuilder(self.storages[self.bucket.most]).cells(grids)
        missing = self._back_and_forth(most, grids)
        for extent in {self.bucket.least, (self.bucket.least + self.bucket.most) // 2} - {self.bucket.most}:
            there = EdgeBuilder(self.storages[extent]).cells(self.grids(extent, grids))
            for k, (large, small) in enumerate(zip(most, there, strict=True)):
                missing.update((source, k) for source in _uncovered(large, small, grids[k].n))
        for before, after in sorted(missing):
            join = graph.join(before)
            for k, into in ((before, True), (after, False)):
                tiles = np.arange(graph.base[k], graph.base[k + 1])
                joins = np.full(len(tiles), join)
                graph.add(tiles if into else joins, joins if into else tiles)

    def _back_and_forth(self, most: Sequence[Sequence[Cells]], grids: Sequence[Grid]) -> set[tuple[int, int]]:
        """Pairs of a step that is cut along the length and one that reads it by an axis that grows by more than one with the extent."""
        shorter = self.storages[max(self.bucket.most - 1, self.bucket.least)].steps
        grows = [
            [a - b for a, b in zip(x.output.shape, y.output.shape, strict=True)] for x, y in zip(self._most.steps, shorter, strict=True)
        ]
        merged = [max(steps, default=0) > 1 for steps in grows]
        cut = [
            any(step == 1 and len(cuts) > 2 for step, cuts in zip(steps, g.cuts, strict=False))
            for steps, g in zip(grows, grids, strict=True)
        ]
        return {(cells.step, k) for k, rows in enumerate(most) if merged[k] for cells in rows if cut[cells.step] and not merged[cells.step]}


def _uncovered(large: Sequence[Cells], small: Sequence[Cells], tiles: int) -> set[int]:
    """The steps of whose tiles a step's tiles read some at one extent that they do not read at `most`."""
    found = {cells.step for cells in small} - {cells.step for cells in large}
    for cells in small:
        rows = [other for other in large if other.step == cells.step]
        if not rows:
            continue
        # Of each tile, what any of its reads at `most` takes in; where it has several of one step, one of them has to do.
        covered = np.zeros(len(cells.tiles), bool)
        for other in rows:
            at = np.full(tiles, -1)
            at[other.tiles] = np.arange(len(other.tiles))
            place = at[cells.tiles]
            inside = (cells.first >= other.first[place]) & (cells.last <= other.last[place])
            covered |= (place >= 0) & inside.all(axis=1)
        if not covered.all():
            found.add(cells.step)
    return found


def alike(most: Storage, other: Storage) -> dict[int, Buffer]:
    """The buffers of the second for those of the first, by their ids. Raises NoBucket unless two graphs have the same nodes over the same
    tensors in the same buffers."""
    if len(most.steps) != len(other.steps):
        raise NoBucket(f"{len(most.steps)} kernels at one length, {len(other.steps)} at another")
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    buffers: dict[int, Buffer] = {}
    taken: dict[int, int] = {}
    for a, b in zip(most.steps, other.steps, strict=True):
        if a.op == OPAQUE:
            raise NoBucket(f"{a.onnx_op} {a.name!r} runs in Python", elsewhere=False)
        if a.op != b.op or len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs) or a.batch_slice != b.batch_slice:
            raise NoBucket(f"{a.op} {a.name!r} at one length, {b.op} {b.name!r} at another")
        for x, y in zip([*a.outputs, *a.inputs], [*b.outputs, *b.inputs], strict=True):
            if (x is None) != (y is None):
                raise NoBucket(f"{a.op} {a.name!r} reads other values at another length")
            if x is None or y is None:
                continue
            if numbers[0].setdefault(id(x), len(numbers[0])) != numbers[1].setdefault(id(y), len(numbers[1])):
                raise NoBucket(f"{a.op} {a.name!r} reads other values at another length")
            if x.dtype != y.dtype or len(x.shape) != len(y.shape) or x.weight_key != y.weight_key:
                raise NoBucket(f"{x.name!r} is another value at another length")
            one, two = most.refs[x].buffer, other.refs[y].buffer
            if buffers.setdefault(id(one), two) is not two or taken.setdefault(id(two), id(one)) != id(one) or one.space != two.space:
                raise NoBucket(f"{x.name!r} lies elsewhere at another length")
            if two.nbytes > one.nbytes:
                raise NoBucket(f"{x.name!r} takes more memory at a smaller length")
    for these, those in ((most.inputs, other.inputs), (most.outputs, other.outputs)):
        if [name for name, _ in these] != [name for name, _ in those]:
            raise NoBucket("inputs and outputs are others at another length")
        if any(numbers[0].get(id(x), -1) != numbers[1].get(id(y), -1) for (_, x), (_, y) in zip(these, those, strict=True)):
            raise NoBucket("outputs are others at another length")
    return buffers


def _mostly_the_same(most: Storage, least: Storage) -> None:
    """Raises NoBucket where much of a graph's time at the shortest length is taken by what has the length in it, or where it takes much
    more memory at the longest."""
    costs = [(tile_cost.whole_ns(a), tile_cost.whole_ns(b)) for a, b in zip(least.steps, most.steps, strict=True)]
    whole, moved = sum(short for short, _ in costs), sum(short for short, long in costs if long > short)
    if moved > POLICY.moved_share * whole:
        raise NoBucket(f"of {whole * 1e-6:.2f} ms at one length {moved * 1e-6:.2f} are more at another")
    large, small = (sum(buffer.nbytes for buffer in _buffers(storage)) for storage in (most, least))
    if large - small > POLICY.more_bytes:
        raise NoBucket(f"takes {large} bytes at one length, {small} at another")


def _buffers(storage: Storage) -> set[Buffer]:
    return {ref.buffer for ref in storage.refs.values() if ref.buffer.space in {ARENA, REQUEST}}


def _keep_strides(numbers: Mapping[int, _Numbers], most: int) -> None:
    """Gives operands the strides of the longest extent where they do not matter, on axes of one element, and where they grow with its
    square. Those are of a batch of matrices of all tokens with all tokens, say; there is room between the rows of such a buffer then. All
    operands have to see it as the same array, from the same byte on."""
    at_most = numbers[most]
    single = np.all([n.dims == 1 for n in numbers.values()], axis=0)
    for n in numbers.values():
        n.strides[single] = at_most.strides[single]
    _, uneven = Steps.nearest({extent: n.strides for extent, n in numbers.items()})
    found = {id(b): b for row in np.flatnonzero(uneven.any(axis=1)).tolist() if (b := at_most.buffers[row]) is not None}
    for buffer in found.values():
        rows = [row for row, other in enumerate(at_most.buffers) if other is buffer]
        if buffer.space == ARENA and all(len({_array(n, row) for row in rows}) == 1 for n in numbers.values()):
            for n in numbers.values():
                n.strides[rows] = np.where(n.strides[rows] == 0, 0, at_most.strides[rows])


def _array(numbers: _Numbers, row: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """What an operand sees of its buffer: the first byte, and the length and stride of each axis that moves."""
    axes = zip(numbers.dims[row].tolist(), numbers.strides[row].tolist(), strict=True)
    return int(numbers.offsets[row]), tuple((dim, stride) for dim, stride in axes if dim > 1 and stride)


def _row(shape: Sequence[int], ref: Ref, t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int, bool]:
    return tuple(shape), tuple(ref.strides), ref.offset * item_bytes(t), ref.buffer.space == WEIGHTS


def _ends(values: Mapping[int, npt.NDArray[np.generic]], large: npt.NDArray[np.generic]) -> Callable[[int], npt.NDArray[np.generic]] | None:
    """If constants at other extents are the ends of the one for `most`, and not its beginnings: a function from how much smaller an extent
    is to what stands there, from the beginning on."""
    if any(v.ndim != large.ndim or any(a > b for a, b in zip(v.shape, large.shape, strict=True)) for v in values.values()):
        return None
    if all(_same(v, large[tuple(slice(dim) for dim in v.shape)]) for v in values.values()):
        return None
    if not all(_same(v, _end(large, v.shape)) for v in values.values()):
        return None
    steps = Steps.of({extent: np.array(v.shape, np.int64) for extent, v in values.items()}, "the shape of a constant")
    whole = np.array(large.shape, np.int64)

    def row(less: int) -> npt.NDArray[np.generic]:
        shape = tuple(map(int, steps.at(whole, less)))
        out = np.zeros_like(large)
        out[tuple(slice(dim) for dim in shape)] = _end(large, shape)
        return out

    return row


def _end(values: npt.NDArray[np.generic], shape: Sequence[int]) -> npt.NDArray[np.generic]:
    return values[tuple(slice(whole - dim, whole) for whole, dim in zip(values.shape, shape, strict=True))]


def _begins(x: Tensor, ref: Ref, twin: Tensor, at_most: Ref) -> Ref:
    """Where a constant is read: in that for `most`, if it is its beginning along every axis."""
    if any(a > b for a, b in zip(x.shape, twin.shape, strict=True)):
        raise NoBucket(f"constant {x.name!r} is larger at a smaller length")
    if ref != at_most and not _same(_elements(ref, x), _elements(at_most, x)):
        raise NoBucket(f"constant {x.name!r} has other values at another length")
    return Ref(ref.buffer, at_most.offset, at_most.strides)


def _elements(ref: Ref, x: Tensor) -> npt.NDArray[np.generic]:
    """What a tensor of the shape of `x` reads of a constant at `ref`."""
    const = ref.buffer.const
    assert const is not None
    flat = np.ascontiguousarray(const.value()).reshape(-1)
    return np.lib.stride_tricks.as_strided(flat[ref.offset :], x.shape, [s * flat.itemsize for s in ref.strides], writeable=False)


def _same(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> bool:
    """The same bits: NaN may stand for something."""
    return a.dtype == b.dtype and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
