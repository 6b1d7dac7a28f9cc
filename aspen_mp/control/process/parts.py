"""The parts of a planner process, in the order in which `composition.py` makes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from aspen_mp.control.memory.async_alloc import AsyncAllocator
from aspen_mp.control.memory.async_free import AsyncReleaser
from aspen_mp.control.memory.clients import Client, ClientMemory
from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models.collector import Collector
from aspen_mp.control.models.drain import Drain
from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.models.request_counts import RequestTotals
from aspen_mp.control.models.running_tiles import RunningTiles
from aspen_mp.control.models.schedules import Schedules
from aspen_mp.control.planning.preload import Preload
from aspen_mp.control.pool.recovery import Recovery
from aspen_mp.control.pool.traces import Traces
from aspen_mp.control.pool.watchdog import Watchdog
from aspen_mp.control.pool.worker_spawner import WorkerSpawner
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.control.process.config import Config
from aspen_mp.control.process.machine import Cores
from aspen_mp.control.wire.connection import Connection
from aspen_mp.control.wire.event_log import EventLog, ShortageLog
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.control.wire.listener import Listener
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.segments import Segment


@dataclass(frozen=True, slots=True)
class Base:
    """The loop, the connections, and how both end. `clients`: connections that have been welcomed."""

    loop: Loop
    event_log: EventLog
    shortages: ShortageLog
    listener: Listener
    drain: Drain
    clients: dict[Connection, Client]


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers, their cores, and what they share with the planner process. `control`: the segment of `table`. `parked`: an eventfd that
    workers write to when they have parked for a recovery."""

    spawner: WorkerSpawner
    cores: Cores
    control: Segment
    doorbell: Segment
    table: _control.ControlTable
    parked: int
    pool: WorkerPool


@dataclass(frozen=True, slots=True)
class Memory:
    """The segments, and what makes, closes and records them."""

    reserver: AsyncAllocator
    releaser: AsyncReleaser
    segments: SegmentStore
    traces: Traces
    collector: Collector


@dataclass(frozen=True, slots=True)
class Models:
    """The loaded models, what is counted of their requests, and the memory of those requests."""

    imports: Preload
    store: ModelStore
    requests: RequestTotals
    schedules: Schedules
    memory: ClientMemory


@dataclass(frozen=True, slots=True)
class Care:
    """The parts that look after workers that die or hang."""

    tiles: RunningTiles
    recovery: Recovery
    watchdog: Watchdog


@dataclass(frozen=True, slots=True)
class Parts:
    """`started`: when, in seconds since 1970."""

    config: Config
    base: Base
    workers: Workers
    memory: Memory
    models: Models
    care: Care
    started: float = field(kw_only=True)
