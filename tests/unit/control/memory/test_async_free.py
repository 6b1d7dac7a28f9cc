"""Memory of large segments is freed neither by workers nor by the planner process: another process lets go last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.control.memory.async_free import AsyncReleaser
from aspen_mp.control.memory.segments import LARGE, Borrowed, SegmentStore
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.system import processes

WATCHDOG_S = 60.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def run_until_idle(loop: Loop, releaser: AsyncReleaser) -> None:
    late = loop.later(WATCHDOG_S, lambda: pytest.fail("watchdog"))
    while releaser._busy:
        loop.later(0.001, loop.stop)
        loop.run()
    late.cancel()


def test_the_last_descriptor_is_closed_elsewhere(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe tells when its last writer has gone: not when we have closed our end, and soon after."""
    releaser, forks, real = AsyncReleaser(loop), list[int](), processes.fork
    monkeypatch.setattr(processes, "fork", lambda child: forks.append(1) or real(child))
    before = len(os.listdir("/proc/self/fd"))
    ends = [os.pipe() for _ in range(3)]
    for _, write in ends:
        releaser.release(write)

    def ours(read: int, write: int) -> bool:
        return is_open(write) and os.fstat(write).st_ino == os.fstat(read).st_ino

    assert [ours(*pair) for pair in ends] == [False, True, True]  # the others are the next process's
    run_until_idle(loop, releaser)
    assert len(forks) == 2
    for read, write in ends:
        assert not ours(read, write)
        assert os.read(read, 1) == b""
        os.close(read)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("lacking", ["processes.fork", "descriptors.pipe"])
def test_where_no_process_can_be_had(loop: Loop, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError

    releaser = AsyncReleaser(loop)
    fd, before = os.dup(0), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(f"aspen_mp.system.{lacking}", refused)
    releaser.release(fd)
    assert not is_open(fd)
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_at_the_end(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    releaser = AsyncReleaser(loop)
    fds = [os.dup(0) for _ in range(3)]
    releaser.release(fds[0])
    releaser.release(fds[1])
    releaser.close()
    monkeypatch.setattr(processes, "fork", lambda child: pytest.fail("a process"))
    releaser.release(fds[2])
    assert not any(map(is_open, fds[1:]))
    assert not releaser._waiting


def closing(released: list[int]) -> Any:
    """A releaser that notes what it is given."""
    return SimpleNamespace(release=released.append, released=lambda then: then(), busy=False)


@pytest.mark.parametrize("workers", [0, 7])
@pytest.mark.parametrize("nbytes", [LARGE, LARGE + 4096])
def test_who_lets_go(nbytes: int, workers: int) -> None:
    """Of a large segment the descriptor is kept until no worker has it mapped."""
    table: Any = SimpleNamespace(add_segment=lambda role, nbytes: 3, drop_segment=lambda segment: None)
    released: list[int] = []
    store = SegmentStore(table, lambda held: None, lambda segment: workers, closing(released))
    fd, piece = os.dup(0), os.dup(0)
    store.add("data", nbytes + 4096, fd, "somebody", (Borrowed(4096, 0, 4096, piece),))
    store.drop(3)
    assert not is_open(piece)
    assert is_open(fd) == (nbytes > LARGE)
    if nbytes > LARGE:
        assert released == ([] if workers else [fd])
        store.unmapped(workers + 1)
        store.unmapped(workers)
        store.unmapped(workers)
        assert released == [fd]
        os.close(fd)
    assert not list(store)


@pytest.mark.parametrize("nbytes", [LARGE, LARGE + 4096])
def test_what_is_not_used_again_after_all(nbytes: int) -> None:
    table: Any = SimpleNamespace(add_segment=lambda role, nbytes: 3, drop_segment=lambda segment: None)
    released: list[int] = []
    store = SegmentStore(table, lambda held: None, lambda segment: 0, closing(released))
    store.add("arena", nbytes, os.dup(0), "somebody")
    taken, fd = store.withdraw(3)
    assert taken == nbytes
    assert is_open(fd)
    store.discard(taken, fd)
    assert released == ([fd] if nbytes > LARGE else [])
    assert is_open(fd) == (nbytes > LARGE)
    if nbytes > LARGE:
        os.close(fd)
    store.close()


def test_segments_that_are_leaving_at_the_end() -> None:
    table: Any = SimpleNamespace(add_segment=lambda role, nbytes: 3, drop_segment=lambda segment: None)
    store = SegmentStore(table, lambda held: None, lambda segment: 7, SimpleNamespace(release=pytest.fail))  # type: ignore[arg-type]
    fd = os.dup(0)
    store.add("data", 2 * LARGE, fd, "somebody")
    store.drop(3)
    store.close()
    assert not is_open(fd)
    store.unmapped(7)


def test_when_no_worker_has_it_any_more() -> None:
    """Each has said so, or has gone."""
    workers = [SimpleNamespace(pid=pid, state=state) for pid, state in ((10, "running"), (11, "leaving"), (12, "abandoned"))]
    sent: list[tuple[int, ...]] = []
    told: list[int] = []
    pool: Any = SimpleNamespace(_rows=dict(enumerate(workers)), _unmapping={}, _detached=0, _listener=SimpleNamespace(unmapped=told.append))
    pool._listening = lambda: WorkerPool._listening(pool)
    pool._send = lambda worker, kind, segment, number: sent.append((worker.pid, segment, number))
    first, second = WorkerPool.detach(pool, 5), WorkerPool.detach(pool, 5)
    assert sent == [(10, 5, first), (11, 5, first), (10, 5, second), (11, 5, second)]
    for pid, number in ((10, first), (10, first), (12, first), (11, 99)):
        WorkerPool._has_unmapped(pool, pid, number)
    assert told == []
    WorkerPool._has_unmapped(pool, 11, first)
    assert told == [first]
    worker = workers[1]
    worker.cpu, worker.out, worker.sock = 0, [], SimpleNamespace(fileno=lambda: -1, close=lambda: None)
    pool._leases, pool._loop, pool._drop_queue = (
        SimpleNamespace(drop=lambda cpu: None),
        SimpleNamespace(unwatch=lambda fd: None),
        lambda worker: None,
    )
    pool._has_unmapped = lambda pid, number: WorkerPool._has_unmapped(pool, pid, number)
    WorkerPool._let_go(pool, worker)
    assert told == [first]
    WorkerPool._has_unmapped(pool, 10, second)
    assert told == [first, second]
    pool._rows = {}
    assert WorkerPool.detach(pool, 5) == 0
