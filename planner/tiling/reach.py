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
from aspen_mp.planner.ops.table import SPECS, input_region, value_region
from aspen_mp.planner.tiling.keeping import forgotten
from aspen_mp.planner.tiling.maps import Map, Read, maps_of

Ints = npt.NDArray[np.int64]
RegionOf = Callable[[Node, int, Boxes, Boxes], Region]
Path = tuple[int, ...]
"""The numbers of inputs by which a tensor is reached from a node, through views and concats."""
CHANGES, COUNTS = "", ""
"""Names of the input and the output of a plan that are not the model's. No value of a model has this name."""
COPY = "copy"
"""The op of nodes that stand for outputs of the plan. Nothing executes them."""


def with_reach(storage: Storage, grids: Sequence[Grid], keeping: Keeping, most: int = 0) -> tuple[Storage, list[Grid]]:
    """The same storage with REACH in front, and all activations in the request's region, so that they outlive the request. With "values",
    rounding errors count as no change. `most`: bytes that the region should have, 0 for any number. Activations beyond them stay in the
    arena, and requests compute them anew where they are read.

    Behind inputs and outputs the region gets a line, the changed boxes of all inputs, REACH's counts, and the activations. The first word
    of the line says whether the activations are trusted (`plan_header.request_kept`)."""
    reader = _Reader(storage, value_region if keeping == "values" else input_region)
    reads = [reader.reads(node) for node in storage.steps]
    at = storage.request_bytes + reach.LINE
    changes = Tensor(CHANGES, (len(storage.inputs), reach.WORDS), np.dtype(np.int32))
    counts = Tensor(COUNTS, (1, reach.COUNTS + reach.READY * len(storage.outputs)), np.dtype(np.float64))
    parts = Tensor("parts", (1 + sum(grid.n for grid in grids), reach.PART_WORDS), np.dtype(np.uint32))
    refs = dict(storage.refs)
    for tensor in (changes, counts):
        refs[tensor] = Ref(Buffer(REQUEST, tensor.nbytes, "reach", offset=at), 0, dense(tensor.shape))
        at += aligned(tensor.nbytes)
    left = forgotten(storage, reads, most - at) if most else set()
    for buffer in buffers(storage):
        if buffer.space == ARENA and buffer not in left:
            buffer.space, buffer.offset = REQUEST, at
            at += aligned(buffer.nbytes)
    refs[parts] = Ref(Buffer(ARENA, parts.nbytes, "reach"), 0, dense(parts.shape))
    program = _program(storage, grids, reads, [reader.reads(_copy_of(tensor)) for _, tensor in storage.outputs])
    node = Node(reach.NAME, "what changed", [changes], [parts, counts], {"program": program}, "Reach")
    found = replace(
        storage,
        nodes=[node, *storage.nodes],
        steps=[node, *storage.steps],
        refs=refs,
        producer={**storage.producer, parts: node, counts: node},
        inputs=[*storage.inputs, (CHANGES, changes)],
        outputs=[*storage.outputs, (COUNTS, counts)],
        request_bytes=at,
        kinds=[],
    )
    one = Grid(parts.shape, tuple(np.array([0, length], np.int64) for length in parts.shape), (0, 1))
    return found, [one, *grids]


def kept_at(storage: Storage) -> int:
    """Where in a region the word is that says whether activations are trusted."""
    return storage.refs[storage.inputs[-1][1]].buffer.offset - reach.LINE


def first_edges(parents: Ints, children: Ints, tiles: int) -> tuple[Ints, Ints]:
    """The edges with those from tile 0, REACH, to all tiles of steps that wait for nothing else."""
    waits = np.zeros(tiles, bool)
    waits[children[children < tiles]] = True
    waits[0] = True
    free = np.flatnonzero(~waits)
    return np.concatenate([parents, np.zeros(len(free), np.int64)]), np.concatenate([children, free])


