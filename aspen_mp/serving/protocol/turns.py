"""Work that takes long, on the event loop: a piece of it at each turn, so that whoever else waits is served between two pieces.

A thread would be no help. The parsers that are used here keep Python's lock, and each system call of the loop would hand it to the thread.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Final, TypeVar

STEP: Final = 64 << 10
"""Bytes of JSON that are one piece: about a millisecond's work."""
ITEMS: Final = 8 << 10
"""Numbers that are one piece when they are encoded or decoded."""
STRINGS: Final = 1 << 10
"""Strings that are one piece."""

T = TypeVar("T")
Work = Generator[None, None, T]
"""Yields after each piece, and returns the result."""


class _Line:
    """Works that wait for a turn of a loop. They get one in the order in which they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False  # whether this turn, and the next where somebody waits, has its piece

    async def turn(self) -> None:
        """Returns in a turn that has no piece yet."""
        if self._taken:
            self._waiting.append(self._loop.create_future())
            await self._waiting[-1]
        else:
            self._taken = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled
                first.set_result(None)
                self._loop.call_soon(self._next)  # after the piece
                return
        self._taken = False


_LINES: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line]] = weakref.WeakKeyDictionary()


async def run(work: Work[T]) -> T:
    """Return the result of `work`, or raise its error. Where there are several, each turn of the loop has a piece of one of them."""
    loop = asyncio.get_running_loop()
    line = _LINES.get(loop)
    if line is None:
        line = _LINES[loop] = _Line(loop)
    with closing(work):
        while True:
            await line.turn()
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


async def call(work: Callable[..., T], *given: Any) -> T:
    """Return the result of `work(*given)`, or raise its error, as one piece."""
    return await run(_one_piece(work, *given))


def _one_piece(work: Callable[..., T], *given: Any) -> Work[T]:
    return work(*given)
    yield  # a generator, all the same


def at_once(work: Work[T]) -> T:
    """Return the result of `work`, or raise its error, without a turn in between."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
