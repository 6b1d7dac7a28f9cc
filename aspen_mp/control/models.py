"""Loaded models and their plans: who uses them, which segments they hold, what is being planned.

A model that several clients load with the same options from an unchanged file is one model. Its weights lie in weight segments; a directory
says where each packed weight is, so that plans for other shapes reuse them. A plan has a segment of its own and one arena an instance.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from aspen_mp.control import planning, protocol, recall
from aspen_mp.control.cache import Cache, Entry, WeightFile
from aspen_mp.control.jobs import Inspect as InspectJob
from aspen_mp.control.jobs import Inspected, Job, JobProgress, Limits, PlannerChild, PlanStage, Received, StagePlanned, WeightDirectory
from aspen_mp.control.journal import Journal
from aspen_mp.control.loop import Loop
from aspen_mp.control.options import Options
from aspen_mp.control.plans import Plans
from aspen_mp.control.ranges import LEAST_EXTENT, Ranges, Stretch, Stretched, extent_of
from aspen_mp.control.reserving import Reserver
from aspen_mp.control.segments import SegmentStore
from aspen_mp.control.speeds import alike
from aspen_mp.planner.rates import Rates
from aspen_mp.shm import _control
from aspen_mp.shm.errors import AspenError, RequestError, ResourceLimitError
from aspen_mp.shm.scarcity import reason
from aspen_mp.shm.segments import Segment
from aspen_mp.workers._isa import sums_bytes, sums_pairs, vectors

MAX_PLANS = 256
"""Plans of one model: beyond, the one that was asked for longest ago is dropped. Clients that still use it ask for it again."""
MAX_PLAN_BYTES = 4 << 30
"""The same for what the plans of a model and their arenas take together."""
MAX_BEHIND = 64
MAX_BEHIND_BYTES = 512 << 20
"""The same for plans of stages whose shapes follow from data, such as a number of detections: most are never asked for again. Those that
have served least of late are dropped."""
MAX_SPARES = 4
MAX_SPARE_BYTES = 512 << 20
"""Arenas of plans behind data that were dropped wait for the next such plan of the model: to reserve memory takes longer than to plan."""
SERVED_OFTEN = 64
SERVED_NS = 2e9
SERVED_LEAST = 4
"""After so many requests a plan gets the search that it did not get at first, when somebody was waiting for it, and would again for the
next length of a text or number of detections; after fewer, but for the least, where they have taken so long together. The same for shapes
that a plan for a range has served: they get one of their own."""
TRIES_AHEAD = 3
"""So many times a range is planned before anybody asks for it; who asks for something else meanwhile does not wait for that."""
MAX_OFTEN = 64
"""So many shapes wait at most for plans of their own."""
MOST_OF_ALL = 0.6
"""The plans of all models may take so much of what there is for them: places in the runtime's tables, and descriptors. Beyond, the model
with the most plans loses the one that was asked for longest ago. The rest is for plans that are in use after that, and for clients."""
REPLAN_S = 20.0
"""A plan is not made again sooner after the last time: that costs about a second of a core, which requests want. Where it could not be made
again, twice as long, and so on, up to:"""
MOST_REPLAN_S = 3600.0
REPLAN_NICE = 10
"""Of the processes that make plans again: requests come first."""
REPLAN_PATIENCE = 10.0
"""How many times as long as others they may say nothing, because they get what requests leave."""


@dataclass(slots=True)
class Asker:
    """Whom to answer: `client` is the control table's number; `send` and `fail` do nothing once it has gone. `asked`: for a plan."""

    client: int
    request: int
    send: Callable[[protocol.Message], None]
    fail: Callable[[BaseException], None]
    asked: protocol.Plan | None = None


@dataclass(slots=True)
class Stage:
    """A published plan, as told to clients (`answer.id` is replaced each time), and what it needs. `job`: what it was made by. `stretched`:
    of one for a range of a length, whose answer is that where it is longest. `cached`: it came from the cache. `searched`: its tiles were.
    `behind`: its shapes follow from data; then `mark` is what it had served when others were dropped, requests that lie further back
    counted less.

    `speeds`: of the cores that it was made for. `tried_at`: when it was last made again for others, or that was tried; `failed`: how often
    in a row that has failed since, `why` the last time. `served`: requests, when it was last looked at."""

    answer: protocol.Planned
    segments: list[int]
    job: PlanStage
    stretched: Stretched | None = None
    cached: bool = False
    speeds: list[float] = field(default_factory=list)
    tried_at: float = -math.inf
    failed: int = 0
    why: str = ""
    served: int = 0
    searched: bool = True
    behind: bool = False
    mark: float = 0.0


