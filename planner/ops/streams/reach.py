"""REACH: the parts of tiles that changed inputs reach, or that arriving inputs allow. It follows a program of the plan's own
(`planner/tiling/reach.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, whole
from aspen_mp.planner.ops.call import F64, I32, LIMIT, U32, Call, Misfit, need, shaped
from aspen_mp.planner.ops.params import Param
from aspen_mp.planner.ops.spec import Cost, Input, OpSpec, each
from aspen_mp.shm.tables import LIMITS, NUMBERS

NAME = "REACH"
LINE, BOXES, WORDS = NUMBERS["REACH_LINE"], NUMBERS["REACH_BOXES"], NUMBERS["REACH_WORDS"]
PART_WORDS = 2 * LIMITS["tile_axes"]
COUNTS = 4
"""Tiles that run, all tiles, operations of the parts that run, all operations."""
ALL_KEPT, NONE_KEPT, SOME_KEPT = range(3)
"""How many outputs of a step outlive a request. Where some do not, the step also runs what other steps read."""
READY = 2
"""For each output of the plan, as inputs arrive: an axis, and the elements along it that are computed. Axis -1: all are."""
MOST_MARKS = 64
"""Thresholds whose marks a REACH reads."""
MARK_AXES = 3
"""Axes of marks: images, and rows and columns of blocks."""
_STEP_NS = 4000.0
"""A step of the program, about."""
_LIST_BYTES = 8 * (1 + BOXES * 16)
_STEP_BYTES = 16


def _region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return whole(shape, len(lo))


class _Words:
    """A program as it is read, word by word. `Misfit` where a word is missing or out of range."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words
        self.at = 0

    def take(self, what: str, least: int, most: int) -> int:
        """The next word, from `least` to `most`."""
        need(self.at < len(self._words), "params", len(self._words), f"{what} at word {self.at}")
        word = self._words[self.at]
        self.at += 1
        if not least <= word <= most:
            raise Misfit(f"{what} at word {self.at - 1}", word, f"{least} … {most}")
        return word


def _dims(words: _Words) -> list[int]:
    return [words.take("a length", 0, LIMIT) for _ in range(words.take("a rank", 0, LIMITS["rank"]))]


def _grid(words: _Words, dims: Sequence[int]) -> int:
    """Checks a step's tile grid, and returns its number of tiles."""
    cells, distances = [], []
    for length in dims[: LIMITS["tile_axes"]]:
        cells.append(words.take("cells of an axis", 0, length or 1))
        words.take("a grain", 1, LIMIT)
        distances.append(words.take("a distance of tiles", 0, LIMIT))
        cuts = [words.take("a cut", 0, length) for _ in range(cells[-1] + 1)]
        if cuts[0] != 0 or cuts[-1] != (length if cells[-1] else 0) or any(a >= b for a, b in pairwise(cuts) if length):
            raise Misfit("cuts of an axis", cuts, f"rising from 0 to {length}")
    tiles = prod(cells)
    last = sum((n - 1) * d for n, d in zip(cells, distances, strict=True))
    if tiles and last >= tiles:
        raise Misfit("distances of tiles", distances, f"{tiles} tiles")
    return tiles


def _reads(words: _Words, dims: Sequence[int], sources: Sequence[Sequence[int]]) -> None:
    for _ in range(words.take("a number of reads", 0, LIMIT)):
        source = sources[words.take("a source", 0, len(sources) - 1)]
        for _ in range(words.take("a number of maps", 0, LIMIT)):
            out = words.take("an axis of the output", 0, len(dims) - 1)
            words.take("an axis of the source", 0, len(source) - 1)
            words.take("the first output", 0, dims[out])
            words.take("the last output", 0, dims[out])
            words.take("a factor", 0, LIMIT)
            for _ in range(2):
                words.take("an offset", -(LIMIT**2) // 4, LIMIT**2 // 4)
            words.take("a divisor", 1, LIMIT)


def _checks(call: Call) -> None:
    """A step reads inputs, marks and steps before it, and tiles of all steps have a row of the output each, after that of REACH. The last
    steps are the plan's outputs, without tiles."""
    words = _Words(call.params)
    n_inputs, n_marks = words.take("a number of inputs", 0, LIMIT), words.take("a number of marks", 0, MOST_MARKS)
    n_steps = words.take("a number of steps", 0, LIMIT)
    n_outputs = words.take("a number of outputs", 0, n_steps)
    sources, tiles = [_dims(words) for _ in range(n_inputs + n_marks)], 1
    for _ in range(n_steps):
        begin = words.at
        size = words.take("words of a step", 1, LIMIT)
        dims = _dims(words)
        words.take("work of an element", -(1 << 63), (1 << 63) - 1)
        words.take("which outputs are kept", ALL_KEPT, SOME_KEPT)
        tiles += _grid(words, dims)
        _reads(words, dims, sources)
        need(words.at - begin == size, f"words of the step at {begin}", size, words.at - begin)
        sources.append(dims)
    need(words.at == len(call.params), "params", len(call.params), words.at)
    need(call.out.dtype == U32 and call.out.dense, "dtype of the output", call.out.dtype, U32)
    shaped(call.out, (tiles, PART_WORDS), "shape of the output")
    need(call.more[0].dtype == F64 and call.more[0].dense, "dtype of output 1", call.more[0].dtype, F64)
    shaped(call.more[0], (1, COUNTS + READY * n_outputs), "shape of output 1")
    need(call.input(0).dtype == I32 and call.input(0).dense, "dtype of input 0", call.input(0).dtype, I32)
    shaped(call.input(0), (n_inputs + 1, WORDS), "shape of input 0")
    need(len(call.inputs) == 1 + n_marks, "inputs", len(call.inputs), 1 + n_marks)
    for i, dims in enumerate(sources[n_inputs : n_inputs + n_marks], 1):
        marks = call.input(i)
        need(marks.dtype == I32 and marks.dense and len(dims) == MARK_AXES, f"input {i}", marks, f"dense, i32, {MARK_AXES} axes")
        shaped(marks, dims, f"shape of input {i}")


def _scratch(node: Node) -> int:
    n_inputs, n_marks, n_steps = node.attrs["program"][:3]
    return _LIST_BYTES * int(n_inputs + n_marks + 2 * n_steps) + _STEP_BYTES * int(n_steps)


SPECS = (
    OpSpec(
        name=NAME,
        inputs=(
            Input(
                "changes",
                "[inputs + 1, words], i32: for each input the number of changed boxes, and their bounds; or what is missing of it. Then "
                "follow the number of the frame, and the share of its range by which a block of an activation may differ (f32)",
            ),
            *(Input(f"marks {k}", "[images, rows, columns], i32: see MOVED", optional=True) for k in range(MOST_MARKS)),
        ),
        params=(
            Param(
                "program", "inputs, marks, steps and outputs, tile grids and reads", NUMBERS["ANY_PARAMS"], lambda attrs: attrs["program"]
            ),
        ),
        outputs=2,
        region=_region,
        checks=_checks,
        whole_axes=lambda node: frozenset({0, 1}),
        cost=Cost(lambda node: float(node.attrs["program"][2]), each(_STEP_NS), scratch=_scratch),
    ),
)
