"""Planning children as the planner process sees them: how far they are, when they count as stuck, and what becomes of large plans."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import plan_damage
import pytest

from aspen_mp.control.planning import plan_checks, planner_child
from aspen_mp.control.planning.plan_checks import Check
from aspen_mp.control.planning.planner_child import (
    ChildSide,
    Inspect,
    Inspected,
    Job,
    JobProgress,
    JobSegment,
    Limits,
    PlannerChild,
    PlanStage,
    StagePlanned,
)
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.errors import AspenError, PlanError
from aspen_mp.shm.segments import Segment

WATCHDOG_S = 60.0
PATIENCE_S = 12345.0


def until(loop: Loop, done: Callable[[], object]) -> None:
    late = loop.later(WATCHDOG_S, lambda: pytest.fail("watchdog"))
    while not done():
        loop.later(0.01, loop.stop)
        loop.run()
    late.cancel()


class Slow:
    """A child that says what it is told to, when it is told to, and the timers that wait for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.timers = Loop(), list[Any]()
        self.found, self.errors, self.heard = list[Inspected](), list[AspenError](), list[JobProgress]()
        orders, self.orders = socket.socketpair()
        later = self.loop.later

        def noted(seconds: float, action: Callable[[], object]) -> Any:
            timer = later(seconds, action)
            if seconds == PATIENCE_S:
                self.timers.append(timer)
            return timer

        def serve(sock: socket.socket) -> None:
            def do(message: object, side: ChildSide) -> Inspected:
                while (order := orders.recv(1)) != b"x":
                    side.progress("lowering", order[0], 100)
                return Inspected("m", b"", [], [], [])

            ChildSide(sock).run(do)

        monkeypatch.setattr(self.loop, "later", noted)
        self.child = PlannerChild(self.loop, "m", serve, keep=(orders.fileno(),), limits=Limits(patience_s=PATIENCE_S))
        self.child.submit(Job(Inspect(), lambda result, segments: self.found.append(result), self.errors.append, self.heard.append))  # type: ignore[arg-type]
        orders.close()

    def say(self, done: int) -> None:
        n = len(self.heard)
        self.orders.send(bytes([done]))
        until(self.loop, lambda: len(self.heard) > n)

    def close(self) -> None:
        self.child.close()
        self.orders.close()
        self.loop.close()


def test_a_child_that_gets_further_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    for k in range(1, 20):
        slow.say(k)
        assert len(slow.timers) == 1 + k
        assert [timer.action is None for timer in slow.timers] == [True] * k + [False]
        assert slow.child.doing == JobProgress("lowering", k, 100)
    slow.orders.send(b"x")
    until(slow.loop, lambda: slow.found)
    assert slow.child.doing is None
    assert all(timer.action is None for timer in slow.timers)
    assert not slow.errors
    slow.close()


def test_a_child_that_says_the_same_again_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    slow.say(7)
    for _ in range(3):
        slow.say(7)
    assert len(slow.timers) == 2
    slow.timers[-1].action()
    (error,) = slow.errors
    assert isinstance(error, PlanError)
    assert "stuck for 12345 s at 'lowering', 7 of 100 done" in str(error)
    slow.close()


def test_what_is_said_often_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("aspen_mp.system.clock.monotonic", lambda: now[0])
    ours, theirs = socket.socketpair()
    side, told = ChildSide(theirs), list[int]()
    monkeypatch.setattr(side, "send", lambda message: told.append(message.done))
    for k in range(100):
        now[0] += planner_child.SAID_S / 10
        side.further("lowering", k, 100)
    ours.close()
    theirs.close()
    assert 9 <= len(told) <= 11


def plan_segment(damage: Callable[[plan_damage.Bytes], None] = lambda raw: None) -> Segment:
    raw = bytearray(plan_damage.make().segment())
    damage(plan_damage.Bytes(raw))
    fd = os.memfd_create("plan")
    os.write(fd, raw)
    segment = plan_checks.copied(fd, len(raw))
    os.close(fd)
    return segment


