"""Memory between two pages that fault: whoever leaves it is ended there and then."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(nbytes: int) -> Any:
    """Bytes at a multiple of 64 between two pages that fault, ending (but for the alignment) at the second."""
    page = mmap.PAGESIZE
    nbytes = -(-max(nbytes, 1) // 64) * 64
    size = -(-nbytes // page) * page
    whole = np.frombuffer(mmap.mmap(-1, size + 2 * page), np.uint8)
    address = whole.__array_interface__["data"][0]
    for at in (address, address + page + size):
        if LIBC.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return whole[page + size - nbytes : page + size]
