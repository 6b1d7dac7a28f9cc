"""How a plan is made: by the plan cache where it has one, else by the model's planning child; then it is published."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.models.arena_pool import Spare
from aspen_mp.control.models.eviction import Eviction
from aspen_mp.control.models.plan_states import PLAN_TABLE, Event, Machine, Model, Plan, report
from aspen_mp.control.models.publishing import Made, Publisher
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
    """What plans are made with. `rates`: of the cost model, and `rates_name`, theirs. `limits`: of a planning child. `speeds()` are
    those of the cores to plan for. `prepare()` comes before a planning child is forked; `prepared()` says whether that takes no time any
    more, and sees to it. `preempt_ms`: how long tiles are to be at most where requests of a higher class come, 0: as long as they are."""

    cache: Cache | None
    rates: Rates
    rates_name: str
    limits: Limits
    speeds: Callable[[], list[float]]
    prepare: Callable[[], None]
    prepared: Callable[[], bool] = lambda: True
    preempt_ms: float = 0.0


class PlanBuilder(Machine):
    """Takes a plan from `requested` to `live`; what clients are told then, a subclass knows (`answer`, `fail`, `stop`)."""

    table = PLAN_TABLE

    def __init__(
        self, resources: Resources, setup: PlanningSetup, publisher: Publisher, models: Mapping[int, Model], most_bytes: int
    ) -> None:
        """`models`: those that are loaded, by number. `most_bytes`: what plans may hold, 0: by what is free."""
        super().__init__(resources.event_log)
        self._setup = setup
        self._cache = setup.cache
        self._models = models
        self._publisher = publisher
        self._table, self._reserver = resources.table, resources.reserver
        self._verifier = Verifier(resources.loop)
        self.eviction = Eviction(models, resources, self.retire, most_bytes)

    def kept(self, model: Model, job: PlanStage) -> Entry | None:
        """What the plan cache has for a job."""
        if self._cache is None or not model.digest:
            return None
        return cache_reader.find(self._cache, model.digest, model.request.cache_key, job)

    def kept_bucket(self, model: Model, job: PlanStage, bucket: WantedBucket) -> Entry | None:
        """The same for a job that is to be for a range from now on: the largest one that there is."""
        entry = None
        for job.bucket in bucket.choices:
            entry = entry or self.kept(model, job)
        job.bucket = bucket
        return entry

    def begin(self, plan: Plan, entry: Entry | None) -> None:
        """Has a requested plan made. `entry`: of the plan cache."""
        if self._cache is None or entry is None or entry.note.arena_bytes <= 0:
            self.step(plan, Event.MISSED)
        else:
            plan.entry = entry
            self.step(plan, Event.HIT)

    def retire(self, plan: Plan) -> None:
        self.step(plan, Event.RETIRED)

    def retire_all(self, model: Model) -> None:
        for plan in list(model.live.values()):
            self.retire(plan)

    def give_up(self, model: Model, error: AspenError) -> None:
        """Nobody wants any plan of the model any more."""
        for plan in list(model.making.values()):
            if plan.background:
                self.step(plan, Event.STOPPED)
            else:
                self.step(plan, Event.FAILED, error)

    def close(self) -> None:
        self._verifier.close()

    # ---- by the plan cache

    def verify(self, plan: Plan) -> None:
        assert self._cache is not None
        assert plan.entry is not None
        known = {file.id for file in plan.model.files.values()}
        new = [file for file in plan.entry.note.weights if file.id not in known]
        self._verifier.verify(self._cache, new, partial(self.step, plan, Event.VERIFIED))

    def reserve(self, plan: Plan) -> None:
        """One arena after the other, as many as there are to be instances and memory is left for; then the plan cache's entry is used."""
        assert plan.entry is not None
        nbytes = plan.entry.note.arena_bytes
        if len(plan.arenas) == plan.model.instances or (plan.arenas and not spacious(nbytes)):
            self._recall(plan, plan.entry)
        else:
            self._reserver.reserve("arena", nbytes, partial(self.step, plan, Event.RESERVED))

    def keep_arena(self, plan: Plan, answer: Segment | AspenError) -> None:
        if isinstance(answer, Segment):
            plan.arenas.append(answer)
            self.reserve(plan)
        else:
            self._lack(plan, answer)

    def discard(self, plan: Plan, answer: Segment | AspenError) -> None:
        if isinstance(answer, Segment):
            answer.close()

    def release(self, plan: Plan) -> None:
        while plan.arenas:
            plan.arenas.pop().close()

    def _recall(self, plan: Plan, entry: Entry) -> None:
        """Uses the plan cache's entry, if what is needed is still there."""
        assert self._cache is not None
        model = plan.model
        names = {file.id for file in model.files.values()}
        found = None
        try:
            # A child that is busy is about to give numbers to weight segments too.
            if all(file.id in names for file in entry.note.weights) or (model.child.renew() and model.behind.renew()):
                found = cache_reader.stage(self._cache, entry, model.digest, model.files, len(model.weight_segments), plan.arenas)
        except (AspenError, OSError, MemoryError) as error:
            self._lack(plan, _known(error))
            return
        finally:
            self.release(plan)
        if found is None:
            self.step(plan, Event.MISSED)
            return
        plan.job.search = entry.note.searched
        self.step(plan, Event.MADE, Made(*found))

    # ---- by a planning child

    def plan(self, plan: Plan) -> None:
        model, job = plan.model, plan.job
        if plan.background and not plan.waiters and not self._setup.prepared():  # at one of the next looks
            if plan.key in model.live:
                model.live[plan.key].tried_at = -math.inf
            self.step(plan, Event.STOPPED)
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
            self.step(plan, Event.MADE, Made(result, segments, checked=asked.checked, reused=-1 if used is None else used[1]))

        def failed(error: AspenError) -> None:
            model.spares.give_back(lent)
            self._lack(plan, error)

        asked = Job(job, done, failed, lambda progress: report(plan.waiters, progress))
        (model.behind if plan.background else model.child).submit(asked)

    # ---- either

    def publish(self, plan: Plan, made: Made) -> None:
        model, known = plan.model, len(plan.model.weight_segments)
        try:
            self._publisher.publish(plan, made)
        except (AspenError, OSError, MemoryError) as error:
            self._lack(plan, _known(error))
            return
        if len(model.weight_segments) > known:  # which the other child does not know of; neither is busy while the other is
            (model.child if plan.background else model.behind).renew()
        self.step(plan, Event.PUBLISHED)

    def _lack(self, plan: Plan, error: AspenError) -> None:
        """It failed. Where that was for want of memory and somebody waits, it is tried again as soon as plans that are not used have made
        room."""
        if isinstance(error, ResourceLimitError) and plan.waiters and self.eviction.relieve(partial(self.step, plan, Event.RELIEVED)):
            self.step(plan, Event.LACKED)
        else:
            self.step(plan, Event.FAILED, error)

    def withdraw(self, plan: Plan) -> None:
        """What was to take its place is no longer needed. Requests that run on it go on to their ends."""
        model = plan.model
        del model.live[plan.key]
        model.buckets.drop(plan.key)
        successor = model.begun.get(plan.key)
        if successor is not None and successor.background:
            self.step(successor, Event.STOPPED)
        if plan.answer.plan:
            self._publisher.withdraw(plan)
        else:
            self.step(plan, Event.COLLECTED)

    def forget(self, plan: Plan) -> None:
        plan.segments = []

    def let_go(self, plan: Plan) -> None:
        """It is in the making no more."""
        self.release(plan)
        del plan.model.making[plan.key]


def _known(error: AspenError | OSError | MemoryError) -> AspenError:
    """What is told of an error: that the planner process has too little of something is nobody's own fault."""
    if isinstance(error, AspenError):
        return error
    return ResourceLimitError(f"the planner process lacks descriptors or memory: {reason(error)}")
