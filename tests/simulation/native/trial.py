"""Workers, clients and a small planner process in one thread, by a seed: shows that the simulation's modules can be scheduled.

    python -m tests.simulation.native.trial FIRST LAST

Prints a line of JSON for each seed, with a digest of everything that the hooks were asked. One seed in two kills workers.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import folders  # noqa: F401
from tests.simulation.native import modules

modules.enable()

import greenlet
import numpy as np
from tests.simulation.native import _hooks
from synthetic import Synthetic, random_plan

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._channel import ClientChannel
from aspen_mp.shm.bindings._control import ControlTable
from aspen_mp.shm.bindings._mapping import Mapping
from aspen_mp.shm.segments import Segment
from aspen_mp.workers._dse import Engine

WORKERS: Final = 3
CLIENTS: Final = 2
REQUESTS: Final = 8
"""Of each client."""
IN_FLIGHT: Final = 3
MOST_OPERATIONS: Final = 200
"""The longest that a process goes on without a pause."""
START_NS: Final = 10**12
WRITABLE: Final = frozenset({"arena", "data", "client"})
FOR_EVER: list[greenlet.greenlet] = []
"""Greenlets of killed processes. Python would end them by an exception if nobody referred to them, and C code cannot be left that way."""


@dataclass(eq=False, slots=True)
class Process:
    """A simulated process with one thread. `place`: of the word that it sleeps on. `until_ns` None: for ever."""

    name: str
    green: greenlet.greenlet
    ready: bool = True
    dead: bool = False
    place: _hooks.Place | None = None
    until_ns: int | None = None
    mappings: dict[int, int] = field(default_factory=dict)


class Scheduler:
    """Runs the processes, one at a time, and lets time pass."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hub = greenlet.getcurrent()
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.now = START_NS
        self.history = hashlib.sha256()
        self._files: dict[tuple[int, int], int] = {}
        _hooks.set_now(self.now)
        _hooks.install(
            pause=lambda held: self._leave("pause", 10),
            spin=lambda held: self._leave("spin", 300),
            futex_wait=self._futex_wait,
            futex_wake=self._futex_wake,
            mapped=self._mapped,
            unmapped=self._unmapped,
        )

    def start(self, name: str, body: Callable[[], object]) -> Process:
        process = Process(name, greenlet.greenlet(body, self.hub))
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Ends a process where it is. Its memory is given back; nobody hears of it."""
        self._note("kill", process.name)
        process.dead, process.ready = True, False
        self.processes.remove(process)
        FOR_EVER.append(process.green)
        for base, nbytes in process.mappings.items():
            _hooks.vacate(base, nbytes)

    def run(self) -> None:
        """Runs until every process has ended."""
        while self.processes:
            ready = [process for process in self.processes if process.ready]
            if not ready:
                self._sleep()
                continue
            process = self.current = ready[self.random.randrange(len(ready))]
            _hooks.budget(self.random.randint(1, MOST_OPERATIONS))
            process.green.switch()
            _hooks.budget(0)
            self.current = None
            if process.green.dead:
                self.processes.remove(process)

    def wait(self, done: Callable[[], bool]) -> None:
        """Lets others run until something has come true."""
        while not done():
            self._leave("wait", 1000)

    def _note(self, *words: object) -> None:
        self.history.update(f"{self.now} {words}\n".encode())

    def _known(self, place: _hooks.Place) -> tuple[int, int]:
        """A place without numbers that the machine has drawn: which file it was among those asked for, and the offset."""
        return self._files.setdefault(place[:2], len(self._files)), place[2]

    def _pass(self, ns: int) -> None:
        self.now += ns
        _hooks.set_now(self.now)

    def _leave(self, why: str, ns: int) -> None:
        if self.current is None:
            return
        self._note(why, self.current.name)
        self._pass(ns)
        self.hub.switch()

    def _sleep(self) -> None:
        """Nobody is ready: the first whose time comes is."""
        timed = [process for process in self.processes if process.until_ns is not None]
        if not timed:
            raise RuntimeError(f"all sleep for ever: {[(process.name, process.place) for process in self.processes]}")
        first = min(timed, key=lambda process: process.until_ns or 0)
        assert first.until_ns is not None
        self._pass(max(0, first.until_ns - self.now))
        first.ready = True

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

    def _mapped(self, base: int, nbytes: int, fd: int) -> None:
        if self.current is not None:
            self.current.mappings[base] = nbytes

    def _unmapped(self, base: int, nbytes: int) -> None:
        if self.current is not None:
            self.current.mappings.pop(base, None)


class Town:
    """What the processes share, and what each of them does."""

    def __init__(self, seed: int, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.random = random.Random(seed ^ 0x5EED)
        self.kills = seed % 2 * self.random.randint(1, 3)
        self.plan = random_plan(seed, nodes=self.random.randint(4, 16), parts=self.random.randint(1, 4), length=64)
        self.control, self.bell = self._segment("control", _control.CONTROL_BYTES), self._segment("doorbell", _control.DOORBELL_BYTES)
        self.table = ControlTable(self.control.buf, self.bell.buf, create=True, max_workers=WORKERS)
        self.segments: dict[int, Segment] = {}
        self.workers: dict[int, Process] = {}
        self.answers = self.clients = self.recoveries = 0

    @staticmethod
    def _segment(role: str, nbytes: int) -> Segment:
        return Segment.create(role, nbytes, memfd=True)

    def _announce(self, role: str, nbytes: int) -> int:
        segment = self._segment(role, nbytes)
        number = self.table.add_segment(role, segment.nbytes)
        self.segments[number] = segment
        return number

    # ---------------------------------------------------------------------------------------- planner process

    def planner(self) -> None:
        for row in range(WORKERS):
            self._start(row)
        ids = self._load(self.plan)
        for k in range(CLIENTS):
            segment, data = self._announce("client", _control.CLIENT_BYTES), self._announce("data", 64 + IN_FLIGHT * self.plan.request_bytes)
            number = self.table.add_client(segment, self.segments[segment].buf)
            index = self.table.add_data(number, data)
            self.table.publish()
            self.clients += 1
            place = self.segments[segment], self.segments[data], index
            self.scheduler.start(f"client {k}", lambda k=k, place=place: self._client(k, ids, *place))
        for _ in range(self.kills):
            after = self.random.randint(1, CLIENTS * REQUESTS * 4 // 5)
            self.scheduler.wait(lambda after=after: self.answers >= after or not self.clients)
            self._kill()
        self.scheduler.wait(lambda: not self.clients)
        self.table.stop()

    def _load(self, plan: Synthetic) -> tuple[int, int]:
        number = self._announce("plan", len(plan.plan))
        self.segments[number].buf[: len(plan.plan)] = plan.plan
        arenas = [self._announce("arena", plan.arena_bytes) for _ in range(2)]
        ids = self.table.add_plan(number, [], arenas)
        self.table.publish()
        return ids

    def _start(self, row: int) -> None:
        self.table.worker_reset(row)
        self.workers[row] = self.scheduler.start(f"worker {row}", lambda: self._worker(row))
        self.table.worker_started(row, 1 + row, 0)
        self.table.publish()

    def _kill(self) -> None:
        """Kills a worker, wherever it is, and recovers as `aspen_mp/control/pool/recovery.py` does."""
        row = self.random.choice(sorted(self.workers))
        self.scheduler.kill(self.workers.pop(row))
        self.table.worker_gone(row, died=True)
        self.table.epoch_begin()
        self.scheduler.wait(lambda: not self.table.epoch_stopped())
        mapped = {}
        for number in self.table.recovery_segments():
            segment = self.segments[number]
            mapped[number] = Mapping(segment.fd, segment.nbytes, segment.role != "plan")
        self.table.recover(mapped)
        for mapping in mapped.values():
            mapping.close()
        self.table.epoch_end()
        self.recoveries += 1
        self._start(row)

    # ---------------------------------------------------------------------------------------- workers and clients

    @staticmethod
    def _own(segment: Segment, writable: bool = True) -> Segment:
        """A segment as another process maps it, elsewhere."""
        own = Segment.from_fd(os.dup(segment.fd), segment.role, writable=writable)
        own.close_fd()
        return own

    def _worker(self, row: int) -> None:
        engine = Engine(self._own(self.control).buf, self._own(self.bell).buf, row)
        own: dict[int, Segment] = {}
        while True:
            reason, seq, _ = engine.run()
            if reason != "attach":
                break
            for number in engine.missing(seq):
                segment = self.segments[number]
                own[number] = self._own(segment, segment.role in WRITABLE)
                engine.map(number, segment.role, own[number].buf)
            engine.attached(seq)
        assert reason == "stop"
        engine.close()

    def _client(self, k: int, ids: tuple[int, int], segment: Segment, data: Segment, index: int) -> None:
        segment, data = self._own(segment), self._own(data)
        channel = ClientChannel(segment.buf, self._own(self.bell).buf)
        memory = np.frombuffer(data.buf, np.uint8)
        rng = np.random.default_rng(self.random.randrange(1 << 30))
        flying: list[tuple[int, int, Any]] = []
        for n in range(REQUESTS + IN_FLIGHT):
            if len(flying) == IN_FLIGHT or (n >= REQUESTS and flying):
                self._answer(channel, memory, *flying.pop(0))
            if n < REQUESTS:
                x = rng.integers(0, 1 << 63, self.plan.length, dtype=np.uint64)
                at = _control.DATA_FIRST + n % IN_FLIGHT * self.plan.request_bytes
                memory[at + self.plan.x_offset :][: x.nbytes] = x.view(np.uint8)
                flying.append((channel.submit(*ids, index, at), at, x))
        self.clients -= 1

    def _answer(self, channel: ClientChannel, memory: Any, ticket: int, at: int, x: Any) -> None:
        result = channel.wait(ticket)
        assert result is not None
        assert result.error == 0, result
        y = memory[at + self.plan.y_offset :][: x.nbytes].view(np.uint64)
        assert (y == self.plan.reference(x)).all()
        channel.release(ticket)
        self.answers += 1


def history(seed: int) -> dict[str, object]:
    """What came of a seed."""
    scheduler = Scheduler(seed)
    town = Town(seed, scheduler)
    scheduler.start("planner", town.planner)
    scheduler.run()
    assert town.answers == CLIENTS * REQUESTS
    for segment in [*town.segments.values(), town.control, town.bell]:
        os.close(segment.fd)
        segment.fd = -1
    digest = scheduler.history.hexdigest()[:16]
    return {"seed": seed, "digest": digest, "ns": scheduler.now - START_NS, "kills": town.recoveries, "answers": town.answers}


def histories(first: int, last: int) -> Iterator[dict[str, object]]:
    """Those of the seeds from `first` to `last`."""
    return map(history, range(first, last + 1))


def main() -> None:
    """Prints a line for each seed; to standard error, how fast it went."""
    began, calls, answers = time.process_time(), sum(_hooks.calls().values()), 0
    for found in histories(int(sys.argv[1]), int(sys.argv[2])):
        print(json.dumps(found), flush=True)
        answers += CLIENTS * REQUESTS
    took, calls = time.process_time() - began, sum(_hooks.calls().values()) - calls
    print(f"{took:.1f} s of CPU time, {calls / took:.0f} calls of hooks and {answers / took:.0f} requests a second", file=sys.stderr)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
