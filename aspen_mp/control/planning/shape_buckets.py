"""Shape buckets: which requests may share a plan, those whose shapes differ by a few lengths alone.

A model does not say which of its dimensions go together (a text's tokens, or past keys and all keys of a decoder). Requests do: dimensions
in which two of them differ by the same number are one length. Requests may differ by up to three lengths, such as height and width of a
picture. A length is the smallest of its dimensions. A *shape bucket* is a range of each length that one plan serves. Buckets are so large
that few are needed, and so small that a plan for the largest lengths fits the others (`planner/job/bucket_policy.py`). A plan counts
lengths in steps of `unit`: its *extents*. Light: see `cache_reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import gcd, prod
from typing import Final, Literal

import msgspec

from aspen_mp.control.wire.protocol import Bind, Capacity, Follows, Slot
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.shm import extents
from aspen_mp.shm.bindings import _tables

_BYTES: Final = {name: nbytes for _, _, nbytes, _, _, name, _ in _tables.DTYPE_ROWS}

Axes = tuple[tuple[int, ...], ...]
"""The number of the length in each axis of each input, from 1 on; 0: none."""
Lengths = tuple[int, ...]
Stages = Sequence[Sequence[Bind]]
"""Lists of binds, one for each stage up to the one that is planned. In `Axes` they follow each other."""

MOST_BEHIND: Final = 6
"""Lengths in which requests for a stage behind others may differ. The stage itself depends on fewer (`planner.api.plan_bucket`)."""


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Extents from `least` to `most`, each step of which is `unit` of a length. `demand`: what else the plan has to be (`planner.api`)."""

    least: Lengths
    most: Lengths
    unit: int = 1
    demand: Literal["none", "even", "busy"] = "none"

    def extents(self, lengths: Lengths) -> Lengths | None:
        """Those of a request with these lengths; None where they are outside."""
        found = tuple(length // self.unit for length in lengths)
        return found if all(a <= e <= b for a, e, b in zip(self.least, found, self.most, strict=True)) else None

    def covers(self, other: Range) -> bool:
        """Whether it holds all lengths of another range of the same axes."""
        least, most = zip(self.least, other.least, strict=True), zip(self.most, other.most, strict=True)
        return self.unit == other.unit and all(a <= b for a, b in least) and all(a >= b for a, b in most)


class WantedBucket(msgspec.Struct, frozen=True, array_like=True):
    """A bucket to make a plan for. `lengths`: of the request that asks. `axes`: which axes of which inputs they are in. `ranges`: which
    extents the plan may serve, in the order in which they are tried."""

    axes: Axes
    lengths: Lengths
    ranges: tuple[Range, ...]

    @property
    def choices(self) -> list[WantedBucket]:
        """The same for each range alone."""
        return [WantedBucket(self.axes, self.lengths, (one,)) for one in self.ranges]

    @property
    def widest(self) -> Range:
        return self.ranges[0]

    def at(self, binds: Sequence[Bind], lengths: Lengths) -> list[Bind]:
        """The shapes of a request with these lengths, given those of the one that asks."""
        more = (0, *(b - a for a, b in zip(self.lengths, lengths, strict=True)))
        return [
            msgspec.structs.replace(bind, shape=[dim + more[number] for dim, number in zip(bind.shape, row, strict=True)])
            for bind, row in zip(binds, self.axes, strict=True)
        ]

    def largest(self, binds: Sequence[Bind], one: Range) -> list[Bind]:
        """The shapes of the largest request of a range, given those of the one that asks."""
        return self.at(binds, tuple(e * one.unit + length % one.unit for e, length in zip(one.most, self.lengths, strict=True)))


class ServedBucket(msgspec.Struct, frozen=True, array_like=True):
    """The bucket that a plan serves, and how the shapes of its inputs and outputs follow from the extents. `chosen`: numbers of those
    lengths that are extents of the plan; None: all. The plan does not depend on the others."""

    range: Range
    values: list[extents.Row]
    inputs: list[list[Follows]]
    outputs: list[list[Follows]]
    chosen: tuple[int, ...] | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(range(len(self.range.most))) if self.chosen is None else self.chosen

    def word(self, found: Lengths) -> int:
        """The word of a request, given the extents of all its lengths."""
        return extents.word([found[k] for k in self.lengths])


def narrow_bucket(extent: int) -> tuple[int, int] | None:
    """Return the extents that share a plan with this one: from a power of two on, or from half way to the next."""
    if not POLICY.least_extent <= extent <= POLICY.most_extent:
        return None
    power, short = 1 << extent.bit_length() - 1, POLICY.short_extent
    if power < short:
        return (POLICY.least_extent, short // 2 - 1) if extent < short // 2 else (short // 2, short - 1)
    middle = power + power // 2
    return (power, middle - 1) if extent < middle else (middle, 2 * power - 1)


def broad_bucket(extent: int) -> tuple[int, int] | None:
    """Return as `narrow_bucket` the bucket of a partition with few ends; it consists of narrow ones."""
    if not POLICY.least_extent <= extent <= POLICY.most_extent:
        return None
    least, most = POLICY.least_extent, 2 * POLICY.short_extent - 1
    while extent > most:
        least, most = most + 1, POLICY.broad_factor * (most + 1) - 1
    return least, most


def side_bucket(extent: int, factor: int) -> tuple[int, int]:
    """Return as `narrow_bucket` the bucket of one of several lengths. Each begins where the one before ends, because sides of pictures are
    often such lengths, and ends at `factor` times as much."""
    least, most = POLICY.least_extent, POLICY.short_side
    while extent > most:
        least, most = most, factor * most
    return least, most


def wide_bucket(extent: int, grows: Callable[[int, int], int]) -> tuple[int, int] | None:
    """Return as `narrow_bucket` the bucket of an extent where each is so many times as large as the one before: the most times for which
    `grows(least, most)` bytes are few."""
    for factor in POLICY.wide_factors:
        least, most = POLICY.least_extent, factor * POLICY.short_extent - 1
        while extent > most:
            least, most = most + 1, factor * (most + 1) - 1
        if grows(least, most) <= POLICY.wide_bytes:
            return least, most
    return None


def halves(least: int, most: int, extent: int) -> Iterator[tuple[int, int]]:
    """Yield the bucket, then ever smaller halves of it with the extent in them."""
    for _ in range(POLICY.halvings):
        if most <= least:
            return
        yield least, most
        middle = (least + most + 1) // 2
        least, most = (least, middle - 1) if extent < middle else (middle, most)


def flat(stages: Stages) -> list[Bind]:
    """Return the binds of all stages in one list."""
    return list(chain.from_iterable(stages))


def nested(binds: Sequence[Bind], like: Stages) -> list[list[Bind]]:
    """The same by stages, which are as long as those of another request."""
    rest = iter(binds)
    return [[next(rest) for _ in stage] for stage in like]


def structure(stages: Stages, capacities: Sequence[Capacity]) -> bytes:
    """Return what requests have in common that may share plans: all but the extents of tensors that are not bound by value."""
    rows = [[(b.name, b.dtype, b.value, len(b.shape) if _is_free(b) else b.shape) for b in stage] for stage in stages]
    return msgspec.msgpack.encode((rows, capacities))


def _is_free(bind: Bind) -> bool:
    return bind.value is None and bind.dtype != "object"


def difference(one: Sequence[Bind], two: Sequence[Bind], most: int = extents.MOST_EXTENTS) -> Axes | None:
    """Return the axes of the lengths in which the shapes of two requests differ; None where they differ otherwise, or by more than
    `most`."""
    if [(a.name, a.dtype, len(a.shape)) for a in one] != [(b.name, b.dtype, len(b.shape)) for b in two]:
        return None
    rows = [[b - a for a, b in zip(x.shape, y.shape, strict=True)] for x, y in zip(one, two, strict=True)]
    numbers = {0: 0}
    for step in (step for row in rows for step in row):
        numbers.setdefault(step, len(numbers))
    return tuple(tuple(numbers[step] for step in row) for row in rows) if 2 <= len(numbers) <= most + 1 else None


def count(axes: Axes) -> int:
    """How many lengths there are."""
    return max((number for row in axes for number in row), default=0)


def lengths_of(binds: Sequence[Bind], axes: Axes) -> Lengths:
    """Return the lengths of a request, each of which is the smallest of its dimensions."""
    found = [(number, dim) for bind, row in zip(binds, axes, strict=True) for dim, number in zip(bind.shape, row, strict=True)]
    return tuple(min(dim for number, dim in found if number == k) for k in range(1, count(axes) + 1))


def symbols_of(shapes: Sequence[Sequence[int | str] | None]) -> list[Axes]:
    """Return the axes of each name that a model's inputs, of these shapes, have for dimensions."""
    names = dict.fromkeys(dim for shape in shapes for dim in shape or () if isinstance(dim, str) and dim)
    return [tuple(tuple(int(dim == name) for dim in shape or ()) for shape in shapes) for name in names]


def _together(found: Sequence[Axes]) -> Axes | None:
    """Several lengths as one set of axes; None where there are too few or too many, or two are in one axis."""
    if not 2 <= len(found) <= extents.MOST_EXTENTS:
        return None
    inputs = [list(zip(*rows, strict=True)) for rows in zip(*found, strict=True)]
    if any(sum(map(bool, axis)) > 1 for axes in inputs for axis in axes):
        return None
    return tuple(tuple(sum(k * bool(number) for k, number in enumerate(axis, 1)) for axis in axes) for axes in inputs)


def _is_picture(axes: Axes) -> bool:
    """Whether an input has two of the lengths behind its batch."""
    return any(len({*row[1:]} - {0}) > 1 for row in axes)


def _changed(one: Sequence[Bind], two: Sequence[Bind], axes: Axes) -> bool:
    """Whether two requests differ in these axes, in all by the same number."""
    if not _fits(one, axes):
        return False
    rows = zip(one, two, axes, strict=True)
    steps = {b - a for x, y, row in rows for a, b, long in zip(x.shape, y.shape, row, strict=True) if long}
    return len(steps) == 1 and steps != {0}


def family(binds: Sequence[Bind], axes: Axes, unit: int = 1) -> bytes:
    """Return what requests have in common that differ by these lengths alone, each by a multiple of `unit`."""
    less = (0, *(length // unit * unit for length in lengths_of(binds, axes)))
    rows = [
        (bind.name, bind.dtype, [dim - less[number] for dim, number in zip(bind.shape, row, strict=True)], row)
        for bind, row in zip(binds, axes, strict=True)
    ]
    return msgspec.msgpack.encode((rows, unit))


def slots(largest: Sequence[Slot], follows: Sequence[Sequence[Follows]], less: Sequence[int]) -> list[Slot]:
    """Return inputs or outputs where each value is smaller by `less`."""
    out = []
    for slot, row in zip(largest, follows, strict=True):
        shape = list(slot.shape)
        for one in row:
            shape[one.axis] -= one.per * less[one.value]
        nbytes = slot.nbytes // max(prod(slot.shape), 1) * prod(shape)
        out.append(Slot(slot.name, slot.dtype, shape, slot.offset, nbytes))
    return out


Place = tuple[bytes, Lengths, int]
"""A bucket: what its requests have in common, its smallest extents, and its unit."""


@dataclass(slots=True)
class Buckets:
    """The buckets of a stage of a model.

    | field | meaning |
    |---|---|
    | `inputs` | how many binds are inputs of the model, for a stage behind others; 0: it is the first stage |
    | `plans` | ranges and keys of plans, by what their requests have in common (`family`) |
    | `refused` | the buckets for which there is no plan |
    | `misses` | how often in a row there was no plan for some axes |
    | `narrow` | lengths that have no wide bucket |
    | `split` | buckets that are not broad |
    | `hopeless` | lengths that have no bucket at all |
    | `shapes` | the shapes that were asked for last |
    | `lengths` | the axes of the lengths that these differ by |
    """

    inputs: int = 0
    plans: dict[bytes, list[tuple[Range, bytes]]] = field(default_factory=dict)
    refused: set[Place] = field(default_factory=set)
    narrow: set[Axes] = field(default_factory=set)
    split: set[Place] = field(default_factory=set)
    hopeless: set[Axes] = field(default_factory=set)
    misses: dict[Axes, int] = field(default_factory=dict)
    lengths: list[Axes] = field(default_factory=list)
    shapes: list[list[Bind]] = field(default_factory=list)

    def learn(self, binds: list[Bind], symbols: Sequence[Axes] = ()) -> None:
        """A request has these shapes. `symbols`: the axes that the model itself gives one name each. Where several of them have changed at
        once, a plan may serve them together; if there is none, the longest is the length."""
        if any(binds == known for known in self.shapes):
            return
        found: list[Axes] = []
        if self.shapes:
            changed = [axes for axes in symbols if _fits(binds, axes) and _changed(self.shapes[-1], binds, axes)]
            together = _together(changed)
            found += ([] if together is None else [together]) + sorted(changed, key=partial(lengths_of, binds), reverse=True)
        most = MOST_BEHIND if self.inputs else extents.MOST_EXTENTS
        apart = [axes for known in reversed(self.shapes) if (axes := difference(known, binds, most)) is not None]
        alone = [axes for axes in apart if count(axes) == 1]
        self.lengths += [axes for axes in dict.fromkeys([*alone[:1], *(found or apart[:1])]) if axes not in self.lengths]
        self.shapes.append(binds)
        del self.shapes[: -POLICY.remembered_shapes]

    def find(self, binds: Sequence[Bind]) -> bytes | None:
        """The key of a plan that serves these shapes."""
        for axes in self.lengths:
            if not _fits(binds, axes):
                continue
            lengths = lengths_of(binds, axes)
            for unit in (1, POLICY.coarse_unit):
                for served, key in self.plans.get(family(binds, axes, unit), ()):
                    if served.extents(lengths) is not None:
                        return key
        return None

    def wanted(self, binds: Sequence[Bind]) -> WantedBucket | None:
        """Return the bucket to make a plan for, for these shapes; None where no length is known, or there is no such plan."""
        if len(self.refused) >= POLICY.refusals and not self.plans and not self.inputs:
            return None
        # A plan for more lengths serves requests that differ in some of them, too: pictures of the same height, say.
        for axes in sorted(self.lengths, key=count, reverse=True):
            if not _fits(binds, axes) or axes in self.hopeless or (self.inputs and self.misses.get(axes, 0) >= POLICY.refusals):
                continue
            lengths = lengths_of(binds, axes)
            ranges = self._sides(binds, axes, lengths) if count(axes) > 1 else self._ranges(binds, axes, lengths)
            if ranges and (family(binds, axes, ranges[-1].unit), ranges[-1].least, ranges[-1].unit) not in self.refused:
                return WantedBucket(axes, lengths, tuple(ranges))
        return None

    def _ranges(self, binds: Sequence[Bind], axes: Axes, lengths: Lengths) -> list[Range]:
        """Ranges of one length. A wide one suits a model whose time goes into what does not have the length. A broad one suits models whose
        plan for the longest extent fits the shortest. The last is narrow."""
        (length,) = lengths
        found = narrow_bucket(length)
        if found is None or self._few(found, axes):
            return []
        wide = None if axes in self.narrow else wide_bucket(length, partial(_grows, binds, WantedBucket(axes, lengths, ())))
        broad = broad_bucket(length)
        if broad is not None and (family(binds, axes), (broad[0],), 1) in self.split:
            broad = None
        chosen: dict[tuple[int, int], Range] = {}
        for ends, demand in ((found, "none"), (broad, "busy"), (wide, "even")):
            if ends is not None and ends not in chosen:
                chosen[ends] = Range((ends[0],), (ends[1],), 1, demand)  # type: ignore[arg-type]
        return list(reversed(chosen.values()))

    def _sides(self, binds: Sequence[Bind], axes: Axes, lengths: Lengths) -> list[Range]:
        """Ranges of several lengths: the larger ones first, then the same in coarse steps, if the lengths are such. Texts have broad ones,
        because their batches are small where they are long. So have lengths that follow from data."""
        found = []
        partitions: list[Callable[[int], tuple[int, int] | None]] = [] if _is_picture(axes) else [broad_bucket]
        partitions += [partial(side_bucket, factor=factor) for factor in POLICY.side_factors]
        given = {number for row in axes[: self.inputs or len(axes)] for number in row}
        for unit in (1, POLICY.coarse_unit):
            if min(lengths) < POLICY.least_extent or any(length % unit for length in lengths):
                continue
            for bucket in partitions:
                buckets = [bucket if number in given else broad_bucket for number in range(1, len(lengths) + 1)]
                ends = [end for length, own in zip(lengths, buckets, strict=True) if (end := own(length)) is not None]
                if len(ends) < len(lengths):
                    continue
                least, most = (tuple(end[k] for end in ends) for k in range(2))
                one = Range(tuple(-(-a // unit) for a in least), tuple(b // unit for b in most), unit, "busy")
                # A plan of a stage behind others may have fewer extents.
                fits = bool(self.inputs) or all(b <= room for b, room in zip(one.most, extents.room(len(lengths)), strict=True))
                if fits and one.extents(lengths) is not None and (family(binds, axes, unit), one.least, unit) not in self.split:
                    found.append(one)
        return found

    def _few(self, found: tuple[int, int], axes: Axes) -> bool:
        """Whether requests have shown that lengths of these axes come in steps of which a bucket holds few."""
        known = [(bind.shape, row) for binds in self.shapes if _fits(binds, axes) for bind, row in zip(binds, axes, strict=True)]
        lengths = {dim for shape, row in known for dim, long in zip(shape, row, strict=True) if long}
        step, held = gcd(*lengths), found[1] - found[0] + 1
        stepped = len(lengths) >= POLICY.stepped_lengths and step >= POLICY.least_step
        return stepped and held < POLICY.worth_lengths * step

    def add(self, binds: Sequence[Bind], bucket: WantedBucket, served: Range, key: bytes) -> None:
        """There is a plan for a part of a bucket. Ranges that were tried before are not tried again."""
        for one in bucket.ranges[:-1]:
            if served.covers(one):
                break
            if one.demand == "even":
                self.narrow.add(bucket.axes)
            else:
                self.split.add((family(binds, bucket.axes, one.unit), one.least, one.unit))
        self.misses.pop(bucket.axes, None)
        known = self.plans.setdefault(family(binds, bucket.axes, served.unit), [])
        if (served, key) not in known:
            known.append((served, key))

    def refuse(self, binds: Sequence[Bind], bucket: WantedBucket, no_bucket: bool) -> None:
        """There is no plan for this bucket; `no_bucket`: for none of the length."""
        if no_bucket:
            self.hopeless.add(bucket.axes)
        self.misses[bucket.axes] = self.misses.get(bucket.axes, 0) + 1
        last = bucket.ranges[-1]
        self.refused.add((family(binds, bucket.axes, last.unit), last.least, last.unit))

    def drop(self, key: bytes) -> None:
        """The plan has gone."""
        for rows in self.plans.values():
            rows[:] = [row for row in rows if row[1] != key]


class StageBuckets:
    """The buckets of all stages of a model, by what requests that may share plans have in common (`structure`)."""

    def __init__(self) -> None:
        self._of: dict[bytes, Buckets] = {}

    def of(self, stages: Stages, capacities: Sequence[Capacity]) -> Buckets:
        """Those of a stage. Those that were asked for longest ago are forgotten where they are many and have no plans."""
        key = structure(stages, capacities)
        found = self._of.pop(key, None) or Buckets(len(stages[0]) if len(stages) > 1 else 0)
        self._of[key] = found
        if len(self._of) > POLICY.remembered_stages:
            idle = next((key for key, one in self._of.items() if one is not found and not any(one.plans.values())), None)
            if idle is not None:
                del self._of[idle]
        return found

    def keys(self) -> set[bytes]:
        """Return the keys of all plans that serve buckets."""
        return {key for one in self._of.values() for rows in one.plans.values() for _, key in rows}

    def drop(self, key: bytes) -> None:
        """The plan has gone."""
        for one in self._of.values():
            one.drop(key)


def _fits(binds: Sequence[Bind], axes: Axes) -> bool:
    return len(binds) == len(axes) and all(len(bind.shape) == len(row) for bind, row in zip(binds, axes, strict=True))


def _grows(binds: Sequence[Bind], bucket: WantedBucket, least: int, most: int) -> int:
    """Bytes by which inputs are larger at `most`."""
    long, short = (bucket.at(binds, (length,)) for length in (most, least))
    return sum(_BYTES.get(a.dtype, 0) * (prod(a.shape) - prod(b.shape)) for a, b in zip(long, short, strict=True))
