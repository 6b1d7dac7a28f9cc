"""The limits of one core of this machine, measured: multiply-adds, reading of memory of any size, another core's bytes."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.workers import _kernels

Array = npt.NDArray[Any]
BETWEEN_TILES = 2 << 20
"""About as many bytes pass from the tiles of one layer to those of the next: a large second-level cache holds some of them."""
SIZES = (16 << 10, 256 << 10, BETWEEN_TILES, 8 << 20, 128 << 20)
"""Sizes of the buffers whose reading is measured: first- and second-level cache, what passes between tiles, last-level cache, memory."""
PASSED, WAKING = 128 << 10, 8
"""About what a tile reads of one of another core's; as often other memory is read before, until the core is awake."""
ALIGN = 64


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """The limits of one core. `gflops`: fused multiply-adds in registers. `read`: GB/s by size of the buffer read."""

    isa: str
    gflops: float
    read: dict[int, float]

    def bandwidth(self, nbytes: float) -> float:
        """GB/s at which `nbytes` bytes can be read again and again."""
        return self.read[next((size for size in SIZES if nbytes <= size), SIZES[-1])]


def limits(isa: str) -> CoreLimits:
    """Measures the core's limits; about a fifth of a second."""
    turns = max(1, round(5e6 / (200 / _kernels.peak(1000, isa))))
    peak = max(_kernels.peak(min(turns, 2_000_000), isa) for _ in range(5))
    read = {}
    for size in SIZES:
        data = aligned(np.dtype(np.float32), size // 4)
        data[:] = 1
        read[size] = max(_kernels.read_rate(data, max(1, (32 << 20) // size), isa) for _ in range(4))
    return CoreLimits(isa, peak, read)


def together(isa: str, cpus: Sequence[int], seconds: float = 0.1) -> float:
    """GB/s at which these CPUs together read more than any cache holds, each a buffer of its own."""
    arrived, rates = threading.Barrier(len(cpus)), []

    def read(cpu: int) -> None:
        data = aligned(np.dtype(np.float32), SIZES[-1] // 4)
        data[:] = 1
        arrived.wait()
        done, begin = 0, time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            _kernels.read_rate(data, 1, isa)
            done += data.nbytes
        rates.append(done / (now - begin) * 1e-9)

    on_each(cpus, read)
    return sum(rates)


def on_each(cpus: Iterable[int], work: Callable[[int], object]) -> None:
    """`work(cpu)` on each of these CPUs at the same time, in threads of their own, until all are done."""

    def run(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread
        work(cpu)

    threads = [threading.Thread(target=run, args=(cpu,)) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def far(isa: str, cpus: Sequence[int], rounds: int = 100) -> float:
    """The extra nanoseconds of one of two CPUs for reading, and writing again, a byte that the other has written instead of itself: the
    median. CPUs that share all their caches have no extra cost."""
    allowed = os.sched_getaffinity(0)
    data, busy = (aligned(np.dtype(np.float32), PASSED // 4) for _ in range(2))
    longer = []
    try:
        for k in range(2 * rounds):
            os.sched_setaffinity(0, {cpus[k % 2]})
            busy[:] = k  # a core that has just slept is slow
            _kernels.read_rate(busy, WAKING, isa)
            times = []
            for _ in range(2):
                begin = time.perf_counter_ns()
                _kernels.read_rate(data, 1, isa)
                data[:] = k
                times.append(time.perf_counter_ns() - begin)
            longer.append((times[0] - times[1]) / data.nbytes)
    finally:
        os.sched_setaffinity(0, allowed)
    return max(statistics.median(longer), 0.0)


def aligned(dtype: np.dtype[Any], n: int) -> Array:
    """`n` elements, not initialised, that begin at a multiple of `ALIGN` bytes."""
    raw = np.empty(n * dtype.itemsize + ALIGN, np.uint8)
    begin = -raw.ctypes.data % ALIGN
    return raw[begin : begin + n * dtype.itemsize].view(dtype)
