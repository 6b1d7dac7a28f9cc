"""Finds how numbers follow from extents, from what they are at some extents.

A number follows from a *value*: it is ``k * value + d``. The extents are the first values. Each other value is a floor, a product or a
sum of earlier ones (`aspen_mp.shm.extents`). A window that moves by s makes ``floor((u + b) / s)`` of a length u. Strides are products of
lengths. Pixels of several images behind each other are sums.

Two vectors of numbers follow from the same value if their changes are multiples of each other, so a network has few values. `separating`
names extents that are still to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.plan.shape_bucket import Extents, NoBucket
from aspen_mp.shm.extents import FLOOR, PRODUCT, SUM, Row, values_at

Ints = npt.NDArray[np.int64]
LARGEST_DIVISOR: Final = 64
"""The largest step of windows, in pixels."""
LARGEST_FRACTION: Final = 4
"""The largest divisor of fractions by which pictures are enlarged, and the largest factor."""
_LARGEST: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Follows:
    """A number that follows from a value: by `per` for each step of it."""

    value: int
    per: int


@dataclass(frozen=True, slots=True)
class _Fit:
    """Expressions that fit: ``scale * ((a * u + b) // c) + rest`` of a value `u`, with any b from `low` to `high`."""

    u: int
    a: int
    c: int
    low: int
    high: int
    scale: int = 1
    rest: int = 0

    def all_of(self, base: Ints) -> list[Ints]:
        """The numbers for each b."""
        return [self.scale * ((self.a * base + b) // self.c) + self.rest for b in range(self.low, self.high + 1)]


class Expressions:
    """Values at the extents `samples`, the largest of which come first. Vectors have a number for each sample."""

    def __init__(self, samples: Sequence[Extents]) -> None:
        self._samples = np.array(samples, np.int64).reshape(len(samples), -1)
        self.rows: list[Row] = []
        self._vectors: list[Ints] = []
        self._exact: dict[bytes, int] = {}
        self._by_change: dict[bytes, list[tuple[int, int]]] = {}
        self._factors: dict[bytes, Ints] = {}
        self._products: dict[bytes, tuple[Ints, Ints, int]] = {}
        self._unsure: list[list[_Fit]] = []
        for column in self._samples.T:
            self._add(column)

    def follow(self, numbers: Ints, bases: Iterable[Ints], divisors: Sequence[int], what: str) -> Follows:
        """The value that changing numbers follow from. `bases`: lengths that they are likely to be floors of. `divisors`: theirs, if they
        are known. Raises NoBucket."""
        found = self.known(numbers) or self._floor(numbers, bases, divisors) or self._product(numbers) or self._sum(numbers)
        if found is None:
            raise NoBucket(f"{what} does not grow evenly: {numbers.tolist()} at {self._samples.tolist()}", elsewhere=False)
        return found

    def known(self, numbers: Ints) -> Follows | None:
        """The value that numbers follow from, if there is one so far."""
        key, divisor = _change(numbers)
        for value, own in self._by_change.get(key, ()):
            if divisor % own == 0:
                return Follows(value, divisor // own)
        return None

    def length(self, numbers: Ints) -> None:
        """Notes a length that products may have as a factor."""
        key = numbers.tobytes()
        if key in self._factors or (numbers < 0).any() or numbers.max() > _LARGEST:
            return
        self._factors[key] = numbers
        for other in self._factors.values():
            if other.max() * numbers.max() < _LARGEST:
                change, divisor = _change(numbers * other)
                if abs(divisor) < self._products.get(change, (numbers, other, _LARGEST))[2]:
                    self._products[change] = numbers, other, abs(divisor)

    def exactly(self, numbers: Ints, what: str) -> int:
        """The value that is these numbers."""
        value = self._exact.get(numbers.tobytes())
        if value is not None:
            return value
        if (numbers == numbers[0]).all():
            return self._add(numbers, (FLOOR, 0, 0, 0, int(numbers[0]), 1))
        found = self.known(numbers)
        if found is None or found.per < 0:
            raise NoBucket(f"{what} follows from no value", elsewhere=False)
        own = self._vectors[found.value]
        return self._add(numbers, (FLOOR, found.value, 0, found.per, int(numbers[0] - found.per * own[0]), 1))

    def separating(self, candidates: Sequence[Extents]) -> Extents | None:
        """The extents that say most of what is not known yet. None: no candidate says anything.

        Floors that fit have to differ somewhere. So the remainders of each floor are seen that tell it from any other. Each value has to
        be even and odd somewhere: twice the half of an even length is that length.
        """
        at: list[Ints] = values_at(self.rows, list(np.array(candidates, np.int64).T))
        told = np.zeros(len(candidates))
        for fits in self._unsure:
            results = np.sort([numbers for fit in fits for numbers in fit.all_of(at[fit.u])], axis=0)
            told += np.count_nonzero(np.diff(results, axis=0), axis=0) / len(results)
        for seen, found in zip(self._vectors, at, strict=True):
            if (seen % 2 == seen[0] % 2).all():
                told += found % 2 != seen[0] % 2
        best = int(told.argmax())
        return tuple(candidates[best]) if told[best] > 0 else None

    @property
    def floors(self) -> bool:
        """Whether a value is not a polynomial of the extents."""
        return any(kind == FLOOR and c > 1 for kind, _, _, _, _, c in self.rows)

    # ---- values

    def _add(self, vector: Ints, row: Row | None = None) -> int:
        value = len(self._vectors)
        if row is not None:
            self.rows.append(row)
        self._vectors.append(vector)
        self._exact.setdefault(vector.tobytes(), value)
        key, divisor = _change(vector)
        if divisor:
            self._by_change.setdefault(key, []).append((value, abs(divisor)))
        self.length(vector)
        return value

    def _floor(self, numbers: Ints, bases: Iterable[Ints], divisors: Sequence[int]) -> Follows | None:
        """A floor of a length that a step reads, if it says by what it is divided. Else any floor: all that fit are noted."""
        if (numbers < 0).any():
            return None
        likely = list(dict.fromkeys(found.value for base in bases if (found := self.known(base)) is not None))
        divided = range(2, LARGEST_DIVISOR + 1)
        fits = self._fits(numbers, likely, divisors)
        if not fits:
            others = [value for value in range(len(self._vectors)) if value not in likely]
            multiple = abs(_change(numbers)[1])
            for scale in (scale for scale in range(1, LARGEST_DIVISOR + 1) if multiple % scale == 0):
                fits += self._fits(numbers, [*likely, *others], divided, scale)
        if not fits:
            return None
        if sum(fit.high - fit.low + 1 for fit in fits) > 1:
            self._unsure.append(fits)
        best = fits[0]
        return Follows(self._add(numbers // best.scale, (FLOOR, best.u, 0, best.a, best.low, best.c)), best.scale)

    def _fits(self, numbers: Ints, values: Sequence[int], divisors: Sequence[int], scale: int = 1) -> list[_Fit]:
        """Floors of any of these values, divided by any of these, that fit, times `scale`; the smallest divisors first."""
        changing = [u for u in values if np.ptp(self._vectors[u])]
        if not changing or not divisors:
            return []
        rest = int(numbers[0] % scale)
        wanted = numbers // scale
        bases, c = np.stack([self._vectors[u] for u in changing]), np.array(divisors)[:, None]
        larger = np.rint(c * np.ptp(wanted) / np.ptp(bases, axis=1)).astype(np.int64)
        several = (larger > 1) & (larger <= LARGEST_FRACTION * c) & (c <= LARGEST_FRACTION) & (np.gcd(larger, c) == 1)
        fits = []
        for a, allowed in ((np.ones_like(larger), np.ones_like(several)), (larger, several)):
            apart = c[:, :, None] * wanted - a[:, :, None] * bases
            low, high = apart.max(axis=2), apart.min(axis=2) + c - 1
            for i, k in np.argwhere(allowed & (low <= high)).tolist():
                fits.append(_Fit(changing[k], int(a[i, k]), divisors[i], int(low[i, k]), int(high[i, k]), scale, rest))
        return fits

    def _product(self, numbers: Ints) -> Follows | None:
        key, divisor = _change(numbers)
        if key not in self._products:
            return None
        first, second, least = self._products[key]
        if divisor % least:
            return None
        u, v = self.exactly(first, "a factor"), self.exactly(second, "a factor")
        return Follows(self._add(first * second, (PRODUCT, u, v, 0, 0, 1)), divisor // least)

    def _sum(self, numbers: Ints) -> Follows | None:
        """Numbers that change as the sum of multiples of two values."""
        change = numbers - numbers[0]
        own = np.array([vector - vector[0] for vector in self._vectors], np.float64)
        first, second = np.triu_indices(len(own), 1)
        x, y = own[first], own[second]
        xx, yy, xy = (x * x).sum(1), (y * y).sum(1), (x * y).sum(1)
        area = xx * yy - xy**2
        some = area > 0
        first, second, x, y, xx, yy, xy, area = (part[some] for part in (first, second, x, y, xx, yy, xy, area))
        xz, yz = x @ change, y @ change
        p, q = np.rint((xz * yy - yz * xy) / area), np.rint((yz * xx - xz * xy) / area)
        fits = (p > 0) & (q > 0) & (np.abs(p[:, None] * x + q[:, None] * y - change) < 0.5).all(axis=1)
        for at in np.flatnonzero(fits).tolist():
            u, v, a, b = int(first[at]), int(second[at]), int(p[at]), int(q[at])
            vector = a * self._vectors[u] + b * self._vectors[v]
            if (vector - vector[0] == change).all():
                return Follows(self._add(vector, (SUM, u, v, a, b, 1)), 1)
        return None


def _change(numbers: Ints) -> tuple[bytes, int]:
    """How numbers change, the same for their multiples, and which multiple they are; negative where they grow as extents shrink."""
    change = numbers - numbers[0]
    divisor = int(np.gcd.reduce(np.abs(change)))
    if not divisor:
        return b"", 0
    if change[np.flatnonzero(change)[0]] > 0:
        divisor = -divisor
    return (change // divisor).tobytes(), divisor
