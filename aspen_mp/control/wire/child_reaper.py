"""Ends of child processes, without ever waiting for one that may not come.

A process that was killed ends when the kernel lets it: not while it is frozen, or waits for a device. And one that has ended and is traced
(by a debugger) is its tracer's to reap first.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

from aspen_mp.system import processes, sockets

REAP_S = 1.0
"""A process that was killed and has not ended after this time is left alone."""


def ended(pidfd: int, seconds: float) -> bool:
    """Whether a process has ended, or does within `seconds`."""
    poll = sockets.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1e3))


def watched(pid: int) -> int:
    """A descriptor that becomes readable when a child that has just been started ends. OSError where there is none to be had: then the
    child is ended, because nobody would ever hear of it."""
    try:
        return processes.pidfd_open(pid)
    except OSError:
        with suppress(ProcessLookupError):
            processes.kill(pid, signal.SIGKILL)
        status_of(pid)
        raise


_zombies: list[int] = []


def status_of(pid: int) -> int:
    """The wait status of a child that has ended. Where somebody else has to reap it first nobody knows how it ended. So the worst is said,
    that it died of a fault of its own. It is reaped when the next one is."""
    for other in list(_zombies):
        if processes.waitpid(other, os.WNOHANG)[0]:
            _zombies.remove(other)
    found, status = processes.waitpid(pid, os.WNOHANG)
    if found:
        return status
    _zombies.append(pid)
    return signal.SIGABRT
