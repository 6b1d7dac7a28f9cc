"""Events that come to a machine from outside: signals, cores that come and go, short memory, damaged files, clocks that jump."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from simulation.world.processes import Process
from simulation.world.world import World

KINDS: Final = ("kill-anyone", "stop-anyone", "end-planner", "cores", "memory", "cache", "clock", "run-folder")
"""Kinds of events. A history has some of them; with streams it may have `faults`, too."""
MOST_KILLED: Final = ("worker", "worker", "worker", "planner", "client", "zygote", "plan", "cache")
"""Kinds of processes that are killed, as often as they stand here."""


class Weather:
    """Brings events at moments that chance draws, until `stop`."""

    def __init__(self, world: World, kinds: tuple[str, ...], mean_s: float) -> None:
        """`mean_s`: virtual seconds between two events, on average."""
        self._world = world
        self.kinds = kinds
        self._mean_ns = int(mean_s * 1e9)
        self._over = False
        self._armed = False
        self._last: dict[int, str] = {}
        self._ends: list[Callable[[], object]] = []

    def begin(self) -> None:
        if self.kinds:
            self._next()
        if {"run-folder", "end-planner"} & set(self.kinds):
            self._world.at_call = self._at_call

    def stop(self) -> None:
        """Bring no more, and end what lasts."""
        self._over = True
        self._world.at_call = None
        for end in self._ends:
            end()
        self._ends.clear()

    def _next(self) -> None:
        self._world.scheduler.later(1 + int(self._mean_ns * 2 * self._world.choices.uniform()), self._come)

    def _come(self) -> None:
        if self._over:
            return
        kind = self._world.choices.pick(self.kinds)
        getattr(self, f"_{kind.replace('-', '_')}")()
        self._next()

    def _one(self, kind: str):  # type: ignore[no-untyped-def]
        alive = self._world.alive(kind)
        return self._world.choices.pick(alive) if alive else None

    def _kill_anyone(self) -> None:
        victim = self._one(self._world.choices.pick(MOST_KILLED))
        if victim is not None:
            self._world.history.note(f"{victim.name} is killed")
            victim.exit(signal.SIGKILL)

    def _faults(self) -> None:
        """A worker dies of a fault. `streams.OpenStreams` says what it has done before."""
        victim = self._one("worker")
        if victim is not None:
            self._world.history.note(f"{victim.name} has a fault")
            victim.exit(signal.SIGSEGV)

    def _stop_anyone(self) -> None:
        victim = self._one(self._world.choices.pick(("worker", "worker", "planner", "client", "zygote")))
        if victim is not None and not victim.stopped:
            self._world.history.note(f"{victim.name} is stopped for a while")
            self._world.stop_for_a_while(victim)

    def _at_call(self, process: Process, name: str) -> None:
        """Events that come between two calls that belong together, which chance alone would seldom hit."""
        before, self._last[process.pid] = self._last.get(process.pid, ""), name
        if name == "open" and before == "mkdir" and "run-folder" in self.kinds and self._world.choices.chance(0.3):
            self._run_folder()
        if self._armed and name == "accept" and process.kind == "planner":
            self._armed = False
            self._terminate(process)

    def _end_planner(self) -> None:
        """Now, or when the next client connects."""
        victim = self._one("planner")
        if self._world.choices.chance(0.5):
            self._armed = True
        elif victim is not None:
            self._terminate(victim)

    def _terminate(self, victim: Process) -> None:
        self._world.history.note(f"{victim.name} gets SIGTERM")
        victim.terminated = True
        victim.deliver(signal.SIGTERM)

    def _cores(self) -> None:
        world = self._world
        if world.missing:
            world.missing.clear()
        else:
            world.missing.update({world.choices.below(world.cpus) for _ in range(world.choices.between(1, world.cpus - 1))})
            if len(world.missing) == world.cpus:
                world.missing.pop()
        world.history.note("cores", f"{sorted(world.online)} are there")
        self._ends.append(world.missing.clear)

    def _memory(self) -> None:
        world = self._world
        whole, short = 8 << 30, (64 << 20, 4 << 20, 256 << 10, 64 << 10, 24 << 10)
        world.memory_bytes = whole if world.memory_bytes != whole else world.choices.pick(short)
        world.history.note("memory", f"{world.memory_bytes >> 10} KiB are free")
        self._ends.append(lambda: setattr(world, "memory_bytes", whole))

    def _cache(self) -> None:
        order = self._world.renamed
        found = [file for file in Path(self._world.folder / "cache").rglob("*") if file.name in order and file.is_file()]
        files = sorted(found, key=lambda file: order[file.name])
        if not files:
            return
        file = self._world.choices.pick(files)
        how = self._world.choices.below(2 if file.parent.name == "weights" else 3)  # workers have mapped what was verified
        self._world.history.note(f"a {file.suffix or 'nameless'} file of the cache", ("vanishes", "is cut short", "is damaged")[how])
        if how == 0:
            file.unlink()
        elif how == 1:
            os.truncate(file, self._world.choices.below(file.stat().st_size + 1))
        else:
            data = bytearray(file.read_bytes())
            if data:
                data[self._world.choices.below(len(data))] ^= 1 << self._world.choices.below(8)
                file.write_bytes(data)

    def _run_folder(self) -> None:
        """Whoever cleans up temporary files removes the folder of runtimes while none is there."""
        world = self._world
        if all(process.young for process in world.alive("planner")):
            folder = world.folder / "run" / "aspen-mp"
            world.folder_goes(folder)
            shutil.rmtree(folder, ignore_errors=True)
            world.history.note("the run directory is removed")

    def _clock(self) -> None:
        self._world.wall_offset_ns += self._world.choices.between(-86_400, 86_400) * 1_000_000_000
        self._world.history.note("the clock of the wall jumps")
