"""The planner process's event loop: descriptors, timers and signals on one thread.

Ready descriptors are served in order of their priority, so what a worker reported is known before a client's question about it is read. A
failure for lack of descriptors, memory or processes at the moment ends nothing: see `Loop.run`.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from aspen_mp.control.wire.child_reaper import REAP_S, ended, status_of
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.system import clock, descriptors, processes, signals, sockets

PRIORITY_SIGNAL: Final = 0
PRIORITY_WORKER: Final = 1
PRIORITY_JOB: Final = 2
PRIORITY_CLIENT: Final = 3
SCARCE_S: Final = 0.1
"""How soon it is tried again to get a descriptor that there was none of."""


@dataclass(order=True, slots=True)
class Timer:
    due: float
    number: int
    action: Callable[[], object] | None = field(compare=False)

    def cancel(self) -> None:
        self.action = None


@dataclass(slots=True)
class _Watch:
    priority: int
    on_read: Callable[[], object]
    on_write: Callable[[], object] | None = None


class Loop:
    def __init__(self) -> None:
        self._selector = sockets.EpollSelector()
        self._timers: list[Timer] = []
        self._numbers = itertools.count()
        self._wake, self._wake_write = sockets.socketpair()
        self._wake.setblocking(False)
        self._wake_write.setblocking(False)
        self._signals: dict[int, Callable[[], object]] = {}
        self._running = False
        self._reaping: dict[int, int] = {}
        self.on_scarce: Callable[[BaseException], object] = lambda error: None
        self.watch(self._wake.fileno(), PRIORITY_SIGNAL, self._drain_signals)

    def watch(self, fd: int, priority: int, on_read: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, _Watch(priority, on_read))

    def watch_writable(self, fd: int, on_write: Callable[[], object] | None) -> None:
        """Calls `on_write` too whenever a watched descriptor can be written to; None ends that."""
        watch: _Watch = self._selector.get_key(fd).data
        if watch.on_write == on_write:
            return
        watch.on_write = on_write
        self._selector.modify(fd, selectors.EVENT_READ | (selectors.EVENT_WRITE if on_write else 0), watch)

    def __contains__(self, fd: int) -> bool:
        return self._data(fd) is not None

    def unwatch(self, fd: int) -> None:
        with suppress(KeyError):
            self._selector.unregister(fd)

    def later(self, seconds: float, action: Callable[[], object]) -> Timer:
        timer = Timer(clock.monotonic() + seconds, next(self._numbers), action)
        heapq.heappush(self._timers, timer)
        return timer

    def on_signal(self, number: int, action: Callable[[], object]) -> None:
        """The C-level handler writes the signal's number to a socket; `action` then runs in the loop, not in the handler."""
        self._signals[number] = action
        signals.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signals.signal(number, lambda *_: None)

    def _drain_signals(self) -> None:
        for number in self._wake.recv(4096):
            self._signals.get(number, lambda: None)()

    def run(self) -> None:
        """Serves descriptors until `stop`. The handlers see to it that nothing is lost where something is scarce. As a last resort such an
        error ends nothing here either. `on_scarce(error)` is told, and the descriptor is left alone for `SCARCE_S`: it would be ready at
        once."""
        self._running = True
        while self._running:
            events = self._selector.select(self._timeout())
            if len(events) > 1:
                events.sort(key=lambda event: event[0].data.priority)
            for key, mask in events:
                # An earlier callback of this round may have unregistered this descriptor, or closed it and registered a new one.
                watch: _Watch = key.data
                if mask & selectors.EVENT_WRITE and self._data(key.fd) is watch and watch.on_write is not None:
                    self._call(watch.on_write, key.fd)
                if mask & selectors.EVENT_READ and self._data(key.fd) is watch:
                    self._call(watch.on_read, key.fd)
            self._run_timers()

    def _call(self, action: Callable[[], object], fd: int = -1) -> None:
        try:
            action()
        except (OSError, MemoryError, ImportError) as error:
            if not is_scarce(error):
                raise
            self.on_scarce(error)
            if fd >= 0 and fd in self:
                self._rest(fd)

    def _rest(self, fd: int) -> None:
        watch: _Watch = self._selector.get_key(fd).data
        self._selector.modify(fd, 0, watch)

        def again() -> None:
            if self._data(fd) is watch:
                self._selector.modify(fd, selectors.EVENT_READ | (selectors.EVENT_WRITE if watch.on_write else 0), watch)

        self.later(SCARCE_S, again)

    def _data(self, fd: int) -> _Watch | None:
        key = self._selector.get_map().get(fd)
        return None if key is None else key.data

    def _timeout(self) -> float | None:
        while self._timers and self._timers[0].action is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].due - clock.monotonic()) if self._timers else None

    def _run_timers(self) -> None:
        now = clock.monotonic()
        while self._timers and self._timers[0].due <= now:
            action = heapq.heappop(self._timers).action
            if action is not None:
                self._call(action)

    def reap(self, pid: int, then: Callable[[int], object] | None = None) -> None:
        """Collects the exit status of a child that is about to end, without waiting for it here; `then(status)` follows. Where there is no
        descriptor to watch the child by, that is tried again: its status is kept until somebody asks."""
        try:
            pidfd = processes.pidfd_open(pid)
        except OSError as error:
            if not is_scarce(error):
                raise
            self.later(SCARCE_S, lambda: self.reap(pid, then))
            return
        self._reaping[pidfd] = pid

        def gone() -> None:
            self.unwatch(pidfd)
            descriptors.close(pidfd)
            status = status_of(self._reaping.pop(pidfd))
            if then is not None:
                then(status)

        self.watch(pidfd, PRIORITY_WORKER, gone)

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        for pidfd, pid in self._reaping.items():
            if ended(pidfd, REAP_S):
                status_of(pid)
            descriptors.close(pidfd)
        self._selector.close()
        self._wake.close()
        self._wake_write.close()
