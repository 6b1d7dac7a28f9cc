"""Work that takes long, beside the event loop: one thread does it, a piece at a time, so that the loop gets Python back soon.

The parsers that are used here keep Python's lock. A piece of `STEP` bytes takes about a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

STEP: Final = 64 << 10
"""Bytes of JSON that are decoded at once."""
ITEMS: Final = 8 << 10
"""Numbers or strings that are encoded or decoded at once. More than that are a matter for the thread."""
SWITCH_S: Final = 0.001
"""How long the event loop waits for Python while the thread computes; Python's own default is five times as much."""

_THREAD: Final = ThreadPoolExecutor(1, "beside")
T = TypeVar("T")


async def run(work: Callable[..., T], *given: Any) -> T:
    """What `work(*given)` returns or raises, from the thread. One that was cancelled while it waited is not begun."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work, *given)
