"""Time: what a process asks of the system's clocks."""

from __future__ import annotations

from time import clock_gettime, gmtime, monotonic, monotonic_ns, perf_counter, sleep, strftime, time, time_ns

__all__ = [
    "clock_gettime",
    "gmtime",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "sleep",
    "strftime",
    "time",
    "time_ns",
]
