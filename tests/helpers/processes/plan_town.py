"""A store of models in which nothing is real but the steps of plans: planning children, the plan cache, memory, workers and time do what
the test says, when it says so. `balance` compares all that there is with a simple account of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.models import eviction, model_store, plan_builder, published_plans, replanning
from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.models.plan_builder import PlanningSetup
from aspen_mp.control.models.plan_machine import Checks, EventQueue
from aspen_mp.control.models.plan_states import BuiltPlan
from aspen_mp.control.models.plans import Asker, Model, Plan, State
from aspen_mp.control.models.publishing import _describe
from aspen_mp.control.planning.planner_child import Inspected, Job, Limits, PlanStage, StagePlanned
from aspen_mp.control.planning.shape_buckets import Range, ServedBucket
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.planner.cost import rates
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm.errors import AspenError
from aspen_mp.shm.segments import Segment

LEAST, SOME = 8, 100
"""Bytes of a segment, and of those that are free."""
ROWS = (8, 20, 21, 23, 24, 40, 41)


class FakeSegment(Segment):
    """Memory of no bytes, which is counted."""

    def __init__(self, open_: set[FakeSegment]) -> None:
        self.open = open_
        open_.add(self)

    def close(self) -> None:
        self.open.discard(self)

    def __del__(self) -> None: ...


@dataclass(eq=False)
class Child:
    """A planning child: its `jobs` wait until the test answers."""

    jobs: list[Job] = field(default_factory=list)
    doing: None = None

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def renew(self) -> bool:
        return not self.jobs

    def close(self, error: AspenError | None = None) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job.on_error(error or AspenError("loading was cancelled"))

    retire = close


class FakePublisher:
    """Gives numbers to plans; `fails`: the next one cannot have one."""

    def __init__(self, resources: Resources, plans: Any, changed: object, added: object) -> None:
        self.plans, self.fails, self.number = plans, False, 0
        self.used: dict[int, Plan] = {}

    def publish(self, plan: Plan, built: BuiltPlan) -> None:
        _describe(plan, built)
        if self.fails:
            self.fails = False
            raise OSError(errno.EMFILE, "full")
        if built.result.needs_values:
            return
        self.number += 1
        plan.answer = msgspec.structs.replace(plan.answer, plan=self.number)
        plan.segments = [2 * self.number, 2 * self.number + 1]
        if not plan.model.weight_segments:
            plan.model.weight_segments = [0]
        self.used[self.number] = plan
        self.plans.add(plan)

    def withdraw(self, plan: Plan) -> None: ...


@dataclass(eq=False)
class Known:
    """A client's question and what became of it."""

    asker: Asker
    answers: list[object]


