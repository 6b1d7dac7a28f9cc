"""A worker process: pinned to one CPU, it maps what the planner process sends and drives its scheduling engine until told to go.

Kept light, so that a worker runs some tens of milliseconds after it is asked for. Neither numpy nor onnx is imported before an opaque tile
needs them.
"""

from __future__ import annotations

import errno
import signal

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.segments import CLIENTS_WRITE, Segment
from aspen_mp.system import descriptors, processes, signals, sockets
from aspen_mp.workers import _dse, process, wire

TYPE_CHECKING = False  # typing's costs as much to import as the rest of this file
if TYPE_CHECKING:
    from typing import NoReturn

    from aspen_mp.workers.fallback.opaque_tile import OpaqueCache

SOCKET_FD = 3
OOM_SCORE = 800
_WRITABLE = {"control", "doorbell", "client", "data", "arena", "trace"}
_ROLE_NAMES = {number: name for name, number in _control.ROLES.items()}


class WorkerProcess:
    """Engine, socket to the planner process, and the segments mapped so far."""

    def __init__(self, sock: sockets.socket) -> None:
        self._sock = sock
        self._segments: dict[int, Segment] = {}
        self._cache: OpaqueCache | None = None
        kind, row, cpu, _, isa, fds = wire.receive(sock)
        if kind != wire.SETUP or len(fds) != 3:
            raise EOFError
        process.set_name(f"aspen-w{row}")
        if cpu >= 0:
            processes.sched_setaffinity(0, {cpu})
        self._control = Segment.from_fd(fds[0], "control", writable=True)
        self._doorbell = Segment.from_fd(fds[1], "doorbell", writable=True, check=False)
        self._control.close_fd()
        self._doorbell.close_fd()
        self._engine = _dse.Engine(self._control.mapping, self._doorbell.mapping, row, isa.decode() or None, fds[2])
        self._sync(0)
        self._engine.join()
        wire.send(sock, wire.READY)

    def run(self) -> None:
        while True:
            reason, a, b = self._engine.run()
            if reason == "opaque":
                self._opaque(a, b)
            elif reason == "attach":
                self._sync(a)
            elif reason == "drained":
                wire.send(self._sock, wire.DRAINED)
            else:
                return

    def _sync(self, seq: int) -> None:
        """Reads packets up to the SYNC that reaches `seq` (0: the first one), maps and unmaps what they say, and tells the engine."""
        while True:
            kind, a, role, where, text, fds = wire.receive(self._sock)
            if kind in {wire.ATTACH, wire.BORROW} and len(fds) != 1:  # there was no room for it, and nobody sends it again
                raise OSError(errno.EMFILE, "the descriptor of a segment was lost: this worker has too many open")
            if kind == wire.ATTACH:
                name = _ROLE_NAMES[role]
                segment = Segment.from_fd(fds[0], name, writable=name in _WRITABLE, check=name not in CLIENTS_WRITE)
                segment.close_fd()
                self._segments[a] = segment
                self._engine.map(a, name, segment.mapping)
            elif kind == wire.BORROW:
                self._segments[a].mapping.borrow(role, fds[0], where, *wire.LENGTH.unpack(text))
                descriptors.close(fds[0])
            elif kind == wire.DETACH:
                self._engine.unmap(a)
                if a in self._segments:  # else it could not be sent to this worker, and nobody has it
                    self._segments.pop(a).close()
                if self._cache is not None:
                    self._cache.clear()  # numbers of instances are used again
                wire.send(self._sock, wire.DETACHED, role)
            elif kind == wire.SYNC and _reached(a, seq):
                self._engine.attached(a)
                return

    def _opaque(self, instance: int, tile: int) -> None:
        from aspen_mp.workers.fallback import interrupt, opaque_tile

        if self._cache is None:
            self._cache = opaque_tile.OpaqueCache()
        engine = self._engine
        op, blob, outputs, inputs = engine.operands(instance, tile)
        error: str | None
        name = engine.name(instance, tile)
        try:
            given = [x for x in inputs if x is not None]
            with interrupt.asking(engine.unwanted):
                error, needed = opaque_tile.run_tile(self._cache, (instance, op), blob, name, outputs=outputs, inputs=given)
        except MemoryError:
            error, needed = f"{name}: not enough memory", 0
        except interrupt.Unwanted:
            error, needed = None, 0
        del blob, outputs, inputs, given  # no view of shared memory may stay behind when its segment is unmapped
        if error is None:
            engine.finish(instance, tile, _control.ERRORS["CANCELLED"])
        elif error:
            engine.finish(instance, tile, _control.ERRORS["OPAQUE_FAILED"], 0, error)
        elif needed:
            engine.finish(instance, tile, _control.ERRORS["NEEDS_SPACE"], needed, f"{name}: its result takes {needed} bytes")
        else:
            engine.finish(instance, tile)


def _reached(a: int, seq: int) -> bool:
    """Whether attach number `a` is `seq` or a later one; the numbers wrap at 2**32."""
    return (a - seq) % (1 << 32) < 1 << 31


def main(argv: list[str]) -> NoReturn:
    """``argv``: process id of the planner process. Descriptor 3 is the socket to it."""
    process.set_oom_score(OOM_SCORE)
    sock = sockets.socket(fileno=SOCKET_FD)
    sock.set_inheritable(False)
    work(int(argv[0]), sock)


def work(parent: int, sock: sockets.socket) -> NoReturn:
    """The life of a worker, a child of the planner process `parent`."""
    process.die_with(parent)
    process.one_thread()
    signals.signal(signal.SIGINT, signal.SIG_IGN)
    status = 1
    try:
        wire.send(sock, wire.HELLO, processes.getpid())
        WorkerProcess(sock).run()
        status = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 0  # the planner process is gone
    except Exception as error:
        wire.send(sock, wire.ERROR, text=f"{type(error).__name__}: {error}".encode()[: wire.MAX_TEXT])
        raise
    finally:
        process.flush_output()
        processes._exit(status)  # nothing here needs an orderly interpreter shutdown, and this is faster
