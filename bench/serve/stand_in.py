"""onnxruntime behind the server code of `aspen-mp serve`: the same front end, with a session in the place of the runtime's model.

    python -m aspen_mp.bench.serve.stand_in SETTINGS

So a comparison with it shows what the engine is worth, and not the HTTP server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from aspen_mp.bench.own_session import own_session
from aspen_mp.bench.serve.requests import MODEL
from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.buffers import NOWHERE, Rooms
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol.body import Budget
from aspen_mp.serving.protocol.inference import Call
from aspen_mp.serving.telemetry.ledger import Ledger
from aspen_mp.workers import process


class Settings(msgspec.Struct, kw_only=True):
    """`processes` with a session each, and a thread for each of `cores` in every session. `sockets`: descriptors to accept from. `grpc`:
    HOST:PORT, which all processes share; None: no gRPC."""

    model: str
    processes: int
    cores: list[int]
    sockets: list[int]
    grpc: str | None
    parent: int


class Session:
    """A front end's entry on its shelf: a version of the model, with a lease that costs nothing."""

    def __init__(self, path: str, cores: list[int]) -> None:
        from aspen_mp.shm.values import dtype_by_name

        self._session = own_session(path, cores)
        self._names = [each.name for each in self._session.get_outputs()]
        self._pool = ThreadPoolExecutor(1)  # more requests at a time would only fight for the session's threads
        words = {"float": "float32", "double": "float64"}
        kinds = [(each, each.type.removeprefix("tensor(").rstrip(")")) for each in self._session.get_inputs()]
        inputs = [ValueInfo(each.name, tuple(each.shape), dtype_by_name(words.get(kind, kind))) for each, kind in kinds]
        self.served = SimpleNamespace(name=MODEL, version=1)
        self.model = SimpleNamespace(inputs=inputs)
        self.counts = Ledger().row(MODEL, 1, in_batches=False)

    @contextlib.contextmanager
    def lease(self) -> Iterator[Session]:
        """Leases as `serving.shelf.Shelved` does."""
        yield self

    def rooms(self) -> Rooms:
        """Gives `NOWHERE`; a session has no memory for inputs."""
        return NOWHERE

    async def run(self, call: Call) -> dict[str, Any]:
        """Runs a call as `serving.shelf.Shelved` does."""
        names = call.outputs or self._names
        loop = asyncio.get_running_loop()
        return dict(zip(names, await loop.run_in_executor(self._pool, self._session.run, names, call.feeds), strict=True))


async def _serve(settings: Settings) -> None:
    import uvicorn

    from aspen_mp.serving.access.connections import LimitedConnection
    from aspen_mp.serving.access.tokens import Tokens
    from aspen_mp.serving.http import application
    from aspen_mp.serving.shelf import Shelf

    session, limits = Session(settings.model, settings.cores), Limits()
    budget, tokens = Budget(limits.pending), Tokens([])
    shelf = cast("Shelf", SimpleNamespace(absent="", closing=False, refuse_if_absent=lambda: None, find=lambda name, version=None: session))
    if settings.grpc is not None:
        from aspen_mp.serving.grpc.health import Health
        from aspen_mp.serving.grpc.listener import Listener
        from aspen_mp.serving.grpc.service import Service

        service = Service(shelf, limits, budget, tokens, None, None, None)
        listener = Listener(service, Health(shelf, tokens), settings.grpc, limits, None)
        await listener.start()  # it answers for as long as somebody refers to it
    app = application(shelf, limits, budget, tokens)
    config = uvicorn.Config(
        app, http=LimitedConnection, ws="none", lifespan="off", interface="asgi3", log_level="error", proxy_headers=False
    )
    print(flush=True)  # it serves from here on
    await uvicorn.Server(config).serve([socket.socket(fileno=fd) for fd in settings.sockets])


def main() -> None:
    """This process, and as many more as are wanted: they have the same parent's life."""
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    process.die_with(settings.parent)
    for _ in range(settings.processes - 1):
        parent = os.getpid()
        if not os.fork():
            process.die_with(parent)
            break
    import uvloop

    uvloop.run(_serve(settings))


if __name__ == "__main__":
    main()
