"""The life of plans and models: every step is taken, random lives keep what must hold, and planted faults are found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from plan_town import ROWS, Town

from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.models.plan_builder import PlanBuilder
from aspen_mp.control.models.plan_machine import Checks
from aspen_mp.control.models.plan_requests import PlanRequests
from aspen_mp.control.models.plan_states import (
    Asked,
    Collected,
    Left,
    ModelEffect,
    ModelEvent,
    PlanEffect,
    PlanEvent,
    model_transition,
    plan_transition,
)
from aspen_mp.control.models.plans import ModelState, Plan, State
from aspen_mp.control.planning.planner_child import PlanStage
from aspen_mp.shm.errors import PlanError, ResourceLimitError

A, B = 1, 2
"""Clients."""


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    yield town
    town.close()


def loaded(town: Town, digest: bytes = b"", path: str = "/m") -> Any:
    town.load(A, path)
    town.inspected(digest)
    return town.models[-1]


def with_range(town: Town) -> Any:
    """A model with a plan for 8 rows, and one for 16 to 23."""
    model = loaded(town)
    for rows in (8, 20):
        town.ask(A, model, rows)
        town.planned(1)
    return model


# ---- every step


def models_come_and_go(town: Town) -> None:
    town.load(A, "/m")
    town.load(B, "/m")
    town.inspected(b"")
    town.load(B, "/m")
    town.load(A, "/other")
    town.not_planned(PlanError("no"))
    town.load(A, "/gone")
    town.load(B, "/gone")
    town.gone(A)
    town.gone(B)
    town.load(3, "")
    town.load(4, "")
    town.inspected(b"same")
    town.inspected(b"same")
    assert len(town.models) == 1


def plans_of_children(town: Town) -> None:
    model = loaded(town)
    for _ in range(2):
        town.ask(A, model, 8)
    town.planned()
    town.ask(A, model, 8)
    town.ask(A, model, 9, ahead=True)
    town.not_planned(PlanError("no"))
    town.ask(A, model, 8, behind=1)
    town.publisher.fails = True
    town.planned()  # cannot be published, and nothing would help
    town.gone(A)
    town.retire_done()


def plans_of_the_cache(town: Town) -> None:
    model = loaded(town, b"known")
    town.hits = True
    for rows, usable in ((8, True), (9, False)):
        town.usable = usable
        for _ in range(2):
            town.ask(A, model, rows)
        town.verifying.pop()()
        town.ask(A, model, rows)
        town.reserved()
        if not usable:
            town.planned()
    town.usable = True
    for reserved in (None, PlanError("no")):
        town.ask(A, model, 10 + bool(reserved))
        town.verifying.pop()()
        town.publisher.fails = True
        town.reserved(reserved)
        town.publisher.fails = False
        if not reserved:
            town.pass_time()
            town.planned()


def memory_runs_out(town: Town) -> None:
    model = loaded(town, b"known")
    for rows in (8, 9, 10):
        town.ask(A, model, rows)
        town.planned()
    for where in ("planning", "reserving", "publishing"):
        town.hits = where == "reserving"
        town.ask(A, model, {"planning": 11, "reserving": 12, "publishing": 13}[where])
        if where == "planning":
            town.not_planned(ResourceLimitError("full"))
        elif where == "reserving":
            town.verifying.pop()()
            town.reserved(ResourceLimitError("full"))
        else:
            town.publisher.fails = True
            town.planned()
        key = next(iter(model.begun))
        assert model.making[key].state is State.WAITING
        town.ask(A, model, {"planning": 11, "reserving": 12, "publishing": 13}[where])
        town.retire_done()
        town.pass_time()
        town.finish()


def a_plan_that_waits_for_memory_ends(town: Town) -> None:
    """It fails with its model; it gives way to a request, where it was begun for nobody."""
    for stopped in (True, False):
        model = with_range(town)
        for rows in (21, 9):
            town.ask(A, model, rows, ahead=True)
            town.planned()
        if stopped:
            town.ask(A, model, 23, beside=True)
            town.ask(A, model, 24)
        else:
            town.ask(A, model, 50, ahead=True)
        town.not_planned(ResourceLimitError("full"))
        if stopped:
            town.ask(A, model, 9, behind=3)
        town.gone(A)
        town.pass_time()


def plans_give_way(town: Town) -> None:
    """In whatever state."""
    for state in (State.PLANNING, State.CACHED, State.RESERVING, State.REQUESTED):
        model = with_range(town)
        model.digest = b"known"
        town.ask(A, model, 21, often=True)
        if state is not State.REQUESTED:
            town.hits = state is not State.PLANNING
            town.store.refresh()
        if state is State.RESERVING:
            town.verifying.pop()()
        assert [plan.state for plan in model.making.values()] == [state]
        town.hits = False
        town.ask(A, model, 21 if state is State.REQUESTED else 9, ahead=True)
        town.finish()
        town.gone(A)


def what_comes_too_late(town: Town) -> None:
    for state in (State.CACHED, State.RESERVING, State.WAITING):
        model = loaded(town, b"known")
        town.ask(A, model, 8)
        town.planned()
        town.ask(A, model, 9)
        town.planned()
        town.hits = True
        town.ask(A, model, 10)
        town.hits = False
        if state is not State.CACHED:
            town.verifying.pop()()
        if state is State.WAITING:
            town.reserved(ResourceLimitError("full"))
        town.gone(A)
        town.finish()


def who_waits_for_a_plan_that_gives_way_asks_again(town: Town) -> None:
    """Somebody has come to the next range while that was planned for nobody yet, and then somebody else to yet another one."""
    model = with_range(town)
    town.ask(A, model, 23, beside=True)
    town.ask(A, model, 24)
    town.ask(A, model, 100)
    town.balance()
    assert len(model.begun) == 2


def who_waits_for_a_plan_that_gives_way_may_have_lost_its_model(town: Town) -> None:
    model = with_range(town)
    town.ask(A, model, 23, beside=True)
    town.ask(A, model, 24)
    town.gone(A)


def what_nobody_waits_for_may_be_impossible_to_publish(town: Town) -> None:
    model = with_range(town)
    town.ask(A, model, 23, beside=True)
    town.publisher.fails = True
    town.planned(1)
    assert not model.making


def plans_of_the_cache_are_there_at_once(town: Town) -> None:
    model = loaded(town, b"known")
    town.hits = town.at_once = True
    for rows in (8, 9, 10, 11, 12, 13):
        town.ask(A, model, rows)
    assert not town.jobs
    assert len(model.live) == 4


def the_plan_of_a_range_that_is_made_twice_is_found(town: Town) -> None:
    """Two parts of a range may end alike: the newer plan takes the place of the older one, and serves its lengths."""
    model = with_range(town)
    town.ask(A, model, 40)
    town.ask(A, model, 33)
    town.planned(2)  # for 40 to 47
    town.planned(1)  # for 32 to 47
    town.ask(A, model, 41)
    assert not town.jobs


def the_rest_of_a_range_is_planned_beside_a_part_of_it(town: Town) -> None:
    """A plan for less of a range has the key that the whole range would have had; who asks for the rest has a plan of its own."""
    model = with_range(town)
    town.ask(A, model, 40)
    town.planned(2)  # for 40 to 47
    town.ask(A, model, 33)
    town.planned(3)  # for 32 and 33
    for rows in (33, 41):
        town.ask(A, model, rows)
        assert not town.jobs


def a_search_takes_the_place_of_a_plan(town: Town) -> None:
    model = with_range(town)
    town.served, town.speeds = 100, [1.0, 1.0]
    before = dict(model.live)
    town.store.refresh()
    town.planned(1)
    (old,) = set(before.values()) - set(model.live.values())
    assert old.state is State.RETIRING
    assert before.keys() == model.live.keys()


def clients_go_as_they_are_answered(town: Town) -> None:
    model = with_range(town)
    town.load(B, "/m")
    for client, rows in ((A, 24), (A, 24), (B, 25), (B, 8)):
        town.ask(client, model, rows)
        town.breaking.add(A)
    town.planned(2)  # for 24 to 31
    assert model.users.keys() == {B}
    town.breaking.add(B)
    town.ask(B, model, 26)
    assert model not in town.models


SCRIPTS = [
    clients_go_as_they_are_answered,
    *(models_come_and_go, plans_of_children, plans_of_the_cache, memory_runs_out, a_plan_that_waits_for_memory_ends, plans_give_way),
    *(what_comes_too_late, who_waits_for_a_plan_that_gives_way_asks_again, the_plan_of_a_range_that_is_made_twice_is_found),
    *(who_waits_for_a_plan_that_gives_way_may_have_lost_its_model, what_nobody_waits_for_may_be_impossible_to_publish),
    plans_of_the_cache_are_there_at_once,
    *(the_rest_of_a_range_is_planned_beside_a_part_of_it, a_search_takes_the_place_of_a_plan),
]


def play(script: Callable[[Town], None], checks: Checks | None = None) -> None:
    town = Town(checks)
    try:
        script(town)
        town.balance()
        town.finish()
        town.balance(ended=True)
    finally:
        town.close()


def rows(transition: Callable[[Any, Any], Any], states: Any, events: Any) -> dict[tuple[Any, type], tuple[Any, tuple[Any, ...]]]:
    """All steps that there are: state and kind of event to the state after it and the effects."""
    found = {
        (state, event): transition(state, event(*[None] * len(event.__struct_fields__))) for state in states for event in get_args(events)
    }
    return {row: step for row, step in found.items() if step is not None}


PLAN_ROWS = rows(plan_transition, State, PlanEvent)
MODEL_ROWS = rows(model_transition, ModelState, ModelEvent)


def test_every_step_is_taken() -> None:
    checks = Checks()
    for script in SCRIPTS:
        play(script, checks)
    missing = (PLAN_ROWS.keys() | MODEL_ROWS.keys()) - checks.taken
    assert not missing, sorted((str(state), event.__name__) for state, event in missing)


@pytest.mark.parametrize(
    ("steps", "states", "events", "effects"),
    [(PLAN_ROWS, State, PlanEvent, PlanEffect), (MODEL_ROWS, ModelState, ModelEvent, ModelEffect)],
)
def test_every_state_event_and_effect_has_a_step(steps: Any, states: Any, events: Any, effects: Any) -> None:
    assert {event for _, event in steps} == set(get_args(events))
    assert {type(effect) for _, after in steps.values() for effect in after} == set(get_args(effects))
    assert {state for state, _ in steps} | {state for state, _ in steps.values()} == set(states)


# ---- what cannot happen


@pytest.mark.parametrize("checked", [True, False])
def test_a_step_that_there_is_not_fails_its_request_alone(checked: bool) -> None:
    town = Town(checked=checked)
    model = loaded(town)
    town.ask(A, model, 8)
    town.ask(B, model, 8)  # who has not loaded it is told so
    (plan,) = model.making.values()
    if checked:
        with pytest.raises(AssertionError, match="'collected' cannot happen to what is 'planning'"):
            town.store._requests.send(plan, Collected())
        town.close()
        return
    town.store._requests.send(plan, Collected())
    assert plan.state is State.FAILED
    (error,) = town.known[1].answers
    assert "model 'm', plan without a number for [{'x': [1, 8]}]: 'collected' cannot happen to what is 'planning'" in str(error)
    assert [event["event"] for event in town.log.latest()] == ["misstep"]
    town.ask(A, model, 8)
    town.finish()
    (live,) = model.live.values()
    asker = town.asker(A)
    town.store._requests.retire(live)
    town.store._requests.send(live, Asked(asker))  # one that is told of no more
    assert "cannot happen to what is 'retiring'" in str(town.known[-1].answers[0])
    assert live.state is State.RETIRING
    town.close()


# ---- random lives


HOW: Any = st.sampled_from([{}, {}, {"often": True}, {"beside": True}, {"beside": True}, {"ahead": True}])
ERRORS = st.sampled_from([None, None, None, PlanError("no"), ResourceLimitError("full")])


MADE = -1
"""As many rows as a plan that is being made is for."""


class Lives(RuleBasedStateMachine):
    """`town` begins with two loaded models, each with a plan for 8 rows and one for 16 to 23. The plan cache knows one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.town = Town()
        self.next = 2
        for digest, path in ((b"known", "/a"), (b"", "/b")):
            model = loaded(self.town, digest, path)
            for rows in (8, 20):
                self.town.ask(A, model, rows)
                self.town.planned(1)

    def teardown(self) -> None:
        try:
            self.town.finish()
            self.town.balance(ended=True)
        finally:
            self.town.close()

    @property
    def used(self) -> list[Any]:
        return [model for model in self.town.models if model.users]

    @rule(client=st.integers(0, 2), paths=st.lists(st.sampled_from(["/a", "/b", "", ""]), min_size=1, max_size=2))
    def load(self, client: int, paths: list[str]) -> None:
        here = sorted(self.town.here)
        self.next += client >= len(here)
        for path in paths:
            if len(self.town.models) < 3:
                self.town.load(here[client] if client < len(here) else self.next, path)

    @precondition(lambda self: self.used)
    @rule(
        model=st.integers(0, 2),
        asked=st.lists(
            st.tuples(st.sampled_from([*ROWS, MADE, MADE]), st.sampled_from([0, 0, 0, 1, 2]), HOW, st.booleans()), min_size=1, max_size=4
        ),
        at_once=st.sampled_from([False, False, True]),
    )
    def ask(self, model: int, asked: list[tuple[int, int, dict[str, bool], bool]], at_once: bool) -> None:
        self.town.at_once = at_once
        chosen = self.used[model % len(self.used)]
        for rows, behind, how, self.town.hits in asked:
            if not chosen.users:
                break
            made = [plan.job.stages[0][0].shape[1] for plan in chosen.begun.values()]
            self.town.ask(next(iter(chosen.users)), chosen, rows if rows != MADE else made[0] if made else 8, behind=behind, **how)

    @rule(
        n=st.integers(1, 3),
        error=ERRORS,
        part=st.sampled_from([0, 1, 1, 2, 3]),
        odd=st.booleans(),
        last=st.booleans(),
        fails=st.sampled_from([False, False, False, True]),
    )
    def go_on(self, n: int, error: Any, part: int, odd: bool, last: bool, fails: bool) -> None:
        """What is under way gets further: `part` and `last` are those of `Town.planned`, and it is `odd` in some other way."""
        town = self.town
        for _ in range(n):
            town.publisher.fails = fails
            loading = any(not isinstance(job.message, PlanStage) for _, job in town.jobs)
            if town.verifying:
                town.verifying.pop(0)()
            elif town.reserving:
                town.usable = not odd
                town.reserved(error)
            elif town.jobs and error:
                town.not_planned(error)
            elif loading:
                town.inspected(b"same" if odd else b"")
            elif town.jobs:
                town.planned(part, no_bucket=odd, values=odd and not part, last=last)
            town.publisher.fails = False

    @rule(served=st.sampled_from([1, 100]), cores=st.integers(1, 2), prepared=st.sampled_from([True, True, False]), hits=st.booleans())
    def refresh(self, served: int, cores: int, prepared: bool, hits: bool) -> None:
        self.town.served += served
        self.town.hits = hits
        self.town.speeds, self.town.prepared = [1.0] * cores, prepared
        self.town.store.refresh()
        self.town.prepared = True

    @rule(collect=st.booleans())
    def pass_time(self, collect: bool) -> None:
        if collect:
            self.town.retire_done()
        self.town.pass_time()

    @precondition(lambda self: self.used)
    @rule(what=st.sampled_from(["nothing"] * 3 + ["gone", "breaks", "unload", "weights"]), which=st.integers(0, 2))
    def end(self, what: str, which: int) -> None:
        town, model = self.town, self.used[which % len(self.used)]
        client = next(iter(model.users))
        if what == "gone":
            town.gone(client)
        elif what == "breaks":
            town.breaking.add(client)
        elif what == "unload":
            town.store.unload(model.id, client)
        elif what == "weights":
            town.torn = True
            town.store.look_at_weights()
            town.torn = False

    @invariant()
    def balance(self) -> None:
        self.town.balance()


