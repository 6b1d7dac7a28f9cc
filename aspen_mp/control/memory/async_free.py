"""Memory of large segments is given back by a process forked for it. Whoever lets go of the last page frees them all, which takes up to a
tenth of a second a gigabyte. Neither the planner process nor a worker has that time: a recovery may be waiting for it."""

from __future__ import annotations

from collections.abc import Callable

from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.control.wire.forked import forked
from aspen_mp.system import descriptors


class AsyncReleaser:
    """Closes descriptors of which this process has the last ones, elsewhere; those that come meanwhile are the next process's."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: list[int] = []
        self._busy = False
        self._closed = False
        self._after: list[Callable[[], object]] = []

    @property
    def busy(self) -> bool:
        """Whether something that has been taken over is not closed yet."""
        return self._busy or bool(self._waiting)

    def released(self, then: Callable[[], object]) -> None:
        """Calls `then`, now or later, when all that has been taken over is closed."""
        if self.busy:
            self._after.append(then)
        else:
            then()

    def release(self, fd: int) -> None:
        """Takes over a descriptor. Where no process can be had, it is closed here."""
        self._waiting.append(fd)
        if self._closed:
            self._here()
        elif not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = False
        if not self._waiting:
            after, self._after = self._after, []
            for then in after:
                then()
            return
        ends = list[int]()
        try:
            ends += descriptors.pipe()
            # It holds them until this process has closed its own, and with them the pipe.
            forked(
                self._loop,
                lambda: len(descriptors.read(ends[0], 1)),
                lambda status: self._next(),
                "aspen-release",
                keep={*self._waiting, ends[0]},
            )
            self._busy = True
        except OSError:
            pass  # they are closed here, which takes its time
        self._here()
        protocol.close_all(ends)
        if not self._busy:
            self._next()

    def _here(self) -> None:
        protocol.close_all(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        """Makes later calls close everything here."""
        self._closed = True
        self._here()
