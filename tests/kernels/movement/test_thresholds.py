"""MOVED and REFRESH beside the same in numpy, for any layout, block, part of a tile and instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aspen_mp.shm.tables import NUMBERS
from aspen_mp.workers import _kernels

Array = np.ndarray[Any, np.dtype[Any]]
FRAME = 7
LAYOUTS = [(0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (2, 0, 1, 3)]


def laid_out(x: Array, order: tuple[int, ...]) -> Array:
    """The same values, in another order of axes in memory."""
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def line(frame: int, share: float) -> Array:
    words = np.zeros((2, NUMBERS["REACH_WORDS"]), np.int32)
    words[-1, :2] = frame, np.float32(share).view(np.int32)
    return words


def by_blocks(mask: Array, side: int) -> Array:
    """Whether any element of a block [images, rows, columns] is marked in any channel."""
    images, _, height, width = mask.shape
    down, across = -(-height // side), -(-width // side)
    padded = np.zeros((images, down * side, across * side), bool)
    padded[:, :height, :width] = mask.any(axis=1)
    return padded.reshape(images, down, side, across, side).any(axis=(2, 4))


class Case:
    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        shape = [int(n) for n in (rng.integers(1, 3), rng.integers(1, 20), rng.integers(1, 30), rng.integers(1, 40))]
        self.side = int(rng.integers(1, 9))
        before = rng.standard_normal(shape).astype(np.float32)
        after = before + (rng.random(shape) < 0.02) * rng.standard_normal(shape).astype(np.float32)
        if rng.random() < 0.3:
            after[tuple(int(rng.integers(0, n)) for n in shape)] = rng.choice([np.nan, np.inf, -np.inf])
            before[tuple(int(rng.integers(0, n)) for n in shape)] = np.inf
        order = [LAYOUTS[k] for k in rng.integers(0, len(LAYOUTS), 2)]
        self.x, self.seen = laid_out(after.astype(np.float32), order[0]), laid_out(before, order[1])
        self.down, self.across = -(-shape[2] // self.side), -(-shape[3] // self.side)
        self.marks = np.full((shape[0], self.down, self.across), FRAME - 3, np.int32)
        self.extremes = [np.full((shape[0], self.down, 1), value, np.float32) for value in (-1.5, 2.0)]
        self.share = float(rng.choice([0.0, 0.05, 0.3]))

    def box(self, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
        lo = [int(self.rng.integers(0, n)) for n in shape]
        return lo, [int(self.rng.integers(a, n)) + 1 for a, n in zip(lo, shape, strict=True)]

    def moved(self, lo: list[int], hi: list[int], isa: str, *, part: bool) -> None:
        args = [self.marks, *self.extremes, self.x, self.seen, line(FRAME, self.share)]
        assert _kernels.call("MOVED", args, [self.side], lo, hi, isa=isa, part=part) == 0


@pytest.mark.parametrize("isa", _kernels.isas())
@pytest.mark.parametrize("seed", range(60))
def test_parts_find_what_moved(seed: int, isa: str) -> None:
    case = Case(seed)
    lo, hi = case.box(case.marks.shape)
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(case.x - case.seen) <= np.float32(case.share) * np.float32(3.5)) & ~(case.x == case.seen)
    want = case.marks.copy()
    place = tuple(map(slice, lo, hi))
    want[place] = np.where(by_blocks(far, case.side)[place], FRAME, FRAME - 1)
    case.moved(lo, hi, isa, part=True)
    np.testing.assert_array_equal(case.marks, want)
    assert (case.extremes[0] == -1.5).all()
    assert (case.extremes[1] == 2.0).all()


@pytest.mark.parametrize("isa", _kernels.isas())
@pytest.mark.parametrize("seed", range(30))
def test_whole_tiles_mark_all_and_note_extremes(seed: int, isa: str) -> None:
    case = Case(seed)
    lo, hi = case.box(case.marks.shape)
    lo[2], hi[2] = 0, case.across
    want = [case.marks.copy(), *(one.copy() for one in case.extremes)]
    want[0][tuple(map(slice, lo, hi))] = FRAME
    for n in range(lo[0], hi[0]):
        for i in range(lo[1], hi[1]):
            rows = case.x[n, :, i * case.side : (i + 1) * case.side]
            finite = rows[np.isfinite(rows)]
            want[1][n, i], want[2][n, i] = (finite.min(), finite.max()) if finite.size else (0, 0)
    case.moved(lo, hi, isa, part=False)
    for found, right in zip([case.marks, *case.extremes], want, strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("isa", _kernels.isas())
@pytest.mark.parametrize("part", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_blocks_that_moved_are_copied(seed: int, part: bool, isa: str) -> None:
    case = Case(seed)
    case.marks[case.rng.random(case.marks.shape) < 0.5] = FRAME
    lo, hi = case.box(case.x.shape)
    copied = np.zeros(case.x.shape, bool)
    copied[tuple(map(slice, lo, hi))] = True
    blocks = np.repeat(np.repeat(case.marks == FRAME, case.side, axis=1), case.side, axis=2)[:, None, : copied.shape[2], : copied.shape[3]]
    want = np.where(copied & (blocks | (not part)), case.x, case.seen)
    args = [case.seen, case.x, case.marks, line(FRAME, 0.0)]
    assert _kernels.call("REFRESH", args, [case.side], lo, hi, isa=isa, part=part) == 0
    np.testing.assert_array_equal(case.seen, want)


@pytest.mark.parametrize("extremes", [(0.0, np.inf), (2.0, -2.0)])
def test_without_a_range_every_difference_counts(extremes: tuple[float, float]) -> None:
    case = Case(3)
    case.share = 0.3
    for one, value in zip(case.extremes, extremes, strict=True):
        one[:] = value
    case.moved([0, 0, 0], list(case.marks.shape), _kernels.isas()[0], part=True)
    np.testing.assert_array_equal(case.marks == FRAME, by_blocks(~(case.x == case.seen), case.side))
