"""Times kernel calls on the core that this process runs on, beside what the core can do at most."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.tools.core_limits import aligned
from aspen_mp.workers import _kernels

from .shapes import KernelCall, Operand

Array = npt.NDArray[Any]
EVICT_BYTES = 96 << 20
"""Bytes that are read instead where a processor cannot be told to put data out of its caches."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds of a whole call on one core. `warm`: with everything as near as it fits. `cold`: with its weights in memory only (None:
    it has none). Each is the median of the rounds. `best`: the shortest warm round."""

    call: KernelCall
    isa: str
    warm: float
    best: float
    cold: float | None


def measure(call: KernelCall, isa: str, seconds: float, evict: Callable[[Sequence[Array]], None], *, cold: bool = True) -> Timing:
    """Times one call. `evict` puts arrays out of the caches; `cold`: also with weights in memory only."""
    rng = np.random.default_rng(0)
    arrays = [None if operand is None else _array(operand, rng) for operand in call.operands]
    boxes = tiles(call)

    def run() -> int:
        return _kernels.time_tiles(call.kernel, arrays, call.params, boxes, 1, isa)

    run()
    warm = _rounds(run, seconds)
    without = None
    if cold and any(operand is not None and operand.weight for operand in call.operands):
        used = [(a, operand.weight) for a, operand in zip(arrays, call.operands, strict=True) if a is not None and operand is not None]
        far, near = [a for a, weight in used if weight], [a for a, weight in used if not weight]

        def cold_run() -> int:
            evict(far)
            for a in near:
                a.sum(dtype=np.float64)
            return run()

        without = statistics.median(cold_run() for _ in range(3))
    return Timing(call, isa, statistics.median(warm), min(warm), without)


def _rounds(run: Callable[[], int], seconds: float) -> list[int]:
    end = time.perf_counter() + seconds
    found = [run() for _ in range(3)]
    while time.perf_counter() < end:
        found.append(run())
    return found


def tiles(call: KernelCall) -> npt.NDArray[np.int64]:
    """[n, 2, rank]: the call's output cut into tiles of the planner's size."""
    out = call.operands[0]
    assert out is not None
    cuts = [range(0, max(d, 1), max(side, 1)) for d, side in zip(out.dims, call.tile, strict=True)]
    lows = np.array(list(itertools.product(*cuts)), np.int64).reshape(-1, len(out.dims))
    highs = np.minimum(lows + np.array(call.tile, np.int64), np.array(out.dims, np.int64))
    return np.ascontiguousarray(np.stack([lows, highs], axis=1))


def evictor() -> Callable[[Sequence[Array]], None]:
    """Puts arrays out of the caches: each by itself, or all there is by reading something else."""
    other = np.zeros(0, np.float32)

    def evict(arrays: Sequence[Array]) -> None:
        nonlocal other
        if all(_kernels.flush(_memory(a)) for a in arrays):
            return
        if not other.size:
            other = aligned(np.dtype(np.float32), EVICT_BYTES // 4)
            other[:] = 1
        _kernels.read_rate(other, 1)

    return evict


def _memory(a: Array) -> Array:
    """The bytes that an array of `_array` lies in."""
    whole: Any = a
    while getattr(whole, "base", None) is not None:  # also through objects other than arrays: views with strides of their own
        whole = whole.base
    return np.asarray(whole).view(np.uint8)


def _array(operand: Operand, rng: np.random.Generator) -> Array:
    """An array of these dims and strides over memory of its own: small random numbers; zeros where they may be indices."""
    dtype = np.dtype(operand.dtype)
    reach = [(d - 1) * s for d, s in zip(operand.dims, operand.strides, strict=True)]
    before = -sum(r for r in reach if r < 0)
    n = before + sum(r for r in reach if r > 0) + 1
    data = aligned(dtype, n)
    data[:] = rng.standard_normal(n, np.float32).astype(dtype) * dtype.type(0.1) if dtype.kind == "f" else dtype.type(0)
    steps = tuple(s * dtype.itemsize for s in operand.strides)
    return np.lib.stride_tricks.as_strided(data[before:], operand.dims, steps)


def total(timings: Iterable[Timing], pick: Callable[[Timing], float]) -> float:
    """A sum over the calls of a network, each as often as it is made."""
    return sum(pick(t) * t.call.times for t in timings)
