"""A runtime's status, as structs: the planner process fills them in, and `aspen-mp status --json` prints them.

Sizes are in bytes, times in seconds unless the name says otherwise, moments in seconds since 1970. A key that is not always there has UNSET
as its default.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A document, or a part of one, that has these keys and no others."""


class Event(msgspec.Struct, kw_only=True):
    """Something that happened to a runtime. Further keys are the event's own facts."""

    time: float
    level: str
    event: str


class Histogram(Document):
    """`counts[i]` durations of at most `le[i]` seconds and more than `le[i - 1]`; the last count is of longer ones."""

    le: list[float]
    counts: list[int]
    sum_s: float


class Worker(Document):
    """A worker. `process`: its state as a process; `state`: in the control table. `current`: request and tile that it executes, by number;
    `model` and `op`: the same by name. `busy_s`: in tiles and in scheduling; `overhead`: the share of scheduling in that. `shared`: another
    worker is on the same CPU. Counters are since the worker started; those from `row` on are absent until it has. `held_ns`: it took no
    tiles of lower classes, for the sake of a higher one; `lent_ns`: it executed tiles of lower classes although a higher one may have had
    some, as their share."""

    id: int
    pid: int
    cpu: int
    core_class: str
    process: str
    shared: bool
    busy_s: float
    overhead: float
    model: str
    op: str
    tile_s: float
    row: int | UnsetType = UNSET
    start_time: int | UnsetType = UNSET
    cache: int | UnsetType = UNSET
    node: int | UnsetType = UNSET
    state: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    attached: int | UnsetType = UNSET
    heartbeat: int | UnsetType = UNSET
    idle: str | UnsetType = UNSET
    current: tuple[int, int] | UnsetType | None = UNSET
    tiles: int | UnsetType = UNSET
    steals: int | UnsetType = UNSET
    pushes: int | UnsetType = UNSET
    follows: int | UnsetType = UNSET
    kernel_ns: int | UnsetType = UNSET
    schedule_ns: int | UnsetType = UNSET
    search_ns: int | UnsetType = UNSET
    sleep_ns: int | UnsetType = UNSET
    held_ns: int | UnsetType = UNSET
    lent_ns: int | UnsetType = UNSET
    parks: int | UnsetType = UNSET
    opaque: int | UnsetType = UNSET
    claims: int | UnsetType = UNSET
    ends: int | UnsetType = UNSET
    wakes: int | UnsetType = UNSET
    faults: int | UnsetType = UNSET
    failed: int | UnsetType = UNSET
    cancelled: int | UnsetType = UNSET
    pace: float | UnsetType | None = UNSET
    queued: int | UnsetType = UNSET


class About(Document):
    """A runtime. `ready`: a worker runs; `restarts`: how often it was started again."""

    name: str
    pid: int
    zygote: int
    version: str
    started: float
    uptime_s: float
    ready: bool
    max_workers: int
    restarts: int
    stopping: bool


class Cores(Document):
    """CPUs that the runtime may use, and those on which other runtimes have workers too. `workers`: "follow" or "fixed". `changes`: how
    often the machine's offer has changed."""

    cpus: str
    cpu_quota: float | None
    workers: str
    shared_cpus: str
    changes: int


class Outage(Document):
    """One recovery. Moments are of CLOCK_MONOTONIC. `runs`: when a worker ran again; `restarted`: requests began anew."""

    began: float
    pids: list[int]
    ended: float
    runs: float | None
    survivors: int
    restarted: bool


class Recovery(Document):
    """What was lost and made good since the runtime started."""

    worker_deaths: int
    hung: int
    withdrawn: int
    slow_tiles: int
    respawned: int
    lacking: int
    given_up: int
    abandoned: int
    arenas_replaced: int
    recoveries: int
    last: str
    last_stop_s: float
    requests: dict[str, int]
    latest: list[Outage]


class Step(Document):
    step: str
    done: int
    total: int


class LivePlan(Document):
    """A plan in use. `ranges`: the smallest and the largest of each length that it serves; empty: one shape; `served`: requests so far."""

    plan: int
    dynamic: bool
    cached: bool
    searched: bool
    instances: int
    served: int
    inputs: dict[str, list[int]]
    ranges: list[tuple[int, int]]
    bytes: int


