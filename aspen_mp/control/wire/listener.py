"""Where clients come in: listening sockets, the connections that have come, and who goes when all places are taken."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.connection import Connection
from aspen_mp.control.wire.event_loop import PRIORITY_CLIENT, Loop
from aspen_mp.control.wire.identity import peer
from aspen_mp.shm.bindings import _tables
from aspen_mp.shm.errors import AspenError, ProtocolError, ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.system import processes, sockets

REST_S: Final = 0.1
"""How long no connection is accepted after one could not be: what is lacking (descriptors) does not come back sooner by asking again."""


class Hearer(Protocol):
    """Serves the connections."""

    def heard(self, connection: Connection, message: protocol.Message, fds: list[int]) -> None:
        """A message has come. Its descriptors are the hearer's to close."""

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""


class Listener:
    def __init__(self, loop: Loop, starter: sockets.socket) -> None:
        """`starter`: the socket of whoever started the runtime, the first connection. `open` must follow, before the loop runs."""
        self._loop = loop
        self._hearer: Hearer
        self._connections: dict[Connection, None] = {}  # in the order in which they came
        self._listeners: list[sockets.socket] = []
        self.starter = self._adopt(starter)

    def open(self, listeners: Iterable[sockets.socket], hearer: Hearer) -> None:
        """Takes over these sockets and lets in who comes to them."""
        self._hearer = hearer
        for listener in listeners:
            self._listeners.append(listener)
            listener.setblocking(False)
            self._loop.watch(listener.fileno(), PRIORITY_CLIENT, partial(self._accept, listener))

    def refuse_all(self, error: AspenError) -> None:
        for connection in list(self._connections):
            connection.refuse(error)

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: sockets.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if is_scarce(error) and not isinstance(error, BlockingIOError):
                self._rest(listener)
            return
        try:
            _, uid, _ = peer(sock)
            connection = self._adopt(sock)
        except OSError:
            sock.close()
            self._rest(listener)
            return
        if uid != processes.getuid():
            connection.refuse(ProtocolError(f"this runtime belongs to user {processes.getuid()}, not to user {uid}"))
        elif len(self._connections) >= _tables.LIMITS["clients"]:
            self._make_room(connection)

    def _rest(self, listener: sockets.socket) -> None:
        """The listener stays readable while connections wait: without a rest the loop would do nothing else."""
        self._loop.unwatch(listener.fileno())

        def again() -> None:
            if listener.fileno() >= 0:
                self._loop.watch(listener.fileno(), PRIORITY_CLIENT, partial(self._accept, listener))

        self._loop.later(REST_S, again)

    def _make_room(self, newcomer: Connection) -> None:
        """All places are taken: whoever has been silent for longest goes; where all are clients, the newcomer does."""
        silent = next((c for c in self._connections if not c.greeted and c not in (newcomer, self.starter)), None)
        limit = _tables.LIMITS["clients"] - 1
        if silent is None:
            newcomer.refuse(ResourceLimitError(f"{limit} clients are connected to this runtime, which is the limit; close some of them"))
        else:
            silent.refuse(ProtocolError("no handshake, and others wait for the place"))

    def _adopt(self, sock: sockets.socket) -> Connection:
        connection = Connection(self._loop, sock, self._heard, self._closed)
        self._connections[connection] = None
        return connection

    def _heard(self, connection: Connection, message: protocol.Message, fds: list[int]) -> None:
        self._hearer.heard(connection, message, fds)

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._hearer.gone(connection)
