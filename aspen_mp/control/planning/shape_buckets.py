"""Which requests may share a plan: those whose shapes differ by one length alone.

A model does not say which of its dimensions go together (a text's tokens, or past keys and all keys at each step of a decoder), requests
do: where the dimensions in which two of them differ all differ by the same number, those are one length. Its *extent* is the smallest of
them. One plan serves the extents of a class; classes are so large that few are needed, and so small that what is planned for the longest
fits the others. Light: see `recall`.
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

Mask = tuple[tuple[bool, ...], ...]
"""Of each axis of each input, whether the length is in it."""


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """The extents of a class, the one of the request that asks, and which axes of which inputs the length is in.

    `wide`: a larger class, for a model whose time goes into what does not have the length: a decoder's step, whose products do not."""

    least: int
    most: int
    extent: int
    mask: list[list[bool]]
    wide: tuple[int, int] | None = None

    @property
    def widest(self) -> Stretch:
        """The same for the larger class alone, if there is one."""
        return self if self.wide is None else Stretch(*self.wide, self.extent, self.mask)

    @property
    def narrow(self) -> Stretch:
        return Stretch(self.least, self.most, self.extent, self.mask)

    @property
    def axes(self) -> Mask:
        return tuple(map(tuple, self.mask))

    def at(self, binds: Sequence[Bind], extent: int) -> list[Bind]:
        """The shapes of a request with this extent, given those of the one that asks."""
        return [
            msgspec.structs.replace(
                bind, shape=[dim + (extent - self.extent if long else 0) for dim, long in zip(bind.shape, row, strict=True)]
            )
            for bind, row in zip(binds, self.mask, strict=True)
        ]


class Stretched(msgspec.Struct, frozen=True, array_like=True):
    """What a plan for a range serves, and how its inputs' and outputs' shapes change."""

    least: int
    most: int
    inputs: list[list[Steps]]
    outputs: list[list[Steps]]


