"""Times of several calls, taken in turns, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from aspen_mp.system import clock

ROUNDS: Final = 7
TURN_S: Final = 0.05
"""Seconds that a turn lasts at least, …"""
ALL_S: Final = 10.0
"""… and seconds after which no further round begins, if there was one."""


def medians(calls: Sequence[Callable[[], object]], rounds: int = ROUNDS, turn_s: float = TURN_S, all_s: float = ALL_S) -> list[float]:
    """Milliseconds of each call: the median over rounds of the turns' medians. A turn begins with a call that does not count."""
    turns: list[list[float]] = [[] for _ in calls]
    end = clock.monotonic() + all_s
    for k in range(rounds):
        if k and clock.monotonic() > end:
            break
        for i in range(len(calls)):
            which = (i + k) % len(calls)
            turns[which].append(_turn(calls[which], turn_s))
    return [statistics.median(each) for each in turns]


def _turn(call: Callable[[], object], seconds: float) -> float:
    call()
    found: list[float] = []
    while not found or sum(found) < 1e3 * seconds:
        begin = clock.perf_counter()
        call()
        found.append(1e3 * (clock.perf_counter() - begin))
    return statistics.median(found)
