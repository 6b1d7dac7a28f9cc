"""The life of a plan, and of the model that it belongs to: in which states they may be, what may happen to them there, and what follows.

A plan is for one set of shapes, or for a shape bucket (its key). The tables below say all that ever happens to one;
`aspen_mp/control/README.md` shows them as a picture. A live plan that is made again has a successor: another plan of the same key, with a
state of its own.

What the tables do not have is an error of ours: it is logged and fails the request that it happened to, and nothing else. Where
``ASPEN_MP_CHECK=on`` it raises, as does everything that `check_model` finds after a step.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from aspen_mp.control.models.arena_pool import ArenaPool
from aspen_mp.control.planning import child_main
from aspen_mp.control.planning.plan_cache import Entry, WeightFile
from aspen_mp.control.planning.planner_child import JobProgress, PlannerChild, PlanStage, WeightDirectory
from aspen_mp.control.planning.shape_buckets import Buckets, ServedBucket, extent_of
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm.errors import AspenError, RequestError
from aspen_mp.shm.segments import Segment

CHECKED = os.environ.get("ASPEN_MP_CHECK", "off") == "on"
"""Whether every step is checked, as tests want it."""


class State(StrEnum):
    """Of a plan."""

    REQUESTED = "requested"  # somebody wants it; nothing has begun
    CACHED = "cached"  # the plan cache has it: its weight files are being verified
    RESERVING = "reserving"  # memory for its arenas is being reserved
    PLANNING = "planning"  # a planning child makes it, or is going to
    WAITING = "waiting"  # for memory, which plans that were retired for it give back
    PUBLISHING = "publishing"  # it is put into the control table
    LIVE = "live"  # clients are told of it
    RETIRING = "retiring"  # clients are told of it no more; requests that run on it go on to their ends
    DROPPED = "dropped"  # nothing refers to it any more
    FAILED = "failed"  # there is no such plan


class ModelState(StrEnum):
    """Of a model."""

    LOADING = "loading"
    LOADED = "loaded"
    GONE = "gone"


class Event(StrEnum):
    """What happens to a plan or to a model."""

    ASKED = "asked"  # by a client
    HIT = "hit"  # the plan cache has it
    MISSED = "missed"  # the plan cache does not have it, or not all of it any more
    VERIFIED = "verified"  # its weight files were
    RESERVED = "reserved"  # an arena was, or could not be
    MADE = "made"  # there is something to publish
    PUBLISHED = "published"
    LACKED = "lacked"  # memory, for which other plans were retired
    RELIEVED = "relieved"  # that memory has come back
    FAILED = "failed"
    STOPPED = "stopped"  # it was made behind requests, and gives way to one
    RETIRED = "retired"  # it is replaced, or there are too many, or memory is wanted, or its model goes
    COLLECTED = "collected"  # no worker uses it any more
    READ = "read"  # the model's file was
    TWIN = "twin"  # the same model is loaded already
    LEFT = "left"  # nobody has the model loaded, or waits for it


Table = Mapping[tuple[str, Event], tuple[Any, str]]
"""State, event → the state after it, and the method that does what follows (empty: nothing does)."""

S, E = State, Event
MAKING: Final = (S.CACHED, S.RESERVING, S.PLANNING, S.WAITING)
ENDED: Final = (S.DROPPED, S.FAILED)
PLAN_TABLE: Final[Table] = {
    (S.REQUESTED, E.ASKED): (S.REQUESTED, "join"),
    (S.REQUESTED, E.HIT): (S.CACHED, "verify"),
    (S.REQUESTED, E.MISSED): (S.PLANNING, "plan"),
    (S.REQUESTED, E.STOPPED): (S.DROPPED, "let_go"),
    (S.CACHED, E.VERIFIED): (S.RESERVING, "reserve"),
    (S.RESERVING, E.RESERVED): (S.RESERVING, "keep_arena"),
    (S.RESERVING, E.MISSED): (S.PLANNING, "plan"),
    (S.RESERVING, E.MADE): (S.PUBLISHING, "publish"),
    (S.PLANNING, E.MADE): (S.PUBLISHING, "publish"),
    (S.WAITING, E.RELIEVED): (S.PLANNING, "plan"),
    (S.PUBLISHING, E.PUBLISHED): (S.LIVE, "answer"),
    (S.LIVE, E.ASKED): (S.LIVE, "tell"),
    (S.LIVE, E.RETIRED): (S.RETIRING, "withdraw"),
    (S.RETIRING, E.COLLECTED): (S.DROPPED, "forget"),
    **{(state, E.ASKED): (state, "join") for state in MAKING},
    **{(state, E.STOPPED): (S.DROPPED, "stop") for state in MAKING},
    **{(state, E.LACKED): (S.WAITING, "release") for state in (S.RESERVING, S.PLANNING, S.PUBLISHING)},
    **{(state, E.FAILED): (S.FAILED, "fail") for state in (*MAKING, S.PUBLISHING)},
    # What was under way when a plan was stopped or failed comes too late.
    **{(state, event): (state, "") for state in ENDED for event in (E.VERIFIED, E.RELIEVED, E.FAILED)},
    **{(state, E.RESERVED): (state, "discard") for state in ENDED},
}
MODEL_TABLE: Final[Table] = {
    (ModelState.LOADING, E.ASKED): (ModelState.LOADING, "wait"),
    (ModelState.LOADING, E.READ): (ModelState.LOADED, "welcome_all"),
    (ModelState.LOADING, E.TWIN): (ModelState.GONE, "hand_over"),
    (ModelState.LOADING, E.FAILED): (ModelState.GONE, "refuse"),
    (ModelState.LOADING, E.LEFT): (ModelState.GONE, "drop"),
    (ModelState.LOADED, E.ASKED): (ModelState.LOADED, "welcome"),
    (ModelState.LOADED, E.LEFT): (ModelState.GONE, "drop"),
    (ModelState.GONE, E.FAILED): (ModelState.GONE, ""),  # the job of a planning child that was ended
}


@dataclass(slots=True)
class Asker:
    """Whom to answer: `client` is the control table's number; `send` and `fail` do nothing once it has gone. `asked`: for a plan."""

    client: int
    request: int
    send: Callable[[protocol.Message], None]
    fail: Callable[[BaseException], None]
    asked: protocol.MakePlan | None = None


