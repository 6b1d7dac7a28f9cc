"""Workers, clients and a small planner process in one thread, by a seed: shows that the simulation's modules can be scheduled.

    python -m tests.simulation.native.trial FIRST LAST [unrecovered]

Prints a line of JSON for each seed, with a digest of all that the hooks were asked. Every second seed kills workers. With `unrecovered`
they are replaced without a recovery, so some seeds must fail.
"""

# ruff: noqa: E402 (modules are enabled before anything of aspen_mp is imported)

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import folders  # noqa: F401

from simulation.native import modules

modules.enable()

import greenlet
import numpy as np
from synthetic import random_plan

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._channel import ClientChannel
from aspen_mp.shm.bindings._control import ControlTable
from aspen_mp.shm.bindings._mapping import Mapping
from aspen_mp.shm.segments import Segment
from aspen_mp.workers._dse import Engine
from simulation.native import _hooks

WORKERS: Final = 3
CLIENTS: Final = 2
REQUESTS: Final = 8
"""Requests of each client."""
IN_FLIGHT: Final = 3
MOST_OPERATIONS: Final = 200
"""The longest that a process goes on without a pause."""
MOST_SLICES: Final = 30_000
"""A history that is longer has no end."""
START_NS: Final = 10**12
EVENT: Final = 1000
"""The descriptor of the first event. Others do not exist as real ones, either."""
WRITABLE: Final = frozenset({"arena", "data", "client"})
FOR_EVER: list[greenlet.greenlet] = []
"""Greenlets of killed processes. Python would end them by an exception if nobody referred to them, and C code cannot be left that way."""


@dataclass(eq=False, slots=True)
class Process:
    """A simulated process with one thread.

    Attributes:
        place: The word that it sleeps on.
        until_ns: The end of its sleep. None: none.
        mappings: The bytes of what it has mapped, by address.
    """

    name: str
    green: greenlet.greenlet
    ready: bool = True
    place: _hooks.Place | None = None
    until_ns: int | None = None
    mappings: dict[int, int] = field(default_factory=dict)


class Scheduler:
    """Runs the processes, one at a time, and lets time pass.

    Attributes:
        told: Events that were told and not drained, by descriptor.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hub = greenlet.getcurrent()
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.now = START_NS
        self.history = hashlib.sha256()
        self.events: list[int] = []
        self.told: set[int] = set()
        self._files: dict[tuple[int, int], int] = {}
        _hooks.set_now(self.now)
        _hooks.install(
            pause=lambda held: self._leave(f"pause {held}", 10),
            spin=lambda held: self._leave("spin", 300),
            futex_wait=self._futex_wait,
            futex_wake=self._futex_wake,
            event_make=self._event_make,
            event_tell=self._event_tell,
            event_drain=self.told.discard,
            event_close=self.events.remove,
            mapped=self._mapped,
            unmapped=self._unmapped,
        )

    def start(self, name: str, body: Callable[[], object]) -> Process:
        process = Process(name, greenlet.greenlet(body, self.hub))
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """End a process where it is. Its memory is given back, and nobody hears of it."""
        self._note("kill", process.name)
        self.processes.remove(process)
        FOR_EVER.append(process.green)
        for base, nbytes in process.mappings.items():
            _hooks.vacate(base, nbytes)

    def run(self) -> None:
        """Run until every process has ended."""
        for _ in range(MOST_SLICES):
            if not self.processes:
                return
            ready = [process for process in self.processes if process.ready]
            if ready:
                self._run(ready[self.random.randrange(len(ready))])
            else:
                self._sleep()
        raise RuntimeError(f"no end: {[(process.name, process.ready) for process in self.processes]}")

    def wait(self, done: Callable[[], bool]) -> None:
        """Let others run until something has come true."""
        while not done():
            self._leave("wait", 1000)

    def _run(self, process: Process) -> None:
        self.current = process
        _hooks.budget(self.random.randint(1, MOST_OPERATIONS))
        process.green.switch()
        _hooks.budget(0)
        self.current = None
        if process.green.dead:
            self.processes.remove(process)

    def _note(self, *words: object) -> None:
        self.history.update(f"{self.now} {words}\n".encode())

    def _known(self, place: _hooks.Place) -> tuple[int, int]:
        """A place without the numbers that the machine has drawn: the file's number among those seen, and the offset."""
        return self._files.setdefault(place[:2], len(self._files)), place[2]

    def _pass(self, ns: int) -> None:
        self.now += ns
        _hooks.set_now(self.now)

    def _leave(self, why: str, ns: int) -> None:
        assert self.current is not None
        self._note(why, self.current.name)
        self._pass(ns)
        self.hub.switch()

    def _sleep(self) -> None:
        """Nobody is ready, so time passes until the first sleep ends."""
        timed = [(process.until_ns, k) for k, process in enumerate(self.processes) if process.until_ns is not None]
        if not timed:
            raise RuntimeError(f"all sleep for ever: {[process.name for process in self.processes]}")
        until, k = min(timed)
        self._pass(max(0, until - self.now))
        self.processes[k].ready = True

    def _futex_wait(self, place: _hooks.Place, timeout_ns: int | None, held: bool) -> int:
        me = self.current
        assert me is not None
        assert not held
        self._note("sleep", me.name, self._known(place), timeout_ns)
        me.ready, me.place = False, place
        me.until_ns = None if timeout_ns is None else self.now + timeout_ns
        self.hub.switch()
        woken = me.place is None
        me.place = me.until_ns = None
        return 0 if woken else errno.ETIMEDOUT

    def _futex_wake(self, place: _hooks.Place, n: int) -> int:
        asleep = [process for process in self.processes if process.place == place and not process.ready]
        self.random.shuffle(asleep)
        for process in asleep[:n]:
            process.ready, process.place, process.until_ns = True, None, None
        self._note("wake", self._known(place), [process.name for process in asleep[:n]])
        return len(asleep[:n])

    def _event_make(self) -> int:
        self.events.append(EVENT + len(self.events))
        return self.events[-1]

    def _event_tell(self, event: int) -> None:
        assert event in self.events
        self._note("tell", event)
        self.told.add(event)

    def _mapped(self, base: int, nbytes: int, fd: int) -> None:
        if self.current is not None:
            self.current.mappings[base] = nbytes

    def _unmapped(self, base: int, nbytes: int) -> None:
        if self.current is not None:
            self.current.mappings.pop(base, None)


