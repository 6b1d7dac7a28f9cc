"""A trace of the runtime while somebody asks for one: the segment that workers record into, and what their records mean.

A record names an instance and a tile (`docs/protocol/trace.md`). Only this process knows which plan was in that instance, and who was the
worker in that row. It keeps every plan that was there while the trace ran, also those unloaded since, and every event. One trace at a time.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aspen_mp.control.memory.async_alloc import Then
from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.errors import AspenError, RequestError, ResourceLimitError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import clock, descriptors, processes

BUFFER_BYTES: Final = 128 << 20
"""Bytes of the rings of all rows together where the client has not said."""
LEAST_RECORDS: Final = 1 << 10
MOST_RECORDS: Final = 1 << 24
KEPT_PLANS: Final = 1024
"""Plans that a trace remembers; beyond, the oldest are forgotten and their tiles have no names."""
KEPT_EVENTS: Final = 1 << 14
GONE: Final = 0
"""In place of a client that has gone while memory was being reserved: no client has this number."""


@dataclass(slots=True)
class TracedPlan:
    """`fd`: of the plan's segment. `since`: ticks before which none of its tiles ran. `instances`: by control table number."""

    plan: int
    generation: int
    instances: list[int]
    since: int
    fd: int
    model: str


@dataclass(slots=True)
class ActiveTrace:
    client: int
    segment: int
    capacity: int
    began: tuple[int, int]
    unix_time: float
    workers: list[dict[str, Any]]
    ended: tuple[int, int] | None = None
    plans: deque[TracedPlan] = field(default_factory=deque)
    forgotten: int = 0
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))


