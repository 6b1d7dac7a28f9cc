"""Where worker processes come from: the zygote forks them, or, where there is none, they are started as new programs.

A worker says HELLO with its process id before anything else, and the zygote says so on the same socket. So whoever asked the zygote for one
learns of it even if either of them dies right after the fork. A socket that closes without a HELLO had no worker.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from aspen_mp.control.wire.child_reaper import REAP_S, ended, status_of, watched
from aspen_mp.control.wire.forked import fork
from aspen_mp.control.wire.spawn import spawn, start_worker
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.system import descriptors, processes, sockets
from aspen_mp.workers import wire

if TYPE_CHECKING:
    from aspen_mp.control.wire.event_log import EventLog
    from aspen_mp.control.wire.event_loop import Loop

ANSWER_S: Final = 2.0
"""A zygote that has not forked after this time is stuck (stopped, perhaps) and is ended."""
MOST_DEATHS: Final = 3
"""Zygotes in a row that die without having forked a worker: then there is none any more."""
AGAIN_S: Final = 1.0
"""How soon it is tried again to start one where descriptors, memory or processes were lacking."""


class WorkerSpawner:
    def __init__(self) -> None:
        self._pid = 0
        self._pidfd = -1
        self._sock: sockets.socket | None = None
        self._ready = False
        self._deaths = 0
        self._early: deque[sockets.socket] = deque()
        self._loop: Loop | None = None
        self._event_log: EventLog | None = None

    # ---- the zygote

    @property
    def zygote(self) -> int:
        """Its process id; 0 where there is none."""
        return self._pid

    def fork_zygote(self) -> None:
        """Forks it from this process, which has one thread and has imported little; where that fails there is none."""
        parent = processes.getpid()
        with suppress(OSError):
            self._begin(lambda theirs: fork(lambda: _be_zygote(parent, theirs), "aspen-zygote", keep={theirs.fileno()}))

    def _begin(self, start: Callable[[sockets.socket], int]) -> None:
        """A zygote's process, by `start` of its socket. OSError where there is none, or its end could not be watched: then it is ended."""
        ours, theirs = sockets.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = start(theirs)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._pidfd = watched(pid)
        except OSError:
            ours.close()
            raise
        self._pid, self._sock, self._ready = pid, ours, False

    def watch(self, loop: Loop, event_log: EventLog) -> None:
        """Begins to replace a zygote that dies."""
        self._loop, self._event_log = loop, event_log
        self._watch()

    def _renew(self) -> None:
        """Another zygote. Where one cannot be started that is tried again; until then workers are started as programs."""
        if self._sock is not None or self._loop is None:
            return
        try:
            self._begin(lambda theirs: spawn("aspen_mp.workers.zygote", [str(processes.getpid())], theirs))
            self._watch()
        except OSError as error:
            if self._sock is not None:
                self._end()
            if is_scarce(error):
                self._loop.later(AGAIN_S, self._renew)

    def _watch(self) -> None:
        if self._loop is not None and self._sock is not None:
            from aspen_mp.control.wire.event_loop import PRIORITY_WORKER

            self._loop.watch(self._pidfd, PRIORITY_WORKER, self._died)

    def _died(self) -> None:
        """It has ended, or is to: reaps it and starts another."""
        status = self._end()
        self._deaths += 1
        if self._event_log is not None:
            self._event_log.warning("zygote-died", pid=status[0], status=status[1])
        if self._deaths < MOST_DEATHS:
            self._renew()

    def _end(self) -> tuple[int, int]:
        """Ends the zygote and reaps it: (pid, exit code)."""
        assert self._sock is not None
        with suppress(ProcessLookupError):
            processes.kill(self._pid, signal.SIGKILL)
        pid, self._pid = self._pid, 0
        status = -signal.SIGKILL
        if ended(self._pidfd, REAP_S):
            status = os.waitstatus_to_exitcode(status_of(pid))
        elif self._loop is not None:
            self._loop.reap(pid)
        if self._loop is not None:
            self._loop.unwatch(self._pidfd)
        descriptors.close(self._pidfd)
        self._sock.close()
        self._sock, self._ready = None, False
        return pid, status

    def close(self) -> None:
        """Ends the zygote; there are no workers any more. Early ones that were never taken see their sockets close, and leave."""
        self.dismiss_early()
        if self._sock is not None:
            self._end()

    # ---- workers

    def ask_early(self, number: int) -> None:
        """Begins to boot `number` workers; `start` hands these out first."""
        for _ in range(number):
            sock = self._ask(wait=True)
            if sock is None:
                return
            self._early.append(sock)

    def dismiss_early(self) -> None:
        """Early worker processes that are not wanted after all."""
        while self._early:
            sock = self._early.popleft()
            pid = self._hello(sock)
            sock.close()  # at which it leaves
            if pid and self._loop is not None:
                self._loop.reap(pid)

    def start(self) -> tuple[int, sockets.socket]:
        """A worker process that waits for its setup: its pid and the socket to it. Raises OSError."""
        sock = self._early.popleft() if self._early else self._ask()
        if sock is not None:
            pid = self._hello(sock)
            if pid:
                self._deaths = 0
                return pid, sock
            sock.close()
        return start_worker()

    def _ask(self, *, wait: bool = False) -> sockets.socket | None:
        """Asks the zygote for a worker, whose socket is returned. None where it is not there, or, unless told to `wait`, not ready yet."""
        if self._sock is None or not (wait or self._is_ready()):
            return None
        ours, theirs = sockets.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            wire.send(self._sock, wire.FORK, fds=(theirs.fileno(),))
        except OSError:
            ours.close()
            return None
        finally:
            theirs.close()
        return ours

    def _is_ready(self) -> bool:
        assert self._sock is not None
        if not self._ready and _readable(self._sock, 0):
            with suppress(EOFError, OSError):
                self._ready = wire.receive(self._sock)[0] == wire.HELLO
        return self._ready

    def _hello(self, sock: sockets.socket) -> int:
        """The pid of the worker at the other end; 0 where there is none."""
        if not _readable(sock, ANSWER_S):
            if self._sock is not None:
                self._died()  # with it goes its copy of the worker's socket: what follows does not wait
            else:
                return 0
        with suppress(EOFError, OSError):
            kind, pid, *_ = wire.receive(sock)
            if kind == wire.HELLO:
                return pid
        return 0


def _be_zygote(parent: int, sock: sockets.socket) -> NoReturn:
    """Runs the zygote in the forked process."""
    from aspen_mp.workers import zygote

    zygote.serve(parent, sock)


def _readable(sock: sockets.socket, seconds: float) -> bool:
    poll = sockets.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))
