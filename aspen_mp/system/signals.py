"""Signals to this process."""

from __future__ import annotations

from signal import alarm, set_wakeup_fd, signal

__all__ = [
    "alarm",
    "set_wakeup_fd",
    "signal",
]
