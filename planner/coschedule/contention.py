"""How much longer a layer group takes while others use the same memory (HaX-CoNN, section 3.3).

The model has two steps. First each group is profiled alone: its demand of the memory. Then the slowdown is looked up by two numbers, the
demand of the group and that of all others. So the table is measured once for pairs of rates, and never for pairs of networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from aspen_mp.planner.cost.rates import Rates

Floats = npt.NDArray[np.float64]

POINTS: Final = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Where the table of a memory that has not been measured has points, as parts of its bandwidth."""


@dataclass(frozen=True, slots=True, eq=False)
class Contention:
    """The slowdowns of a memory that groups share.

    `own` [i], `others` [j]: bandwidths that a group and all others ask for alone, bytes per ns, ascending. `factor` [i, j]: how often
    longer the group takes, linear in between and constant beyond the ends. `capacity`: bytes per ns of the memory. ValueError: lengths do
    not fit, points do not ascend, or a factor is below 1.
    """

    own: Floats
    others: Floats
    factor: Floats
    capacity: float

    def __post_init__(self) -> None:
        for name in ("own", "others", "factor"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), np.float64))
        if self.factor.shape != (len(self.own), len(self.others)) or not self.factor.size:
            raise ValueError(f"factors of shape {self.factor.shape} for {len(self.own)} and {len(self.others)} bandwidths")
        if any((np.diff(points) <= 0).any() or points[0] < 0 for points in (self.own, self.others)):
            raise ValueError("bandwidths ascend from 0 or more")
        if not (np.isfinite(self.factor).all() and (self.factor >= 1).all() and self.capacity > 0):
            raise ValueError("slowdowns are 1 or more, and the memory has a bandwidth")

    @classmethod
    def none(cls) -> Contention:
        """A memory that nobody has to wait for."""
        return cls(np.zeros(1), np.zeros(1), np.ones((1, 1)), np.inf)

    @classmethod
    def fair(cls, capacity: float) -> Contention:
        """A memory of `capacity` bytes per ns that gives each its demand, up to a fair share."""
        points = capacity * np.array(POINTS)
        factor = [[x / fair_shares([x, y], capacity)[0] if x else 1.0 for y in points] for x in points]
        return cls(points, points, np.array(factor), capacity)

    @classmethod
    def measured(cls, points: Sequence[float], factor: Sequence[Sequence[float]], capacity: float) -> Contention:
        """From a calibration: `points` as parts of the capacity, which scales to other machines, and slowdowns of pairs."""
        return cls(capacity * np.array(points), capacity * np.array(points), np.maximum(np.array(factor), 1.0), capacity)

    @classmethod
    def of(cls, rates: Rates, capacity: float) -> Contention:
        """The measurements of a calibration, or else fair sharing, for a memory of `capacity` bytes per ns."""
        return cls.measured(rates.contended_at, rates.contention, capacity) if rates.contention else cls.fair(capacity)

    def slowdown(self, own: float, others: float) -> float:
        """How often longer a group that asks for `own` bytes per ns takes while others ask for `others`."""
        i, u = _between(self.own, own)
        j, v = _between(self.others, others)
        down, right = min(i + 1, len(self.own) - 1), min(j + 1, len(self.others) - 1)
        f = self.factor
        return float((1 - u) * ((1 - v) * f[i, j] + v * f[i, right]) + u * ((1 - v) * f[down, j] + v * f[down, right]))

    def slowdowns(self, wants: Sequence[float]) -> list[float]:
        """Slowdowns of groups that run at the same time and ask for `wants` bytes per ns.

        Two are as measured. Among three or more, the demand of the others counts up to the capacity, and nobody gets more than a fair
        share.
        """
        active = [want for want in wants if want > 0]
        if len(active) < 2:
            return [1.0] * len(wants)
        total, shares = sum(active), fair_shares(wants, self.capacity) if len(active) > 2 else list(wants)
        found = []
        for want, share in zip(wants, shares, strict=True):
            factor = self.slowdown(want, min(total - want, self.capacity)) if want > 0 else 1.0
            found.append(max(factor, want / share if share > 0 else 1.0))
        return found


def fair_shares(wants: Sequence[float], capacity: float) -> list[float]:
    """Shares of a capacity by max-min fairness: each gets its want, up to a share that is the same for all."""
    left, rest, shares = float(capacity), sorted(range(len(wants)), key=lambda k: wants[k]), [0.0] * len(wants)
    for done, k in enumerate(rest):
        shares[k] = min(float(wants[k]), left / (len(rest) - done))
        left -= shares[k]
    return shares


def _between(points: Floats, x: float) -> tuple[int, float]:
    """The point below x, and how far x is to the next one, 0 to 1."""
    if len(points) < 2 or x <= points[0]:
        return 0, 0.0
    k = min(int(np.searchsorted(points, x, side="right")) - 1, len(points) - 2)
    return k, min(float((x - points[k]) / (points[k + 1] - points[k])), 1.0)
