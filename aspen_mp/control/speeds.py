"""How fast the workers' cores are: what the machine says of them, put right by what workers measure.

A core's class and capacity say what it was made for. What it gives is less while another program, a quota or heat takes a part of it. Each
worker counts how long its kernels took and how long plans expect them to take (shm/README.md, "Unlike cores"); how the two compare, beside
the other workers, is what its core gives now.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

Count = tuple[int, int, int | None, int, int]
"""Row, pid, CPU, nanoseconds in kernels so far, and nanoseconds that plans expect of them."""

ALIKE: Final = 1.25
"""Speeds that differ by less are the same: estimates of tiles are no better than that."""
LOOKS: Final = 4
"""A speed is taken over so many looks, and counts once it was another one for so many."""
ENOUGH_NS: Final = 50e6
"""Of expected kernel time between them: less says nothing."""
STEPS: Final = 4
"""Speeds in each halving. Plans are made for them and kept, so they are few."""
LEAST: Final = 2.0**-6


class CoreSpeeds:
    """Asked now and then, at equal intervals. `gives`: by CPU, what share of its nominal speed it gives beside the others, where that is
    known."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        self.gives: dict[int, float] = {}
        self._others: dict[int, int] = {}

    def look(self, counts: Iterable[Count], nominal: Mapping[int, float]) -> None:
        """Counts of the workers that run, and the speed of each core by what the machine says."""
        found: dict[int, float] = {}
        present: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        for row, pid, cpu, spent, expected in counts:
            seen = present[row, pid] = self._counts.get((row, pid)) or deque(maxlen=LOOKS + 1)
            seen.append((spent, expected))
            if cpu is not None and seen[-1][1] - seen[0][1] >= ENOUGH_NS and seen[-1][0] > seen[0][0]:
                found[cpu] = (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]) / nominal.get(cpu, 1.0)
        self._counts = present
        if len(found) < 2:
            return  # speeds are relative
        top = max(found.values())
        for cpu, gives in found.items():
            share = max(gives / top, LEAST)
            if _alike(share, self.gives.get(cpu, 1.0)):
                self._others.pop(cpu, None)
                continue
            self._others[cpu] = self._others.get(cpu, 0) + 1
            if self._others[cpu] >= LOOKS:
                del self._others[cpu]
                self.gives[cpu] = 1.0 if _alike(share, 1.0) else 2 ** (round(math.log2(share) * STEPS) / STEPS)


def alike(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether a plan for cores of these speeds is one for those, fastest first."""
    return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))


def _alike(a: float, b: float) -> bool:
    return a < b * ALIKE and b < a * ALIKE