def explore(examples: int, steps: int, *phases: Phase) -> None:
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=phases or tuple(Phase),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_lives() -> None:
    explore(600 if os.environ.get("ASPEN_MP_TIER") == "long" else 60, 40)


# ---- planted faults

Method = Callable[..., Any]


def forgets_waiters(real: Method) -> Method:
    def faulty(machine: Any, plan: Plan, *about: Any) -> None:
        plan.waiters = []
        real(machine, plan, *about)

    return faulty


def does_nothing(real: Method) -> Method:
    return lambda *_, **__: None


def forgets_the_old_one(real: Method) -> Method:
    def faulty(machine: Any, plan: Plan) -> None:
        plan.model.live.pop(plan.key, None)
        real(machine, plan)

    return faulty


def keeps_buckets(real: Method) -> Method:
    def faulty(machine: Any, plan: Plan) -> None:
        buckets = plan.model.buckets.of(plan.job.stages, plan.job.capacities)
        kept = {family: list(rows) for family, rows in buckets.plans.items()}
        real(machine, plan)
        buckets.plans = kept

    return faulty


def forgets_buckets(real: Method) -> Method:
    def faulty(machine: Any, plan: Plan) -> None:
        real(machine, plan)
        plan.model.buckets.of(plan.job.stages, plan.job.capacities).plans.clear()

    return faulty


