"""Trouble for real processes, to try on them what a simulated history has found.

    ASPEN_MP_INJECT="seed=7,partial=0.2,scarce=0.001,delays=0.05" aspen-mp run model.onnx

Each process that starts with this variable has the rooms' functions replaced by ones that bring trouble now and then. Kinds have the names
that they have in `tests/simulation`. Without the variable nothing of this is imported.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from aspen_mp.system import descriptors, filesystem, processes, sockets

VARIABLE: Final = "ASPEN_MP_INJECT"
KINDS: Final = ("delays", "partial", "scarce", "kill-planner", "kill-worker", "kill-zygote", "kill-plan", "kill-cache", "stop-process")
_SCARCE: Final = (errno.EMFILE, errno.ENFILE)
_NAMES: Final = {"aspen-planner": "planner", "aspen-zygote": "zygote", "aspen-plan": "plan", "aspen-cache": "cache"}


class Trouble:
    """The kinds of trouble, and how often each comes at a call that it could come to."""

    def __init__(self, text: str) -> None:
        """Raises ValueError: a kind that is not known, or a rate that is not a number from 0 to 1."""
        self.rates: dict[str, float] = {}
        seed = ""
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name == "seed":
                seed = value
                continue
            if name not in KINDS:
                raise ValueError(f"{VARIABLE}: {name!r} is not a kind of trouble. Kinds are seed, {', '.join(KINDS)}")
            self.rates[name] = float(value or 0.01)
            if not 0 <= self.rates[name] <= 1:
                raise ValueError(f"{VARIABLE}: {name}={value} is not a share from 0 to 1")
        self._seed = seed
        self._chance = random.Random(seed)
        self._pid = os.getpid()

    def happens(self, kind: str) -> bool:
        rate = self.rates.get(kind)
        if not rate:
            return False
        if self._pid != os.getpid():  # a forked child draws anew
            self._pid = os.getpid()
            self._chance = random.Random(f"{self._seed} {_kind()} {self._pid}")
        return self._chance.random() < rate

    def part(self, n: int) -> int:
        """How many of `n` bytes go at once."""
        return 1 + int(self._chance.random() * n) if n > 1 and self.happens("partial") else n

    def enter(self) -> None:
        """Every call passes here."""
        if self.happens(f"kill-{_kind()}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.happens("stop-process"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.happens("delays"):
            time.sleep(10 ** (-6 + 4 * self._chance.random()))

    def lack(self) -> None:
        if self.happens("scarce"):
            number = self._chance.choice(_SCARCE)
            raise OSError(number, os.strerror(number))


def _kind() -> str:
    """The kind of this process, by the name that it has given itself."""
    with open("/proc/self/comm") as file:
        name = file.read().strip()
    return _NAMES.get(name, "worker" if name.startswith("aspen-w") else "client")


class Socket(socket.socket):
    """A socket whose messages go and come in parts."""

    trouble: Trouble

    def send(self, data: Any, flags: int = 0) -> int:
        self.trouble.enter()
        return super().send(self._cut(data), flags)

    def sendmsg(self, buffers: Any, ancillary: Any = (), flags: int = 0, address: Any = None) -> int:
        self.trouble.enter()
        return super().sendmsg([self._cut(b"".join(bytes(each) for each in buffers))], ancillary, flags)

    def recv(self, n: int, flags: int = 0) -> bytes:
        self.trouble.enter()
        return super().recv(self._least(n), flags)

    def recvmsg(self, n: int, space: int = 0, flags: int = 0) -> Any:
        self.trouble.enter()
        return super().recvmsg(self._least(n), space, flags)

    def accept(self) -> Any:
        self.trouble.enter()
        self.trouble.lack()
        found, address = super().accept()
        return Socket(fileno=found.detach()), address

    def _cut(self, data: Any) -> Any:
        return memoryview(data)[: self._least(len(data))]

    def _least(self, n: int) -> int:
        """How many of `n` bytes go at once. A packet is never cut."""
        return self.trouble.part(n) if self.type == socket.SOCK_STREAM else n


def _pair(*arguments: Any, **named: Any) -> tuple[socket.socket, socket.socket]:
    Socket.trouble.enter()
    Socket.trouble.lack()
    one, two = socket.socketpair(*arguments, **named)
    return Socket(fileno=one.detach()), Socket(fileno=two.detach())


def _troubled(function: Callable[..., Any], lacks: bool) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        Socket.trouble.enter()
        if lacks:
            Socket.trouble.lack()
        return function(*arguments, **named)

    return call


def install(text: str) -> None:
    """Replace the rooms' functions in this process. ValueError as of `Trouble`."""
    Socket.trouble = Trouble(text)
    for room, names, lacks in (
        (descriptors, ("dup", "eventfd", "memfd_create", "open", "pipe", "pipe2"), True),
        (descriptors, ("read", "write", "pread", "pwrite", "flock"), False),
        (filesystem, ("open",), True),
        (processes, ("fork", "pidfd_open", "posix_spawn"), True),
        (processes, ("waitpid", "kill"), False),
    ):
        for name in names:
            setattr(room, name, _troubled(getattr(room, name), lacks))
    sockets.socket, sockets.socketpair = Socket, _pair  # type: ignore[misc]
