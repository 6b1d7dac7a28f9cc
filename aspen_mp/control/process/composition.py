"""The planner process: owns every segment of a runtime, starts and watches its workers, loads models, answers clients.

One thread, one event loop. Nothing here is on the path of a request: clients publish those in their own segments and workers claim them.

The parts are made group after group. Each group is given the groups before it. Two things are told to a part once a later one is there. The
pool learns who hears of workers, and the collector learns of the models.
"""

from __future__ import annotations

import os
import signal

from aspen_mp.control.memory.async_alloc import AsyncAllocator
from aspen_mp.control.memory.async_free import AsyncReleaser
from aspen_mp.control.memory.clients import Client, ClientMemory
from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.memory.segments import SegmentStore, sealed
from aspen_mp.control.models.collector import Collector
from aspen_mp.control.models.drain import Drain
from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.models.plan_builder import PlanningSetup
from aspen_mp.control.models.request_counts import RequestTotals
from aspen_mp.control.models.running_tiles import RunningTiles
from aspen_mp.control.models.schedules import Schedules, View
from aspen_mp.control.planning import local_rates
from aspen_mp.control.planning.plan_cache import Cache
from aspen_mp.control.planning.planner_child import Limits
from aspen_mp.control.planning.preload import Preload
from aspen_mp.control.planning.schedule_child import ScheduleChild
from aspen_mp.control.pool.recovery import Recovery
from aspen_mp.control.pool.traces import Traces
from aspen_mp.control.pool.watchdog import Watchdog
from aspen_mp.control.pool.worker_spawner import WorkerSpawner
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.control.process.admission import Admission
from aspen_mp.control.process.config import Config
from aspen_mp.control.process.dispatch import Dispatcher
from aspen_mp.control.process.machine import Cores, MachineWatch
from aspen_mp.control.process.parts import Base, Care, Memory, Models, Parts, Workers
from aspen_mp.control.process.supervision import Supervisor
from aspen_mp.control.wire import run_directory
from aspen_mp.control.wire.connection import Connection
from aspen_mp.control.wire.event_log import EventLog, ShortageLog
from aspen_mp.control.wire.event_loop import PRIORITY_WORKER, Loop
from aspen_mp.control.wire.listener import Listener
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.segments import Segment
from aspen_mp.system import clock, descriptors, sockets


def _base(config: Config, starter: sockets.socket) -> Base:
    loop, event_log = Loop(), EventLog(config.name, config.log)
    shortages = ShortageLog(event_log)
    loop.on_scarce = shortages.note
    listener = Listener(loop, starter)
    clients: dict[Connection, Client] = {}
    return Base(
        loop=loop,
        event_log=event_log,
        shortages=shortages,
        listener=listener,
        drain=Drain(loop, listener, clients, event_log),
        clients=clients,
    )


def _workers(config: Config, base: Base, spawner: WorkerSpawner) -> Workers:
    spawner.watch(base.loop, base.event_log)
    cores = Cores(config)
    control = Segment.create("control", _control.CONTROL_BYTES)
    doorbell = sealed("doorbell", _control.DOORBELL_BYTES)
    table = _control.ControlTable(
        control.mapping,
        doorbell.mapping,
        create=True,
        max_workers=cores.max_workers,
        spin_us=config.spin_us,
        preempt_us=round(config.preempt_ms * 1000),
    )
    table.set_stealing(config.stealing)
    table.set_policy(config.order)
    parked = descriptors.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    pool = WorkerPool(
        loop=base.loop,
        table=table,
        fds=(control.fd, doorbell.fd, parked),
        max_workers=cores.max_workers,
        event_log=base.event_log,
        leases=cores.leases,
        spawner=spawner,
    )
    for own in (control, doorbell):
        own.mapping.keep_from_children()
    return Workers(spawner=spawner, cores=cores, control=control, doorbell=doorbell, table=table, parked=parked, pool=pool)


def _memory(config: Config, base: Base, workers: Workers) -> tuple[Memory, Resources]:
    """The segments, and what the models are given of them."""
    table, pool = workers.table, workers.pool
    reserver, releaser = AsyncAllocator(base.loop), AsyncReleaser(base.loop)
    segments = SegmentStore(table, pool.attach, pool.detach, releaser)
    resources = Resources(loop=base.loop, table=table, segments=segments, reserver=reserver, event_log=base.event_log)
    memory = Memory(
        reserver=reserver,
        releaser=releaser,
        segments=segments,
        traces=Traces(config.name, resources, workers.cores.max_workers, pool),
        collector=Collector(table, segments, pool),
    )
    return memory, resources


