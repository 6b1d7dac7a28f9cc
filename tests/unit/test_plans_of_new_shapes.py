"""Plans for inputs of ever new shapes, lengths of texts say: a model's first ones are searched, and those that nobody waits for; the others
when they have come often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_store import World, store_of_models

from aspen_mp.control import models
from aspen_mp.control.jobs import PlanStage
from aspen_mp.planner.options import Planning


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with store_of_models(tmp_path, monkeypatch) as world:
        yield world


def job(world: World) -> PlanStage:
    (found,) = world.waiting
    assert isinstance(found.message, PlanStage)
    return found.message


def planned(world: World, rows: int, *, ahead: bool = False) -> PlanStage:
    world.ask(rows, ahead=ahead)
    message = job(world)
    world.answer()
    return message


def test_first_shapes_are_searched_others_are_not(world: World) -> None:
    assert planned(world, 8).search
    further = planned(world, 9)
    assert not further.search
    assert further.keep  # the plan cache keeps both
    assert [plan["searched"] for plan in world.store.describe()[0]["plans"]] == [True, False]


def test_what_is_planned_ahead_is_searched(world: World) -> None:
    planned(world, 8)
    assert planned(world, 9, ahead=True).search


def test_two_clients_with_shapes_of_their_own_do_not_wait_for_two_searches(world: World) -> None:
    world.ask(8)
    world.ask(9)
    first, second = (found.message for found in world.waiting)
    assert isinstance(first, PlanStage)
    assert isinstance(second, PlanStage)
    assert (first.search, second.search) == (True, False)


@pytest.mark.parametrize("how", [Planning(search="none"), Planning(search="thorough"), Planning(tiles=4)])
def test_what_was_asked_for_is_done_for_all_shapes(world: World, how: Planning) -> None:
    (model,) = world.store._models.values()
    model.options = replace(model.options, planning=how)
    planned(world, 8)
    assert planned(world, 9).search


def test_shapes_that_come_often_are_searched(world: World) -> None:
    planned(world, 8)
    planned(world, 9)
    world.table.served = models.SERVED_OFTEN - 1
    world.store.refresh()
    assert not world.waiting
    world.table.served += 1
    world.store.refresh()
    message: Any = job(world)
    assert message.search
    assert message.stages[0][0].shape == [1, 8, 9, 8]
    world.answer()
    assert [plan["searched"] for plan in world.store.describe()[0]["plans"]] == [True, True]
    world.table.served += 1000
    world.store.refresh()
    assert not world.waiting
