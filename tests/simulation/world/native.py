"""The hooks of the C parts: futexes, pauses at atomic operations, events, and what is mapped where."""

from __future__ import annotations

import errno

from simulation.native import _hooks
from simulation.world.descriptions import EventFd
from simulation.world.processes import Process
from simulation.world.scheduler import BLOCKED, Task
from simulation.world.world import World

SPIN_NS = (500, 5_000)
"""How long a turn of a spin loop takes: many real ones at once."""
MOST_OPERATIONS = 300
"""The longest that a process goes on without a pause, where histories have pauses."""


class Futexes:
    """Tasks that sleep on shared words, by the words' places in files."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sleepers: dict[_hooks.Place, dict[int, Task]] = {}

    def wait(self, place: _hooks.Place, timeout_ns: int | None, held: bool) -> int:
        world = self._world
        task = world.task
        if world.choices.happens("spurious"):
            return errno.EINTR if world.choices.chance(0.5) else 0
        sleepers = self._sleepers.setdefault(place, {})
        sleepers[task.number] = task
        until = None if timeout_ns is None else world.scheduler.now + timeout_ns
        try:
            woken = world.scheduler.block("a futex", until)
        finally:
            sleepers.pop(task.number, None)
            if not sleepers and self._sleepers.get(place) is sleepers:
                del self._sleepers[place]
        return 0 if woken else errno.ETIMEDOUT

    def wake(self, place: _hooks.Place, n: int) -> int:
        world = self._world
        asleep = [task for task in self._sleepers.get(place, {}).values() if task.state is BLOCKED]
        woken = 0
        while asleep and woken < n:
            k = world.choices.below(len(asleep)) if len(asleep) > 1 else 0
            task = asleep.pop(k)
            del self._sleepers[place][task.number]
            world.scheduler.wake(task, world.choices.wake_delay_ns())
            woken += 1
        return woken


class Native:
    """Connects the hooks with a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._mappings: dict[int, dict[int, int]] = {}
        self.futexes = Futexes(world)
        _hooks.set_now(world.scheduler.now)
        _hooks.install(
            pause=self._pause,
            spin=self._spin,
            futex_wait=self.futexes.wait,
            futex_wake=self.futexes.wake,
            event_make=self._event_make,
            event_tell=lambda fd: world.event(fd).add(1),
            event_drain=lambda fd: world.event(fd).take(),
            event_close=self._close,
            memory_make=self._memory_make,
            memory_close=self._close,
            mapped=self._mapped,
            unmapped=self._unmapped,
        )

    def before(self) -> None:
        """Before a slice."""
        choices = self._world.choices
        _hooks.budget(choices.between(1, MOST_OPERATIONS) if "preempt" in choices.trouble.rates and not choices.quiet else 0)

    def _pause(self, held: bool) -> None:
        if self._world.scheduler.current is None:
            return
        self._world.enter("an atomic operation")
        if not held:
            self._world.scheduler.pause()

    def _spin(self, held: bool) -> None:
        if self._world.scheduler.current is not None:
            self._world.scheduler.pause(self._world.choices.between(*SPIN_NS))

    def _event_make(self) -> int:
        try:
            self._world.scarce("a descriptor", errno.EMFILE)
            return self._world.here.add(EventFd(self._world, 0))
        except OSError as error:
            return -(error.errno or errno.EMFILE)

    def _memory_make(self, name: str, flags: int) -> int:
        from aspen_mp.system import descriptors

        try:
            return descriptors.memfd_create(name, flags)
        except OSError as error:
            return -(error.errno or errno.EMFILE)

    def _close(self, fd: int) -> None:
        """An object gives up its descriptor, perhaps one of a process that is gone."""
        current = self._world.scheduler.current
        if current is not None and fd in current.process.table:
            current.process.close(fd)

    def _mapped(self, base: int, nbytes: int, fd: int) -> None:
        if self._world.scheduler.current is not None:
            self._mappings.setdefault(self._world.here.pid, {})[base] = nbytes

    def _unmapped(self, base: int, nbytes: int) -> None:
        for mappings in self._mappings.values():
            if base in mappings:
                for at in [at for at in mappings if base <= at < base + nbytes]:  # files that were mapped over parts of it, too
                    del mappings[at]
                return

    def ended(self, process: Process) -> None:
        """Memory of a process that is gone is given back."""
        for base, nbytes in self._mappings.pop(process.pid, {}).items():
            _hooks.vacate(base, nbytes)

    def mapped(self, process: Process) -> int:
        """How many mappings a process has."""
        return len(self._mappings.get(process.pid, {}))

    def mapped_bytes(self) -> int:
        """Bytes that living processes have mapped."""
        return sum(nbytes for mappings in self._mappings.values() for nbytes in mappings.values())
