"""Descriptors and processes run out in the planner process: whoever asked is told, nothing is kept for ever, and it goes on."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.control.memory import async_alloc
from aspen_mp.control.memory.async_alloc import PROCESSES, AsyncAllocator
from aspen_mp.control.memory.clients import ClientMemory
from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models.plan_builder import PlanBuilder
from aspen_mp.control.models.plan_states import BuiltPlan
from aspen_mp.control.planning.planner_child import StagePlanned
from aspen_mp.control.pool.traces import Traces
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.control.process.dispatch import Dispatcher
from aspen_mp.control.wire import event_loop as loops
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.child_reaper import status_of
from aspen_mp.control.wire.connection import Connection
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.errors import AspenError, RequestError, ResourceLimitError
from aspen_mp.shm.segments import Segment

WATCHDOG_S = 60.0
FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def full(*_: object) -> Any:
    raise OSError(*FULL.args)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def run_until(loop: Loop, found: list[Any], n: int) -> None:
    late = loop.later(WATCHDOG_S, lambda: pytest.fail("watchdog"))
    while len(found) < n:
        loop.later(0.001, loop.stop)
        loop.run()
    late.cancel()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- children


def test_the_end_of_a_child_that_cannot_be_watched_yet(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "SCARCE_S", 0.01)
    found: list[int] = []
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    with monkeypatch.context() as patch:
        patch.setattr("aspen_mp.system.processes.pidfd_open", full)
        loop.reap(pid, found.append)
        loop.later(0.05, loop.stop)
        loop.run()
    run_until(loop, found, 1)
    assert os.waitstatus_to_exitcode(found[0]) == 3


def test_a_status_that_nobody_knows() -> None:
    """Somebody else is to reap it first: it did not end well, as far as we know, and it is reaped with the next one."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    assert os.WIFSIGNALED(status_of(pid))
    os.close(write)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    other = os.fork()
    if other == 0:
        os._exit(0)
    os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
    assert status_of(other) == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EINVAL])
