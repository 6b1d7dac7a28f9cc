"""How far a change of a model's inputs reaches, for plans whose requests run only what changed.

Region maps say which part of an input a part of the output needs (`ops.table.input_region`). Read backwards, they say which part of the
output a changed part of an input reaches. `with_reach` asks the region map of each step for every index along every axis of its output.
It follows these reads through views and concats to the steps and inputs that made them, and fits linear maps to them. A map is never
narrower than what it is fitted to. So a part that changes may reach too much of an output, and never too little.

Read forwards, the same maps say what can be computed while inputs arrive: everything that what is missing does not reach.

The maps, the tile grids and the costs of all steps become the program of one more op, REACH (`workers/kernels/movement/reach.c`). It is the
first of the plan, and all tiles wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.ir.graph import VIEW_OPS, Node, Tensor
from aspen_mp.planner.job.options import Keeping
from aspen_mp.planner.layout.alike import kinds
from aspen_mp.planner.layout.grids import TILE_AXES, Grid
from aspen_mp.planner.layout.storage import ALIGN, ARENA, REQUEST, Buffer, Ref, Storage, aligned, buffers, item_bytes
from aspen_mp.planner.layout.strides import dense
from aspen_mp.planner.ops.boxes import Boxes, Region, whole
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.params import bits
from aspen_mp.planner.ops.spec import OPAQUE, Kind
from aspen_mp.planner.ops.streams import reach
from aspen_mp.planner.ops.streams.thresholds import MOVED, REFRESH
from aspen_mp.planner.ops.table import SPECS, input_region, value_region
from aspen_mp.planner.tiling.keeping import forgotten
from aspen_mp.planner.tiling.maps import Map, Read, maps_of
from aspen_mp.planner.tiling.thresholds import connect

Ints = npt.NDArray[np.int64]
RegionOf = Callable[[Node, int, Boxes, Boxes], Region]
Path = tuple[int, ...]
"""The numbers of inputs by which a tensor is reached from a node, through views and concats."""
CHANGES, COUNTS = "", ""
"""Names of the input and the output of a plan that are not the model's. No value of a model has this name."""
COPY = "copy"
"""The op of nodes that stand for outputs of the plan. Nothing executes them."""


def with_reach(storage: Storage, grids: Sequence[Grid], keeping: Keeping, most: int = 0) -> tuple[Storage, list[Grid]]:
    """The same storage with REACH in front, and all activations in the request's region, so that they outlive the request. With "bits" and
    "rows", rounding errors count as changes. `most`: bytes that the region should have, 0 for any number. Activations beyond them stay in
    the arena, and requests compute them anew where they are read.

    Behind inputs and outputs the region gets a line, the changed boxes of all inputs, REACH's counts, and the activations. The first word
    of the line says whether the activations are trusted (`plan_header.request_kept`). Behind each row of thresholds (`thresholds.py`) there
    is another REACH, for the stretch of steps up to the next ones."""
    reader = _Reader(storage, input_region if keeping in ("bits", "rows") else value_region)
    reads = [reader.reads(node) for node in storage.steps]
    stretches = _stretches(storage)
    at = storage.request_bytes + reach.LINE
    changes = Tensor(CHANGES, (len(storage.inputs) + 1, reach.WORDS), np.dtype(np.int32))
    counts = Tensor(COUNTS, (len(stretches), reach.COUNTS + reach.READY * len(storage.outputs)), np.dtype(np.float64))
    refs = dict(storage.refs)
    for tensor in (changes, counts):
        refs[tensor] = Ref(Buffer(REQUEST, tensor.nbytes, "reach", offset=at), 0, dense(tensor.shape))
        at += aligned(tensor.nbytes)
    programs = _Programs(storage, grids, reader, reads, stretches)
    compared = {storage.refs[x].buffer for node in storage.steps if node.op == MOVED for x in node.inputs[:1] if x is not None}
    left = compared - programs.needed  # of these a request computes what it compares
    left |= forgotten(storage, reads, most - at, programs.needed) if most else set()
    for buffer in buffers(storage):
        if buffer.space == ARENA and buffer not in left:
            buffer.space, buffer.offset = REQUEST, at
            at += aligned(buffer.nbytes)
    connect(storage, changes, refs)
    tiles = [1 + sum(grids[k].n for k in own) for own in stretches]
    parts = Buffer(ARENA, sum(tiles) * reach.PART_WORDS * 4, "reach")
    nodes, steps, found, producer = list(storage.nodes), list[Node](), list[Grid](), dict(storage.producer)
    for number, own in enumerate(stretches):
        rows = Tensor("parts", (tiles[number], reach.PART_WORDS), np.dtype(np.uint32))
        line = Tensor("counts", (1, counts.shape[1]), counts.dtype)
        refs[rows] = Ref(parts, sum(tiles[:number]) * reach.PART_WORDS, dense(rows.shape))
        refs[line] = Ref(refs[counts].buffer, number * counts.shape[1], dense(line.shape))
        program, marks = programs.of(number)
        node = Node(reach.NAME, f"what changed {number}".removesuffix(" 0"), [changes, *marks], [rows, line], {"program": program}, "Reach")
        nodes.insert(nodes.index(storage.steps[own[0]]) if number and own else 0, node)
        producer |= dict.fromkeys((rows, line, counts), node)
        steps += [node, *(storage.steps[k] for k in own)]
        found += [_one(rows.shape), *(grids[k] for k in own)]
    inputs, outputs = [*storage.inputs, (CHANGES, changes)], [*storage.outputs, (COUNTS, counts)]
    kept = replace(
        storage, nodes=nodes, steps=steps, refs=refs, producer=producer, inputs=inputs, outputs=outputs, request_bytes=at, kinds=[]
    )
    return kept, found


