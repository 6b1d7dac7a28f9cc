"""Sockets, and waits for descriptors."""

from __future__ import annotations

from select import poll, select
from selectors import EpollSelector
from socket import recv_fds, socket, socketpair

__all__ = [
    "EpollSelector",
    "poll",
    "recv_fds",
    "select",
    "socket",
    "socketpair",
]
