"""Records of models and plans, and the states that they are in.

A plan serves one set of shapes, or a shape bucket. A live plan that is made again has a successor: another plan with the same key and a
state of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from aspen_mp.control.models.arena_pool import ArenaPool
from aspen_mp.control.planning import child_main
from aspen_mp.control.planning.plan_cache import Entry, WeightFile
from aspen_mp.control.planning.planner_child import JobProgress, PlannerChild, PlanStage, WeightDirectory
from aspen_mp.control.planning.shape_buckets import ServedBucket, StageBuckets, family, flat, lengths_of, structure
from aspen_mp.control.wire import protocol
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm.errors import AspenError, RequestError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import clock


class State(StrEnum):
    """States of a plan."""

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
    """States of a model."""

    LOADING = "loading"
    LOADED = "loaded"
    GONE = "gone"


MAKING: Final = (State.CACHED, State.RESERVING, State.PLANNING, State.WAITING)
"""States in which work for a plan is under way."""
ENDED: Final = (State.DROPPED, State.FAILED)


@dataclass(slots=True)
class Asker:
    """A client that waits for an answer.

    `client` is its number in the control table. `send` and `fail` do nothing once it has gone. `asked` is its request for a plan.
    """

    client: int
    request: int
    send: Callable[[protocol.Message], None]
    fail: Callable[[BaseException], None]
    asked: protocol.MakePlan | None = None


@dataclass(slots=True)
class Replans:
    """Attempts to make a live plan again: when the last one was, how many failed in a row since the plan was published, and why the last
    of them did. `served`: requests served when an attempt was last considered."""

    last_at: float = -math.inf
    failed: int = 0
    why: str = ""
    served: int = 0


@dataclass(slots=True)
class Usage:
    """When a client last asked for a plan, and requests served when memory was last wanted. `average`: for a plan behind data, of the
    requests served at each time that another one was retired; later times count more."""

    asked_at: float = field(default_factory=lambda: clock.monotonic())
    served: int = 0
    average: float = 0.0


@dataclass(slots=True)
class PlansMade:
    """Plans of a model since it was loaded, as `wire.status.PlansMade` describes them."""

    one_shape: int = 0
    range: int = 0
    cached: int = 0
    replaced: int = 0

    def add(self, plan: Plan, *, replaces: bool) -> None:
        """Count a plan that is published. `replaces`: whether it takes the place of another one."""
        if plan.cached:
            self.cached += 1
        elif plan.served_bucket is None:
            self.one_shape += 1
        else:
            self.range += 1
        self.replaced += replaces and plan.job.search


@dataclass(eq=False, slots=True)
class Plan:
    """A plan of a model.

    | field | meaning |
    |---|---|
    | `key` | what requests find the plan by while it is being made; it never changes |
    | `live_key` | what requests find the live plan by: the same, unless the plan serves less of a shape bucket than was wanted |
    | `job` | what the plan is made by |
    | `background` | Nobody waited for the plan when it was begun, so it gives way to whatever clients want. |
    | `waiters` | who has asked for the plan and has no answer yet |
    | `entry`, `arenas` | the plan cache's entry, and the arenas reserved so far; only while the plan is made from the plan cache |
    | `answer` | what clients are told of a published plan, with another `id` each time |
    | `segments` | a published plan's own segment, then its arenas |
    | `served_bucket` | the bucket that the plan serves; `answer` is that of its largest extents |
    | `no_bucket` | The model has no plan for any bucket of the wanted length. |
    | `why` | why the plan does not serve the wanted bucket |
    | `cached` | The plan came from the plan cache. |
    | `longest_ns`, `work_ns` | how long its longest tile takes, and how long all tiles are expected to take |
    | `replans` | attempts to make the plan again |
    | `usage` | how much the plan is used, by which plans are chosen to be retired |
    """

    model: Model
    key: bytes
    job: PlanStage
    background: bool = False
    state: State = field(default=State.REQUESTED, init=False)
    live_key: bytes = field(default=b"", init=False)
    waiters: list[Asker] = field(default_factory=list, init=False)
    entry: Entry | None = field(default=None, init=False)
    arenas: list[Segment] = field(default_factory=list, init=False)
    answer: protocol.Planned = field(init=False)
    segments: list[int] = field(default_factory=list, init=False)
    served_bucket: ServedBucket | None = field(default=None, init=False)
    no_bucket: bool = field(default=False, init=False)
    why: str = field(default="", init=False)
    cached: bool = field(default=False, init=False)
    longest_ns: float = field(default=0.0, init=False)
    work_ns: float = field(default=0.0, init=False)
    replans: Replans = field(default_factory=Replans, init=False)
    usage: Usage = field(default_factory=Usage, init=False)

    @property
    def begun(self) -> bool:
        """Whether its making has begun."""
        return self.state is not State.REQUESTED

    def lengths(self, asked: protocol.MakePlan) -> tuple[int, ...]:
        """Return the request's lengths in this plan's bucket."""
        bucket = self.job.bucket
        assert bucket is not None
        return lengths_of(flat(asked.stages), bucket.axes)

    def serves(self, asked: protocol.MakePlan) -> bool:
        """Whether the finished plan serves a request that waited for it; it may serve less than the wanted bucket."""
        if self.served_bucket is None:
            return self.job.stages == asked.stages
        return self._extents(self.served_bucket, asked) is not None

    def _extents(self, served: ServedBucket, asked: protocol.MakePlan) -> tuple[int, ...] | None:
        """Return the extents of a request that has asked for this plan; None where the plan does not serve them."""
        assert self.job.bucket is not None
        one, axes = served.range, self.job.bucket.axes
        alike = structure(asked.stages, asked.capacities) == structure(self.job.stages, self.job.capacities)
        alike = alike and family(flat(asked.stages), axes, one.unit) == family(flat(self.job.stages), axes, one.unit)
        return one.extents(self.lengths(asked)) if alike else None

    def tell(self, asker: Asker) -> None:
        answer = msgspec.structs.replace(self.answer, id=asker.request)
        served, bucket = self.served_bucket, self.job.bucket
        if served is not None:
            assert asker.asked is not None
            assert bucket is not None
            extents, one = self._extents(served, asker.asked), served.range
            assert extents is not None
            shapes = (served.values, served.inputs, served.outputs)
            told = protocol.Bucket(one.least, one.most, one.unit, bucket.axes, *shapes, served.lengths)
            answer = msgspec.structs.replace(answer, extent=served.word(extents), bucket=told)
        asker.send(answer)


@dataclass(eq=False, slots=True)
class Model:
    """A model, its weights, its plans, and who uses it.

    | field | meaning |
    |---|---|
    | `share` | the model's weight where core time is short |
    | `child` | the planning child for what clients ask for |
    | `background_child` | the planning child for what nobody waits for |
    | `waiting` | who is told when the model is loaded |
    | `users` | how often each client has the model loaded |
    | `weights` | where each packed weight is, so that plans for other shapes use it too |
    | `lost` | weight segments that are no longer used because their file was cut short: index in `weight_segments` to path |
    | `live` | the live plans by `live_key`; the one that was asked for longest ago comes first |
    | `making` | all other plans by `key`, until they are live or have ended |
    | `buckets` | which live plans serve shape buckets |
    | `ahead` | how often a plan for a bucket was begun before anybody asked for it, by key |
    | `spares` | arenas of retired plans, kept for other plans |
    | `made` | how many plans there have been |
    """

    id: int
    key: tuple[Any, ...]
    source: child_main.ModelFile
    request: PlanRequest
    spares: ArenaPool
    name: str
    share: float = 1.0
    state: ModelState = field(default=ModelState.LOADING, init=False)
    child: PlannerChild = field(init=False)
    background_child: PlannerChild = field(init=False)
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
    buckets: StageBuckets = field(default_factory=StageBuckets, init=False)
    ahead: dict[bytes, int] = field(default_factory=dict, init=False)
    made: PlansMade = field(default_factory=PlansMade, init=False)

    @property
    def instances(self) -> int:
        """How many requests of the model may run at a time."""
        assert self.request.instances is not None, "`for_machine` has counted them"
        return self.request.instances

    @property
    def begun(self) -> dict[bytes, Plan]:
        """The plans whose making has begun."""
        return {key: plan for key, plan in self.making.items() if plan.begun}

    def about(self, error: AspenError) -> AspenError:
        """Return the error with the model's name, and with the reason why the model was planned again if it was."""
        name, text = f"model {self.name!r}", str(error)
        text = text if name in text else f"{name}: {text}"
        if self.lost:
            text += (
                f" (it was planned again because a file of its weights was cut short while it was in use: {list(self.lost.values())[-1]!r})"
            )
        return error if text == str(error) else type(error)(text)


def not_loaded(number: int) -> RequestError:
    """Return the error for a client that names a model which it has not loaded."""
    return RequestError(f"model {number} is not loaded")


def report(askers: Iterable[Asker], progress: JobProgress) -> None:
    """Tell all that wait how far a planning child is."""
    for asker in askers:
        asker.send(protocol.Progress(asker.request, progress.step, progress.done, progress.total))
