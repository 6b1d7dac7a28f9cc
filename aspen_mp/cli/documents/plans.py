"""Documents about models and plans: `run`, `plan`, `coplan`."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from aspen_mp.control.wire.status import Document
from aspen_mp.planner.plan.why import Why


class Value(Document):
    """An input or output: its data type and shape."""

    name: str
    dtype: str
    shape: list[int | str | None]


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


class Spread(Document):
    """Milliseconds of requests."""

    median: float
    p95: float
    min: float


class Frame(Document):
    """A frame of a stream, by the name of its file. `changed`, `tiles`, `work`, `error`: as of `FrameReport`."""

    frame: str
    ms: float
    changed: float
    tiles: float
    work: float
    error: float | None


class Streamed(Document):
    """Frames of --stream. `bytes`: shared memory of the stream; `later_ms`: of the frames after the first, null where there is none."""

    bytes: int
    later_ms: Spread | None
    frames: list[Frame]


class Run(Document):
    """`aspen-mp run`. `ready_s`: from the start to the first result. `latency_ms`: of whole runs, also with --stream. `outputs`: with
    --stream, of the last frame."""

    model: str
    workers: int
    ready_s: float
    latency_ms: Latency
    inputs: list[Value]
    outputs: list[Value]
    files: list[str] | UnsetType = UNSET
    check: list[Check] | UnsetType = UNSET
    stream: Streamed | UnsetType = UNSET


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