def classes(extent: int) -> tuple[int, int] | None:
    """The extents that share a plan with this one: from a power of two on, or from half way to the next."""
    if not POLICY.least_extent <= extent <= POLICY.most_extent:
        return None
    power, short = 1 << extent.bit_length() - 1, POLICY.short_extent
    if power < short:
        return (POLICY.least_extent, short // 2 - 1) if extent < short // 2 else (short // 2, short - 1)
    middle = power + power // 2
    return (power, middle - 1) if extent < middle else (middle, 2 * power - 1)


def wide_class(extent: int, grows: Callable[[int, int], int]) -> tuple[int, int] | None:
    """As `classes`, each so many times as large as the one before: the most for which `grows(least, most)` bytes are few."""
    for factor in POLICY.wide_factors:
        least, most = POLICY.least_extent, factor * POLICY.short_extent - 1
        while extent > most:
            least, most = most + 1, factor * (most + 1) - 1
        if grows(least, most) <= POLICY.wide_bytes:
            return least, most
    return None


def around(least: int, most: int, extent: int) -> Iterator[tuple[int, int]]:
    """The range, and smaller parts of it with the extent in them."""
    for _ in range(POLICY.halvings):
        if most <= least:
            return
        yield least, most
        middle = (least + most + 1) // 2
        least, most = (least, middle - 1) if extent < middle else (middle, most)


def difference(one: Sequence[Bind], two: Sequence[Bind]) -> Mask | None:
    """The axes of the one length in which the shapes of two requests differ; None where it is none, or more."""
    if [(a.name, a.dtype, len(a.shape)) for a in one] != [(b.name, b.dtype, len(b.shape)) for b in two]:
        return None
    steps = {b - a for x, y in zip(one, two, strict=True) for a, b in zip(x.shape, y.shape, strict=True) if a != b}
    if len(steps) != 1:
        return None
    return tuple(tuple(a != b for a, b in zip(x.shape, y.shape, strict=True)) for x, y in zip(one, two, strict=True))


def extent_of(binds: Sequence[Bind], mask: Mask) -> int:
    return min(dim for bind, row in zip(binds, mask, strict=True) for dim, long in zip(bind.shape, row, strict=True) if long)


def frame(binds: Sequence[Bind], mask: Mask, extent: int) -> bytes:
    """What requests have in common that differ by the extent alone."""
    rows = [
        (bind.name, bind.dtype, [dim - extent if long else dim for dim, long in zip(bind.shape, row, strict=True)], row)
        for bind, row in zip(binds, mask, strict=True)
    ]
    return msgspec.msgpack.encode(rows)


def slots(at_most: Sequence[Slot], steps: Sequence[Sequence[Steps]], less: int) -> list[Slot]:
    """Inputs or outputs at an extent that is so much smaller."""
    out = []
    for slot, row in zip(at_most, steps, strict=True):
        shape = list(slot.shape)
        for step in row:
            shape[step.axis] -= step.per * ((less + step.rest) // step.every)
        nbytes = slot.nbytes // max(prod(slot.shape), 1) * prod(shape)
        out.append(Slot(slot.name, slot.dtype, shape, slot.offset, nbytes))
    return out


@dataclass(slots=True)
class Ranges:
    """Of a model: `plans` for ranges by what their requests have in common (`frame`), each (least, most, key of the plan); the classes for
    which there is none (`rigid`); lengths that no large class is for (`narrow`), and those that no class is for (`hopeless`); shapes that
    were asked for, and the lengths that they differ by (`masks`)."""

    plans: dict[bytes, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    rigid: set[tuple[bytes, int]] = field(default_factory=set)
    narrow: set[Mask] = field(default_factory=set)
    hopeless: set[Mask] = field(default_factory=set)
    masks: list[Mask] = field(default_factory=list)
    shapes: list[list[Bind]] = field(default_factory=list)

    def learn(self, binds: list[Bind]) -> None:
        """A request has these shapes."""
        if any(binds == known for known in self.shapes):
            return
        for known in reversed(self.shapes):
            mask = difference(known, binds)
            if mask is not None:
                if mask not in self.masks:
                    self.masks.append(mask)
                break
        self.shapes.append(binds)
        del self.shapes[: -POLICY.remembered_shapes]

    def find(self, binds: Sequence[Bind]) -> bytes | None:
        """The key of a plan that serves these shapes."""
        for mask in self.masks:
            if not _fits(binds, mask):
                continue
            extent = extent_of(binds, mask)
            for least, most, key in self.plans.get(frame(binds, mask, extent), ()):
                if least <= extent <= most:
                    return key
        return None

    def wanted(self, binds: Sequence[Bind]) -> Stretch | None:
        """The range of a plan to make for these shapes; None where none is known, or there is no such plan."""
        if len(self.rigid) >= POLICY.refusals and not self.plans:
            return None
        for mask in self.masks:
            if not _fits(binds, mask) or mask in self.hopeless:
                continue
            extent = extent_of(binds, mask)
            found = classes(extent)
            if found is not None and self._few(found, mask):
                continue
            if found is not None and (frame(binds, mask, extent), found[0]) not in self.rigid:
                stretch = Stretch(*found, extent, [list(row) for row in mask])
                wide = None if mask in self.narrow else wide_class(extent, partial(_grows, binds, stretch))
                return stretch if wide == found else msgspec.structs.replace(stretch, wide=wide)
        return None

    def _few(self, found: tuple[int, int], mask: Mask) -> bool:
        """Whether requests have shown that lengths of these axes come in steps of which a class holds few."""
        known = [(bind.shape, row) for binds in self.shapes if _fits(binds, mask) for bind, row in zip(binds, mask, strict=True)]
        lengths = {dim for shape, row in known for dim, long in zip(shape, row, strict=True) if long}
        step, held = gcd(*lengths), found[1] - found[0] + 1
        stepped = len(lengths) >= POLICY.stepped_lengths and step >= POLICY.least_step
        return stepped and held < POLICY.worth_lengths * step

    def add(self, binds: Sequence[Bind], stretch: Stretch, least: int, most: int, key: bytes) -> None:
        if stretch.wide is not None and (least, most) != stretch.wide:
            self.narrow.add(stretch.axes)
        known = self.plans.setdefault(frame(binds, stretch.axes, stretch.extent), [])
        if (least, most, key) not in known:
            known.append((least, most, key))

    def refuse(self, binds: Sequence[Bind], stretch: Stretch, rigid: bool) -> None:
        """There is no plan for this range; `rigid`: for none of the length."""
        if rigid:
            self.hopeless.add(stretch.axes)
        self.rigid.add((frame(binds, stretch.axes, stretch.extent), stretch.least))

    def drop(self, key: bytes) -> None:
        """The plan has gone."""
        for rows in self.plans.values():
            rows[:] = [row for row in rows if row[2] != key]


def _fits(binds: Sequence[Bind], mask: Mask) -> bool:
    return len(binds) == len(mask) and all(len(bind.shape) == len(row) for bind, row in zip(binds, mask, strict=True))


def _grows(binds: Sequence[Bind], stretch: Stretch, least: int, most: int) -> int:
    """Bytes by which inputs are larger at `most`."""
    long, short = (stretch.at(binds, extent) for extent in (most, least))
    return sum(_BYTES.get(a.dtype, 0) * (prod(a.shape) - prod(b.shape)) for a, b in zip(long, short, strict=True))
