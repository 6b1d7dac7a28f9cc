"""How much of large bodies all connections together read in one turn of the event loop.

The kernel has bytes of many connections ready at a time. To read all of them would take far longer than a small request does. Whoever has
read when nothing is left of a turn's share waits in line for the share of a later one.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

PIECE: Final = 256 << 10
"""Bytes that a connection reads at once, at most."""
MOST: Final = 1 << 20
"""Bytes of a turn: about a millisecond's work. The last piece may exceed it."""
SMALL: Final = 16 << 10
"""Bytes that are read at once and do not count. Whole requests have as many."""


class Share:
    """The share of the present turn of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = MOST
        self._renewed = False  # whether it is renewed at the next turn
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0

    def take(self, nbytes: int) -> None:
        """Counts bytes that have been read at once."""
        if nbytes > SMALL:
            self._left -= nbytes
            self._renew()

    def wait(self, ready: Callable[[], None]) -> None:
        """`ready` is called once, in a turn that has something left, after those that waited before."""
        self._waiting.append(ready)
        self._renew()

    def _renew(self) -> None:
        if not self._renewed:
            self._renewed = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._left = MOST
        self._renewed = False
        for _ in range(min(len(self._waiting), MOST // PIECE)):
            self._waiting.popleft()()
        if self._waiting:
            self._renew()


_SHARES: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Share]] = weakref.WeakKeyDictionary()


def of(loop: asyncio.AbstractEventLoop) -> Share:
    """The one share of a loop."""
    share = _SHARES.get(loop)
    if share is None:
        share = _SHARES[loop] = Share(loop)
    return share