@dataclass(eq=False, slots=True)
class Plan:
    """A plan of a model, for the shapes of its `key`; `job`: what it is, or was, made by. `background`: nobody waited for it when it was
    begun, so it gives way to whatever clients want. `waiters`: who has asked for it and has no answer yet.

    While it is made from the plan cache: `entry`, and the `arenas` that were reserved. As soon as it is published: `answer`, as told to
    clients (its `id` is replaced each time), and `segments`, its own and its arenas'. `served_bucket`: of one for a shape bucket, whose
    answer is that where it is longest; `no_bucket`: it was to be one, and there is none for any bucket of that length. `cached`: it came
    from the cache. `longest_ns`: of its tiles.

    `tried_at`: when it was last made again, or that was tried; `failed`: how often in a row that has failed since, `why` the last time.
    `served`: requests, when it was last looked at. `mark`: of one behind data, what it had served when others were retired, requests that
    lie further back counted less. `asked_at`: when a client last asked for it; `seen`: requests that it had served when memory was last
    wanted."""

    model: Model
    key: bytes
    job: PlanStage
    background: bool = False
    state: State = field(default=S.REQUESTED, init=False)
    waiters: list[Asker] = field(default_factory=list, init=False)
    entry: Entry | None = field(default=None, init=False)
    arenas: list[Segment] = field(default_factory=list, init=False)
    answer: protocol.Planned = field(init=False)
    segments: list[int] = field(default_factory=list, init=False)
    served_bucket: ServedBucket | None = field(default=None, init=False)
    no_bucket: bool = field(default=False, init=False)
    cached: bool = field(default=False, init=False)
    longest_ns: float = field(default=0.0, init=False)
    tried_at: float = field(default=-math.inf, init=False)
    failed: int = field(default=0, init=False)
    why: str = field(default="", init=False)
    served: int = field(default=0, init=False)
    mark: float = field(default=0.0, init=False)
    asked_at: float = field(default_factory=time.monotonic, init=False)
    seen: int = field(default=0, init=False)

    @property
    def begun(self) -> bool:
        """Whether it is being made."""
        return self.state is not S.REQUESTED

    def extent(self, asked: protocol.MakePlan) -> int:
        """Of a plan for a range: the extent that the shapes of a request have which it serves."""
        bucket = self.job.bucket
        assert bucket is not None
        return extent_of(asked.stages[0], bucket.axes)

    def serves(self, asked: protocol.MakePlan) -> bool:
        """Whether a request that waited for the plan of a shape bucket has shapes that the finished plan serves."""
        if self.served_bucket is None:
            return self.job.stages == asked.stages
        return self.served_bucket.least <= self.extent(asked) <= self.served_bucket.most

    def tell(self, asker: Asker) -> None:
        answer = msgspec.structs.replace(self.answer, id=asker.request)
        served, bucket = self.served_bucket, self.job.bucket
        if served is not None:
            assert asker.asked is not None
            assert bucket is not None
            told = protocol.Bucket(served.least, served.most, bucket.axes, served.inputs, served.outputs)
            answer = msgspec.structs.replace(answer, extent=self.extent(asker.asked), bucket=told)
        asker.send(answer)


