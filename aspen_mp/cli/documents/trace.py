"""Documents of `aspen-mp trace`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from aspen_mp.control.wire.status import Document


class Traced(Document):
    """A worker in a trace. Shares are of `present_s`; the last counters say how tiles came to it."""

    worker: int
    pid: int
    cpu: int
    core_class: str
    joined_s: float | None
    left_s: float | None
    end: str
    present_s: float
    busy: float
    scheduling: float
    idle: float
    parked: float
    stopped: float
    away: float
    tiles: int
    followed: int
    own: int
    stolen: int
    lost_records: int


class TracedOp(Document):
    op: str
    seconds: float
    share: float
    tiles: int
    gflops: float


class TracedRequests(Document):
    """Times are there if a request began and ended in the trace."""

    count: int
    complete: int
    failed: int
    models: dict[str, int]
    median_ms: float | UnsetType = UNSET
    max_ms: float | UnsetType = UNSET
    median_waited_ms: float | UnsetType = UNSET
    max_waited_ms: float | UnsetType = UNSET


class Gap(Document):
    worker: int
    at_s: float
    ms: float
    ended_by: str


class TracedEvent(msgspec.Struct, kw_only=True):
    """Further keys are the event's own facts."""

    at_s: float
    event: str
    worker: int | None


class Trace(Document):
    """`aspen-mp trace`. `cut`: tiles whose end is not in the trace."""

    runtime: str
    duration_s: float
    utilisation: float
    span_utilisation: float
    workers: list[Traced]
    ops: list[TracedOp]
    requests: TracedRequests
    gaps: list[Gap]
    events: list[TracedEvent]
    lost_records: dict[str, int]
    cut: int
    events_written: int | UnsetType = UNSET
    file: str | UnsetType = UNSET
    png: str | UnsetType = UNSET
    tiles: str | UnsetType = UNSET
