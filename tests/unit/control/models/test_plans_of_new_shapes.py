"""Plans for inputs of ever new shapes, lengths of texts say. Those that somebody waits for are searched when they have come often. A
model's first ones have all its instances from the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_store import World, store_of_models

from aspen_mp.control.models import eviction, replanning
from aspen_mp.control.planning.planner_child import PlanStage
from aspen_mp.control.wire import protocol
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.planner.job.options import LEAST_SEARCHED_NS, Experiment
from aspen_mp.shm.errors import PlanError


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


def test_first_shapes_have_all_instances_others_have_not(world: World) -> None:
    first = planned(world, 8)
    assert (first.search, first.recurs) == (False, True)
    further = planned(world, 9)
    assert (further.search, further.recurs) == (False, False)
    assert further.keep  # the plan cache keeps both


def test_first_shapes_are_searched_at_once_where_plans_are_not_made_again(world: World) -> None:
    world.store._requests._setup = replace(world.store._requests._setup, replans=False)
    assert planned(world, 8).search
    assert not planned(world, 9).search


@pytest.mark.parametrize(("cores", "work_ns", "again"), [(2, LEAST_SEARCHED_NS, True), (2, LEAST_SEARCHED_NS - 1, False), (1, 1e9, False)])
def test_first_shapes_are_searched_if_that_may_gain_something(world: World, cores: int, work_ns: float, again: bool) -> None:
    world.speeds = [1.0] * cores
    planned(world, 8)
    next(iter(next(iter(world.store._models.values())).live.values())).work_ns = work_ns
    world.table.served = replanning.SERVED_OFTEN
    world.store.refresh()
    assert [found.message.search for found in world.waiting if isinstance(found.message, PlanStage)] == [True] * again


@pytest.mark.parametrize(
    ("shape", "recurs"), [(["n", 3, "h", "w"], False), (["n", "h", "w", 3], False), (["n", 8, "rows", 8], True), (["n", 3, 64, 64], True)]
)
def test_pictures_of_any_size_have_one_instance_at_first(world: World, shape: list[int | str], recurs: bool) -> None:
    (model,) = world.store._models.values()
    assert model.loaded is not None
    model.loaded = msgspec.structs.replace(model.loaded, inputs=[protocol.ValueInfo("x", "float32", shape)])
    assert planned(world, 8).recurs == recurs


def test_new_sizes_have_the_arenas_of_old_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there are too many plans."""
    monkeypatch.setattr(eviction, "MAX_PLANS", 2)
    planned(world, 8)
    planned(world, 9)
    planned(world, 10)
    world.ask(11)
    (spare,) = job(world).spares
    world.answer(0)
    assert [held.nbytes for held in world.segments if held.role == "arena"].count(spare) == 2
    assert len(world.table.plans()) == 2


