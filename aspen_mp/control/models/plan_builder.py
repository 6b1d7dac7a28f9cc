"""How a plan is made: by the plan cache where it has one, else by the model's planning child; then it is published."""

from __future__ import annotations

import math
from collections.abc import Callable

from aspen_mp.control.memory.async_alloc import AsyncAllocator
from aspen_mp.control.models.arena_pool import Spare
from aspen_mp.control.models.model_state import Asker, Model, Stage, report
from aspen_mp.control.models.publishing import Made, Publisher
from aspen_mp.control.planning import cache_reader
from aspen_mp.control.planning.plan_cache import Cache, Entry
from aspen_mp.control.planning.planner_child import Inspected, Job, PlanStage, Received, StagePlanned
from aspen_mp.control.planning.shape_buckets import Stretch
from aspen_mp.control.planning.weight_checks import Verifier
from aspen_mp.shm.errors import AspenError, ResourceLimitError
from aspen_mp.shm.scarcity import reason
from aspen_mp.shm.segments import Segment, spacious


class PlanBuilder:
    def __init__(
        self,
        publisher: Publisher,
        cache: Cache | None,
        reserver: AsyncAllocator,
        verifier: Verifier,
        prepared: Callable[[], bool],
        made: Callable[[Model, bytes, Stage], None],
        failed: Callable[[Model, bytes, AspenError], None],
        relieve: Callable[[Callable[[], None]], bool],
    ) -> None:
        """`relieve(then)`: as of `Pressure`.

        `prepared()` says whether a planning child can be forked at once, and sees to it. `made(model, key, stage)` or
        `failed(model, key, error)` says what became of a plan, now or later. Of one that nobody waits for it may never be said."""
        self._publisher = publisher
        self._cache = cache
        self._reserver = reserver
        self._verifier = verifier
        self._prepared = prepared
        self._made = made
        self._tell = failed
        self._relieve = relieve

    def _failed(self, model: Model, key: bytes, job: PlanStage, error: AspenError) -> None:
        """Where it was for want of memory and somebody waits, it is tried again as soon as plans that are not used have made room."""
        askers = model.planning.get(key)

        def again() -> None:
            if model.planning.get(key) is askers and model.users:
                self._plan(model, key, job)
            elif model.planning.get(key) is askers:
                self._tell(model, key, error)

        wanted = isinstance(error, ResourceLimitError) and bool(askers) and key != model.replanning
        if not (wanted and self._relieve(again)):
            self._tell(model, key, error)

    def kept(self, model: Model, job: PlanStage) -> Entry | None:
        """What the plan cache has for a job."""
        if self._cache is None or not model.digest:
            return None
        return cache_reader.find(self._cache, model.digest, model.options.key, job)

    def kept_range(self, model: Model, job: PlanStage, stretch: Stretch) -> Entry | None:
        """The same for a job that is to be for a range from now on: the larger one, if there is any."""
        entry = None
        for job.stretch in (stretch.widest, stretch.narrow):
            entry = entry or self.kept(model, job)
        job.stretch = stretch
        return entry

    def make(self, model: Model, key: bytes, job: PlanStage, askers: list[Asker], entry: Entry | None) -> None:
        """`entry`: of the plan cache."""
        model.planning[key] = askers
        if self._cache is None or entry is None or entry.note.arena_bytes <= 0:
            self._plan(model, key, job)
            return
        known = {file.id for file in model.files.values()}
        new = [file for file in entry.note.weights if file.id not in known]

        def verified() -> None:
            if model.planning.get(key) is askers and model.users:
                self._reserve_arenas(model, key, job, entry, [])
            elif model.planning.get(key) is askers:
                self._failed(model, key, job, AspenError("loading was cancelled"))

        self._verifier.verify(self._cache, new, verified)

    # ---- by a planning child

    def _plan(self, model: Model, key: bytes, job: PlanStage) -> None:
        askers = model.planning[key]
        again = key == model.replanning
        if again and not self._prepared():  # nobody waits for it: at one of the next looks
            if key in model.stages:
                model.stages[key].tried_at = -math.inf
            model.stop_replanning()
            return
        lent: list[Spare] = []
        if not job.search:
            lent = model.spares.lend()
            job.spares = [nbytes for nbytes, _ in lent]

        def done(result: Inspected | StagePlanned, segments: list[Received]) -> None:
            assert isinstance(result, StagePlanned)
            used = lent.pop(result.spare) if 0 <= result.spare < len(lent) else None
            model.spares.give_back(lent)
            if used is None:
                self._publish(model, key, job, Made(result, segments, checked=planned.checked))
            else:
                self._publish(model, key, job, Made(result, [*segments, ("arena", *used)], checked=planned.checked, reused=used[1]))

        def failed(error: AspenError) -> None:
            model.spares.give_back(lent)
            self._failed(model, key, job, error)

        planned = Job(job, done, failed, lambda progress: report(askers, progress))
        (model.behind if again else model.child).submit(planned)

    # ---- by the plan cache

    def _reserve_arenas(self, model: Model, key: bytes, job: PlanStage, entry: Entry, arenas: list[Segment]) -> None:
        """One after the other, as many as there are to be instances and memory is left for; then the plan cache's entry is used."""
        if len(arenas) == model.instances or (arenas and not spacious(entry.note.arena_bytes)):
            self._recall(model, key, job, entry, arenas)
            return
        askers = model.planning[key]

        def reserved(answer: Segment | AspenError) -> None:
            gone = not model.users or model.planning.get(key) is not askers
            if isinstance(answer, Segment):
                arenas.append(answer)
            if isinstance(answer, Segment) and not gone:
                self._reserve_arenas(model, key, job, entry, arenas)
                return
            for arena in arenas:
                arena.close()
            if model.planning.get(key) is askers:
                self._failed(model, key, job, answer if isinstance(answer, AspenError) else AspenError("loading was cancelled"))

        self._reserver.reserve("arena", entry.note.arena_bytes, reserved)

    def _recall(self, model: Model, key: bytes, job: PlanStage, entry: Entry, arenas: list[Segment]) -> None:
        """Uses the plan cache's entry, if what is needed is still there."""
        assert self._cache is not None
        names = {file.id for file in model.files.values()}
        try:
            found = None
            # A child that is busy is about to give numbers to weight segments too.
            if all(file.id in names for file in entry.note.weights) or (model.child.renew() and model.behind.renew()):
                found = cache_reader.stage(self._cache, entry, model.digest, model.files, len(model.weight_segments), arenas)
        except (AspenError, OSError, MemoryError) as error:
            self._failed(model, key, job, _known(error))
            return
        finally:
            for arena in arenas:
                arena.close()
        if found is None:
            self._plan(model, key, job)
            return
        job.search = entry.note.searched
        self._publish(model, key, job, Made(*found))

    def _publish(self, model: Model, key: bytes, job: PlanStage, made: Made) -> None:
        known = len(model.weight_segments)
        try:
            stage = self._publisher.publish(model, job, made)
        except (AspenError, OSError, MemoryError) as error:
            self._failed(model, key, job, _known(error))
            return
        if len(model.weight_segments) > known:  # which the other child does not know of; neither is busy while the other is
            (model.child if key == model.replanning else model.behind).renew()
        self._made(model, key, stage)


def _known(error: AspenError | OSError | MemoryError) -> AspenError:
    """What is told of an error: that the planner process has too little of something is nobody's own fault."""
    if isinstance(error, AspenError):
        return error
    return ResourceLimitError(f"the planner process lacks descriptors or memory: {reason(error)}")
