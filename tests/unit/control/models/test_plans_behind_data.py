"""Plans for shapes that follow from data, of which every request may want another: made without a search, few are kept, and their arenas go
from one to the next; those that come back often are searched after all."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_store import CLIENT, World, store_of_models

from aspen_mp.control.models import arena_pool, eviction, replanning
from aspen_mp.control.planning import child_main
from aspen_mp.shm.errors import PlanError


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with store_of_models(tmp_path, monkeypatch) as world:
        yield world


def job(world: World) -> Any:
    (found,) = world.waiting
    return found.message


def planned(world: World, found: int, spare: int = -1) -> Any:
    world.ask_behind(found)
    world.answer(spare)
    return world.answers[-1]


def test_only_what_follows_from_data_has_one_instance(world: World) -> None:
    world.ask()
    assert job(world).recurs
    world.answer()
    world.ask_behind(3)
    assert not job(world).recurs


def test_few_are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_BEHIND", 3)
    world.ask()
    world.answer()
    of_inputs: Any = world.answers[-1]
    plans = [planned(world, k).plan for k in range(5)]
    assert set(world.table.plans()) == {of_inputs.plan, *plans[2:]}


def test_bytes_are_limited_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_BEHIND_BYTES", 1)
    first, second = planned(world, 1).plan, planned(world, 2).plan
    assert world.table.plans() == [second]
    assert first != second


def test_those_that_serve_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_BEHIND", 3)
    served: dict[int, int] = {}
    plain = type(world.table).plan
    monkeypatch.setattr(type(world.table), "plan", lambda table, plan: {**plain(table, plan), "served": served.get(plan, 0)})

    def plan(k: int) -> tuple[int, int]:
        found = planned(world, k)
        served[found.plan] = 0  # it may have the number of one that has gone
        return found.plan, found.generation

    def there(plan: tuple[int, int]) -> bool:
        return plan[0] in world.table.plans() and plain(world.table, plan[0])["generation"] == plan[1]

    kept = plan(0)
    for k in range(1, 8):
        served[kept[0]] += 1
        plan(k)
        assert there(kept)
    for k in range(8, 16):  # it serves no more, others do
        served[plan(k)[0]] = 1
    assert not there(kept)


def test_arenas_are_used_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_BEHIND", 1)
    planned(world, 1)
    (arena,) = [held for held in world.segments if held.role == "arena"]
    identity = os.fstat(arena.fd).st_ino
    with mmap.mmap(arena.fd, arena.nbytes) as words:
        words[64 : arena.nbytes] = b"\7" * (arena.nbytes - 64)
    planned(world, 2)
    world.ask_behind(3)
    assert job(world).spares == [arena.nbytes]
    world.answer(0)
    assert len(world.table.plans()) == 1
    now = [held for held in world.segments if held.role == "arena"]
    assert [os.fstat(held.fd).st_ino for held in now] == [identity]
    header = world.store.plans
    assert header.name_of(world.table.plans()[0]) == "chain"
    with mmap.mmap(now[0].fd, now[0].nbytes) as words:
        assert words[64:128] == bytes(64)  # counters
        assert words[-1] == 7  # activations are whatever they are
    world.store.unload(world.model, CLIENT)
    assert world.roles == []


def test_arenas_of_requests_that_run_are_not_used_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_BEHIND", 1)
    planned(world, 1)
    world.table.running = True
    planned(world, 2)
    world.ask_behind(3)
    assert job(world).spares == []
    world.answer()
    world.table.running = False
    world.collect()
    world.ask_behind(4)
    assert len(job(world).spares) == 2
    world.waiting[0].on_error(PlanError("it does not"))
    for child in world.children:
        child.jobs.clear()
    world.ask_behind(5)
    assert len(job(world).spares) == 2  # they came back


def test_arenas_that_were_given_up_are_not_used_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who is stopped may still write to one."""
    monkeypatch.setattr(eviction, "MAX_BEHIND", 1)
    first = planned(world, 1)
    world.table.running = True
    planned(world, 2)
    (instance,) = world.table.plan(first.plan)["instances"]
    old = world.table.instance(instance)["arena"]
    monkeypatch.setattr(type(world.table), "replace_arena", lambda table, instance, arena: None)  # as while the world stands still
    world.store.replace_arena(instance)
    world.store.spared({old})
    world.ask_behind(3)
    assert job(world).spares == []


