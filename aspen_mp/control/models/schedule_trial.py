"""Whether networks run better by a schedule than without one: measured, not believed.

What a network takes differs from one second to the next, by what else the machine does. So times before a schedule and times under it are
not compared with each other. Short windows with the schedule and without it take turns, and the two windows of a *pair* lie side by side:
what disturbs one disturbs both. The order within pairs alternates, so that what grows slowly favours neither.

Nothing here knows a clock or a runtime: times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from aspen_mp.planner.job.options import Objective

WINDOW_S: Final = 0.25
"""A window is as long at least, …"""
LEAST_ENDED: Final = 3
"""… and until so many requests of each network have ended in it, …"""
MOST_WINDOW_S: Final = 2.0
"""… and counts for nothing if after so long some network has ended none."""
SETTLE_S: Final = 0.5
"""Before a window begins, each network ends a request that has begun before: it ran by both. No longer than so many seconds."""
WORSE: Final = 1.03
"""A schedule with which networks take more than so many times as long does harm."""
LEAST_PAIRS: Final = 4
"""The fewest pairs that decide: a second with the schedule."""
KEPT_PAIRS: Final = 8
"""After so many a schedule is kept. The latest so many decide from then on."""
REST_WINDOWS: Final = 15
"""Windows between the pairs by which a schedule that is kept is looked at again."""


class Count(NamedTuple):
    """Of a network, so far: requests that have ended, and the seconds that they took, waiting and running."""

    ended: int
    seconds: float


class Window:
    """What networks take in a stretch of time in which nothing changes."""

    def __init__(self, now: float, counts: Sequence[Count]) -> None:
        """`counts`: when what is measured came into force."""
        self._changed = now
        self._before = list(counts)
        self._begun: float | None = None

    def look(self, now: float, counts: Sequence[Count]) -> list[tuple[float, float]] | None:
        """Of each network, requests a second and seconds a request, once the window is over. Empty: it counts for nothing."""
        if self._begun is None:
            if all(a.ended > b.ended for a, b in zip(counts, self._before, strict=True)) or now - self._changed >= SETTLE_S:
                self._begun, self._before = now, list(counts)
            return None
        took = now - self._begun
        ended = [a.ended - b.ended for a, b in zip(counts, self._before, strict=True)]
        if took < WINDOW_S or (min(ended) < LEAST_ENDED and took < MOST_WINDOW_S):
            return None
        if min(ended) < 1:
            return []
        spent = [a.seconds - b.seconds for a, b in zip(counts, self._before, strict=True)]
        return [(n / took, seconds / n) for n, seconds in zip(ended, spent, strict=True)]


def cost(measured: Sequence[tuple[float, float]], times: Sequence[int], objective: Objective) -> float:
    """What is to be small: seconds of a round, in which each network runs its `times`; or seconds for each request."""
    if objective == "latency":
        return max(n * seconds for n, (_, seconds) in zip(times, measured, strict=True))
    return 1 / sum(rate for rate, _ in measured)


class Trial:
    """A schedule against none, window by window. `on`: whether the schedule is to be in force in the window that comes next."""

    def __init__(self) -> None:
        self.on = True
        self.kept = False
        self.reverted = False
        self._pairs: deque[float] = deque(maxlen=KEPT_PAIRS)
        self._number = 0
        self._rest = 0
        self._half: float | None = None
        self._latest: dict[bool, float] = {}

    @property
    def ratio(self) -> float | None:
        """Cost with the schedule by cost without it: the median of the pairs."""
        return median(self._pairs) if self._pairs else None

    @property
    def pairs(self) -> int:
        """So many have been measured."""
        return self._number

    def latest(self, on: bool) -> float | None:
        """The cost in the last window with the schedule, or without it."""
        return self._latest.get(on)

    def void(self) -> None:
        """The window counted for nothing: its pair is begun anew."""
        self._half = None
        self.on = True if self._rest else self._first

    @property
    def _first(self) -> bool:
        """Which window a pair begins with."""
        return self._number % 2 == 0

    def add(self, found: float) -> None:
        """The window's cost."""
        self._latest[self.on] = found
        if self._rest:
            self._rest -= 1
            self.on = True if self._rest else self._first
            return
        if self._half is None:
            self._half, self.on = found, not self.on
            return
        self._pairs.append(found / self._half if self.on else self._half / found)
        self._half = None
        self._number += 1
        self._decide()

    def _decide(self) -> None:
        pairs = len(self._pairs)
        worse = sum(ratio > 1 for ratio in self._pairs)
        # Of schedules that change nothing, few have all of 4 pairs or 7 of 8 on one side.
        if pairs >= LEAST_PAIRS and median(self._pairs) > WORSE and worse >= pairs - pairs // KEPT_PAIRS:
            self.reverted, self.on = True, False
            return
        self.kept = self.kept or pairs == KEPT_PAIRS
        self._rest = REST_WINDOWS if self.kept else 0
        self.on = True if self._rest else self._first
