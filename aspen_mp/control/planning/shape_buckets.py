"""Shape buckets: which requests may share a plan, those whose shapes differ by one length alone.

A model does not say which of its dimensions go together (a text's tokens, or past keys and all keys at each step of a decoder), requests
do: where the dimensions in which two of them differ all differ by the same number, those are one length. Its *extent* is the smallest of
them. A *shape bucket* is a range of extents that one plan serves; buckets are so large that few are needed, and so small that what is
planned for the longest extent fits the others (`planner/job/bucket_policy.py`). Light: see `cache_reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import gcd, prod
from typing import Final

import msgspec

from aspen_mp.control.wire.protocol import Bind, Slot, Steps
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.shm.bindings import _tables

_BYTES: Final = {name: nbytes for _, _, nbytes, _, _, name, _ in _tables.DTYPE_ROWS}

Axes = tuple[tuple[bool, ...], ...]
"""Of each axis of each input, whether the length is in it."""


class WantedBucket(msgspec.Struct, frozen=True, array_like=True):
    """A bucket to make a plan for: its extents, the extent of the request that asks, and which axes of which inputs the length is in.

    `wide`: a larger bucket, for a model whose time goes into what does not have the length: a decoder's step, whose products do not.
    `broad`: one for models whose plan for its longest extent suits its shortest, too."""

    least: int
    most: int
    extent: int
    axes: Axes
    wide: tuple[int, int] | None = None
    broad: tuple[int, int] | None = None

    @property
    def choices(self) -> list[WantedBucket]:
        """The same for each of these buckets alone, in the order in which they are tried."""
        found = dict.fromkeys([self.wide, self.broad, (self.least, self.most)])
        return [WantedBucket(*ends, self.extent, self.axes) for ends in found if ends is not None]

    @property
    def widest(self) -> WantedBucket:
        return self.choices[0]

    def at(self, binds: Sequence[Bind], extent: int) -> list[Bind]:
        """The shapes of a request with this extent, given those of the one that asks."""
        return [
            msgspec.structs.replace(
                bind, shape=[dim + (extent - self.extent if long else 0) for dim, long in zip(bind.shape, row, strict=True)]
            )
            for bind, row in zip(binds, self.axes, strict=True)
        ]


class ServedBucket(msgspec.Struct, frozen=True, array_like=True):
    """The bucket that a plan serves, and how the shapes of its inputs and outputs change with the extent."""

    least: int
    most: int
    inputs: list[list[Steps]]
    outputs: list[list[Steps]]


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


def difference(one: Sequence[Bind], two: Sequence[Bind]) -> Axes | None:
    """Return the axes of the one length in which the shapes of two requests differ; None where it is none, or more."""
    if [(a.name, a.dtype, len(a.shape)) for a in one] != [(b.name, b.dtype, len(b.shape)) for b in two]:
        return None
    steps = {b - a for x, y in zip(one, two, strict=True) for a, b in zip(x.shape, y.shape, strict=True) if a != b}
    if len(steps) != 1:
        return None
    return tuple(tuple(a != b for a, b in zip(x.shape, y.shape, strict=True)) for x, y in zip(one, two, strict=True))


def extent_of(binds: Sequence[Bind], axes: Axes) -> int:
    return min(dim for bind, row in zip(binds, axes, strict=True) for dim, long in zip(bind.shape, row, strict=True) if long)


def symbols_of(shapes: Sequence[Sequence[int | str] | None]) -> list[Axes]:
    """Return the axes of each name that a model's inputs, of these shapes, have for dimensions."""
    names = dict.fromkeys(dim for shape in shapes for dim in shape or () if isinstance(dim, str) and dim)
    return [tuple(tuple(dim == name for dim in shape or ()) for shape in shapes) for name in names]


def _changed(one: Sequence[Bind], two: Sequence[Bind], axes: Axes) -> bool:
    """Whether two requests differ in these axes, in all by the same number."""
    if not _fits(one, axes):
        return False
    rows = zip(one, two, axes, strict=True)
    steps = {b - a for x, y, row in rows for a, b, long in zip(x.shape, y.shape, row, strict=True) if long}
    return len(steps) == 1 and steps != {0}


def family(binds: Sequence[Bind], axes: Axes, extent: int) -> bytes:
    """Return what requests have in common that differ by the extent alone."""
    rows = [
        (bind.name, bind.dtype, [dim - extent if long else dim for dim, long in zip(bind.shape, row, strict=True)], row)
        for bind, row in zip(binds, axes, strict=True)
    ]
    return msgspec.msgpack.encode(rows)