def test_the_second_shape_asks_for_a_range(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    bucket = job(world).bucket
    assert bucket is not None
    assert (bucket.ranges[-1].least, bucket.ranges[-1].most, bucket.lengths) == ((16,), (23,), (20,))
    assert bucket.at(job(world).stages[0], (23,))[0].shape == [1, 8, 23, 8]


def test_who_waits_for_a_range_that_there_is_not_asks_again(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    world.ask(21)
    world.ask(20)
    assert len(world.waiting) == 1
    world.answer()  # a plan for 20 rows alone
    assert len(world.answers) == 4  # model, 8, 20, 20
    again = job(world)
    assert again.stages[0][0].shape == [1, 8, 21, 8]
    assert again.bucket is None  # not a second time
    world.answer()
    assert len(world.answers) == 5


def test_an_error_of_one_length_is_its_own(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    world.ask(21)
    (found,) = world.waiting
    for child in world.children:
        child.jobs.clear()
    found.on_error(PlanError("20 rows"))
    assert len(world.errors) == 1
    assert job(world).stages[0][0].shape == [1, 8, 21, 8]
    world.answer()
    assert len(world.errors) == 1


def test_plans_that_are_made_are_counted(world: World) -> None:
    def made() -> list[int]:
        found = world.store.describe()[0]["made"]
        return [found[key] for key in ("one_shape", "range", "cached", "replaced")]

    planned(world, 8)
    assert made() == [1, 0, 0, 0]
    world.ask(20)
    world.answer(served_bucket=(16, 23))
    world.ask(17)  # served by it
    assert made() == [1, 1, 0, 0]
    planned(world, 40)
    world.replan()
    world.answer()  # takes the place of one of them
    assert made() == [3, 1, 0, 1]
    world.ask(17, often=True)
    assert made() == [3, 1, 0, 1]
    world.store.refresh()
    world.answer()
    assert made() == [4, 1, 0, 2]


def test_buckets_serve_other_lengths_at_once(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    world.answer(served_bucket=(16, 23))
    answered = len(world.answers)
    world.ask(17)
    world.ask(23)
    assert not world.waiting
    small, large = world.answers[answered:]
    assert isinstance(small, protocol.Planned)
    assert isinstance(large, protocol.Planned)
    assert (small.extent, large.extent) == (17, 23)
    assert small.plan == large.plan
    world.ask(24)
    assert job(world).bucket is not None
    assert [plan["ranges"] for plan in world.store.describe()[0]["plans"]] == [[], [(16, 23)]]


def test_what_is_planned_ahead_has_a_plan_of_its_own_beside_a_range(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    world.answer(served_bucket=(16, 23))
    message = planned(world, 20, ahead=True)
    assert message.search
    assert message.bucket is None
    world.ask(20)
    found = world.answers[-1]
    assert isinstance(found, protocol.Planned)
    assert found.extent == 0


def test_less_of_a_range_serves_what_is_in_it(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    world.ask(17)
    world.answer(served_bucket=(20, 23))
    other = job(world)  # for 17 rows: another part of the range
    assert other.bucket is not None
    assert other.bucket.lengths == (17,)
    world.answer(served_bucket=(16, 19))
    assert not world.waiting
    world.ask(16)
    world.ask(23)
    assert not world.waiting
    assert {str(plan["ranges"]) for plan in world.store.describe()[0]["plans"]} == {"[]", "[(20, 23)]", "[(16, 19)]"}


def test_models_without_ranges_are_left_alone(world: World) -> None:
    planned(world, 8)
    for rows in (20, 40, 80):
        world.ask(rows)
        assert job(world).bucket is not None
        world.answer()
    world.ask(160)
    assert job(world).bucket is None


def test_a_length_that_comes_often_is_planned_by_itself_behind_the_requests(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    world.answer(served_bucket=(16, 23))
    world.ask(20, often=True)
    assert not world.waiting  # it was answered
    world.store.refresh()
    own = job(world)
    assert own.search
    assert own.bucket is None
    assert own.stages[0][0].shape == [1, 8, 20, 8]
    world.answer()
    world.ask(20, often=True)
    found = world.answers[-1]
    assert isinstance(found, protocol.Planned)
    assert found.extent == 0
    world.store.refresh()
    assert not world.waiting


def of_a_range(world: World) -> None:
    planned(world, 8)
    world.ask(32)
    world.answer(served_bucket=(32, 47))


def test_buckets_beside_one_are_planned_where_many_lengths_are_met(world: World) -> None:
    of_a_range(world)
    world.ask(40)
    assert not world.waiting
    world.ask(41, beside=True)  # nearer to the end
    message = job(world)
    assert not message.search
    assert message.bucket is not None
    assert (message.bucket.ranges[-1].least, message.bucket.ranges[-1].most) == ((48,), (63,))
    assert message.stages[0][0].shape == [1, 8, 48, 8]
    world.ask(42, beside=True)
    assert len(world.waiting) == 1
    world.answer(served_bucket=(48, 63))
    answered = len(world.answers)
    world.ask(34, beside=True)
    message = job(world)
    assert message.bucket is not None
    assert (message.bucket.ranges[-1].least, message.bucket.ranges[-1].most) == ((24,), (31,))
    world.answer(served_bucket=(24, 31))
    world.ask(44, beside=True)
    assert not world.waiting
    world.ask(48, beside=True)
    assert len(world.answers) == answered + 3
    assert job(world).stages[0][0].shape == [1, 8, 64, 8]
    assert [plan["ranges"] for plan in world.store.describe()[0]["plans"]] == [[], [(24, 31)], [(32, 47)], [(48, 63)]]


def test_who_comes_to_the_next_range_waits_for_the_plan_that_is_being_made(world: World) -> None:
    of_a_range(world)
    world.ask(47, beside=True)
    answered = len(world.answers)
    world.ask(50)
    assert len(world.waiting) == 1
    assert len(world.answers) == answered
    world.answer(served_bucket=(48, 63))
    found = world.answers[-1]
    assert isinstance(found, protocol.Planned)
    assert found.extent == 50


def test_requests_do_not_wait_for_what_is_planned_beside(world: World) -> None:
    of_a_range(world)
    world.ask(40, beside=True)
    world.ask(9)
    assert job(world).stages[0][0].shape == [1, 8, 9, 8]
    world.answer()
    world.ask(41, beside=True)  # it is begun again
    assert job(world).stages[0][0].shape == [1, 8, 48, 8]


def test_a_planning_child_that_cannot_be_forked_yet_is_waited_for(world: World) -> None:
    of_a_range(world)
    world.prepared = False
    for _ in range(2 * POLICY.tries_ahead):
        world.ask(40, beside=True)
    assert not world.waiting
    world.prepared = True
    world.ask(47, beside=True)
    assert job(world).stages[0][0].shape == [1, 8, 48, 8]


def test_buckets_that_cannot_be_planned_beside_are_not_tried_for_ever(world: World) -> None:
    of_a_range(world)
    world.ask(40, beside=True)
    (found,) = world.waiting
    for child in world.children:
        child.jobs.clear()
    found.on_error(PlanError("48 rows"))
    world.ask(41, beside=True)
    world.answer(served_bucket=(24, 31))
    world.ask(42, beside=True)
    assert not world.waiting
    assert not world.errors
    world.ask(48)  # who needs it is told why
    (found,) = world.waiting
    found.on_error(PlanError("48 rows"))
    assert len(world.errors) == 1


def test_long_requests_are_often_sooner() -> None:
    assert replanning.often(0.0) == replanning.often(1e6) == replanning.SERVED_OFTEN
    assert replanning.often(1e8) == 20
    assert replanning.often(1e10) == replanning.SERVED_LEAST


def test_a_range_whose_plan_is_dropped_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_PLANS", 1)
    planned(world, 8)
    world.ask(20)
    world.answer(served_bucket=(16, 23))
    world.ask(40)
    world.answer()
    world.ask(21)
    assert job(world).bucket is not None


def test_a_range_is_searched_again_as_a_range(world: World) -> None:
    planned(world, 8)
    world.ask(20)
    world.answer(served_bucket=(16, 23))
    world.table.served = replanning.SERVED_OFTEN
    world.store.refresh()
    message = job(world)
    assert message.search
    assert message.bucket is not None
    world.answer(served_bucket=(16, 23))
    world.ask(18)
    assert not world.waiting
    assert [plan["searched"] for plan in world.store.describe()[0]["plans"]] == [False, True]


def test_what_is_planned_ahead_is_searched(world: World) -> None:
    planned(world, 8)
    assert planned(world, 9, ahead=True).search


def test_of_two_clients_with_shapes_of_their_own_one_has_the_first(world: World) -> None:
    world.ask(8)
    world.ask(9)
    first, second = (found.message for found in world.waiting)
    assert isinstance(first, PlanStage)
    assert isinstance(second, PlanStage)
    assert (first.recurs, second.recurs) == (True, False)


@pytest.mark.parametrize("how", [Experiment(search="none"), Experiment(search="thorough"), Experiment(tiles=4)])
def test_what_was_asked_for_is_done_for_all_shapes(world: World, how: Experiment) -> None:
    (model,) = world.store._models.values()
    model.request = msgspec.structs.replace(model.request, planning=how)
    planned(world, 8)
    assert planned(world, 9).search


def test_shapes_that_come_often_are_searched(world: World) -> None:
    planned(world, 8)
    planned(world, 9)
    world.table.served = replanning.SERVED_OFTEN - 1
    world.store.refresh()
    assert not world.waiting
    world.table.served += 1
    world.store.refresh()
    message: Any = job(world)
    assert message.search
    assert message.stages[0][0].shape == [1, 8, 9, 8]
    world.answer()
    assert [plan["searched"] for plan in world.store.describe()[0]["plans"]] == [False, True]
    world.table.served += 1000
    world.store.refresh()
    assert not world.waiting