def result_of(segment: Segment) -> AspenError | None:
    loop, found = Loop(), list[AspenError | None]()
    Check(loop, segment, found.append)
    until(loop, lambda: found)
    loop.close()
    return found[0]


def test_a_good_plan_checked_elsewhere() -> None:
    with plan_segment() as segment:
        assert result_of(segment) is None


def test_a_bad_plan_checked_elsewhere() -> None:
    """The same is said of it as here."""

    def damage(raw: plan_damage.Bytes) -> None:
        raw.tiles["hi"][0, 0] += 1

    with plan_segment(damage) as segment:
        with pytest.raises(PlanError) as here:
            plan_checks.check(segment)
        found = result_of(segment)
    assert isinstance(found, PlanError)
    assert str(found) == str(here.value)


def sent(raw: bytes, announced: int = 0) -> tuple[list[Job], list[AspenError]]:
    """What becomes of a plan that a child sends, and of an arena behind it."""

    def serve(sock: socket.socket) -> None:
        def do(message: object, side: ChildSide) -> StagePlanned:
            for role, data in (("plan", raw), ("arena", bytes(4096))):
                fd = os.memfd_create(role)
                os.write(fd, data)
                side.send(JobSegment(role, (role == "plan" and announced) or len(data)), (fd,))
                os.close(fd)
            return StagePlanned(0, [], [], [], True, False, [], [])

        ChildSide(sock).run(do)

    loop, done, errors = Loop(), list[Job](), list[AspenError]()
    child = PlannerChild(loop, "m", serve)

    def taken(result: object, segments: list[tuple[str, int, int]]) -> None:
        done.append(job)
        assert [role for role, _, _ in segments] == ["plan", "arena"]
        protocol.close_all([fd for _, _, fd in segments])

    job = Job(PlanStage([[]], [], [1.0]), taken, errors.append, lambda progress: None)
    before = len(os.listdir("/proc/self/fd"))
    child.submit(job)
    until(loop, lambda: done or errors)
    child.close()
    if job.checked is not None:
        job.checked.close()
    until(loop, lambda: not loop._reaping)
    assert len(os.listdir("/proc/self/fd")) == before
    loop.close()
    return done, errors


def test_a_plan_is_checked_before_the_job_is_done() -> None:
    (job,), errors = sent(bytes(plan_damage.make().segment()))
    assert job.checked is not None
    assert not errors


def test_a_bad_plan_fails_its_job_and_what_came_along_is_closed() -> None:
    raw = bytearray(plan_damage.make().segment())
    plan_damage.Bytes(raw).tiles["hi"][0, 0] += 1
    done, (error,) = sent(raw)
    assert not done
    assert isinstance(error, PlanError)
    assert "its tiles must be a grid" in str(error)


@pytest.mark.parametrize("announced", [100, -1])
def test_a_plan_of_another_length_than_announced_fails_its_job(announced: int) -> None:
    done, (error,) = sent(b"x" * 50, announced)
    assert not done
    assert f"{announced} bytes announced" in str(error)


def test_a_check_that_nobody_waits_for() -> None:
    loop, found = Loop(), list[AspenError | None]()
    check = Check(loop, plan_segment(), found.append)
    check.close()
    check.close()
    until(loop, lambda: not loop._reaping)
    assert not found
    loop.close()


def test_a_check_whose_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_checks, "check", lambda segment: os.abort())
    with plan_segment() as segment:
        assert "memory ran out" in str(result_of(segment))


def test_a_plan_shorter_than_announced() -> None:
    fd = os.memfd_create("plan")
    os.write(fd, b"x" * 100)
    with pytest.raises(PlanError, match="200 bytes announced, 100 there"):
        plan_checks.copied(fd, 200)
    os.close(fd)
