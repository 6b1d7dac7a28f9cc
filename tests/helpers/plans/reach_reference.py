"""REACH's results, computed from its program in another way, and the least that they must be, computed element by element.

`evaluate` reads a program and looks at each output of each map. `dependent` needs no program: it follows changed elements through the
region maps of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import VIEW_OPS, Node, Tensor
from aspen_mp.planner.layout.storage import Storage
from aspen_mp.planner.ops.table import input_region
from aspen_mp.shm.tables import LIMITS, NUMBERS

AXES, BOXES, RANK, WORDS = LIMITS["tile_axes"], NUMBERS["REACH_BOXES"], LIMITS["rank"], NUMBERS["REACH_WORDS"]
EMPTY = (2**32 - 1,) * AXES, (0,) * AXES
Box = tuple[tuple[int, ...], tuple[int, ...]]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MapWords:
    """Output o reads of the source's axis from floor((a o + begin) / c) on and before floor((a o + end) / c)."""

    out_axis: int
    in_axis: int
    first: int
    last: int
    a: int
    begin: int
    end: int
    c: int

    def source(self, lo: int, hi: int) -> tuple[int, int]:
        """The range of the source that outputs from `lo` on and before `hi` read."""
        o = np.arange(max(lo, self.first), min(hi, self.last), dtype=object)
        return (min((self.a * o + self.begin) // self.c), max((self.a * o + self.end) // self.c)) if len(o) else (0, 0)

    def outputs(self, lo: int, hi: int, length: int) -> Mask:
        """True for outputs along the axis that read something of [lo, hi)."""
        o = np.arange(length, dtype=object)
        reads = ((self.a * o + self.end) // self.c > lo) & ((self.a * o + self.begin) // self.c < hi)
        return reads.astype(bool) & (o >= self.first) & (o < self.last)


@dataclass(frozen=True)
class Step:
    """A step of a program. `kept`: 0 if its outputs outlive a request, 1 if none does, 2 if some do. `axes`: cuts, grain and distance in
    tile numbers, of each axis that tiles cut."""

    dims: tuple[int, ...]
    work: float
    kept: int
    axes: tuple[tuple[tuple[int, ...], int, int], ...]
    reads: tuple[tuple[int, tuple[MapWords, ...]], ...]

    @property
    def tiles(self) -> int:
        return int(np.prod([len(cuts) - 1 for cuts, _, _ in self.axes], dtype=np.int64))

    def numbered(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """(number, ranges along the axes) of each tile."""
        found = []
        for cell in product(*(range(len(cuts) - 1) for cuts, _, _ in self.axes)):
            number = sum(k * distance for k, (_, _, distance) in zip(cell, self.axes, strict=True))
            found.append((number, [(cuts[k], cuts[k + 1]) for k, (cuts, _, _) in zip(cell, self.axes, strict=True)]))
        return found


def parsed(program: Sequence[int]) -> tuple[list[tuple[int, ...]], list[Step]]:
    """The shapes of inputs, and the steps, of a program."""
    words = iter(program)

    def take(n: int) -> tuple[int, ...]:
        return tuple(next(words) for _ in range(n))

    n_inputs, n_marks, n_steps, _ = take(4)
    inputs = [take(*take(1)) for _ in range(n_inputs + n_marks)]
    steps = []
    for _ in range(n_steps):
        take(1)
        dims = take(*take(1))
        work = float(np.array(take(1), np.int64).view(np.float64)[0])
        (kept,), axes, reads = take(1), [], []
        for _ in dims[:AXES]:
            cells, grain, distance = take(3)
            axes.append((take(cells + 1), grain, distance))
        for _ in range(*take(1)):
            source, n_maps = take(2)
            reads.append((source, tuple(MapWords(*take(8)) for _ in range(n_maps))))
        steps.append(Step(dims, work, kept, tuple(axes), tuple(reads)))
    assert next(words, None) is None
    return inputs, steps


# ------------------------------------------------------------------------------------------------------------------- boxes


def _volume(box: Box) -> float:
    return float(np.prod([b - a for a, b in zip(*box, strict=True)], dtype=np.float64))


def _hull(a: Box, b: Box) -> Box:
    return tuple(map(min, a[0], b[0])), tuple(map(max, a[1], b[1]))


def _added(found: list[Box], box: Box) -> None:
    """Boxes join where that costs nothing, and where there are too many."""
    while found:
        costs = [_volume(_hull(one, box)) - _volume(one) - _volume(box) for one in found]
        k = int(np.argmin(costs))
        if costs[k] > 0 and len(found) < BOXES:
            break
        box = _hull(found[k], box)
        found[k] = found[-1]
        found.pop()
    found.append(box)


def given(words: Sequence[int], shape: Sequence[int]) -> list[Box]:
    """The boxes of an input, whatever a client has written there."""
    found: list[Box] = []
    for k in range(min(max(words[0], 0), BOXES)):
        lo = tuple(max(int(words[1 + 2 * k * RANK + axis]), 0) for axis in range(len(shape)))
        hi = tuple(min(int(words[1 + (2 * k + 1) * RANK + axis]), length) for axis, length in enumerate(shape))
        if all(a < b for a, b in zip(lo, hi, strict=True)):
            _added(found, (lo, hi))
    return found


def _reached(step: Step, box: Box, maps: Sequence[MapWords]) -> Box | None:
    lo, hi = [0] * len(step.dims), list(step.dims)
    for one in maps:
        outputs = np.flatnonzero(one.outputs(box[0][one.in_axis], box[1][one.in_axis], step.dims[one.out_axis]))
        outputs = outputs[(outputs >= lo[one.out_axis]) & (outputs < hi[one.out_axis])]
        if not len(outputs):
            return None
        lo[one.out_axis], hi[one.out_axis] = int(outputs[0]), int(outputs[-1]) + 1
    return tuple(lo), tuple(hi)


def marked(marks: npt.NDArray[np.int32], frame: int) -> list[Box]:
    """Boxes of runs of blocks that moved in a frame."""
    found: list[Box] = []
    for image, row in np.ndindex(marks.shape[:2]):
        ends = np.flatnonzero(np.diff(np.pad(marks[image, row] == frame, 1))).tolist()
        for begin, end in zip(ends[::2], ends[1::2], strict=True):
            _added(found, ((image, row, begin), (image + 1, row + 1, end)))
    return found


def evaluate(
    program: Sequence[int], changes: npt.NDArray[np.int32], marks: Sequence[npt.NDArray[np.int32]] = ()
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]:
    """Parts of all tiles, and counts, as REACH writes them."""
    inputs, steps = parsed(program)
    lists = [given(row.tolist(), shape) for row, shape in zip(changes[:-1], inputs, strict=False)]
    lists += [marked(one, int(changes[-1, 0])) for one in marks]
    parts = np.array([sum(EMPTY, ())] * (1 + sum(step.tiles for step in steps)), np.uint32)
    for step in steps:
        found: list[Box] = []
        for source, maps in step.reads:
            for box in lists[source]:
                out = _reached(step, box, maps)
                if out is not None:
                    _added(found, out)
        lists.append(found)
    asked: list[list[Box]] = [[] for _ in steps]
    counts, base = np.zeros(4), len(parts)
    for k, step in reversed(list(enumerate(steps))):
        base -= step.tiles
        found = [*(lists[len(inputs) + k] if step.kept != 1 else []), *asked[k]]
        for number, ranges in step.numbered():
            part = _part(step, ranges, found)
            parts[base + number] = part[0] + part[1]
            if part != EMPTY:
                _ask(step, part, steps, len(inputs), asked)
            counts += _counted(step, part)
        counts[3] += step.work * float(np.prod(step.dims, dtype=np.float64)) if step.tiles else 0.0
    return parts, counts


def _counted(step: Step, part: Box) -> list[float]:
    share = 1.0
    for k in range(len(step.dims)):
        share *= int(part[1][k]) - int(part[0][k]) if k < AXES else step.dims[k]
    return [1, 1, step.work * share, 0.0] if part != EMPTY else [0, 1, 0, 0]


def _ask(step: Step, part: Box, steps: Sequence[Step], n_inputs: int, asked: Sequence[list[Box]]) -> None:
    """A part of a tile asks steps that are not kept for what it reads of them."""
    for source, maps in step.reads:
        if source < n_inputs or not steps[source - n_inputs].kept or 0 in steps[source - n_inputs].dims:
            continue
        lo, hi = [0] * len(steps[source - n_inputs].dims), list(steps[source - n_inputs].dims)
        for one in maps:
            ends = (part[0][one.out_axis], part[1][one.out_axis]) if one.out_axis < AXES else (0, step.dims[one.out_axis])
            begin, end = one.source(*ends)
            lo[one.in_axis], hi[one.in_axis] = max(lo[one.in_axis], begin), min(hi[one.in_axis], end)
        if all(a < b for a, b in zip(lo, hi, strict=True)):
            _added(asked[source - n_inputs], (tuple(lo), tuple(hi)))


def _part(step: Step, ranges: Sequence[tuple[int, int]], found: Sequence[Box]) -> Box:
    """The hull of what reaches a tile, in grains."""
    within = []
    for box in found:
        lo = [max(a, begin) for a, (begin, _) in zip(box[0], ranges, strict=False)]
        hi = [min(b, end) for b, (_, end) in zip(box[1], ranges, strict=False)]
        if all(a < b for a, b in zip(lo, hi, strict=True)):
            within.append((lo, hi))
    if not within:
        return EMPTY
    lo, hi = [0] * AXES, [1] * AXES
    for k, ((begin, end), (_, grain, _)) in enumerate(zip(ranges, step.axes, strict=True)):
        lo[k] = max(begin, min(low[k] for low, _ in within) // grain * grain)
        hi[k] = min(end, -(-max(high[k] for _, high in within) // grain) * grain)
    return tuple(lo), tuple(hi)


# ---------------------------------------------------------------------------------------------------------------- elements


def _sums(mask: Mask) -> Ints:
    """Sums of a mask over all boxes from the origin."""
    found = np.pad(mask.astype(np.int64), [(1, 0)] * mask.ndim)
    for axis in range(mask.ndim):
        found = found.cumsum(axis)
    return found


def _any_within(mask: Mask, lo: Ints, hi: Ints) -> Mask:
    """Whether boxes have an element of a mask."""
    if not mask.ndim:
        return np.full(len(lo), bool(mask))
    sums, found = _sums(mask), np.zeros(len(lo), np.int64)
    some = (hi > lo).all(axis=1)
    for corner in product((0, 1), repeat=mask.ndim):
        at = np.where(corner, hi, np.maximum(lo, 0))
        sign = (-1) ** (mask.ndim - sum(corner))
        found += sign * sums[tuple(np.where(some[:, None], at, 0).T)]
    return some & (found > 0)


def _marked(shape: Sequence[int], lo: Ints, hi: Ints) -> Mask:
    """The elements of boxes that are not empty."""
    if not shape:
        return np.array(len(lo) > 0)
    steps = np.zeros([d + 1 for d in shape], np.int64)
    for corner in product((0, 1), repeat=len(shape)):
        np.add.at(steps, tuple(np.where(corner, hi, lo).T), (-1) ** sum(corner))
    for axis in range(len(shape)):
        steps = steps.cumsum(axis)
    return steps[tuple(slice(d) for d in shape)] > 0


def read_by(storage: Storage, node: Node, run: Mask) -> dict[Tensor, Mask]:
    """True for elements of computed tensors on which some of a node's output depend, through views and concats."""
    found: dict[Tensor, Mask] = {}
    lo = np.argwhere(run) if run.ndim else np.zeros((int(run), 0), np.int64)
    hi = lo + 1
    todo = [(x, *input_region(node, i, lo, hi)) for i, x in enumerate(node.inputs) if x is not None and not x.is_const]
    while todo:
        t, lo, hi = todo.pop()
        some = (hi > lo).all(axis=1)
        lo, hi, source = lo[some], hi[some], storage.producer.get(t)
        if source is None or not len(lo) or t.is_const:
            continue
        if source.op == "concat":
            axis, offset = source.attrs["axis"], 0
            for x in source.inputs:
                shift = np.array([offset if k == axis else 0 for k in range(len(t.shape))])
                todo.append((x, np.maximum(lo - shift, 0), np.minimum(hi - shift, np.array(x.shape))))
                offset += x.shape[axis]
        elif source.op in VIEW_OPS:
            todo.append((source.inputs[0], *input_region(source, 0, lo, hi)))
        else:
            found[t] = found.get(t, False) | _marked(t.shape, lo, hi)
    return found


def dependent(storage: Storage, masks: dict[Tensor, Mask], region: Callable[..., Any]) -> dict[Tensor, Mask]:
    """True for elements of all tensors that depend on elements of inputs in `masks`, by the region of each element."""
    found = dict(masks)
    for node in storage.nodes:
        found.update(_of_node(node, found, region))
    return found


def _of_node(node: Node, found: dict[Tensor, Mask], region: Callable[..., Any]) -> dict[Tensor, Mask]:
    shape = node.output.shape
    changed = np.zeros(node.output.size, bool)
    at = np.stack(np.unravel_index(np.arange(node.output.size), shape), axis=1) if shape else np.zeros((1, 0), np.int64)
    for i, x in enumerate(node.inputs):
        if x is None or x.is_const or x not in found or not node.output.size:
            continue
        if node.op == "OPAQUE":
            changed |= found[x].any()
        elif node.op == "concat":
            axis = node.attrs["axis"]
            begin = sum(t.shape[axis] for t in node.inputs[:i])
            mask = np.zeros(shape, bool)
            mask[tuple(slice(begin, begin + x.shape[axis]) if k == axis else slice(None) for k in range(len(shape)))] = found[x]
            changed |= mask.reshape(-1)
        else:
            changed |= _any_within(found[x], *region(node, i, at, at + 1))
    if node.op == "OPAQUE":
        some = any(found[x].any() for x in node.inputs if x is not None and x in found)
        return {t: np.full(t.shape, some) for t in node.outputs}
    return {t: changed.reshape(shape) if t.shape == shape else np.full(t.shape, changed.any()) for t in node.outputs}
