"""Weight files that nobody has read in this boot are read by a process forked for it: the planner process has to see to workers' deaths
meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aspen_mp.control.planning.plan_cache import Cache, WeightFile
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.control.wire.forked import end, forked

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

        def read() -> int:
            gone = [file.id for file in files if plans.weights(file) < 0]  # each is read, also behind one that is not whole
            return 1 if gone else 0

        def ended(status: int) -> None:
            self._pids.discard(pid)
            if status == 0:
                for file in files:
                    plans.trust(file)
            then()

        try:
            pid = forked(self._loop, read, ended, "aspen-verify", seconds=MOST_S)
        except OSError:
            then()
            return
        self._pids.add(pid)

    def close(self) -> None:
        """Nobody waits any more."""
        for pid in self._pids:
            end(pid)
