"""Threads of this process, and what they wait for."""

from __future__ import annotations

from threading import Condition, Event, Lock, RLock, Thread, current_thread, get_ident

TYPE_CHECKING = False  # typing costs more to import than the rest of this file
if TYPE_CHECKING:
    from queue import SimpleQueue

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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import `SimpleQueue` when it is first used: few processes need it."""
        if name != "SimpleQueue":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from queue import SimpleQueue

        globals()[name] = SimpleQueue
        return SimpleQueue
