"""The planner process: owns every segment of a runtime, starts and watches its workers, loads models, answers clients.

One thread, one event loop. Nothing here is on the path of a request: clients publish those in their own segments and workers claim them.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

import aspen_mp
from aspen_mp.control.memory.async_alloc import AsyncAllocator
from aspen_mp.control.memory.async_free import AsyncReleaser
from aspen_mp.control.memory.clients import Client, ClientMemory
from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.memory.segments import Held, SegmentStore
from aspen_mp.control.models.drain import Drain
from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.models.plan_builder import PlanningSetup
from aspen_mp.control.models.plans import Asker
from aspen_mp.control.models.request_counts import RequestTotals
from aspen_mp.control.models.schedules import Schedules, View
from aspen_mp.control.planning import local_rates
from aspen_mp.control.planning.plan_cache import Cache
from aspen_mp.control.planning.planner_child import Limits
from aspen_mp.control.planning.preload import Preload
from aspen_mp.control.planning.schedule_child import Core, ScheduleChild
from aspen_mp.control.pool import placement
from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.control.pool.core_speeds import CoreSpeeds, alike
from aspen_mp.control.pool.recovery import Death, Recovery
from aspen_mp.control.pool.traces import Traces
from aspen_mp.control.pool.watchdog import Watchdog
from aspen_mp.control.pool.worker_spawner import WorkerSpawner
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.control.wire import identity, protocol, run_directory
from aspen_mp.control.wire.connection import MAX_UNANSWERED, Connection
from aspen_mp.control.wire.event_log import EventLog, Level
from aspen_mp.control.wire.event_loop import PRIORITY_WORKER, Loop
from aspen_mp.control.wire.listener import Listener
from aspen_mp.control.wire.spawn import SOCKET_FD
from aspen_mp.shm.bindings import _control, _tables
from aspen_mp.shm.bindings._mapping import Mapping
from aspen_mp.shm.errors import AspenError, ProtocolError, RequestError, ResourceLimitError, RuntimeLost
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.shm.segments import Segment
from aspen_mp.shm.words import count
from aspen_mp.workers import process, topology

LOOK_S = 1.0
"""How often the planner process looks at its workers' heartbeats and at what the machine lets it use: nothing tells of a change (see
`topology`)."""
STEADY = 3
"""Looks at which the cores were the same before plans are made for them."""
SCARCE_SAID_S = 10.0
"""That something is scarce is said again when it has not been for so long."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a runtime is started with. `name` empty: reachable by its starter alone. It ends with its starter. `restarts`: how often its
    starter has lost it before. `grace_s`: how long SIGTERM gives to what is in flight. `max_queued`:
    requests of a client that may wait; 0: any number."""

    name: str = ""
    workers: int | None = None
    cores: list[int] | None = None
    max_workers: int | None = None
    classes: list[str] | None = None
    smt: bool = False
    spin_us: int = 100
    preempt_ms: float = 1.0
    stealing: bool = True
    order: str = "fifo"
    cache: str = ""
    cache_bytes: int = 0
    leases: str = ""
    patience_s: float = 120.0
    planning_bytes: int = 0
    plans_bytes: int = 0
    replan: bool = True
    cancel_grace_s: float = 1.0
    restarts: int = 0
    grace_s: float = 30.0
    max_queued: int = 0
    log: Level = "warning"


class Server:
    def __init__(self, config: Config, claim: run_directory.Claim | None, starter: socket.socket, spawner: WorkerSpawner) -> None:
        """`claim`: of its name, where it has one. `spawner`: it may have begun to start workers already."""
        self._config = config
        self._claim = claim
        self._spawner = spawner
        self._loop = Loop()
        self._event_log = EventLog(config.name, config.log)
        self._started = time.time()
        self._loop.on_scarce = self._scarce
        self._scarce_at: dict[str, float] = {}
        self._clients: dict[Connection, Client] = {}
        self._greeted: list[Connection] = []  # that wait for the first workers
        spawner.watch(self._loop, self._event_log)
        cpus = self._look_at_cores()
        self._make_pool()
        self._make_memory()
        self._make_models(cpus)
        self._make_recovery()
        self._drain = Drain(self._loop, lambda: self._clients, self._event_log)
        self._loop.on_signal(signal.SIGTERM, lambda: self._drain.begin(config.grace_s))
        self._loop.on_signal(signal.SIGINT, self._loop.stop)
        if config.restarts:
            self._event_log.warning("runtime-restarted", restarts=config.restarts)
        self._worked = False
        self._pool.start(len(cpus), cpus, chosen=config.cores is not None)
        spawner.dismiss_early()
        self._loop.later(LOOK_S, self._look)
        self._listener = Listener(self._loop, starter, self._message, self._closed)
        unnamed, self._address = run_directory.listen_unnamed()
        self._listener.open([unnamed] + ([self._claim.listen()] if self._claim else []))

    def _look_at_cores(self) -> list[int]:
        """The CPUs to start workers on. ResourceLimitError where there may not be so many."""
        config = self._config
        self._leases = Leases(config.leases)
        self._limits = topology.LimitsReader()
        self._seen = self._limits.read()
        self._machine = topology.read()
        self._changes = 0
        self._refused = ""
        cpus = self._choose(config, self._leases.others())
        # The user has not said how many workers: as many as the machine is good for, now and whenever that changes.
        self._follows = config.workers is None and config.cores is None
        max_workers = config.max_workers or max(16, len(cpus), self._machine.online)
        self._max_workers = min(max_workers, _tables.LIMITS["workers"])
        if len(cpus) > self._max_workers:
            raise ResourceLimitError(
                f"{count(len(cpus), 'worker')} asked for, but max_workers is only {self._max_workers}. Give a larger max_workers"
            )
        return cpus

    def _make_pool(self) -> None:
        config = self._config
        self._control = Segment.create("control", _control.CONTROL_BYTES)
        self._doorbell = _sealed("doorbell", _control.DOORBELL_BYTES)
        self._table = _control.ControlTable(
            self._control.mapping,
            self._doorbell.mapping,
            create=True,
            max_workers=self._max_workers,
            spin_us=config.spin_us,
            preempt_us=round(config.preempt_ms * 1000),
        )
        self._table.set_stealing(config.stealing)
        self._table.set_policy(config.order)
        self._parked = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.watch(self._parked, PRIORITY_WORKER, self._worker_parked)
        fds = (self._control.fd, self._doorbell.fd, self._parked)
        self._pool: WorkerPool = WorkerPool(
            *(self._loop, self._table, fds, self._max_workers, lambda: iter(self._segments), self._event_log),
            *(self._leases, self._spawner, self),
        )
        for own in (self._control, self._doorbell):
            own.mapping.keep_from_children()

    def _make_memory(self) -> None:
        self._reserver = AsyncAllocator(self._loop)
        self._releaser = AsyncReleaser(self._loop)
        self._segments: SegmentStore = SegmentStore(
            *(self._table, self._pool.attach, self._pool.detach, self._releaser.release, self._releaser.released),
            releasing=lambda: self._releaser.busy,
        )
        self._traces = Traces(
            *(self._config.name, self._table, self._segments, self._max_workers, self._event_log),
            reserve=self._reserver.reserve,
            publish=self._pool.publish,
            workers=self._pool.present,
            class_of=self._pool.class_of,
            model_of=self._model_of,
        )

    def _make_models(self, cpus: list[int]) -> None:
        """`cpus`: those that workers are started on."""
        config = self._config
        self._core_speeds = CoreSpeeds()
        self._planned_for = self._machine.speeds(cpus)
        self._steady = 0
        self._not_replanned = ""
        self._imports = Preload(self._loop, self._scarce)
        self._loads = 0
        setup = PlanningSetup(
            Cache.open(config.cache, config.cache_bytes),
            *local_rates.planning(),
            limits=Limits(config.patience_s, config.planning_bytes),
            speeds=lambda: self._planned_for,
            prepare=self._imports.now,
            prepared=self._imports.ready,
            preempt_ms=config.preempt_ms,
        )
        resources = Resources(self._loop, self._table, self._segments, self._reserver, self._event_log)
        self._models = ModelStore(resources, setup, self._collect, self._traces.plan_added, config.plans_bytes)
        self._requests = RequestTotals(self._models.names)
        view = View(
            live=self._models.live,
            counts=self._table.model_counts,
            cores=self._cores_of_rows,
            publish=self._table.set_hints,
            name=lambda model: self._models.names().get(model, ""),
        )
        child = lambda *what: ScheduleChild(self._loop, *what)  # noqa: E731
        self._schedules = Schedules(view, self._event_log, time.monotonic, self._loop.later, child, config.cache)
        self._memory = ClientMemory(
            *(self._table, self._segments, self._reserver, self._releaser, self._pool.publish, self._collect, self._guarded),
            present=lambda client: self._clients.get(client.connection) is client,
            relieve=self._models.relieve,
        )

    def _make_recovery(self) -> None:
        self._recovery = Recovery(
            *(self._loop, self._table, self._segments, self._event_log, self._pool),
            replace=self._replace,
            op_of=lambda instance, tile: self._models.plans.op_of_tile(self._table.instance(instance)["plan"], tile),
            after=self._collect,
            give_up=self._no_workers,
        )
        self._hangs = Watchdog(
            self._loop,
            self._table,
            workers=lambda: () if self._recovery.going_on else self._pool.watched(),
            estimate=lambda instance, tile: self._models.plans.estimate(self._table.instance(instance)["plan"], tile),
            blamed=self._recovery.hangs,
            unwanted=self._unwanted,
            hung=self._pool.hung,
            withdrawn=self._pool.withdrawn,
            slow=self._slow_tile,
            grace_s=self._config.cancel_grace_s,
        )
        self._slow_tiles = 0

    def _cores_of_rows(self) -> dict[int, Core]:
        """The core of each worker that runs, by its row."""
        known = self._machine.by_cpu
        found = {}
        for worker in self._table.workers():
            core = known.get(worker["cpu"])
            if core is not None and worker["state"] == "running":
                found[worker["row"]] = Core(core.speed, core.rank, core.l3, core.node)
        return found

    @staticmethod
    def _choose(config: Config, taken: list[int]) -> list[int]:
        classes = config.classes or None
        return topology.read().select(config.workers, config.cores, classes=classes, smt=config.smt, taken=taken)

    def _speeds(self) -> list[float]:
        """Of the cores to plan for."""
        return self._machine.speeds(self._pool.cpus(), self._core_speeds.gives) or self._planned_for

    def _replan(self) -> None:
        """Plans are to suit the cores that there are now, as fast as they are now. What differs for a moment is not worth it."""
        self._core_speeds.look(self._table.paces(), {core.cpu: core.speed for core in self._machine.cores})
        self._plan_for_now()
        self._steady += 1
        if self._steady > STEADY and self._config.replan and not self._recovery.going_on:
            try:
                self._models.refresh()
            except Exception as error:  # nobody has asked for it: nobody loses anything by it
                if is_scarce(error):
                    raise
                why = f"{type(error).__name__}: {error}"
                if why != self._not_replanned:
                    self._not_replanned = why
                    self._event_log.warning("not-replanned", why=why)
                    sys.excepthook(type(error), error, error.__traceback__)

    def _plan_for_now(self) -> None:
        """Plans that are made from now on are for the cores that there are now."""
        before, self._planned_for = self._planned_for, self._speeds()
        if not alike(before, self._planned_for):
            self._steady = 0

    def run(self) -> None:
        self._loop.run()

    def close(self) -> None:
        """Ends workers, planning children and connections, in this order, and removes the run files."""
        self._recovery.closed = True
        self._releaser.close()
        self._pool.kill_all()
        self._spawner.close()
        self._leases.close()
        self._schedules.close()
        self._models.close()
        self._reserver.close()
        self._traces.close()
        self._listener.close()
        if self._claim is not None:
            self._claim.release()
        self._segments.close()
        self._loop.close()
        os.close(self._parked)

    # ---- workers

    def worker_ready(self) -> None:
        self._worked = True
        self._recovery.started()
        if self._pool.running:
            self._recovery.outages.running()
        if not self._pool.starting:
            waiting, self._greeted = self._greeted, []
            for connection in waiting:
                self._guarded(connection, None, partial(self._welcome, connection))

    def worker_died(self, death: Death) -> None:
        self._recovery.died(death)
        self._worked |= death.booted
        if not self._worked and not death.killed:
            self._no_workers(death.why)  # no worker has ever run, and this one ended by itself: so will the next

    def _replace(self, instance: int) -> None:
        """A worker that does not end may still write to this instance's arena: it gets another one."""
        self._models.replace_arena(instance)
        self._pool.publish()

    def _worker_parked(self) -> None:
        """One or more have parked for a recovery."""
        os.eventfd_read(self._parked)
        self._recovery.look()

    def worker_stopped(self) -> None:
        self._recovery.look()

    def unmapped(self, number: int) -> None:
        self._segments.unmapped(number)

    def worker_left(self) -> None:
        self._collect()
        self._recovery.look()

    def _no_workers(self, why: str) -> None:
        """Nothing can run any more: every client is told, and the runtime ends."""
        self._event_log.warning("no-workers", why=why)
        self._listener.refuse_all(RuntimeLost(f"the runtime cannot keep any worker alive: {why}"))
        self._loop.stop()

    def _model_of(self, plan: int) -> str:
        return self._models.plans.name_of(plan)

    def drained(self) -> None:
        self._models.look_at_weights()
        self._collect()

    def _collect(self) -> None:
        """Lets go of everything that is no longer used, and makes what has been announced known to the workers."""
        gone = set(self._table.collect())
        self._models.plans.collected(gone)
        for segment in gone - self._models.spared(gone):
            self._segments.forget(segment)
        self._models.collected(gone)
        self._pool.publish()

    # ---- the machine

    def _look(self) -> None:
        """Does a worker hang, has the machine changed under us, or another runtime given up a core that we want?"""
        self._loop.later(LOOK_S, self._look)
        self._hangs.look(LOOK_S)
        try:
            self._replan()
            self._look_at_machine()
        except (OSError, MemoryError, ImportError) as error:
            if not is_scarce(error):
                raise
            self._scarce(error)  # the next look finds what there is to be found

    def _look_at_machine(self) -> None:
        limits = self._limits.read()
        if limits != self._seen:
            self._machine_changed(limits)
            return
        self._pool.claim_shared()
        n = len(self._pool)
        if self._follows and not self._recovery.given_up and n < self._automatic(()):
            n = max(n, self._automatic(self._leases.others()))
        if n > len(self._pool) or self._pool.crowded:
            self._settle(n)

    def _machine_changed(self, limits: topology.Limits) -> None:
        machine, others = topology.read(), self._leases.others()
        before, self._seen, self._machine = self._seen, limits, machine
        workers, self._changes = len(self._pool), self._changes + 1
        self._settle(self._automatic(others) if self._follows else workers)
        facts: dict[str, Any] = {"cpus": topology.format_cpus(limits.cpus), "were": topology.format_cpus(before.cpus)}
        if limits.quota != before.quota:
            facts |= {"quota": limits.quota or "none", "was": before.quota or "none"}
        facts |= {"workers": len(self._pool), "had": workers}
        if len(self._pool) > len(limits.cpus):
            self._event_log.warning(
                "machine-changed", **facts, why=f"{count(len(self._pool), 'worker')} on {count(len(limits.cpus), 'CPU')}"
            )
        else:
            self._event_log.info("machine-changed", **facts)

    def _preferred(self) -> list[int]:
        return self._machine.limited(self._config.classes or None, self._config.smt).placement()

    def _automatic(self, others: Iterable[int]) -> int:
        """How many workers there are to be where the user has not said."""
        return min(self._max_workers, placement.automatic(self._machine, self._preferred(), self._pool.cpus(), set(others)))

    def _settle(self, n: int) -> None:
        """`n` workers, each where it belongs now."""
        try:
            self._pool.settle(self._machine, self._preferred(), n)
        except (AspenError, OSError) as error:
            if reason(error) != self._refused:  # it is tried again, but said once
                self._refused = reason(error)
                self._event_log.warning("worker-not-started", why=self._refused)
        self._plan_for_now()

    # ---- connections

    def _closed(self, connection: Connection) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            self._requests.close(client.tally)
            self._table.drop_client(client.number)
            self._schedules.client_gone(client.number)
            self._models.client_gone(client.number)
            self._traces.client_gone(client.number)
            self._collect()
            self._drain.gone(connection)
        if connection is self._listener.starter:
            self._loop.stop()

    def _message(self, connection: Connection, message: protocol.Message, fds: list[int]) -> None:
        """One message of a client. Handlers that take over descriptors empty `fds`."""

        def act() -> None:
            if isinstance(message, protocol.Hello):
                self._hello(connection, message)
                return
            client = self._clients.get(connection)
            if client is None:
                raise ProtocolError(f"{type(message).__name__} before Hello")
            self._dispatch(client, message, fds)

        try:
            self._guarded(connection, getattr(message, "id", None), act)
        finally:
            protocol.close_all(fds)

    def _guarded(self, connection: Connection, request: int | None, act: Callable[[], None]) -> None:
        """Whatever goes wrong in `act` is told to this client alone. `request` None: it has not been greeted, and cannot go on."""
        answer = connection.refuse if request is None else partial(connection.fail, request)
        try:
            act()
        except ProtocolError as error:
            connection.refuse(error)
        except AspenError as error:
            answer(error)
        except Exception as error:
            if is_scarce(error):
                answer(ResourceLimitError(f"the planner process has no more descriptors or memory: {reason(error)}"))
                return
            sys.excepthook(type(error), error, error.__traceback__)
            answer(AspenError(f"internal error of the planner process: {type(error).__name__}: {error}"))

    def _dispatch(self, client: Client, message: protocol.Message, fds: list[int]) -> None:
        send = client.connection.send
        client.connection.unanswered += 1
        if client.connection.unanswered > MAX_UNANSWERED:
            raise ResourceLimitError(
                f"{MAX_UNANSWERED} requests of this client already wait for their answers. Wait for some of them first"
            )
        match message:
            case protocol.Load() | protocol.Adopt() if self._drain.going_on:
                raise self._drain.refusal()
            case protocol.Load():
                self._loads += 1
                taken = list(fds)
                fds.clear()
                self._models.load(message, taken, self._asker(client, message.id))
            case protocol.Adopt():
                self._models.adopt(message.model, self._asker(client, message.id))
            case protocol.Lend():
                fds.append(self._models.lend(message.model, client.number))  # closed with those that came
                send(protocol.Done(message.id), (fds[-1],))
            case protocol.MakePlan():
                self._models.plan(message, self._asker(client, message.id))
            case protocol.Unload():
                self._requests.note_names()
                self._models.unload(message.model, client.number)
                send(protocol.Done(message.id))
            case protocol.Data():
                self._memory.make(client, message.id, message.nbytes)
            case protocol.Borrow():
                self._memory.borrow(client, message, fds)
            case protocol.DropData():
                self._memory.drop(client, message.index)
                send(protocol.Done(message.id))
            case protocol.Explain():
                send(
                    protocol.Done(message.id, text=self._models.plans.op_name(message.plan, message.generation, message.op, client.number))
                )
            case protocol.Resize():
                self._resize(message)
                send(protocol.Done(message.id, len(self._pool)))
            case protocol.RunTogether() | protocol.RunApart():
                self._dispatch_schedule(client, message)
            case protocol.Status():
                send(protocol.StatusReply(message.id, json.dumps(self.status()).encode()))
            case protocol.TraceBegin() | protocol.TraceEnd() | protocol.TracePlan() | protocol.TraceDrop():
                self._dispatch_trace(client, message, fds)
            case protocol.Stop():
                send(protocol.Done(message.id))
                if message.drain:
                    self._drain.begin(message.grace_s)
                else:
                    self._loop.stop()
            case protocol.Quiet():
                send(protocol.Done(message.id))
                self._drain.quiet(client.connection)
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}")

    def _dispatch_trace(
        self,
        client: Client,
        message: protocol.TraceBegin | protocol.TraceEnd | protocol.TracePlan | protocol.TraceDrop,
        fds: list[int],
    ) -> None:
        send = client.connection.send
        match message:
            case protocol.TraceBegin():
                self._trace(client, message)
            case protocol.TraceEnd():
                plans, fd = self._traces.end(client.number)
                fds.append(fd)  # closed with those that came
                send(protocol.TraceEnded(message.id, plans), (fd,))
            case protocol.TracePlan():
                fd = self._traces.plan(client.number, message.index)
                fds.append(fd)
                send(protocol.TracedPlan(message.id), (fd,))
            case protocol.TraceDrop():
                self._traces.drop(client.number)
                send(protocol.Done(message.id))

    def _dispatch_schedule(self, client: Client, message: protocol.RunTogether | protocol.RunApart) -> None:
        number = 0
        if isinstance(message, protocol.RunApart):
            self._schedules.end(client.number, message.number)
        else:
            self._models.check_loaded(message.models, client.number)
            number = self._schedules.begin(client.number, message.models, message.objective)
        client.connection.send(protocol.Done(message.id, number))

    def _asker(self, client: Client, request: int) -> Asker:
        connection = client.connection
        return Asker(client.number, request, connection.send, lambda error: connection.fail(request, error))

    # ---- requests of clients

    def _hello(self, connection: Connection, hello: protocol.Hello) -> None:
        if connection.greeted:
            raise ProtocolError("Hello twice")
        if self._drain.going_on:
            raise self._drain.refusal()
        ours = f"{_tables.LAYOUT_HASH:016x}"
        if hello.version != protocol.VERSION or hello.layout != ours:
            raise ProtocolError(
                f"this runtime is aspen-mp {aspen_mp.__version__} (protocol {protocol.VERSION}, layout {ours}), "
                f"the client is aspen-mp {hello.package} (protocol {hello.version}, layout {hello.layout}). Use one build on both sides"
            )
        connection.greeted = True
        connection.challenge = hello.challenge
        if self._pool.starting:
            self._greeted.append(connection)
        else:
            self._welcome(connection)

    def _welcome(self, connection: Connection) -> None:
        """Makes a client of a connection that has greeted."""
        if connection.closed:
            return
        if self._drain.going_on:
            raise self._drain.refusal()
        with _sealed("client", _control.CLIENT_BYTES) as own:
            tally = self._requests.make()
            try:
                segment = self._segments.add("client", own.nbytes, os.dup(own.fd), f"process {connection.pid}")
                try:
                    number = self._table.add_client(segment, own.mapping)
                except AspenError:
                    self._segments.drop(segment)
                    self._pool.publish()
                    raise
            except BaseException:
                os.close(tally)
                raise
            self._pool.publish()
            client = self._clients[connection] = Client(connection, number, segment, {}, time.time(), tally)
            connection.send(self._about(client), (own.fd, self._doorbell.fd, tally))
        if len(self._clients) == 1:
            self._imports.while_idle(lambda: not self._loads)

    def _about(self, client: Client) -> protocol.Welcome:
        said = client.connection.challenge
        proof = identity.proof(self._address.secret, said) if said else ""
        facts = (self._config.name, str(self._address), os.getpid(), client.number, aspen_mp.__version__)
        return protocol.Welcome(*facts, proof, self._config.max_queued)

    def _scarce(self, error: BaseException) -> None:
        """Something could not be done now, and is done later."""
        why, now = reason(error), time.monotonic()
        if now - self._scarce_at.get(why, -SCARCE_SAID_S) >= SCARCE_SAID_S:
            self._event_log.warning("planner-lacks", why=why)
        self._scarce_at = {why: now}

    def _trace(self, client: Client, message: protocol.TraceBegin) -> None:
        connection = client.connection

        def ready(segment: Segment | AspenError) -> None:
            if isinstance(segment, AspenError):
                connection.fail(message.id, segment)
            else:
                self._guarded(connection, message.id, partial(tell, segment))

        def tell(segment: Segment) -> None:
            try:
                connection.send(protocol.TraceReady(message.id, segment.nbytes), (segment.fd,))
            except BaseException:
                self._traces.drop(client.number)  # nobody would ever end it
                raise

        self._traces.begin(client.number, connection.pid, message.records, ready)

    def _resize(self, message: protocol.Resize) -> None:
        if message.total == protocol.AUTOMATIC:
            n = self._automatic(self._leases.others())
            self._follows = True
            self._settle(n)
            return
        change = message.total - len(self._pool) if message.total >= 0 else message.add - message.remove
        if message.cores and abs(change) != len(message.cores):
            raise RequestError(
                f"{count(abs(change), 'worker')} to {'add' if change > 0 else 'remove'}, but {count(len(message.cores), 'core')} named"
            )
        if len(self._pool) + change < 0:
            raise RequestError(
                f"{count(-change, 'worker')} to remove, but there {'is' if len(self._pool) == 1 else 'are'} {len(self._pool)}"
            )
        self._follows = False
        if change > 0:
            self._pool.start(change, message.cores)
        elif change < 0:
            self._pool.leave(-change, message.cores)
        self._plan_for_now()

    def status(self) -> dict[str, Any]:
        """Everything `Runtime.status` returns: plain dicts, lists, numbers and strings."""
        requests, waited = self._requests.describe([client.tally for client in self._clients.values()])
        scheduler = {**self._table.status(), "waiting": sum(self._waiting(client) for client in self._clients.values())}
        begun = sum(found["in_flight"] for found in requests.values())
        scheduler["queue_seconds"] = waited
        scheduler["queue_depth"] = max(scheduler["waiting"], begun - scheduler["instances"]["running"], 0)
        return {
            "runtime": self._describe_runtime(),
            "machine": {
                "cpus": topology.format_cpus(self._seen.cpus),
                "cpu_quota": self._seen.quota,
                "workers": "follow" if self._follows else "fixed",
                "shared_cpus": topology.format_cpus(self._leases.shared),
                "changes": self._changes,
            },
            "recovery": self._describe_recovery(),
            "workers": [self._worker(worker) for worker in self._pool.describe()],
            "models": self._models.describe(),
            "requests": requests,
            "clients": [self._describe_client(client) for client in self._clients.values()],
            "memory": self._describe_memory(),
            "events": self._event_log.latest(),
            "scheduler": scheduler,
            "schedule": self._schedules.describe(),
        }

    def _describe_runtime(self) -> dict[str, Any]:
        return {
            "name": self._config.name,
            "pid": os.getpid(),
            "zygote": self._spawner.zygote,
            "version": aspen_mp.__version__,
            "started": self._started,
            "uptime_s": time.time() - self._started,
            "ready": self._pool.running > 0,
            "max_workers": self._max_workers,
            "restarts": self._config.restarts,
            "stopping": self._drain.going_on,
        }

    def _describe_recovery(self) -> dict[str, Any]:
        return {
            "worker_deaths": self._recovery.deaths,
            "hung": self._pool.hangs,
            "withdrawn": self._pool.withdrawals,
            "slow_tiles": self._slow_tiles,
            "respawned": self._pool.respawned,
            "lacking": self._pool.lacking,
            "given_up": self._recovery.given_up,
            "abandoned": self._pool.abandoned,
            "arenas_replaced": self._recovery.replaced,
            "recoveries": self._recovery.recoveries,
            "last": self._recovery.last,
            "last_stop_s": self._recovery.last_stop_s,
            "requests": dict(self._recovery.totals),
            "latest": self._recovery.outages.latest(),
        }

    def _describe_client(self, client: Client) -> dict[str, Any]:
        held = [self._segments[segment] for segment in client.data.values()]
        return {
            "client": client.number,
            "pid": client.connection.pid,
            "since": client.since,
            "waiting": self._waiting(client),
            "data_bytes": sum(data.own_bytes for data in held),
            "borrowed_bytes": sum(data.nbytes - data.own_bytes for data in held),
        }

    def _describe_memory(self) -> dict[str, dict[str, int]]:
        """Segments and their bytes, by role."""
        memory: dict[str, dict[str, int]] = {}
        own = [Held(0, s.role, s.nbytes, s.fd, "") for s in (self._control, self._doorbell)]
        for held in [*own, *self._segments]:
            entry = memory.setdefault(held.role, {"segments": 0, "bytes": 0})
            entry["segments"] += 1
            entry["bytes"] += held.own_bytes
        return memory

    def _worker(self, worker: dict[str, Any]) -> dict[str, Any]:
        """A worker with what it executes: `model`, `op`, and `tile_s`, for how long it has been seen in that tile."""
        return {**worker, **self._at(worker.get("current")), "tile_s": self._hangs.seconds(worker["id"])}

    def _at(self, current: tuple[int, int] | None) -> dict[str, str]:
        """What a worker executes: `model` and `op`, empty where that is nothing."""
        model, op = self._models.plans.tile_name(self._table.instance(current[0])["plan"], current[1]) if current else ("", "")
        return {"model": model, "op": op}

    def _unwanted(self, at: tuple[int, int, int]) -> bool:
        """Whether nobody wants the result of a request that a worker has been in one tile of for some time."""
        instance, _, generation = at
        held = self._segments.get(self._table.instance(instance)["client_segment"])
        try:
            client = None if held is None else Mapping(held.fd, held.nbytes, False)
        except (OSError, MemoryError):
            client = None  # without memory for a look, what the control table says has to do
        try:
            return self._table.unwanted(instance, generation, client)
        finally:
            if client is not None:
                client.close()

    def _slow_tile(self, row: int, seconds: float, at: tuple[int, int, int]) -> None:
        self._slow_tiles += 1
        self._event_log.warning("tile-slow", worker=row, seconds=seconds, **self._at(at[:2]))

    def _waiting(self, client: Client) -> int:
        """Requests that a client has submitted and no worker has started."""
        data = os.pread(self._segments[client.segment].fd, _control.SLOTS // 8, _control.CLIENT_PENDING)
        return int.from_bytes(data, "little").bit_count()


def _sealed(role: str, nbytes: int) -> Segment:
    """A segment that clients get hold of: a sealed memfd, which they cannot shrink under the workers' feet."""
    return Segment.create(role, nbytes, memfd=True)


def _started(config: Config, starter: socket.socket, spawner: WorkerSpawner) -> Server:
    """The server, or an error and no files of its name in the run directory."""
    claim = run_directory.Claim(config.name) if config.name else None
    try:
        return Server(config, claim, starter, spawner)
    except BaseException:
        if claim is not None:
            claim.release()
        raise


def main(argv: list[str], spawner: WorkerSpawner) -> None:
    """``argv``: a `Config` as JSON. Descriptor 3 is the starter's socket. `spawner`: as in `Server`."""
    sock = socket.socket(fileno=SOCKET_FD)
    sock.set_inheritable(False)
    process.set_name("aspen-planner")
    # One thread here, whatever numpy's BLAS would like: planning children are forked from this process.
    process.one_thread()
    with suppress(OSError, ValueError):  # each client takes several descriptors, each model too
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        server = _started(msgspec.json.decode(argv[0], type=Config), sock, spawner)
    except (AspenError, OSError, MemoryError) as error:
        if not isinstance(error, AspenError) and not is_scarce(error):
            raise
        if not isinstance(error, AspenError):
            error = ResourceLimitError(f"the planner process lacks descriptors or memory to start: {reason(error)}")
        with suppress(OSError):
            sock.sendall(protocol.encode(protocol.Failed(0, type(error).__name__, str(error))))
        sys.exit(1)
    status = 1
    try:
        server.run()
        status = 0
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        server.close()
        sys.stderr.flush()
        os._exit(status)  # the interpreter's own end would only take time from whoever waits for ours