@dataclass(eq=False, slots=True)
class Model:
    """`child` plans what clients ask for, `behind` makes plans again, those for shapes that come `often`, and those for ranges
    beside others; `replanning`: which one it is at. `ranges`: plans that serve many shapes; `ahead`: how often one of them was planned
    for nobody yet. `sparing`: arenas that are to be used again when no request uses them any more, `spares`:
    those that are (bytes and descriptors)."""

    id: int
    key: tuple[Any, ...]
    source: planning.Source
    instances: int
    options: Options
    child: PlannerChild
    behind: PlannerChild
    name: str = ""
    loaded: protocol.Loaded | None = None
    waiting: list[Asker] = field(default_factory=list)
    users: dict[int, int] = field(default_factory=dict)
    weights: WeightDirectory = field(default_factory=dict)
    weight_segments: list[int] = field(default_factory=list)
    digest: bytes = b""
    files: dict[int, WeightFile] = field(default_factory=dict)
    stages: dict[bytes, Stage] = field(default_factory=dict)
    planning: dict[bytes, list[Asker]] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=Ranges)
    often: dict[bytes, protocol.Plan] = field(default_factory=dict)
    ahead: dict[bytes, int] = field(default_factory=dict)
    replanning: bytes | None = None
    sparing: set[int] = field(default_factory=set)
    spares: list[tuple[int, int]] = field(default_factory=list)


