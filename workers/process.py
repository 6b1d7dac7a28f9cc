"""What a worker, and every other child of the planner process, tells the kernel about itself."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with(parent: int) -> None:
    """SIGKILL for this process when the thread that started it ends; at once if its parent is no longer `parent`."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def set_name(name: str) -> None:
    """The name that top and ps show, at most 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def set_oom_score(score: int) -> None:
    """How willingly the kernel kills this process when memory runs out, -1000 … 1000; raising needs no privilege."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))