# ---------------------------------------------------------------------------------------------------------------- program


def _program(
    storage: Storage, grids: Sequence[Grid], reads: Sequence[Sequence[Read]], by_outputs: Sequence[Sequence[Read]]
) -> tuple[int, ...]:
    """`reads`: of each step. `by_outputs`: what each output of the plan is made of."""
    number = {tensor: k for k, (_, tensor) in enumerate(storage.inputs)}
    words: list[int] = [len(storage.inputs), len(storage.steps) + len(storage.outputs), len(storage.outputs)]
    for _, tensor in storage.inputs:
        words += [len(tensor.shape), *tensor.shape]
    alike: dict[int, tuple[int, ...]] = {}
    for k, (kind, node, grid) in enumerate(zip(kinds(storage), storage.steps, grids, strict=True)):
        if kind not in alike:
            alike[kind] = _grains(node, storage)
        shape, cuts = node.output.shape, [cut.tolist() for cut in grid.cuts]
        if node.op == OPAQUE and 0 in shape:  # its tile gives other outputs, so there must be a part to run
            shape, cuts = tuple(max(length, 1) for length in shape), [[0, max(cut[-1], 1)] for cut in cuts]
        block = [len(shape), *shape, bits(op_cost.flops(node) / max(node.output.size, 1)), _kept(node, storage)]
        for axis, cut in enumerate(cuts):
            block += [len(cut) - 1, alike[kind][axis], grid.steps[axis], *cut]
        words += _block(block, reads[k], number)
        number.update(dict.fromkeys(node.outputs, len(storage.inputs) + k))
    for (_, tensor), read in zip(storage.outputs, by_outputs, strict=True):
        shape = tensor.shape or (1,)
        block = [len(shape), *shape, 0, reach.ALL_KEPT]
        for _ in shape[:TILE_AXES]:
            block += [0, 1, 0, 0]  # no tiles
        words += _block(block, read, number)
    return tuple(words)


def _block(begin: list[int], reads: Sequence[Read], number: dict[Tensor, int]) -> list[int]:
    """The words of a step."""
    block = [*begin, len(reads)]
    for read in reads:
        block += [number[read.source], len(read.maps), *(word for one in read.maps for word in one.words)]
    return [len(block) + 1, *block]


def _copy_of(tensor: Tensor) -> Node:
    """A node that would copy an output of the plan."""
    return Node(COPY, tensor.name, [tensor], [Tensor(tensor.name, tensor.shape, tensor.dtype)])


def _kept(node: Node, storage: Storage) -> int:
    """How many outputs of a step outlive a request: all, none or some (`reach.ALL_KEPT` and others)."""
    spaces = [storage.refs[tensor].buffer.space != ARENA for tensor in node.outputs]
    return reach.ALL_KEPT if all(spaces) else reach.SOME_KEPT if any(spaces) else reach.NONE_KEPT


def _grains(node: Node, storage: Storage) -> tuple[int, ...]:
    """Multiples at which the part of a tile that runs may begin and end, for each axis that tiles cut. Any would give the same bits."""
    shape, spec = node.output.shape, SPECS.get(node.op)
    if node.op == OPAQUE or spec is None or len(node.outputs) > 1:
        return tuple(max(length, 1) for length in shape[:TILE_AXES])
    grains = [1] * len(shape)
    evaluate = tile_cost.of(node)
    if isinstance(evaluate, tile_cost.Winograd):
        grains[1], grains[-2], grains[-1] = PANEL, *evaluate.blocks.sides
    elif spec.kind is Kind.PRODUCT:
        grains[-1] = PANEL
    elif isinstance(evaluate, tile_cost.Convolution):
        grains[1] = PANEL
    else:
        line = max(1, ALIGN // item_bytes(node.output))
        grains = [line if stride == 1 else 1 for stride in storage.refs[node.output].strides]
    for axis in spec.whole_axes(node):
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
            if x is None or x.is_const:
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
