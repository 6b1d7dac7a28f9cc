"""Plans that have been replaced while requests run on them: what they need stays until those have ended, and their tiles can be named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_store import CLIENT, World, store_of_models

from aspen_mp.control.models import eviction
from aspen_mp.control.models import published_plans as published
from aspen_mp.control.pool.watchdog import Estimate
from aspen_mp.shm.bindings import _control


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with store_of_models(tmp_path, monkeypatch) as world:
        yield world


def known(world: World, plan: int) -> tuple[object, ...]:
    plans = world.store.plans
    return (
        plans.name_of(plan),
        plans.tile_name(plan, 0),
        plans.op_of_tile(plan, 0),
        plans.estimate(plan, 0),
        world.table.plan(plan)["segment"],
    )


def test_a_request_goes_on_after_its_plan_was_replaced_and_its_model_unloaded(world: World) -> None:
    world.ask()
    world.answer()
    first: Any = world.answers[-1]
    before = known(world, first.plan)
    assert before[:2] == ("chain", ("chain", "conv0 (Conv)"))
    world.table.running = True
    world.replan()
    world.answer()
    assert world.table.plan(first.plan)["draining"]
    assert known(world, first.plan) == before
    world.store.unload(world.model, CLIENT)
    assert known(world, first.plan) == before
    assert world.roles == ["arena", "arena", "plan", "plan", "weights"]
    world.table.running = False
    world.collect()
    assert world.roles == []
    assert world.store.plans.estimate(first.plan, 0) == Estimate("a tile of a plan that has gone", True, 0.0)
    assert world.store.plans.tile_name(first.plan, 0) == ("", "")


@pytest.mark.parametrize("replaced_first", [True, False])
def test_weights_wait_for_the_last_plan(world: World, replaced_first: bool) -> None:
    """Whichever of the plans of an unloaded model is idle first: the one in use or the one that it has replaced."""
    world.ask()
    world.answer()
    first: Any = world.answers[-1]
    world.table.running = True
    world.replan()
    world.answer()
    second = next(plan for plan in world.table.plans() if plan != first.plan)
    world.store.unload(world.model, CLIENT)
    segments = {plan: world.table.plan(plan)["segment"] for plan in (first.plan, second)}
    world.store.collected({segments[first.plan if replaced_first else second]})
    world.store.plans.collected({segments[first.plan if replaced_first else second]})
    assert "weights" in world.roles
    world.table.running = False
    world.collect()
    assert world.roles == []


def test_ops_of_a_plan_that_has_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request fails on the plan that has just been replaced: when its client asks why, that has gone, and its number is another's."""
    monkeypatch.setattr(published, "NAMED_S", 0.0)
    world.ask()
    world.answer()
    first: Any = world.answers[-1]
    name = world.store.plans.op_name(first.plan, first.generation, 0, CLIENT)
    assert name == "conv0 (Conv)"
    world.replan()
    world.answer()
    assert world.roles == ["arena", "plan", "weights"]
    assert world.store.plans.op_name(first.plan, first.generation, 0, CLIENT) == name
    assert world.store.plans.op_name(first.plan, first.generation, 0, CLIENT + 1) == "op 0"
    assert world.store.plans.op_name(first.plan, first.generation + 1, 0, CLIENT) == "op 0"
    open_before = len(os.listdir("/proc/self/fd"))
    world.loop.later(0.0, world.loop.stop)
    world.loop.run()
    assert world.store.plans.op_name(first.plan, first.generation, 0, CLIENT) == "op 0"
    assert len(os.listdir("/proc/self/fd")) == open_before - 1


def test_ops_that_nobody_may_ask_for_are_not_kept(world: World) -> None:
    """Neither of plans that go after their model has been unloaded by all, nor of one that went before."""
    world.ask()
    world.answer()
    world.replan()
    world.answer()
    assert len(world.store.plans._gone) == 1
    world.store.unload(world.model, CLIENT)
    assert not world.store.plans._gone
    world.collect()
    assert world.roles == []
    assert not world.store.plans._gone


def shapes(world: World) -> list[int]:
    return [stage.answer.plan for stage in world.store._models[world.model].live.values()]


@pytest.mark.parametrize("scarce", ["plans", "instances", "descriptors"])
def test_plans_of_ever_new_shapes_make_room_for_each_other(world: World, monkeypatch: pytest.MonkeyPatch, scarce: str) -> None:
    """Before the tables or the descriptors are used up, by all models together. The last one stays, whatever there is."""
    most = {"plans": 10, "instances": 10, "descriptors": 20}[scarce]  # a plan here has one instance, and two segments with its arena
    if scarce == "descriptors":
        monkeypatch.setattr(eviction, "descriptor_limit", lambda: most)
    else:
        monkeypatch.setattr(_control, f"MAX_{scarce.upper()}", most)
    asked = []
    for rows in range(1, 10):
        world.ask(rows)
        world.answer()
        asked.append(world.answers[-1].plan)  # type: ignore[attr-defined]
        assert shapes(world) == asked[-6:]
        assert len(world.table.plans()) == len(asked[-6:])
    assert not world.errors
    monkeypatch.setattr(eviction, "MOST_OF_ALL", 0.0)
    world.ask(10)
    world.answer()
    assert len(shapes(world)) == 1


def test_few_of_many_plans_that_have_gone_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MOST_NAMED", 2)
    monkeypatch.setattr(eviction, "MAX_PLANS", 1)
    gone = []
    for rows in range(1, 6):
        world.ask(rows)
        world.answer()
        answer: Any = world.answers[-1]
        gone.append((answer.plan, answer.generation))
    named = [world.store.plans.op_name(*plan, 0, CLIENT) for plan in gone]
    assert named == ["op 0"] * 2 + ["conv0 (Conv)"] * 3
    world.store.plans.close()
