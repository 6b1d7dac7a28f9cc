"""Linear maps from an axis of a step's output to an axis of what it reads, fitted to region maps.

A map is never narrower than what it is fitted to. So a change may seem to reach too much of an output, and never too little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Tensor

Ints = npt.NDArray[np.int64]
FAR = 1 << 31
"""Behind the last index of any axis."""


@dataclass(frozen=True, slots=True)
class Map:
    """Output o reads of `in_axis` of a source from floor((a o + begin) / c) on and before floor((a o + end) / c).

    That holds from `first` on and before `last` along `out_axis`. Other outputs read nothing."""

    out_axis: int
    in_axis: int
    first: int
    last: int
    a: int
    begin: int
    end: int
    c: int

    def reached(self, low: int, high: int) -> tuple[int, int]:
        """The first output that reads from `low` on and before `high` of the source's axis, and the one behind the last."""
        if self.a:
            first = -((self.end - self.c * (low + 1)) // self.a)
            return max(self.first, first), min(self.last, (self.c * high - 1 - self.begin) // self.a + 1)
        reads = self.end // self.c > low and self.begin // self.c < high
        return (self.first, self.last) if reads else (0, 0)

    def needed(self, low: int, high: int) -> tuple[int, int] | None:
        """The bounds along the source's axis of what outputs from `low` on and before `high` read, maybe beyond its ends. None: nothing."""
        low, high = max(low, self.first), min(high, self.last)
        return None if low >= high else ((self.a * low + self.begin) // self.c, (self.a * (high - 1) + self.end) // self.c)

    @property
    def words(self) -> tuple[int, ...]:
        """The map as REACH reads it."""
        return self.out_axis, self.in_axis, self.first, self.last, self.a, self.begin, self.end, self.c


@dataclass(frozen=True, slots=True)
class Read:
    """The read of a tensor, computed or given, by a step. Without maps each of its outputs reads all of it."""

    source: Tensor
    maps: tuple[Map, ...]


def maps_of(axis: int, length: int, lengths: Sequence[int], rows: Ints, lo: Ints, hi: Ints) -> Iterator[Map]:
    """Maps from an axis of the output. Outputs `rows` along it read the boxes from `lo` to `hi` of a source. `lengths`: of the source's
    axes; -1 where changes along an axis are not followed."""
    first, last = int(rows.min()), int(rows.max()) + 1
    made = False
    for k, extent in enumerate(lengths):
        if extent < 0 or ((lo[:, k] == 0).all() and (hi[:, k] == extent).all()):
            continue
        found = _fit(axis, k, extent, rows, lo[:, k], hi[:, k], (first, last))
        if found is not None:
            made = True
            yield found
    if not made and (first, last) != (0, length) and lengths:
        yield Map(axis, 0, first, last, 0, 0, FAR, 1)


def _fit(axis: int, k: int, extent: int, rows: Ints, lo: Ints, hi: Ints, ends: tuple[int, int]) -> Map | None:
    """The narrowest map by any of the likely slopes. None where it says nothing."""
    best: tuple[int, Map] | None = None
    for slope in _slopes(extent, rows, lo, hi):
        a, c = slope.numerator, slope.denominator
        begin = int((c * (lo + 1) - 1 - a * rows).min())
        end = int((c * hi - a * rows).max())
        wide = np.minimum((a * rows + end) // c, extent) - np.maximum((a * rows + begin) // c, 0)
        size = int(wide.sum())
        if best is None or size < best[0]:
            best = size, Map(axis, k, *ends, a, begin, end, c)
    assert best is not None
    return best[1] if best[0] < extent * len(rows) else None


def _slopes(extent: int, rows: Ints, lo: Ints, hi: Ints) -> list[Fraction]:
    """Likely steps along a source for one step along the output: 0, those between outputs in the middle, and that from end to end."""
    found = {Fraction(0), Fraction(1)}
    n = len(rows)
    for bound in (lo, hi):
        for i, j in ((0, n - 1), (n // 4, 3 * n // 4), (n // 3, 2 * n // 3)):
            if rows[j] > rows[i] and bound[j] > bound[i]:
                found.add(Fraction(int(bound[j] - bound[i]), int(rows[j] - rows[i])))
        steps = np.diff(bound)
        if len(steps):
            found.add(Fraction(int(max(np.median(steps), 0))))
    found.add(Fraction(extent, int(rows[-1]) + 1))
    return sorted(found)


__all__ = ["FAR", "Map", "Read", "maps_of"]
