"""A client's data segments: where the inputs and outputs of its requests lie. Segments are asked for as they are needed."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection
from dataclasses import dataclass

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.shm.segments import Segment, spacious
from aspen_mp.system import threads

ALIGN = 64
FIRST_BYTES = 1 << 20
"""The first segment's size. Later ones are at least as large as all before together, so that a client's 64 segments go a long way."""
MAX_STEP = 256 << 20
LEAST_LEFT = 4 << 20
"""Smaller segments are not worth leaving."""
MOST_UNUSED = 16 << 20
"""Unused bytes that a client may keep beside as many as it uses."""


@dataclass(frozen=True, slots=True)
class Span:
    """`nbytes` bytes at `offset` of data segment `index`; `buffer` views the whole segment and keeps it mapped."""

    index: int
    offset: int
    nbytes: int
    buffer: memoryview


class _Free:
    """Free ranges of one segment: sorted, disjoint, none adjacent to another."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.begins = [_control.DATA_FIRST]
        self.ends = [segment.nbytes]

    @property
    def unused(self) -> bool:
        return self.begins == [_control.DATA_FIRST] and self.ends == [self.segment.nbytes]

    @property
    def used(self) -> int:
        return self.segment.nbytes - _control.DATA_FIRST - sum(self.ends) + sum(self.begins)

    def holds(self, nbytes: int) -> bool:
        return any(end - begin >= nbytes for begin, end in zip(self.begins, self.ends, strict=True))

    def take(self, nbytes: int) -> int | None:
        for i, (begin, end) in enumerate(zip(self.begins, self.ends, strict=True)):
            if end - begin >= nbytes:
                if end - begin == nbytes:
                    del self.begins[i], self.ends[i]
                else:
                    self.begins[i] += nbytes
                return begin
        return None

    def give(self, begin: int, end: int) -> None:
        i = bisect.bisect(self.begins, begin)
        joins_left = i > 0 and self.ends[i - 1] == begin
        joins_right = i < len(self.begins) and self.begins[i] == end
        if joins_left and joins_right:
            self.ends[i - 1] = self.ends[i]
            del self.begins[i], self.ends[i]
        elif joins_left:
            self.ends[i - 1] = end
        elif joins_right:
            self.begins[i] = begin
        else:
            self.begins.insert(i, begin)
            self.ends.insert(i, end)


class DataMemory:
    """First fit over the client's data segments. `make(nbytes)` gets another: (index, mapped segment), `drop(index)` returns it."""

    def __init__(self, make: Callable[[int], tuple[int, Segment]], drop: Callable[[int], None]) -> None:
        self._make = make
        self._drop = drop
        self._lock = threads.RLock()  # a region may come back wherever the garbage collector runs
        self._free: dict[int, _Free] = {}
        self._leave: frozenset[int] = frozenset()
        self.spans = 0
        """Ranges that are in use."""

    @property
    def nbytes(self) -> int:
        """Of all segments."""
        return sum(free.segment.nbytes for free in list(self._free.values()))

    def allocate(self, nbytes: int) -> Span:
        """A 64-byte aligned span. ResourceLimitError when no more shared memory can be had."""
        nbytes = _aligned(nbytes)
        with self._lock:
            span = self._first_fit(nbytes, self._leave)
            if span is None:
                try:
                    index, segment = self._another(nbytes + _control.DATA_FIRST)
                except ResourceLimitError:
                    span = self._first_fit(nbytes)
                    if span is None:
                        raise
                else:
                    self._free[index] = _Free(segment)
                    span = self._first_fit(nbytes, self._leave)
                    self._leave = frozenset()  # only so much is worth more segments
            assert span is not None
            self.spans += 1
            return span

    def _first_fit(self, nbytes: int, avoided: Collection[int] = ()) -> Span | None:
        for index, free in self._free.items():
            if index not in avoided:
                offset = free.take(nbytes)
                if offset is not None:
                    return Span(index, offset, nbytes, free.segment.buf)
        return None

    def _another(self, least: int) -> tuple[int, Segment]:
        """A segment of so many bytes or more; where memory is short of no more, and those that hold nothing go before."""
        larger = 0 if self._leave else min(self.nbytes, MAX_STEP)
        wanted = max(least, larger if spacious(larger) else 0, FIRST_BYTES)
        try:
            return self._make(wanted)
        except ResourceLimitError:
            if wanted == least and not any(free.unused for free in self._free.values()):
                raise
        self.trim()
        return self._make(least)

    def has(self, nbytes: int) -> bool:
        """Whether `allocate` would find so many bytes at once. False too while another thread is getting some."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return any(free.holds(_aligned(nbytes)) for free in self._free.values())
        finally:
            self._lock.release()

    def give_back(self, span: Span) -> None:
        with self._lock:
            if span.index in self._free:
                self._free[span.index].give(span.offset, span.offset + span.nbytes)
                self.spans -= 1

    def sparse(self) -> frozenset[int]:
        """Segments to leave, because little of them is used and others hold it as well. `allocate` avoids them until it needs another one.

        There are none while at most as much is unused as is used, and `MOST_UNUSED` more.
        """
        with self._lock:
            used = sum(free.used for free in self._free.values())
            leave = {i for i, free in self._free.items() if free.segment.nbytes >= LEAST_LEFT and 2 * free.used < free.segment.nbytes}
            self._leave = frozenset(leave if self.nbytes > 2 * used + MOST_UNUSED else ())
            return self._leave

    def trim(self) -> None:
        """Returns the segments that hold nothing."""
        with self._lock:
            unused = {i: self._free.pop(i) for i in [i for i, free in self._free.items() if free.unused]}
            self._leave -= unused.keys()  # the next segment may get such a number
        for index, free in unused.items():  # without the lock: others need not wait for the planner process
            free.segment.close()
            self._drop(index)

    def close(self) -> None:
        """Unmaps everything; the planner process reclaims the memory when the client has gone."""
        with self._lock:
            for free in self._free.values():
                free.segment.close()
            self._free.clear()


def _aligned(nbytes: int) -> int:
    return max(ALIGN, -(-nbytes // ALIGN) * ALIGN)
