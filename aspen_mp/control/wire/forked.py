"""Processes that are forked from this one for one piece of work, which would keep its only thread for too long."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from aspen_mp.control.wire.child_reaper import status_of
from aspen_mp.system import processes, signals
from aspen_mp.workers import process

if TYPE_CHECKING:
    from aspen_mp.control.wire.event_loop import Loop

FAILED: Final = 255
"""The exit status of a process whose work raised an exception."""


def fork(
    work: Callable[[], int], name: str, *, keep: Iterable[int] = (), oom_score: int = 0, outlives: bool = False, seconds: int = 0
) -> int:
    """Forks a process that does `work` and exits with the status which that returns, or FAILED. Returns its pid;
    OSError where there is none.

    The process has no descriptor but `keep` and the standard ones, and runs no exit handler of this one. It ends with this one unless it
    `outlives` it. `name`: at most 15 characters. `oom_score`: as of `process.set_oom_score`. `seconds`: SIGALRM ends it after this time; 0:
    never.
    """
    parent = processes.getpid()

    def child() -> NoReturn:
        status = FAILED
        try:
            if not outlives:
                process.die_with(parent)
            process.keep_only(set(keep))
            process.set_name(name)
            if oom_score:
                process.set_oom_score(oom_score)
            process.plain_signals()
            signals.alarm(seconds)
            status = work()
        finally:
            processes._exit(status)

    return processes.fork(child)


def forked(
    loop: Loop,
    work: Callable[[], int],
    then: Callable[[int], object],
    name: str,
    *,
    keep: Iterable[int] = (),
    oom_score: int = 0,
    seconds: int = 0,
) -> int:
    """Forks as `fork` does; `then(status)` follows when the process has ended. OSError where nobody would hear of that: it has been
    ended."""
    pid = fork(work, name, keep=keep, oom_score=oom_score, seconds=seconds)
    try:
        loop.reap(pid, then)
    except OSError:
        end(pid)
        status_of(pid)
        raise
    return pid


def end(pid: int) -> None:
    """Ends a child that has not been reaped yet."""
    with suppress(ProcessLookupError):
        processes.kill(pid, signal.SIGKILL)
