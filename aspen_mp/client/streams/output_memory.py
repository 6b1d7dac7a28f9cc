"""Memory of results, used again when nobody refers to them any more. Fresh memory of many megabytes takes longer to map than to fill."""

from __future__ import annotations

import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.system import threads

Array = npt.NDArray[Any]
LEAST: Final = 1 << 20
"""Bytes of an output that is worth it."""
MOST_FREE: Final = 2
"""Pieces of memory of each size that wait for their next use, at most."""


class _Owner(np.ndarray[Any, Any]):
    """All views of a result refer to this."""


class OutputMemory:
    """Makes copies of outputs that may be written to."""

    def __init__(self) -> None:
        self._lock = threads.RLock()  # a result may be forgotten wherever memory is collected, also with the lock held
        self._free: dict[int, list[bytearray]] = {}

    def copy(self, output: Array) -> Array:
        """A copy of an output."""
        if output.nbytes < LEAST:
            return output.copy()
        with self._lock:
            free = self._free.get(output.nbytes)
            memory = free.pop() if free else bytearray(output.nbytes)  # not an array: views refer to what lies behind all arrays
        owner = _Owner(output.nbytes, np.uint8, memory)
        weakref.finalize(owner, self._back, memory).atexit = False
        result: Array = np.ndarray(output.shape, output.dtype, owner)
        result[...] = output
        return result

    def _back(self, memory: bytearray) -> None:
        with self._lock:
            free = self._free.setdefault(len(memory), [])
            if len(free) < MOST_FREE:
                free.append(memory)
