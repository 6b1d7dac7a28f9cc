"""The process that keeps a node's runtime: it starts the runtime, and ends it once nobody uses it.

No user is its parent: an engine that ends a user's children, or their process group, does not end it. If it is killed, the planner process
and the workers end with it, and the next user starts another one.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import traceback
from contextlib import suppress
from typing import Any, Final

from aspen_mp.control.wire import run_directory
from aspen_mp.control.wire.spawn import SOCKET_FD, spawn
from aspen_mp.errors import AspenError, RuntimeLost

PREDECESSOR_S: Final = 30.0
"""How long a runtime of the same name may take to end: a watchdog."""


def start(name: str, options: dict[str, Any]) -> None:
    """Starts a keeper, and returns once the runtime `name` can be connected to.

    `options`: of `aspen_mp.Runtime`, as JSON can express them. Raises AspenError with the reason where the runtime cannot start.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            pid = spawn("aspen_mp.ray.keeper", [name, json.dumps(options)], theirs, session=True)
        with suppress(ChildProcessError):  # where the program has its children collected by somebody else
            os.waitpid(pid, 0)
        with ours.makefile("r") as answer:
            said = answer.read()
    if said != "ready":
        why = said or "its process ended without a word. The log of this process may say why"
        raise RuntimeLost(f"the runtime {name!r} of this node did not start: {why}")


def main(arguments: list[str]) -> None:
    """The life of the process; descriptor `SOCKET_FD` leads to whoever waits for the runtime."""
    if os.fork():
        os._exit(0)  # the child belongs to init from here on
    name, options = arguments
    with socket.socket(fileno=SOCKET_FD) as starter:
        starter.set_inheritable(False)
        try:
            keeper = _Keeper(name, json.loads(options))
        except BaseException as error:
            said = str(error) if isinstance(error, AspenError | ValueError | TypeError) else traceback.format_exc()
            with suppress(OSError):
                starter.sendall(said.encode())
            return
        with suppress(OSError):  # it has ended meanwhile: then there may be no user
            starter.sendall(b"ready")
    keeper.keep()


class _Keeper:
    """A started runtime, and a thread that waits until it has no user."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        import aspen_mp
        from aspen_mp.ray.locks import Ending

        self._users = Ending(name)  # not later: the file is that of whoever waits for us
        _wait_for_predecessor(name)
        self._runtime = aspen_mp.Runtime(name=name, **options)
        self._unused = os.eventfd(0, os.EFD_CLOEXEC)
        threading.Thread(target=self._watch, name="aspen-mp users", daemon=True).start()

    def _watch(self) -> None:
        self._users.wait()
        os.eventfd_write(self._unused, 1)

    def keep(self) -> None:
        """Until there is no user, or the runtime has ended."""
        self._runtime.wait(self._unused)
        unused = bool(select.select([self._unused], [], [], 0)[0])
        self._runtime.close()  # before its name is free, or whoever waits would find it
        if unused:
            self._users.close()
        else:  # users remain, and start another one when they need it; a killed one has left its socket
            run_directory.clean()


def _wait_for_predecessor(name: str) -> None:
    """Sleeps while a runtime of that name, which takes no clients any more, ends."""
    pid = run_directory.holder(name)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            select.select([fd], [], [], PREDECESSOR_S)
        finally:
            os.close(fd)
