"""A front end: a process that answers requests from a socket that it has inherited, as a client of the runtime.

The supervisor starts it with its `Settings` as the only argument, tells it which models to serve, and replaces it if it dies. It ends with
the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec
import uvicorn

import aspen_mp
from aspen_mp.serving.access.access_log import AccessLog
from aspen_mp.serving.access.ending import EndingConnection, EndingServer
from aspen_mp.serving.access.tokens import Tokens
from aspen_mp.serving.channel import Applied, Ask, Catalogue, Channel, Done, Finish, Share
from aspen_mp.serving.http import application
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.named import Named, NamedMemory
from aspen_mp.serving.memory.routes import NamedRoutes
from aspen_mp.serving.protocol.body import Budget
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.sequences import Places
from aspen_mp.serving.shelf import Shelf
from aspen_mp.serving.telemetry.ledger import Ledger
from aspen_mp.shm.errors import RuntimeLost, RuntimeNotFound
from aspen_mp.system import signals, sockets
from aspen_mp.workers import process

if TYPE_CHECKING:
    from aspen_mp.serving.telemetry.traces import Telemetry

BACKLOG = 2048
RUNTIME_GONE: Final = 75
"""The status of a front end that has found no runtime: the next one may."""
ENVIRONMENT: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""The environment of the process, for glibc: memory that a request in JSON needed is kept for the next one. To ask the kernel again, and to
have it cleared, took as long as to read the numbers."""


class Settings(msgspec.Struct, kw_only=True):
    """The arguments of a front end.

    Attributes:
        runtime: The name of the runtime.
        parent: The supervisor's process id.
        channel: Descriptor of the socket between them.
        ledger: Descriptor of the memory in which requests are counted.
        part: The part of it that is this front end's.
        sockets: Descriptors of the sockets to accept from.
        named: What names of memory in /dev/shm begin with that clients may register; None: none.
        grpc: HOST:PORT for gRPC; None without it.
        limits: What is accepted.
        grace_s: For requests in flight at the end.
        repository: Whether clients may load and unload models.
        access_log: Whether there is one.
        triton_names: Whether metrics have Triton's names, too.
        tokens: Digests of bearer tokens; empty: everybody is answered.
        otel: Whether requests are traced for OpenTelemetry.
        certificate: PEM file of TLS, with `key`; None: no TLS.
    """

    runtime: str
    parent: int
    channel: int
    ledger: int
    part: int
    sockets: list[int]
    named: str | None
    grpc: str | None
    limits: Limits
    grace_s: float
    repository: bool
    access_log: bool
    triton_names: bool
    tokens: list[str] = []
    otel: bool = False
    certificate: str | None = None
    key: str | None = None


