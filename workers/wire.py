"""Packets between the planner process and a worker, on a SOCK_SEQPACKET socketpair: one packet, one message, at most three descriptors.

The planner process sends the segments that a plan needs before it bumps `attach_seq`, and `SYNC` with the new number after them. A worker
that sees the number change reads packets until it has the `SYNC` that reaches it. So nothing is ever used before it is mapped.
"""

from __future__ import annotations

import array
import socket
import struct

from aspen_mp.system import descriptors, sockets

SETUP = (
    1  # row, cpu (-1: not pinned); descriptors of control segment, doorbell page, and the eventfd to write to when parked for a recovery
)
ATTACH = 2  # segment id, role, bytes; descriptor of the segment
DETACH = 3  # segment id, number of this packet
SYNC = 4  # attach_seq
READY = 5  # worker: has everything and is about to run
DRAINED = 6  # worker: something that was dropped may be free now
ERROR = 7  # worker: cannot go on; the text says why
HELLO = 8  # worker: its process id, before anything else, and the zygote says it, too. Zygote: is ready
BORROW = 10  # segment id, where in it, offset in the file; text: bytes (u64); descriptor of the file: pages to map over the segment's
DETACHED = 11  # worker: has unmapped a segment; number of the packet that told it to
FORK = 9  # to the zygote: a worker is wanted; descriptor of its socket

LENGTH = struct.Struct("<Q")
_HEAD = struct.Struct("<IqqQ")
MAX_TEXT = 16384


def send(sock: sockets.socket, kind: int, a: int = 0, b: int = 0, c: int = 0, text: bytes = b"", fds: tuple[int, ...] = ()) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([_HEAD.pack(kind, a, b, c), text[:MAX_TEXT]], ancillary, socket.MSG_NOSIGNAL)


def receive(sock: sockets.socket) -> tuple[int, int, int, int, bytes, list[int]]:
    """(kind, a, b, c, text, descriptors). Raises EOFError when the other end is gone."""
    data, ancillary, _, _ = sock.recvmsg(_HEAD.size + MAX_TEXT, socket.CMSG_SPACE(12), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload)
    if len(data) < _HEAD.size:
        for fd in fds:
            descriptors.close(fd)
        raise EOFError
    return (*_HEAD.unpack_from(data), data[_HEAD.size :], list(fds))
