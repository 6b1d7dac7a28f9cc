"""The workers of a runtime as the planner process sees them: starting, handing segments over, watching, ending."""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from aspen_mp.control.memory.segments import Held
from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.control.pool.placement import Place, alike, arrange, emptier, surplus
from aspen_mp.control.pool.recovery import Death
from aspen_mp.control.pool.watchdog import Watched
from aspen_mp.control.pool.worker_spawner import WorkerSpawner
from aspen_mp.control.wire.child_reaper import REAP_S, ended, status_of, watched
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import PRIORITY_WORKER, SCARCE_S, Loop, Timer
from aspen_mp.control.wire.identity import start_time
from aspen_mp.control.wire.status import Worker as WorkerStatus
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.errors import AspenError, RequestError, ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.shm.words import count
from aspen_mp.system import clock, descriptors, processes, sockets
from aspen_mp.workers import topology, wire

BOOT_S = 30.0
"""A worker that is not ready after this long is killed and counted as a boot failure."""
AGAIN_S = 1.0
"""How soon it is tried again to start a worker that could not be started, where no call of a client fails because of it."""
STOPPED_S = 1.0
"""A worker that has been stopped (SIGSTOP) for this long is ended: what it holds is needed."""


@dataclass(slots=True)
class Worker:
    """`state`: "starting", "running", "leaving" (told to go), "abandoned" (killed, and does not end). `ended`: why it was killed, where
    that was to be no blame for its tile; `doomed`: it has been killed, and is abandoned then."""

    row: int
    pid: int
    pidfd: int
    sock: sockets.socket
    place: Place
    core_class: str
    since: float = field(default_factory=lambda: clock.monotonic())
    state: str = field(default="starting", init=False)
    error: str = field(default="", init=False)
    hung: str = field(default="", init=False)
    ended: str = field(default="", init=False)
    doomed: Timer | None = field(default=None, init=False)
    boot: Timer | None = field(default=None, init=False)
    stopped: Timer | None = field(default=None, init=False)
    out: deque[tuple[int, int, int, int, bytes, tuple[int, ...]]] = field(default_factory=deque, init=False)

    @property
    def cpu(self) -> int:
        return self.place.cpu

    def facts(self) -> dict[str, int]:
        return {"worker": self.row, "pid": self.pid, "cpu": self.cpu}


class PoolListener(Protocol):
    """Hears of workers."""

    def worker_ready(self) -> None:
        """A worker begins to run, or has failed to."""

    def worker_died(self, death: Death) -> None:
        """A worker has ended unasked."""

    def worker_left(self) -> None:
        """A worker has ended as it was asked to."""

    def worker_stopped(self) -> None:
        """Somebody has stopped a worker."""

    def drained(self) -> None:
        """Something that was dropped is no longer used."""

    def unmapped(self, number: int) -> None:
        """No worker has a segment any more: see `WorkerPool.detach`."""


