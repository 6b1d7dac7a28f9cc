"""Takes plans and models from state to state, one event after the other, and checks what must hold.

An event that cannot happen is an error of ours. It is logged and fails the request that it happened to, and nothing else. With
``ASPEN_MP_CHECK=on`` it raises, as does everything that `Checks` finds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from aspen_mp.control.models.plan_states import Asked, Failed
from aspen_mp.control.models.plans import ENDED, MAKING, Model, ModelState, Plan, State
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.shm.errors import AspenError

CHECKED: Final = os.environ.get("ASPEN_MP_CHECK", "off") == "on"
"""Whether a planner process checks every step."""

Action = Callable[[], None]
SubjectT = TypeVar("SubjectT", Plan, Model)
EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")


class EventQueue:
    """Events that are carried out one after the other, each to its end.

    What follows from an event comes directly after it, before other events that wait. So whoever handles an event sees states in which
    nothing is half done. `checks`: what is checked meanwhile.
    """

    def __init__(self, checks: Checks | None = None) -> None:
        self.checks = checks
        self._stack: list[Action] = []
        """What waits; the last one is next."""
        self._following: list[Action] = []
        self._later: deque[Action] = deque()
        self._running = False

    def follow(self, action: Action) -> None:
        """Carry out an event directly after the current one; at once if there is none."""
        if self._running:
            self._following.append(action)
        else:
            self._run(action)

    def later(self, action: Action) -> None:
        """Carry out an event when all that waits now has ended; at once if nothing does."""
        if self._running:
            self._later.append(action)
        else:
            self._run(action)

    def _run(self, action: Action) -> None:
        """Carry out an event and all that waits then. An error ends its own event alone; the first one is raised at the end."""
        stack, following, first = self._stack, self._following, None
        self._running = True
        try:
            while True:
                try:
                    action()
                except Exception as error:
                    first = first or error
                while following:
                    stack.append(following.pop())
                if stack:
                    action = stack.pop()
                elif self._later:
                    action = self._later.popleft()
                else:
                    break
            if self.checks is not None and first is None:
                self.checks.between()
        finally:
            self._running = False
        if first is not None:
            raise first


class Machine(Generic[SubjectT, EventT, EffectT]):
    """The only place where plans, or models, change their states."""

    def __init__(
        self,
        queue: EventQueue,
        transition: Callable[[Any, EventT | Failed], tuple[Any, tuple[EffectT, ...]] | None],
        carry_out: Callable[[SubjectT, EffectT], None],
        event_log: EventLog,
    ) -> None:
        """`transition(state, event)`: see `plan_states`. `carry_out(subject, effect)` may send further events."""
        self._queue = queue
        self._transition = transition
        self._carry_out: Callable[[SubjectT, EffectT], None] = carry_out
        self._event_log = event_log

    def send(self, subject: SubjectT, event: EventT | Failed) -> None:
        self._queue.follow(partial(self._step, subject, event))

    def _step(self, subject: SubjectT, event: EventT | Failed) -> None:
        before = subject.state
        found = self._transition(before, event)
        if found is None:
            self._misstep(subject, event)
            return
        subject.state, effects = found
        for effect in effects:
            self._carry_out(subject, effect)
        if self._queue.checks is not None:
            self._queue.checks.after(subject, before, event)

    def _misstep(self, subject: SubjectT, event: EventT | Failed) -> None:
        """The event cannot happen in this state. Whoever waits is told."""
        name, what = name_of(subject), type(event).__name__.lower()
        error = AspenError(f"{name}: {what!r} cannot happen to what is {subject.state.value!r}: an error of the planner process")
        self._event_log.warning("misstep", about=name, state=subject.state.value, what=what)
        if self._queue.checks is not None:
            raise AssertionError(str(error))
        if isinstance(event, Asked):
            event.asker.fail(error)
        if not isinstance(event, Failed) and self._transition(subject.state, Failed(error)) is not None:
            self.send(subject, Failed(error))


def name_of(subject: Plan | Model) -> str:
    """Return what the log calls a plan or a model."""
    if isinstance(subject, Model):
        return f"model {subject.name!r}"
    number = subject.answer.plan if hasattr(subject, "answer") else 0
    shapes = [{bind.name: bind.shape for bind in stage} for stage in subject.job.stages]
    return f"model {subject.model.name!r}, plan {number or 'without a number'} for {shapes}"


# ---- checks


class Checks:
    """What must hold after each step, and between events. `taken`: the kinds of steps that were taken, by state and event."""

    def __init__(self) -> None:
        self.taken: set[tuple[State | ModelState, type]] = set()
        self._touched: set[Model] = set()

    def after(self, subject: Plan | Model, before: State | ModelState, event: object) -> None:
        """Check what has taken a step."""
        self.taken.add((before, type(event)))
        self._touched.add(subject.model if isinstance(subject, Plan) else subject)
        if isinstance(subject, Plan):
            check_plan(subject)

    def between(self) -> None:
        """Check all models that events happened to."""
        touched, self._touched = self._touched, set()
        for model in touched:
            check_model(model)


def check_plan(plan: Plan) -> None:
    """Raise AssertionError where a plan holds what it may not hold in its state."""
    model, state = plan.model, plan.state
    unfinished = state in (State.REQUESTED, *MAKING, State.PUBLISHING)
    rules = {
        "only a plan that is being made has waiters": not plan.waiters or unfinished,
        "only a plan that is being reserved for has arenas of its own": not plan.arenas or state is State.RESERVING,
        "a live plan can be told of": state is not State.LIVE or bool(plan.segments) == bool(plan.answer.plan),
        "a plan that has ended holds nothing": state not in ENDED or not (plan.segments or plan.waiters or plan.arenas),
        "a plan is among the live ones while it is live": (model.live.get(plan.live_key) is plan) == (state is State.LIVE),
        "a plan is among those in the making until it is live or has ended": (model.making.get(plan.key) is plan) == unfinished,
    }
    _hold(plan, rules)


def check_model(model: Model) -> None:
    """Raise AssertionError where a model, or one of its plans, breaks a rule. Called while no event is being carried out."""
    state, begun = model.state, list(model.begun.values())
    background = [plan for plan in begun if plan.background]
    turns = {key for key, plan in model.making.items() if plan.background and not plan.begun}
    rules = {
        "a model that is loading is waited for, and has no plans": state is not ModelState.LOADING
        or (model.waiting and not (model.users or model.live or model.making or model.loaded)),
        "a loaded model has users": state is not ModelState.LOADED or (model.users and model.loaded and not model.waiting),
        "a model that has gone has nothing": state is not ModelState.GONE or not (model.waiting or model.live or model.making),
        "no plan is being published": all(plan.state is not State.PUBLISHING for plan in begun),
        "what nobody waits for is made in the background": all(plan.background or plan.waiters for plan in begun),
        "one plan is made in the background, and only while no other is made": not background or len(begun) == 1,
        "a plan waits for its turn only where there is none": not turns & model.live.keys(),
        "buckets are served by live plans": model.buckets.keys()
        == {key for key, plan in model.live.items() if plan.served_bucket is not None},
        "live plans have the keys that they are found by": all(plan.live_key == key for key, plan in model.live.items()),
        "plans in the making have the keys that they are found by": all(plan.key == key for key, plan in model.making.items()),
    }
    _hold(model, rules)
    for plan in (*model.live.values(), *model.making.values()):
        check_plan(plan)


def _hold(subject: Plan | Model, rules: Mapping[str, object]) -> None:
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise AssertionError(f"{name_of(subject)}, {subject.state.value}: not so: {'; '.join(broken)}")
