"""How long the deaths of workers held a runtime up: the latest recoveries, each with its times, for `status`."""

from __future__ import annotations

from collections import deque
from typing import Final

from aspen_mp.control.wire.status import Outage
from aspen_mp.system import clock

KEPT: Final = 64


class RecoveryStats:
    """`Outage.runs` is the moment at which the world went on where a worker had survived. It is None for as long as no worker runs."""

    def __init__(self) -> None:
        self._latest: deque[Outage] = deque(maxlen=KEPT)
        self._now: Outage | None = None

    def died(self, pid: int) -> None:
        """A worker has died: an outage begins, or there is one more in this one."""
        if self._now is None:
            self._now = Outage(began=clock.monotonic(), pids=[], ended=0.0, runs=None, survivors=0, restarted=False)
        self._now.pids.append(pid)

    def ended(self, survivors: int, restarted: bool) -> None:
        """The world goes on, with so many workers that run."""
        outage, self._now = self._now, None
        if outage is None:
            return
        outage.ended, outage.survivors, outage.restarted = clock.monotonic(), survivors, restarted
        if survivors:
            outage.runs = outage.ended
        self._latest.append(outage)

    def running(self) -> None:
        """A new worker runs."""
        now = clock.monotonic()
        for outage in reversed(self._latest):
            if outage.runs is not None:
                return
            outage.runs = now

    def latest(self) -> list[Outage]:
        """The newest outages that have ended, oldest first."""
        return list(self._latest)
