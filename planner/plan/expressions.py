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
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.plan.shape_bucket import Extents, NoBucket
from aspen_mp.shm.extents import FLOOR, PRODUCT, SUM, Row, values_at

Ints = npt.NDArray[np.int64]
LARGEST_DIVISOR: Final = 64
"""The largest step of windows, in pixels."""
_LARGEST: Final = 1 << 40
_PARTS: Final = [Fraction(1, divisor) for divisor in range(2, LARGEST_DIVISOR + 1)]


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

    def follow(self, numbers: Ints, bases: Iterable[Ints], steps: Sequence[Fraction], what: str) -> Follows:
        """The value that changing numbers follow from. `bases`: lengths that they are likely to be floors of. `steps`: what these are
        multiplied by, if that is known. Raises NoBucket."""
        read = self._read(bases)
        found = self.known(numbers)
        if found is not None:
            self._doubt(numbers, found, read, steps)
            return found
        found = self._floor(numbers, read, steps) or self._product(numbers) or self._sum(numbers)
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

    def _read(self, bases: Iterable[Ints]) -> list[Follows]:
        """The values that lengths follow from which a step of the graph reads."""
        return list(dict.fromkeys(follows for base in bases if (follows := self.known(base)) is not None and follows.per > 0))

    def _doubt(self, numbers: Ints, known: Follows, read: Sequence[Follows], steps: Sequence[Fraction]) -> None:
        """Numbers seem to follow from a known value. If they may be floors of what a step reads as well, extents have to tell."""
        fits = self._fits(numbers, read, steps)
        for scale in _divisors(_change(numbers)[1]):
            fits += self._fits(numbers, read, _PARTS if scale == 1 else _PARTS[:1], scale)
        if fits:
            rest = int(numbers[0] - known.per * self._vectors[known.value][0])
            self._unsure.append([_Fit(known.value, 1, 1, 0, 0, known.per, rest), *fits])

    def _floor(self, numbers: Ints, read: Sequence[Follows], steps: Sequence[Fraction]) -> Follows | None:
        """A floor of a length that a step of the graph reads, if the step says how it is multiplied. Else a part of any length: all that
        fit are noted."""
        if (numbers < 0).any():
            return None
        fits = self._fits(numbers, read, steps)
        if not fits:
            others = [follows for value in range(len(self._vectors)) if (follows := Follows(value, 1)) not in read]
            for scale in _divisors(_change(numbers)[1]):
                fits += self._fits(numbers, [*read, *others], _PARTS, scale)
        if not fits:
            return None
        if sum(fit.high - fit.low + 1 for fit in fits) > 1:
            self._unsure.append(fits)
        best = fits[0]
        return Follows(self._add(numbers // best.scale, (FLOOR, best.u, 0, best.a, best.low, best.c)), best.scale)

    def _fits(self, numbers: Ints, lengths: Sequence[Follows], steps: Sequence[Fraction], scale: int = 1) -> list[_Fit]:
        """Floors of any of these lengths, multiplied by any of these steps, that fit, times `scale`; the first steps first."""
        changing = [length for length in lengths if np.ptp(self._vectors[length.value])]
        if not changing or not steps:
            return []
        rest = int(numbers[0] % scale)
        wanted, bases = numbers // scale, np.stack([self._vectors[length.value] for length in changing])
        a = np.array([[step.numerator * length.per for length in changing] for step in steps])
        c = np.array([step.denominator for step in steps])[:, None]
        apart = c[:, :, None] * wanted - a[:, :, None] * bases
        low, high = apart.max(axis=2), apart.min(axis=2) + c - 1
        found = np.argwhere(low <= high).tolist()
        return [_Fit(changing[k].value, int(a[i, k]), int(c[i, 0]), int(low[i, k]), int(high[i, k]), scale, rest) for i, k in found]

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


def _divisors(multiple: int) -> list[int]:
    """The divisors of a number that a length may be multiplied by."""
    return [divisor for divisor in range(1, LARGEST_DIVISOR + 1) if multiple % divisor == 0]


def _change(numbers: Ints) -> tuple[bytes, int]:
    """How numbers change, the same for their multiples, and which multiple they are; negative where they grow as extents shrink."""
    change = numbers - numbers[0]
    divisor = int(np.gcd.reduce(np.abs(change)))
    if not divisor:
        return b"", 0
    if change[np.flatnonzero(change)[0]] > 0:
        divisor = -divisor
    return (change // divisor).tobytes(), divisor