class WorkerPool:
    def __init__(
        self,
        loop: Loop,
        table: _control.ControlTable,
        fds: tuple[int, int, int],
        max_workers: int,
        event_log: EventLog,
        leases: Leases,
        spawner: WorkerSpawner,
    ) -> None:
        """`fds`: of the control table, of the doorbell page, and an eventfd that workers write to when they have parked for a recovery.
        `connect` must follow."""
        self._loop = loop
        self._table = table
        self._fds = fds
        self._max = max_workers
        self._event_log = event_log
        self._leases = leases
        self._spawner = spawner
        self._listener: PoolListener
        self._segments: Iterable[Held]
        self._rows: dict[int, Worker] = {}
        self._queued: deque[Place] = deque()  # of workers to start as soon as leaving ones have freed rows
        self._vacant: list[Place] = []  # of workers that have died and are to be replaced
        self._again: Timer | None = None
        self._refused = ""
        self._unmapping: dict[int, set[int]] = {}  # pids of workers that have not unmapped what a DETACH packet named, by its number
        self._detached = 0
        self.seq = 0
        self.respawned = 0
        self.hangs = 0
        self.withdrawals = 0
        loop.on_signal(signal.SIGCHLD, self._look_for_stopped)

    def connect(self, listener: PoolListener, segments: Iterable[Held]) -> None:
        """`listener` hears of workers from now on. They map `segments`. To be called before the first worker is started."""
        self._listener, self._segments = listener, segments

    def __len__(self) -> int:
        """How many workers there are to be: those that stay, and those that are going to be started."""
        return len(self.cpus())

    @property
    def starting(self) -> bool:
        return any(worker.state == "starting" for worker in self._rows.values())

    @property
    def processes(self) -> int:
        """How many worker processes there are that are, or may come to be, of use."""
        return len(self._rows) - self.abandoned

    @property
    def abandoned(self) -> int:
        """How many workers have been killed and do not end: their rows stay closed until they do."""
        return sum(worker.state == "abandoned" for worker in self._rows.values())

    @property
    def running(self) -> int:
        """How many workers take tiles now."""
        return sum(worker.state == "running" for worker in self._rows.values())

    def describe(self) -> list[WorkerStatus]:
        """The control table's row of each worker, and what only this process knows. The tile that it executes is left empty. `shared`:
        another worker of this runtime is on the same CPU, or one of another runtime was there before."""
        uses = Counter(worker.cpu for worker in self._staying())
        known = {row["row"]: row for row in self._table.workers()}
        found = []
        for worker in self._rows.values():
            row = known.get(worker.row, {})
            kernel, schedule = row.get("kernel_ns", 0), row.get("schedule_ns", 0)
            about = {
                "id": worker.row,
                "pid": worker.pid,
                "cpu": worker.cpu,
                "core_class": worker.core_class,
                "process": worker.state,
                "shared": uses[worker.cpu] > 1 or worker.cpu in self._leases.shared,
                "busy_s": (kernel + schedule) / 1e9,
                "overhead": schedule / (kernel + schedule) if kernel + schedule else 0.0,
            }
            found.append(WorkerStatus(**{**row, **about}, model="", op="", tile_s=0.0))
        return found

    def present(self) -> list[dict[str, Any]]:
        """One dict a worker process: worker (its row), pid, cpu, core_class."""
        return [{**worker.facts(), "core_class": worker.core_class} for worker in self._rows.values()]

    def class_of(self, row: int) -> str:
        """The core class of a row's worker; empty where there is none."""
        return self._rows[row].core_class if row in self._rows else ""

    def cpus(self) -> list[int]:
        """Where workers are to be: those that stay, and those that are going to be started."""
        return [place.cpu for place in (*(worker.place for worker in self._staying()), *self._queued, *self._vacant)]

    def _staying(self) -> list[Worker]:
        return [worker for worker in self._rows.values() if worker.state in {"starting", "running"}]

    @property
    def crowded(self) -> bool:
        """Whether a worker shares its CPU with another one, of this runtime or of another."""
        cpus = self.cpus()
        return len(set(cpus)) < len(cpus) or bool(self._leases.shared)

    # ---- starting

    def start(self, n: int, cores: list[int] | None = None, *, chosen: bool = True) -> None:
        """Starts `n` workers, on `cores` where given; those for which leaving ones have no row free yet, as soon as one is.
        `chosen`: the user has named these cores. ResourceLimitError if there is no room or a core may not be used. OSError where a process
        cannot be started: those that have been started by then stay, the others are given up."""
        if len(self) + n > self._max:
            raise ResourceLimitError(
                f"no room for {count(n, 'more worker')}: {len(self)} of max_workers={self._max} are taken. "
                "Start the runtime with a larger max_workers"
            )
        machine = topology.read()
        cpus = machine.choose(n, cores or None, [*self.cpus(), *self._leases.others()])
        new = [Place(cpu, cpu if cores and chosen else None) for cpu in cpus]
        self._queued += new
        try:
            self._start_queued(machine)
        except BaseException:
            self._give_up(new)
            raise

    def settle(self, machine: topology.Topology, preferred: list[int], n: int) -> None:
        """The machine has changed, or a core has become free: as many workers as `n`, each where `placement.arrange` puts it. A worker that
        moves leaves, and another one starts where it is to be."""
        staying = self._staying()
        places = [worker.place for worker in staying] + list(self._queued) + list(self._vacant)
        given_up = surplus(machine, places, len(places) - n) if n < len(places) else []
        kept = [k for k in range(len(places)) if k not in given_up]
        wanted: list[Place | None] = [places[k] for k in kept]
        new = min(n, self._max) - len(wanted)
        found = arrange(machine, preferred, [*wanted, *([None] * new)], self._leases.others(), self._leases.ahead)
        target = dict(zip(kept, found, strict=False))
        waiting, vacant = len(self._queued), len(self._vacant)
        # Without a worker yet: each goes where it is to be, or is not started at all.
        self._queued = deque(target[len(staying) + k] for k in range(waiting) if len(staying) + k in target)
        self._vacant = [target[k] for k in range(len(staying) + waiting, len(staying) + waiting + vacant) if k in target]
        for k, worker in enumerate(staying):
            place = target.get(k)
            if place == worker.place:
                continue
            self._dismiss(worker)
            if place is not None:
                self._event_log.info("worker-moves", **worker.facts(), to=place.cpu)
                self._queued.append(place)
        self._queued += found[len(kept) :]
        self._start_waiting(machine)

    def claim_shared(self) -> None:
        """Takes the leases that other runtimes have given up on cores that we share, and binds workers to cores that are now theirs."""
        for cpu in self._leases.retry():
            self._event_log.info("core-unshared", cpu=cpu)
            for worker in self._staying():
                if worker.cpu == cpu:
                    with suppress(OSError):  # it has ended, or the CPU has gone: the next look sees to that
                        processes.sched_setaffinity(worker.pid, {cpu})

    def refill(self) -> None:
        """Starts a worker for each that has died. Where descriptors, memory or processes are lacking for that, it is tried again and again.
        Raises what else starting one raises; those not started are then given up."""
        self.respawned += len(self._vacant)
        new = list(self._vacant)
        self._queued += new
        self._vacant.clear()
        try:
            self._start_queued(topology.read())
        except Exception as error:
            if not is_scarce(error):
                self._give_up(new)
                raise
            self._start_later(error)

    @property
    def lacking(self) -> int:
        """Workers that are wanted and do not run yet: they wait for a row, or for the next try to start them."""
        return len(self._queued) + len(self._vacant)

    def abandon(self) -> int:
        """Those that have died are not replaced; how many that are."""
        n = len(self._vacant)
        self._vacant.clear()
        return n

    def _start_queued(self, machine: topology.Topology) -> None:
        for row in range(self._max):
            if self._queued and row not in self._rows:
                self._start_at(row, self._queued[0], machine)
                self._queued.popleft()

    def _give_up(self, places: Iterable[Place]) -> None:
        """Those of these that wait for a worker are to have none: nobody would ever start it, and it must not count."""
        unwanted = {id(place) for place in places}
        self._queued = deque(place for place in self._queued if id(place) not in unwanted)

    def _start_waiting(self, machine: topology.Topology | None = None) -> None:
        """A row has become free, workers are to be elsewhere, or it is time to try again. A failure is logged once, and tried again:
        nobody's call has failed."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not self._queued:
            return
        try:
            self._start_queued(topology.read() if machine is None else machine)
        except (AspenError, OSError, MemoryError) as error:
            self._start_later(error)
        else:
            self._refused = ""

    def _start_later(self, error: BaseException) -> None:
        if self._again is None:
            self._again = self._loop.later(AGAIN_S, self._start_waiting)
        why = reason(error)
        if why != self._refused:
            self._refused = why
            self._event_log.warning("worker-not-started", why=why)

    def _start_at(self, row: int, place: Place, machine: topology.Topology) -> None:
        if place.cpu not in machine.by_cpu:  # it has been taken from us meanwhile
            place = Place(machine.choose(1, None, [*self.cpus(), *self._leases.others()])[0], place.home)
        since = clock.monotonic()
        pid, ours = self._spawner.start()
        ours.setblocking(False)
        try:
            pidfd = watched(pid)
        except OSError:
            ours.close()
            raise
        place = self._claim(place, machine)
        core = machine.by_cpu[place.cpu]
        self._table.worker_reset(row, cpu=place.cpu, core_class=core.rank, cache=core.l3, node=core.node)
        worker = self._rows[row] = Worker(row, pid, pidfd, ours, place, core.core_class, since=since)
        try:
            self._table.worker_started(row, pid, start_time(pid))
            worker.boot = self._loop.later(BOOT_S, lambda: self._kill(worker))
            self._loop.watch(worker.pidfd, PRIORITY_WORKER, lambda: self._gone(worker))
            self._loop.watch(ours.fileno(), PRIORITY_WORKER, lambda: self._readable(worker))
            self._send(worker, wire.SETUP, row, self._bound_to(worker, machine), fds=self._fds)
            for held in list(self._segments):
                self._send_segment(worker, held)
            self._send(worker, wire.SYNC, self.seq)
        except BaseException:  # it would wait for ever for what it has not been sent
            with suppress(ProcessLookupError):
                processes.kill(pid, signal.SIGKILL)
            self._forget(worker)
            self._table.worker_gone(row)
            raise
        if place.cpu in self._leases.shared:
            self._event_log.note("core-shared", cpu=place.cpu, why="another runtime has a worker there")

    def _bound_to(self, worker: Worker, machine: topology.Topology) -> int:
        """The CPU that a worker is to bind itself to; -1 where others were there first. Then the kernel moves it among cores like that one,
        because those others may be idle, or busier than workers elsewhere."""
        if worker.place.home is not None or worker.cpu not in self._leases.shared:
            return worker.cpu
        with suppress(OSError):
            processes.sched_setaffinity(worker.pid, alike(machine, worker.cpu))
        return -1

    def _claim(self, place: Place, machine: topology.Topology) -> Place:
        """Takes a lease for a worker and returns where it goes: to `place`, or to a core with fewer workers if others came there first."""
        level = self._leases.hold(place.cpu)
        while level and place.home is None:
            cpu = emptier(machine, level, Counter([*self.cpus(), *self._leases.others()]))
            if cpu is None:
                break
            there = self._leases.hold(cpu)
            if there >= level:  # others were faster there, too
                self._leases.drop(cpu)
                break
            self._leases.drop(place.cpu)
            place, level = Place(cpu), there
        return place

    # ---- segments

    def attach(self, held: Held) -> None:
        for worker in self._listening():
            self._send_segment(worker, held)

    def _send_segment(self, worker: Worker, held: Held) -> None:
        self._send(worker, wire.ATTACH, held.id, _control.ROLES[held.role], held.nbytes, fds=(held.fd,))
        for piece in held.borrowed:
            self._send(worker, wire.BORROW, held.id, piece.at, piece.offset, wire.LENGTH.pack(piece.nbytes), fds=(piece.fd,))

    def detach(self, segment: int) -> int:
        """Workers are told to unmap a segment. A number of which the listener is told when none has it any more; 0: none has."""
        told = self._listening()
        if not told:
            return 0
        self._detached += 1
        self._unmapping[self._detached] = {worker.pid for worker in told}
        for worker in told:
            self._send(worker, wire.DETACH, segment, self._detached)
        return self._detached

    def _has_unmapped(self, pid: int, number: int) -> None:
        left = self._unmapping.get(number)
        if left is None or pid not in left:
            return
        left.remove(pid)
        if not left:
            del self._unmapping[number]
            self._listener.unmapped(number)

    def publish(self) -> None:
        """Everything sent so far takes effect: workers are woken, and read their packets up to here."""
        self.seq = self._table.publish()
        for worker in self._listening():
            self._send(worker, wire.SYNC, self.seq)

    def _listening(self) -> list[Worker]:
        return [worker for worker in self._rows.values() if worker.state != "abandoned"]

    def _send(self, worker: Worker, kind: int, a: int = 0, b: int = 0, c: int = 0, text: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Sends now, or queues where the worker is busy in an opaque tile and its socket is full, or the kernel lacks room. OSError where
        it can be neither sent nor queued."""
        later = False
        if not worker.out:
            try:
                wire.send(worker.sock, kind, a, b, c, text, fds)
                return
            except BlockingIOError:
                pass
            except OSError as error:
                if not is_scarce(error):
                    return  # it is dead; its pidfd says so next
                later = True
        copies: list[int] = []
        try:
            for fd in fds:
                copies.append(descriptors.dup(fd))  # noqa: PERF401
            if later:
                self._loop.later(SCARCE_S, lambda: self._flush(worker))
            elif not worker.out:
                self._loop.watch_writable(worker.sock.fileno(), lambda: self._flush(worker))
        except BaseException:
            _close_all(copies)
            raise
        worker.out.append((kind, a, b, c, text, tuple(copies)))

    def _flush(self, worker: Worker) -> None:
        if not worker.out:
            return  # it has gone meanwhile
        socket = worker.sock.fileno()
        try:
            while worker.out:
                kind, a, b, c, text, fds = worker.out[0]
                wire.send(worker.sock, kind, a, b, c, text, fds)
                _close_all(fds)
                worker.out.popleft()
        except BlockingIOError:
            self._loop.watch_writable(socket, lambda: self._flush(worker))
            return
        except OSError as error:
            if is_scarce(error):
                self._loop.later(SCARCE_S, lambda: self._flush(worker))
            else:
                self._drop_queue(worker)
        if socket in self._loop:  # not so where it hears nothing any more
            self._loop.watch_writable(socket, None)

    def _drop_queue(self, worker: Worker) -> None:
        for *_, fds in worker.out:
            _close_all(fds)
        worker.out.clear()

    # ---- hearing

    def _readable(self, worker: Worker) -> None:
        if not self._hear(worker):
            self._loop.unwatch(worker.sock.fileno())

    def _hear(self, worker: Worker) -> bool:
        """One packet, if there is one. False: there will be no more."""
        try:
            kind, a, _, _, text, fds = wire.receive(worker.sock)
        except (BlockingIOError, ConnectionResetError):
            return True  # reset: it has left something of ours unread; what it sent itself comes next
        except (EOFError, OSError):
            return False
        _close_all(fds)
        if kind == wire.READY and worker.state == "starting":
            worker.state = "running"
            self._booted(worker)
            self._event_log.info("worker-joined", **worker.facts(), seconds=clock.monotonic() - worker.since)
            self._listener.worker_ready()
        elif kind == wire.DRAINED:
            self._listener.drained()
        elif kind == wire.DETACHED:
            self._has_unmapped(worker.pid, a)
        elif kind == wire.ERROR:
            worker.error = text.decode("utf-8", "replace")
        return True

    def _booted(self, worker: Worker) -> None:
        if worker.boot is not None:
            worker.boot.cancel()
            worker.boot = None

    def _gone(self, worker: Worker) -> None:
        """The process has ended: reap it, then let go of its row."""
        if worker.state == "abandoned":
            self._reaped_late(worker)
            return
        for _ in range(1000):  # its last words; the bound only guards against a socket that somebody else holds open
            if not self._hear(worker):
                break
        booted = worker.state != "starting"
        error = worker.error
        asked = worker.state == "leaving"
        at = self._table.current(worker.row)
        status = self._forget(worker)
        # One that was asked to leave and was killed before it had handed its tiles over is a death like any other.
        asked = asked and status == 0
        self._table.worker_gone(worker.row, died=not asked)
        if asked:
            self._event_log.info("worker-left", **worker.facts())
            self._listener.worker_left()
            self._start_waiting()
        else:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            if worker.state != "leaving":
                self._vacant.append(worker.place)
            why = worker.ended or (f"hung {worker.hung}" if worker.hung else _why(status, error))
            self._died(worker, why)
            self._listener.worker_died(
                Death(worker.row, worker.pid, worker.cpu, why, number, at, booted, bool(worker.hung), bool(worker.ended))
            )

    def _died(self, worker: Worker, why: str) -> None:
        self._event_log.warning("worker-died", **worker.facts(), why=why)

    def _look_for_stopped(self) -> None:
        """Somebody has stopped a worker, perhaps: a child has changed its state."""
        stopped = [w for w in self._rows.values() if w.stopped is None and w.doomed is None and _is_stopped(w)]
        for worker in stopped:
            worker.stopped = self._loop.later(STOPPED_S, partial(self._still_stopped, worker))
        if stopped:
            self._listener.worker_stopped()  # workers may come and go by it

    def _still_stopped(self, worker: Worker) -> None:
        worker.stopped = None
        if self._rows.get(worker.row) is worker and _is_stopped(worker):
            self._event_log.warning("worker-stopped", **worker.facts(), seconds=STOPPED_S)
            self._kill(worker)

    # ---- hanging

    def watched(self) -> list[Watched]:
        """The workers that have come to run."""
        return [
            Watched(worker.row, worker.pid, worker.state == "leaving")
            for worker in self._rows.values()
            if worker.boot is None and worker.stopped is None and worker.doomed is None
        ]

    def hung(self, row: int, seconds: float, what: str) -> None:
        """Ends a worker that hangs; its death is told as any other."""
        worker = self._rows[row]
        worker.hung = what
        self.hangs += 1
        self._event_log.warning("worker-hung", **worker.facts(), seconds=seconds, where=what)
        self._kill(worker)

    def withdrawn(self, row: int, seconds: float, what: str) -> None:
        """Ends a worker that is in a tile whose result nobody wants any more. The tile is not blamed."""
        worker = self._rows[row]
        worker.ended = f"ended: it was in {what}, whose request had been cancelled"
        self.withdrawals += 1
        self._event_log.warning("worker-withdrawn", **worker.facts(), seconds=seconds, where=what)
        self._kill(worker)

    def _forget(self, worker: Worker) -> int:
        self._booted(worker)
        if worker.stopped is not None:
            worker.stopped.cancel()
        if worker.doomed is not None:
            worker.doomed.cancel()
        del self._rows[worker.row]
        if worker.state != "abandoned":
            self._let_go(worker)
        self._loop.unwatch(worker.pidfd)
        descriptors.close(worker.pidfd)
        return status_of(worker.pid)

    def _let_go(self, worker: Worker) -> None:
        """Frees all that is kept for a worker but its row and its process."""
        self._leases.drop(worker.cpu)
        self._drop_queue(worker)
        self._loop.unwatch(worker.sock.fileno())
        worker.sock.close()
        for number in list(self._unmapping):
            self._has_unmapped(worker.pid, number)

    # ---- ending

    def leave(self, n: int, cores: Iterable[int] = ()) -> None:
        """The `n` newest workers, or one on each of `cores`, finish the tile in hand, leave the rest to others and exit.
        RequestError, before anything is done, if a core has no worker."""
        staying = self._staying()[::-1]
        if cores:
            chosen = []
            for cpu in cores:
                worker = next((w for w in staying if w.cpu == cpu and w not in chosen), None)
                if worker is None:
                    have = topology.format_cpus(w.cpu for w in staying)
                    raise RequestError(f"there is no worker on CPU {cpu} to remove. There are workers on CPU {have or 'none'}")
                chosen.append(worker)
        else:
            for waiting in (self._queued, self._vacant):
                while n and waiting:
                    waiting.pop()
                    n -= 1
            chosen = staying[:n]
        for worker in chosen:
            self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        """It finishes the tile in hand, leaves the rest to others and exits."""
        worker.state = "leaving"
        self._booted(worker)
        self._table.worker_command(worker.row, "leave")

    def kill_all(self) -> None:
        """Ends every worker at once and reaps it; rows are free afterwards. No callback is called. A worker that does not end is left to
        the kernel: it is gone as soon as it can be."""
        for worker in self._rows.values():
            self._kill(worker)
        deadline = clock.monotonic() + REAP_S
        for worker in list(self._rows.values()):
            if ended(worker.pidfd, deadline - clock.monotonic()):
                self._forget(worker)
                self._table.worker_gone(worker.row)

    def stopped(self, rows: Iterable[int]) -> list[int]:
        """Those of these rows whose workers somebody has stopped."""
        return [row for row in rows if row in self._rows and _is_stopped(self._rows[row])]

    def kill(self, rows: Iterable[int]) -> None:
        """Ends the workers of these rows, which hold a recovery up. Their deaths are told as any other, when the processes have ended."""
        for worker in [self._rows[row] for row in rows if row in self._rows]:
            if worker.doomed is None and worker.state != "abandoned":
                worker.ended = "ended: it did not stop for a recovery"
                self._kill(worker)

    def _kill(self, worker: Worker) -> None:
        """Kills it. The news of its end comes from its pidfd; where none comes, it is abandoned: nothing here ever waits for it."""
        with suppress(ProcessLookupError):
            processes.kill(worker.pid, signal.SIGKILL)
        if worker.doomed is None and worker.state != "abandoned":
            worker.doomed = self._loop.later(REAP_S, partial(self._abandon, worker))

    def _abandon(self, worker: Worker) -> None:
        """It has been killed, and does not end (I7). It executes no instruction any more, but the kernel may still complete its last call.
        So memory that its tile writes to is not used again. Its row stays closed; another worker takes its place."""
        if self._rows.get(worker.row) is not worker or ended(worker.pidfd, 0.0):
            return  # its end is the next news
        at = self._table.current(worker.row)
        staying, booted = worker.state != "leaving", worker.state != "starting"
        self._booted(worker)
        if worker.stopped is not None:
            worker.stopped.cancel()
        self._let_go(worker)
        worker.state = "abandoned"
        self._table.worker_gone(worker.row, died=True)
        why = worker.ended or (f"hung {worker.hung}" if worker.hung else "killed")
        self._event_log.warning("worker-abandoned", **worker.facts(), seconds=REAP_S, why=why)
        if staying:
            self._vacant.append(worker.place)
        why = f"{why}; it does not end and was abandoned"
        self._listener.worker_died(
            Death(
                worker.row, worker.pid, worker.cpu, why, signal.SIGKILL, at, booted, bool(worker.hung), bool(worker.ended), abandoned=True
            )
        )

    def _reaped_late(self, worker: Worker) -> None:
        """An abandoned worker has ended after all: its row is free again."""
        self._forget(worker)
        self._table.worker_gone(worker.row)
        self._event_log.info("worker-reaped", **worker.facts())
        self._start_waiting()


def _is_stopped(worker: Worker) -> bool:
    try:
        return processes.waitid(os.P_PIDFD, worker.pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _why(status: int, error: str) -> str:
    if error:
        return error
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.waitstatus_to_exitcode(status)}"


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        descriptors.close(fd)
