"""The planner process's end in good order: nothing new is taken, what is in flight ends, then the runtime does.

Requests do not pass through the planner process, so it asks the clients. `Stopping` tells each of them to begin nothing new. With `Quiet`
a client says that nothing of it is in flight any more. A client that has gone is not waited for; one that does not answer is, until the
grace period is over.
"""

from __future__ import annotations

from collections.abc import Iterable

from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.connection import Connection
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.control.wire.listener import Listener
from aspen_mp.shm.errors import RuntimeLost, RuntimeStopping


class Drain:
    """`clients`: those of the listener's connections that have been greeted."""

    def __init__(self, loop: Loop, listener: Listener, clients: Iterable[Connection], event_log: EventLog) -> None:
        self._loop, self._listener, self._clients, self._event_log = loop, listener, clients, event_log
        self._waiting: set[Connection] = set()
        self.going_on = False

    def begin(self, grace_s: float) -> None:
        """Ends the loop once all clients are quiet, in `grace_s` seconds at the latest. Whoever asks twice will not wait: at once then."""
        if self.going_on:
            self._loop.stop()
            return
        self.going_on = True
        self._waiting = set(self._clients)
        self._event_log.info("draining", clients=len(self._waiting), grace_s=grace_s)
        for connection in list(self._clients):
            connection.send(protocol.Stopping(grace_s))
        self._loop.later(grace_s, self._late)
        self._look()

    def quiet(self, connection: Connection) -> None:
        """Nothing of this client is in flight."""
        self.gone(connection)

    def gone(self, connection: Connection) -> None:
        """Nobody waits for anything of this client."""
        self._waiting.discard(connection)
        self._look()

    def no_workers(self, why: str) -> None:
        """Nothing can run any more: every client is told, and the runtime ends at once."""
        self._event_log.warning("no-workers", why=why)
        self._listener.refuse_all(RuntimeLost(f"the runtime cannot keep any worker alive: {why}"))
        self._loop.stop()

    def check(self) -> None:
        """RuntimeStopping once it goes on."""
        if self.going_on:
            raise RuntimeStopping("the runtime is stopping: it finishes what is in flight and takes nothing new")

    def _late(self) -> None:
        if self._waiting:
            self._event_log.warning("drain-cut-short", clients=len(self._waiting))
        self._loop.stop()

    def _look(self) -> None:
        if self.going_on and not self._waiting:
            self._loop.stop()
