"""A front end's side of the socket for memory: connections whose first message carries descriptors, and that speak HTTP after it."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any, Final

from aspen_mp.serving.access import descriptors
from aspen_mp.serving.access.ending import LAST_S, EndingConnection, accept_all
from aspen_mp.serving.http import REGIONS
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.handshake import answered
from aspen_mp.serving.memory.regions import Region, Regions

MOST_DESCRIPTORS: Final = 512
"""Connections and regions of a front end together. A connection keeps its place while it is idle, so there must be an end."""
PAUSE_S: Final = 1.0
"""Seconds until a connection is accepted again after the process ran out of descriptors."""
_ADVICE: Final = "Name one that this connection has registered"


class MemoryConnection(EndingConnection):
    """A connection over HTTP that names regions of its own. It may be idle for any time: it stands for memory that is shared."""

    def __init__(self, regions: Regions, closed: Callable[[], None], **more: Any) -> None:
        super().__init__(app_state={REGIONS: regions}, **more)
        self._regions = regions
        self._closed = closed

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._disarm()

    def timeout_keep_alive_handler(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._regions.close()
        self._closed()


class Listener:
    """Accepts at a socket that all front ends share, from `start` to `stop`. `make`: the arguments of uvicorn's connections."""

    def __init__(self, sock: socket.socket, limits: Limits, make: Callable[[], dict[str, Any]]) -> None:
        self._sock = sock
        self._limits = limits
        self._make = make
        self._held = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._sock.setblocking(False)
        self._listen()

    async def stop(self) -> None:
        """Takes on who waits to be accepted, and accepts nothing more. Connections that speak HTTP are uvicorn's to end."""
        if self._sock.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._sock)
        for sock in accept_all(self._sock):
            self._take_on(sock)
        self._sock.close()
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_S)
        for task in tasks:
            task.cancel()

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:  # another front end was faster
            return
        except OSError:
            descriptors.OWN.tell(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            loop.remove_reader(self._sock)
            loop.call_later(PAUSE_S, self._listen)
            return
        self._take_on(sock)

    def _take_on(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._greet(sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, sock: socket.socket) -> None:
        """Takes on the regions of a connection, and hands it to uvicorn."""
        regions: dict[str, Region] | None = None
        self._held += 1
        try:
            async with asyncio.timeout(self._limits.header_s):
                regions = await answered(sock, MOST_DESCRIPTORS - self._held)
        except TimeoutError:
            pass
        finally:
            self._held -= 1
            if regions is None:
                sock.close()
        if regions is None:
            return
        held = 1 + len(regions)
        self._held += held
        shared = Regions(regions, _ADVICE)

        def closed() -> None:
            self._held -= held

        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: MemoryConnection(shared, closed, **self._make()), sock)
        except OSError:
            shared.close()
            sock.close()
            closed()
