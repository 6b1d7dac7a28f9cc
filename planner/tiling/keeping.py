"""The activations that a stream keeps from one frame to the next, where it may not keep all of them.

The others lie in the arena, whose memory is used again within a request. A frame computes them anew, as far as something that runs
reads them. That is more than what changed: by the halo of each reader, or by all of it, where a reader mixes all positions. `forgotten`
leaves the tensors that give most bytes for least additional arithmetic out, until the others fit.

The additional arithmetic is estimated for one change: a rectangle in the middle of each input, with `SAMPLE` of its area.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import prod

from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.planner.layout.storage import ARENA, Buffer, Storage, aligned
from aspen_mp.planner.tiling.maps import Map, Read

SAMPLE = 0.05
IMAGE_AXES = 4
"""Fewest axes of an input of which the first counts images."""

Box = tuple[tuple[int, int], ...] | None
"""Bounds along each axis. None: nothing."""


def forgotten(storage: Storage, reads: Sequence[Sequence[Read]], most: int, needed: Collection[Buffer] = ()) -> set[Buffer]:
    """Buffers of activations that a stream need not keep, so that the others have `most` bytes, or as many as possible less. `reads`: of
    each step. `needed`: buffers that it keeps in any case."""
    costs = _Costs(storage, reads)
    kept = sum(aligned(buffer.nbytes) for buffer in costs.steps_of)
    found: set[Buffer] = set()
    heap = [
        (costs.of(buffer) / buffer.nbytes, k, buffer) for k, buffer in enumerate(costs.steps_of) if buffer.nbytes and buffer not in needed
    ]
    heapify(heap)
    while kept > most and heap:
        _, k, buffer = heappop(heap)
        score = costs.of(buffer) / buffer.nbytes  # others that are forgotten may have made it dearer
        if heap and score > heap[0][0]:
            heappush(heap, (score, k, buffer))
            continue
        costs.forget(buffer)
        found.add(buffer)
        kept -= aligned(buffer.nbytes)
    return found


class _Costs:
    """The parts of all steps that run after a sample change, as more and more tensors are forgotten."""

    def __init__(self, storage: Storage, reads: Sequence[Sequence[Read]]) -> None:
        self._shapes = [node.output.shape for node in storage.steps]
        self._flops = [op_cost.flops(node) for node in storage.steps]
        self._reads = reads
        self._number = {tensor: k for k, node in enumerate(storage.steps) for tensor in node.outputs}
        self._readers: list[list[tuple[int, Read]]] = [[] for _ in storage.steps]
        for k, own in enumerate(reads):
            for read in own:
                if read.source in self._number:
                    self._readers[self._number[read.source]].append((k, read))
        self._forgets = [False] * len(storage.steps)
        self.steps_of: dict[Buffer, list[int]] = {}
        """Buffers that might be forgotten, with the steps that write them."""
        for k, node in enumerate(storage.steps):
            for tensor in node.outputs:
                buffer = storage.refs[tensor].buffer
                if buffer.space == ARENA:
                    self.steps_of.setdefault(buffer, []).append(k)
        self._run = self._reached({tensor: _middle(tensor.shape) for _, tensor in storage.inputs})

    def of(self, buffer: Buffer) -> float:
        """Operations that a frame has more if a buffer is forgotten."""
        return self._more(self._without(buffer))

    def forget(self, buffer: Buffer) -> None:
        """Count a buffer as forgotten from now on."""
        for k, box in self._without(buffer).items():
            self._run[k] = box
        for k in self.steps_of[buffer]:
            self._forgets[k] = True

    def _reached(self, changed: Mapping[Tensor, Box]) -> list[Box]:
        found: list[Box] = []
        for k, own in enumerate(self._reads):
            box: Box = None
            for read in own:
                source = found[self._number[read.source]] if read.source in self._number else changed[read.source]
                box = _hull(box, _reach(read.maps, source, self._shapes[k]))
            found.append(box)
        return found

    def _without(self, buffer: Buffer) -> dict[int, Box]:
        """The parts of steps that change if a buffer is forgotten, too."""
        found: dict[int, Box] = {}
        own = set(self.steps_of[buffer])
        todo = sorted(own)
        while todo:
            k = todo.pop()
            box = self._run[k]
            for j, read in self._readers[k]:
                box = _hull(box, _needed(read.maps, found.get(j, self._run[j]), self._shapes[k]))
            if box == found.get(k, self._run[k]) and k not in own:
                continue
            own.discard(k)
            found[k] = box
            for read in self._reads[k]:
                j = self._number.get(read.source, -1)
                if j >= 0 and (self._forgets[j] or j in self.steps_of[buffer]) and j not in todo:
                    todo.append(j)
            todo.sort()  # readers before what they read
        return found

    def _more(self, boxes: Mapping[int, Box]) -> float:
        more = 0.0
        for k, box in boxes.items():
            all_of_it = max(prod(self._shapes[k]), 1)
            more += self._flops[k] * (_volume(box) - _volume(self._run[k])) / all_of_it
        return more


def _middle(shape: Sequence[int]) -> Box:
    """A rectangle in the middle of the two longest axes, those of an image."""
    first = 1 if len(shape) >= IMAGE_AXES else 0
    axes = sorted(range(first, len(shape)), key=lambda axis: -shape[axis])[:2]
    bounds = []
    for axis, length in enumerate(shape):
        side = max(1, round(length * math.sqrt(SAMPLE))) if axis in axes else length
        bounds.append(((length - side) // 2, (length - side) // 2 + side))
    return None if 0 in shape else tuple(bounds)


def _volume(box: Box) -> float:
    return 0.0 if box is None else float(prod(b - a for a, b in box))


def _hull(a: Box, b: Box) -> Box:
    if a is None:
        return b
    return a if b is None else tuple((min(x, u), max(y, v)) for (x, y), (u, v) in zip(a, b, strict=True))


def _reach(maps: Sequence[Map], source: Box, shape: Sequence[int]) -> Box:
    """The outputs that read something of a box of a source."""
    if source is None or 0 in shape:
        return None
    bounds = [(0, length) for length in shape]
    for m in maps:
        found = m.reached(*source[m.in_axis])
        bounds[m.out_axis] = max(bounds[m.out_axis][0], found[0]), min(bounds[m.out_axis][1], found[1])
        if bounds[m.out_axis][0] >= bounds[m.out_axis][1]:
            return None
    return tuple(bounds)


def _needed(maps: Sequence[Map], run: Box, shape: Sequence[int]) -> Box:
    """The part of a source that a box of the outputs reads."""
    if run is None or 0 in shape:
        return None
    bounds = [(0, length) for length in shape]
    for m in maps:
        found = m.needed(*run[m.out_axis])
        if found is None:
            return None
        bounds[m.in_axis] = max(bounds[m.in_axis][0], found[0]), min(bounds[m.in_axis][1], found[1])
        if bounds[m.in_axis][0] >= bounds[m.in_axis][1]:
            return None
    return tuple(bounds)


__all__ = ["forgotten"]