def slots(at_most: Sequence[Slot], steps: Sequence[Sequence[Steps]], less: int) -> list[Slot]:
    """Return inputs or outputs at an extent that is so much smaller."""
    out = []
    for slot, row in zip(at_most, steps, strict=True):
        shape = list(slot.shape)
        for step in row:
            shape[step.axis] -= step.per * ((less + step.rest) // step.every)
        nbytes = slot.nbytes // max(prod(slot.shape), 1) * prod(shape)
        out.append(Slot(slot.name, slot.dtype, shape, slot.offset, nbytes))
    return out


@dataclass(slots=True)
class Buckets:
    """The buckets of a model: `plans` by what their requests have in common (`family`), each (least, most, key of the plan); the buckets
    for which there is none (`refused`); lengths that have no wide bucket (`narrow`), buckets that are not broad (`split`), lengths that
    have none (`hopeless`); `shapes` that were asked for, and the axes of the `lengths` that they differ by."""

    plans: dict[bytes, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    refused: set[tuple[bytes, int]] = field(default_factory=set)
    narrow: set[Axes] = field(default_factory=set)
    split: set[tuple[bytes, int]] = field(default_factory=set)
    hopeless: set[Axes] = field(default_factory=set)
    lengths: list[Axes] = field(default_factory=list)
    shapes: list[list[Bind]] = field(default_factory=list)

    def learn(self, binds: list[Bind], symbols: Sequence[Axes] = ()) -> None:
        """A request has these shapes. `symbols`: the axes that the model itself gives one name each. Where several of them have changed at
        once, the longest is the length, unless there is no plan for it."""
        if any(binds == known for known in self.shapes):
            return
        found: list[Axes] = []
        for known in reversed(self.shapes):
            axes = difference(known, binds)
            if axes is not None:
                found.append(axes)
                break
        if self.shapes:
            changed = [axes for axes in symbols if _fits(binds, axes) and _changed(self.shapes[-1], binds, axes)]
            found += sorted(changed, key=partial(extent_of, binds), reverse=True)
        self.lengths += [axes for axes in dict.fromkeys(found) if axes not in self.lengths]
        self.shapes.append(binds)
        del self.shapes[: -POLICY.remembered_shapes]

    def find(self, binds: Sequence[Bind]) -> bytes | None:
        """The key of a plan that serves these shapes."""
        for axes in self.lengths:
            if not _fits(binds, axes):
                continue
            extent = extent_of(binds, axes)
            for least, most, key in self.plans.get(family(binds, axes, extent), ()):
                if least <= extent <= most:
                    return key
        return None

    def wanted(self, binds: Sequence[Bind]) -> WantedBucket | None:
        """Return the bucket to make a plan for, for these shapes; None where no length is known, or there is no such plan."""
        if len(self.refused) >= POLICY.refusals and not self.plans:
            return None
        for axes in self.lengths:
            if not _fits(binds, axes) or axes in self.hopeless:
                continue
            extent = extent_of(binds, axes)
            found = narrow_bucket(extent)
            if found is not None and self._few(found, axes):
                continue
            if found is not None and (family(binds, axes, extent), found[0]) not in self.refused:
                bucket = WantedBucket(*found, extent, axes)
                wide = None if axes in self.narrow else wide_bucket(extent, partial(_grows, binds, bucket))
                broad = broad_bucket(extent)
                if broad is not None and (family(binds, axes, extent), broad[0]) in self.split:
                    broad = None
                return msgspec.structs.replace(bucket, wide=None if wide == found else wide, broad=None if broad == found else broad)
        return None

    def _few(self, found: tuple[int, int], axes: Axes) -> bool:
        """Whether requests have shown that lengths of these axes come in steps of which a bucket holds few."""
        known = [(bind.shape, row) for binds in self.shapes if _fits(binds, axes) for bind, row in zip(binds, axes, strict=True)]
        lengths = {dim for shape, row in known for dim, long in zip(shape, row, strict=True) if long}
        step, held = gcd(*lengths), found[1] - found[0] + 1
        stepped = len(lengths) >= POLICY.stepped_lengths and step >= POLICY.least_step
        return stepped and held < POLICY.worth_lengths * step

    def add(self, binds: Sequence[Bind], bucket: WantedBucket, least: int, most: int, key: bytes) -> None:
        if bucket.wide is not None and (least, most) != bucket.wide:
            self.narrow.add(bucket.axes)
        if bucket.broad is not None and (least, most) not in (bucket.wide, bucket.broad):
            self.split.add((family(binds, bucket.axes, bucket.extent), bucket.broad[0]))
        known = self.plans.setdefault(family(binds, bucket.axes, bucket.extent), [])
        if (least, most, key) not in known:
            known.append((least, most, key))

    def refuse(self, binds: Sequence[Bind], bucket: WantedBucket, no_bucket: bool) -> None:
        """There is no plan for this bucket; `no_bucket`: for none of the length."""
        if no_bucket:
            self.hopeless.add(bucket.axes)
        self.refused.add((family(binds, bucket.axes, bucket.extent), bucket.least))

    def drop(self, key: bytes) -> None:
        """The plan has gone."""
        for rows in self.plans.values():
            rows[:] = [row for row in rows if row[2] != key]


def _fits(binds: Sequence[Bind], axes: Axes) -> bool:
    return len(binds) == len(axes) and all(len(bind.shape) == len(row) for bind, row in zip(binds, axes, strict=True))


def _grows(binds: Sequence[Bind], bucket: WantedBucket, least: int, most: int) -> int:
    """Bytes by which inputs are larger at `most`."""
    long, short = (bucket.at(binds, extent) for extent in (most, least))
    return sum(_BYTES.get(a.dtype, 0) * (prod(a.shape) - prod(b.shape)) for a, b in zip(long, short, strict=True))
