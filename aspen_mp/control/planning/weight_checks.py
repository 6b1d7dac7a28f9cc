"""Weight files that nobody has read in this boot are read by a process forked for it: the planner process has to see to workers' deaths
meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from aspen_mp.control.planning.plan_cache import Cache, WeightFile
from aspen_mp.control.wire.child_reaper import status_of
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.workers import process

MOST_S: Final = 300
"""Longest life of such a process, in seconds: of one that waits for a disk that does not answer."""


class Verifier:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pids: set[int] = set()

    def verify(self, plans: Cache, files: Sequence[WeightFile], then: Callable[[], None]) -> None:
        """Has those of the files read that are doubtful. `then()` follows, now or later: those that are not whole have gone by then, or
        are still doubtful where no process could be had."""
        files = [file for file in files if plans.doubtful(file)]
        if not files:
            then()
            return
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            then()
            return
        if pid == 0:
            _verify(parent, plans, files)
        self._pids.add(pid)

        def ended(status: int) -> None:
            self._pids.discard(pid)
            if status == 0:
                for file in files:
                    plans.trust(file)
            then()

        try:
            self._loop.reap(pid, ended)
        except OSError:  # nobody would hear of its end
            self._pids.discard(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status_of(pid)
            then()

    def close(self) -> None:
        """Nobody waits any more."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _verify(parent: int, plans: Cache, files: Sequence[WeightFile]) -> NoReturn:
    """In the forked process. Status 0: all of the files are whole."""
    status = 1
    try:
        process.die_with(parent)
        process.keep_only(set())
        process.set_name("aspen-verify")
        process.plain_signals()
        signal.alarm(MOST_S)
        gone = [file.id for file in files if plans.weights(file) < 0]  # each is read, also behind one that is not whole
        status = 1 if gone else 0
    finally:
        os._exit(status)