class Traces:
    def __init__(self, name: str, resources: Resources, rows: int, pool: WorkerPool) -> None:
        """`name`: of the runtime. `rows`: of workers, each of which gets a ring."""
        self._name, self._rows, self._pool = name, rows, pool
        self._table, self._segments, self._reserver = resources.table, resources.segments, resources.reserver
        self._trace: ActiveTrace | None = None
        self._waiting: int | None = None  # client whose trace begins as soon as there is memory
        resources.event_log.listen(self._happened)

    # ---- a client's requests

    def begin(self, client: int, pid: int, records: int, model_of: Callable[[int], str], then: Then) -> None:
        """Begins a trace with rings of `records` records (0: as many as `BUFFER_BYTES` have room for), rounded up to a power of two.
        `model_of(plan)` is the name of the model that a plan belongs to. `then` gets the segment, which is closed after it, once there is
        memory; or ResourceLimitError where that lacks. RequestError if there is a trace already."""
        if self._trace is not None or self._waiting is not None:
            raise RequestError("this runtime is being traced already. End that trace first")
        if records > MOST_RECORDS:
            raise ResourceLimitError(f"a trace keeps at most {MOST_RECORDS} records per worker, not {records}")
        if records:
            capacity = 1 << (max(LEAST_RECORDS, records) - 1).bit_length()
        else:
            capacity = max(LEAST_RECORDS, 1 << (BUFFER_BYTES // 32 // self._rows).bit_length() - 1)
        self._waiting = client

        def ready(segment: Segment | AspenError) -> None:
            gone, self._waiting = self._waiting != client, None
            if isinstance(segment, AspenError):
                then(segment)
                return
            with segment:
                try:
                    if not gone:
                        self._record(client, pid, capacity, segment, model_of)
                except AspenError as error:
                    then(error)
                except OSError as error:
                    then(ResourceLimitError(f"the planner process lacks descriptors or memory for a trace: {error.strerror}"))
                else:
                    then(segment)

        self._reserver.reserve("trace", _control.trace_bytes(self._rows, capacity), ready)

    def _record(self, client: int, pid: int, capacity: int, segment: Segment, model_of: Callable[[int], str]) -> None:
        _control.trace_format(segment.mapping, self._rows, capacity)
        number = self._segments.add("trace", segment.nbytes, descriptors.dup(segment.fd), f"process {pid}")
        trace = ActiveTrace(client, number, capacity, _control.clock(), clock.time(), self._pool.present())
        try:
            for plan in self._table.plans():
                self._add(trace, plan, model_of(plan), 0)
        except BaseException:
            _let_go(trace)
            self._segments.drop(number)
            self._pool.publish()
            raise
        self._trace = trace
        self._table.set_trace(number)
        self._pool.publish()

    def end(self, client: int) -> tuple[int, int]:
        """Ends recording. Returns how many plans there are to ask for and a descriptor, the caller's to close, of a description as JSON."""
        trace = self._of(client)
        if trace.ended is None:
            self._stop(trace)
        about = {
            "runtime": self._name,
            "pid": processes.getpid(),
            "unix_time": trace.unix_time,
            "began": trace.began,
            "ended": trace.ended,
            "rings": self._rows,
            "capacity": trace.capacity,
            "workers": trace.workers,
            "events": list(trace.events),
            "plans": [
                {"plan": p.plan, "generation": p.generation, "instances": p.instances, "since": p.since, "model": p.model}
                for p in trace.plans
            ],
            "forgotten_plans": trace.forgotten,
        }
        return len(trace.plans), _written(json.dumps(about).encode())

    def plan(self, client: int, index: int) -> int:
        """A descriptor, the caller's to close, of a copy of a plan: the workers' own is not a client's to have."""
        trace = self._of(client)
        if trace.ended is None or not 0 <= index < len(trace.plans):
            raise RequestError(f"the trace has no plan {index}")
        return _copied(trace.plans[index].fd)

    def drop(self, client: int) -> None:
        self._of(client)
        self.client_gone(client)

    def client_gone(self, client: int) -> None:
        if self._waiting == client:
            self._waiting = GONE
        trace = self._trace
        if trace is None or trace.client != client:
            return
        if trace.ended is None:
            self._stop(trace)
        _let_go(trace)
        self._trace = None

    # ---- what happens meanwhile

    def plan_added(self, number: int, model: str) -> None:
        """A plan of a model is about to be announced. Where there is no descriptor left to keep it by, its tiles have no names, and it is
        announced all the same."""
        trace = self._trace
        if trace is not None and trace.ended is None:
            try:
                self._add(trace, number, model, _control.clock()[0])
            except OSError:
                trace.forgotten += 1

    def _happened(self, event: str, facts: dict[str, Any]) -> None:
        trace = self._trace
        if trace is None or trace.ended is not None:
            return
        ticks, _ = _control.clock()
        known = {"core_class": self._pool.class_of(facts["worker"])} if "worker" in facts else {}
        trace.events.append({"ticks": ticks, "event": event, **facts, **known})

    def _of(self, client: int) -> ActiveTrace:
        if self._trace is None or self._trace.client != client:
            raise RequestError("this client has not started a trace")
        return self._trace

    def _stop(self, trace: ActiveTrace) -> None:
        trace.ended = _control.clock()
        self._table.set_trace(0)
        self._segments.drop(trace.segment)
        self._pool.publish()

    def _add(self, trace: ActiveTrace, number: int, model: str, since: int) -> None:
        about = self._table.plan(number)
        fd = descriptors.dup(self._segments[about["segment"]].fd)
        trace.plans.append(TracedPlan(number, about["generation"], about["instances"], since, fd, model))
        while len(trace.plans) > KEPT_PLANS:
            descriptors.close(trace.plans.popleft().fd)
            trace.forgotten += 1

    def close(self) -> None:
        if self._trace is not None:
            _let_go(self._trace)
            self._trace = None


def _let_go(trace: ActiveTrace) -> None:
    for plan in trace.plans:
        descriptors.close(plan.fd)
    trace.plans.clear()


def _written(data: bytes) -> int:
    fd = descriptors.memfd_create("aspen-trace", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[descriptors.write(fd, view) :]
    except BaseException:
        descriptors.close(fd)
        raise
    return fd


def _copied(source: int) -> int:
    size, offset = descriptors.fstat(source).st_size, 0
    fd = descriptors.memfd_create("aspen-traced-plan", os.MFD_CLOEXEC)
    try:
        while offset < size:
            n = descriptors.sendfile(fd, source, offset, size - offset)
            if not n:
                break
            offset += n
    except BaseException:
        descriptors.close(fd)
        raise
    return fd