class FrontEnd:
    """The process, once it is connected to the runtime."""

    def __init__(self, settings: Settings, runtime: aspen_mp.Runtime, channel: Channel) -> None:
        self._settings = settings
        self._channel = channel
        self._shelf = Shelf(runtime, Ledger(settings.ledger, settings.part), Places(settings.limits))
        self._asked: dict[int, asyncio.Future[Done]] = {}
        self._numbers = itertools.count(1)
        self._latest: Catalogue | None = None
        self._news = asyncio.Event()
        self._loaded = asyncio.Event()
        self._listens = asyncio.Event()
        self._finish = asyncio.Event()
        EndingConnection.limits = settings.limits
        self._budget = Budget(settings.limits.pending)
        self._supervised = self if settings.repository else None
        self._log = AccessLog(sys.stderr) if settings.access_log else None
        self._tokens = Tokens(settings.tokens)
        self._named = None if settings.named is None else NamedRoutes(NamedMemory(settings.named), self, settings.limits)
        self._telemetry = _telemetry() if settings.otel else None
        app = application(
            self._shelf,
            settings.limits,
            self._budget,
            self._tokens,
            self._supervised,
            self._named,
            self._log,
            telemetry=self._telemetry,
            triton_names=settings.triton_names,
        )
        self._server = EndingServer(
            uvicorn.Config(
                app,
                http=EndingConnection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=self._log is not None or self._telemetry is not None,  # nobody else reads the client's address
                backlog=BACKLOG,
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.key,
                timeout_keep_alive=int(settings.limits.keep_alive_s),
                timeout_graceful_shutdown=max(1, round(settings.grace_s)),
            )
        )

    async def run(self) -> None:
        """Answers requests from the first catalogue on, until the supervisor says that it is enough or has gone."""
        applying = asyncio.create_task(self._apply_catalogues())
        hearing = asyncio.create_task(self._hear())
        try:
            await self._loaded.wait()  # not before: what it accepts, another front end could have answered
            accepting = [sockets.socket(fileno=fd) for fd in self._settings.sockets]
            async with self._grpc():
                self._listens.set()
                await self._server.serve(accepting)
        finally:
            for task in (hearing, applying):
                task.cancel()
            self._shelf.close_sequences()
            if self._telemetry is not None:
                await asyncio.to_thread(self._telemetry.close)
            self._channel.close()

    @contextlib.asynccontextmanager
    async def _grpc(self) -> AsyncIterator[None]:
        """Answers gRPC, too, until the supervisor says that it is enough; then until the requests in flight have ended."""
        settings = self._settings
        if settings.grpc is None or self._shelf.closing:
            yield
            return
        from aspen_mp.serving.grpc.health import Health
        from aspen_mp.serving.grpc.listener import Listener, Secrets
        from aspen_mp.serving.grpc.service import Service

        secrets = Secrets(certificate=settings.certificate, key=settings.key) if settings.certificate and settings.key else None
        service = Service(
            self._shelf, settings.limits, self._budget, self._tokens, self._supervised, self._named, self._log, self._telemetry
        )
        listener = Listener(service, Health(self._shelf, self._tokens), settings.grpc, settings.limits, secrets)
        await listener.start()
        async with self._ended_by(lambda: listener.stop(settings.grace_s)):
            yield

    @contextlib.asynccontextmanager
    async def _ended_by(self, stop: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """`stop` is called once the supervisor says that it is enough, or when the block ends."""

        async def stopped() -> None:
            await self._finish.wait()
            await stop()

        stopping = asyncio.create_task(stopped())
        try:
            yield
        finally:
            self._finish.set()
            await stopping

    async def _hear(self) -> None:
        while (message := await self._channel.receive()) is not None:
            if isinstance(message, Catalogue):
                self._latest = message
                self._shelf.absent = message.absent or self._shelf.absent  # not ready at once; ready when all is loaded
                self._shelf.closing |= message.draining
                self._shelf.tell()
                self._news.set()
            elif isinstance(message, Done):
                future = self._asked.pop(message.number, None)
                if future is not None and not future.done():
                    future.set_result(message)
            elif isinstance(message, Finish):
                self._end()  # and hear on: requests in flight may wait for what the supervisor has done
        self._end()
        for number, future in self._asked.items():
            if not future.done():
                future.set_result(Done(number=number, status=503, reason="the supervisor has gone"))

    def _end(self) -> None:
        """It is enough, or the supervisor has gone."""
        if self._finish.is_set():
            return
        self._shelf.closing = True
        self._shelf.tell()
        self._server.should_exit = True
        self._finish.set()
        # One that still loads answers what others leave, once it can. If it cannot, it ends with the grace period.
        asyncio.get_running_loop().call_later(self._settings.grace_s, self._loaded.set)

    async def _apply_catalogues(self) -> None:
        """The last of several catalogues that come while one is applied counts."""
        while True:
            await self._news.wait()
            catalogue, self._latest = self._latest, None
            if catalogue is None:
                self._news.clear()
                continue
            failed = await self._shelf.apply(catalogue)
            if self._named is not None:
                self._named.memory.apply(catalogue.named)
            self._loaded.set()
            await self._listens.wait()  # what the supervisor is told, clients may rely on
            self._channel.send(Applied(number=catalogue.number, failed=failed))

    async def change(self, model: str, *, load: bool) -> None:
        """Implements `shelf.Supervised`."""
        await self._ask(Ask(number=next(self._numbers), load=load, model=model))

    async def share(self, *, add: Named | None = None, remove: str | None = None) -> None:
        """Implements `memory.routes.Sharer`."""
        await self._ask(Share(number=next(self._numbers), add=add, remove=remove))

    async def _ask(self, message: Ask | Share) -> None:
        """Asks the supervisor, and waits until all front ends have done it. Refused where it is not done."""
        future = self._asked[message.number] = asyncio.get_running_loop().create_future()
        self._channel.send(message)
        done = await future
        if done.status != 200:
            raise Refused(done.status, done.reason)


def _telemetry() -> Telemetry:
    from aspen_mp.serving.telemetry import traces

    return traces.Telemetry(traces.provider())


async def _main(settings: Settings) -> None:
    channel = await Channel.over(sockets.socket(fileno=settings.channel))
    limits = settings.limits
    runtime = await asyncio.to_thread(aspen_mp.connect, settings.runtime, wait_s=limits.runtime_s, max_queued=limits.queued or None)
    try:
        await FrontEnd(settings, runtime, channel).run()
    finally:
        runtime.close()


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    process.die_with(settings.parent)
    signals.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
    import uvloop

    gc.freeze()  # imported modules are not garbage: to look through them takes a request's time many times over
    try:
        uvloop.run(_main(settings))
    except (RuntimeLost, RuntimeNotFound) as lost:
        print(f"aspen-mp serve: a front end cannot begin: {lost}", file=sys.stderr, flush=True)
        sys.exit(RUNTIME_GONE)
