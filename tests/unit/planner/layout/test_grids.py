"""Cuts along axes: everything once, at multiples of granules, and smaller tiles last where that is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.planner.layout.grids import Grid, split, tapered


def even(shape: tuple[int, ...], parts: tuple[int, ...], granules: tuple[int, ...], order: tuple[int, ...]) -> Grid:
    return Grid(shape, tuple(split(*axis) for axis in zip(shape, parts, granules, strict=True)), order)


@given(
    st.tuples(*[st.integers(1, 500)] * 3),
    st.tuples(*[st.integers(1, 30)] * 3),
    st.tuples(*[st.integers(1, 64)] * 3),
    st.permutations(range(3)),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6),
    st.floats(1.0, 4.0),
)
def test_everything_once(
    shape: tuple[int, ...], parts: tuple[int, ...], granules: tuple[int, ...], order: list[int], speeds: list[float], by: float
) -> None:
    grid = even(shape, parts, granules, tuple(order))
    found = tapered(grid, granules, [speed / sum(speeds) for speed in speeds], by)
    assert (found.shape, found.order) == (grid.shape, grid.order)
    assert sum(not np.array_equal(a, b) for a, b in zip(found.cuts, grid.cuts, strict=True)) <= 1
    for dim, granule, cuts in zip(shape, granules, found.cuts, strict=True):
        assert (cuts[0], cuts[-1]) == (0, dim)
        assert (np.diff(cuts) > 0).all()
        assert not (cuts[:-1] % granule).any()


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (2 / 3, 1 / 3)])
def test_smaller_towards_the_end_of_each_share(shares: tuple[float, ...]) -> None:
    grid = tapered(even((1, 12_000), (1, 12), (1, 1), (0, 1)), (1, 1), shares, 2.0)
    sizes, at = np.diff(grid.cuts[1]), 0
    assert grid.n == 12
    for share in shares:
        own = sizes[at : at + round(12 * share)]
        at += len(own)
        assert own.sum() == pytest.approx(12_000 * share, abs=1)
        assert (np.diff(own) < 0).all()
        assert own[-1] < 0.3 * own.mean()


def test_which_axis() -> None:
    """The slowest one that has more cells than workers; where one has a cell for each of them, each gets smaller tiles along the next."""
    shape, granules, halves = (1, 64, 560, 56), (1, 32, 1, 56), (0.5, 0.5)
    channels_first = even(shape, (1, 2, 14, 1), granules, (1, 0, 2, 3))
    found = tapered(channels_first, granules, halves, 2.0)
    assert found.counts == (1, 2, 14, 1)
    assert (np.diff(found.cuts[2], 2) <= 0).all(), "one share of all rows"
    rows_first = even(shape, (1, 2, 14, 1), granules, (0, 2, 3, 1))
    first, second = np.split(np.diff(tapered(rows_first, granules, halves, 2.0).cuts[2]), 2)
    assert first.sum() == second.sum() == 280
    whole = even(shape, (1, 2, 1, 1), granules, (1, 0, 2, 3))
    assert tapered(whole, granules, halves, 2.0) is whole, "a tile for each"
