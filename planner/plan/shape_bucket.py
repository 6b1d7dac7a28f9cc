"""The shapes that a plan serves: ranges of lengths that requests choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

Extents = tuple[int, ...]
"""A length for each of the ways in which shapes of requests differ, such as height and width of a picture."""
_SEED = 20
_MOST_STEPS = 64
"""The most pixels by which windows move in all."""


class NoBucket(Exception):
    """The graph has no plan for a shape bucket; the text says why, for people who look for the reason. `elsewhere`: it may have one for a
    part of the bucket."""

    def __init__(self, why: str, *, elsewhere: bool = True) -> None:
        super().__init__(why)
        self.elsewhere = elsewhere


@dataclass(frozen=True, slots=True)
class ShapeBucket:
    """A range of extents, from `least` to `most`. `per`: of each axis of an input, by the input's name, how much longer it is where each of
    the extents is one more."""

    least: Extents
    most: Extents
    per: Mapping[str, tuple[tuple[int, ...], ...]]

    @classmethod
    def of_length(cls, least: int, most: int, per: Mapping[str, tuple[int, ...]]) -> ShapeBucket:
        """A bucket with one extent."""
        return cls((least,), (most,), {name: tuple((step,) for step in row) for name, row in per.items()})

    def samples(self) -> list[Extents]:
        """The extents at which the graph is looked at in any case. They are the largest, a neighbour, some in the middle, and all
        combinations of smallest and largest extents."""
        pairs = list(zip(self.least, self.most, strict=True))
        middle = tuple(_middle(a, b, k) for k, (a, b) in enumerate(pairs))
        return list(dict.fromkeys([self.most, tuple(max(b - 1, a) for a, b in pairs), *product(*pairs), middle]))

    def some(self, count: int) -> list[Extents]:
        """About `count` extents anywhere in the bucket, always the same; all of a smaller bucket."""
        if math.prod(b - a + 1 for a, b in zip(self.least, self.most, strict=True)) <= count:
            return list(product(*(range(a, b + 1) for a, b in zip(self.least, self.most, strict=True))))
        random = np.random.default_rng(_SEED)
        found = random.integers(self.least, np.array(self.most) + 1, (count, len(self.most)))
        return list(dict.fromkeys(map(tuple, found.tolist())))

    def of(self, chosen: Sequence[int]) -> ShapeBucket:
        """The bucket of some of its lengths, by their numbers. The others stay as they are."""
        least, most = (tuple(ends[k] for k in chosen) for ends in (self.least, self.most))
        return ShapeBucket(least, most, {name: tuple(tuple(steps[k] for k in chosen) for steps in row) for name, row in self.per.items()})

    @property
    def typical(self) -> Extents:
        """The extents for which algorithms are chosen that have other constants: as many times the smallest as the largest are of them."""
        return tuple(round(math.sqrt(a * b)) for a, b in zip(self.least, self.most, strict=True))

    def shape(self, name: str, shape: Sequence[int], at: Extents, other: Extents) -> tuple[int, ...]:
        """The shape of an input at other extents, given the one at `at`."""
        rows = self.per.get(name)
        if rows is None:
            return tuple(shape)
        more = [b - a for a, b in zip(at, other, strict=True)]
        return tuple(dim + sum(k * m for k, m in zip(row, more, strict=True)) for dim, row in zip(shape, rows, strict=True))


def _middle(least: int, most: int, number: int) -> int:
    """An extent in the middle of a range, another one for each number. It is one more than a multiple of a power of two. So its half,
    rounded up, is odd, and so is the half of that. Below the multiple this holds for halves that are rounded down."""
    step = _MOST_STEPS
    while step > 1 and step * (4 + number) > most - least:
        step //= 2
    middle = (least + most) // 2
    return min(middle - middle % step + 1 + step * number, most)
