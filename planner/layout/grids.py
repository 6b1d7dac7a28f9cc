"""How a node's output is cut into tiles: cut points along its axes, and the order in which the tiles are numbered."""

from __future__ import annotations

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
    """The tiles of a node: cut points per axis (the first `TILE_AXES` axes of output 0), and axes from slowest to fastest varying tile
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
