"""Documents about runtimes: `top`, `launch`, `serve`, `stop`, `metrics`. `status` prints `control/wire/status.py`."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from aspen_mp.control.wire.status import About, Cores, Document, Event, Recovery

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
    """A model between two looks. `queue_ms`, `run_ms`: means, from submission to start and from there to the end; `missed`, `refused`,
    `expired`: requests that ended after their deadline, were refused because of it, or waited until it had passed.

    `plans`: plans made or read from the plan cache; `replaced`: plans whose place a searched one took. `derived`, `waited`, `waited_s`: as
    of `status`, of all models of this name."""

    id: int
    name: str
    share: float
    requests_per_s: float
    queue_ms: float
    run_ms: float
    missed: int
    refused: int
    expired: int
    plans: int
    replaced: int
    derived: int
    waited: int
    waited_s: float


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