def test_a_reservation_that_cannot_be_watched(loop: Loop, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is answered, and gives its place back."""
    monkeypatch.setattr(loops, "SCARCE_S", 0.01)
    reserver, found = AsyncAllocator(loop), list[Segment | AspenError]()
    real, before = os.pidfd_open, descriptors()
    refusals = [number] * PROCESSES

    def sometimes(pid: int) -> int:
        if refusals:
            raise OSError(refusals.pop(), "refused")
        return real(pid)

    monkeypatch.setattr("aspen_mp.system.processes.pidfd_open", sometimes)
    for _ in range(2 * PROCESSES):
        reserver.reserve("data", async_alloc.AT_ONCE + 4096, found.append)
    run_until(loop, found, 2 * PROCESSES)
    made = [answer for answer in found if isinstance(answer, Segment)]
    assert len(made) == (2 * PROCESSES if number == errno.EMFILE else PROCESSES)
    assert all(isinstance(answer, Segment | ResourceLimitError) for answer in found)
    for segment in made:
        segment.close()
    assert descriptors() == before
    reserver.close()


def test_a_reservation_for_which_there_is_no_process(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    reserver, found, before = AsyncAllocator(loop), list[Segment | AspenError](), descriptors()
    monkeypatch.setattr("aspen_mp.system.processes.fork", full)
    reserver.reserve("data", async_alloc.AT_ONCE + 4096, found.append)
    assert isinstance(found[0], ResourceLimitError)
    assert descriptors() == before


class Pool(WorkerPool):
    """One that starts workers until `fails`, all of whom live on."""

    def __init__(self, loop: Loop, event_log: EventLog) -> None:
        self._loop, self._event_log, self._max = loop, event_log, 9
        self._rows, self._queued, self._again, self._refused = {}, deque("abc"), None, ""  # type: ignore[arg-type]
        self.fails: Exception | None = FULL

    def _start_at(self, row: int, place: Any, machine: object) -> None:
        if place == "b" and self.fails is not None:
            raise self.fails
        self._rows[row] = place


def test_a_worker_that_cannot_be_started(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a row has become free: it is said once, and tried again until it can be."""
    monkeypatch.setattr("aspen_mp.control.pool.workers.AGAIN_S", 0.01)
    event_log = EventLog("test", "off")
    pool = Pool(loop, event_log)
    pool._start_waiting()
    assert list(pool._rows.values()) == ["a"]
    assert list(pool._queued) == ["b", "c"]
    pool._start_waiting()
    loop.later(0.05, loop.stop)
    loop.run()
    assert list(pool._queued) == ["b", "c"]
    assert [event["event"] for event in event_log.latest()] == ["worker-not-started"]
    pool.fails = None
    run_until(loop, pool._rows, 3)  # type: ignore[arg-type]
    assert list(pool._rows.values()) == ["a", "b", "c"]
    assert not pool._queued
    assert pool._again is None


def test_a_worker_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        signal.pause()
    core = SimpleNamespace(rank=0, l3=0, node=0, core_class="P")
    pool = SimpleNamespace(
        _table=SimpleNamespace(worker_reset=lambda row, **_: None), _spawner=SimpleNamespace(start=lambda: (pid, ours)), _rows={}
    )
    place, machine = SimpleNamespace(cpu=0), SimpleNamespace(by_cpu={0: core})
    with monkeypatch.context() as patch:
        patch.setattr("aspen_mp.system.processes.pidfd_open", full)
        with pytest.raises(OSError, match="open files"):
            WorkerPool._start_at(pool, 0, place, machine)  # type: ignore[arg-type]
    assert not pool._rows
    assert theirs.recv(1) == b""
    theirs.close()
    with suppress(ChildProcessError):  # it has been reaped already
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    other = os.fork()
    if other == 0:
        os._exit(0)
    os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
    assert status_of(other) == 0  # which reaps the first one too
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# ---- models


def test_a_plan_that_cannot_be_published() -> None:
    told: list[AspenError] = []

    def publish(*_: object) -> None:
        raise FULL

    maker = SimpleNamespace(_publisher=SimpleNamespace(publish=publish), _lack=lambda plan, error: told.append(error))
    result = StagePlanned(0, [], [], [], True, False, [], [], b"", [])
    model = SimpleNamespace(weight_segments=[], child=SimpleNamespace(renew=lambda: True))
    PlanBuilder.publish(maker, SimpleNamespace(model=model, background=False), BuiltPlan(result, []))  # type: ignore[arg-type]
    assert isinstance(told[0], ResourceLimitError)
    assert "open files" in str(told[0])


# ---- segments and messages


def test_a_segment_that_cannot_be_handed_over() -> None:
    said: list[object] = []
    table = SimpleNamespace(add_segment=lambda role, nbytes: 7, drop_segment=said.append)
    store = SegmentStore(table, full, said.append, None)  # type: ignore[arg-type]
    fd = os.dup(0)
    with pytest.raises(OSError, match="open files"):
        store.add("data", 4096, fd, "somebody")
    assert said == [7, 7]
    assert not list(store)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_message_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is: it still counts as unanswered, and no copy of a descriptor stays."""
    stub = SimpleNamespace(closed=False, _closing=False, unanswered=1, _out=[])
    real, left, before = os.dup, [1], descriptors()
    monkeypatch.setattr("aspen_mp.system.descriptors.dup", lambda fd: real(fd) if left and left.pop() else full())
    with pytest.raises(OSError, match="open files"):
        Connection.send(stub, protocol.TraceReady(1, 2), (0, 0))  # type: ignore[arg-type]
    assert (stub.unanswered, stub._out) == (1, [])
    assert descriptors() == before


def test_a_data_segment_that_its_client_never_hears_of() -> None:
    dropped: list[object] = []
    table = SimpleNamespace(add_data=lambda number, segment: 3, drop_data=lambda *which: dropped.append(which))
    nothing: Any = lambda *_: None  # noqa: E731
    segments = SimpleNamespace(add=lambda role, nbytes, fd, owner, own: os.close(fd) or 9)
    resources: Any = SimpleNamespace(table=table, segments=segments, reserver=None)
    memory = ClientMemory(resources, None, {}, publish=nothing, collect=nothing, relieve=nothing)  # type: ignore[arg-type]
    client: Any = SimpleNamespace(connection=SimpleNamespace(pid=1, send=full), number=5, data={})
    with pytest.raises(OSError, match="open files"):
        memory._add(client, 8, SimpleNamespace(fd=0, nbytes=4096), [])  # type: ignore[arg-type]
    assert dropped == [(5, 3)]
    assert not client.data


# ---- traces


class Traced:
    """`Traces` of a runtime with two plans."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.answers: list[Segment | AspenError] = []
        plan = {"segment": 1, "generation": 1, "instances": [1]}
        table = SimpleNamespace(
            set_trace=lambda number: self.said.append(("trace", number)), plans=lambda: [1, 2], plan=lambda number: plan
        )

        def add(role: str, nbytes: int, fd: int, owner: str) -> int:
            os.close(fd)
            return 9

        class Held(SimpleNamespace):
            def __getitem__(self, number: int) -> Any:
                return SimpleNamespace(fd=0)

        segments: Any = Held(add=add, drop=lambda number: self.said.append(("drop", number)))
        reserver = SimpleNamespace(reserve=lambda role, nbytes, then: then(Segment.create(role, nbytes, memfd=True)))
        log = EventLog("test", "off")
        resources: Any = SimpleNamespace(table=table, segments=segments, reserver=reserver, event_log=log)
        pool: Any = SimpleNamespace(publish=lambda: self.said.append("publish"), present=list, class_of=lambda row: "")
        self.traces = Traces("test", resources, 2, pool)

    def begin(self) -> None:
        self.traces.begin(1, 4711, 1 << 10, lambda plan: "model", self.answers.append)


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_trace_that_cannot_begin(monkeypatch: pytest.MonkeyPatch, copies: int) -> None:
    """`copies` of descriptors can be made: nothing is left of it, and the next one can begin."""
    traced = Traced()
    real, before = os.dup, descriptors()
    left = [1] * copies
    with monkeypatch.context() as patch:
        patch.setattr("aspen_mp.system.descriptors.dup", lambda fd: real(fd) if left and left.pop() else full())
        traced.begin()
    (error,) = traced.answers
    assert isinstance(error, ResourceLimitError)
    assert traced.said == ([("drop", 9), "publish"] if copies else [])
    assert descriptors() == before
    with pytest.raises(RequestError, match="not started a trace"):
        traced.traces.end(1)
    traced.begin()
    assert isinstance(traced.answers[1], Segment)
    assert traced.said[-2:] == [("trace", 9), "publish"]
    with monkeypatch.context() as patch:
        patch.setattr("aspen_mp.system.descriptors.dup", full)
        traced.traces.plan_added(3, "new")  # which is announced all the same
    traced.traces.drop(1)
    assert descriptors() == before


def test_a_trace_that_its_client_never_hears_of() -> None:
    failed: list[Any] = []
    dropped: list[int] = []
    traces = SimpleNamespace(begin=lambda *about: about[-1](SimpleNamespace(nbytes=1, fd=0)), drop=dropped.append)
    models = SimpleNamespace(store=SimpleNamespace(plans=SimpleNamespace(name_of=None)))
    dispatcher: Any = SimpleNamespace(_parts=SimpleNamespace(memory=SimpleNamespace(traces=traces), models=models))
    connection = SimpleNamespace(pid=1, send=full, refuse=None, fail=lambda *what: failed.append(what))
    client: Any = SimpleNamespace(connection=connection, number=5)
    Dispatcher._begin_trace(dispatcher, client, protocol.TraceBegin(8, 0), [])
    ((number, error),) = failed
    assert number == 8
    assert isinstance(error, ResourceLimitError)
    assert dropped == [5]