@dataclass(eq=False, slots=True)
class Model:
    """A model, its weights (in weight segments; a directory says where each packed one is, so that plans for other shapes reuse them), its
    plans by their keys, and who uses it.

    `child` plans what clients ask for, `behind` what nobody waits for. `waiting`: who is told when it is loaded; `users`: how often each
    client has it loaded. `live`: the plan that was asked for longest ago first; `making`: the others, until they are live or have failed.
    `share`: its weight where core time is short. `buckets`: which live plans serve many
    shapes; `ahead`: how often one of them was begun for nobody yet. `spares`: arenas of plans that were retired. `lost`: weight segments,
    by number in `weight_segments`, that are used no more because these files were cut short."""

    id: int
    key: tuple[Any, ...]
    source: child_main.ModelFile
    request: PlanRequest
    spares: ArenaPool
    name: str
    share: float = 1.0
    state: ModelState = field(default=ModelState.LOADING, init=False)
    child: PlannerChild = field(init=False)
    behind: PlannerChild = field(init=False)
    loaded: protocol.Loaded | None = field(default=None, init=False)
    waiting: list[Asker] = field(default_factory=list, init=False)
    users: dict[int, int] = field(default_factory=dict, init=False)
    weights: WeightDirectory = field(default_factory=dict, init=False)
    weight_segments: list[int] = field(default_factory=list, init=False)
    lost: dict[int, str] = field(default_factory=dict, init=False)
    digest: bytes = field(default=b"", init=False)
    files: dict[int, WeightFile] = field(default_factory=dict, init=False)
    live: dict[bytes, Plan] = field(default_factory=dict, init=False)
    making: dict[bytes, Plan] = field(default_factory=dict, init=False)
    buckets: Buckets = field(default_factory=Buckets, init=False)
    ahead: dict[bytes, int] = field(default_factory=dict, init=False)

    @property
    def instances(self) -> int:
        """How many of its requests may run at a time."""
        assert self.request.instances is not None, "`for_machine` has counted them"
        return self.request.instances

    @property
    def begun(self) -> dict[bytes, Plan]:
        """The plans that are being made."""
        return {key: plan for key, plan in self.making.items() if plan.begun}

    def about(self, error: AspenError) -> AspenError:
        """The error with the model's name, which its finder may not have known, and why the model had to be planned again, if it had."""
        name, text = f"model {self.name!r}", str(error)
        text = text if name in text else f"{name}: {text}"
        if self.lost:
            text += (
                f" (it was planned again because a file of its weights was cut short while it was in use: {list(self.lost.values())[-1]!r})"
            )
        return error if text == str(error) else type(error)(text)


def not_loaded(number: int) -> RequestError:
    """What a client is told that names a model which it has not loaded."""
    return RequestError(f"model {number} is not loaded")


def report(askers: Iterable[Asker], progress: JobProgress) -> None:
    for asker in askers:
        asker.send(protocol.Progress(asker.request, progress.step, progress.done, progress.total))


# ---- steps


