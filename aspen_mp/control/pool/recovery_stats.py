"""How long the deaths of workers held a runtime up: the latest recoveries, each with its times, for `status`."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Final

KEPT: Final = 64


@dataclass(slots=True)
class Outage:
    """One recovery. Times are of CLOCK_MONOTONIC, which all processes of a machine share, in seconds.

    `began`: the first death was noticed. `ended`: the world went on. `runs`: a worker ran; the same moment where one had survived, None as
    long as none does. `pids`: the dead. `survivors`: workers that had not died. `restarted`: requests began anew from their inputs.
    """

    began: float
    pids: list[int] = field(default_factory=list)
    ended: float = 0.0
    runs: float | None = None
    survivors: int = 0
    restarted: bool = False


class RecoveryStats:
    def __init__(self) -> None:
        self._latest: deque[Outage] = deque(maxlen=KEPT)
        self._now: Outage | None = None

    def died(self, pid: int) -> None:
        """A worker has died: an outage begins, or there is one more in this one."""
        if self._now is None:
            self._now = Outage(time.monotonic())
        self._now.pids.append(pid)

    def ended(self, survivors: int, restarted: bool) -> None:
        """The world goes on, with so many workers that run."""
        outage, self._now = self._now, None
        if outage is None:
            return
        outage.ended, outage.survivors, outage.restarted = time.monotonic(), survivors, restarted
        if survivors:
            outage.runs = outage.ended
        self._latest.append(outage)

    def running(self) -> None:
        """A new worker runs."""
        now = time.monotonic()
        for outage in reversed(self._latest):
            if outage.runs is not None:
                return
            outage.runs = now

    def latest(self) -> list[dict[str, Any]]:
        """The newest outages that have ended, oldest first."""
        return [asdict(outage) for outage in self._latest]
