"""Errors of the system that say that it has too little of something for now: descriptors, memory, processes."""

from __future__ import annotations

import errno
from typing import Final

from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.system import threads

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
        raise ResourceLimitError(
            f"this process cannot start a thread ({error}): raise its limit of processes and threads (ulimit -u, pids.max of its cgroup)"
        ) from None


def reason(error: BaseException) -> str:
    """The error in words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)
