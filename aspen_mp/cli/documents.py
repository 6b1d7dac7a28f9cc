"""The documents that commands print with --json, as types: `python -m aspen_mp.cli.documents FOLDER` writes a JSON schema for each.

Sizes are in bytes, times in seconds unless the name says otherwise, moments in seconds since 1970. A key that is not always there has UNSET
as its default. The benchmarks' documents are described where they are made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from aspen_mp.planner.plan.why import Why


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A document, or a part of one, that has these keys and no others."""


# ---- parts of several


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


class Value(Document):
    """An input or output: its data type and shape."""

    name: str
    dtype: str
    shape: list[int | str | None]


# ---- aspen-mp status


class Step(Document):
    step: str
    done: int
    total: int


class LivePlan(Document):
    """A plan in use. `range`: the lengths that it serves; `served`: requests so far."""

    plan: int
    dynamic: bool
    cached: bool
    searched: bool
    instances: int
    served: int
    inputs: dict[str, list[int]]
    range: tuple[int, int] | None
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


class LoadedModel(Document):
    """A model. `clients`: how many hold it; `planning`: plans that are being made; `doing`: how far its planning process is; `share`: its
    weight where core time is short; `objective`: what its tiles and instances are for."""

    id: int
    name: str
    source: str
    state: str
    clients: int
    planning: int
    doing: Step | None
    share: float
    objective: str
    scheduled: Scheduled
    weight_bytes: int
    plans: list[LivePlan]


class Requests(Document):
    """The requests of a model, by outcome; `seconds`: how long they took."""

    in_flight: int
    completed: int
    failed: int
    timed_out: int
    cancelled: int
    lost: int
    refused: int
    missed: int
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


# ---- aspen-mp top


class Activity(Document):
    """A worker between two looks. `busy`: share of the time; `overhead`: share of scheduling in that."""

    id: int
    pid: int
    cpu: int
    shared: bool
    core_class: str
    process: str
    idle: str | None
    current: tuple[int, int] | None
    model: str
    op: str
    queued: int | None
    busy: float
    overhead: float
    tiles_per_s: float
    steals_per_s: float
    held: float
    lent: float


class ModelLook(Document):
    """A model between two looks. `queue_ms`, `run_ms`: means, from submission to start and from there to the end; the last three count
    requests that ended after their deadline, were refused because of it, or waited until it had passed."""

    id: int
    name: str
    share: float
    requests_per_s: float
    queue_ms: float
    run_ms: float
    missed: int
    refused: int
    expired: int


class Look(Document):
    """`aspen-mp top`: one line for each look."""

    runtime: About
    seconds: float
    workers: list[Activity]
    requests_per_s: float
    requests_running: int
    requests_waiting: int
    ready_rows: list[int]
    queued: int
    clients: int
    models: list[str]
    of_models: list[ModelLook]
    machine: Cores
    recovery: Recovery
    events: list[Event]


# ---- aspen-mp launch, serve, stop, metrics


class Launched(Document):
    """`aspen-mp launch`. `pid`: the planner process; `launcher`: the process that ends with it; `workers`: their CPUs; `shared`: those
    on which another worker runs, too, of this or of another runtime."""

    name: str
    pid: int
    launcher: int
    workers: list[int]
    shared: list[int]
    models: list[str]
    metrics: str | UnsetType = UNSET


class Serving(Document):
    """`aspen-mp serve`, once it answers. `at`: addresses; `pid`: the process that holds models and front ends; `models`: what is served."""

    at: list[str]
    runtime: str
    pid: int
    models: list[str]
    metrics: str | UnsetType = UNSET


class Stopped(Document):
    """`aspen-mp stop`."""

    name: str
    stopped: bool


class Metrics(Document):
    """`aspen-mp metrics`: `text` with --once, in Prometheus' format; `url` otherwise."""

    text: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


# ---- aspen-mp run


class Latency(Document):
    """Milliseconds of `runs` timed requests, after `warmup` that are not counted."""

    median: float
    p95: float
    min: float
    runs: int
    warmup: int


