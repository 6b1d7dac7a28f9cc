"""The runtime's status: the structs of `wire/status.py`, filled in from the parts of the planner process."""

from __future__ import annotations

import json
from typing import cast

import msgspec

import aspen_mp
from aspen_mp.control.memory.clients import Client
from aspen_mp.control.memory.segments import Held
from aspen_mp.control.process.parts import Parts
from aspen_mp.control.wire import status
from aspen_mp.shm.bindings import _control
from aspen_mp.system import clock, descriptors, processes


def encoded(parts: Parts) -> bytes:
    """The status as JSON. Text that is not Unicode, such as names of files, and numbers that JSON does not know pass through."""
    return json.dumps(msgspec.to_builtins(describe(parts))).encode()


def describe(parts: Parts) -> status.Status:
    """Everything that `Runtime.status` returns."""
    clients = list(parts.base.clients.values())
    requests, queued = parts.models.requests.describe([client.tally for client in clients])
    in_flight = sum(found.in_flight for found in requests.values())
    # Events have facts of their own, which a struct would drop.
    events = cast("list[status.Event]", parts.base.event_log.latest())
    return status.Status(
        runtime=_runtime(parts),
        machine=parts.workers.cores.describe(),
        recovery=_recovery(parts),
        workers=[_worker(parts, worker) for worker in parts.workers.pool.describe()],
        models=msgspec.convert(parts.models.store.describe(), list[status.LoadedModel]),
        requests=requests,
        clients=[_client(parts, client) for client in clients],
        memory=_memory(parts),
        events=events,
        scheduler=_scheduler(parts, queued, in_flight),
        schedule=msgspec.convert(parts.models.schedules.describe(), status.Schedule | None),
    )


def _runtime(parts: Parts) -> status.About:
    return status.About(
        name=parts.config.name,
        pid=processes.getpid(),
        zygote=parts.workers.spawner.zygote,
        version=aspen_mp.__version__,
        started=parts.started,
        uptime_s=clock.time() - parts.started,
        ready=parts.workers.pool.running > 0,
        max_workers=parts.workers.cores.max_workers,
        restarts=parts.config.restarts,
        stopping=parts.base.drain.going_on,
    )


def _recovery(parts: Parts) -> status.Recovery:
    pool, recovery = parts.workers.pool, parts.care.recovery
    return status.Recovery(
        worker_deaths=recovery.deaths,
        hung=pool.hangs,
        withdrawn=pool.withdrawals,
        slow_tiles=parts.care.watchdog.slow_tiles,
        respawned=pool.respawned,
        lacking=pool.lacking,
        given_up=recovery.given_up,
        abandoned=pool.abandoned,
        arenas_replaced=recovery.replaced,
        recoveries=recovery.recoveries,
        last=recovery.last,
        last_stop_s=recovery.last_stop_s,
        requests=dict(recovery.totals),
        latest=recovery.outages.latest(),
    )


def _worker(parts: Parts, worker: status.Worker) -> status.Worker:
    """A worker with what it executes, and for how long it has been seen in that tile."""
    if worker.current:
        worker.model, worker.op = parts.care.tiles.name(*worker.current)
    worker.tile_s = parts.care.watchdog.seconds(worker.id)
    return worker


def _client(parts: Parts, client: Client) -> status.Client:
    held = [parts.memory.segments[segment] for segment in client.data.values()]
    return status.Client(
        client=client.number,
        pid=client.connection.pid,
        since=client.since,
        waiting=_waiting(parts, client),
        data_bytes=sum(data.own_bytes for data in held),
        borrowed_bytes=sum(data.nbytes - data.own_bytes for data in held),
    )


def _waiting(parts: Parts, client: Client) -> int:
    """Requests that a client has submitted and no worker has started."""
    data = descriptors.pread(parts.memory.segments[client.segment].fd, _control.SLOTS // 8, _control.CLIENT_PENDING)
    return int.from_bytes(data, "little").bit_count()


def _memory(parts: Parts) -> dict[str, status.Segments]:
    """Segments and their bytes, by role."""
    memory: dict[str, status.Segments] = {}
    own = [Held(0, s.role, s.nbytes, s.fd, "") for s in (parts.workers.control, parts.workers.doorbell)]
    for held in [*own, *parts.memory.segments]:
        entry = memory.setdefault(held.role, status.Segments(segments=0, bytes=0))
        entry.segments += 1
        entry.bytes += held.own_bytes
    return memory


def _scheduler(parts: Parts, queued: status.Histogram, in_flight: int) -> status.Scheduler:
    """`in_flight`: requests, as their clients count them."""
    said = parts.workers.table.status()
    waiting = sum(_waiting(parts, client) for client in parts.base.clients.values())
    depth = max(waiting, in_flight - said["instances"]["running"], 0)
    return status.Scheduler(**said, waiting=waiting, queue_seconds=queued, queue_depth=depth)
