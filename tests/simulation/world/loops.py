"""Event loops of asyncio in the simulated world, and processes that they start.

A loop is asyncio's own over the world's selector, sockets and clock. asyncio keeps its running loop for each thread of the real system. All
tasks of the world share one thread, so the running loop is exchanged whenever another task runs.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from simulation.world.descriptions import PidFd
from simulation.world.isolation import Ordered
from simulation.world.processes import Process
from simulation.world.world import World


class Loop(asyncio.SelectorEventLoop):
    """A loop of a simulated process."""

    def __init__(self, world: World) -> None:
        from aspen_mp.system import sockets

        self._world = world
        super().__init__(sockets.EpollSelector())
        self.set_exception_handler(self._failed)
        executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
        executor._threads = Ordered()  # type: ignore[assignment]
        self.set_default_executor(executor)

    def time(self) -> float:
        return self._world.scheduler.now / 1e9

    def _make_self_pipe(self) -> None:
        from aspen_mp.system import sockets

        rate = self._world.choices.trouble.rates.pop("scarce", None)
        try:
            self._ssock, self._csock = sockets.socketpair()
        finally:
            if rate is not None:
                self._world.choices.trouble.rates["scarce"] = rate
        self._ssock.setblocking(False)
        self._csock.setblocking(False)
        self._internal_fds += 1
        self._add_reader(self._ssock.fileno(), self._read_from_self)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        from aspen_mp.system import signals

        self._signal_handlers[sig] = asyncio.events.Handle(callback, args, self, None)
        signals.set_wakeup_fd(self._csock.fileno())
        signals.signal(sig, lambda *_: None)

    def remove_signal_handler(self, sig: int) -> bool:
        from aspen_mp.system import signals

        if self._signal_handlers.pop(sig, None) is None:
            return False
        signals.signal(sig, signal.SIG_DFL)
        if not self._signal_handlers:
            signals.set_wakeup_fd(-1)
        return True

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Threads of the world end when they are asked to."""
        from aspen_mp.system import threads

        self._executor_shutdown_called = True
        executor = self._default_executor
        if executor is None:
            return
        done = self.create_future()

        def wait() -> None:
            executor.shutdown(wait=True)
            self.call_soon_threadsafe(done.set_result, None)

        threads.Thread(target=wait, name="executor's end").start()
        await done

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error has left a callback or a task."""
        error = context.get("exception")
        process = self._world.here
        if isinstance(error, OSError) and "scarce" in self._world.choices.trouble.rates:
            self._world.history.note(f"{process.name} goes on after an error", str(error))
            return
        self._world.crashed(process, f"its event loop ({context.get('message')})", error or RuntimeError("no exception"))


def _cancel_all(loop: Loop) -> None:
    """As asyncio's runner, in the order in which tasks were made."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: int(task.get_name().rpartition("-")[2]))
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            loop.call_exception_handler({"message": "at the end of its loop", "exception": task.exception(), "task": task})


def runner(world: World) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """What takes the place of `asyncio.run`."""

    def run(main: Coroutine[Any, Any, Any], **_: Any) -> Any:
        loop = Loop(world)
        try:
            return loop.run_until_complete(main)
        finally:
            try:
                _cancel_all(loop)
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                loop.close()

    return run


class Child:
    """As `asyncio.subprocess.Process`."""

    def __init__(self, world: World, process: Process) -> None:
        self._process = process
        self.pid = process.pid
        self.returncode: int | None = None
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        number = world.here.add(PidFd(world, process))

        def ended() -> None:
            from aspen_mp.system import descriptors, processes

            loop.remove_reader(number)
            descriptors.close(number)
            _, status = processes.waitpid(process.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status)
            if not self._ended.done():
                self._ended.set_result(self.returncode)

        loop.add_reader(number, ended)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if self.returncode is None:
            self._process.deliver(signal.SIGKILL)


def spawner(world: World, live: Callable[[Process, Callable[[], object]], object]) -> Callable[..., Coroutine[Any, Any, Child]]:
    """What takes the place of `asyncio.create_subprocess_exec`. `live` runs the main function of a new process."""

    async def create_subprocess_exec(*command: str, pass_fds: Sequence[int] = (), **_: Any) -> Child:
        import errno

        parent = world.enter("posix_spawn")
        world.scarce("a process", errno.EAGAIN, errno.ENOMEM)
        k = command.index("-c")
        module, arguments = command[k + 2], list(command[k + 2 :])
        made = world.process(world.kind_of_module(module), parent)
        made.uid, made.most_descriptors = parent.uid, parent.most_descriptors
        parent.inherit(made, {number: number for number in pass_fds})

        def main() -> None:
            sys.argv = arguments  # read before anybody else runs
            importlib.import_module(module).main()

        world.begin(made, lambda: live(made, main))
        return Child(world, made)

    return create_subprocess_exec


def _forget_garbage(world: World) -> None:
    """What one process has left behind is found as garbage while another one runs, which has nothing to close."""
    import asyncio.selector_events as events

    from aspen_mp.client.loop_results import LoopResults

    events._SelectorTransport.__del__ = lambda self: None  # type: ignore[attr-defined]
    asyncio.BaseEventLoop.__del__ = lambda self: None  # type: ignore[attr-defined]
    begin, end = LoopResults.__init__, LoopResults.__del__

    def made(self: Any, *given: Any) -> None:
        self.maker = world.here
        begin(self, *given)

    def gone(self: Any) -> None:
        if world.scheduler.current is not None and world.here is self.maker:
            end(self)

    LoopResults.__init__, LoopResults.__del__ = made, gone  # type: ignore[method-assign]


async def wait_for(awaited: Awaitable[Any], timeout: float | None) -> Any:
    """As `asyncio.wait_for`, in the same steps for all versions of Python."""
    async with asyncio.timeout(timeout):
        return await awaited


def install(world: World) -> None:
    """Give asyncio the world's threads, and each task its own running loop."""
    _forget_garbage(world)
    asyncio.wait_for = wait_for  # type: ignore[assignment]
    transport = importlib.import_module("asyncio.selector_events")._SelectorSocketTransport
    transport.writelines = lambda self, parts: self.write(b"".join(parts))  # as in Python 3.11
    import asyncio.base_events as base

    from simulation.world import threads

    names = ModuleType("threading")
    for name, value in threads.make(world).items():
        setattr(names, name, value)
    base.threading = names  # type: ignore[attr-defined]
    scheduler = world.scheduler
    before, after = scheduler.before, scheduler.after
    running: dict[int, tuple[asyncio.AbstractEventLoop, Any]] = {}

    def enter() -> None:
        before()
        found = running.get(scheduler.current.number)  # type: ignore[union-attr]
        if found is not None:
            asyncio._set_running_loop(found[0])
            sys.set_asyncgen_hooks(*found[1])

    def leave() -> None:
        number = scheduler.current.number  # type: ignore[union-attr]
        loop = asyncio._get_running_loop()
        if loop is None:
            running.pop(number, None)
        else:
            running[number] = loop, sys.get_asyncgen_hooks()
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(None, None)
        after()

    scheduler.before, scheduler.after = enter, leave
