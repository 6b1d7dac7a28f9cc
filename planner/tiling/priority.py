"""The order of tiles: those with much work behind them come first (critical path first). Where that makes no difference they go in the
order of layers.

A worker follows the tile of lowest rank among those that become ready together. The tiles that it leaves to the pool are taken by depth.
Both follow one order of the steps: by the work on the longest path from a step to the end, its own included. No edge leads against it. So
the branches of a network end together, whichever was written down first; in a chain of layers nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from aspen_mp.shm.tables import LIMITS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
DEPTHS = LIMITS["depths"]


def critical_first(step_ns: Sequence[float] | Floats, parents: Ints, children: Ints) -> Ints:
    """The steps in the order in which their tiles should go. `step_ns`: work of each. `parents`, `children`: pairs of steps of which the
    second waits for the first, which has the lower number. Pairs of one step with itself do not count."""
    n = len(step_ns)
    pairs = np.unique(parents * n + children)
    pairs = pairs[pairs // max(n, 1) != pairs % max(n, 1)]
    begin = np.searchsorted(pairs, np.arange(n + 1) * n)
    after = pairs % max(n, 1)
    left = np.array(step_ns, np.float64)
    for k in range(n - 1, -1, -1):
        if begin[k] < begin[k + 1]:
            left[k] += left[after[begin[k] : begin[k + 1]]].max()
    return np.argsort(-left, kind="stable")


def depths_and_ranks(order: Ints, step_ns: Sequence[float] | Floats, counts: Sequence[int] | Ints) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The depth bin of each step: bins hold about the same work and never decrease along the order. The rank of each tile, from 1 on, tiles
    counted step by step: `counts` of each."""
    ns, n = np.asarray(step_ns, np.float64)[order], np.asarray(counts, np.int64)
    before = np.concatenate([[0.0], np.cumsum(ns)])[: len(ns)]  # not cumsum(ns) - ns: rounded, that may decrease
    depth = np.zeros(len(order), np.uint8)
    depth[order] = np.minimum(before / (float(ns.sum()) or 1.0) * DEPTHS, DEPTHS - 1).astype(np.uint8)
    first = np.zeros(len(order), np.int64)
    first[order] = np.cumsum(n[order]) - n[order]
    base = np.cumsum(n) - n
    rank: Ints = np.arange(int(n.sum())) + np.repeat(first - base, n) + 1
    return depth, rank


WAITING: Final = 0.5
"""Tiles wait for memory when they ask for this part of one core's reading rate, or more."""


def memory_depths(depth: npt.NDArray[np.uint8], ns: Floats, nbytes: Floats, cold: float) -> int:
    """The depth bins whose tiles wait for memory, a bit each. `depth`, `ns`, `nbytes` [tiles]: the place of each, its time, and its traffic
    with memory. `cold`: bytes per ns that one core moves."""
    took, moved = (np.bincount(depth, each, DEPTHS)[:DEPTHS] for each in (ns, nbytes))
    return sum(1 << int(d) for d in np.flatnonzero((took > 0) & (moved >= WAITING * cold * took)))
