"""What clients count of their own requests, added up for `status`: endings by outcome, durations, time in the queue, waits for plans.

Requests do not pass through the planner process. Each client counts its own in memory that the planner process made and keeps a descriptor
of (`shm/bindings/_tally.pyi`), so that nothing is lost with a client that is killed. The numbers are the clients' word: they are shown,
nothing is decided by them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aspen_mp.control.wire import status
from aspen_mp.shm.bindings import _tally
from aspen_mp.system import descriptors

MOST_NAMES: Final = 256
"""Models that are told apart; further ones are counted together."""
OTHERS: Final = "(others)"
_BUCKETS: Final = len(_tally.BOUNDS_S) + 1
_WORD: Final = (1 << 64) - 1


@dataclass(slots=True)
class Counts:
    """Of one model, or of the queue, over clients that have gone, or over all. `plans`: as of `_tally.read`."""

    in_flight: int = 0
    outcomes: list[int] = field(default_factory=lambda: [0] * len(_tally.OUTCOMES))
    sum_ns: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    plans: list[int] = field(default_factory=lambda: [0] * 3)

    def add(self, other: Counts) -> None:
        self.in_flight += other.in_flight
        self.sum_ns = (self.sum_ns + other.sum_ns) & _WORD
        self.outcomes = [(a + b) & _WORD for a, b in zip(self.outcomes, other.outcomes, strict=True)]
        self.buckets = [(a + b) & _WORD for a, b in zip(self.buckets, other.buckets, strict=True)]
        self.plans = [(a + b) & _WORD for a, b in zip(self.plans, other.plans, strict=True)]

    def histogram(self) -> status.Histogram:
        """The durations by bucket."""
        return status.Histogram(le=list(_tally.BOUNDS_S), counts=list(self.buckets), sum_s=self.sum_ns / 1e9)


class RequestTotals:
    """`names`: of the models that are loaded, by number."""

    def __init__(self, names: Callable[[], Mapping[int, str]]) -> None:
        self._names = names
        self._known: dict[int, str] = {}
        self._gone: dict[str, Counts] = {}
        self._gone_queue = Counts()

    def make(self) -> int:
        """The memory of a new client's counts: a descriptor, which is the caller's to `close` here."""
        fd = descriptors.memfd_create("aspen-tally", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            descriptors.posix_fallocate(fd, 0, _tally.BYTES)
            descriptors.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            descriptors.close(fd)
            raise
        return fd

    def note_names(self) -> None:
        """Remembers what models are called, before one of them goes."""
        for number, name in self._names().items():
            if number not in self._known and (name in self._known.values() or len(set(self._known.values())) < MOST_NAMES):
                self._known[number] = name
            while len(self._known) > 16 * MOST_NAMES:
                del self._known[next(iter(self._known))]

    def close(self, tally: int) -> None:
        """The client has gone; what it has counted stays."""
        try:
            self.note_names()
            self._take(tally, self._gone, self._gone_queue)
            for counts in self._gone.values():
                counts.in_flight = 0
        finally:
            descriptors.close(tally)

    def describe(self, tallies: Iterable[int]) -> tuple[dict[str, status.Requests], status.Histogram]:
        """The requests of each model, by its name, and the time in the queue. `tallies`: of the clients that are connected."""
        self.note_names()
        models: dict[str, Counts] = {}
        queue = Counts()
        queue.add(self._gone_queue)
        for name, counts in self._gone.items():
            models.setdefault(name, Counts()).add(counts)
        for tally in tallies:
            self._take(tally, models, queue)
        found = {}
        for name, counts in models.items():
            outcomes = dict(zip(_tally.OUTCOMES, counts.outcomes, strict=True))
            derived, waited, waited_ns = counts.plans
            found[name] = status.Requests(
                in_flight=counts.in_flight,
                **outcomes,
                derived=derived,
                waited=waited,
                waited_s=waited_ns / 1e9,
                seconds=counts.histogram(),
            )
        return found, queue.histogram()

    def _take(self, tally: int, models: dict[str, Counts], queue: Counts) -> None:
        for number, in_flight, outcomes, sum_ns, buckets, plans in _tally.read(descriptors.pread(tally, _tally.BYTES, 0)):
            signed = in_flight if in_flight < 1 << 63 else in_flight - (1 << 64)
            counts = Counts(signed, outcomes, sum_ns, buckets, plans)
            if number:
                models.setdefault(self._known.get(number, OTHERS), Counts()).add(counts)
            else:
                queue.add(counts)
