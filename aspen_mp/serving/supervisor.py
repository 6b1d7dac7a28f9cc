"""The supervisor of `aspen-mp serve`: it keeps runtime and front ends alive, and tells front ends which models to serve."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import aspen_mp
from aspen_mp.control.wire import python
from aspen_mp.serving.access.ending import refuse
from aspen_mp.serving.channel import Applied, Ask, Catalogue, Channel, Done, Finish, Share
from aspen_mp.serving.front_end import ENVIRONMENT, RUNTIME_GONE, Settings
from aspen_mp.serving.keeper import Keeper, unload
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.named import MOST_NAMED, Named
from aspen_mp.serving.repository.disk import folders, lacks
from aspen_mp.serving.repository.watching import Watch
from aspen_mp.serving.telemetry.ledger import make as ledger_memory
from aspen_mp.shm.errors import AspenError, RuntimeLost
from aspen_mp.shm.words import count
from aspen_mp.system import descriptors, processes, sockets

LATE_S: Final = 10.0
"""How long after the grace front ends may take to end before they are killed."""
MOST_STILLBORN: Final = 8
"""A server ends when front ends have died this often before they served, while none of them began to, and none serves. Those that found no
runtime do not count."""


AGAIN_S: Final = 1.0
"""How long after a version could not be loaded for want of something it is tried again. Twice as long each time, up to `MOST_AGAIN_S`."""
MOST_AGAIN_S: Final = 30.0


class ServeOptions(msgspec.Struct, kw_only=True):
    """The arguments of `aspen-mp serve`. `grace_s`: for requests in flight at the end. `drain_s`: between readiness false and the end of
    accepting, for load balancers to notice. `triton_names`, `named`, `grpc`, `tokens`, `otel`, `certificate`, `key`: as of
    `front_end.Settings`."""

    front_ends: int
    limits: Limits
    watch: bool
    allow_repository: bool
    access_log: bool
    grace_s: float
    drain_s: float
    triton_names: bool = False
    named: str | None = None
    grpc: str | None = None
    tokens: list[str] = []
    otel: bool = False
    certificate: str | None = None
    key: str | None = None


class _FrontEnd:
    """One that runs. `applied`: the number of the last catalogue that it has reached."""

    def __init__(self, process: Process, channel: Channel) -> None:
        self.process = process
        self.channel = channel
        self.applied = 0
        self.failed: dict[str, str] = {}
        self.again_s = AGAIN_S
        self.again: asyncio.TimerHandle | None = None


class Supervisor:
    """A server from its start to its end. `watched`: repositories whose changes are followed, if `ServeOptions.watch`."""

    def __init__(
        self,
        runtime: aspen_mp.Runtime,
        keeper: Keeper,
        options: ServeOptions,
        listening: Sequence[sockets.socket],
        watched: Sequence[Path],
    ) -> None:
        self._runtime = runtime
        self._keeper = keeper
        self._options = options
        self._sockets = listening
        self._watched = watched
        self._front_ends: set[_FrontEnd] = set()
        self._stillborn = 0
        self._number = 0
        self._named: dict[str, Named] = {}
        self._absent = ""
        self._follow: Callable[[], bool] = lambda: True
        self._present = asyncio.Event()  # the runtime is there, as far as is known: front ends can begin
        self._present.set()
        self._again_s = AGAIN_S
        self._again: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._failure: Exception | None = None
        self._settling = asyncio.Lock()
        self._reached = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, ready: Callable[[], None], stopping: Callable[[], None]) -> None:
        """Serves until SIGTERM or Ctrl-C. `ready` is called once all front ends serve, `stopping` when the end begins. Errors are those
        that end a server, those of `ready` among them."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with contextlib.ExitStack() as stack:
            if self._options.watch:
                self._watch(stack)  # before the first look, so that nothing is missed
            await self._settle()
            ledger = ledger_memory(self._options.front_ends)
            stack.callback(descriptors.close, ledger)
            for part in range(self._options.front_ends):
                self._spawn(self._keep_front_end(ledger, part))
            self._spawn(self._keep_runtime())
            try:
                if await self._until_reached():
                    ready()
                await self._stopping.wait()
                stopping()
            finally:
                self._stopping.set()
                await self._end()
        if self._failure is not None:
            raise self._failure

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or (error if isinstance(error, Exception) else AspenError(str(error)))
            self._stopping.set()

    # ---- the catalogue

    def _catalogue(self) -> Catalogue:
        keeper = self._keeper
        return Catalogue(
            number=self._number,
            served=keeper.served,
            unserved=keeper.unserved,
            absent=self._absent,
            draining=self._stopping.is_set(),
            named=list(self._named.values()),
        )

    def _tell_all(self) -> None:
        self._number += 1
        catalogue = self._catalogue()
        for each in self._front_ends:
            each.channel.send(catalogue)

    async def _until_reached(self) -> bool:
        """Sleeps until every front end has reached the present catalogue. False where the server stops first."""
        number = self._number

        def reached() -> bool:
            there = len(self._front_ends) == self._options.front_ends and all(each.applied >= number for each in self._front_ends)
            return there or self._stopping.is_set()

        stop = asyncio.ensure_future(self._stopping.wait())
        stop.add_done_callback(lambda stop: None if stop.cancelled() else self._spawn(self._notify()))
        try:
            async with self._reached:
                await self._reached.wait_for(reached)
        finally:
            stop.cancel()
        return not self._stopping.is_set()

    async def _notify(self) -> None:
        async with self._reached:
            self._reached.notify_all()

    async def _settle(self) -> None:
        """Serves the models on disk. Old versions are unloaded once no front end offers them."""
        async with self._settling:
            before = self._keeper.served, self._keeper.unserved
            watched = self._follow()  # before the look, so that nothing is missed
            try:
                old = await self._keeper.settle()
            except RuntimeLost:
                return  # once the runtime is there again, this is done again
            self._settle_again(self._keeper.lacks or not watched)
            if (self._keeper.served, self._keeper.unserved) == before:
                return
            self._tell_all()
            if old and self._front_ends:
                await self._until_reached()
            await asyncio.to_thread(unload, old)

    def _settle_again(self, lacks: bool) -> None:
        """Later, where something was missing that may be there then."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not lacks:
            self._again_s = AGAIN_S
        elif not self._stopping.is_set():
            self._again = asyncio.get_running_loop().call_later(self._again_s, lambda: self._spawn(self._settle()))
            self._again_s = min(2 * self._again_s, MOST_AGAIN_S)

    def _watch(self, stack: contextlib.ExitStack) -> None:
        watch = Watch()
        stack.callback(watch.close)
        loop = asyncio.get_running_loop()

        said = ""

        def follow() -> bool:
            """Watches all folders that are there. False where that is to be tried again."""
            nonlocal said
            try:
                for root in self._watched:
                    with contextlib.suppress(FileNotFoundError):  # a folder that goes while it is looked at
                        watch.add(folders(root))
            except (OSError, MemoryError) as error:
                if said != (text := f"changes of models are not followed: {error}"):
                    said = text
                    _say(text)
                return not lacks(error)
            said = ""
            return True

        def changed() -> None:
            watch.read()
            self._spawn(self._settle())

        self._follow = follow
        loop.add_reader(watch.fd, changed)
        stack.callback(loop.remove_reader, watch.fd)

    # ---- the runtime

    async def _keep_runtime(self) -> None:
        """Starts the runtime again, or waits for the next one of its name, whenever it is lost."""
        while not self._stopping.is_set():
            await self._until_lost()
            if self._stopping.is_set():
                return
            self._absent = "the runtime was lost and is started again"
            self._present.clear()
            self._tell_all()
            _say(self._absent)
            try:
                await self._revive()
            except RuntimeLost:
                if self._stopping.is_set():
                    return
                raise
            self._absent = ""
            self._present.set()
            self._tell_all()
            self._spawn(self._settle())

    async def _revive(self) -> None:
        """Waits until there is a runtime with all models. RuntimeLost where there will be none."""
        while True:
            try:
                await asyncio.to_thread(self._runtime.revive)
                await self._keeper.revive()
                return
            except RuntimeLost:
                if self._runtime.closed or self._stopping.is_set():
                    raise

    async def _until_lost(self) -> None:
        """Until the planner process has ended, or the server stops."""
        loop = asyncio.get_running_loop()
        lost = asyncio.Event()
        try:
            pidfd = processes.pidfd_open(self._runtime.own_pid or await asyncio.to_thread(lambda: self._runtime.pid))
        except (ProcessLookupError, RuntimeLost):
            return
        loop.add_reader(pidfd, lost.set)
        waits = [asyncio.ensure_future(lost.wait()), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            loop.remove_reader(pidfd)
            descriptors.close(pidfd)

    # ---- front ends

    async def _keep_front_end(self, ledger: int, part: int) -> None:
        """A front end, and the next one when it dies, which counts requests in the same part of the ledger."""
        while not self._stopping.is_set():
            await self._present.wait()
            if self._stopping.is_set():
                return
            front_end = await self._start(ledger, part)
            hearing = asyncio.ensure_future(self._hear(front_end))
            status = await front_end.process.wait()
            hearing.cancel()
            self._front_ends.discard(front_end)
            front_end.channel.close()
            if self._stopping.is_set():
                return
            if status != RUNTIME_GONE:
                self._stillborn += not front_end.applied
            _say(f"front end {front_end.process.pid} has ended with status {status} and is replaced")
            if self._stillborn >= MOST_STILLBORN and not any(each.applied for each in self._front_ends):
                raise AspenError(f"front ends end before they serve, the last one with status {status}. Their messages above say why")

    async def _start(self, ledger: int, part: int) -> _FrontEnd:
        ours, theirs = sockets.socketpair()
        accepting = [sock.fileno() for sock in self._sockets]
        options = self._options
        settings = Settings(
            runtime=self._runtime.name,
            parent=processes.getpid(),
            channel=theirs.fileno(),
            ledger=ledger,
            part=part,
            sockets=accepting,
            named=options.named,
            limits=options.limits,
            grace_s=options.grace_s,
            repository=options.allow_repository,
            access_log=options.access_log,
            triton_names=options.triton_names,
            grpc=options.grpc,
            tokens=options.tokens,
            otel=options.otel,
            certificate=options.certificate,
            key=options.key,
        )
        command = python.command("aspen_mp.serving.front_end", msgspec.json.encode(settings).decode())
        inherited = [theirs.fileno(), ledger, *accepting]
        try:
            process = await processes.create_subprocess_exec(
                *command, pass_fds=inherited, stdin=asyncio.subprocess.DEVNULL, process_group=0, env={**ENVIRONMENT, **os.environ}
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        front_end = _FrontEnd(process, await Channel.over(ours))
        self._front_ends.add(front_end)
        front_end.channel.send(self._catalogue())
        return front_end

    async def _hear(self, front_end: _FrontEnd) -> None:
        while (message := await front_end.channel.receive()) is not None:
            if isinstance(message, Applied):
                front_end.applied, front_end.failed = message.number, message.failed
                self._stillborn = 0
                self._remind(front_end)
                await self._notify()
            elif isinstance(message, Ask):
                self._spawn(self._change(front_end, message))
            elif isinstance(message, Share):
                self._spawn(self._share(front_end, message))

    def _remind(self, front_end: _FrontEnd) -> None:
        """Sends a front end the catalogue again, later, if it could not load all of it: it may have lacked something."""
        if front_end.again is not None:
            front_end.again.cancel()
        if not front_end.failed:
            front_end.again_s = AGAIN_S
            return

        def send() -> None:
            if front_end in self._front_ends and not self._stopping.is_set():
                front_end.channel.send(self._catalogue())

        front_end.again = asyncio.get_running_loop().call_later(front_end.again_s, send)
        front_end.again_s = min(2 * front_end.again_s, MOST_AGAIN_S)

    async def _change(self, front_end: _FrontEnd, ask: Ask) -> None:
        """Loads or unloads a model for a client, and answers when all front ends have done so."""
        keeper, name = self._keeper, ask.model
        if self._stopping.is_set():
            front_end.channel.send(_stops(ask))
            return
        if ask.load:
            keeper.bring(name)
        elif any(each.name == name for each in keeper.served):
            keeper.give_up(name)
        else:
            front_end.channel.send(Done(number=ask.number, status=404, reason=f"no model {name[:200]!r} is loaded"))
            return
        await self._settle()
        done = Done(number=ask.number)
        if not await self._until_reached():
            done = _stops(ask)
        elif ask.load:
            reasons = [each.reason for each in keeper.unserved if each.name == name]
            reasons += [each.failed[name] for each in self._front_ends if name in each.failed]
            if reasons:
                done = Done(number=ask.number, status=400, reason=f"model {name!r} was not loaded: {reasons[0]}")
            elif not any(each.name == name for each in keeper.served):
                done = Done(number=ask.number, status=404, reason=f"the repository has no model {name[:200]!r}")
        front_end.channel.send(done)

    async def _share(self, front_end: _FrontEnd, share: Share) -> None:
        """Registers memory for a client, or forgets it, and answers when all front ends have done so."""
        done = Done(number=share.number)
        if self._stopping.is_set():
            done = _stops(share)
        elif share.add is None:
            for name in [share.remove] if share.remove else list(self._named):
                self._named.pop(name, None)
        elif share.add.name in self._named:
            done = Done(number=share.number, status=400, reason=f"region {share.add.name!r} is registered already. Unregister it first")
        elif len(self._named) == MOST_NAMED:
            done = Done(number=share.number, status=429, reason=f"{MOST_NAMED} regions are registered. Unregister others first")
        else:
            self._named[share.add.name] = share.add
        if done.status == 200:
            self._tell_all()
            if not await self._until_reached():
                done = _stops(share)
        front_end.channel.send(done)

    # ---- the end

    async def _end(self) -> None:
        """Readiness goes first, then the requests in flight, then the processes."""
        if self._again is not None:
            self._again.cancel()
        self._tell_all()
        if self._failure is None and self._front_ends:
            await asyncio.sleep(self._options.drain_s)  # for load balancers to look: nothing tells when they have
        for listener in self._sockets:
            refuse(listener)
        running = [each.process for each in self._front_ends]
        for each in self._front_ends:
            each.channel.send(Finish())
        for listener in self._sockets:
            listener.close()  # front ends close theirs once nobody waits there
        waits = [asyncio.ensure_future(process.wait()) for process in running]
        if waits:
            _, late = await asyncio.wait(waits, timeout=self._options.grace_s + LATE_S)
            if late:
                _say(f"{count(len(late), 'front end')} did not end in time and {'is' if len(late) == 1 else 'are'} killed")
            for process in running:
                if process.returncode is None:
                    process.kill()
            await asyncio.wait(waits)
        if self._absent:
            await asyncio.to_thread(self._runtime.close)  # ends the wait for another one
        for task in list(self._tasks):
            task.cancel()


def _stops(message: Ask | Share) -> Done:
    """The answer to what is not done any more."""
    return Done(number=message.number, status=503, reason="the server stops")


def _say(text: str) -> None:
    print(f"aspen-mp serve: {text}", file=sys.stderr, flush=True)
