"""Threads of this process, and what they wait for."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Condition, Event, Lock, RLock, Thread, current_thread, get_ident

__all__ = [
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "SimpleQueue",
    "Thread",
    "current_thread",
    "get_ident",
]
