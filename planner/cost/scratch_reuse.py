"""Reuse of a worker's scratch: tiles of WINO that differ in their channels alone need the same transformed input. A worker that has just
executed one has it for the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]
_TYPES: dict[str, Any] = {"group": np.uint32, "first": np.float64, "again": np.float64}


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Arrays of n entries, one a tile; of none where it is not known. `group`: those of a number, at most n, need the same, 0: none.
    `first`, `again`: the time of a tile that has to make it, and of one that finds it, by its time on average.

    ValueError where the arrays do not fit each other.
    """

    group: Ints
    first: Floats
    again: Floats

    def __post_init__(self) -> None:
        for name, dtype in _TYPES.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype))
        if not len(self.group) == len(self.first) == len(self.again):
            raise ValueError(f"{len(self.group)} groups, {len(self.first)} and {len(self.again)} factors")
        if not all(np.isfinite(x).all() and (x >= 0).all() for x in (self.first, self.again)):
            raise ValueError("factors are finite and not negative")

    @classmethod
    def none(cls, n: int = 0) -> Made:
        """Return the entry of n tiles that find nothing."""
        return cls(np.zeros(n, np.uint32), np.ones(n), np.ones(n))

    def __len__(self) -> int:
        return len(self.group)


def joined(nodes: Sequence[Made], more: int) -> Made:
    """The tiles of one node after the other, no two of which share anything, and then `more` tiles that find nothing."""
    group = np.concatenate([*(made.group for made in nodes), np.zeros(more, np.uint32)])
    if not group.any():
        return Made.none()
    counts = [len(made) for made in nodes]
    before = np.repeat(np.cumsum([0, *counts]), [*counts, more])  # tiles: a node has no more groups
    group = np.where(group > 0, group + before, 0)
    rest = np.ones(more)
    return Made(group, np.concatenate([*(made.first for made in nodes), rest]), np.concatenate([*(made.again for made in nodes), rest]))
