"""The life of plans and models: what may happen to one in each state, and what is to be done then.

`plan_transition` and `model_transition` are pure: a state and an event give the next state and the effects. `plan_machine.py` has
the effects carried out. `aspen_mp/control/README.md` shows the states as a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import msgspec

from aspen_mp.control.models.plans import ENDED, MAKING, Asker, Model, ModelState, State
from aspen_mp.control.planning.plan_cache import Entry
from aspen_mp.control.planning.planner_child import Inspected, Received, StagePlanned
from aspen_mp.shm.errors import AspenError
from aspen_mp.shm.segments import Segment


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A plan to publish.

    | field | meaning |
    |---|---|
    | `received` | the segments of the result |
    | `plan` | the plan's segment if it needs no check; None: it is among `received`, from a planning child |
    | `checked` | a copy of that segment in memory of our own, already checked |
    | `reused` | the descriptor of an arena that another plan has had, or -1 |
    """

    result: StagePlanned
    received: list[Received]
    plan: Segment | None = None
    checked: Segment | None = None
    reused: int = -1


# ---- events


class Asked(msgspec.Struct, frozen=True):
    """A client asks for this plan, or loads this model."""

    asker: Asker


class Failed(msgspec.Struct, frozen=True):
    """A plan or a model cannot be had."""

    error: AspenError


class Hit(msgspec.Struct, frozen=True):
    """The plan cache has the plan."""

    entry: Entry


class Missed(msgspec.Struct, frozen=True):
    """The plan cache does not have the plan, or no longer all of it."""


class Verified(msgspec.Struct, frozen=True):
    """The plan's weight files have been verified."""


class Reserved(msgspec.Struct, frozen=True):
    """An arena has been reserved, or cannot be."""

    answer: Segment | AspenError


class Built(msgspec.Struct, frozen=True):
    """The plan can be published."""

    built: BuiltPlan


class Published(msgspec.Struct, frozen=True):
    """The plan is in the control table."""


class Lacked(msgspec.Struct, frozen=True):
    """Memory for the plan was refused while somebody waits for it."""

    error: AspenError


class Relieved(msgspec.Struct, frozen=True):
    """Memory that was given up for the plan has come back."""


class Stopped(msgspec.Struct, frozen=True):
    """The plan gives way to one that clients want, or nobody needs it."""


class Retired(msgspec.Struct, frozen=True):
    """The plan is replaced or evicted, or its model goes."""


class Collected(msgspec.Struct, frozen=True):
    """No worker uses the plan any more."""


class Read(msgspec.Struct, frozen=True):
    """The model's file has been read."""

    result: Inspected


class Twin(msgspec.Struct, frozen=True):
    """The same model is loaded already."""

    other: Model


class Left(msgspec.Struct, frozen=True):
    """Nobody has the model loaded or waits for it."""


PlanEvent = (
    Asked | Failed | Hit | Missed | Verified | Reserved | Built | Published | Lacked | Relieved | Stopped | Retired | Collected
)  # fmt: skip
ModelEvent = Asked | Failed | Read | Twin | Left


# ---- effects


class Join(msgspec.Struct, frozen=True):
    """The asker waits for the plan."""

    asker: Asker


class Tell(msgspec.Struct, frozen=True):
    """The asker is told of the live plan."""

    asker: Asker


class Verify(msgspec.Struct, frozen=True):
    """The entry's weight files are verified."""

    entry: Entry


class Reserve(msgspec.Struct, frozen=True):
    """The next arena is reserved."""


class KeepArena(msgspec.Struct, frozen=True):
    """The arena belongs to the plan."""

    answer: Segment | AspenError


class Discard(msgspec.Struct, frozen=True):
    """The arena came too late."""

    answer: Segment | AspenError


class RunPlanner(msgspec.Struct, frozen=True):
    """A planning child makes the plan."""


class Publish(msgspec.Struct, frozen=True):
    """The plan is put into the control table."""

    built: BuiltPlan


class Release(msgspec.Struct, frozen=True):
    """The plan's arenas are given back."""


class Relieve(msgspec.Struct, frozen=True):
    """Other plans are retired for this one's memory; with nothing to retire, it fails with `error`."""

    error: AspenError


class LetGo(msgspec.Struct, frozen=True):
    """The plan is no longer among those being made."""


class Announce(msgspec.Struct, frozen=True):
    """The plan is found by requests, and its waiters are told."""


