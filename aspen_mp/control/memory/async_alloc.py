"""Memory for large segments is reserved by a process forked for it. The kernel takes up to a second a gigabyte, and the planner process has
to see to workers' deaths meanwhile."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.control.wire.forked import FAILED, end, forked
from aspen_mp.shm.errors import AspenError, ResourceLimitError
from aspen_mp.shm.scarcity import reason
from aspen_mp.shm.segments import Segment, reserve_for
from aspen_mp.system import descriptors

AT_ONCE: Final = 16 << 20
"""Up to so many bytes are reserved here: that takes no longer than a fork."""
PROCESSES: Final = 2
"""This many processes reserve at a time; further segments wait."""

Then = Callable[[Segment | AspenError], None]
Holes = Sequence[tuple[int, int]]


class AsyncAllocator:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[str, int, Then, Holes]] = deque()
        self._pids: set[int] = set()

    def reserve(self, role: str, nbytes: int, then: Then, holes: Holes = ()) -> None:
        """Makes a segment in a sealed memfd; `then` gets it, or the error, now or later. `holes`: as of `Segment.create`."""
        if nbytes - sum(stop - begin for begin, stop in holes) > AT_ONCE:
            self._waiting.append((role, nbytes, then, holes))
            self._next()
            return
        try:
            segment = Segment.create(role, nbytes, memfd=True, holes=holes)
        except AspenError as error:
            then(error)
        else:
            then(segment)

    def _next(self) -> None:
        while self._waiting and len(self._pids) < PROCESSES:
            role, nbytes, then, holes = self._waiting.popleft()
            try:
                self._begin(role, nbytes, then, holes)
            except AspenError as error:
                then(error)
            except (OSError, MemoryError) as error:
                then(ResourceLimitError(f"no process could be started to reserve memory: {reason(error)}"))

    def _begin(self, role: str, nbytes: int, then: Then, holes: Holes) -> None:
        fd, nbytes = Segment.create_elsewhere(role, nbytes, holes)

        def reserve() -> int:
            status = reserve_for(fd, nbytes, holes)
            if status:
                descriptors.ftruncate(fd, 0)  # what there is of it is given back here, which takes time as well
            return status

        def ended(status: int) -> None:
            self._pids.discard(pid)
            # Ended by a signal, or by an error of Python's: most likely there was no memory left.
            known = os.WIFEXITED(status) and os.WEXITSTATUS(status) != FAILED
            try:
                segment = Segment.reserved(fd, role, nbytes, os.WEXITSTATUS(status) if known else errno.ENOMEM)
            except AspenError as failed:
                then(failed)
            else:
                then(segment)
            self._next()

        try:
            pid = forked(self._loop, reserve, ended, "aspen-reserve", keep={fd}, oom_score=900)
        except OSError:
            descriptors.close(fd)
            raise
        self._pids.add(pid)

    def close(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
        for pid in self._pids:
            end(pid)
