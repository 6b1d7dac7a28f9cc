"""Messages of a service to systemd (``Type=notify``): ready, stopping, alive. A few lines over the socket that sd_notify(3) describes."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


class Notifier:
    """Speaks to ``$NOTIFY_SOCKET``; to nobody where there is none. The variables are taken out of the environment: children are not the
    service."""

    def __init__(self) -> None:
        where = os.environ.pop("NOTIFY_SOCKET", "")
        usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        self._where = "\0" + where[1:] if where.startswith("@") else where if where.startswith("/") else ""
        mine = bool(self._where) and usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
        self.beat_s: float | None = int(usec) / 2e6 if mine else None
        """How often `alive` is to be said, half of what the service manager waits; None: not at all."""

    def ready(self) -> None:
        """Everything is loaded, requests are served."""
        self._say("READY=1")

    def status(self, text: str) -> None:
        """One line for people."""
        self._say(f"STATUS={text}")

    def stopping(self) -> None:
        """The service has begun to end."""
        self._say("STOPPING=1")

    def alive(self) -> None:
        """The planner process has just answered."""
        self._say("WATCHDOG=1")

    def _say(self, text: str) -> None:
        if not self._where:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(text.encode(), self._where)
