"""Errors of the system that say that it has too little of something for now: descriptors, memory, processes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.system import threads

if TYPE_CHECKING:
    from concurrent.futures import Executor

OPENING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why a file that is there cannot be opened."""
_SCARCE: Final = OPENING | {errno.EAGAIN, errno.ENOBUFS, errno.ENOSPC, errno.ETOOMANYREFS}


def is_scarce(error: BaseException) -> bool:
    """Whether what has failed with this error may well succeed later. EAGAIN is what fork says; sockets that would block say it too, which
    is for whoever uses them to tell apart first."""
    if isinstance(error, ImportError):  # why a library could not be loaded is told in words alone
        return not isinstance(error, ModuleNotFoundError)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SCARCE)


def start_thread(thread: threads.Thread) -> None:
    """Starts it. ResourceLimitError where no thread can be had: Python says so by a bare RuntimeError."""
    try:
        thread.start()
    except RuntimeError as error:
        raise _no_thread(error) from None


def submit(pool: Executor, work: Callable[[], object]) -> None:
    """Has a thread of a pool do this. ResourceLimitError where there is no thread to do it and none can be had: then it is never done."""
    first = threads.Lock()

    def once() -> None:
        if first.acquire(blocking=False):
            work()

    try:
        pool.submit(once)
    except RuntimeError as error:  # it is queued nevertheless: a thread that is there already may have begun it
        if first.acquire(blocking=False):
            raise _no_thread(error) from None


def _no_thread(error: RuntimeError) -> ResourceLimitError:
    return ResourceLimitError(
        f"this process cannot start a thread ({error}): raise its limit of processes and threads (ulimit -u, pids.max of its cgroup)"
    )


def reason(error: BaseException) -> str:
    """The error in words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)