def _one(shape: Sequence[int]) -> Grid:
    """The grid of one tile."""
    return Grid(tuple(shape), tuple(np.array([0, length], np.int64) for length in shape), (0, 1))


def _stretches(storage: Storage) -> list[list[int]]:
    """The steps between thresholds. A stretch begins with the REFRESH nodes of the thresholds before it."""
    found: list[list[int]] = [[]]
    before = ""
    for k, node in enumerate(storage.steps):
        if node.op == REFRESH and before != REFRESH:
            found.append([])
        found[-1].append(k)
        before = node.op
    return found


def kept_at(storage: Storage) -> int:
    """Where in a region the word is that says whether activations are trusted."""
    return storage.refs[storage.inputs[-1][1]].buffer.offset - reach.LINE


def first_edges(storage: Storage, base: Ints, origin: Ints, parents: Ints, children: Ints) -> tuple[Ints, Ints]:
    """The edges with those from each REACH to all tiles of its stretch that wait for nothing else there. `base`: the first tile of each
    step, and the number of tiles. `origin`: of each JOIN, the last tile that it waits for."""
    tiles, starts = int(base[-1]), base[:-1][[node.op == reach.NAME for node in storage.steps]]
    stretch = np.searchsorted(starts, np.arange(tiles), side="right") - 1
    stretch = np.concatenate([stretch, stretch[origin]])
    waits = np.zeros(tiles, bool)
    waits[starts] = True
    inside = children < tiles
    inside[inside] = stretch[parents[inside]] == stretch[children[inside]]
    waits[children[inside]] = True
    free = np.flatnonzero(~waits)
    return np.concatenate([parents, starts[stretch[free]]]), np.concatenate([children, free])


# --------------------------------------------------------------------------------------------------------------- programs


