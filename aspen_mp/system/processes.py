"""Processes: who this one is, others that it starts, ends and waits for."""

from __future__ import annotations

import os
from os import (
    _exit,
    getegid,
    geteuid,
    getpid,
    getppid,
    getuid,
    kill,
    nice,
    pidfd_open,
    posix_spawn,
    register_at_fork,
    sched_getaffinity,
    sched_setaffinity,
    sched_setscheduler,
    waitid,
    waitpid,
)
from resource import getrlimit, setrlimit

TYPE_CHECKING = False  # typing costs more to import than the rest of this file
if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable
    from typing import Any, NoReturn

__all__ = [
    "_exit",
    "create_subprocess_exec",
    "fork",
    "getegid",
    "geteuid",
    "getpid",
    "getppid",
    "getrlimit",
    "getuid",
    "kill",
    "nice",
    "pidfd_open",
    "posix_spawn",
    "register_at_fork",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_setscheduler",
    "setrlimit",
    "waitid",
    "waitpid",
]


def fork(child: Callable[[], NoReturn]) -> int:
    """Fork this process. Return the process id of the new one, which runs `child` and nothing else.

    Raises:
        OSError: The system has no process to give.
    """
    pid = os.fork()
    if pid == 0:
        child()
    return pid


async def create_subprocess_exec(*command: str, **how: Any) -> Process:
    """Start a program whose end the running event loop can wait for, as `asyncio.create_subprocess_exec`."""
    import asyncio  # not before: few processes need it

    return await asyncio.create_subprocess_exec(*command, **how)
