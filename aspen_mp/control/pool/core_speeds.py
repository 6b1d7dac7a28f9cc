"""How fast the workers' cores are: what the machine says of them, put right by what workers measure.

A core's class and capacity say what it was made for. It is slower while another program, a quota or heat takes a part of it. Each worker
counts how long its kernels took and how long plans expect them to take (docs/protocol/cores.md). The ratio, beside those of the other
workers, is its core's speed now.
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
"""A speed is taken over this many looks at least. A worker with fewer looks is not compared with others."""
ENOUGH_NS: Final = 50e6
"""The expected kernel time in them, or over as many more looks as that takes: less says nothing."""
STEPS: Final = 4
"""Speeds in each halving. Plans are made for them and kept, so they are few."""
LEAST: Final = 2.0**-6
MOST_LOOKS: Final = 64
"""About as many are kept of a worker that has little to do."""
LONE: Final = 8
"""One in this many workers may be faster than the others without making all of them slow. It may as well be an odd measurement, and is
worth little anyway."""


class _Window:
    """A worker's latest looks with work between them, as (number of the look, spent, expected)."""

    def __init__(self) -> None:
        self.looks: deque[tuple[int, int, int]] = deque()

    def add(self, look: int, spent: int, expected: int) -> None:
        looks = self.looks
        if looks and looks[-1][1:] == (spent, expected):
            return
        if len(looks) > 1 and looks[-1][2] - looks[-2][2] < ENOUGH_NS / MOST_LOOKS:
            looks.pop()
        looks.append((look, spent, expected))
        while len(looks) > LOOKS + 1 and expected - looks[1][2] >= ENOUGH_NS:
            looks.popleft()

    @property
    def begin(self) -> int:
        return self.looks[0][0]

    @property
    def end(self) -> int:
        return self.looks[-1][0]

    def speed(self) -> float | None:
        """Expected by measured time; None where there was not enough work."""
        (_, spent, expected), (_, spent_now, expected_now) = self.looks[0], self.looks[-1]
        enough = expected_now - expected >= ENOUGH_NS and spent_now > spent
        return (expected_now - expected) / (spent_now - spent) if enough else None


class CoreSpeeds:
    """Asked now and then, at equal intervals. `gives`: by CPU, what share of its nominal speed it gives beside the others, where that is
    known."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, int], _Window] = {}
        self.gives: dict[int, float] = {}
        self._others: dict[int, int] = {}  # by CPU: at which look it was found to be of another speed than it is taken for
        self._look = 0

    def look(self, counts: Iterable[Count], nominal: Mapping[int, float]) -> None:
        """Counts of the workers that run, and the speed of each core by what the machine says."""
        self._look += 1
        present: dict[tuple[int, int], _Window] = {}
        found: dict[int, tuple[_Window, float]] = {}
        for row, pid, cpu, spent, expected in counts:
            window = present[row, pid] = self._windows.get((row, pid)) or _Window()
            window.add(self._look, spent, expected)
            speed = window.speed()
            if cpu is not None and speed is not None and window.end > self._look - LOOKS:
                found[cpu] = window, speed / nominal.get(cpu, 1.0)
        self._windows = present
        if len(found) < 2:
            return  # speeds are relative
        full = sorted((gives for _, gives in found.values()), reverse=True)[(len(found) - 1) // LONE]
        for cpu, (window, gives) in found.items():
            share = min(max(gives / full, LEAST), 1.0)
            if _alike(share, self.gives.get(cpu, 1.0)):
                self._others.pop(cpu, None)
            elif window.begin >= self._others.setdefault(cpu, window.end):  # whatever was noticed then goes on: no single pause does
                del self._others[cpu]
                self.gives[cpu] = 1.0 if _alike(share, 1.0) else 2 ** (round(math.log2(share) * STEPS) / STEPS)


def alike(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether a plan for cores of these speeds is one for those, fastest first."""
    return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))


def _alike(a: float, b: float) -> bool:
    return a < b * ALIKE and b < a * ALIKE