class ModelStore:
    def __init__(
        self,
        loop: Loop,
        table: _control.ControlTable,
        segments: SegmentStore,
        speeds: Callable[[], list[float]],
        changed: Callable[[], None],
        prepare: Callable[[], None],
        cache: Cache | None,
        rates: tuple[Rates, str],
        limits: Limits,
        reserver: Reserver,
        added: Callable[[int, str], None],
        journal: Journal,
        prepared: Callable[[], bool] = lambda: True,
    ) -> None:
        """`speeds()` are those of the cores to plan for; `changed()` publishes, and collects what is no longer used; `prepare()` comes
        before a planning child is forked; `prepared()` says whether that takes no time any more, and sees to it. `rates`: of the cost
        model, and their name. `limits`: of such a child. `added(plan, model)` comes before a plan is announced."""
        self._added = added
        self._journal = journal
        self._limits = limits
        self._reserver = reserver
        self._rates, self._calibration = rates
        self._prepare = prepare
        self._prepared = prepared
        self._cache = cache
        self._loop = loop
        self._table = table
        self._segments = segments
        self._speeds = speeds
        self._changed = changed
        self._models: dict[int, Model] = {}
        self.plans = Plans(loop, segments)
        self._by_key: dict[tuple[Any, ...], Model] = {}
        self._next = 1
        self._leaving_weights: dict[int, list[int]] = {}

    # ---- loading

    def load(self, message: protocol.Load, fds: list[int], asker: Asker) -> None:
        """Answers with `Loaded`, at once if the same model is there already. Takes over `fds`."""
        try:
            source, key = _source(message, fds)
        except BaseException:
            protocol.close_all(fds)
            raise
        model = self._by_key.get(key) if key[0] == "path" else None
        if model is not None and not model.source.changed():
            if model.loaded is not None:
                self._welcome(model, asker)
            else:
                model.waiting.append(asker)
            return
        number, self._next = self._next, self._next + 1
        pairs = message.precision == "bf16" and sums_pairs()
        strassen = vectors() if message.winograd else ""
        options = Options(message.precision, message.winograd, message.planning, strassen, sums_bytes(), pairs)
        name = message.name or source.name
        model = Model(number, key, source, message.instances, options, None, None, name)  # type: ignore[arg-type]
        serve = partial(planning.serve, model, self._cache, self._rates)
        model.child = PlannerChild(self._loop, name, serve, source.keep, self._prepare, self._limits)
        behind = replace(self._limits, patience_s=REPLAN_PATIENCE * self._limits.patience_s, nice=REPLAN_NICE)
        model.behind = PlannerChild(self._loop, name, serve, source.keep, self._prepare, behind)
        model.waiting.append(asker)
        self._models[number] = model
        self._by_key[key] = model
        known = self._cache.model(source.path, source.touched) if self._cache is not None and source.path else None
        if known is not None:
            model.digest = known.digest
            self._inspected(model, Inspected(known.name, b"", known.inputs, known.outputs, known.files[1:]))
            return
        model.child.submit(
            Job(
                InspectJob(),
                lambda result, segments: self._inspected(model, result),
                lambda error: self._failed(model, error),
                lambda progress: _report(model.waiting, progress),
            )
        )

    def _inspected(self, model: Model, result: Inspected | StagePlanned) -> None:
        assert isinstance(result, Inspected)
        waiting, model.waiting = model.waiting, []
        model.source.external = result.external
        known = model
        if result.digest:
            known = self._by_key.setdefault(("digest", result.digest, *model.key[2:]), model)
            model.digest = result.digest
        if known is model:
            model.loaded = protocol.Loaded(0, model.id, model.name or result.name, result.inputs, result.outputs, model.instances)
            self._by_key.pop(model.key, None)
            model.key = ("digest", result.digest, *model.key[2:]) if result.digest else model.key
            self._by_key[model.key] = model
        for asker in waiting:
            self._welcome(known, asker)
        if not model.users:
            self._drop(model)

    def _welcome(self, model: Model, asker: Asker) -> None:
        assert model.loaded is not None
        model.users[asker.client] = model.users.get(asker.client, 0) + 1
        asker.send(msgspec.structs.replace(model.loaded, id=asker.request))

    def _failed(self, model: Model, error: AspenError) -> None:
        waiting, model.waiting = model.waiting, []
        for asker in waiting:
            asker.fail(_about(model, error))
        self._drop(model)

    def adopt(self, number: int, asker: Asker) -> None:
        """Answers with `Loaded` for a model that another client has loaded."""
        model = self._models.get(number)
        if model is None or model.loaded is None:
            raise RequestError(f"model {number} is no longer loaded: somebody must hold it until another process has taken it over")
        self._welcome(model, asker)

    # ---- planning

    def plan(self, message: protocol.Plan, asker: Asker) -> None:
        model = self._models.get(message.model)
        if model is None or asker.client not in model.users:
            raise RequestError(f"model {message.model} is not loaded")
        asker.asked = message
        key = own = msgspec.msgpack.encode((message.stages, message.capacities))
        by_shape = _by_shape(message)
        if by_shape:
            model.ranges.learn(message.stages[0])
        if key not in model.stages and by_shape and not message.ahead and (found := model.ranges.find(message.stages[0])):
            key = found
        stage = model.stages.pop(key, None)
        if stage is not None:
            if message.often and stage.stretched is not None and len(model.often) < MAX_OFTEN:
                model.often.setdefault(own, message)
            model.stages[key] = stage  # most recently asked for: last
            _answer(stage, asker)
            if message.beside and stage.stretched is not None:
                self._plan_beside(model, stage, stage.stretched, message)
            return
        if key in model.planning:
            model.planning[key].append(asker)
            return
        # A request that waits is not kept waiting for a search: the next one may well have other shapes. See `refresh`.
        search = len(message.stages) == 1 and not _hurried(model, message)
        job = PlanStage(message.stages, message.capacities, self._speeds(), self._calibration, search, len(message.stages) == 1)
        entry = self._kept(model, job)
        if entry is None and by_shape and not search and (stretch := model.ranges.wanted(message.stages[0])) is not None:
            key = _range_key(message.stages[0], stretch, stretch.widest.most)
            entry = self._kept_range(model, job, stretch)
            if key in model.planning:
                model.planning[key].append(asker)
                return
        self._stop_replanning(model)
        self._plan(model, key, job, [asker], entry)

    def _kept(self, model: Model, job: PlanStage) -> Entry | None:
        """What the plan cache has for a job."""
        if self._cache is None or not model.digest:
            return None
        return recall.find(self._cache, model.digest, model.options.key, job)

    def _kept_range(self, model: Model, job: PlanStage, stretch: Stretch) -> Entry | None:
        """The same for a job that is to be for a range from now on: the larger one, if there is any."""
        entry = None
        for job.stretch in (stretch.widest, stretch.narrow):
            entry = entry or self._kept(model, job)
        job.stretch = stretch
        return entry

    def _plan_beside(self, model: Model, stage: Stage, range_: Stretched, asked: protocol.Plan) -> None:
        """Requests do not wait for the plans of the ranges beside the one that they are in when they come to them: those are made behind
        them, the nearer one first."""
        stretch = stage.job.stretch
        assert stretch is not None
        extent = _extent(stage, asked)
        if model.planning:
            return
        for other in sorted((range_.least - 1, range_.most + 1), key=lambda other: abs(other - extent)):
            shapes = stretch.at(stage.job.stages[0], other)
            wanted = None if other < LEAST_EXTENT or model.ranges.find(shapes) else model.ranges.wanted(shapes)
            if wanted is None:
                continue
            key = _range_key(shapes, wanted, wanted.widest.most)
            tries = model.ahead.get(key, 0)
            if tries < TRIES_AHEAD and self._prepared():
                model.ahead[key] = tries + 1
                job = PlanStage([shapes], asked.capacities, self._speeds(), self._calibration, False)
                model.replanning = key
                self._plan(model, key, job, [], self._kept_range(model, job, wanted))
                return

    def _ask_again(self, asker: Asker) -> None:
        assert asker.asked is not None
        try:
            self.plan(asker.asked, asker)
        except AspenError as error:
            asker.fail(error)

    def _plan(self, model: Model, key: bytes, job: PlanStage, askers: list[Asker], entry: Entry | None) -> None:
        """`entry`: of the plan cache."""
        model.planning[key] = askers
        if entry is not None and entry.note.arena_bytes > 0:
            self._reserve_arenas(model, key, job, entry, [])
        else:
            self._plan_anew(model, key, job)

    def _plan_anew(self, model: Model, key: bytes, job: PlanStage) -> None:
        askers = model.planning[key]
        again = key == model.replanning
        if again and not self._prepared():  # nobody waits for it: at one of the next looks
            if key in model.stages:
                model.stages[key].tried_at = -math.inf
            self._stop_replanning(model)
            return
        lent: list[tuple[int, int]] = []
        if not job.search:
            lent, model.spares = model.spares, []
            job.spares = [nbytes for nbytes, _ in lent]

        def done(result: Inspected | StagePlanned, segments: list[Received]) -> None:
            assert isinstance(result, StagePlanned)
            used = lent.pop(result.spare) if 0 <= result.spare < len(lent) else None
            self._give_back(model, lent)
            if used is None:
                self._planned(model, key, job, result, segments)
            else:
                self._planned(model, key, job, result, [*segments, ("arena", *used)], reused=used[1])

        def failed(error: AspenError) -> None:
            self._give_back(model, lent)
            self._not_planned(model, key, error)

        (model.behind if again else model.child).submit(Job(job, done, failed, lambda progress: _report(askers, progress)))

    def _may_spare(self, model: Model, nbytes: int) -> bool:
        """Whether another arena may wait for a plan of the model."""
        taken = sum(n for n, _ in model.spares)
        return self._models.get(model.id) is model and len(model.spares) < MAX_SPARES and taken + nbytes <= MAX_SPARE_BYTES

    def _give_back(self, model: Model, spares: list[tuple[int, int]]) -> None:
        """Arenas that a plan did not need."""
        for nbytes, fd in spares:
            if self._may_spare(model, nbytes):
                model.spares.append((nbytes, fd))
            else:
                self._segments.discard(nbytes, fd)
        spares.clear()

    def spared(self, segments: set[int]) -> set[int]:
        """Those of segments that nothing refers to any more which are kept for other plans."""
        kept = set()
        for model in self._models.values():
            for segment in model.sparing & segments:
                if self._may_spare(model, self._segments[segment].nbytes):
                    model.spares.append(self._segments.withdraw(segment))
                    kept.add(segment)
            model.sparing -= segments
        return kept

    def _reserve_arenas(self, model: Model, key: bytes, job: PlanStage, entry: Entry, arenas: list[Segment]) -> None:
        """One after the other, as many as there are to be instances; then the plan cache's entry is used."""
        if len(arenas) == model.instances:
            self._recalled(model, key, job, entry, arenas)
            return
        askers = model.planning[key]

        def reserved(answer: Segment | AspenError) -> None:
            gone = self._models.get(model.id) is not model or model.planning.get(key) is not askers
            if isinstance(answer, Segment):
                arenas.append(answer)
            if isinstance(answer, Segment) and not gone:
                self._reserve_arenas(model, key, job, entry, arenas)
                return
            for arena in arenas:
                arena.close()
            if model.planning.get(key) is askers:
                self._not_planned(model, key, answer if isinstance(answer, AspenError) else AspenError("loading was cancelled"))

        self._reserver.reserve("arena", entry.note.arena_bytes, reserved)

    def _recalled(self, model: Model, key: bytes, job: PlanStage, entry: Entry, arenas: list[Segment]) -> None:
        """Answers from the plan cache, if what is needed is still there."""
        assert self._cache is not None
        names = {file.id for file in model.files.values()}
        try:
            found = None
            # A child that is busy is about to give numbers to weight segments too.
            if all(file.id in names for file in entry.note.weights) or (model.child.renew() and model.behind.renew()):
                found = recall.stage(self._cache, entry, model.digest, model.files, len(model.weight_segments), arenas)
        except (AspenError, OSError, MemoryError) as error:
            self._not_planned(model, key, _known(error))
            return
        finally:
            for arena in arenas:
                arena.close()
        if found is None:
            self._plan_anew(model, key, job)
            return
        result, received, plan = found
        job.search = entry.note.searched
        self._planned(model, key, job, result, received, plan)

    def _planned(
        self,
        model: Model,
        key: bytes,
        job: PlanStage,
        result: Inspected | StagePlanned,
        received: list[Received],
        plan: Segment | None = None,
        reused: int = -1,
    ) -> None:
        assert isinstance(result, StagePlanned)
        known = len(model.weight_segments)
        try:
            stage = self._publish(model, job, result, received, plan, reused)
        except (AspenError, OSError, MemoryError) as error:
            self._not_planned(model, key, _known(error))
            return
        stage.speeds, stage.searched, stage.behind = job.speeds, job.search, len(job.stages) > 1
        again, model.replanning = key == model.replanning, None
        askers = model.planning.pop(key, [])
        if len(model.weight_segments) > known:
            (model.child if again else model.behind).renew()  # neither is busy while the other is
        if again and key in model.stages:
            # Requests for the one before that come now are answered that it has gone, and their clients ask again.
            stage.tried_at = time.monotonic()
            self._drop_stage(model, key)
            self._journal.info("replanned", model=model.name, cores=len(job.speeds), speeds=",".join(f"{speed:g}" for speed in job.speeds))
        if job.stretch is not None and stage.stretched is not None:
            key = _range_key(job.stages[0], job.stretch, stage.stretched.most)
            model.ranges.add(job.stages[0], job.stretch, stage.stretched.least, stage.stretched.most, key)
        elif job.stretch is not None:
            model.ranges.refuse(job.stages[0], job.stretch, result.rigid)
            key = msgspec.msgpack.encode((job.stages, job.capacities))
            stage.job = msgspec.structs.replace(job, stretch=None)
        if key in model.stages:  # asked for by its own shapes meanwhile
            self._drop_stage(model, key)
        model.stages[key] = stage
        for asker in askers:
            if asker.asked is None or _serves(stage, asker.asked):
                _answer(stage, asker)
            else:  # there is no plan for its range, or for less of it
                self._ask_again(asker)
        self._drop_behind(model, stage)
        while len(model.stages) > 1 and (len(model.stages) > MAX_PLANS or self._plan_bytes(model) > MAX_PLAN_BYTES):
            self._drop_stage(model, next(iter(model.stages)))
        while self._crowded():
            largest = max(self._models.values(), key=lambda model: len(model.stages))
            if len(largest.stages) < 2:
                break  # so many models: whoever loads another one is told
            self._stop_replanning(largest)
            self._drop_stage(largest, next(iter(largest.stages)))

    def _drop_behind(self, model: Model, newest: Stage) -> None:
        """Plans behind data that are too many."""
        while True:
            behind = {key: stage for key, stage in model.stages.items() if stage.behind}
            nbytes = sum(self._segments[segment].nbytes for stage in behind.values() for segment in stage.segments)
            if len(behind) < 2 or (len(behind) <= MAX_BEHIND and nbytes <= MAX_BEHIND_BYTES):
                return
            served = {k: self._table.plan(s.answer.plan)["served"] if s.answer.plan else 0 for k, s in behind.items() if s is not newest}
            key = min(served, key=lambda k: served[k] - behind[k].mark)  # of equal ones the one that was asked for longest ago
            if key == model.replanning:
                self._stop_replanning(model)
            model.sparing.update(behind[key].segments[1:])
            self._drop_stage(model, key)
            for other, count in served.items():
                behind[other].mark = (behind[other].mark + count) / 2

    def _crowded(self) -> bool:
        plans = sum(len(model.stages) for model in self._models.values())
        instances = sum(len(model.stages) * model.instances for model in self._models.values())
        descriptors = sum(len(stage.segments) for model in self._models.values() for stage in model.stages.values())
        available = (_control.MAX_PLANS, _control.MAX_INSTANCES, descriptor_limit())
        return any(taken > MOST_OF_ALL * most for taken, most in zip((plans, instances, descriptors), available, strict=True))

    def _plan_bytes(self, model: Model) -> int:
        return sum(self._segments[segment].nbytes for stage in model.stages.values() for segment in stage.segments)

    def refresh(self) -> None:
        """Has a plan made again that is in use, but was made for other cores than there are, or without a search. One at a time, and behind
        whatever clients want: see `_stop_replanning`."""
        if any(model.planning for model in self._models.values()):
            return
        speeds, now = self._speeds(), time.monotonic()
        outdated = []
        for model in self._models.values():
            for key, stage in model.stages.items():
                if not stage.answer.plan or stage.answer.dynamic or model.options.planning.tiles is not None:
                    continue  # there are no tiles to choose
                served = self._table.plan(stage.answer.plan)["served"]
                pause = min(REPLAN_S * 2.0 ** min(stage.failed, 16), MOST_REPLAN_S)
                due = not alike(stage.speeds, speeds) or (not stage.searched and served >= stage.answer.often)
                if served > stage.served and due and now - stage.tried_at >= pause:
                    outdated.append((served - stage.served, model, key))
                stage.served = served
        if not outdated:
            self._plan_one_of_often()
        else:
            _, model, key = max(outdated, key=lambda item: item[0])
            model.stages[key].tried_at = now
            model.replanning = key
            job = msgspec.structs.replace(model.stages[key].job, speeds=speeds, search=True, keep=True, spares=[])
            entry = self._kept(model, job)
            self._plan(model, key, job, [], entry if entry is not None and entry.note.searched else None)

    def _plan_one_of_often(self) -> None:
        """For shapes that have come often a plan of their own: their tiles do not end early, and are searched."""
        for model in self._models.values():
            for key, message in list(model.often.items()):
                del model.often[key]
                if key in model.stages:
                    continue
                job = PlanStage(message.stages, message.capacities, self._speeds(), self._calibration)
                model.replanning = key
                self._plan(model, key, job, [], self._kept(model, job))
                return

    def _not_planned(self, model: Model, key: bytes, error: AspenError) -> None:
        if key == model.replanning:
            model.replanning = None
            if key in model.ahead:
                model.ahead[key] = TRIES_AHEAD
            stage = model.stages.get(key)
            if stage is not None:
                stage.failed += 1
                if str(error) != stage.why:
                    stage.why = str(error)
                    self._journal.warning("not-replanned", model=model.name, why=stage.why)
        askers = model.planning.pop(key, [])
        for asker in askers:
            if asker.asked is None or askers[0].asked is None or asker.asked.stages == askers[0].asked.stages:
                asker.fail(_about(model, error))
            else:  # waited for a range that the first one's shapes are in
                self._ask_again(asker)

    def _stop_replanning(self, model: Model) -> None:
        """A client wants something of this model: it does not wait for a plan that is being made again. That one is, later."""
        if model.replanning is not None:
            model.planning.pop(model.replanning, None)
            model.replanning = None
            model.behind.close()

    def _publish(
        self,
        model: Model,
        job: PlanStage,
        result: StagePlanned,
        received: list[Received],
        plan_segment: Segment | None,
        reused: int = -1,
    ) -> Stage:
        """`plan_segment`: a plan that needs no check any more, and is closed here; None: it is among what a planning child has sent.
        `reused`: which descriptor of an arena another plan has had."""
        cached = plan_segment is not None
        answer = protocol.Planned(
            id=0,
            plan=0,
            generation=0,
            region=result.region,
            inputs=result.inputs,
            outputs=result.outputs,
            needs_values=result.needs_values,
            last=result.last,
            dynamic=result.dynamic,
            instances=sum(role == "arena" for role, _, _ in received),
            often=_often(result.work_ns / max(len(job.speeds), 1)),
        )
        left = list(received)
        added: list[int] = []
        try:
            if result.needs_values:
                return Stage(answer, [], job)
            sizes = [self._segments[segment].nbytes for segment in model.weight_segments]
            sizes += [os.fstat(fd).st_size for role, _, fd in received if role == "weights"]
            arena_sizes = [os.fstat(fd).st_size for role, _, fd in received if role == "arena"]
            if plan_segment is None:
                made = next(item for item in received if item[0] == "plan")
                plan_segment = planning.checked_plan(made, result, [sizes[i] for i in result.weights], arena_sizes)
            if reused >= 0:
                planning.clear_arena(reused, plan_segment)
            owner = f"model {model.id}"
            new_weights: list[int] = []
            arenas: list[int] = []
            while left:
                role, _, fd = left.pop()
                if role == "plan":
                    os.close(fd)
                    continue
                segment = self._segments.add(role, os.fstat(fd).st_size, fd, owner)
                added.append(segment)
                (new_weights if role == "weights" else arenas).append(segment)
            plan = self._segments.add("plan", plan_segment.nbytes, os.dup(plan_segment.fd), owner)
            added.append(plan)
            weight_segments = model.weight_segments + new_weights[::-1]
            number, generation = self._table.add_plan(plan, [weight_segments[i] for i in result.weights], arenas)
        except BaseException:
            protocol.close_all([fd for _, _, fd in left])
            for segment in added:
                self._segments.drop(segment)
            self._changed()
            raise
        finally:
            if plan_segment is not None:
                plan_segment.close()
        self.plans.add(number, generation, model, plan)
        self._added(number, model.name)
        model.weight_segments = weight_segments
        model.weights.update({key: (segment, offset) for key, segment, offset in result.packed})
        model.digest = result.digest or model.digest
        model.files.update(result.files)
        self._changed()
        return Stage(msgspec.structs.replace(answer, plan=number, generation=generation), [plan, *arenas], job, result.stretched, cached)

    def replace_arena(self, instance: int) -> None:
        """While the world stands still: an instance's arena is given up for a new one. ResourceLimitError where there is no memory."""
        old = self._table.instance(instance)["arena"]
        held = self._segments[old]
        with Segment.create("arena", held.nbytes) as arena:
            new = self._segments.add("arena", arena.nbytes, os.dup(arena.fd), held.owner)
        self._table.replace_arena(instance, new)
        self._segments.forget(old)
        for model in self._models.values():
            model.sparing.discard(old)  # somebody may still write to it
            for stage in model.stages.values():
                stage.segments = [new if segment == old else segment for segment in stage.segments]

    # ---- unloading

    def unload(self, number: int, client: int) -> None:
        model = self._models.get(number)
        if model is None or client not in model.users:
            raise RequestError(f"model {number} is not loaded")
        model.users[client] -= 1
        if not model.users[client]:
            self._forget_user(model, client)

    def client_gone(self, client: int) -> None:
        for model in list(self._models.values()):
            model.waiting = [asker for asker in model.waiting if asker.client != client]
            if client in model.users:
                self._forget_user(model, client)
            elif not model.users and not model.waiting:
                self._drop(model)

    def _forget_user(self, model: Model, client: int) -> None:
        model.users.pop(client, None)
        if not model.users and not model.waiting:
            self._drop(model)

    def _drop_stage(self, model: Model, key: bytes) -> None:
        stage = model.stages.pop(key)
        model.ranges.drop(key)
        if stage.answer.plan:
            self._table.drop_plan(stage.answer.plan)
            self._changed()

    def _drop(self, model: Model) -> None:
        """Its plans go as soon as their last requests have ended, its weights after them."""
        if self._models.pop(model.id, None) is None:
            return
        if self._by_key.get(model.key) is model:
            del self._by_key[model.key]
        self._stop_replanning(model)
        model.behind.retire()
        model.child.retire()
        for nbytes, fd in model.spares:
            self._segments.discard(nbytes, fd)
        model.spares.clear()
        # Those of plans that have been replaced or dropped too: requests may still run on them.
        waits_for = self.plans.segments_of(model)
        self._weights_after(model.weight_segments, waits_for)
        for key in list(model.stages):
            self._drop_stage(model, key)
        model.source.close()
        self._changed()

    def _weights_after(self, weights: list[int], plans: set[int]) -> None:
        for segment in weights:
            if plans:
                self._leaving_weights[segment] = sorted(plans)
            else:
                self._segments.drop(segment)

    def collected(self, segments: set[int]) -> None:
        """Segments that collect() returned: weights whose last plan is among them are dropped as well."""
        for weight, plans in list(self._leaving_weights.items()):
            plans[:] = [plan for plan in plans if plan not in segments]
            if not plans:
                del self._leaving_weights[weight]
                self._segments.drop(weight)

    def close(self) -> None:
        self.plans.close()
        for model in list(self._models.values()):
            self._stop_replanning(model)
            model.behind.close()
            model.child.close()
            model.source.close()
            protocol.close_all([fd for _, fd in model.spares])

    def describe(self) -> list[dict[str, Any]]:
        """For status: each model with its plans and the bytes they take."""
        result = []
        for model in self._models.values():
            plans = [
                {
                    "plan": stage.answer.plan,
                    "dynamic": stage.answer.dynamic,
                    "cached": stage.cached,
                    "searched": stage.searched,
                    "instances": len(stage.segments) - 1,
                    "served": self._table.plan(stage.answer.plan)["served"],
                    "inputs": {slot.name: list(slot.shape) for slot in stage.answer.inputs},
                    "range": None if stage.stretched is None else [stage.stretched.least, stage.stretched.most],
                    "bytes": sum(self._segments[segment].nbytes for segment in stage.segments),
                }
                for stage in model.stages.values()
                if stage.segments
            ]
            result.append(
                {
                    "id": model.id,
                    "name": model.name,
                    "source": model.source.name,
                    "state": "loaded" if model.loaded else "loading",
                    "clients": len(model.users),
                    "planning": len(model.planning),
                    "weight_bytes": sum(self._segments[segment].nbytes for segment in model.weight_segments),
                    "plans": plans,
                }
            )
        return result


