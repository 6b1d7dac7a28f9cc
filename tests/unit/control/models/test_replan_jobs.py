"""Plans that are made again: behind what clients want, later and later where they cannot be made."""

from __future__ import annotations

import gc
import os
import socket
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from model_store import PREEMPT_MS, World, store_of_models

from aspen_mp.control.models import replanning
from aspen_mp.control.planning import planner_child
from aspen_mp.control.planning.planner_child import ChildSide, Inspect, Inspected, Job, Limits, PlannerChild, PlanStage
from aspen_mp.control.planning.preload import Preload
from aspen_mp.control.process.machine import MachineWatch
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.errors import PlanError

WATCHDOG_S = 60.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with store_of_models(tmp_path, monkeypatch) as world:
        yield world


def test_a_model_that_is_dropped_goes_at_once() -> None:
    """Without the garbage collector, which seldom runs in a process with little to do: memory would grow with models that come and go."""

    class Subject:
        child: PlannerChild

    def serve(subject: Subject, sock: socket.socket) -> None: ...

    loop = Loop()
    gc.disable()
    try:
        subject = Subject()
        subject.child = PlannerChild(loop, "m", partial(serve, subject))
        gone = weakref.ref(subject)
        subject.child.retire()
        del subject
        assert gone() is None
    finally:
        gc.enable()
        loop.close()


def test_a_process_of_its_own(world: World) -> None:
    """One that is nicer than that of clients' plans, and may take its time."""
    first, behind = world.children
    world.ask()
    assert len(first.jobs) == 1
    world.answer()
    world.replan()
    assert (len(first.jobs), len(behind.jobs)) == (0, 1)
    assert first.limits.nice == 0 < behind.limits.nice
    assert behind.limits.patience_s > first.limits.patience_s
    world.answer()
    assert len(world.events("replanned")) == 1
    assert not world.errors


def test_a_client_does_not_wait_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended when a client wants another plan of the model, nothing is said of it, and it is tried again."""
    first, behind = world.children
    world.ask()
    world.answer()
    world.replan()
    world.ask()  # the plan that there is
    assert len(behind.jobs) == 1
    assert len(world.answers) == 3
    world.ask(rows=16)
    assert (len(first.jobs), len(behind.jobs)) == (1, 0)
    world.answer()
    assert len(world.answers) == 4
    assert not world.errors
    assert not world.events("not-replanned")
    assert not world.events("replanned")
    world.store.refresh()
    assert not world.waiting
    monkeypatch.setattr(replanning, "REPLAN_S", 0.0)
    world.table.served += 1
    world.store.refresh()
    assert len(behind.jobs) == 1
    world.answer()
    assert len(world.events("replanned")) == 1


def test_long_tiles_beside_a_higher_class(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is made again at once, but no second time, and the plan cache does not keep it; nor does it become long again when the cores
    change."""

    def looks() -> list[PlanStage]:
        world.table.served += 1
        world.store.refresh()
        return [job.message for job in world.waiting if isinstance(job.message, PlanStage)]

    world.ask()
    world.answer()
    assert not looks()
    world.table.beside = 1
    (job,) = looks()
    assert (job.longest_ms, job.keep) == (PREEMPT_MS, False)
    world.answer()
    (event,) = world.events("replanned")
    assert event["longest_ms"] == PREEMPT_MS
    assert not looks()
    monkeypatch.setattr(replanning, "REPLAN_S", 0.0)
    world.speeds = [1.0, 1.0]
    (job,) = looks()
    assert (job.longest_ms, job.keep, job.speeds) == (PREEMPT_MS, False, world.speeds)
    assert not world.errors


@pytest.mark.parametrize("asked", [0.0, 2.0])
def test_who_has_said_how_long_tiles_are_gets_no_others(asked: float, world: World) -> None:
    world.ask()
    world.answer()
    (model,) = world.store._models.values()
    planning = msgspec.structs.replace(model.request.planning, longest_ms=asked)
    model.request = msgspec.structs.replace(model.request, planning=planning)
    world.table.served = world.table.beside = 1
    world.store.refresh()
    assert not world.waiting


def test_unloading_ends_it(world: World) -> None:
    world.ask()
    world.answer()
    world.replan()
    world.store.client_gone(3)
    assert not world.waiting
    assert world.roles == []
    assert not world.events("not-replanned")
    assert not world.errors


def test_what_one_has_packed_the_other_learns(world: World) -> None:
    """Numbers of weight segments are given by whoever packs: a child that has been forked before goes."""
    first, behind = world.children
    world.ask()
    world.answer()
    assert (first.renewed, behind.renewed) == (0, 1)
    world.replan()
    world.answer()  # without new weights
    assert (first.renewed, behind.renewed) == (0, 1)


