"""The zygote: a process that has loaded all that a worker needs and has nothing else, from which workers are forked in a millisecond.

It has one thread, no segment, and two descriptors of its own: its socket, and for a moment that of the worker that it forks. Its children
are the planner process's, which waits for them and with which they die; it does so itself. Nothing depends on its being there: where there
is none, workers are started as new programs.
"""

from __future__ import annotations

import gc
import signal
from contextlib import suppress

from aspen_mp.system import processes, signals, sockets
from aspen_mp.workers import main as worker
from aspen_mp.workers import process, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(argv: list[str]) -> NoReturn:
    """As a program: ``argv`` and descriptor 3 as for a worker."""
    sock = sockets.socket(fileno=worker.SOCKET_FD)
    sock.set_inheritable(False)
    serve(int(argv[0]), sock)


def serve(parent: int, sock: sockets.socket) -> NoReturn:
    """Forks a worker for each FORK packet until the other end, the planner process `parent`, hangs up."""
    status = 1
    try:
        process.die_with(parent)
        process.set_name("aspen-zygote")
        process.set_oom_score(worker.OOM_SCORE)  # its workers'
        signals.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()
        gc.freeze()  # what is here stays shared with the workers
        wire.send(sock, wire.HELLO, processes.getpid())
        while True:
            kind, _, _, _, _, fds = wire.receive(sock)
            if kind == wire.FORK and len(fds) == 1:
                _fork(parent, sock, fds[0])
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 0
    finally:
        processes._exit(status)


def _fork(parent: int, sock: sockets.socket, fd: int) -> None:
    def child() -> NoReturn:
        sock.close()
        worker.work(parent, sockets.socket(fileno=fd))

    theirs = sockets.socket(fileno=fd)
    with suppress(OSError):  # no process is to be had, or who asked has gone: the worker's socket closes
        pid = process.fork_sibling(child)
        wire.send(theirs, wire.HELLO, pid)  # for one that is killed before it can say so itself: somebody has to reap it
    theirs.close()