def _own(segment: Segment, writable: bool = True) -> Segment:
    """Map a segment as another process does: elsewhere."""
    own = Segment.from_fd(os.dup(segment.fd), segment.role, writable=writable)
    own.close_fd()
    return own


class Town:
    """A runtime in miniature.

    Attributes:
        outcome: The counts of all recoveries (`ControlTable.recover`), and how many there were.
    """

    def __init__(self, seed: int, scheduler: Scheduler, *, recovers: bool) -> None:
        self.scheduler, self.recovers = scheduler, recovers
        self.random = random.Random(f"town {seed}")
        self.kills = seed % 2 * self.random.randint(1, 4)
        self.plan = random_plan(seed, nodes=self.random.randint(4, 16), parts=self.random.randint(1, 4), length=64)
        self.control = Segment.create("control", _control.CONTROL_BYTES, memfd=True)
        self.bell = Segment.create("doorbell", _control.DOORBELL_BYTES, memfd=True)
        self.table = ControlTable(self.control.buf, self.bell.buf, create=True, max_workers=WORKERS)
        self.segments: dict[int, Segment] = {}
        self.workers: dict[int, Process] = {}
        self.answers, self.clients = 0, CLIENTS
        self.outcome: Counter[str] = Counter()
        self.listener = ClientChannel(self.segments[self._announce("client", _control.CLIENT_BYTES)].buf, self.bell.buf)
        self.parked = self.listener.event()  # a worker writes to it when it has parked

    def close(self) -> None:
        self.listener.close_event()
        for segment in [*self.segments.values(), self.control, self.bell]:
            segment.close_fd()

    def planner(self) -> None:
        """Run the planner process."""
        for row in range(WORKERS):
            self._start(row)
        ids = self._load()
        for k in range(CLIENTS):
            segment, data = (
                self._announce("client", _control.CLIENT_BYTES),
                self._announce("data", 64 + IN_FLIGHT * self.plan.request_bytes),
            )
            index = self.table.add_data(self.table.add_client(segment, self.segments[segment].buf), data)
            self.table.publish()
            self.scheduler.start(f"client {k}", lambda place=(segment, data, index): self.client(ids, *place))
        for _ in range(self.kills):
            after = self.random.randrange(CLIENTS * REQUESTS)
            self.scheduler.wait(lambda after=after: self.answers >= after)
            self._kill()
        self.scheduler.wait(lambda: not self.clients)
        self.table.stop()

    def _announce(self, role: str, nbytes: int) -> int:
        segment = Segment.create(role, nbytes, memfd=True)
        number = self.table.add_segment(role, segment.nbytes)
        self.segments[number] = segment
        return number

    def _load(self) -> tuple[int, int]:
        number = self._announce("plan", len(self.plan.plan))
        self.segments[number].buf[: len(self.plan.plan)] = self.plan.plan
        ids = self.table.add_plan(number, [], [self._announce("arena", self.plan.arena_bytes) for _ in range(2)])
        self.table.publish()
        return ids

    def _start(self, row: int) -> None:
        self.table.worker_reset(row)
        self.workers[row] = self.scheduler.start(f"worker {row}", lambda: self.worker(row))
        self.table.publish()

    def _kill(self) -> None:
        """Kill a worker, wherever it is, and recover as `aspen_mp/control/pool/recovery.py` does."""
        row = self.random.choice(sorted(self.workers))
        self.scheduler.kill(self.workers.pop(row))
        self.table.worker_gone(row, died=True)
        if self.recovers:
            self._recover()
        self.outcome["kills"] += 1
        self._start(row)

    def _recover(self) -> None:
        self.table.epoch_begin()
        while self.table.epoch_stopped():
            self.scheduler.wait(lambda: self.parked in self.scheduler.told)
            self.listener.heard()
        mapped = {}
        for number in self.table.recovery_segments():
            segment = self.segments[number]
            mapped[number] = Mapping(segment.fd, segment.nbytes, segment.role != "plan")
        self.outcome.update(self.table.recover(mapped))
        for mapping in mapped.values():
            mapping.close()
        self.table.epoch_end()

    def worker(self, row: int) -> None:
        """Run a worker."""
        engine = Engine(_own(self.control).buf, _own(self.bell).buf, row, told=self.parked)
        own: dict[int, Segment] = {}
        while True:
            reason, seq, _ = engine.run()
            if reason != "attach":
                break
            for number in engine.missing(seq):
                segment = self.segments[number]
                own[number] = _own(segment, segment.role in WRITABLE)
                engine.map(number, segment.role, own[number].buf)
            engine.attached(seq)
        assert reason == "stop"
        engine.close()

    def client(self, ids: tuple[int, int], segment: int, data: int, index: int) -> None:
        """Run a client: requests with drawn inputs, several at a time."""
        channel = ClientChannel(_own(self.segments[segment]).buf, _own(self.bell).buf)
        memory = np.frombuffer(_own(self.segments[data]).buf, np.uint8)
        draw = np.random.default_rng(segment)
        flying: list[tuple[int, int, Any]] = []
        for n in range(REQUESTS):
            if len(flying) == IN_FLIGHT:
                self._answer(channel, memory, *flying.pop(0))
            x = draw.integers(0, 1 << 63, self.plan.length, dtype=np.uint64)
            at = _control.DATA_FIRST + n % IN_FLIGHT * self.plan.request_bytes
            memory[at + self.plan.x_offset :][: x.nbytes] = x.view(np.uint8)
            flying.append((channel.submit(*ids, index, at), at, x))
        for each in flying:
            self._answer(channel, memory, *each)
        self.clients -= 1

    def _answer(self, channel: ClientChannel, memory: Any, ticket: int, at: int, x: Any) -> None:
        result = channel.wait(ticket)
        assert result is not None
        assert result.error == 0, result
        assert (memory[at + self.plan.y_offset :][: x.nbytes].view(np.uint64) == self.plan.reference(x)).all()
        channel.release(ticket)
        self.answers += 1


def history(seed: int, *, recovers: bool = True) -> dict[str, object]:
    """Run a seed. Returns its digest, its virtual nanoseconds and the counts of its recoveries."""
    scheduler = Scheduler(seed)
    town = Town(seed, scheduler, recovers=recovers)
    scheduler.start("planner", town.planner)
    try:
        scheduler.run()
    except (RuntimeError, AssertionError) as error:
        return {"seed": seed, "wrong": str(error)}
    town.close()
    assert not scheduler.events
    return {"seed": seed, "digest": scheduler.history.hexdigest()[:16], "ns": scheduler.now - START_NS, **town.outcome}


def main() -> None:
    """Print a line for each seed and, to standard error, how fast it went."""
    first, last, *more = sys.argv[1:]
    began, seeds = time.process_time(), range(int(first), int(last) + 1)
    for seed in seeds:
        print(json.dumps(history(seed, recovers=more != ["unrecovered"])), flush=True)
    took = time.process_time() - began
    speed = f"{sum(_hooks.calls().values()) / took:.0f} calls of hooks and {len(seeds) * CLIENTS * REQUESTS / took:.0f} requests a second"
    print(f"{took:.1f} s of CPU time, {speed}", file=sys.stderr)


if __name__ == "__main__":
    main()