class Check(Document):
    """An output beside its reference: the largest difference, relative to the reference's largest magnitude; null where shapes
    differ, or where only one of both is a number. `direct`, `onnxruntime`: the errors of direct sums and of onnxruntime, with
    --check float64."""

    name: str
    error: float | None
    ok: bool
    got: str | UnsetType = UNSET
    want: str | UnsetType = UNSET
    direct: float | UnsetType | None = UNSET
    onnxruntime: float | UnsetType | None = UNSET


class Run(Document):
    """`aspen-mp run`. `ready_s`: from the start to the first result."""

    model: str
    workers: int
    ready_s: float
    latency_ms: Latency
    inputs: list[Value]
    outputs: list[Value]
    files: list[str] | UnsetType = UNSET
    check: list[Check] | UnsetType = UNSET


# ---- aspen-mp plan


class StackStep(Document):
    """A layer of a stack. `shape`: of what it makes."""

    kernel: str
    shape: list[int]


class Stack(Document):
    """Layers that an op runs depth first. Ops with the same `number` belong to one stack. `saved_bytes`: of activations that are not
    written to memory. `apart_ms`: what the layers take one after the other, `together_ms`: this way, each as predicted for one core."""

    number: int
    steps: list[StackStep]
    saved_bytes: float
    apart_ms: float
    together_ms: float


class Layer(Document):
    """An op. `batch_slice`: which slice of the batch, of how many; `why`: why it is opaque. With --measure the last four."""

    name: str
    op: str
    kernel: str
    tiles: int
    tile_shape: list[int]
    flops: float
    bytes: float
    predicted_ms: float
    opaque: bool
    batch_slice: tuple[int, int]
    stack: Stack | UnsetType = UNSET
    why: str | UnsetType = UNSET
    measured_ms: float | UnsetType = UNSET
    measured_min_ms: float | UnsetType = UNSET
    gflops: float | UnsetType = UNSET
    gbytes_per_s: float | UnsetType = UNSET


class Search(Document):
    """The search of tiles: simulated times before and after it."""

    start_ms: float
    best_ms: float
    steps: int
    simulated: int
    order: str


class SharedCores(Document):
    """Of a plan for throughput: for how many requests at a time it is, and how many `cores` each of them is cut for."""

    in_flight: int
    cores: int


class Measured(Document):
    one_core_ms: float
    min_ms: float
    rounds: int


class Plan(Document):
    """`aspen-mp plan`. `power`: the cores' speeds together, 1.0 being a core of this machine. `parallel_fraction`: Karp's and Flatt's."""

    model: str
    kind: str
    more_stages: bool
    ops: int
    tiles: int
    joins: int
    edges: int
    depth: int
    flops: float
    arena_bytes: int
    weights_bytes: int
    request_bytes: int
    plan_bytes: int
    opaque: int
    machine: str
    cores: int
    power: float
    predicted_ms: float
    one_core_ms: float
    serial_ms: float
    longest_path_ms: float
    speedup: float
    parallel_fraction: float
    utilisation: float
    in_flight: int
    requests_per_s: float
    inputs: list[Value]
    outputs: list[Value]
    layers: list[Layer]
    planning_s: float
    search: Search | None
    shared: SharedCores | None
    why: Why | UnsetType = UNSET
    file: str | UnsetType = UNSET
    measured: Measured | UnsetType = UNSET


# ---- aspen-mp coplan


class Naive(Document):
    """A schedule without a search: "serial", "apart" or "shared". `gain`: of the plan over it, as a part of it."""

    name: str
    value: float
    gain: float
    best: bool


class CoreSet(Document):
    """So many `cores` of each domain: cores of one class that share a cache and a memory."""

    name: str
    cores: list[int]


class LayerGroup(Document):
    """`live_bytes`: what later groups read of it and of those before. `bytes`: to and from memory. By name of a core set: `ms` alone, and
    `gbytes_per_s` that it then asks of the memory."""

    name: str
    ops: int
    live_bytes: float
    bytes: float
    ms: dict[str, float]
    gbytes_per_s: dict[str, float]


class Profiled(Document):
    """A network, and its latency alone by name of a core set."""

    name: str
    latency_ms: dict[str, float]
    groups: list[LayerGroup]


class PlannedJob(Document):
    """A run of a network, and the numbers of those that it waits for."""

    network: str
    after: list[int]
    end_ms: float


