"""Simulated processes: their tables of descriptors, tasks, signals and ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.world import descriptions
from simulation.world.descriptions import FIRST, Description, PidFd, RealFile, real_number
from simulation.world.scheduler import DEAD, Task, Waiters

if TYPE_CHECKING:
    from simulation.world.world import World


class Process:
    """A process of the simulated world.

    Attributes:
        pid: Its number.
        parent: The process that waits for it; None where nobody does.
        name: What it is called in histories: its kind, and which of that kind.
        kind: "planner", "worker", "client" …
        alive: Whether it has not ended.
        status: How it has ended, as of `waitpid`.
        table: Its descriptors.
        slow: How much longer a step of it takes than one of others.
        globals: Its own values of modules' variables (`isolation.py`).
    """

    def __init__(self, world: World, pid: int, parent: Process | None, kind: str) -> None:
        self.world = world
        self.pid = pid
        self.parent = parent
        self.kind = kind
        self.name = f"{kind}-{world.count(kind)}"
        self.uid = os.getuid()
        self.started = world.scheduler.now // 10_000_000 + pid
        self.alive = True
        self.status = 0
        self.reaped = False
        self.terminated = False
        """Whether chance has told it to end."""
        self.stopped = False
        self.reported_stop = False
        self.held: list[Task] = []
        self.tasks: dict[int, Task] = {}
        self.main: Task | None = None
        self.children: dict[int, Process] = {}
        self.watchers: list[PidFd] = []
        self.ends = Waiters(world.scheduler)
        """Tasks that wait for ends of children."""
        self.table: dict[int, Description] = {}
        self.dies_with_parent = False
        self.handlers: dict[int, Any] = {}
        self.wakeup = -1
        self.affinity: set[int] = set(range(world.cpus))
        self.cpu_ns = 0
        self.slow = world.slowness.get(kind, 1)
        self.alarm: Any = None
        self.globals: dict[int, Any] = {}
        self.attributes: list[Any] = []
        """Its own values of classes' attributes, where servers are simulated."""
        self.most_descriptors = world.most_descriptors
        self.at_end: list[Callable[[Process], object]] = []

    def __repr__(self) -> str:
        return f"{self.name}({self.pid})"

    @property
    def young(self) -> bool:
        """Whether it has hardly begun: nobody can have found it yet."""
        return not any(description.kind == "listener" for description in self.table.values())

    # ---- descriptors

    def add(self, description: Description, number: int = -1) -> int:
        """Enter a description. `number`: of the real system, or one that is asked for.

        Raises:
            OSError: The table is full.
        """
        if number < 0:
            if len(self.table) >= self.most_descriptors:
                raise OSError(24, "Too many open files")
            number = FIRST
            while number in self.table:
                number += 1
        assert number not in self.table, f"{self} has {number} already"
        self.table[number] = description
        description.references += 1
        if real_number(number) and number > 15:
            self.world.real[number] = self.world.real.get(number, 0) + 1
        return number

    def get(self, number: int) -> Description:
        found = self.table.get(number)
        if found is None:
            raise OSError(9, f"Bad file descriptor {number} of {self}")
        return found

    def close(self, number: int) -> None:
        """Raises OSError (EBADF), which the world notes: nobody closes what is not there."""
        description = self.table.pop(number, None)
        if description is None:
            self.world.violation(f"{self} closed descriptor {number}, which it does not have")
            raise OSError(9, f"Bad file descriptor {number}")
        self._let_go(number, description)

    def _let_go(self, number: int, description: Description) -> None:
        if real_number(number) and number > 15:
            left = self.world.real[number] - 1
            if left:
                self.world.real[number] = left
            else:
                del self.world.real[number]
                descriptions.close_real(number)
        description.drop()

    # ---- the end

    def exit(self, status: int) -> None:
        """End with a wait status. Returns unless this process runs."""
        if not self.alive:
            return
        world = self.world
        self.alive, self.status = False, status
        world.history.note(f"{self.name} ends", _how(status))
        current = world.scheduler.current
        for task in self.tasks.values():
            if task is not current and task.state is not DEAD:
                world.scheduler.bury(task)
        self.tasks.clear()
        self.held.clear()
        if self.alarm is not None:
            self.alarm.cancel()
        table, self.table = self.table, {}
        for number, description in table.items():
            self._let_go(number, description)
        for child in list(self.children.values()):
            child.parent = None
            if child.alive and child.dies_with_parent:
                child.exit(signal.SIGKILL)
        for watcher in self.watchers:
            watcher.changed()
        self.watchers.clear()
        world.ended(self)
        parent = self.parent
        if parent is not None and parent.alive:
            parent.deliver(signal.SIGCHLD)
            parent.ends.changed()
        for then in self.at_end:
            then(self)
        if current is not None and current.process is self:
            world.scheduler.end()

    # ---- signals

    def deliver(self, number: int) -> None:
        """What `kill` does."""
        if not self.alive:
            return
        if number == signal.SIGKILL:
            self.exit(signal.SIGKILL)
            return
        if number == signal.SIGSTOP:
            self.stop()
            return
        if number == signal.SIGCONT:
            self.go_on()
            return
        handler = self.handlers.get(number, signal.SIG_DFL)
        if handler is signal.SIG_IGN:
            return
        if handler is signal.SIG_DFL:
            if number != signal.SIGCHLD:
                self.exit(number)
            return
        if getattr(handler, "__name__", "") == "handle_exit":  # uvicorn's: it only notes that the server is to end
            handler(number, None)
            return
        if self.wakeup >= 0 and self.wakeup in self.table:
            self.world.write_signal(self.table[self.wakeup], number)

    def stop(self) -> None:
        if self.alive and not self.stopped:
            self.stopped, self.reported_stop = True, False
            if self.parent is not None and self.parent.alive:
                self.parent.deliver(signal.SIGCHLD)

    def go_on(self) -> None:
        if self.alive and self.stopped:
            self.stopped = False
            self.world.scheduler.release(self.held)

    def inherit(self, child: Process, numbers: dict[int, int] | None = None) -> None:
        """Give a child this table, or only `numbers`: its numbers by ours."""
        wanted = {number: number for number in self.table} if numbers is None else numbers
        for ours, theirs in wanted.items():
            description = self.table[ours]
            if isinstance(description, RealFile) and ours != theirs:
                raise AssertionError("a real descriptor keeps its number")
            child.add(description, theirs)


def _how(status: int) -> str:
    if status & 0x7F:
        return f"by {signal.Signals(status & 0x7F).name}"
    return f"with status {status >> 8}"
