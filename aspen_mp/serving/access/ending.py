"""The end of a server: whatever has been sent to it is answered before its listeners close.

Linux resets the connections that a closing listener has not accepted, and those whose bytes have not been read. So the order is:

1. The supervisor lets nobody connect any more (`refuse`), tells all front ends that it is enough, and closes its own listeners.
2. A front end answers on. Answers say ``connection: close``. A connection without a request is kept for `LAST_S`.
3. It accepts the connections that wait at its listeners until there are none, and closes the listeners. The last front end to do so closes
the socket.
4. It waits for the answers in flight, as long as the grace period says.

One case remains: a request that is sent after `LAST_S` on an idle connection meets its end, as HTTP/1.1 has no means to announce it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
import termios
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import uvicorn

from aspen_mp.serving.access.connections import LimitedConnection
from aspen_mp.system import descriptors, filesystem, sockets

LAST_S: Final = 1.0
"""How long a connection without a request is kept at the end, and how long a handshake of TLS may take then."""
_SO_ATTACH_FILTER: Final = 26
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte of TCP's flags
    (0x54, 0, 0, 0x12),  # of these SYN and ACK
    (0x15, 0, 1, 0x02),  # a SYN without ACK asks for a new connection
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # keep all else, as the last packet of a handshake that has begun
)
"""A filter for packets, in the kernel's own language."""


def refuse(sock: sockets.socket) -> None:
    """Lets nobody connect to a listening socket any more. Connections that wait to be accepted stay.

    Clients of TCP ask again after a second, and are refused once the socket is closed. A Unix socket loses its name.
    """
    if sock.family == socket.AF_UNIX:
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(sock.getsockname())
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _DROP_SYN))
    with contextlib.suppress(OSError):  # a kernel without it refuses at the end, and resets who connects just then
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program)))


def accept_all(listener: sockets.socket) -> list[sockets.socket]:
    """The connections that wait at a listener."""
    found: list[sockets.socket] = []
    listener.setblocking(False)
    while True:
        try:
            found.append(listener.accept()[0])
        except ConnectionAbortedError:  # its client has gone
            continue
        except OSError:  # there are no more, or no descriptors for them
            return found


class EndingConnection(LimitedConnection):
    """A connection that ends with the answer to the requests that have been sent on it."""

    ending: ClassVar[bool] = False
    all_gone: ClassVar[asyncio.Event]
    """Set when the last connection has gone, once the end has begun."""
    shaking: ClassVar[weakref.WeakSet[EndingConnection]] = weakref.WeakSet()
    """Those that have been accepted, in the handshake of TLS."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._told = False
        if self.config.is_ssl:
            self.shaking.add(self)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.shaking.discard(self)
        if self.ending:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.ending and not self.connections and not self.shaking:
            type(self).all_gone.set()

    def shutdown(self) -> None:
        """The connection ends with its answer. One that has no request waits a little for one that is on its way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif not self._told:
            self._told = True
            self.loop.call_later(LAST_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            return
        if not self._in_message and not _unread(self.transport):
            self.transport.close()
        elif self._timer is None:
            self._arm()


def _unread(transport: Any) -> int:
    """Bytes that have come and were not read."""
    (n,) = struct.unpack("i", descriptors.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4)))
    return int(n)


class EndingServer(uvicorn.Server):
    """uvicorn's server, with an end that loses nothing."""

    async def shutdown(self, sockets: list[sockets.socket] | None = None) -> None:
        """Answers the requests that have been sent, then closes."""
        listeners = [sock.dup() for sock in sockets or ()]  # the loop closes those that it has
        EndingConnection.all_gone = asyncio.Event()
        EndingConnection.ending = True
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.connections or EndingConnection.shaking:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(EndingConnection.all_gone.wait(), LAST_S)
        for server in self.servers:
            server.close()
        await self._take_on([sock for listener in listeners for sock in accept_all(listener)])
        for listener in listeners:
            listener.close()
        await super().shutdown(sockets)

    async def _take_on(self, socks: Sequence[sockets.socket]) -> None:
        """Serves these connections, as if the loop had accepted them."""
        loop, config = asyncio.get_running_loop(), self.config

        def make() -> asyncio.Protocol:
            return EndingConnection(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        tasks = [asyncio.ensure_future(loop.connect_accepted_socket(make, sock, ssl=config.ssl)) for sock in socks]
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_S)