class Fail(msgspec.Struct, frozen=True):
    """The waiters are told why there is no plan."""

    error: AspenError


class Stop(msgspec.Struct, frozen=True):
    """The background work for the plan ends, and its waiters ask again."""


class Withdraw(msgspec.Struct, frozen=True):
    """Requests no longer find the plan."""


class Forget(msgspec.Struct, frozen=True):
    """The plan's segments are gone."""


class Wait(msgspec.Struct, frozen=True):
    """The asker waits for the model."""

    asker: Asker


class Welcome(msgspec.Struct, frozen=True):
    """The asker uses the loaded model."""

    asker: Asker


class WelcomeAll(msgspec.Struct, frozen=True):
    """All that wait use the model that was read."""

    result: Inspected


class HandOver(msgspec.Struct, frozen=True):
    """All that wait get the other model."""

    other: Model


class Refuse(msgspec.Struct, frozen=True):
    """All that wait are told why the model cannot be loaded."""

    error: AspenError


class Drop(msgspec.Struct, frozen=True):
    """All that the model holds is given back."""


PlanEffect = (
    Join | Tell | Verify | Reserve | KeepArena | Discard | RunPlanner | Publish | Release | Relieve | LetGo | Announce | Fail | Stop
    | Withdraw | Forget
)  # fmt: skip
ModelEffect = Wait | Welcome | WelcomeAll | HandOver | Refuse | Drop


# ---- transitions

S, M = State, ModelState


def plan_transition(state: State, event: PlanEvent) -> tuple[State, tuple[PlanEffect, ...]] | None:
    """Return the state of a plan after an event, and the effects in order; None where the event cannot happen."""
    match event:
        case Asked():
            if state is S.LIVE:
                return state, (Tell(event.asker),)
            if state is S.REQUESTED or state in MAKING:
                return state, (Join(event.asker),)
        case Hit():
            if state is S.REQUESTED:
                return S.CACHED, (Verify(event.entry),)
        case Missed():
            if state in (S.REQUESTED, S.RESERVING):
                return S.PLANNING, (RunPlanner(),)
        case Verified():
            if state is S.CACHED:
                return S.RESERVING, (Reserve(),)
            if state in ENDED:  # it comes too late, as do others below
                return state, ()
        case Reserved():
            if state is S.RESERVING:
                return state, (KeepArena(event.answer),)
            if state in ENDED:
                return state, (Discard(event.answer),)
        case Built():
            if state in (S.RESERVING, S.PLANNING):
                return S.PUBLISHING, (Publish(event.built),)
        case Published():
            if state is S.PUBLISHING:
                return S.LIVE, (LetGo(), Announce())
        case Lacked():
            if state in (S.RESERVING, S.PLANNING, S.PUBLISHING):
                return S.WAITING, (Release(), Relieve(event.error))
        case Relieved():
            if state is S.WAITING:
                return S.PLANNING, (RunPlanner(),)
            if state in ENDED:
                return state, ()
        case Failed():
            if state is S.PUBLISHING or state in MAKING:
                return S.FAILED, (LetGo(), Fail(event.error))
            if state in ENDED:
                return state, ()
        case Stopped():
            if state is S.REQUESTED:
                return S.DROPPED, (LetGo(),)
            if state in MAKING:
                return S.DROPPED, (LetGo(), Stop())
        case Retired():
            if state is S.LIVE:
                return S.RETIRING, (Withdraw(),)
        case Collected():
            if state is S.RETIRING:
                return S.DROPPED, (Forget(),)
        case _:
            assert_never(event)
    return None


def model_transition(state: ModelState, event: ModelEvent) -> tuple[ModelState, tuple[ModelEffect, ...]] | None:
    """Return the state of a model after an event, and the effects in order; None where the event cannot happen."""
    match event:
        case Asked():
            if state is M.LOADING:
                return state, (Wait(event.asker),)
            if state is M.LOADED:
                return state, (Welcome(event.asker),)
        case Read():
            if state is M.LOADING:
                return M.LOADED, (WelcomeAll(event.result),)
        case Twin():
            if state is M.LOADING:
                return M.GONE, (HandOver(event.other), Drop())
        case Failed():
            if state is M.LOADING:
                return M.GONE, (Refuse(event.error), Drop())
            if state is M.GONE:  # the job of a planning child that was ended
                return state, ()
        case Left():
            if state is not M.GONE:
                return M.GONE, (Drop(),)
        case _:
            assert_never(event)
    return None
