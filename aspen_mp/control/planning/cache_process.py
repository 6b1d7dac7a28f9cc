"""The process that writes what a planning child has made into the plan cache.

A child hands a plan over before it answers, so a runtime may end at any moment after the answer: the plan is written all the same. The
process yields to everything else, and nobody waits for it. It holds no stream of the program that uses the runtime. It ends when the child
has ended and all is written, and at the latest `WRITER_S` seconds after the piece during which the child ended. Where it is ended earlier,
the cache holds whole files only.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from aspen_mp.control.planning.plan_cache import WRITER_S, Cache, Known, WeightFile, warn
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.forked import fork
from aspen_mp.shm.scarcity import reason
from aspen_mp.system import descriptors, filesystem, processes, signals, sockets

_MOST_TEXT: Final = 4096


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A plan to be kept: its key and its file. `weights`: the files of weight segments whose descriptors come along; `known`: what there is
    to remember of the model, where the cache has not been told."""

    key: str
    plan: bytes
    weights: list[WeightFile]
    known: Known | None


class WriterProcess:
    """A planning child's end of the socket to its writing process."""

    MOST_FILES: Final = 64
    """Weight segments that go with one plan."""

    def __init__(self, pid: int, sock: sockets.socket) -> None:
        self.pid = pid
        self._sock = sock

    def fileno(self) -> int:
        """Readable when there is something to complain of, or the process has ended."""
        return self._sock.fileno()

    def close(self) -> None:
        """Nothing more comes: the process ends when it has written what it has. Print what it could not write until now."""
        self.complain()
        self._sock.close()

    @classmethod
    def start(cls, cache: Cache) -> WriterProcess | None:
        """Fork the process; None, with a warning, where there is none to be had."""
        ours, theirs = sockets.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = fork(lambda: serve(cache, theirs), "aspen-cache", keep={theirs.fileno()}, outlives=True)
        except OSError as error:
            ours.close()
            warn(f"plans are not kept: {reason(error)}")
            return None
        finally:
            theirs.close()
        return cls(pid, ours)

    def keep(self, kept: Kept, fds: Sequence[int]) -> bool:
        """Hand a plan over. False where that failed: for want of memory or descriptors, or because hundreds wait to be written."""
        self.complain()
        try:
            # In a file in memory: a message of any size would wait until the process reads it.
            handed = descriptors.memfd_create("aspen-kept", os.MFD_CLOEXEC)
            try:
                with filesystem.open(handed, "wb", closefd=False) as file:
                    file.write(msgspec.msgpack.encode(kept))
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handed, *fds]))
                self._sock.sendmsg([b"k"], [rights], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            finally:
                descriptors.close(handed)
        except OSError:
            return False
        return True

    def complain(self) -> None:
        """Print what the process could not write, and why."""
        with suppress(OSError):
            while text := self._sock.recv(_MOST_TEXT, socket.MSG_DONTWAIT):
                warn(text.decode(errors="replace"))


def serve(cache: Cache, sock: sockets.socket) -> int:
    """The process's main function."""
    processes.nice(19)
    _let_go_of_streams()

    def say(text: str) -> bool:
        """The child prints it, if it is still there."""
        with suppress(OSError):
            return bool(sock.send(text.encode()[:_MOST_TEXT], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL))
        return False

    cache.say = say
    poll, hung_up = sockets.poll(), False
    poll.register(sock, 0)
    while True:
        data, fds, flags, _ = sockets.recv_fds(sock, 1, WriterProcess.MOST_FILES + 1)
        if not data:
            return 0
        if not hung_up:
            hung_up = bool(poll.poll(0))
            signals.alarm(WRITER_S)
        try:
            if not flags & socket.MSG_CTRUNC:
                with filesystem.open(fds[0], "rb", closefd=False, buffering=0) as file:
                    file.seek(0)
                    write(cache, msgspec.msgpack.decode(file.read(), type=Kept), fds[1:])
        except OSError as error:
            cache.warn_once(reason(error))
        finally:
            protocol.close_all(fds)
        if not hung_up:
            signals.alarm(0)


def write(cache: Cache, kept: Kept, fds: Sequence[int]) -> None:
    """Put a plan into the cache. The model first, which is quickly done; then what a plan needs before the plan."""
    if kept.known is not None:
        cache.put_model(kept.known)
    coming = sum(file.nbytes for file in kept.weights)
    if not cache.room(coming):
        return
    cache.trim(coming)
    for file, fd in zip(kept.weights, fds, strict=True):
        cache.put_weights(file, fd)
    cache.put_plan(kept.key, kept.plan)


def _let_go_of_streams() -> None:
    """Whoever reads the program's output to its end would wait for this process."""
    nothing = descriptors.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        descriptors.dup2(nothing, stream)
    if nothing > 2:
        descriptors.close(nothing)