def test_later_and_later_and_said_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e6
    monkeypatch.setattr("aspen_mp.system.clock.monotonic", lambda: now)
    world.ask()
    world.answer()
    tries, why = [], "the model file has gone"
    begun = now
    while len(tries) < 12:
        world.table.served += 1
        world.speeds = [1.0, 1.0]
        world.store.refresh()
        if world.waiting:
            (job,) = world.waiting
            for child in world.children:
                child.jobs.clear()
            tries.append(now - begun)
            job.on_error(PlanError(why if len(tries) < 6 else "something else"))
        now += 10.0
    assert tries[:5] == [0.0, 40.0, 120.0, 280.0, 600.0]
    assert max(b - a for a, b in pairwise(tries)) == replanning.MOST_REPLAN_S
    assert [event["why"] for event in world.events("not-replanned")] == [why, "something else"]
    now += replanning.MOST_REPLAN_S
    world.table.served += 1
    world.store.refresh()
    world.answer()
    assert len(world.events("replanned")) == 1
    stage = next(iter(world.store._models[world.model].live.values()))
    assert stage.replans.failed == 0


def test_nothing_is_imported_for_it_at_once(world: World) -> None:
    """All plans came from the cache: what planning takes is imported in pieces, and then it is tried again."""
    world.ask()
    world.answer()
    world.prepared = False
    world.replan()
    assert not world.waiting
    world.prepared = True
    world.table.served += 1
    world.store.refresh()
    assert len(world.waiting) == 1


def test_imports_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at each turn of the loop, begun once; and again where something is scarce."""
    loop, found, scarce = Loop(), list[str](), list[BaseException]()
    fails: list[Exception] = [MemoryError(), ImportError("cannot map"), OSError(24, "Too many open files")]

    def load(name: str) -> None:
        if fails and name == "b":
            raise fails.pop()
        found.append(name)

    monkeypatch.setattr("aspen_mp.control.planning.preload.importlib", SimpleNamespace(import_module=load))
    monkeypatch.setattr("aspen_mp.control.planning.preload.AGAIN_S", 0.0)
    imports = Preload(loop, scarce.append, ["a", "b", "c"])
    assert not imports.ready()
    assert found == []
    late = loop.later(WATCHDOG_S, lambda: pytest.fail("watchdog"))
    turns = 0
    while not imports.ready():
        loop.later(0.0, loop.stop)
        loop.run()
        turns += 1
        assert len(found) <= turns
    late.cancel()
    assert found == ["a", "b", "c"]
    assert len(scarce) == 3
    loop.close()


def test_imports_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of them once somebody has something to do; the rest at once when it is needed."""
    loop, found = Loop(), list[str]()
    monkeypatch.setattr("aspen_mp.control.planning.preload.importlib", SimpleNamespace(import_module=found.append))
    monkeypatch.setattr("aspen_mp.control.planning.preload.IDLE_S", 0.0)
    imports = Preload(loop, pytest.fail, ["a", "b", "c"])
    imports.while_idle(lambda: not found)
    for _ in range(5):
        loop.later(0.0, loop.stop)
        loop.run()
    assert found == ["a"]
    imports.now()
    assert found == ["a", "b", "c"]
    assert imports.ready()
    loop.close()


def test_what_goes_wrong_in_it_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    hooked: list[object] = []
    monkeypatch.setattr("sys.excepthook", lambda *about: hooked.append(about))
    error: list[Exception] = [ValueError("one")]

    def refresh() -> None:
        raise error[0]

    watch: Any = SimpleNamespace(
        _cores=SimpleNamespace(measure=lambda paces: None),
        _table=SimpleNamespace(paces=list),
        _plan_for_now=lambda: None,
        _steady=99,
        _replans=True,
        _recovery=SimpleNamespace(going_on=False),
        _models=SimpleNamespace(refresh=refresh),
        _event_log=SimpleNamespace(warning=lambda event, why: told.append(why)),
        _not_replanned="",
    )
    for error[0] in (ValueError("one"), ValueError("one"), KeyError("two")):
        MachineWatch._replan(watch)
    assert told == ["ValueError: one", "KeyError: 'two'"]
    assert len(hooked) == 2
    error[0] = MemoryError()
    with pytest.raises(MemoryError):  # the look says that
        MachineWatch._replan(watch)


def test_a_nice_child() -> None:
    """It really is."""
    loop, found = Loop(), list[Inspected]()

    def serve(sock: socket.socket) -> None:
        ChildSide(sock).run(lambda message, side: Inspected(str(os.nice(0)), b"", [], [], []))

    child = PlannerChild(loop, "m", serve, limits=Limits(nice=7))
    child.submit(Job(Inspect(), lambda result, segments: found.append(result), pytest.fail, lambda progress: None))  # type: ignore[arg-type]
    late = loop.later(WATCHDOG_S, lambda: pytest.fail("watchdog"))
    while not found:
        loop.later(0.01, loop.stop)
        loop.run()
    late.cancel()
    assert found[0].name == str(os.nice(0) + 7)
    child.close()
    loop.close()
    assert planner_child.Limits().nice == 0