class _Programs:
    """The programs of REACH for each stretch.

    A program follows changes from the model's inputs, and from the marks of thresholds, to the stretch's own steps. Steps of other
    stretches that lie between are in it without tiles."""

    def __init__(
        self, storage: Storage, grids: Sequence[Grid], reader: _Reader, reads: Sequence[Sequence[Read]], stretches: Sequence[Sequence[int]]
    ) -> None:
        """`reads`: of each step, as `reader` has found them."""
        self._storage = storage
        self._grids = grids
        self._reads = reads
        self._stretches = stretches
        self._kinds = kinds(storage)
        self._alike: dict[int, tuple[int, ...]] = {}
        self._given = {tensor for _, tensor in storage.inputs}
        self._step = {tensor: k for k, node in enumerate(storage.steps) for tensor in node.outputs}
        self._results = [reader.reads(_copy_of(tensor)) for _, tensor in storage.outputs]
        number = {k: n for n, own in enumerate(stretches) for k in own}
        self.needed: set[Buffer] = set()
        """These outlive requests whatever their size: they are read in stretches behind their own."""
        for k, node in enumerate(storage.steps):
            across = [read.source for read in reads[k] if number[self._step.get(read.source, k)] != number[k]]
            state = node.outputs if node.op in (MOVED, REFRESH) else ()
            self.needed |= {storage.refs[tensor].buffer for tensor in (*across, *state)}

    def of(self, stretch: int) -> tuple[tuple[int, ...], list[Tensor]]:
        """The program of a stretch, and the marks that it reads."""
        own = self._stretches[stretch]
        others, marks = self._before(own)
        given, mine = [tensor for _, tensor in self._storage.inputs], set(own)
        number = {tensor: k for k, tensor in enumerate((*given, *marks))}
        steps = sorted((*others, *own))
        words = [len(given), len(marks), len(steps) + len(self._results), len(self._results)]
        for tensor in (*given, *marks):
            words += [len(tensor.shape), *tensor.shape]
        for place, k in enumerate(steps, len(number)):
            node = self._storage.steps[k]
            words += _block(self._tiled(k) if k in mine else _tileless(node.output.shape), self._reads[k], number)
            number.update(dict.fromkeys(node.outputs, place))
        for (_, tensor), reads in zip(self._storage.outputs, self._results, strict=True):
            some = [read for read in reads if (self._step[read.source] in mine if read.source in self._step else not stretch)]
            words += _block(_tileless(tensor.shape or (1,)), some, number)
        return tuple(words), marks

    def _before(self, own: Sequence[int]) -> tuple[list[int], list[Tensor]]:
        """Steps of other stretches by which changes come to some steps, and the marks by which they come to these."""
        seen, marks, todo = set(own), dict[Tensor, None](), list(own)
        while todo:
            for read in self._reads[todo.pop()]:
                k = self._step.get(read.source, -1)
                if k < 0 or k in seen:
                    continue
                if self._storage.steps[k].op == MOVED:
                    marks[read.source] = None
                else:
                    seen.add(k)
                    todo.append(k)
        return sorted(seen - set(own)), list(marks)

    def _tiled(self, k: int) -> list[int]:
        """The words of a step in front of its reads."""
        storage, node, grid = self._storage, self._storage.steps[k], self._grids[k]
        kind = self._kinds[k]
        if kind not in self._alike:
            self._alike[kind] = _grains(node, storage)
        shape, cuts = node.output.shape, [cut.tolist() for cut in grid.cuts]
        if node.op == OPAQUE and 0 in shape:  # its tile gives other outputs, so there must be a part to run
            shape, cuts = tuple(max(length, 1) for length in shape), [[0, max(cut[-1], 1)] for cut in cuts]
        block = [len(shape), *shape, bits(op_cost.flops(node) / max(node.output.size, 1)), _kept(node, storage)]
        for axis, cut in enumerate(cuts):
            block += [len(cut) - 1, self._alike[kind][axis], grid.steps[axis], *cut]
        return block


def _tileless(shape: Sequence[int]) -> list[int]:
    """The same for what the program follows changes through, and does not run."""
    return [len(shape), *shape, 0, reach.ALL_KEPT, *(0, 1, 0, 0) * min(len(shape), TILE_AXES)]


def _kept(node: Node, storage: Storage) -> int:
    """How many outputs of a step outlive a request: all, none or some (`reach.ALL_KEPT` and others)."""
    spaces = [storage.refs[tensor].buffer.space != ARENA for tensor in node.outputs]
    return reach.ALL_KEPT if all(spaces) else reach.SOME_KEPT if any(spaces) else reach.NONE_KEPT


def _block(begin: list[int], reads: Sequence[Read], number: dict[Tensor, int]) -> list[int]:
    """The words of a step."""
    block = [*begin, len(reads)]
    for read in reads:
        block += [number[read.source], len(read.maps), *(word for one in read.maps for word in one.words)]
    return [len(block) + 1, *block]


def _copy_of(tensor: Tensor) -> Node:
    """A node that would copy an output of the plan."""
    return Node(COPY, tensor.name, [tensor], [Tensor(tensor.name, tensor.shape, tensor.dtype)])