class ScheduledStep(Document):
    """A layer group on a core set, by their numbers. `slowdown`: by others that use the memory at the same time."""

    job: int
    group: int
    set: int
    start_ms: float
    end_ms: float
    slowdown: float


class Coplan(Document):
    """`aspen-mp coplan`. `value` and `bound`: ms, or runs per second. `proven`: no schedule of the model is better. `settled`: the search
    expects to find nothing better. `origin`: "search", or the name of the naive schedule that nothing has beaten."""

    machine: str
    objective: str
    value: float
    bound: float
    proven: bool
    settled: bool
    origin: str
    makespan_ms: float
    naive: list[Naive]
    sets: list[CoreSet]
    networks: list[Profiled]
    jobs: list[PlannedJob]
    steps: list[ScheduledStep]
    file: str | UnsetType = UNSET


# ---- aspen-mp trace


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


# ---- aspen-mp doctor


class Machine(Document):
    cpu: str
    architecture: str
    system: str
    online_cpus: int
    usable_cpus: str
    physical_cores: int
    packages: int
    numa_nodes: int
    cpu_quota: float | None


class Cache(Document):
    bytes: int
    shared_by: int


class Core(Document):
    """A core. `class`: performance, efficiency, low-power or uniform; `speed`: 1.0 is the fastest."""

    cpu: int
    core_class: str = msgspec.field(name="class")
    speed: float
    package: int
    node: int
    threads: list[int]
    l2: int
    l3: int
    caches: dict[str, Cache]


class Lease(Document):
    """What a runtime would use; `taken`: CPUs of other runtimes' workers."""

    workers: int
    cpus: list[int]
    taken: list[int]


class InstructionSets(Document):
    supported: list[str]
    selected: str
    forced: str
    sums_bytes: bool
    sums_pairs: bool
    error: str


class Memory(Document):
    total: int
    available: int
    cgroup_limit: int | None
    shm_total: int
    shm_free: int
    transparent_huge_pages: str
    segment_huge_pages: bool
    descriptors: int


class Kernel(Document):
    pidfd: bool
    memfd: bool
    posix_shm: bool
    futex: bool


class PlanCache(Document):
    folder: str
    plans: int
    bytes: int
    limit: int


class Runtimes(Document):
    """Named runtimes of this user. `directories`: all that are searched, the first one for new runtimes."""

    directories: list[str]
    running: list[str]


class Remains(Document):
    runtimes: list[str]
    segments: list[str]


class Finding(Document):
    level: str
    text: str
    remedy: str


class Doctor(Document):
    """`aspen-mp doctor`. `calibration`: the rates measured by --calibrate; `removed`: with --clean."""

    version: str
    machine: Machine
    cores: list[Core]
    lease: Lease
    isa: InstructionSets
    memory: Memory
    kernel: Kernel
    packages: dict[str, str | None]
    cache: PlanCache
    calibration: dict[str, Any] | None
    runtimes: Runtimes
    stale: Remains
    findings: list[Finding]
    removed: Remains | UnsetType = UNSET


# ---- errors


class Reason(Document):
    """`type`: the name of the error's class, or WrongUse for a command line that cannot be understood."""

    type: str
    message: str


class Error(Document):
    """Any command that fails: exit status 1, or 2 for wrong use."""

    error: Reason


DOCUMENTS: Final[dict[str, Any]] = {
    "launch": Launched,
    "serve": Serving,
    "run": Run,
    "plan": Plan,
    "coplan": Coplan,
    "status": Status,
    "top": Look,
    "metrics": Metrics,
    "trace": Trace,
    "add": list[Worker],
    "remove": list[Worker],
    "scale": list[Worker],
    "stop": Stopped,
    "doctor": Doctor,
    "error": Error,
}
"""By command: the type of its document."""


def schemas() -> dict[str, bytes]:
    """The text of each document's JSON schema, by the name of its file."""
    written = {}
    for name, kind in DOCUMENTS.items():
        title = "an error" if name == "error" else f"aspen-mp {name} --json"
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **msgspec.json.schema(kind)}
        written[f"{name}.json"] = msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"
    return written


def main(arguments: Sequence[str]) -> None:
    (folder,) = map(Path, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_bytes(text)


if __name__ == "__main__":
    main(sys.argv[1:])
