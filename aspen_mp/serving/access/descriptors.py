"""Descriptors of a front end: some are kept for other uses than connections, and a shortage is logged."""

from __future__ import annotations

import resource
import sys
from typing import Final

from aspen_mp.system import clock, processes

KEPT: Final = 16
"""Descriptors that connections do not get: for models, memory and the supervisor."""
QUIET_S: Final = 10.0
"""The least time between two lines in the log."""


class Descriptors:
    """Those of the process. A shortage begins with a connection that is closed, and ends when twice as many are free as are kept."""

    def __init__(self) -> None:
        self._is_short = False
        self._told_at = -QUIET_S

    def have_room(self, fd: int) -> bool:
        """Whether a connection with this descriptor, which is the lowest that was free, may stay. A shortage is logged once."""
        most = processes.getrlimit(resource.RLIMIT_NOFILE)[0]
        if fd < most - KEPT:
            self._is_short = self._is_short and fd >= most - 2 * KEPT
            return True
        if not self._is_short and clock.monotonic() - self._told_at >= QUIET_S:
            self._told_at = clock.monotonic()
            print(
                f"aspen-mp serve: a front end has no file descriptors left: it may have {most}. New connections are closed until others "
                "end. Raise the limit (ulimit -n, LimitNOFILE of systemd), or use more --http-workers",
                file=sys.stderr,
                flush=True,
            )
        self._is_short = True
        return False


OWN: Final = Descriptors()
