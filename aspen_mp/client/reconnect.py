"""A runtime with a name, which somebody else starts: whoever has connected to it goes on with the next one of that name.

Outages are counted from when the runtime was lost: for `wait_s` seconds requests wait for another one, then they fail at once, each after a
look whether there is one by now. So a service that waits for nothing in vain recovers with the first request after the runtime is back.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import aspen_mp
from aspen_mp.client.restart import Reviver
from aspen_mp.control.wire import run_directory
from aspen_mp.shm.errors import ProtocolError, ResourceLimitError, RuntimeLost, RuntimeNotFound, RuntimeStopping
from aspen_mp.shm.scarcity import start_thread
from aspen_mp.system import clock, descriptors, sockets, threads

if TYPE_CHECKING:
    from aspen_mp.client.session import Session

WAIT_S: Final = 10.0
"""How long requests wait for the next runtime of a name, unless `connect(wait_s=…)` says otherwise."""
MOST_GREETINGS: Final = 3
ANSWER_S: Final = 5.0
"""How long a runtime that listens may take to answer: it may still be starting its workers."""


class Reconnects(Reviver):
    """`name`: of the runtime. `wait_s`: how long after a loss another one of that name is waited for."""

    def __init__(self, name: str, wait_s: float) -> None:
        super().__init__()
        self._name, self._wait_s = name, wait_s
        self._missed = 0.0  # when this process first found no runtime, where it has had none yet
        self._stop: int | None = None  # wakes a wait

    def again(self, lost: Session | None, until: float | None = None) -> Session:
        """The next runtime of the name. Called by one thread at a time."""
        since = self._since(lost)
        deadline = since + self._wait_s if until is None else min(since + self._wait_s, until)
        try:
            session = self._connect(deadline)
        except (OSError, RuntimeNotFound, RuntimeLost) as error:
            if self.given_up:
                raise RuntimeLost("the runtime is closed. Open another one with Runtime or connect") from None
            raise self._away(error, since) from None
        self._missed = 0.0
        if lost is not None:
            # Its threads may be in callbacks of the user's, which wait for what this one is about to return.
            with suppress(ResourceLimitError):  # then it goes when nobody refers to it any more
                start_thread(threads.Thread(target=lost.close, name="aspen-mp lost", daemon=True))
        return session

    def _since(self, lost: Session | None) -> float:
        if lost is not None and lost.gone_at:
            return lost.gone_at
        self._missed = self._missed or clock.monotonic()
        return self._missed

    def _connect(self, deadline: float) -> Session:
        from aspen_mp.control.wire import arrivals

        missed: RuntimeLost | None = None
        stop = self._begin_wait()
        try:
            for sock in arrivals.connections(self._name, deadline, stop):
                try:
                    return self._greet(sock, deadline)
                except RuntimeLost as error:  # it stops, or ended while it started: another one may follow
                    missed = error
        finally:
            self._end_wait()
        raise missed or RuntimeNotFound(f"no runtime named {self._name!r} is running")

    def _greet(self, sock: sockets.socket, deadline: float) -> Session:
        """A session on this socket or on a new one: on a busy machine either side may be late with its greeting."""
        from aspen_mp.client.session import Session

        for attempt in itertools.count(1):
            try:
                return Session(sock, aspen_mp.__version__, max(ANSWER_S, deadline - clock.monotonic()))
            except (RuntimeLost, ProtocolError) as error:
                if isinstance(error, RuntimeStopping) or attempt == MOST_GREETINGS:
                    raise
            try:
                sock = run_directory.connect(self._name)
            except RuntimeNotFound:
                raise RuntimeLost(
                    f"the runtime {self._name!r} has ended while it started. Its own messages say why; start it again"
                ) from None
        raise AssertionError

    def _begin_wait(self) -> int:
        with self._lock:
            if self.given_up:
                raise RuntimeLost("the runtime is closed. Open another one with Runtime or connect")
            self._stop = descriptors.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self._stop

    def _end_wait(self) -> None:
        with self._lock:
            stop, self._stop = self._stop, None
            if stop is not None:
                descriptors.close(stop)

    def _away(self, error: Exception, since: float) -> RuntimeLost:
        away = RuntimeLost(
            f"the runtime {self._name!r} has been gone for {max(0.0, clock.monotonic() - since):.1f} s and has not come back "
            f"(wait_s={self._wait_s:g}): {error}. Requests go on as soon as a runtime of that name runs"
        )
        away.wait_s, away.begun = self._wait_s, False
        return away

    def forked(self) -> Reconnects:
        return Reconnects(self._name, self._wait_s)

    def travels(self) -> tuple[str, float]:
        return self._name, self._wait_s

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._stop is not None:
                descriptors.eventfd_write(self._stop, 1)
