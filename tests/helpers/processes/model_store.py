"""A planner process's store of models without its processes: planning children answer, and requests end, when the test says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_models

from aspen_mp.control.memory.async_free import AsyncReleaser
from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models import model_store as stores
from aspen_mp.control.models.collector import Collector
from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.models.plan_builder import PlanningSetup
from aspen_mp.control.models.plans import Asker
from aspen_mp.control.planning.planner_child import Inspected, Job, JobProgress, Limits, PlanStage, StagePlanned
from aspen_mp.control.planning.shape_buckets import Range, ServedBucket
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.planner import api
from aspen_mp.planner.cost import rates
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.errors import AspenError
from aspen_mp.shm.segments import Segment

CLIENT = 3
PREEMPT_MS = 1e-5
"""No tile is so short."""


class Table(_control.ControlTable):
    """One whose workers are with a request on every plan for as long as the test says."""

    running = False
    served = 0
    beside = 0

    def collect(self) -> list[int]:
        return [] if self.running else super().collect()

    def plan(self, plan: int) -> dict[str, Any]:
        return {**super().plan(plan), "served": self.served, "beside": self.beside}


class Child:
    """A planning child that answers when the test says: `jobs` wait for it."""

    def __init__(self, loop: object, name: str, serve: object, keep: object, prepare: object, limits: Limits) -> None:
        self.limits = limits
        self.jobs: list[Job] = []
        self.doing: JobProgress | None = None
        self.renewed = 0

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def renew(self) -> bool:
        self.renewed += 1
        return not self.jobs

    def close(self, error: AspenError | None = None) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job.on_error(error or AspenError("loading was cancelled"))

    def retire(self) -> None:
        self.close()


class World:
    """A store of models with one of them loaded; `prepared`: whether planning children can be forked at once."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stores, "PlannerChild", self._child)
        self.children: list[Child] = []
        self.control = Segment.create("control", _control.CONTROL_BYTES)
        self.bell = Segment.create("doorbell", _control.DOORBELL_BYTES)
        self.table = Table(self.control.mapping, self.bell.mapping, create=True, max_workers=2, spin_us=0)
        self.loop, self.event_log = Loop(), EventLog("test", "off")
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        self.segments = SegmentStore(self.table, nothing, nothing, AsyncReleaser(self.loop))
        self.speeds, self.prepared = [1.0], True
        collector = Collector(self.table, self.segments, SimpleNamespace(publish=nothing))  # type: ignore[arg-type]
        self.collect = collector.collect
        setup = PlanningSetup(
            *(None, rates.BUILT_IN, "built-in", Limits(), lambda: self.speeds),
            prepare=nothing,
            prepared=lambda: self.prepared,
            preempt_ms=PREEMPT_MS,
        )
        resources = Resources(self.loop, self.table, self.segments, SimpleNamespace(), self.event_log)  # type: ignore[arg-type]
        collector.models = self.store = ModelStore(resources, setup, self.collect, nothing)
        self.answers: list[protocol.Message] = []
        self.errors: list[BaseException] = []
        path = folder / "chain.onnx"
        path.write_bytes(small_models.conv_chain(3, 8, 8).SerializeToString())
        self.store.load(protocol.Load(1, str(path), "chain", PlanRequest(instances=1)), [], self.asker(1))
        self.finish(Inspected("chain", b"", [], [], []), [])
        self.model = self.answers[-1].model  # type: ignore[attr-defined]

    def _child(self, *args: Any) -> Child:
        self.children.append(Child(*args))
        return self.children[-1]

    def asker(self, request: int) -> Asker:
        return Asker(CLIENT, request, self.answers.append, self.errors.append)

    @property
    def waiting(self) -> list[Job]:
        return [job for child in self.children for job in child.jobs]

    def finish(self, result: Inspected | StagePlanned, segments: list[tuple[str, int, int]]) -> None:
        """The one job that waits is done."""
        (job,) = self.waiting
        for child in self.children:
            child.jobs.clear()
        job.on_done(result, segments)

    def ask(self, rows: int = 8, *, ahead: bool = False, often: bool = False, beside: bool = False) -> None:
        shape = protocol.Bind("x", "float32", [1, 8, rows, 8], None)
        self.store.plan(protocol.MakePlan(2, self.model, [[shape]], [], ahead, often, beside), self.asker(2))

    def ask_behind(self, found: int) -> None:
        """For the stage behind one with so many results."""
        shapes = [[protocol.Bind("x", "float32", [1, 8, 8, 8], None)], [protocol.Bind("found", "int64", [found], None)]]
        self.store.plan(protocol.MakePlan(2, self.model, shapes, []), self.asker(2))

    def answer(self, spare: int = -1, served_bucket: tuple[int, int] | None = None) -> None:
        """As a planning child would, for as many workers as there are speeds; with a spare arena in place of one of its own, or for a range
        of a length."""
        (job,) = self.waiting
        assert isinstance(job.message, PlanStage)
        model = api.load(small_models.conv_chain(3, 8, 8).SerializeToString())
        bound = {"x": api.Binding(np.dtype(np.float32), (1, 8, 8, 8), None)}
        plan = api.plan_stage(model, [bound], workers=len(job.message.speeds)).plan
        assert plan is not None
        packed, at = [], 64
        for item in plan.weights:
            packed.append((item.key, 0, at))
            at += -(-item.nbytes // 64) * 64
        plan.place_weights({key: (segment, offset) for key, segment, offset in packed})
        sizes = {"weights": at, "plan": plan.nbytes, "arena": plan.arena_layout()["arena_bytes"]}
        if "weights" in [held.role for held in self.segments]:
            del sizes["weights"]
            packed = []
        if spare >= 0:
            del sizes["arena"]
        segments = []
        for role, nbytes in sizes.items():
            with Segment.create(role, nbytes) as made:
                if role == "plan":
                    plan.write(made.buf)
                segments.append((role, nbytes, os.dup(made.fd)))
        of_range = None if served_bucket is None else ServedBucket(Range(served_bucket[:1], served_bucket[1:]), [], [], [])
        self.finish(StagePlanned(plan.request_bytes, [], [], [], True, False, [0], packed, spare=spare, served_bucket=of_range), segments)

    def replan(self) -> None:
        self.table.served += 1
        self.speeds = [1.0] * (3 - len(self.speeds))
        self.store.refresh()

    @property
    def roles(self) -> list[str]:
        return sorted(held.role for held in self.segments)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.event_log.latest() if event["event"] == name]


@contextmanager
def store_of_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(folder, monkeypatch)
    try:
        yield world
    finally:
        world.store.close()
        world.segments.close()
        world.loop.close()
