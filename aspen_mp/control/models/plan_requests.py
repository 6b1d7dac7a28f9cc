"""Which plan a request gets: one that there is, one that is being made, or a new one. And which are made before anybody asks for them.

A plan is found by its key: the shapes and values of a request, or those of the longest one in the range that it is for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from aspen_mp.control.models import replanning
from aspen_mp.control.models.plan_builder import PlanBuilder
from aspen_mp.control.models.plan_states import Asker, Event, Model, Plan, not_loaded
from aspen_mp.control.planning.plan_cache import Entry
from aspen_mp.control.planning.planner_child import PlanStage
from aspen_mp.control.planning.shape_buckets import Axes, ServedBucket, WantedBucket, symbols_of
from aspen_mp.control.wire import protocol
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.shm.errors import AspenError


class PlanRequests(PlanBuilder):
    # ---- what clients ask for

    def ask(self, model: Model, message: protocol.MakePlan, asker: Asker) -> None:
        """Answers with `Planned`, at once if there is such a plan. RequestError where the client has not loaded the model."""
        if asker.client not in model.users:
            raise not_loaded(model.id)
        asker.asked = message
        own, by_shape = _key(message), _by_shape(message)
        if by_shape:
            model.buckets.learn(message.stages[0], _symbols(model, message.stages[0]))
        plan = model.live.get(own)
        if plan is None and by_shape and not message.ahead and (found := model.buckets.find(message.stages[0])):
            plan = model.live.get(found)
        if plan is not None:
            if message.often and plan.served_bucket is not None:
                self._want_own(plan, plan.served_bucket, own, message)
            self.step(plan, Event.ASKED, asker)
            if message.beside and plan.served_bucket is not None:
                self._plan_beside(plan, plan.served_bucket, message)
        elif own in model.begun:
            self.step(model.making[own], Event.ASKED, asker)
        else:
            self._begin(model, own, message, asker)

    def tell(self, plan: Plan, asker: Asker) -> None:
        plan.asked_at = time.monotonic()
        plan.model.live[plan.key] = plan.model.live.pop(plan.key)  # most recently asked for: last
        plan.tell(asker)

    def join(self, plan: Plan, asker: Asker) -> None:
        plan.waiters.append(asker)

    def _begin(self, model: Model, key: bytes, message: protocol.MakePlan, asker: Asker) -> None:
        """There is no plan for a request, and none for its shapes alone is being made."""
        # A request that waits is not kept waiting for a search: the next one may well have other shapes. See `replanning`.
        search = len(message.stages) == 1 and not _hurried(model, message)
        speeds, rates = self._setup.speeds(), self._setup.rates_name
        job = PlanStage(message.stages, message.capacities, speeds, rates, search, len(message.stages) == 1)
        entry = self.kept(model, job)
        if entry is None and not search and _by_shape(message) and (bucket := model.buckets.wanted(message.stages[0])) is not None:
            key = _bucket_key(message.stages[0], bucket, bucket.widest.most)
            entry = self.kept_bucket(model, job, bucket)
        self.stop_background(model, but=key)
        if key in model.begun:
            self.step(model.making[key], Event.ASKED, asker)
            return
        plan = self._request(Plan(model, key, job))
        self.step(plan, Event.ASKED, asker)
        self.begin(plan, entry)

    def _request(self, plan: Plan) -> Plan:
        """The plan, in the making. One for the same shapes that waits for its turn is not needed then."""
        waits = plan.model.making.get(plan.key)
        if waits is not None:
            self.step(waits, Event.STOPPED)
        plan.model.making[plan.key] = plan
        return plan

    def _again(self, plan: Plan, asker: Asker) -> None:
        assert asker.asked is not None
        try:
            self.ask(plan.model, asker.asked, asker)
        except AspenError as error:
            asker.fail(error)

    # ---- what nobody waits for

    def refresh(self) -> None:
        """Has a plan made again, if there is one to be. What takes the place of another is searched, wherever it comes from."""
        plan = replanning.choose(self._models.values(), self._table, self._setup.speeds(), self._setup.preempt_ms)
        if plan is None:
            return
        entry = None if plan.job.longest_ms else self.kept(plan.model, plan.job)
        if plan.key in plan.model.live and entry is not None and not entry.note.searched:
            entry = None
        self.begin(plan if plan.model.making.get(plan.key) is plan else self._request(plan), entry)

    def stop_background(self, model: Model, but: bytes = b"") -> None:
        """A client wants something of the model: it does not wait for a plan that is made behind requests, unless that is what it wants
        (`but`). That plan is made later."""
        for plan in list(model.begun.values()):
            if plan.background and plan.key != but:
                self.step(plan, Event.STOPPED)

    def _want_own(self, plan: Plan, served: ServedBucket, key: bytes, message: protocol.MakePlan) -> None:
        """A request's shapes come often: they get a plan of their own, behind the requests, in the place of the bucket's."""
        model, bucket = plan.model, plan.job.bucket
        assert bucket is not None
        if key not in model.making and len(model.making) - len(model.begun) < POLICY.most_often:
            within = WantedBucket(served.least, served.most, plan.extent(message), bucket.axes)
            job = PlanStage(message.stages, message.capacities, [], self._setup.rates_name, within=within)
            self._request(Plan(model, key, job, background=True))

    def _plan_beside(self, plan: Plan, served: ServedBucket, asked: protocol.MakePlan) -> None:
        """Requests do not wait for the plans of the buckets beside the one that they are in when they come to them: those are made behind
        them, the nearer one first; not those that are more than twice as long as the request, or less than half."""
        model, bucket = plan.model, plan.job.bucket
        assert bucket is not None
        extent = plan.extent(asked)
        if model.begun:
            return
        for other in sorted((served.least - 1, served.most + 1), key=lambda other: abs(other - extent)):
            if not extent <= 2 * other <= 4 * extent:
                continue
            shapes = bucket.at(plan.job.stages[0], other)
            wanted = None if other < POLICY.least_extent or model.buckets.find(shapes) else model.buckets.wanted(shapes)
            if wanted is None:
                continue
            key = _bucket_key(shapes, wanted, wanted.widest.most)
            tries = model.ahead.get(key, 0)
            if tries < POLICY.tries_ahead and self._setup.prepared():
                model.ahead[key] = tries + 1
                job = PlanStage([shapes], asked.capacities, self._setup.speeds(), self._setup.rates_name, False)
                entry: Entry | None = self.kept_bucket(model, job, wanted)
                self.begin(self._request(Plan(model, key, job, background=True)), entry)
                return

    # ---- what became of it

    def answer(self, plan: Plan) -> None:
        """It takes the place of the one that there was. Requests for that one are told that it has gone, and their clients ask again."""
        model, job = plan.model, plan.job
        self.let_go(plan)
        waiters, plan.waiters = plan.waiters, []
        if plan.background and plan.key in model.live:
            plan.tried_at = time.monotonic()
            speeds = ",".join(f"{speed:g}" for speed in job.speeds)
            limit = {"longest_ms": job.longest_ms} if job.longest_ms else {}
            self._event_log.info("replanned", model=model.name, cores=len(job.speeds), speeds=speeds, **limit)
            self.retire(model.live[plan.key])
        served_bucket, bucket = plan.served_bucket, job.bucket
        if bucket is not None and served_bucket is not None:
            plan.key = _bucket_key(job.stages[0], bucket, served_bucket.most)
        elif bucket is not None:
            model.buckets.refuse(job.stages[0], bucket, plan.no_bucket)
            plan.key = _key(job)
            plan.job = msgspec.structs.replace(job, bucket=None)
        if plan.key in model.live:  # asked for by its own shapes meanwhile
            self.retire(model.live[plan.key])
        if plan.key in model.making and not model.making[plan.key].begun:
            self.step(model.making[plan.key], Event.STOPPED)
        if bucket is not None and served_bucket is not None:
            model.buckets.add(job.stages[0], bucket, served_bucket.least, served_bucket.most, plan.key)
        model.live[plan.key] = plan
        for asker in waiters:
            if asker.asked is None or plan.serves(asker.asked):
                plan.tell(asker)
            else:  # there is no plan for its range, or for less of it
                self._again(plan, asker)
        self.eviction.make_room(plan)

    def fail(self, plan: Plan, error: AspenError) -> None:
        model = plan.model
        self.let_go(plan)
        waiters, plan.waiters = plan.waiters, []
        if plan.background:
            if plan.key in model.ahead:
                model.ahead[plan.key] = POLICY.tries_ahead
            if (live := model.live.get(plan.key)) is not None:
                live.failed += 1
                if str(error) != live.why:
                    live.why = str(error)
                    self._event_log.warning("not-replanned", model=model.name, why=live.why)
        for asker in waiters:
            if asker.asked is None or waiters[0].asked is None or asker.asked.stages == waiters[0].asked.stages:
                asker.fail(model.about(error))
            else:  # waited for a range that the first one's shapes are in
                self._again(plan, asker)

    def stop(self, plan: Plan) -> None:
        """Who waits for it all the same asks again."""
        self.let_go(plan)
        waiters, plan.waiters = plan.waiters, []
        plan.model.behind.close()
        for asker in waiters:
            self._again(plan, asker)


def _key(asked: protocol.MakePlan | PlanStage) -> bytes:
    """Of a plan for these shapes and values alone."""
    return msgspec.msgpack.encode((asked.stages, asked.capacities))


def _bucket_key(binds: Sequence[protocol.Bind], bucket: WantedBucket, most: int) -> bytes:
    """Of a plan for the extents up to `most`, given the shapes of a request."""
    return b"range:" + msgspec.msgpack.encode((bucket.at(binds, most), bucket.axes))


def _by_shape(message: protocol.MakePlan) -> bool:
    """Whether all that is known of the model's inputs are shapes of tensors."""
    plain = len(message.stages) == 1 and not message.capacities
    return plain and all(bind.value is None and bind.dtype != "object" for bind in message.stages[0])


def _hurried(model: Model, message: protocol.MakePlan) -> bool:
    """Whether a request waits for a plan of shapes of which there may be many: others than the model's first ones (lengths of texts), or
    pictures of any size."""
    how = model.request.planning
    others = bool(model.begun) or any(plan.answer.plan for plan in model.live.values()) or _any_size(model)
    return others and not message.ahead and how.search == "quick" and how.tiles is None


def _symbols(model: Model, binds: Sequence[protocol.Bind]) -> list[Axes]:
    """The axes that the model has one name for, of inputs as a request gives them."""
    shapes = {info.name: info.shape for info in model.loaded.inputs} if model.loaded is not None else {}
    return symbols_of([shapes.get(bind.name) for bind in binds])


def _any_size(model: Model) -> bool:
    """Whether an input has two axes of unknown length or more besides the first, which is the batch: the sides of pictures."""
    shapes = [info.shape for info in model.loaded.inputs if info.shape is not None] if model.loaded is not None else []
    return any(sum(not isinstance(dim, int) for dim in shape[1:]) >= 2 for shape in shapes)