class Scheduled(Document):
    """What workers count of a model's requests. `requests`: ended, one for each stage; `queue_s`, `run_s`: seconds in all, from submission
    to start and from there to the end; `missed`: ended after their deadline; `refused`: their deadline could not be met; `expired`: it
    passed while they waited."""

    requests: int
    queue_s: float
    run_s: float
    missed: int
    refused: int
    expired: int


class PlansMade(Document):
    """Plans of a model since it was loaded.

    `one_shape`, `range`: plans made for one set of shapes, and for a range of lengths. `cached`: plans from the plan cache. `replaced`:
    plans whose place a searched one took."""

    one_shape: int
    range: int
    cached: int
    replaced: int


class LoadedModel(Document):
    """A model. `clients`: how many hold it; `planning`: plans that are being made; `doing`: how far its planning process is; `share`: its
    weight where core time is short; `objective`: what its tiles and instances are for; `precision`: what products
    may round their factors to; `made`: plans so far, `plans`: those in use."""

    id: int
    name: str
    source: str
    state: str
    clients: int
    planning: int
    doing: Step | None
    share: float
    objective: str
    precision: str
    scheduled: Scheduled
    weight_bytes: int
    made: PlansMade
    plans: list[LivePlan]


class Requests(Document):
    """The requests of a model, by outcome; `seconds`: how long they took.

    `derived`: new shapes that a plan for a range served at once, each counted once by each client. `waited`: waits of requests for a plan,
    one for each stage; `waited_s`: seconds of these."""

    in_flight: int
    completed: int
    failed: int
    timed_out: int
    cancelled: int
    lost: int
    refused: int
    missed: int
    derived: int
    waited: int
    waited_s: float
    seconds: Histogram


class Client(Document):
    client: int
    pid: int
    since: float
    waiting: int
    data_bytes: int
    borrowed_bytes: int


class Segments(Document):
    segments: int
    bytes: int


class Scheduler(Document):
    """The control table. `waiting`: submitted requests that no worker has begun; `queue_seconds`: how long such requests waited."""

    epoch: int
    attach_seq: int
    max_workers: int
    workers: int
    sleepers: int
    spinners: int
    queued: int
    trace: bool
    ready_rows: list[int]
    plans: int
    draining: int
    instances: dict[str, int]
    served: int
    clients: int
    segments: dict[str, int]
    waiting: int
    queue_seconds: Histogram
    queue_depth: int


class Schedule(Document):
    """Networks that run together (`Runtime.workload`), and the schedule that workers follow.

    `numbers`: of the workloads; `models`: their numbers. `phase`: "alone", "waiting" (for requests of each), "naive" (no schedule is
    followed), "trial" (one is followed every other window), "solved" (one is followed) or "reverted" (one did harm). `version`: of the
    hints in force. `times`: how often each model runs in a round. `origin`: "search", or the naive schedule that nothing has beaten.
    `value`, `bound`, `naive`: of the objective, ms or 1/s, as predicted; `proven`: no schedule is better; `found_s`: after what time it was
    found.
    `predicted_ms`, `measured_ms`, `without_ms`: of a round, by the schedule and without it. `ratio`: the time by it through the time
    without it, the median of `pairs` of windows.
    """

    numbers: list[int]
    models: list[int]
    objective: str
    phase: str
    version: int
    times: list[int]
    origin: str | None
    value: float | None
    bound: float | None
    naive: float | None
    proven: bool
    found_s: float | None
    predicted_ms: float | None
    measured_ms: float | None
    without_ms: float | None
    ratio: float | None
    pairs: int
    why: str


class Status(Document):
    """`aspen-mp status`, and `Runtime.status`. `requests` by model, `memory` by role of segments. `schedule`: of workloads that run."""

    runtime: About
    machine: Cores
    recovery: Recovery
    workers: list[Worker]
    models: list[LoadedModel]
    requests: dict[str, Requests]
    clients: list[Client]
    memory: dict[str, Segments]
    events: list[Event]
    scheduler: Scheduler
    schedule: Schedule | None
