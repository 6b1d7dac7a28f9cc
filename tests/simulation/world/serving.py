"""What servers ask of the world beside other processes: watches of folders, temporary folders, and what uvicorn asks for by itself."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import sys
import termios
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from simulation.world import descriptions, loops
from simulation.world.descriptions import Stream, real_number
from simulation.world.isolation import Ordered
from simulation.world.world import World


class Folders:
    """Folders whose entries change without a call of the product."""

    def __init__(self, world: World) -> None:
        self._world = world

    def changed(self, folder: Path, event: int) -> None:
        """Something has happened to an entry of a folder."""
        try:
            about = os.stat(folder)
        except FileNotFoundError:
            return
        for watch in sorted(self._world.watches, key=lambda watch: watch.number):
            watch.tell((about.st_dev, about.st_ino), event, "entry")


def _init(world: World, init: Any) -> Any:
    """Watches of a server do not block."""

    def nonblocking() -> int:
        number = init()
        world.here.get(number).blocking = False
        return int(number)

    return nonblocking


class Signals(ModuleType):
    """The module `signal` for uvicorn, whose handlers only note that a signal has come."""

    def __init__(self, world: World) -> None:
        super().__init__("signal")
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        from aspen_mp.system import signals

        return signals.signal(number, handler)

    def raise_signal(self, number: int) -> None:
        self._world.here.deliver(number)
        if not self._world.here.alive:
            raise AssertionError("a process went on after its end")


class Errors:
    """Standard error: lines of simulated processes become part of the history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._real = sys.stderr

    def write(self, text: str) -> int:
        if self._world.scheduler.current is None:
            return self._real.write(text)
        for line in text.splitlines():
            if line.strip():
                self._world.history.note(f"{self._world.here.name} says", line[:300])
        return len(text)

    def flush(self) -> None:
        self._real.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _ioctl(world: World) -> Any:
    def ioctl(number: int, command: int, argument: Any = 0) -> Any:
        description = world.here.get(number)
        if isinstance(description, Stream) and command == termios.FIONREAD:
            return struct.pack("i", sum(len(message.data) for message in description.inbox))
        if isinstance(description, Stream) and command == termios.TIOCOUTQ:
            other = description.other
            return struct.pack("i", 0 if other is None else sum(len(message.data) for message in other.inbox))
        return fcntl.ioctl(number, command, argument) if real_number(number) else argument

    return ioctl


def _readv(world: World, real: Any) -> Any:
    def readv(number: int, buffers: Any) -> int:
        description = world.here.get(number)
        if not isinstance(description, Stream):
            return int(real(number, buffers))
        world.enter("readv")
        (buffer,) = buffers
        found = description.receive(len(buffer), world.partial, rights=False)
        if found is None:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        buffer[: len(found[0])] = found[0]
        return len(found[0])

    return readv


def _state(known: Any) -> Any:
    """uvicorn's state, with sets that have the order in which things came."""

    class State(known):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.connections, self.tasks = Ordered(), Ordered()

    return State


def install(world: World, live: Any) -> Folders:
    """Replace what only servers use. `live`: as of `loops.spawner`."""
    import uvicorn.server
    import uvloop

    from aspen_mp.serving.access import descriptors as room
    from aspen_mp.system import clock, descriptors, filesystem, processes, watches

    folders = Folders(world)
    watches.init = _init(world, watches.init)
    descriptors.ioctl = _ioctl(world)
    descriptors.readv = _readv(world, descriptors.readv)
    temporary = world.folder / "tmp"
    temporary.mkdir(exist_ok=True)

    def mkdtemp(prefix: str) -> str:
        world.enter("mkdtemp")
        path = temporary / f"{prefix}{world.count('folder')}"
        path.mkdir(mode=0o700)
        return str(path)

    filesystem.gettempdir = lambda: str(temporary)
    filesystem.mkdtemp = mkdtemp
    filesystem.rmtree = lambda path, *, ignore_errors=False: shutil.rmtree(path, ignore_errors=ignore_errors)
    loops.install(world)
    uvloop.run = loops.runner(world)
    processes.create_subprocess_exec = loops.spawner(world, live)
    uvicorn.server.signal = Signals(world)
    uvicorn.server.time = SimpleNamespace(time=lambda: clock.time())
    uvicorn.server.ServerState = _state(uvicorn.server.ServerState)  # type: ignore[misc]
    # Descriptors of the world have large numbers; the limit counts from the first of them.
    room.processes = SimpleNamespace(getrlimit=lambda which: (descriptions.FIRST + world.here.most_descriptors,) * 2)
    sys.stderr = Errors(world)  # type: ignore[assignment]
    return folders