class Machine:
    """Takes plans or models from state to state, as its table says; subclasses have the methods that the table names. Each gets the plan or
    model, and what came with the event."""

    table: Table
    seen: Final[set[tuple[str, Event]]] = set()
    """The steps that were taken since checking was switched on."""
    _going_on: Final[list[Model]] = []

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log

    def step(self, subject: Plan | Model, event: Event, *about: Any) -> None:
        row = self.table.get((subject.state, event))
        if row is None:
            self._misstep(subject, event, about)
            return
        state, subject.state = subject.state, row[0]
        if not CHECKED:
            if row[1]:
                getattr(self, row[1])(subject, *about)
            return
        self.seen.add((state, event))
        outermost = not self._going_on
        self._going_on.append(subject.model if isinstance(subject, Plan) else subject)
        try:
            if row[1]:
                getattr(self, row[1])(subject, *about)
        finally:
            touched = list(self._going_on)
            if outermost:
                self._going_on.clear()
        if isinstance(subject, Plan):
            check_plan(subject)
        if outermost:
            for model in set(touched):
                check_model(model)

    def _misstep(self, subject: Plan | Model, event: Event, about: tuple[Any, ...]) -> None:
        """What the table does not have. Whoever waits for it is told."""
        name = _name(subject)
        error = AspenError(f"{name}: {event.value!r} cannot happen to what is {subject.state.value!r}: an error of the planner process")
        self._event_log.warning("misstep", about=name, state=subject.state.value, what=event.value)
        if CHECKED:
            raise AssertionError(str(error))
        for asker in about:
            if isinstance(asker, Asker):
                asker.fail(error)
        if event is not E.FAILED and (subject.state, E.FAILED) in self.table:
            self.step(subject, E.FAILED, error)


def _name(subject: Plan | Model) -> str:
    if isinstance(subject, Model):
        return f"model {subject.name!r}"
    number = subject.answer.plan if hasattr(subject, "answer") else 0
    shapes = [{bind.name: bind.shape for bind in stage} for stage in subject.job.stages]
    return f"model {subject.model.name!r}, plan {number or 'without a number'} for {shapes}"


# ---- checks


def check_plan(plan: Plan) -> None:
    """Raises AssertionError where a plan holds what it may not hold in its state."""
    model = plan.model
    rules = {
        "only a plan that is being made has waiters": not plan.waiters or plan.state in (S.REQUESTED, *MAKING, S.PUBLISHING),
        "only a plan that is being reserved for has arenas of its own": not plan.arenas or plan.state is S.RESERVING,
        "a live plan can be told of": plan.state is not S.LIVE or bool(plan.segments) == bool(plan.answer.plan),
        "a plan that has ended holds nothing": plan.state not in ENDED or not (plan.segments or plan.waiters or plan.arenas),
        "a plan is among the live ones while it is live": (model.live.get(plan.key) is plan) == (plan.state is S.LIVE),
        "a plan is among those in the making until it is live or has ended": (model.making.get(plan.key) is plan)
        == (plan.state in (S.REQUESTED, *MAKING, S.PUBLISHING)),
    }
    _hold(plan, rules)


def check_model(model: Model) -> None:
    """The same for a model and all of its plans, between two steps."""
    state, begun = model.state, list(model.begun.values())
    behind = [plan for plan in begun if plan.background]
    turns = {key for key, plan in model.making.items() if plan.background and not plan.begun}
    of_buckets = {key for rows in model.buckets.plans.values() for _, _, key in rows}
    rules = {
        "a model that is loading is waited for, and has no plans": state is not ModelState.LOADING
        or (model.waiting and not (model.users or model.live or model.making or model.loaded)),
        "a loaded model has users": state is not ModelState.LOADED or (model.users and model.loaded and not model.waiting),
        "a model that has gone has nothing": state is not ModelState.GONE or not (model.waiting or model.live or model.making),
        "no plan is being published": all(plan.state is not S.PUBLISHING for plan in begun),
        "what nobody waits for is made behind requests": all(plan.background or plan.waiters for plan in begun),
        "one plan is made behind requests, and only while no other is made": not behind or len(begun) == 1,
        "a plan waits for its turn only where there is none": not turns & model.live.keys(),
        "buckets are served by live plans": of_buckets == {key for key, plan in model.live.items() if plan.served_bucket is not None},
        "keys are those of their plans": all(plan.key == key for plans in (model.live, model.making) for key, plan in plans.items()),
    }
    _hold(model, rules)
    for plan in (*model.live.values(), *model.making.values()):
        check_plan(plan)


def _hold(subject: Plan | Model, rules: Mapping[str, object]) -> None:
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise AssertionError(f"{_name(subject)}, {subject.state.value}: not so: {'; '.join(broken)}")
