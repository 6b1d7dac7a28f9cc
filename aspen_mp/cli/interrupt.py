"""Waiting that Ctrl-C ends, without an exception in the middle of what is being done."""

from __future__ import annotations

import select
import signal
import socket


class Pause:
    """Waits until the time is over or Ctrl-C comes."""

    def __enter__(self) -> Pause:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._handler = signal.signal(signal.SIGINT, lambda *_: self._write.send(b"!"))
        return self

    def wait(self, seconds: float) -> bool:
        """False where Ctrl-C ended it."""
        return not select.select([self._read], [], [], seconds)[0]

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._handler)
        self._read.close()
        self._write.close()
