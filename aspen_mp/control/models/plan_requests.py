"""Chooses the plan that a request gets: a live one, one that is being made, or a new one. Plans are also made before anybody asks for them.

A plan's key holds the shapes and values of a request, or those of the longest request in the plan's shape bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import assert_never

import msgspec

from aspen_mp.control.models import replanning
from aspen_mp.control.models.plan_builder import PlanBuilder
from aspen_mp.control.models.plan_states import (
    Announce,
    Asked,
    Discard,
    Fail,
    Forget,
    Join,
    KeepArena,
    LetGo,
    PlanEffect,
    Publish,
    Release,
    Relieve,
    Reserve,
    RunPlanner,
    Stop,
    Stopped,
    Tell,
    Verify,
    Withdraw,
)
from aspen_mp.control.models.plans import Asker, Model, Plan, not_loaded
from aspen_mp.control.planning.plan_cache import Entry
from aspen_mp.control.planning.planner_child import PlanStage
from aspen_mp.control.planning.shape_buckets import Axes, Buckets, Range, ServedBucket, WantedBucket, flat, nested, symbols_of
from aspen_mp.control.wire import protocol
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.shm.errors import AspenError
from aspen_mp.system import clock


class PlanRequests(PlanBuilder):
    def carry_out(self, plan: Plan, effect: PlanEffect) -> None:
        match effect:
            case Tell():
                self.tell(plan, effect.asker)
            case Join():
                self.join(plan, effect.asker)
            case Verify():
                self.verify(plan, effect.entry)
            case Reserve():
                self.reserve(plan)
            case KeepArena():
                self.keep_arena(plan, effect.answer)
            case Discard():
                self.discard(effect.answer)
            case RunPlanner():
                self.plan(plan)
            case Publish():
                self.publish(plan, effect.built)
            case Release():
                self.release(plan)
            case Relieve():
                self.relieve(plan, effect.error)
            case LetGo():
                self.let_go(plan)
            case Announce():
                self.announce(plan)
            case Fail():
                self.fail(plan, effect.error)
            case Stop():
                self.stop(plan)
            case Withdraw():
                self.withdraw(plan)
            case Forget():
                self.forget(plan)
            case _:
                assert_never(effect)

    # ---- what clients ask for

    def ask(self, model: Model, message: protocol.MakePlan, asker: Asker) -> None:
        """Answer with `Planned`, at once if there is such a plan. RequestError where the client has not loaded the model."""
        if asker.client not in model.users:
            raise not_loaded(model.id)
        asker.asked = message
        self._ask_again(model, asker)

    def _ask_again(self, model: Model, asker: Asker) -> None:
        self._queue.follow(partial(self._choose, model, asker))

    def _choose(self, model: Model, asker: Asker) -> None:
        try:
            if asker.client not in model.users:  # it has unloaded the model while it waited for another plan
                raise not_loaded(model.id)
            assert asker.asked is not None
            self._find_or_begin(model, asker.asked, asker)
        except AspenError as error:
            asker.fail(error)

    def _find_or_begin(self, model: Model, message: protocol.MakePlan, asker: Asker) -> None:
        own, buckets = _key(message), _buckets(model, message)
        binds = flat(message.stages)
        if buckets is not None and binds not in buckets.shapes:
            buckets.learn(binds, _symbols(model, message.stages))
        plan = model.live.get(own)
        if plan is not None and message.ahead and replanning.in_haste(plan, self._setup.speeds()):
            plan = None
        if plan is None and buckets is not None and not message.ahead and (found := buckets.find(binds)):
            plan = model.live.get(found)
        if plan is not None:
            if message.often and plan.served_bucket is not None:
                self._want_own(plan, plan.served_bucket, own, message)
            self.send(plan, Asked(asker))
            if message.beside and plan.served_bucket is not None:
                self._plan_beside(plan, plan.served_bucket, message)
        elif own in model.begun:
            self.send(model.making[own], Asked(asker))
        else:
            self._begin(model, own, message, asker)

    def tell(self, plan: Plan, asker: Asker) -> None:
        plan.usage.asked_at = clock.monotonic()
        plan.model.live[plan.live_key] = plan.model.live.pop(plan.live_key)  # most recently asked for: last
        plan.tell(asker)

    def join(self, plan: Plan, asker: Asker) -> None:
        plan.waiters.append(asker)

    def _begin(self, model: Model, key: bytes, message: protocol.MakePlan, asker: Asker) -> None:
        """Begin a plan for a request: none serves it, and none for its shapes alone is being made."""
        # Nobody who waits is kept waiting for a search: what is asked for often is searched afterwards. See `replanning`.
        alone = len(message.stages) == 1
        recurs = alone and not _others(model, message)
        search = recurs and not (self._setup.replans and _afterwards(model, message))
        job = PlanStage(message.stages, message.capacities, self._setup.speeds(), self._setup.rates_name, search, recurs, alone)
        job.stream, job.stream_bytes = message.stream, message.stream_bytes
        entry, buckets = self.kept(model, job), _buckets(model, message)
        if entry is not None and search and not entry.note.searched and replanning.searchable(entry.note.work_ns, job.speeds):
            entry = None
        bucket = None if buckets is None or recurs or entry is not None else buckets.wanted(flat(message.stages))
        if bucket is not None:
            key, job.keep = _bucket_key(message, bucket, bucket.widest), True
            entry = self.kept_bucket(model, job, bucket)
        if self.stop_background(model, but=key):
            self._ask_again(model, asker)  # after those who waited for what has been stopped: they may begin what this request needs
            return
        if key in model.begun:
            self.send(model.making[key], Asked(asker))
            return
        plan = self._request(Plan(model, key, job))
        self.send(plan, Asked(asker))
        self.begin(plan, entry)

    def _request(self, plan: Plan) -> Plan:
        """Add the plan to those being made. One for the same shapes that waits for its turn is no longer needed."""
        waits = plan.model.making.get(plan.key)
        plan.model.making[plan.key] = plan
        if waits is not None:
            self.send(waits, Stopped())
        return plan

    # ---- what nobody waits for

    def refresh(self) -> None:
        """Have a plan made again, if one should be. What replaces a live plan is always searched."""
        plan = replanning.choose(self._models.values(), self._table, self._setup.speeds(), self._setup.preempt_ms)
        if plan is None:
            return
        entry = None if plan.job.longest_ms else self.kept(plan.model, plan.job)
        if plan.key in plan.model.live and entry is not None and not entry.note.searched:
            entry = None
        self.begin(plan if plan.model.making.get(plan.key) is plan else self._request(plan), entry)

    def stop_background(self, model: Model, but: bytes = b"") -> bool:
        """Stop the plans that are made in the background, except the one with the key `but`: a client wants another plan. They are made
        later. Return whether somebody waits for one of them, who asks again."""
        stopped = [plan for plan in model.begun.values() if plan.background and plan.key != but]
        for plan in stopped:
            self.send(plan, Stopped())
        return any(plan.waiters for plan in stopped)

    def _want_own(self, plan: Plan, served: ServedBucket, key: bytes, message: protocol.MakePlan) -> None:
        """Have a plan of their own made for shapes that come often, in the background. It serves them in place of the bucket's plan."""
        model, bucket = plan.model, plan.job.bucket
        assert bucket is not None
        if key not in model.making and len(model.making) - len(model.begun) < POLICY.most_often:
            within = WantedBucket(bucket.axes, plan.lengths(message), (served.range,))
            job = PlanStage(message.stages, message.capacities, [], self._setup.rates_name, within=within)
            self._request(Plan(model, key, job, background=True))

    def _plan_beside(self, plan: Plan, served: ServedBucket, asked: protocol.MakePlan) -> None:
        """Have the plan of a neighbouring bucket made in the background, the nearer one first: no later request waits for it then.
        Buckets of more than twice the request's length, or less than half of it, are left out."""
        model, bucket = plan.model, plan.job.bucket
        assert bucket is not None
        if model.begun or len(bucket.lengths) > 1:
            return
        (length,), (least,), (most,) = plan.lengths(asked), served.range.least, served.range.most
        buckets, binds = model.buckets.of(asked.stages, asked.capacities), flat(plan.job.stages)
        for other in sorted((least - 1, most + 1), key=lambda other: abs(other - length)):
            if not length <= 2 * other <= 4 * length:
                continue
            shapes = bucket.at(binds, (other,))
            wanted = None if other < POLICY.least_extent or buckets.find(shapes) else buckets.wanted(shapes)
            if wanted is None:
                continue
            speeds, rates = self._setup.speeds(), self._setup.rates_name
            job = PlanStage(nested(shapes, asked.stages), asked.capacities, speeds, rates, search=False, recurs=False)
            key = _bucket_key(job, wanted, wanted.widest)
            tries = model.ahead.get(key, 0)
            if tries < POLICY.tries_ahead and self._setup.prepared():
                model.ahead[key] = tries + 1
                entry: Entry | None = self.kept_bucket(model, job, wanted)
                self.begin(self._request(Plan(model, key, job, background=True)), entry)
                return

    # ---- what became of it

    def replace(self, plan: Plan) -> None:
        model, job, bucket = plan.model, plan.job, plan.job.bucket
        plan.live_key = plan.key
        if bucket is not None and plan.served_bucket is not None:
            plan.live_key = _bucket_key(job, bucket, plan.served_bucket.range)
        elif bucket is not None:
            plan.live_key = _key(job)
        old = model.live.get(plan.key) if plan.background else None
        if old is not None:
            plan.replans.last_at = clock.monotonic()
            speeds = ",".join(f"{speed:g}" for speed in job.speeds)
            limit = {"longest_ms": job.longest_ms} if job.longest_ms else {}
            self._event_log.info("replanned", model=model.name, cores=len(job.speeds), speeds=speeds, **limit)
        same = model.live.get(plan.live_key)  # a client wants it searched, or has asked for its own shapes meanwhile
        if plan.answer.plan:
            model.made.add(plan, replaces=old is not None or same is not None or job.within is not None)
        for replaced in dict.fromkeys([old, same]):
            if replaced is not None:
                self.retire(replaced)
        turn = model.making.get(plan.live_key)
        if turn is not None and not turn.begun:
            self.send(turn, Stopped())

    # ---- what became of it

    def announce(self, plan: Plan) -> None:
        """Have requests find the plan. Waiters that it does not serve ask again."""
        model, job, bucket = plan.model, plan.job, plan.job.bucket
        buckets = model.buckets.of(job.stages, job.capacities)
        if bucket is not None and plan.served_bucket is not None:
            buckets.add(flat(job.stages), bucket, plan.served_bucket.range, plan.live_key)
        elif bucket is not None:
            buckets.refuse(flat(job.stages), bucket, plan.no_bucket)
            self._event_log.info("one-shape", model=model.name, why=plan.why)
            plan.job = msgspec.structs.replace(job, bucket=None)
        model.live[plan.live_key] = plan
        waiters, plan.waiters = plan.waiters, []
        for asker in waiters:
            if asker.asked is None or plan.serves(asker.asked):
                plan.tell(asker)
            else:
                self._ask_again(model, asker)
        self._queue.follow(partial(self.make_room, plan))

    def make_room(self, newest: Plan) -> None:
        """Retire plans beyond the limits, one at a time: what is retired no longer counts."""
        if self.eviction.make_room(newest):
            self._queue.follow(partial(self.make_room, newest))

    def fail(self, plan: Plan, error: AspenError) -> None:
        model = plan.model
        waiters, plan.waiters = plan.waiters, []
        if plan.background:
            if plan.key in model.ahead:
                model.ahead[plan.key] = POLICY.tries_ahead
            if (live := model.live.get(plan.key)) is not None:
                live.replans.failed += 1
                if str(error) != live.replans.why:
                    live.replans.why = str(error)
                    self._event_log.warning("not-replanned", model=model.name, why=live.replans.why)
        for asker in waiters:
            if asker.asked is None or waiters[0].asked is None or asker.asked.stages == waiters[0].asked.stages:
                asker.fail(model.about(error))
            else:  # waited for a bucket that the first one's shapes are in
                self._ask_again(model, asker)

    def stop(self, plan: Plan) -> None:
        waiters, plan.waiters = plan.waiters, []
        plan.model.background_child.close()
        for asker in waiters:
            self._ask_again(plan.model, asker)


