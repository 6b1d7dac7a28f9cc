"""Which expressions numbers follow from, found from a few extents: right at all others, whatever the lengths of a network are made of."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from aspen_mp.planner.plan.bucketed_graph import CHECKS, MOST_SAMPLES
from aspen_mp.planner.plan.expressions import Expressions, Follows, Ints
from aspen_mp.planner.plan.shape_bucket import Extents, NoBucket, ShapeBucket
from aspen_mp.shm.extents import values_at

CASES = 200


@dataclass
class Lengths:
    """Lengths of a network, one after the other, at many extents at once. Each has the place of the one that it is made of, and what its
    step says that this one is multiplied by."""

    draw: random.Random
    extents: list[Ints]
    made: list[tuple[Ints, int, list[Fraction]]] = field(default_factory=list)

    @property
    def all(self) -> list[Ints]:
        return [*self.extents, *(length for length, _, _ in self.made)]

    def add(self) -> None:
        at = self.draw.randrange(len(self.all))
        u, kind = self.all[at], self.draw.choice(["window", "window", "resized", "twice", "halves", "longer", "product", "sum"])
        told: list[Fraction] = []
        if kind == "window":
            c = self.draw.choice([2, 2, 3, 4, 8])
            length, told = (u + self.draw.randint(0, c)) // c, self.draw.choice([[], [Fraction(1, c)]])
        elif kind == "resized":
            scale = Fraction(self.draw.choice([3, 5, 7]), self.draw.choice([2, 4]))
            length, told = u * scale.numerator // scale.denominator, [scale]
        elif kind == "twice":
            length = 2 * u
        elif kind == "halves":
            length = 2 * (u // 2) + self.draw.randint(0, 3)
        elif kind == "longer":
            length = u + self.draw.randint(1, 9)
        elif kind == "product":
            length = u * self.draw.choice(self.all)
        else:
            length = u + self.draw.choice(self.all)
        if length.min() >= 4 and length.max() < 1 << 30:
            self.made.append((length, at, told))


def found(bucket: ShapeBucket, everywhere: list[Extents], lengths: Lengths) -> tuple[Expressions, list[Follows]]:
    """What a planner finds that looks at some extents, as `BucketedGraph` does."""
    places = {extents: k for k, extents in enumerate(everywhere)}
    samples, before, agreed, new = bucket.samples(), None, 0, 0
    while True:
        seen = [places[extents] for extents in samples]
        expressions = Expressions(samples)
        follows = []
        for length, base, told in lengths.made:
            numbers = np.ascontiguousarray(length[seen])
            follows.append(expressions.follow(numbers, [lengths.all[base][seen]], told, "a length"))
            expressions.length(numbers)
        agreed = agreed + new if before == (expressions.rows, follows) else 0
        before = expressions.rows, follows
        others = [extents for extents in bucket.some(512) if extents not in samples]
        more = expressions.separating(others)
        if more is None and agreed >= CHECKS:
            return expressions, follows
        if more is not None and len(samples) >= MOST_SAMPLES:
            raise NoBucket("more than one expression fits what is known")
        added = others[: CHECKS - agreed] if more is None else [more]
        new = len(added)
        samples += added


def test_expressions_hold_at_extents_that_nobody_looked_at() -> None:
    refused = 0
    for seed in range(CASES):
        draw = random.Random(seed)
        step = draw.choice([1, 1, 8, 32])
        least = [draw.randint(1, 6) * 32 // step * step for _ in range(2)]
        most = [side + draw.randint(24, 90) // step * step + step for side in least]
        bucket = ShapeBucket(tuple(least), tuple(most), {})
        everywhere = list(dict.fromkeys([*bucket.samples(), *bucket.some(512), *bucket.some(2000)]))
        at = np.array(everywhere, np.int64)
        lengths = Lengths(draw, list(at.T))
        for _ in range(8):
            lengths.add()
        try:
            expressions, follows = found(bucket, everywhere, lengths)
        except NoBucket:
            refused += 1
            continue
        values = values_at(expressions.rows, list(at.T))
        for (length, _, _), one in zip(lengths.made, follows, strict=True):
            if length.min() == length.max():
                continue
            value = values[one.value]
            wrong = np.flatnonzero(length[0] - one.per * (value[0] - value) != length)
            assert not len(wrong), f"seed {seed}: {expressions.rows[one.value - 2]} at {everywhere[int(wrong[0])]}"
    assert refused < CASES // 4


def test_numbers_that_go_up_and_down_follow_from_nothing() -> None:
    expressions = Expressions([(20,), (19,), (10,), (15,)])
    with pytest.raises(NoBucket, match="does not grow evenly"):
        expressions.follow(np.array([1, 3, 2, 0]), [np.array([20, 19, 10, 15])], (), "a remainder")


def test_multiples_share_a_value() -> None:
    expressions = Expressions([(20, 30), (19, 29), (10, 30), (15, 22)])
    h, w = np.array([20, 19, 10, 15]), np.array([30, 29, 30, 22])
    expressions.length(h + 2)
    expressions.length(w + 2)
    area = expressions.follow((h + 2) * (w + 2), (), (), "an area")
    assert expressions.follow(12 * (h + 2) * (w + 2) + 5, (), (), "a stride") == Follows(area.value, 12)
    assert expressions.follow(3 * w + 1, (), (), "a row") == Follows(1, 3)
    assert expressions.exactly(np.full(4, 7), "a constant") == expressions.exactly(np.full(4, 7), "a constant")