def _known(error: AspenError | OSError | MemoryError) -> AspenError:
    """What is told of an error: that the planner process has too little of something is nobody's own fault."""
    return (
        error if isinstance(error, AspenError) else ResourceLimitError(f"the planner process lacks descriptors or memory: {reason(error)}")
    )


def _about(model: Model, error: AspenError) -> AspenError:
    """The error with the model's name, which its finder may not have known."""
    name = f"model {model.name!r}"
    return error if name in str(error) else type(error)(f"{name}: {error}")


def _often(request_ns: float) -> int:
    """After how many requests of about this length a plan is worth more effort."""
    return int(min(max(SERVED_NS / request_ns, SERVED_LEAST), SERVED_OFTEN)) if request_ns > 0 else SERVED_OFTEN


def _range_key(binds: Sequence[protocol.Bind], stretch: Stretch, most: int) -> bytes:
    """Of a plan for the extents up to `most`, given the shapes of a request."""
    return b"range:" + msgspec.msgpack.encode((stretch.at(binds, most), stretch.mask))


def _by_shape(message: protocol.Plan) -> bool:
    """Whether all that is known of the model's inputs are shapes of tensors."""
    plain = len(message.stages) == 1 and not message.capacities
    return plain and all(bind.value is None and bind.dtype != "object" for bind in message.stages[0])