def _key(asked: protocol.MakePlan | PlanStage) -> bytes:
    """Return the key of a plan for these shapes and values alone."""
    shapes = msgspec.msgpack.encode((asked.stages, asked.capacities))
    return b"%b:%d:%b" % (asked.stream.encode(), asked.stream_bytes, shapes) if asked.stream else shapes


def _bucket_key(asked: protocol.MakePlan | PlanStage, bucket: WantedBucket, one: Range) -> bytes:
    """Return the key of a plan for a range, given the request that asks."""
    largest = nested(bucket.largest(flat(asked.stages), one), asked.stages)
    return b"range:" + msgspec.msgpack.encode((largest, asked.capacities, bucket.axes, one.unit))


def _buckets(model: Model, message: protocol.MakePlan) -> Buckets | None:
    """Return the buckets of the stage that is asked for. None where the model has another input than tensors, where a first stage is
    planned for values of its inputs, or for a stream."""
    first = message.stages[0]
    if message.stream or any(bind.dtype == "object" or (bind.value is not None and len(message.stages) == 1) for bind in first):
        return None
    return model.buckets.of(message.stages, message.capacities)


def _others(model: Model, message: protocol.MakePlan) -> bool:
    """Whether a request's shapes may be one of many: not the model's first ones, or pictures of any size."""
    others = bool(model.begun) or any(plan.answer.plan for plan in model.live.values()) or _any_size(model)
    return others and _afterwards(model, message)


def _afterwards(model: Model, message: protocol.MakePlan) -> bool:
    """Whether a plan is searched afterwards: somebody waits for it, who has not asked for another search."""
    how = model.request.planning
    return not message.ahead and how.search == "quick" and how.tiles is None


def _symbols(model: Model, stages: Sequence[Sequence[protocol.Bind]]) -> list[Axes]:
    """Return the axes that share a symbolic name in the model, for the inputs of a request. Behind data there are others besides."""
    shapes = {info.name: info.shape for info in model.loaded.inputs} if model.loaded is not None and len(stages) == 1 else {}
    return symbols_of([shapes.get(bind.name) for bind in stages[0]])


def _any_size(model: Model) -> bool:
    """Whether an input has two axes of unknown length or more besides the first, which is the batch: the sides of pictures."""
    shapes = [info.shape for info in model.loaded.inputs if info.shape is not None] if model.loaded is not None else []
    return any(sum(not isinstance(dim, int) for dim in shape[1:]) >= 2 for shape in shapes)
