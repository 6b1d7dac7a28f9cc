"""A graph at the extents of a shape bucket: what of its plan changes with the extents, and that nothing else does.

Texts have any number of tokens, and pictures any height and width; to plan takes longer than to run. So one plan serves all such *extents*
from `least` to `most`. It is planned for `most`, and says how its numbers follow from the extents (`expressions.py`). Tiles, their edges
and the memory plan are those of `most`. At smaller extents boxes end where the tensors do, and some are empty.

Nothing in the planner computes with unknown lengths. The model is lowered at a few extents, the ends of the range and neighbours among
them. The graphs have to have the same nodes over the same tensors. Numbers have to follow from the extents. Constants are the beginnings of
those for `most`. Where floors that fit differ, the graph is looked at where they do.

With one extent a constant may also be the end of that for `most` (distances from the last token), or hold integers that grow evenly (places
of tokens). There is a row of it for each extent. Where that does not hold the bucket has no plan (`NoBucket`), and each shape has one.
Edges that other extents need and `most` does not (rows counted from the end) become edges between all tiles of both nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.planner.layout.grids import Grid
from aspen_mp.planner.layout.storage import ARENA, PLAN, REQUEST, WEIGHTS, Buffer, Ref, Storage, item_bytes
from aspen_mp.planner.ops.spec import OPAQUE
from aspen_mp.planner.ops.table import params, seen
from aspen_mp.planner.plan.expressions import Expressions, Follows
from aspen_mp.planner.plan.extents import at
from aspen_mp.planner.plan.memory import assign_offsets, tenants
from aspen_mp.planner.plan.plan import Plan, arena_layout
from aspen_mp.planner.plan.shape_bucket import Extents, NoBucket, ShapeBucket
from aspen_mp.planner.tiling.edges import Cells, EdgeBuilder, TileGraph
from aspen_mp.shm.extents import FLOOR
from aspen_mp.shm.tables import LIMITS, NUMBER, NUMBER_TABLES, VALUE

Ints = npt.NDArray[np.int64]
RANK = LIMITS["rank"]


Axes = list[tuple[int, Follows]]
"""The axes of a tensor that follow from values, and from which."""
MOST_SAMPLES = 16
"""The most extents that are looked at."""
CHECKS = 2
"""The last extents that are looked at, which change nothing that has been found."""
_CANDIDATES = 512
_LARGEST_FRACTION = 4
"""The largest divisor of fractions by which pictures are resized."""
_LIKELY_TILES = 128
"""Tiles of a step, more than most have."""
_REAL = 1 << 52
"""Parameters from here on are the bits of a double."""


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A plan's operands and parameters, in the order in which `build` writes them; offsets from the operand's buffer."""

    dims: Ints
    strides: Ints
    offsets: Ints
    params: Ints
    fixed: npt.NDArray[np.bool_]
    """Operands that lie in weights."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """How numbers shrink with the extent: by `per` at every `every`-th one, `rest` of which are over at `most`."""

    per: Ints
    every: Ints
    rest: Ints

    @classmethod
    def of(cls, found: Mapping[int, Ints], what: str) -> _Steps:
        """Given the numbers at some extents, two neighbours at the end among them. Raises NoBucket."""
        steps, wrong = cls.nearest(found)
        if wrong.any():
            numbers = [int(v[wrong][0]) for v in found.values()]
            raise NoBucket(f"{what} does not grow evenly: {numbers} at {list(found)}", elsewhere=False)
        return steps

    @classmethod
    def nearest(cls, found: Mapping[int, Ints]) -> tuple[_Steps, npt.NDArray[np.bool_]]:
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
        """The numbers at an extent that is smaller by `less`."""
        return np.asarray(at_most - self.per * ((less + self.rest) // self.every))


class BucketedGraph:
    """The same graph at several extents: `add` those of `ShapeBucket.samples`, then what `missing` names. `most`: where it is largest.
    `values`, `numbers`: as `shm/protocol/layout.h` has them. `shapes`: how those of inputs and outputs follow, in their order."""

    def __init__(self, bucket: ShapeBucket, most: Storage) -> None:
        self.bucket = bucket
        self.storages: dict[Extents, Storage] = {}
        self.values = np.zeros(0, VALUE)
        self.numbers = np.zeros(0, NUMBER)
        self.shapes: tuple[list[Axes], list[Axes]] = [], []
        self.expressions = Expressions([bucket.most])
        self.most = most
        self._twins: dict[Extents, dict[int, Buffer]] = {}
        self._rows: dict[int, int] = {}
        self._dense: set[int] = set()
        self._found: dict[Extents, _Numbers] = {}
        self._follows: dict[bytes, Follows] = {}
        self._agreed = 0

    def add(self, extents: Extents, storage: Storage) -> None:
        """The graph at other extents, `most` first. Raises NoBucket where it is another one."""
        self._twins[extents] = alike(self.most, storage)
        self.storages[extents] = storage

    def arena_bytes(self) -> int:
        """The likely size of an arena."""
        return arena_layout(_LIKELY_TILES * len(self.most.steps), assign_offsets(tenants(self.most)))["arena_bytes"]

    @property
    def _most_bytes(self) -> int:
        """The most memory of a plan that serves small requests, too. Plans for pictures of each size would take as much."""
        if len(self.bucket.most) == 1:
            return POLICY.broad_bytes
        return min(POLICY.pictures_bytes, int(POLICY.pictures_share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))

    def small_enough(self) -> None:
        """Raises NoBucket where the plan is going to take much memory, or many times what one for the smallest extents would."""
        storages = self.most, self.storages[self.bucket.least]
        needed, least = (assign_offsets(tenants(storage)) + storage.request_bytes for storage in storages)
        if needed > self._most_bytes or needed > max(POLICY.most_spread * least, POLICY.spread_bytes):
            raise NoBucket(f"takes {needed} bytes, where {least} would do")

    def mostly_the_same(self) -> None:
        """Raises NoBucket where much of the graph has the length in it, or much more memory is needed where it is longest."""
        _mostly_the_same(self.most, self.storages[self.bucket.least])

    def keeps_busy(self, plan: Plan, workers: int) -> None:
        """Raises NoBucket where the plan leaves cores without tiles at the smallest extents."""
        tiles = at(plan, self.bucket.least)[2]
        there = np.bincount(tiles["op"][(tiles["lo"] < tiles["hi"]).all(axis=1)], minlength=len(plan.ops))
        # An opaque node has one tile at any length.
        ns = np.array([tile_cost.whole_ns(node) * (node.op != OPAQUE) for node in self.storages[self.bucket.least].steps])
        cores = np.where(ns < POLICY.shared_ns, workers, np.clip(there[plan.ops["n_outputs"] > 0], 1, workers))
        if (ns / cores).sum() > (1 + POLICY.idle_share) * ns.sum() / workers:
            raise NoBucket(f"of {workers} cores some have no tiles at the shortest length")

    def missing(self) -> list[Extents]:
        """Compares what has been added. Returns the extents that have to be looked at, too. Raises NoBucket where numbers or constants do
        not follow from the extents."""
        if not self._found and len(self.bucket.most) == 1:
            for buffer in self.most.constants:
                if buffer.space == PLAN:
                    self._table(buffer)
        self._compare()
        candidates = [extents for extents in self.bucket.some(_CANDIDATES) if extents not in self.storages]
        found = self.expressions.separating(candidates) if candidates else None
        if found is not None and len(self.storages) >= MOST_SAMPLES:
            raise NoBucket("more than one expression fits what is known")
        if found is None and (self.expressions.floors or len(self.bucket.most) > 1):
            return candidates[: CHECKS - self._agreed]
        return [] if found is None else [found]

    def _compare(self) -> None:
        new = [extents for extents in self.storages if extents not in self._found]
        known = len(self._dense)
        for extents in new:
            self._find_dense(extents)
        if len(self._dense) > known:
            self._found = {}
        for extents in self.storages:
            if extents not in self._found:
                self._found[extents] = self._numbers(extents)
        numbers = list(self._found.values())
        single = np.all([n.dims == 1 for n in numbers], axis=0)
        for n in numbers:
            n.strides[single] = numbers[0].strides[single]
        before = self.expressions.rows, self.numbers.tolist()
        self.expressions, self._follows = Expressions(list(self._found)), {}
        rows = self._numbers_of_steps(numbers)
        self._agreed = min(self._agreed + len(new), CHECKS) if before == (self.expressions.rows, rows) else 0
        self.numbers = np.array(rows, NUMBER)
        self.shapes = self._shapes("inputs"), self._shapes("outputs")
        self.values = np.array([(kind, u, v, 0, a, b, c) for kind, u, v, a, b, c in self.expressions.rows], VALUE)

    def _table(self, buffer: Buffer) -> None:
        """Makes a row for each extent of integers that grow with it, such as places of tokens. The same of constants that are the ends of
        those for `most`, such as distances from the last token."""
        consts = {extents: twins[id(buffer)].const for extents, twins in self._twins.items() if id(buffer) in twins}
        if len(consts) < len(self.storages) or any(c is None for c in consts.values()):
            return
        values = {extents: np.ascontiguousarray(c.value()) for extents, c in consts.items() if c is not None}
        large = values[self.bucket.most]
        if all(v.shape == large.shape for v in values.values()):
            if large.dtype.kind not in "iu" or all(np.array_equal(v, large) for v in values.values()):
                return
            steps = _Steps.of({extents[0]: v.astype(np.int64) for extents, v in values.items()}, f"{buffer.name!r}")
            rows: Callable[[int], npt.NDArray[np.generic]] = partial(steps.at, large.astype(np.int64))
        else:
            found = _ends(values, large)
            if found is None:
                return
            rows = found
        (least,), (most,) = self.bucket.least, self.bucket.most
        if (most - least + 1) * large.nbytes > POLICY.most_table_bytes:
            raise NoBucket(f"{buffer.name!r} has other values at another length")
        table = np.stack([rows(most - extent) for extent in range(least, most + 1)]).astype(large.dtype)
        buffer.const, buffer.nbytes = Tensor(buffer.name, table.shape, table.dtype, data=table), table.nbytes
        self._rows[id(buffer)] = large.size
        for tensor, ref in self.most.refs.items():
            if ref.buffer is buffer:
                self.most.refs[tensor] = Ref(buffer, ref.offset + (most - least) * large.size, ref.strides)

    def _numbers(self, extents: Extents) -> _Numbers:
        """The numbers at these extents. Constants are those for `most`, with their strides."""
        storage, most = self.storages[extents], self.most
        rows: list[tuple[tuple[int, ...], tuple[int, ...], int, bool]] = []
        values: list[int] = []
        for node, large in zip(storage.steps, most.steps, strict=True):
            rows += [_row(t.shape, storage.refs[t], t) for t in node.outputs]
            for i, x in enumerate(node.inputs):
                if x is None:
                    rows.append(((), (), 0, False))
                    continue
                ref, twin = storage.refs[x], large.inputs[i]
                assert twin is not None
                if ref.buffer.space == PLAN:
                    ref = self._in_most(x, ref, twin, extents)
                    if not _same(_elements(storage.refs[x], x), _elements(ref, x)):
                        raise NoBucket(f"constant {x.name!r} has other values at another length")
                shape, strides = seen(node, i, x, ref.strides)
                rows.append(_row(shape, Ref(ref.buffer, ref.offset, strides), x))
            values.extend(params(node))
        dims, strides_of = np.ones((len(rows), RANK), np.int64), np.zeros((len(rows), RANK), np.int64)
        for k, (shape, strides, _, _) in enumerate(rows):
            dims[k, : len(shape)], strides_of[k, : len(strides)] = shape, strides
        offsets, fixed = np.array([r[2] for r in rows], np.int64), np.array([r[3] for r in rows], bool)
        return _Numbers(dims, strides_of, offsets, np.array(values, np.int64), fixed)

    def _in_most(self, x: Tensor, ref: Ref, twin: Tensor, extents: Extents) -> Ref:
        """Where a constant may be read: in that for `most`, as its beginning along every axis; or with strides of its own."""
        there = self.most.refs[twin]
        if any(a > b for a, b in zip(x.shape, twin.shape, strict=True)):
            raise NoBucket(f"constant {x.name!r} is larger at a smaller length")
        if id(there.buffer) in self._dense:
            return Ref(there.buffer, ref.offset, ref.strides)
        back = (self.bucket.most[0] - extents[0]) * self._rows.get(id(there.buffer), 0)
        return Ref(there.buffer, there.offset - back, there.strides)

    def _find_dense(self, extents: Extents) -> None:
        """Notes constants that are not beginnings along every axis. They may be beginnings of the elements in their order, such as numbers
        of all tokens of several texts."""
        storage = self.storages[extents]
        for node, large in zip(storage.steps, self.most.steps, strict=True):
            for x, twin in zip(node.inputs, large.inputs, strict=True):
                if x is None or twin is None or storage.refs[x].buffer.space != PLAN:
                    continue
                own, there = storage.refs[x], self._in_most(x, storage.refs[x], twin, extents)
                if id(there.buffer) not in self._rows and not _same(_elements(own, x), _elements(there, x)):
                    self._dense.add(id(there.buffer))

    def _numbers_of_steps(self, numbers: Sequence[_Numbers]) -> list[tuple[int, int, int, int]]:
        """Rows of `numbers`. Lengths that a step reads come before those that it makes, which may be floors of them."""
        dims, strides, offsets, values = (np.stack([getattr(n, t) for n in numbers], -1) for t in ("dims", "strides", "offsets", "params"))
        fixed = numbers[0].fixed
        out: list[tuple[int, int, int, int]] = []
        at = param = 0
        for node in self.most.steps:
            made, end = at + len(node.outputs), at + len(node.outputs) + len(node.inputs)
            bases = [vector for vector in dims[made:end].reshape(-1, len(numbers)) if (vector != vector[0]).any()]
            what, by = f"{node.op} {node.name!r}", _steps_of(node)
            for operand in (*range(made, end), *range(at, made)):
                out += self._rows_of("DIM", operand * RANK, dims[operand], bases, by, what)
            for operand in range(at, end):
                moved = self._rows_of("STRIDE", operand * RANK, strides[operand], bases, by, what)
                moved += self._rows_of("OFFSET", operand, offsets[operand : operand + 1], bases, by, what)
                if moved and fixed[operand]:
                    raise NoBucket(f"where {what} finds a weight changes")
                out += moved
            count = len(params(node))
            own = values[param : param + count]
            real = (np.abs(own) >= _REAL).all(axis=1)
            out += self._rows_of("PARAM", param, np.where(real[:, None], own[:, :1], own), bases, by, what)
            out += self._ratios(param, np.where(real[:, None], own, own[:, :1]), dims[at], dims[made], what)
            at, param = end, param + count
        return out

    def _rows_of(
        self, table: str, first: int, vectors: Ints, bases: Sequence[Ints], by: Sequence[Fraction], what: str
    ) -> list[tuple[int, int, int, int]]:
        """Rows for those of some numbers [n, extents] that change. They are `first` and the following of a table."""
        out = []
        for k in np.flatnonzero((vectors != vectors[:, :1]).any(axis=1)).tolist():
            follows = self._follow(vectors[k], bases, by, what)
            if follows.per < 0 and table != "PARAM":
                raise NoBucket(f"a number of {what} grows where the length shrinks")
            if table == "DIM":
                self.expressions.length(vectors[k])
            out.append((NUMBER_TABLES[table], follows.value, first + k, follows.per))
        return out

    def _follow(self, numbers: Ints, bases: Sequence[Ints], by: Sequence[Fraction], what: str) -> Follows:
        key = numbers.tobytes()
        if key not in self._follows:
            self._follows[key] = self.expressions.follow(numbers, bases, by, what)
        return self._follows[key]

    def _ratios(self, first: int, vectors: Ints, out: Ints, inputs: Ints, what: str) -> list[tuple[int, int, int, int]]:
        """Parameters of a step that are ratios of lengths of its output and of its input."""
        rows = []
        for k in np.flatnonzero((vectors != vectors[:, :1]).any(axis=1)).tolist():
            axis = next((i for i in range(RANK) if _same(out[i] / inputs[i], vectors[k].view(np.float64))), None)
            if axis is None:
                raise NoBucket(f"a parameter of {what} is not a ratio of lengths", elsewhere=False)
            above, below = (self.expressions.exactly(side[axis], what) for side in (out, inputs))
            rows.append((NUMBER_TABLES["RATIO"], above, first + k, below))
        return rows

    def _shapes(self, which: str) -> list[Axes]:
        found = []
        for row in zip(*(getattr(s, which) for s in self.storages.values()), strict=True):
            dims = np.array([t.shape for _, t in row], np.int64).reshape(len(row), -1).T
            axes = np.flatnonzero((dims != dims[:, :1]).any(axis=1)).tolist()
            found.append([(axis, self._follow(np.ascontiguousarray(dims[axis]), (), (), repr(row[0][0]))) for axis in axes])
        return found

    def grids(self, extents: Extents, grids: Sequence[Grid]) -> list[Grid]:
        """Those of `most`, ending where the tensors do."""
        out = []
        for node, grid in zip(self.storages[extents].steps, grids, strict=True):
            shape = node.output.shape
            cuts = tuple(np.minimum(cuts, dim) for cuts, dim in zip(grid.cuts, shape, strict=False))
            out.append(Grid(shape, cuts, grid.order))
        return out

    def cover(self, graph: TileGraph, grids: Sequence[Grid]) -> None:
        """Adds what tiles wait for at other extents to the graph of `most`.

        A tile reads a range of another node's tiles along each axis. The ends of the range go one way as an extent grows. So edges that
        hold at all combinations of smallest and largest extents hold throughout; the other samples are looked at to be sure. The ends go
        back and forth where several axes have become one (`_merged`), and where a picture is resized by a ratio that changes. A tile that
        reads so waits for all tiles of a node that is cut there.
        """
        most = EdgeBuilder(self.storages[self.bucket.most]).cells(grids)
        missing = self._back_and_forth(most, grids)
        for extents in self.storages:
            if extents == self.bucket.most:
                continue
            there = EdgeBuilder(self.storages[extents]).cells(self.grids(extents, grids))
            for k, (large, small) in enumerate(zip(most, there, strict=True)):
                missing.update((source, k) for source in _uncovered(large, small, grids[k].n))
        for before, after in sorted(missing):
            join = graph.join(before)
            for k, into in ((before, True), (after, False)):
                tiles = np.arange(graph.base[k], graph.base[k + 1])
                joins = np.full(len(tiles), join)
                graph.add(tiles if into else joins, joins if into else tiles)

    def _back_and_forth(self, most: Sequence[Sequence[Cells]], grids: Sequence[Grid]) -> set[tuple[int, int]]:
        """Pairs of steps: the first is cut along a length, the second reads it by an axis of merged lengths, or by a ratio that changes."""
        merged, cut = self._merged(), self._cut(grids)
        resized = {int(index) for table, _, index, _ in self.numbers.tolist() if table == NUMBER_TABLES["RATIO"]}
        ratios, param = [], 0
        for node in self.most.steps:
            count = len(params(node))
            ratios.append(any(param <= index < param + count for index in resized))
            param += count
        return {
            (cells.step, k)
            for k, rows in enumerate(most)
            for cells in rows
            if cut[cells.step] and (ratios[k] or (merged[k] and merged[k] != merged[cells.step]))
        }

    def _merged(self) -> list[set[Follows]]:
        """The values of those axes of each step's output that are several lengths in one: more than one length, or a multiple of one."""
        polynomials = {value for value, (kind, *_) in enumerate(self.expressions.rows, len(self.bucket.most)) if kind != FLOOR}
        return [{follows for _, follows in rows if follows.value in polynomials or follows.per > 1} for rows in self._made()]

    def _cut(self, grids: Sequence[Grid]) -> list[bool]:
        """Whether each step is cut along an axis that changes."""
        return [
            any(len(grid.cuts[axis]) > 2 for axis, _ in rows if axis < len(grid.cuts))
            for rows, grid in zip(self._made(), grids, strict=True)
        ]

    def _made(self) -> list[Axes]:
        """The axes of each step's output that follow from values."""
        changes: dict[int, Axes] = {}
        for table, value, index, per in self.numbers.tolist():
            if table == NUMBER_TABLES["DIM"]:
                changes.setdefault(index // RANK, []).append((index % RANK, Follows(value, per)))
        found, operand = [], 0
        for node in self.most.steps:
            found.append(changes.get(operand, []))
            operand += len(node.outputs) + len(node.inputs)
        return found


def _steps_of(node: Node) -> list[Fraction]:
    """The factors of lengths that a step reads. Windows move by several pixels, those of its layers together by more. Panels have several
    columns. A picture is resized by a fraction."""
    layers = [dict(step.attrs) for step in node.attrs["program"]] if "program" in node.attrs else [node.attrs]
    moved = {1}
    for attrs in layers:
        moved |= {a * b for a in moved for b in (*attrs.get("strides", ()), *attrs.get("granules", ()))}
    resized = {Fraction(scale).limit_denominator(_LARGEST_FRACTION) for scale in node.attrs.get("scales", ())}
    return [Fraction(1, pixels) for pixels in sorted(moved - {1})] + sorted(scale for scale in resized if scale.denominator > 1)


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
        if a.op == OPAQUE and a.attrs["model"] != b.attrs["model"]:
            raise NoBucket(f"{a.onnx_op} {a.name!r} runs in Python, as another model at another length")
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


def _row(shape: Sequence[int], ref: Ref, t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int, bool]:
    return tuple(shape), tuple(ref.strides), ref.offset * item_bytes(t), ref.buffer.space == WEIGHTS


def _ends(
    values: Mapping[Extents, npt.NDArray[np.generic]], large: npt.NDArray[np.generic]
) -> Callable[[int], npt.NDArray[np.generic]] | None:
    """If constants at other extents are the ends of the one for `most`, and not its beginnings: a function from how much smaller an extent
    is to what stands there, from the beginning on."""
    if any(v.ndim != large.ndim or any(a > b for a, b in zip(v.shape, large.shape, strict=True)) for v in values.values()):
        return None
    if all(_same(v, large[tuple(slice(dim) for dim in v.shape)]) for v in values.values()):
        return None
    if not all(_same(v, _end(large, v.shape)) for v in values.values()):
        return None
    steps = _Steps.of({extents[0]: np.array(v.shape, np.int64) for extents, v in values.items()}, "the shape of a constant")
    whole = np.array(large.shape, np.int64)

    def row(less: int) -> npt.NDArray[np.generic]:
        shape = tuple(map(int, steps.at(whole, less)))
        out = np.zeros_like(large)
        out[tuple(slice(dim) for dim in shape)] = _end(large, shape)
        return out

    return row


def _end(values: npt.NDArray[np.generic], shape: Sequence[int]) -> npt.NDArray[np.generic]:
    return values[tuple(slice(whole - dim, whole) for whole, dim in zip(values.shape, shape, strict=True))]


def _elements(ref: Ref, x: Tensor) -> npt.NDArray[np.generic]:
    """What a tensor of the shape of `x` reads of a constant at `ref`."""
    const = ref.buffer.const
    assert const is not None
    flat = np.ascontiguousarray(const.value()).reshape(-1)
    return np.lib.stride_tricks.as_strided(flat[ref.offset :], x.shape, [s * flat.itemsize for s in ref.strides], writeable=False)


def _same(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> bool:
    """The same bits: NaN may stand for something."""
    return a.dtype == b.dtype and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
