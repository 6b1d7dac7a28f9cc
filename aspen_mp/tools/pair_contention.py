"""How much two cores that use the same memory slow each other down, measured for pairs of bandwidths; about five seconds.

Each core reads a buffer that no cache holds and computes in between. So alone it asks for a part of its reading rate. The slowdown is what
it gets done alone, divided by what it gets done beside the other (HaX-CoNN, section 3.3).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from aspen_mp.tools.core_limits import SIZES, aligned, on_each
from aspen_mp.workers import _kernels

PARTS: Final = (0.0, 1 / 3, 2 / 3, 1.0)
"""The rate that a core asks for, as a share of its reading rate."""
ROUNDS: Final = 4
SECONDS: Final = 0.1
"""Seconds of a measurement. Each pair is measured `ROUNDS` times and the best counts, because other programs may have a core for a
while."""
CHUNK: Final = 4 << 20
"""Bytes that are read at once."""
FLOPS_A_TURN: Final = 200.0
"""Operations in a turn of `_kernels.peak`."""


def pairs(isa: str, cpus: Sequence[int], read: float, gflops: float) -> list[list[float]]:
    """Return [part of the first, part of the second]: how often longer the first of two CPUs takes, at least 1. `read`: GB/s
    that one of them reads alone; `gflops`: what it computes."""
    buffers = [aligned(np.dtype(np.float32), SIZES[-1] // 4) for _ in range(2)]
    for data in buffers:
        data[:] = 1
    alone = [max(_done(isa, cpus[:1], [part], buffers, read, gflops)[0] for _ in range(ROUNDS)) for part in PARTS]
    found = [[1.0] * len(PARTS) for _ in PARTS]
    for i, one in enumerate(PARTS):
        for j, other in enumerate(PARTS[: i + 1]):
            done = [_done(isa, cpus[:2], [one, other], buffers, read, gflops) for _ in range(ROUNDS)]
            found[i][j] = max(alone[i] / max(first for first, _ in done), 1.0)
            if i != j:
                found[j][i] = max(alone[j] / max(second for _, second in done), 1.0)
    return found


def _done(isa: str, cpus: Sequence[int], parts: Sequence[float], buffers: Sequence[np.ndarray], read: float, gflops: float) -> list[float]:
    """Chunks that each CPU gets done in a second of its time, all at the same time. A CPU that asks for nothing only computes. The time
    that other programs have a core does not count."""
    arrived, rates = threading.Barrier(len(cpus)), [0.0] * len(cpus)

    def work(cpu: int) -> None:
        k = list(cpus).index(cpu)
        part, data, step = parts[k], buffers[k], CHUNK // 4
        reading_ns = CHUNK / read
        turns = round((reading_ns / part - reading_ns if part else reading_ns) * gflops / FLOPS_A_TURN)
        done, at = 0, 0
        arrived.wait()
        begin, had = time.perf_counter(), time.thread_time()
        while time.perf_counter() < begin + SECONDS:
            if part:
                _kernels.read_rate(data[at : at + step], 1, isa)
                at = (at + step) % (len(data) - step)
            if turns:
                _kernels.peak(turns, isa)
            done += 1
        rates[k] = done / (time.thread_time() - had)

    on_each(cpus, work)
    return rates