class Town:
    """`at_once`: verifying and reserving end at once, as they do where there is little to do. `breaking`: clients that go when they are
    answered. `checks`: of each step, by default."""

    def __init__(self, checks: Checks | None = None, *, checked: bool = True) -> None:
        self.patch = patch = pytest.MonkeyPatch()
        patch.setattr(model_store, "PlannerChild", self._child)
        patch.setattr(model_store, "Publisher", self._publisher)
        patch.setattr(model_store, "_source", self._source)
        patch.setattr(model_store.weight_files, "torn", lambda segment: self.torn)
        patch.setattr(plan_builder, "Verifier", lambda loop: SimpleNamespace(verify=self._verify, close=lambda: None))
        patch.setattr(plan_builder, "spacious", lambda nbytes: False)
        patch.setattr(plan_builder.cache_reader, "find", self._find)
        patch.setattr(plan_builder.cache_reader, "stage", self._stage)
        patch.setattr(eviction, "memory_available", lambda: SOME)
        patch.setattr(eviction, "MAX_PLANS", 4)
        patch.setattr(eviction, "MAX_BEHIND", 2)
        patch.setattr(eviction, "descriptor_limit", lambda: 1 << 20)
        patch.setattr(published_plans, "descriptors", SimpleNamespace(dup=lambda fd: -1, close=lambda fd: None))
        patch.setattr(replanning, "REPLAN_S", 0.0)
        self.children: list[Child] = []
        self.known: list[Known] = []
        self.here: set[int] = set()
        self.breaking: set[int] = set()
        self.open: set[FakeSegment] = set()
        self.timers: list[Callable[[], object]] = []
        self.verifying: list[Callable[[], None]] = []
        self.reserving: list[Callable[[Segment | AspenError], None]] = []
        self.speeds, self.prepared, self.torn, self.served, self.hits, self.usable = [1.0], True, False, 0, False, True
        self.at_once, self.keys = False, 0
        nothing: Any = lambda *_: None  # noqa: E731
        held = SimpleNamespace(nbytes=LEAST, fd=0)
        segments: Any = type("Segments", (), {"__getitem__": lambda _, segment: held, "settling": False})()
        segments.settled, segments.drop, segments.discard = lambda then: then(), nothing, nothing
        table: Any = SimpleNamespace(plan=lambda plan: {"served": self.served, "beside": 0})
        loop: Any = SimpleNamespace(later=lambda seconds, action: self.timers.append(action))
        reserver: Any = SimpleNamespace(reserve=self._reserve)
        cache: Any = SimpleNamespace(model=nothing, path_of=str)
        setup = PlanningSetup(cache, rates.BUILT_IN, "", Limits(), lambda: self.speeds, nothing, lambda: self.prepared)
        self.log = EventLog("test", "off")
        self.store = ModelStore(
            Resources(loop, table, segments, reserver, self.log),
            setup,
            nothing,
            nothing,
            queue=EventQueue(checks or (Checks() if checked else None)),
        )

    def close(self) -> None:
        self.patch.undo()

    # ---- what the store takes for real

    def _child(self, *about: object) -> Child:
        self.children.append(Child())
        return self.children[-1]

    def _publisher(self, *about: Any) -> FakePublisher:
        self.publisher = FakePublisher(*about)
        return self.publisher

    def _source(self, message: protocol.Load, fds: list[int]) -> tuple[Any, tuple[Any, ...]]:
        self.keys += 1
        source = SimpleNamespace(name="m", path=message.path, touched=(), keep=(), external=[], changed=lambda: "", close=lambda: None)
        return source, ("path", message.path) if message.path else ("bytes", self.keys)

    def _verify(self, cache: object, files: object, then: Callable[[], None]) -> None:
        if self.at_once:
            then()
        else:
            self.verifying.append(then)

    def _reserve(self, role: str, nbytes: int, then: Callable[[Segment | AspenError], None]) -> None:
        if self.at_once:
            then(FakeSegment(self.open))
        else:
            self.reserving.append(then)

    def _find(self, cache: object, digest: bytes, options: object, job: PlanStage) -> Any:
        if not self.hits or job.bucket is not None:
            return None
        return SimpleNamespace(note=SimpleNamespace(arena_bytes=LEAST, weights=[], searched=False, work_ns=1e9))

    def _stage(self, *about: Any) -> tuple[StagePlanned, list[Any], Segment] | None:
        return (planned(), [], FakeSegment(set())) if self.usable else None

    # ---- what may happen

    def asker(self, client: int) -> Asker:
        answers: list[object] = []

        def answer(message: object) -> None:
            answers.append(message)
            if client in self.breaking:
                self.breaking.discard(client)
                self.gone(client)

        known = Known(Asker(client, len(self.known), answer, answer), answers)
        self.known.append(known)
        self.here.add(client)
        return known.asker

    def load(self, client: int, path: str) -> None:
        self.store.load(protocol.Load(1, path, "m", PlanRequest(winograd=False, instances=1)), [], self.asker(client))

    @property
    def models(self) -> list[Model]:
        return list(self.store._models.values())

    @property
    def jobs(self) -> list[tuple[Child, Job]]:
        return [(child, child.jobs[0]) for child in self.children if child.jobs]

    def inspected(self, digest: bytes) -> None:
        """The first model that is loading was read."""
        child, job = next(each for each in self.jobs if not isinstance(each[1].message, PlanStage))
        child.jobs.remove(job)
        job.on_done(Inspected("m", digest, [], [], []), [])

    def ask(self, client: int, model: Model, rows: int, *, behind: int = 0, **how: bool) -> None:
        """`behind`: a stage behind data, with so many results."""
        stages = [[protocol.Bind("x", "float32", [1, rows], None)]]
        if behind:
            stages.append([protocol.Bind("found", "int64", [behind], None)])
        asker = self.asker(client)
        try:
            self.store.plan(protocol.MakePlan(2, model.id, stages, [], **how), asker)
        except AspenError as error:
            asker.fail(error)

    def planned(self, part: int = 0, *, no_bucket: bool = False, values: bool = False, last: bool = False) -> None:
        """A planning child has made a plan; `part` of the range that was wanted: 1 for all, 2 from the request's length on, 3 up to it."""
        child, job = [each for each in self.jobs if isinstance(each[1].message, PlanStage)][-1 if last else 0]
        child.jobs.remove(job)
        assert isinstance(job.message, PlanStage)
        bucket, served_bucket = job.message.bucket, None
        if part and bucket is not None:
            last = bucket.ranges[-1]
            least, most = (last.least, bucket.lengths)[part == 2], (last.most, bucket.lengths)[part == 3]
            served_bucket = ServedBucket(Range(least, most), [], [], [])
        job.on_done(planned(served_bucket, no_bucket=no_bucket, values=values), [])

    def not_planned(self, error: AspenError) -> None:
        child, job = self.jobs[0]
        child.jobs.remove(job)
        job.on_error(error)

    def reserved(self, error: AspenError | None = None) -> None:
        self.reserving.pop(0)(error or FakeSegment(self.open))

    def retire_done(self) -> None:
        """No request runs on plans that were retired."""
        gone = {plan.segments[0] for plan in self.publisher.used.values() if plan.state is State.RETIRING}
        self.publisher.used = {number: plan for number, plan in self.publisher.used.items() if plan.state is State.LIVE}
        self.store.plans.collected(gone)
        self.store.collected(gone | {segment + 1 for segment in gone})

    def pass_time(self) -> None:
        timers, self.timers = self.timers, []
        for action in timers:
            action()

    def gone(self, client: int) -> None:
        self.here.discard(client)
        self.store.client_gone(client)

    def finish(self) -> None:
        """Everything that goes on comes to an end."""
        while self.jobs or self.verifying or self.reserving or self.timers:
            while self.verifying:
                self.verifying.pop()()
            while self.reserving:
                self.reserved()
            while self.jobs:
                if isinstance(self.jobs[0][1].message, PlanStage):
                    self.planned()
                else:
                    self.inspected(b"")
            self.pass_time()
        self.retire_done()

    # ---- what must hold

    def balance(self, *, ended: bool = False) -> None:
        """Whoever has asked has one answer, or is waited for in one place; memory is somebody's; what has a number is live or retiring.
        `ended`: and nothing goes on."""
        plans = [plan for model in self.models for plan in (*model.live.values(), *model.making.values())]
        waiting = [asker for model in self.models for asker in model.waiting] + [asker for plan in plans for asker in plan.waiters]
        for known in self.known:
            places = sum(asker is known.asker for asker in waiting)
            assert len(known.answers) + places == 1 or known.asker.client not in self.here, f"{known}: {places} places"
            assert len(known.answers) + places <= 1
        assert len(self.open) == sum(len(plan.arenas) for plan in plans)
        live = {id(plan) for plan in plans if plan.segments}
        for plan in self.publisher.used.values():
            assert id(plan) in live or plan.state is State.RETIRING, plan.state
        busy = [model for model in self.models if sum(bool(child.jobs) for child in (model.child, model.background_child)) > 1]  # type: ignore[attr-defined]
        assert not busy, "both planning children of a model give numbers to weights"
        for child in self.children:
            assert not child.jobs or any(child in (model.child, model.background_child) for model in self.models), (
                "a planning child of nobody"
            )
        assert not self.log.latest() or all(event["event"] != "misstep" for event in self.log.latest())
        if ended:
            assert not [plan for plan in plans if plan.begun and plan.state is not State.LIVE]
            assert not [known for known in self.known if not known.answers and known.asker.client in self.here]


def planned(served_bucket: ServedBucket | None = None, *, no_bucket: bool = False, values: bool = False) -> StagePlanned:
    needs = ["n"] if values else []
    return StagePlanned(
        0, [], [], needs, True, False, [], [], served_bucket=served_bucket, no_bucket=no_bucket and served_bucket is None, work_ns=1e9
    )