def test_spare_arenas_are_limited_and_go_with_the_model(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_BEHIND", 1)
    arenas = set()
    world.table.running = True  # so that all of them become free at once
    for k in range(arena_pool.MAX_SPARES + 4):
        planned(world, k)
        arenas |= {os.fstat(held.fd).st_ino for held in world.segments if held.role == "arena"}
    world.table.running = False
    forgotten: list[str] = []
    plain = type(world.segments).forget
    monkeypatch.setattr(type(world.segments), "forget", lambda s, segment: (forgotten.append(s[segment].role), plain(s, segment))[1])
    world.collect()
    assert forgotten.count("arena") == 3  # of seven: those beyond go as other segments do
    world.ask_behind(99)
    assert len(job(world).spares) == arena_pool.MAX_SPARES
    world.store.unload(world.model, CLIENT)
    assert world.roles == []
    assert not arenas & {
        os.stat(f"/proc/self/fd/{fd}").st_ino for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
    }


def test_which_spare_arena_is_taken() -> None:
    assert child_main._spare(100, []) == -1
    assert child_main._spare(100, [90, 300, 200]) == 2
    assert child_main._spare(100, [99]) == -1
    assert child_main._spare(64 << 20, [1 << 30]) == -1


@given(st.integers(1, 1 << 34))
def test_arenas_have_room_for_others(needed: int) -> None:
    """Not much more than is needed: those of a number of detections that is a little larger still fit."""
    assert needed <= child_main._roomy(needed) <= needed + max(needed // 4, 4095)


def test_what_comes_back_often_is_searched(world: World) -> None:
    planned(world, 1)
    world.table.served = replanning.SERVED_OFTEN - 1
    world.store.refresh()
    assert not world.waiting
    world.table.served += 1
    world.store.refresh()
    assert job(world).search
    world.answer()
    world.table.served += 1000
    world.store.refresh()
    assert not world.waiting


def test_a_search_gives_way_to_clients(world: World) -> None:
    planned(world, 1)
    world.table.served = replanning.SERVED_OFTEN
    world.store.refresh()
    assert job(world).search
    world.ask_behind(2)
    assert not job(world).search
    world.answer()
    assert np.isfinite(world.table.served)


def test_the_second_number_asks_for_a_range(world: World) -> None:
    """Its plan serves other numbers at once, and the plan cache keeps it."""
    world.ask()
    world.answer()
    first = planned(world, 20)
    world.ask_behind(40)
    message = job(world)
    assert message.bucket.lengths == (40,)
    assert message.bucket.axes == ((0, 0, 0, 0), (1,))
    assert message.keep
    world.answer(served_bucket=(32, 47))
    world.ask_behind(33)
    assert not world.waiting
    found: Any = world.answers[-1]
    assert (found.extent, found.bucket.axes, found.bucket.chosen) == (33, message.bucket.axes, (0,))
    world.ask_behind(20)
    assert world.answers[-1].plan == first.plan  # type: ignore[attr-defined]
    world.ask_behind(48)
    assert job(world).bucket is not None


def test_without_a_range_each_number_has_a_plan(world: World) -> None:
    world.ask()
    world.answer()
    for number in (20, 40, 41, 60, 100, 300):
        planned(world, number)
    assert len(world.table.plans()) == 7
    world.ask_behind(301)
    assert job(world).bucket is None  # there was none for three ranges
    assert not job(world).keep
