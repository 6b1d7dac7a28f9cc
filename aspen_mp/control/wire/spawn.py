"""Starts the planner process and the worker processes: posix_spawn with an explicit list of descriptors, in a session of their own.

A child sees its standard streams, descriptor 3 (its socket) and nothing else of ours, whatever the parent has open or closed.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence

from aspen_mp.control.wire import python
from aspen_mp.shm.scarcity import OPENING
from aspen_mp.system import descriptors, processes, sockets

SOCKET_FD = 3
SCARCE = os.EX_TEMPFAIL
"""The exit status of a child that has not got far enough to say what it lacks: descriptors or memory, even to be imported."""
_CODE = f"""
try:
    from {{module}} import main
except MemoryError:
    sys.exit({SCARCE})
except OSError as error:
    if error.errno in {tuple(sorted(OPENING))}:
        sys.exit({SCARCE})
    raise
main(sys.argv[1:])"""


def spawn(module: str, arguments: Sequence[str], sock: sockets.socket, *, session: bool = False) -> int:
    """Runs ``module.main(arguments)`` in a new Python process with `sock` as descriptor 3 and /dev/null as input; returns its pid.

    `session` puts it in a session of its own, out of reach of the terminal's Ctrl-C.
    """
    command = python.running(_CODE.format(module=module), module, *arguments)
    # The number lies above all those that the child's streams and its socket get. One of theirs would be overwritten before it is copied (a
    # daemon that has closed its streams has sockets there). And dup2 of a descriptor onto itself leaves close-on-exec set.
    source = descriptors.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, SOCKET_FD + 1)
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    actions += [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2) if not _inherited(stream)]
    actions.append((os.POSIX_SPAWN_DUP2, source, SOCKET_FD))
    try:
        return processes.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=session, setsigmask=[])
    finally:
        descriptors.close(source)


def _inherited(stream: int) -> bool:
    """Whether a child gets a standard stream of ours. It does not get one that is closed, nor a descriptor that took its number: that
    closes on exec."""
    try:
        return descriptors.get_inheritable(stream)
    except OSError:
        return False


def start_worker() -> tuple[int, sockets.socket]:
    """Starts a worker process as a new program; it waits until it is told its row, CPU and segments. Its pid, and the socket to it."""
    ours, theirs = sockets.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        return spawn("aspen_mp.workers.main", [str(processes.getpid())], theirs), ours
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
