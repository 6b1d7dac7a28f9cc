"""Which plan a request gets: one that there is, one that is being made, or a new one. And which are made before anybody asks for them.

A plan is found by its key: the shapes and values of a request, or those of the longest one in the range that it is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from aspen_mp.control.memory.async_alloc import AsyncAllocator
from aspen_mp.control.models.eviction import Eviction
from aspen_mp.control.models.model_state import Asker, Model, Stage, not_loaded
from aspen_mp.control.models.plan_builder import PlanBuilder
from aspen_mp.control.models.publishing import Publisher
from aspen_mp.control.planning.plan_cache import Cache, Entry
from aspen_mp.control.planning.planner_child import PlanStage
from aspen_mp.control.planning.shape_buckets import Stretch, Stretched
from aspen_mp.control.planning.weight_checks import Verifier
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.shm.errors import AspenError


class PlanRequests:
    def __init__(
        self,
        publisher: Publisher,
        dropper: Eviction,
        cache: Cache | None,
        reserver: AsyncAllocator,
        verifier: Verifier,
        event_log: EventLog,
        speeds: Callable[[], list[float]],
        calibration: str,
        prepared: Callable[[], bool],
        relieve: Callable[[Callable[[], None]], bool],
    ) -> None:
        """`relieve`: as of `Pressure`. `speeds()`, `prepared()`: as of `ModelStore`. `calibration`: the name of the cost model's rates."""
        self._publisher = publisher
        self._dropper = dropper
        self._maker = PlanBuilder(publisher, cache, reserver, verifier, prepared, self._made, self._failed, relieve)
        self._event_log = event_log
        self._speeds = speeds
        self._calibration = calibration
        self._prepared = prepared

    # ---- what clients ask for

    def ask(self, model: Model, message: protocol.Plan, asker: Asker) -> None:
        """Answers with `Planned`, at once if there is such a plan. RequestError where the client has not loaded the model."""
        if asker.client not in model.users:
            raise not_loaded(model.id)
        asker.asked = message
        key = own = _key(message)
        by_shape = _by_shape(message)
        if by_shape:
            model.ranges.learn(message.stages[0])
        if key not in model.stages and by_shape and not message.ahead and (found := model.ranges.find(message.stages[0])):
            key = found
        stage = model.stages.pop(key, None)
        if stage is not None:
            if message.often and stage.stretched is not None and len(model.often) < POLICY.most_often:
                model.often.setdefault(own, message)
            stage.asked_at = time.monotonic()
            model.stages[key] = stage  # most recently asked for: last
            stage.tell(asker)
            if message.beside and stage.stretched is not None:
                self._plan_beside(model, stage, stage.stretched, message)
            return
        if key in model.planning:
            model.planning[key].append(asker)
            return
        # A request that waits is not kept waiting for a search: the next one may well have other shapes. See `replanning`.
        search = len(message.stages) == 1 and not _hurried(model, message)
        job = PlanStage(message.stages, message.capacities, self._speeds(), self._calibration, search, len(message.stages) == 1)
        entry = self._maker.kept(model, job)
        if entry is None and by_shape and not search and (stretch := model.ranges.wanted(message.stages[0])) is not None:
            key = _range_key(message.stages[0], stretch, stretch.widest.most)
            entry = self._maker.kept_range(model, job, stretch)
            if key in model.planning:
                model.planning[key].append(asker)
                return
        model.stop_replanning()
        self._maker.make(model, key, job, [asker], entry)

    def _ask_again(self, model: Model, asker: Asker) -> None:
        assert asker.asked is not None
        try:
            self.ask(model, asker.asked, asker)
        except AspenError as error:
            asker.fail(error)

    # ---- what nobody waits for

    def make_behind(self, model: Model, key: bytes, job: PlanStage) -> None:
        """Has a plan made behind requests. What takes the place of another is searched, wherever it comes from."""
        entry = self._maker.kept(model, job)
        if key in model.stages and entry is not None and not entry.note.searched:
            entry = None
        self._make_behind(model, key, job, entry)

    def _make_behind(self, model: Model, key: bytes, job: PlanStage, entry: Entry | None) -> None:
        model.replanning = key
        self._maker.make(model, key, job, [], entry)

    def _plan_beside(self, model: Model, stage: Stage, range_: Stretched, asked: protocol.Plan) -> None:
        """Requests do not wait for the plans of the ranges beside the one that they are in when they come to them: those are made behind
        them, the nearer one first."""
        stretch = stage.job.stretch
        assert stretch is not None
        extent = stage.extent(asked)
        if model.planning:
            return
        for other in sorted((range_.least - 1, range_.most + 1), key=lambda other: abs(other - extent)):
            shapes = stretch.at(stage.job.stages[0], other)
            wanted = None if other < POLICY.least_extent or model.ranges.find(shapes) else model.ranges.wanted(shapes)
            if wanted is None:
                continue
            key = _range_key(shapes, wanted, wanted.widest.most)
            tries = model.ahead.get(key, 0)
            if tries < POLICY.tries_ahead and self._prepared():
                model.ahead[key] = tries + 1
                job = PlanStage([shapes], asked.capacities, self._speeds(), self._calibration, False)
                self._make_behind(model, key, job, self._maker.kept_range(model, job, wanted))
                return

    # ---- what became of it

    def _made(self, model: Model, key: bytes, stage: Stage) -> None:
        job = stage.job
        again, model.replanning = key == model.replanning, None
        askers = model.planning.pop(key, [])
        if again and key in model.stages:
            # Requests for the one before that come now are answered that it has gone, and their clients ask again.
            stage.tried_at = time.monotonic()
            self._publisher.drop(model, key)
            self._event_log.info(
                "replanned", model=model.name, cores=len(job.speeds), speeds=",".join(f"{speed:g}" for speed in job.speeds)
            )
        if job.stretch is not None and stage.stretched is not None:
            key = _range_key(job.stages[0], job.stretch, stage.stretched.most)
            model.ranges.add(job.stages[0], job.stretch, stage.stretched.least, stage.stretched.most, key)
        elif job.stretch is not None:
            model.ranges.refuse(job.stages[0], job.stretch, stage.rigid)
            key = _key(job)
            stage.job = msgspec.structs.replace(job, stretch=None)
        if key in model.stages:  # asked for by its own shapes meanwhile
            self._publisher.drop(model, key)
        model.stages[key] = stage
        for asker in askers:
            if asker.asked is None or stage.serves(asker.asked):
                stage.tell(asker)
            else:  # there is no plan for its range, or for less of it
                self._ask_again(model, asker)
        self._dropper.make_room(model, stage)

    def _failed(self, model: Model, key: bytes, error: AspenError) -> None:
        if key == model.replanning:
            model.replanning = None
            if key in model.ahead:
                model.ahead[key] = POLICY.tries_ahead
            stage = model.stages.get(key)
            if stage is not None:
                stage.failed += 1
                if str(error) != stage.why:
                    stage.why = str(error)
                    self._event_log.warning("not-replanned", model=model.name, why=stage.why)
        askers = model.planning.pop(key, [])
        for asker in askers:
            if asker.asked is None or askers[0].asked is None or asker.asked.stages == askers[0].asked.stages:
                asker.fail(model.about(error))
            else:  # waited for a range that the first one's shapes are in
                self._ask_again(model, asker)


