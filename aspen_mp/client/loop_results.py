"""Results on the event loop that waits for them, without a thread of Python in between.

A session's resolver thread sleeps without the GIL. Where a loop alone waits, it signals a descriptor that the loop watches, and sleeps on.
"""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from aspen_mp.system import descriptors, threads

if TYPE_CHECKING:
    import asyncio

    from aspen_mp.shm.bindings._channel import ClientChannel

T = TypeVar("T")


class Source(Protocol):
    """A session, as far as a loop takes results of it."""

    channel: ClientChannel

    def take(self, loop: LoopResults) -> None: ...


class LoopResults:
    """A loop that takes results of a session. It lives as long as the loop watches, or a request refers to it.

    Attributes:
        loop: The loop.
    """

    def __init__(self, session: Source, loop: asyncio.AbstractEventLoop) -> None:
        """In the loop's thread. OSError where there are no more descriptors, NotImplementedError where the loop cannot watch any."""
        self._fd = -1
        self.loop = loop
        self._session = weakref.ref(session)
        # Its own: one that is closed while it is watched would spoil the next of its number.
        self._fd = descriptors.dup(session.channel.event())
        loop.add_reader(self._fd, self._arrived)

    def _arrived(self) -> None:
        session = self._session()
        if session is not None:
            session.channel.heard()
            session.take(self)

    def end(self) -> None:
        """Watches no longer. From any thread."""
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.loop.remove_reader(self._fd)
        self._close()

    def abandon(self) -> None:
        """In a forked child: the loop is the parent's."""
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            descriptors.close(fd)

    def __del__(self) -> None:
        self._close()  # a loop that is closed watches nothing


async def arrival(future: Future[T], loop: asyncio.AbstractEventLoop) -> T:
    """The result of a future, on the running loop. As `asyncio.wrap_future`, without a turn of the loop if the result comes in its thread.
    If the task is cancelled, so is the future."""
    import asyncio

    waiter: asyncio.Future[T] = loop.create_future()
    thread = threads.get_ident()

    def settle(done: Future[T]) -> None:
        if waiter.done():
            return
        if done.cancelled():
            waiter.cancel()
        elif (error := done.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(done.result())

    def ended(done: Future[T]) -> None:  # refers to no future: they would keep results until the garbage is collected
        if threads.get_ident() == thread:
            settle(done)
            return
        with suppress(RuntimeError):  # the loop has been closed: nobody waits
            loop.call_soon_threadsafe(settle, done)

    future.add_done_callback(ended)
    try:
        return await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise
