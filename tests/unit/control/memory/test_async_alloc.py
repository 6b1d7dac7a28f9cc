"""Memory for large segments is reserved elsewhere: the event loop goes on meanwhile."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from aspen_mp.control.memory import async_alloc
from aspen_mp.control.memory.async_alloc import AT_ONCE, PROCESSES, AsyncAllocator
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.errors import AspenError, ResourceLimitError
from aspen_mp.shm.segments import Segment, memory_available, reserve_for
from aspen_mp.workers import process

WATCHDOG_S = 60.0
MIB = 1 << 20


class Bench:
    """An event loop, a reserver, and what it has answered by number of the request."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.reserver = AsyncAllocator(self.loop)
        self.answers: dict[int, Segment | AspenError] = {}

    def ask(self, number: int, nbytes: int) -> None:
        def then(answer: Segment | AspenError) -> None:
            self.answers[number] = answer
            self.loop.stop()

        self.reserver.reserve("data", nbytes, then)

    def run_until(self, condition: Callable[[], bool]) -> None:
        late = self.loop.later(WATCHDOG_S, lambda: pytest.fail("watchdog"))
        while not condition():
            self.loop.run()
        late.cancel()

    def close(self) -> None:
        for answer in self.answers.values():
            if isinstance(answer, Segment):
                answer.close()
        self.reserver.close()
        self.loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_all_of_it_is_there(bench: Bench) -> None:
    sizes = [4096, AT_ONCE, AT_ONCE + 1, 40 * MIB]
    for number, nbytes in enumerate(sizes):
        bench.ask(number, nbytes)
    assert set(bench.answers) == {0, 1}  # at once
    bench.run_until(lambda: len(bench.answers) == len(sizes))
    for number, nbytes in enumerate(sizes):
        segment = bench.answers[number]
        assert isinstance(segment, Segment)
        assert segment.nbytes >= nbytes
        assert segment.is_memfd
        assert os.fstat(segment.fd).st_blocks * 512 >= nbytes
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(segment.fd, 2 * segment.nbytes)  # its size is sealed
        Segment.from_fd(os.dup(segment.fd), "data", writable=False).close()


def test_the_loop_goes_on_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reservation waits for a byte: until then nothing is answered, everything else is, and no more than `PROCESSES` are under way."""
    gate, opened = os.pipe()
    told, tell = os.pipe()

    def slow(fd: int, nbytes: int, holes: object = ()) -> int:
        os.write(tell, b"x")
        os.read(gate, 1)
        return reserve_for(fd, nbytes)

    monkeypatch.setattr(async_alloc, "reserve_for", slow)
    monkeypatch.setattr(process, "keep_only", lambda fds: None)
    for number in range(PROCESSES + 1):
        bench.ask(number, 20 * MIB)
    for _ in range(PROCESSES):
        os.read(told, 1)
    bench.loop.later(0.0, bench.loop.stop)
    bench.loop.run()
    assert not bench.answers
    bench.ask(100, 4096)
    assert set(bench.answers) == {100}
    os.write(opened, b"x")
    bench.run_until(lambda: len(bench.answers) == 2)
    os.read(told, 1)  # the next one has begun
    os.write(opened, b"x" * PROCESSES)
    bench.run_until(lambda: len(bench.answers) == PROCESSES + 2)
    assert all(isinstance(answer, Segment) for answer in bench.answers.values())
    for fd in (gate, opened, told, tell):
        os.close(fd)


@pytest.mark.parametrize("how", ["full", "killed"])
def test_there_is_no_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def fail(fd: int, nbytes: int) -> int:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return errno.ENOSPC

    monkeypatch.setattr(async_alloc, "reserve_for", fail)
    bench.ask(0, 20 * MIB)
    bench.run_until(lambda: 0 in bench.answers)
    assert isinstance(bench.answers[0], ResourceLimitError)
    assert "20.0 MiB" in str(bench.answers[0])


def test_more_than_there_is_is_refused_at_once(bench: Bench) -> None:
    bench.ask(0, 4 * memory_available())
    assert isinstance(bench.answers[0], ResourceLimitError)