def _key(asked: protocol.Plan | PlanStage) -> bytes:
    """Of a plan for these shapes and values alone."""
    return msgspec.msgpack.encode((asked.stages, asked.capacities))


def _range_key(binds: Sequence[protocol.Bind], stretch: Stretch, most: int) -> bytes:
    """Of a plan for the extents up to `most`, given the shapes of a request."""
    return b"range:" + msgspec.msgpack.encode((stretch.at(binds, most), stretch.mask))


def _by_shape(message: protocol.Plan) -> bool:
    """Whether all that is known of the model's inputs are shapes of tensors."""
    plain = len(message.stages) == 1 and not message.capacities
    return plain and all(bind.value is None and bind.dtype != "object" for bind in message.stages[0])


def _hurried(model: Model, message: protocol.Plan) -> bool:
    """Whether a request waits for a plan of shapes of which there may be many: others than the model's first ones (lengths of texts), or
    pictures of any size."""
    how = model.options.planning
    others = bool(model.planning) or any(stage.answer.plan for stage in model.stages.values()) or _any_size(model)
    return others and not message.ahead and how.search == "quick" and how.tiles is None


def _any_size(model: Model) -> bool:
    """Whether an input has two axes of unknown length or more besides the first, which is the batch: the sides of pictures."""
    shapes = [info.shape for info in model.loaded.inputs if info.shape is not None] if model.loaded is not None else []
    return any(sum(not isinstance(dim, int) for dim in shape[1:]) >= 2 for shape in shapes)