def _models(config: Config, base: Base, workers: Workers, memory: Memory, resources: Resources) -> Models:
    cores, collect = workers.cores, memory.collector.collect
    imports = Preload(base.loop, base.shortages.note)
    rates, rates_name = local_rates.planning()
    setup = PlanningSetup(
        cache=Cache.open(config.cache, config.cache_bytes),
        rates=rates,
        rates_name=rates_name,
        limits=Limits(config.patience_s, config.planning_bytes),
        speeds=lambda: cores.planned_for,
        prepare=imports.now,
        prepared=imports.ready,
        preempt_ms=config.preempt_ms,
        replans=config.replan,
    )
    store = ModelStore(resources, setup, changed=collect, added=memory.traces.plan_added, plans_bytes=config.plans_bytes)
    memory.collector.models = store
    return Models(
        imports=imports,
        store=store,
        requests=RequestTotals(store.names),
        schedules=_schedules(config, base, workers, store),
        memory=ClientMemory(resources, memory.releaser, base.clients, publish=workers.pool.publish, collect=collect, relieve=store.relieve),
    )


def _schedules(config: Config, base: Base, workers: Workers, store: ModelStore) -> Schedules:
    table = workers.table
    view = View(
        live=store.live,
        counts=table.model_counts,
        cores=lambda: workers.cores.of_rows(table.workers()),
        publish=table.set_hints,
        name=lambda model: store.names().get(model, ""),
    )
    child = lambda *what: ScheduleChild(base.loop, *what)  # noqa: E731
    return Schedules(view, base.event_log, now=clock.monotonic, later=base.loop.later, child=child, cache=config.cache)


def _care(config: Config, base: Base, workers: Workers, memory: Memory, models: Models) -> Care:
    loop, event_log, table, pool = base.loop, base.event_log, workers.table, workers.pool
    tiles = RunningTiles(table, memory.segments, models.store.plans)
    recovery = Recovery(
        loop=loop,
        table=table,
        segments=memory.segments,
        event_log=event_log,
        pool=pool,
        tiles=tiles,
        replace=models.store.replace_arena,
        after=memory.collector.collect,
        give_up=base.drain.no_workers,
    )
    watchdog = Watchdog(loop, table, event_log, pool=pool, tiles=tiles, recovery=recovery, grace_s=config.cancel_grace_s)
    return Care(tiles=tiles, recovery=recovery, watchdog=watchdog)


def _parts(config: Config, starter: sockets.socket, spawner: WorkerSpawner) -> Parts:
    started = clock.time()
    base = _base(config, starter)
    workers = _workers(config, base, spawner)
    memory, resources = _memory(config, base, workers)
    models = _models(config, base, workers, memory, resources)
    care = _care(config, base, workers, memory, models)
    return Parts(config=config, base=base, workers=workers, memory=memory, models=models, care=care, started=started)


class PlannerProcess:
    def __init__(self, config: Config, claim: run_directory.Claim | None, starter: sockets.socket, spawner: WorkerSpawner) -> None:
        """`claim`: of its name, where it has one. `spawner`: it may have begun to start workers already."""
        self._claim = claim
        parts = self._parts = _parts(config, starter, spawner)
        base, workers, care = parts.base, parts.workers, parts.care
        watch = MachineWatch(
            base.loop,
            base.event_log,
            base.shortages,
            workers.table,
            cores=workers.cores,
            pool=workers.pool,
            models=parts.models.store,
            recovery=care.recovery,
            watchdog=care.watchdog,
            replan=config.replan,
        )
        unnamed, address = run_directory.listen_unnamed()
        admission = Admission(parts, address)
        supervisor = Supervisor(parts, admission)
        workers.pool.connect(supervisor, parts.memory.segments)
        base.loop.watch(workers.parked, PRIORITY_WORKER, supervisor.parked)
        base.loop.on_signal(signal.SIGTERM, lambda: base.drain.begin(config.grace_s))
        base.loop.on_signal(signal.SIGINT, base.loop.stop)
        if config.restarts:
            base.event_log.warning("runtime-restarted", restarts=config.restarts)
        first = workers.cores.first
        workers.pool.start(len(first), first, chosen=config.cores is not None)
        spawner.dismiss_early()
        watch.begin()
        base.listener.open([unnamed] + ([claim.listen()] if claim else []), Dispatcher(parts, admission, watch))

    def run(self) -> None:
        self._parts.base.loop.run()

    def close(self) -> None:
        """Ends workers, planning children and connections, in this order, and removes the run files."""
        base, workers, memory, models = self._parts.base, self._parts.workers, self._parts.memory, self._parts.models
        self._parts.care.recovery.closed = True
        memory.releaser.close()
        workers.pool.kill_all()
        workers.spawner.close()
        workers.cores.leases.close()
        models.schedules.close()
        models.store.close()
        memory.reserver.close()
        memory.traces.close()
        base.listener.close()
        if self._claim is not None:
            self._claim.release()
        memory.segments.close()
        base.loop.close()
        descriptors.close(workers.parked)
