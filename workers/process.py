"""Settings in the kernel for a worker, and for every other child of the planner process."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from itertools import pairwise

from aspen_mp.system import descriptors, filesystem, processes, signals
from aspen_mp.workers import _process
from aspen_mp.workers._process import faults_tell_scarcity, set_death_signal, set_name

TYPE_CHECKING = False  # typing costs more to import than the rest of this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

__all__ = [
    "die_with",
    "faults_tell_scarcity",
    "flush_output",
    "fork_sibling",
    "keep_only",
    "one_thread",
    "plain_signals",
    "set_name",
    "set_oom_score",
]


def die_with(parent: int) -> None:
    """SIGKILL for this process when the thread that started it ends; at once if its parent is no longer `parent`."""
    set_death_signal()
    if processes.getppid() != parent:
        processes._exit(0)


_limit = 0


def limit_memory(nbytes: int) -> None:
    """From now on this process can have `nbytes` more of private memory: an allocation beyond fails (in Python: MemoryError)."""
    global _limit  # noqa: PLW0603
    _limit = nbytes
    with suppress(OSError, ValueError):
        with filesystem.open("/proc/self/statm") as file:
            held = int(file.read().split()[5]) * resource.getpagesize()
        most = processes.getrlimit(resource.RLIMIT_DATA)[1]
        processes.setrlimit(resource.RLIMIT_DATA, (held + nbytes if most < 0 else min(held + nbytes, most), most))


def memory_limit() -> int:
    """The last argument of `limit_memory`; 0: nothing."""
    return _limit


def set_oom_score(score: int) -> None:
    """How willingly the kernel kills this process when memory runs out, -1000 … 1000; raising needs no privilege."""
    with suppress(OSError), filesystem.open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def one_thread() -> None:
    """For the libraries that numpy may bring along: no threads of their own, please. Before numpy is imported."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"


def flush_output() -> None:
    """Write out what standard output and standard error hold. Nobody may read these any more, which must stop nothing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # AttributeError: the program that began this one had closed it
            stream.flush()


def fork_sibling(child: Callable[[], NoReturn]) -> int:
    """Fork a child of this process's parent, which runs `child` and nothing else. Return its process id. For processes of one thread.

    Raises:
        OSError: The system has no process to give.
    """
    pid = _process.fork_sibling()
    if pid == 0:
        child()
    return pid


def keep_only(fds: set[int]) -> None:
    """In a forked child: closes every descriptor but these and the standard ones. A copy of somebody's socket would hide from the other
    end that its owner hung up; a copy of a lock would hold it."""
    try:
        there = [int(entry) for entry in filesystem.listdir("/proc/self/fd")]
    except OSError:  # not one descriptor more can be had, not even for this list
        most = processes.getrlimit(resource.RLIMIT_NOFILE)[1]
        for low, high in pairwise([*sorted({2, *fds}), most]):
            descriptors.closerange(low + 1, high)
        return
    for fd in there:
        if fd > 2 and fd not in fds:
            with suppress(OSError):
                descriptors.close(fd)


def plain_signals() -> None:
    """In a forked child: the parent's handlers of signals must not run in this process."""
    signals.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signals.signal(number, signal.SIG_DFL)
