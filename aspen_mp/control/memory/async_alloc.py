"""Memory for large segments is reserved by a process forked for it: the kernel takes up to a second a gigabyte, and the planner process has
to see to workers' deaths meanwhile."""

from __future__ import annotations

import errno
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from aspen_mp.control.wire.child_reaper import status_of
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.errors import AspenError, ResourceLimitError
from aspen_mp.shm.scarcity import reason
from aspen_mp.shm.segments import Segment, reserve_for
from aspen_mp.workers import process

AT_ONCE: Final = 16 << 20
"""Up to so many bytes are reserved here: that takes no longer than a fork."""
PROCESSES: Final = 2
"""So many reserve at a time; what is asked for beyond waits."""

Then = Callable[[Segment | AspenError], None]
Holes = Sequence[tuple[int, int]]


class Reserver:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[str, int, Then, Holes]] = deque()
        self._pids: set[int] = set()

    def reserve(self, role: str, nbytes: int, then: Then, holes: Holes = ()) -> None:
        """Makes a segment in a sealed memfd; `then` gets it, or the error, now or later. `holes`: as of `Segment.create`."""
        if nbytes - sum(end - begin for begin, end in holes) > AT_ONCE:
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
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(fd)
            raise
        if pid == 0:
            _reserve(parent, fd, nbytes, holes)
        self._pids.add(pid)

        def ended(status: int) -> None:
            self._pids.discard(pid)
            # Ended by a signal: most likely there was no memory left.
            error = os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.ENOMEM
            try:
                segment = Segment.reserved(fd, role, nbytes, error)
            except AspenError as failed:
                then(failed)
            else:
                then(segment)
            self._next()

        try:
            self._loop.reap(pid, ended)
        except OSError:  # nobody would hear of its end: it gives its place back, and what it has reserved
            self._pids.discard(pid)
            os.close(fd)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status_of(pid)
            raise

    def close(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _reserve(parent: int, fd: int, nbytes: int, holes: Holes) -> NoReturn:
    """In the forked process, which has nothing of its parent's open but the segment."""
    status = errno.ENOMEM
    try:
        process.die_with(parent)
        process.keep_only({fd})
        process.set_name("aspen-reserve")
        process.set_oom_score(900)
        process.plain_signals()
        status = reserve_for(fd, nbytes, holes)
        if status:
            os.ftruncate(fd, 0)  # what there is of it is given back here, which takes time as well
    finally:
        os._exit(status)
