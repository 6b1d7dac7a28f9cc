"""Tells states of the machine in which turns were measured.

Cores that share a cache can become cores that do not while a benchmark runs: hosts of virtual machines move their CPUs. It changes what
cores read of each other and what all of them read of memory, and medians over such turns are of two machines. So what a byte of another
core's takes (`core_limits.far`) is measured before and after each turn, and turns are told apart by it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aspen_mp.tools import core_limits
from aspen_mp.workers import _kernels

APART = 2.5
"""States differ by this factor at least: in one state what is measured varies by less."""
RARE = 0.1
"""The share of all measurements at either end that may be anything."""
LEAST = 1e-3
"""Nanoseconds a byte: what is less is as good as nothing."""
PASSES = 24
"""Passes of a measurement, some milliseconds."""


@dataclass(frozen=True, slots=True)
class State:
    """`far`: nanoseconds that a byte takes longer that another core has written, the median of what was measured from `low` to `high`."""

    far: float
    low: float
    high: float

    def holds(self, probes: Sequence[float]) -> bool:
        """Whether a turn with these was measured in this state from beginning to end."""
        return bool(probes) and all(self.low <= value <= self.high for value in probes)


def probe(cores: Sequence[int]) -> float:
    """The extra time of a byte now that another of these cores has written, nanoseconds: from each core to the next, the middle of them. 0
    where there is but one."""
    if len(cores) < 2:
        return 0.0
    isa = _kernels.selected()
    return statistics.median(core_limits.far(isa, pair, PASSES) for pair in itertools.pairwise(cores))


def middle(turns: Iterable[Sequence[float]]) -> float | None:
    """The median of what was measured, nanoseconds a byte; None where nothing was."""
    values = [value for probes in turns for value in probes]
    return statistics.median(values) if values else None


def states(turns: Iterable[Sequence[float]]) -> list[State]:
    """Those in which this was measured, the one first in which a byte takes least. One where the values do not lie apart; else two, and
    what lies between them is of neither."""
    values = sorted(value for probes in turns for value in probes)
    if not values:
        return []
    rare = int(RARE * len(values))
    least, most = max(values[rare], LEAST), max(values[-1 - rare], LEAST)
    if most < APART * least:
        return [State(statistics.median(values), 0.0, math.inf)]
    third = (most / least) ** (1 / 3)
    near, far = least * third, most / third
    return [
        State(statistics.median(value for value in values if value <= near), 0.0, near),
        State(statistics.median(value for value in values if value >= far), far, math.inf),
    ]
