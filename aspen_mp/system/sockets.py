"""Sockets, and waits for descriptors.

gevent and eventlet take `poll` and `EpollSelector` out of the standard modules. Programs that they patch have neither of them here.
"""

from __future__ import annotations

from contextlib import suppress
from select import select
from socket import recv_fds, socket, socketpair

with suppress(ImportError):
    from select import poll
with suppress(ImportError):
    from selectors import EpollSelector

__all__ = [
    "EpollSelector",
    "poll",
    "recv_fds",
    "select",
    "socket",
    "socketpair",
]
