"""How often a worker is started again that does not stay alive, and which tile is blamed for what."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.control.pool.recovery import MEMORY_S, MOST_BOOTS, MOST_DELAY_S, MOST_FAULTS, MOST_HANGS, MOST_KILLS, Death, Recovery
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.shm.errors import ResourceLimitError


class Waiting(tuple[float, Callable[[], object]]):
    """How much later, and what is to be done then."""

    loop: Loop

    def cancel(self) -> None:
        self.loop.waiting = [other for other in self.loop.waiting if other is not self]


class Loop:
    """Notes what is to be done later."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []

    def later(self, seconds: float, action: Callable[[], object]) -> Waiting:
        timer = Waiting((seconds, action))
        timer.loop = self
        self.waiting.append(timer)
        return timer


class Table:
    """A control table on which every worker parks at once, unless it is `late`, and request 7 of instance 1 runs. `said`: what was done to
    it, in order; `memory`: there is some for other arenas."""

    def __init__(self) -> None:
        self.failed: list[tuple[int, ...]] = []
        self.late: list[int] = []
        self.killed: list[int] = []
        self.said: list[object] = []
        self.memory = True

    def replace(self, instance: int) -> None:
        if not self.memory:
            raise ResourceLimitError("no memory")
        self.said.append(("replace", instance))

    def epoch_begin(self) -> None: ...

    def epoch_end(self) -> None:
        self.said.append("end")

    def epoch_stopped(self) -> list[int]:
        return self.late

    def recovery_segments(self, **_: object) -> list[int]:
        return []

    def recover(self, *_: object, **__: object) -> dict[str, int]:
        self.said.append("recover")
        return {"continued": 1}

    def instance(self, number: int) -> dict[str, int]:
        return {"generation": 7, "plan": 1}

    def fail(self, *what: int) -> None:
        self.failed.append(what)


class Pool:
    """So many workers; one that has died is vacant until `refill` or `abandon`."""

    def __init__(self, n: int, kill: Any) -> None:
        self.alive = n
        self.vacant = 0
        self.told: list[str] = []
        self.kill = kill

    @property
    def processes(self) -> int:
        return self.alive

    running = processes

    def publish(self) -> None: ...

    def stopped(self, rows: list[int]) -> list[int]:
        return []

    def refill(self) -> None:
        self.alive += self.vacant
        self.vacant = 0

    def abandon(self) -> int:
        n, self.vacant = self.vacant, 0
        return n


def make(n: int) -> tuple[Recovery, Loop, Table, Pool]:
    loop, table = Loop(), Table()
    pool = Pool(n, table.killed.extend)
    recovery = Recovery(
        *(loop, table, {}, EventLog("test", "off"), pool),  # type: ignore[arg-type]
        tiles=SimpleNamespace(op=lambda instance, tile: 3),
        replace=table.replace,
        after=lambda: None,
        give_up=pool.told.append,
    )
    return recovery, loop, table, pool


def die(recovery: Recovery, pool: Pool, number: int, *, booted: bool, hung: bool = False, at: tuple[int, int, int] | None = None) -> None:
    pool.alive -= 1
    pool.vacant += 1
    recovery.died(Death(0, 1000, 0, "died", number, at, booted, hung))


@pytest.mark.parametrize("others", [0, 2])
def test_a_worker_that_never_boots_is_given_up(others: int) -> None:
    """It is tried later and later, then no more; the runtime goes on with the others and says so, or ends where there are none."""
    recovery, loop, _, pool = make(others + 1)
    delays = []
    for _ in range(MOST_BOOTS):
        assert not pool.told
        die(recovery, pool, 0, booted=False)
        if loop.waiting:
            delay, start = loop.waiting.pop()
            delays.append(delay)
            start()
    assert delays == sorted(delays)
    assert 0 < delays[0] < delays[-1] <= MOST_DELAY_S
    assert len(delays) == MOST_BOOTS - 1
    assert recovery.given_up == 1
    assert [e["event"] for e in recovery.event_log.latest()].count("workers-given-up") == 1
    assert len(pool.told) == (0 if others else 1)
    recovery.started()  # somebody has come to run since: trying makes sense again
    if others:
        die(recovery, pool, signal.SIGKILL, booted=True)
        assert pool.alive == others
    assert recovery.recoveries == MOST_BOOTS + bool(others)


@pytest.mark.parametrize(
    ("number", "hung", "most"),
    [(signal.SIGSEGV, False, MOST_FAULTS), (signal.SIGKILL, False, MOST_KILLS), (signal.SIGKILL, True, MOST_HANGS)],
)
def test_who_is_to_blame(number: int, hung: bool, most: int) -> None:
    recovery, _, table, pool = make(2)
    for k in range(most):
        assert not table.failed
        assert recovery.hangs((1, 5, 7)) == (k if hung else 0)
        die(recovery, pool, number, booted=True, hung=hung, at=(1, 5, 7))
    assert [(instance, generation, op) for instance, generation, _, op in table.failed] == [(1, 7, 3)]


def test_a_burst_of_faults_is_slowed_down() -> None:
    recovery, loop, _, pool = make(2)
    for k in range(20):
        die(recovery, pool, signal.SIGSEGV, booted=True)
        if loop.waiting:
            delay, start = loop.waiting.pop()
            assert delay == MOST_DELAY_S
            assert k >= 7
            start()
        else:
            assert k < 7


def test_one_that_does_not_end_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that neither parks nor ends when it is killed: its tile's arena is replaced before anything is rebuilt (I7), and where there
    is no memory for that, nothing is rebuilt."""
    recovery, loop, table, pool = make(2)
    table.late = [1]
    die(recovery, pool, signal.SIGKILL, booted=True)
    recovery.look()
    assert not table.killed  # it is given time to park
    monkeypatch.setattr("aspen_mp.control.pool.recovery.PARK_S", -1.0)
    ((_, look),) = loop.waiting
    loop.waiting.clear()
    look()
    assert table.killed == [1]
    loop.waiting.clear()
    assert not table.said
    table.late = []  # the pool has given it up, and tells of it
    table.memory = False
    recovery.died(Death(1, 1001, 0, "killed; it does not end", signal.SIGKILL, (1, 5, 7), True, late=True, abandoned=True))
    assert not table.said
    assert recovery.going_on
    for _ in range(5):  # whatever happens meanwhile makes it look at once, but not more often
        recovery.look()
        loop.waiting.pop()[1]()
    assert len(loop.waiting) == 1
    assert [event["event"] for event in recovery.event_log.latest()].count("arena-not-replaced") == 1
    table.memory = True
    delay, again = loop.waiting.pop()
    assert delay == MEMORY_S
    again()
    assert table.said == [("replace", 1), "recover", "end"]
    assert recovery.replaced == 1
    assert not recovery.going_on
    for _ in range(MOST_KILLS):  # nor is the tile blamed for having been in its hand
        assert not table.failed
        die(recovery, pool, signal.SIGKILL, booted=True, at=(1, 5, 7))


def test_an_arena_of_a_request_that_has_ended_is_left_alone() -> None:
    recovery, _, table, _ = make(2)
    recovery.died(Death(1, 1001, 0, "killed; it does not end", signal.SIGKILL, (1, 5, 6), True, abandoned=True))
    assert table.said == ["recover", "end"]