FAULTS: dict[str, tuple[type, str, Callable[[Method], Method]]] = {
    "who waits for a plan that gives way is forgotten": (PlanRequests, "stop", forgets_waiters),
    "who waits for a plan that fails is forgotten": (PlanRequests, "fail", forgets_waiters),
    "who waits for a plan that is live is forgotten": (PlanRequests, "announce", forgets_waiters),
    "who joins is forgotten": (PlanRequests, "join", does_nothing),
    "who asks for a live plan is forgotten": (PlanRequests, "tell", does_nothing),
    "background plans do not give way": (PlanRequests, "stop_background", does_nothing),
    "reserved arenas are kept": (PlanBuilder, "release", does_nothing),
    "arenas that come too late are kept": (PlanBuilder, "discard", does_nothing),
    "plans that have ended stay in the making": (PlanBuilder, "let_go", does_nothing),
    "what is replaced is not retired": (PlanRequests, "replace", forgets_the_old_one),
    "buckets outlive their plans": (PlanBuilder, "withdraw", keeps_buckets),
    "buckets are forgotten": (PlanRequests, "announce", forgets_buckets),
    "memory is waited for that nobody gives back": (PlanBuilder, "relieve", does_nothing),
    "twins forget who waits": (ModelStore, "hand_over", lambda real: lambda store, model, twin: model.waiting.clear()),
    "models that cannot be read tell nobody": (ModelStore, "refuse", does_nothing),
    "models go while somebody waits": (ModelStore, "_forget_user", lambda real: lambda store, model, client: store.send(model, Left())),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """By one of the scripts; by random lives, too, however many that takes."""
    where, name, plant = FAULTS[fault]
    monkeypatch.setattr(where, name, plant(getattr(where, name)))
    found = []
    for script in SCRIPTS:
        try:
            play(script)
        except (AssertionError, LookupError, ValueError, StopIteration):
            found.append(script.__name__)
    assert found
    if os.environ.get("ASPEN_MP_TIER") == "long":
        with pytest.raises((AssertionError, LookupError)):
            explore(4000, 40, Phase.generate)
