"""Makes plans: from the plan cache if it has the plan, else by a planning child of the model. Then they are published."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.models.arena_pool import Spare
from aspen_mp.control.models.eviction import Eviction
from aspen_mp.control.models.plan_machine import EventQueue, Machine
from aspen_mp.control.models.plan_states import (
    Built,
    BuiltPlan,
    Collected,
    Failed,
    Hit,
    Lacked,
    Missed,
    PlanEffect,
    PlanEvent,
    Published,
    Relieved,
    Reserved,
    Retired,
    Stopped,
    Verified,
    plan_transition,
)
from aspen_mp.control.models.plans import MAKING, Model, Plan, report
from aspen_mp.control.models.publishing import Publisher
from aspen_mp.control.planning import cache_reader
from aspen_mp.control.planning.plan_cache import Cache, Entry
from aspen_mp.control.planning.planner_child import Inspected, Job, Limits, PlanStage, Received, StagePlanned
from aspen_mp.control.planning.shape_buckets import WantedBucket
from aspen_mp.control.planning.weight_checks import Verifier
from aspen_mp.planner.cost.rates import Rates
from aspen_mp.shm.errors import AspenError, ResourceLimitError
from aspen_mp.shm.scarcity import reason
from aspen_mp.shm.segments import Segment, spacious


@dataclass(frozen=True, slots=True)
class PlanningSetup:
    """What plans are made with.

    | field | meaning |
    |---|---|
    | `rates`, `rates_name` | the rates of the cost model, and their name |
    | `limits` | limits of a planning child |
    | `speeds()` | speeds of the cores to plan for |
    | `prepare()` | is called before a planning child is forked |
    | `prepared()` | whether `prepare` takes no time any more; if it does, it is begun in pieces |
    | `preempt_ms` | the longest tile beside requests of a higher class, in ms; 0: no limit |
    | `replans` | whether plans are made again |
    """

    cache: Cache | None
    rates: Rates
    rates_name: str
    limits: Limits
    speeds: Callable[[], list[float]]
    prepare: Callable[[], None]
    prepared: Callable[[], bool] = lambda: True
    preempt_ms: float = 0.0
    replans: bool = True


class PlanBuilder(ABC):
    """Takes a plan from `requested` to `live`. A subclass knows what clients are told."""

    def __init__(
        self,
        resources: Resources,
        setup: PlanningSetup,
        publisher: Publisher,
        models: Mapping[int, Model],
        most_bytes: int,
        queue: EventQueue,
    ) -> None:
        """`models`: those that are loaded, by number. `most_bytes`: what plans may hold, 0: by what is free."""
        self._queue = queue
        self._machine: Machine[Plan, PlanEvent, PlanEffect] = Machine(queue, plan_transition, self.carry_out, resources.event_log)
        self._event_log = resources.event_log
        self._setup = setup
        self._cache = setup.cache
        self._models = models
        self._publisher = publisher
        self._table, self._reserver = resources.table, resources.reserver
        self._verifier = Verifier(resources.loop)
        self.eviction = Eviction(models, resources, self.retire, most_bytes)

    @abstractmethod
    def carry_out(self, plan: Plan, effect: PlanEffect) -> None:
        """Do what follows from a step of a plan."""

    def send(self, plan: Plan, event: PlanEvent) -> None:
        """Tell a plan's machine what has happened."""
        self._machine.send(plan, event)

    def kept(self, model: Model, job: PlanStage) -> Entry | None:
        """Return what the plan cache has for a job."""
        if self._cache is None or not model.digest:
            return None
        return cache_reader.find(self._cache, model.digest, model.request.cache_key, job)

    def kept_bucket(self, model: Model, job: PlanStage, bucket: WantedBucket) -> Entry | None:
        """Make the job one for a shape bucket, and return what the plan cache has for it: the plan of the largest bucket."""
        entry = None
        for job.bucket in bucket.choices:
            entry = entry or self.kept(model, job)
        job.bucket = bucket
        return entry

    def begin(self, plan: Plan, entry: Entry | None) -> None:
        """Have a requested plan made. `entry`: what the plan cache has for it."""
        usable = entry is not None and self._cache is not None and entry.note.arena_bytes > 0
        self.send(plan, Hit(entry) if usable and entry is not None else Missed())

    def retire(self, plan: Plan) -> None:
        self.send(plan, Retired())

    def retire_all(self, model: Model) -> None:
        for plan in list(model.live.values()):
            self.retire(plan)

    def give_up(self, model: Model, error: AspenError) -> None:
        """End all plans of the model that are being made."""
        for plan in list(model.making.values()):
            self.send(plan, Stopped() if plan.background else Failed(error))

    def close(self) -> None:
        self._verifier.close()

    # ---- from the plan cache

    def verify(self, plan: Plan, entry: Entry) -> None:
        assert self._cache is not None
        plan.entry = entry
        known = {file.id for file in plan.model.files.values()}
        new = [file for file in entry.note.weights if file.id not in known]
        self._verifier.verify(self._cache, new, partial(self.send, plan, Verified()))

    def reserve(self, plan: Plan) -> None:
        """Reserve arenas, one after the other: one for each instance, or as many as there is memory for. Then use the entry."""
        assert plan.entry is not None
        nbytes = plan.entry.note.arena_bytes
        if len(plan.arenas) == plan.model.instances or (plan.arenas and not spacious(nbytes)):
            self._recall(plan, plan.entry)
        else:
            self._reserver.reserve("arena", nbytes, lambda answer: self.send(plan, Reserved(answer)))

    def keep_arena(self, plan: Plan, answer: Segment | AspenError) -> None:
        if isinstance(answer, Segment):
            plan.arenas.append(answer)
            self.reserve(plan)
        else:
            self._lack(plan, answer)

    def discard(self, answer: Segment | AspenError) -> None:
        if isinstance(answer, Segment):
            answer.close()

    def release(self, plan: Plan) -> None:
        while plan.arenas:
            plan.arenas.pop().close()

    def _recall(self, plan: Plan, entry: Entry) -> None:
        """Use the plan cache's entry if all that it needs is still there."""
        assert self._cache is not None
        model = plan.model
        names = {file.id for file in model.files.values()}
        found = None
        try:
            # A child that is busy is about to give numbers to weight segments too.
            if all(file.id in names for file in entry.note.weights) or (model.child.renew() and model.background_child.renew()):
                found = cache_reader.stage(self._cache, entry, model.digest, model.files, len(model.weight_segments), plan.arenas)
        except (AspenError, OSError, MemoryError) as error:
            self._lack(plan, _known(error))
            return
        finally:
            self.release(plan)
        if found is None:
            self.send(plan, Missed())
            return
        plan.job.search = entry.note.searched
        self.send(plan, Built(BuiltPlan(*found)))

    # ---- by a planning child

    def plan(self, plan: Plan) -> None:
        model, job = plan.model, plan.job
        if plan.background and not plan.waiters and not self._setup.prepared():  # at one of the next looks
            if plan.key in model.live:
                model.live[plan.key].replans.last_at = -math.inf
            self.send(plan, Stopped())
            return
        lent: list[Spare] = []
        if not job.search:
            lent = model.spares.lend()
            job.spares = [nbytes for nbytes, _ in lent]

        def done(result: Inspected | StagePlanned, segments: list[Received]) -> None:
            assert isinstance(result, StagePlanned)
            used = lent.pop(result.spare) if 0 <= result.spare < len(lent) else None
            model.spares.give_back(lent)
            if used is not None:
                segments = [*segments, ("arena", *used)]
            reused = -1 if used is None else used[1]
            self.send(plan, Built(BuiltPlan(result, segments, checked=asked.checked, reused=reused)))

        def failed(error: AspenError) -> None:
            model.spares.give_back(lent)
            self._lack(plan, error)

        asked = Job(job, done, failed, lambda progress: report(plan.waiters, progress))
        (model.background_child if plan.background else model.child).submit(asked)

    # ---- either way

    def publish(self, plan: Plan, built: BuiltPlan) -> None:
        """Put the plan into the control table. What it replaces goes before it is live."""
        model, known = plan.model, len(plan.model.weight_segments)
        try:
            self._publisher.publish(plan, built)
        except (AspenError, OSError, MemoryError) as error:
            (model.background_child if plan.background else model.child).renew()  # the weights that it counts as known are gone
            self._lack(plan, _known(error))
            return
        if len(model.weight_segments) > known:  # which the other child does not know of; neither is busy while the other is
            (model.child if plan.background else model.background_child).renew()
        self.replace(plan)
        self.send(plan, Published())

    @abstractmethod
    def replace(self, plan: Plan) -> None:
        """Decide what requests find a published plan by, and end the plans that it takes the place of."""

    def _lack(self, plan: Plan, error: AspenError) -> None:
        """Say that the plan failed. For want of memory it is tried again, if somebody waits for it."""
        lacking = isinstance(error, ResourceLimitError) and plan.waiters
        self.send(plan, Lacked(error) if lacking else Failed(error))

    def relieve(self, plan: Plan, error: AspenError) -> None:
        """Have plans retired that are not used. Once their memory has come back, this plan is tried again."""
        if not self.eviction.relieve(partial(self.send, plan, Relieved())):
            self.send(plan, Failed(error))

    def withdraw(self, plan: Plan) -> None:
        """Requests find the plan no more; those that run on it go on to their ends. Its successor is no longer needed."""
        model = plan.model
        del model.live[plan.live_key]
        model.buckets.drop(plan.live_key)
        successor = model.begun.get(plan.live_key)
        if successor is not None and successor.background and successor.state in MAKING:
            self.send(successor, Stopped())
        if plan.answer.plan:
            self._publisher.withdraw(plan)
        else:
            self.send(plan, Collected())

    def forget(self, plan: Plan) -> None:
        plan.segments = []

    def let_go(self, plan: Plan) -> None:
        """The plan is not being made any more. Another one may have its place already."""
        self.release(plan)
        if plan.model.making.get(plan.key) is plan:
            del plan.model.making[plan.key]


def _known(error: AspenError | OSError | MemoryError) -> AspenError:
    """Return the error that clients are told: ResourceLimitError where the planner process lacks something."""
    if isinstance(error, AspenError):
        return error
    return ResourceLimitError(f"the planner process lacks descriptors or memory: {reason(error)}")