def _grains(node: Node, storage: Storage) -> tuple[int, ...]:
    """Multiples at which the part of a tile that runs may begin and end, for each axis that tiles cut. Any would give the same bits."""
    shape, spec = node.output.shape, SPECS.get(node.op)
    if node.op == OPAQUE or spec is None or (len(node.outputs) > 1 and not spec.partial):
        return tuple(max(length, 1) for length in shape[:TILE_AXES])
    grains = [1] * len(shape)
    evaluate = tile_cost.of(node)
    if isinstance(evaluate, tile_cost.Winograd):
        grains[1], grains[-2], grains[-1] = PANEL, *evaluate.blocks.sides
    elif spec.kind is Kind.PRODUCT:
        grains[-1] = PANEL
    elif isinstance(evaluate, tile_cost.Convolution):
        grains[1] = PANEL
    elif not spec.partial:
        line = max(1, ALIGN // item_bytes(node.output))
        grains = [line if stride == 1 else 1 for stride in storage.refs[node.output].strides]
    for axis in () if spec.partial else spec.whole_axes(node):
        grains[axis] = max(shape[axis], 1)
    return tuple(grains[:TILE_AXES])


# ------------------------------------------------------------------------------------------------------------------- maps


class _Reader:
    """Finds the reads of each step, index by index."""

    def __init__(self, storage: Storage, region: RegionOf) -> None:
        self._storage = storage
        self._region = region
        self._given = {tensor for _, tensor in storage.inputs}

    def reads(self, node: Node) -> list[Read]:
        """All reads of a step. An output without elements reads nothing."""
        shape = node.output.shape
        if 0 in shape and node.op != OPAQUE:  # OPAQUE has a tile all the same, which gives its other outputs
            return []
        if node.op == OPAQUE or not shape:
            lo, hi = np.zeros((1, len(shape)), np.int64), np.array([shape], np.int64).reshape(1, -1)
            return [Read(source, ()) for _, source, _, _, _ in self._regions(node, lo, hi)]
        found: dict[Path, tuple[Tensor, list[Map]]] = {}
        gone: set[Path] = set()
        for axis, length in enumerate(shape):
            hi = np.tile(np.array(shape, np.int64), (length, 1))
            lo = np.zeros_like(hi)
            lo[:, axis] = np.arange(length)
            hi[:, axis] = lo[:, axis] + 1
            regions = {path: (source, rows, low, high) for path, source, rows, low, high in self._regions(node, lo, hi)}
            gone |= found.keys() - regions.keys() if axis else set()
            for path, (source, rows, first, last) in regions.items():
                maps = found.setdefault(path, (source, []))[1]
                maps += maps_of(axis, length, self._lengths(source), rows, first, last)
        return [Read(source, tuple(maps)) for path, (source, maps) in found.items() if path not in gone]

    def _lengths(self, source: Tensor) -> list[int]:
        """The lengths of a source's axes. -1 where changes along an axis of the first output of its node say nothing of it."""
        shape = source.shape if source.producer is None or source in self._given else self._storage.producer[source].output.shape
        if len(shape) != len(source.shape):
            return [-1] * len(source.shape)
        return [length if length == first else -1 for length, first in zip(source.shape, shape, strict=True)]

    def _regions(self, node: Node, lo: Ints, hi: Ints) -> Iterator[tuple[Path, Tensor, Ints, Ints, Ints]]:
        """(path, tensor, rows, lo, hi): what rows of boxes of a node's output read of each tensor that is computed or given."""
        todo: list[tuple[Path, Tensor, Ints, Ints, Ints]] = []
        rows = np.arange(len(lo))
        for i, x in enumerate(node.inputs):
            if x is None or x.is_const or (node.op == REFRESH and i == 0):  # marks say what it changes
                continue
            if node.op == OPAQUE:
                todo.append(((i,), x, rows, *whole(x.shape, len(lo))))
            elif node.op == COPY:
                todo.append(((i,), x, rows, lo, hi))
            else:
                todo.append(((i,), x, rows, *self._region(node, i, lo, hi)))
        while todo:
            path, t, rows, lo, hi = todo.pop()
            some = (hi > lo).all(axis=1)
            rows, lo, hi = rows[some], lo[some], hi[some]
            if not len(rows) or t.is_const:
                continue
            source = self._storage.producer.get(t)
            if source is None or (source.op not in VIEW_OPS and source.op != "concat"):
                yield path, t, rows, lo, hi
            elif source.op == "concat":
                axis, offset = source.attrs["axis"], 0
                for k, x in enumerate(source.inputs):
                    assert x is not None
                    part_lo, part_hi = lo.copy(), hi.copy()
                    part_lo[:, axis] = np.maximum(lo[:, axis] - offset, 0)
                    part_hi[:, axis] = np.minimum(hi[:, axis] - offset, x.shape[axis])
                    todo.append(((*path, k), x, rows, part_lo, part_hi))
                    offset += x.shape[axis]
            else:
                x = source.inputs[0]
                assert x is not None
                todo.append(((*path, 0), x, rows, *input_region(source, 0, lo, hi)))


__all__ = ["CHANGES", "COUNTS", "first_edges", "kept_at", "with_reach"]