def _extent(stage: Stage, asked: protocol.Plan) -> int:
    """The extent that the shapes of a request have, given the plan for a range that serves it."""
    stretch = stage.job.stretch
    assert stretch is not None
    return extent_of(asked.stages[0], stretch.axes)


def _serves(stage: Stage, asked: protocol.Plan) -> bool:
    """Whether the shapes of one who waited for a plan of a range are among those that it is for now."""
    if stage.stretched is None:
        return stage.job.stages == asked.stages
    return stage.stretched.least <= _extent(stage, asked) <= stage.stretched.most


def _answer(stage: Stage, asker: Asker) -> None:
    answer = msgspec.structs.replace(stage.answer, id=asker.request)
    range_, stretch = stage.stretched, stage.job.stretch
    if range_ is not None:
        assert asker.asked is not None
        assert stretch is not None
        told = protocol.Range(range_.least, range_.most, stretch.mask, range_.inputs, range_.outputs)
        answer = msgspec.structs.replace(answer, extent=_extent(stage, asker.asked), range=told)
    asker.send(answer)


def _hurried(model: Model, message: protocol.Plan) -> bool:
    """Whether a request waits for a plan of other shapes than the model's first ones, of which there may be many: lengths of texts."""
    how = model.options.planning
    others = bool(model.planning) or any(stage.answer.plan for stage in model.stages.values())
    return others and not message.ahead and how.search == "quick" and how.tiles is None


def _report(askers: list[Asker], progress: JobProgress) -> None:
    for asker in askers:
        asker.send(protocol.Progress(asker.request, progress.step, progress.done, progress.total))


def _source(message: protocol.Load, fds: list[int]) -> tuple[planning.Source, tuple[Any, ...]]:
    options = (message.instances, message.precision, message.winograd, message.planning)
    if message.path:
        if fds or not os.path.isabs(message.path):
            raise RequestError("a model is an absolute path or one descriptor")
        source = planning.Source.from_path(message.path)
        return source, ("path", message.path, source.stamp, *options)
    if len(fds) != 1:
        raise RequestError("a model is an absolute path or one descriptor")
    source = planning.Source.from_fd(fds[0], message.name)
    return source, ("bytes", source.fd, *options)


def descriptor_limit() -> float:
    """How many descriptors this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit
