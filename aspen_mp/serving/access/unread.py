"""Answers that clients have not read yet: they have a least rate, and all of a front end together have a limit."""

from __future__ import annotations

import asyncio
import struct
import termios
from typing import Any, ClassVar

from aspen_mp.serving.limits import Limits
from aspen_mp.system import descriptors


class Unread:
    """The answers of one connection. A client that reads too slowly is disconnected.

    Nothing is done for answers that the transport can send at once. `owe` is called where one cannot, and `settle` when it has been sent.
    """

    owing: ClassVar[dict[Unread, int]] = {}
    """Bytes of each connection of the process that owes some; the one that has read nothing for the longest time comes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: Any, fd: int, limits: Limits) -> None:
        self._loop = loop
        self._transport = transport
        self._fd = fd
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._left = 0  # bytes that had not been read at the last look

    def owe(self, more: int) -> None:
        """The transport has bytes that it cannot send now, and `more` wait for it."""
        owing = Unread.owing
        if self._over:
            return
        owing[self] = self._transport.get_write_buffer_size() + more
        if self._timer is None:
            self._left = self._unread()
            self._timer = self._loop.call_later(self._limits.unread_s, self._look)
        while len(owing) > 1 and sum(owing.values()) > self._limits.unsent:
            next(iter(owing))._disconnect()

    def settle(self) -> None:
        """The transport has sent nearly all. The rest has no time limit before the connection ends."""
        Unread.owing.pop(self, None)
        if not self._transport.is_closing():
            self._stop()

    def forget(self) -> None:
        """The connection has ended."""
        self._over = True
        Unread.owing.pop(self, None)
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """`Limits.unread_s` have passed. The connection ends unless its client has read enough meanwhile."""
        self._timer = None
        left, limits = self._unread(), self._limits
        if self._left - left < min(limits.rate * limits.unread_s, self._left):
            self._disconnect()
            return
        self._left = left
        owed = Unread.owing.pop(self, None)
        if owed is not None:
            Unread.owing[self] = owed
        self._timer = self._loop.call_later(limits.unread_s, self._look)

    def _unread(self) -> int:
        """Bytes that the client has not read: those of the transport, and those that the kernel has not been told of as arrived."""
        kernel = 0
        if self._fd >= 0:
            try:
                (kernel,) = struct.unpack("i", descriptors.ioctl(self._fd, termios.TIOCOUTQ, b"\0" * 4))
            except OSError:
                kernel = 0
        return int(self._transport.get_write_buffer_size()) + kernel

    def _disconnect(self) -> None:
        self.forget()
        self._transport.abort()
