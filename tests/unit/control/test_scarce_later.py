"""What lacks descriptors, memory or room in the kernel is done later, or is not taken for what it is not."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aspen_mp.control.models import tile_names
from aspen_mp.control.planning.plan_cache import Cache
from aspen_mp.control.pool import workers as pools
from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.control.pool.placement import Place
from aspen_mp.control.pool.workers import Worker, WorkerPool
from aspen_mp.control.process.machine import MachineWatch
from aspen_mp.control.wire import connection as connections
from aspen_mp.control.wire import event_loop as loops
from aspen_mp.control.wire.connection import Connection
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import PRIORITY_WORKER, Loop
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.workers import main, process, topology, wire

WATCHDOG_S = 60.0


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    for module in (loops, connections, pools):
        monkeypatch.setattr(module, "SCARCE_S", 0.01)
    made = Loop()
    yield made
    made.close()


def run(loop: Loop, until: Callable[[], object]) -> None:
    late = loop.later(WATCHDOG_S, lambda: pytest.fail("watchdog"))
    while not until():
        loop.later(0.001, loop.stop)
        loop.run()
    late.cancel()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """None can be had in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("what", "scarce"),
    [
        *((error(n), True) for n in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)),
        *((error(n), False) for n in (errno.ENOENT, errno.EINVAL, errno.EPIPE, errno.EACCES)),
        (MemoryError(), True),
        (ImportError("x.so: cannot open shared object file: Too many open files"), True),
        (ModuleNotFoundError("no module x"), False),
        (ValueError("x"), False),
    ],
)
def test_what_is_scarce(what: Exception, scarce: bool) -> None:
    assert is_scarce(what) == scarce
    assert reason(what)


# ---- the event loop


@pytest.mark.parametrize("what", [error(errno.EMFILE), MemoryError()])
def test_a_handler_that_lacks_something(loop: Loop, what: Exception) -> None:
    """The loop goes on with the others, and comes back to it, but not at once."""
    ours, theirs = socket.socketpair()
    theirs.send(b"x")
    said: list[BaseException] = []
    calls: list[int] = []

    def read() -> None:
        calls.append(1)
        if len(calls) < 4:
            raise what
        ours.recv(1)

    def fails() -> None:
        raise what

    loop.on_scarce = said.append
    loop.watch(ours.fileno(), PRIORITY_WORKER, read)
    loop.later(0, fails)
    loop.later(0, loop.stop)
    loop.run()
    assert loop._selector.get_key(ours.fileno()).events == 0
    run(loop, lambda: len(calls) == 4)
    assert said == [what] * 4
    loop.unwatch(ours.fileno())
    ours.close()
    theirs.close()


def test_a_handler_that_is_wrong(loop: Loop) -> None:
    def fails() -> None:
        raise error(errno.EINVAL)

    loop.later(0, fails)
    with pytest.raises(OSError, match="Invalid"):
        loop.run()


def test_a_client_whose_process_cannot_be_watched_yet(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may leave its socket to a child of its own: its end is noticed all the same."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        signal.pause()
    closed: list[object] = []
    monkeypatch.setattr(connections.protocol, "HANDSHAKE_S", 10 * WATCHDOG_S)
    monkeypatch.setattr(connections, "peer", lambda sock: (pid, os.getuid(), os.getgid()))
    with monkeypatch.context() as patch:
        patch.setattr("aspen_mp.system.processes.pidfd_open", lambda pid: (_ for _ in ()).throw(error(errno.EMFILE)))
        Connection(loop, ours, lambda *_: None, closed.append)
        loop.later(0.03, loop.stop)
        loop.run()
    os.kill(pid, signal.SIGKILL)
    run(loop, lambda: closed)
    os.waitpid(pid, 0)
    theirs.close()


# ---- workers


def worker_of(sock: socket.socket, pidfd: int = -1) -> Worker:
    return Worker(0, 0, pidfd, sock, Place(0), "uniform")


@pytest.mark.parametrize("number", [errno.ETOOMANYREFS, errno.ENOBUFS])
def test_a_packet_that_the_kernel_has_no_room_for(loop: Loop, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is sent later, and what comes after it after it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pool: Any = SimpleNamespace(_loop=loop)
    pool._flush = lambda worker: WorkerPool._flush(pool, worker)
    pool._drop_queue = lambda worker: WorkerPool._drop_queue(pool, worker)
    worker, real, refusals = worker_of(ours), wire.send, [number] * 3

    def send(*what: Any) -> None:
        if refusals:
            raise error(refusals.pop())
        real(*what)

    monkeypatch.setattr(wire, "send", send)
    loop.watch(ours.fileno(), PRIORITY_WORKER, lambda: None)
    WorkerPool._send(pool, worker, wire.ATTACH, 1, fds=(0,))
    WorkerPool._send(pool, worker, wire.SYNC, 2)
    assert len(worker.out) == 2
    run(loop, lambda: not worker.out)
    assert [wire.receive(theirs)[:2] for _ in range(2)] == [(wire.ATTACH, 1), (wire.SYNC, 2)]
    theirs.close()
    loop.unwatch(ours.fileno())
    ours.close()


def test_a_worker_that_cannot_be_told_everything(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and nothing of it is kept: its row is free for the next try."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    before = len(os.listdir("/proc/self/fd"))
    said: list[object] = []
    note: Any = lambda *what, **_: said.append(what)  # noqa: E731
    table = SimpleNamespace(worker_reset=note, worker_started=note, worker_gone=lambda row: said.append(("gone", row)))
    leases = SimpleNamespace(shared=[], hold=lambda cpu: 0, drop=lambda cpu: said.append(("drop", cpu)))
    pool: Any = SimpleNamespace(_table=table, _leases=leases, _loop=loop, _rows={}, _fds=(0, 1, 2), _unmapping={}, seq=1)
    pool._spawner = SimpleNamespace(start=lambda: (pid, ours))
    for name in ("_forget", "_booted", "_let_go", "_drop_queue", "_send", "_claim", "_bound_to"):
        setattr(pool, name, getattr(WorkerPool, name).__get__(pool))
    core = SimpleNamespace(rank=0, l3=0, node=0, core_class="P")

    class Segments:
        def __iter__(self) -> Iterator[object]:
            raise error(errno.EMFILE)

    pool._segments = Segments()
    with pytest.raises(OSError, match="open files"):
        WorkerPool._start_at(pool, 0, Place(0), SimpleNamespace(by_cpu={0: core}))  # type: ignore[arg-type]
    assert not pool._rows
    assert {("gone", 0), ("drop", 0)} <= set(said)
    assert len(os.listdir("/proc/self/fd")) == before - 1  # our socket
    theirs.close()
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_segment_that_a_worker_never_got() -> None:
    """It could not be sent to it, and is dropped: the worker goes on, and says that it does not have it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    said: list[object] = []
    engine = SimpleNamespace(unmap=said.append, attached=said.append)
    worker: Any = SimpleNamespace(_sock=theirs, _segments={}, _engine=engine, _cache=None)
    wire.send(ours, wire.DETACH, 5, 77)
    wire.send(ours, wire.SYNC, 3)
    main.WorkerProcess._sync(worker, 3)
    assert said == [5, 3]
    assert wire.receive(ours)[:2] == (wire.DETACHED, 77)
    ours.close()
    theirs.close()


class Pool(WorkerPool):
    """One that can start no worker at place "b" while there is something to raise."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._event_log, self._max, self.respawned = loop, EventLog("test", "off"), 9, 0
        self._rows, self._queued, self._vacant, self._again, self._refused = {}, deque(), [], None, ""
        self._leases = SimpleNamespace(others=list, ahead={})  # type: ignore[assignment]
        self.fails: Exception | None = error(errno.EAGAIN)

    def _start_at(self, row: int, place: Place, machine: object) -> None:
        if place.cpu == 1 and self.fails is not None:
            raise self.fails
        self._rows[row] = worker_of(None)  # type: ignore[arg-type]

    def cpus(self) -> list[int]:
        return [0 for _ in self._rows]


def test_the_dead_are_replaced_when_they_can_be(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "AGAIN_S", 0.01)
    pool = Pool(loop)
    pool._vacant = [Place(0), Place(1), Place(2)]
    pool.refill()
    assert (len(pool._rows), pool.lacking) == (1, 2)
    loop.later(0.05, loop.stop)
    loop.run()
    assert [event["event"] for event in pool._event_log.latest()] == ["worker-not-started"]
    pool.fails = None
    run(loop, lambda: len(pool._rows) == 3)
    assert pool.lacking == 0


def test_the_dead_are_given_up_where_none_can_ever_be_started(loop: Loop) -> None:
    pool = Pool(loop)
    pool.fails = error(errno.ENOENT)
    pool._vacant = [Place(0), Place(1), Place(2)]
    with pytest.raises(OSError, match="No such"):
        pool.refill()
    assert (len(pool._rows), pool.lacking) == (1, 0)


def test_a_failed_call_gives_up_its_own_workers_alone(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(loop)
    pool._queued.append(Place(1))
    machine = SimpleNamespace(choose=lambda n, cores, taken: [1] * n)
    monkeypatch.setattr(topology, "read", lambda: machine)
    with pytest.raises(OSError, match="unavailable"):
        pool.start(2)
    assert list(pool._queued) == [Place(1)]


# ---- the machine


def test_the_machine_is_not_taken_for_another() -> None:
    """Without descriptors nothing is known of quota, cpuset, caches: that does not mean that there are none."""
    reader = topology.LimitsReader()
    before = reader.read()
    with no_descriptors():
        with pytest.raises(OSError, match="open files"):
            reader.read()
        with pytest.raises(OSError, match="open files"):
            topology.read()
        with pytest.raises(OSError, match="open files"):
            topology._entries(Path("/sys/devices/system"), "cpu")
    assert reader.read() == before


def test_a_change_of_the_machine_that_cannot_be_looked_at_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one at the next look as well."""

    def full() -> None:
        raise error(errno.EMFILE)

    changes: list[object] = []
    leases = SimpleNamespace(others=list)
    watch: Any = SimpleNamespace(_cores=SimpleNamespace(leases=leases, limits="old", changed=changes.append))
    with monkeypatch.context() as patch:
        patch.setattr(topology, "read", full)
        with pytest.raises(OSError, match="open files"):
            MachineWatch._machine_changed(watch, "new")  # type: ignore[arg-type]
    leases.others = full
    with pytest.raises(OSError, match="open files"):
        MachineWatch._machine_changed(watch, "new")  # type: ignore[arg-type]
    assert not changes


def test_leases_without_descriptors(tmp_path: Path) -> None:
    """A runtime that cannot open the file is told so, and does not take others' cores for free ones. One that has it needs no more."""
    one = Leases(str(tmp_path))
    with no_descriptors():
        with pytest.raises(OSError, match="open files"):
            Leases(str(tmp_path))
        assert one.hold(1) == 0
        assert one.others() == []
    other = Leases(str(tmp_path))
    assert other.others() == [1]
    one.close()
    other.close()


def test_the_plan_cache_without_descriptors(tmp_path: Path) -> None:
    """Its files are as good as ever."""
    cache = Cache(str(tmp_path), 1 << 20)
    file = tmp_path / "plans" / "x.aspen"
    file.write_bytes(b"junk")
    with no_descriptors():
        assert cache.plan("x") is None
    assert file.exists()
    assert cache.plan("x") is None
    assert not file.exists()


def test_a_child_closes_what_it_does_not_need_without_a_descriptor() -> None:
    kept, other = os.dup(0), os.dup(0)
    pid = os.fork()
    if pid == 0:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        process.keep_only({kept})
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        os._exit({int(fd) for fd in os.listdir("/proc/self/fd")} - {0, 1, 2, kept} != {max(3, kept + 1) if kept == 3 else 3})
    assert os.waitpid(pid, 0)[1] == 0
    os.close(kept)
    os.close(other)


# ---- names and times of tiles


def test_tiles_are_known_without_numpy() -> None:
    import small_models

    from aspen_mp.planner import api
    from aspen_mp.shm.tables import KERNELS, OP, OPERAND, PLAN_HEADER, TILE

    for model in (small_models.conv_chain(3, 8, 8), small_models.loop()):
        planned = api.load(model.SerializeToString())
        first = [{info.name: api.Binding(np.dtype(info.dtype), tuple(info.shape), None) for info in planned.signature.inputs}]
        plan = api.plan_stage(planned, first, workers=2).plan
        assert plan is not None
        data = bytearray(plan.nbytes)
        plan.place_weights({item.key: (0, 64) for item in plan.weights})
        plan.write(memoryview(data))
        fd = os.memfd_create("plan")
        os.write(fd, data)
        header = np.frombuffer(data, PLAN_HEADER, 1)[0]
        ops = np.frombuffer(data, OP, header["n_ops"], int(header["ops"]))
        operands = np.frombuffer(data, OPERAND, header["n_operands"], int(header["operands"]))
        for number, tile in enumerate(np.frombuffer(data, TILE, header["n_tiles"], int(header["tiles"]))):
            op = ops[tile["op"]]
            used = operands[op["operand"] : op["operand"] + op["n_outputs"] + op["n_inputs"]]
            elements = max((math.prod(map(int, x["dims"][: x["rank"]])) for x in used), default=0)
            name = data[int(header["blobs"]) + int(op["name"]) :][: int(op["name_bytes"])].decode()
            opaque, seconds = op["kernel"] == KERNELS["OPAQUE"].code, max(float(op["cost_ns"]), tile_names.SLOW_NS * elements) / 1e9
            assert tile_names.op_of_tile(fd, number) == tile["op"]
            assert tile_names.op_of(fd, number) == tile_names.op_name(fd, int(tile["op"])) == name
            assert tile_names.tile_estimate(fd, number) == (name, opaque, pytest.approx(seconds))
        for beyond in (-1, int(header["n_tiles"])):
            assert (tile_names.op_of(fd, beyond), tile_names.op_of_tile(fd, beyond)) == ("", 0)
        assert tile_names.op_name(fd, int(header["n_ops"])) == ""
        os.close(fd)
