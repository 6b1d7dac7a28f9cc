"""How a node's output is cut into tiles: cut points along its axes, and the order in which the tiles are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.layout import strides as st
from aspen_mp.shm.tables import LIMITS

TILE_AXES = LIMITS["tile_axes"]
Cuts = tuple[npt.NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The tiles of a node: cut points per axis (the first `TILE_AXES` axes of output 0) and the axes from slowest to fastest varying tile
    number. ``counts``: cells per axis, ``n``: tiles, ``steps``: how far the tile number moves per cell along each axis."""

    shape: tuple[int, ...]
    cuts: Cuts
    order: tuple[int, ...]
    counts: tuple[int, ...] = field(init=False)
    n: int = field(init=False)
    steps: tuple[int, ...] = field(init=False)
    _boxes: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        counts = tuple(len(c) - 1 for c in self.cuts)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "n", prod(counts))
        object.__setattr__(self, "steps", st.dense(counts, self.order))

    def boxes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """lo, hi [n, rank] of every tile, in the order of tile numbers; axes that cannot be cut are whole. Not to be written to."""
        if not self._boxes:
            self._boxes.append(self._made_boxes())
        return self._boxes[0]

    def _made_boxes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        n, rank = self.n, len(self.shape)
        lo = np.zeros((n, rank), np.int64)
        hi = np.empty((n, rank), np.int64)
        hi[:] = self.shape
        number = np.arange(n)
        for axis in reversed(self.order):
            if self.counts[axis] == 1:
                lo[:, axis], hi[:, axis] = self.cuts[axis]
                continue
            k = number % self.counts[axis]
            number //= self.counts[axis]
            lo[:, axis], hi[:, axis] = self.cuts[axis][k], self.cuts[axis][k + 1]
        lo.flags.writeable = hi.flags.writeable = False
        return lo, hi


def split(dim: int, parts: int, granule: int = 1) -> npt.NDArray[np.int64]:
    """Cut points of an axis in `parts` runs of nearly equal length, multiples of `granule` but for the last."""
    blocks = -(-dim // granule)
    parts = max(1, min(parts, blocks))
    cuts = np.arange(parts + 1, dtype=np.int64) * blocks // parts * granule
    cuts[-1] = dim
    return cuts


def tapered(grid: Grid, granules: Sequence[int], shares: Sequence[float], by: float) -> Grid:
    """About as many tiles as a grid has, with those that a worker takes last smaller than those that it takes first: all wait for the last
    one, and every tile costs something (guided self-scheduling, Polychronopoulos and Kuck 1987). `shares`: what each worker takes of the
    tiles, in the order of their numbers (shm/README.md, "Parts"), together 1. `granules`: where each axis may be cut. `by`: what is left of
    a share after each of its tiles falls with this power, 1: evenly.

    The slowest axis that has more cells than there are shares is cut so; the grid itself comes back where there is none."""
    for axis in grid.order:
        n = grid.counts[axis]
        if n > len(shares):
            cuts = list(grid.cuts)
            cuts[axis] = _taper(grid.shape[axis], n, granules[axis], shares, by)
            return Grid(grid.shape, tuple(cuts), grid.order)
        if n > 1:  # cells of this axis are for some of the workers each
            each = max(1, round(len(shares) / n))
            shares = (1 / each,) * each
    return grid


def _taper(dim: int, parts: int, granule: int, shares: Sequence[float], by: float) -> npt.NDArray[np.int64]:
    blocks = -(-dim // granule)
    at, before = [np.zeros(1)], 0.0
    for share in shares:
        each = max(1, round(parts * share))
        left = np.arange(each - 1, -1, -1) / each
        at.append(before + share * (1 - left**by))
        before += share
    cuts: npt.NDArray[np.int64] = np.unique(np.rint(np.concatenate(at) * blocks).astype(np.int64)) * granule
    cuts[-1] = dim
    return cuts
