"""Identifies the other end of a socket: a client makes sure that it talks to its own runtime before it sends a byte.

The name of an abstract socket is public. Once a runtime has ended, anybody may bind its name. A client therefore checks three things. The
first is the user of the process that listens, as the kernel reports it. The second is when that process started. The third comes with the
answer to its `Hello`: the process knows the secret which the runtime's handles carry. A client never sends the secret itself.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, NamedTuple

from aspen_mp.shm.errors import ProtocolError, RuntimeLost
from aspen_mp.system import filesystem, processes, randomness, sockets

SECRET_BYTES: Final = 16


class Address(NamedTuple):
    """The way to one runtime for the handles that got into other processes.

    `socket`: its name in the kernel's own name space. `started`: when its planner process started, in clock ticks since the machine did;
    0 where that is not known. `secret`: hexadecimal; whoever knows it is that runtime, or has a handle of it.
    """

    socket: str
    started: int
    secret: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address that `str` wrote. ValueError for any other text."""
        name, started, secret = text.split(":")
        return cls(name, int(started), secret)

    @classmethod
    def make(cls, name: str) -> Address:
        """The address of this process, which listens at `name`."""
        return cls(name, start_time(processes.getpid()), randomness.urandom(SECRET_BYTES).hex())

    def __str__(self) -> str:
        return f"{self.socket}:{self.started}:{self.secret}"

    def __repr__(self) -> str:
        return f"<Address {self.socket}>"  # the secret stays out of logs


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since the machine did (field 22 of /proc/PID/stat); 0 where that is not known."""
    try:
        with filesystem.open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def peer(sock: sockets.socket) -> tuple[int, int, int]:
    """Process, user and group id of the other end (SO_PEERCRED)."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid, gid


def check_peer(sock: sockets.socket, started: int = 0) -> None:
    """Raises unless the process that listens at the other end is of this user and, where both times are known, started at `started`.

    ProtocolError where it is another user's; RuntimeLost where it is another process of this user's: the runtime has ended then, and its
    name was taken. The kernel noted process and user when that end began to listen, so neither can be forged.
    """
    pid, uid, _ = peer(sock)
    if uid != processes.geteuid():
        raise ProtocolError(
            f"the socket of this runtime belongs to user {uid} (process {pid}), not to user {processes.geteuid()}; nothing was sent there. "
            "The runtime has ended, and another user has taken its name"
        )
    found = start_time(pid) if started and pid else 0  # 0: a process of another pid namespace
    if found and found != started:
        raise RuntimeLost(f"the runtime has ended, and process {pid} has taken its name; nothing was sent there")


def challenge() -> str:
    """A client's challenge in `Hello`, anew each time."""
    return randomness.urandom(SECRET_BYTES).hex()


def proof(secret: str, said: str) -> str:
    """A runtime's answer to a challenge: it knows the secret of its handles."""
    from hashlib import blake2b

    return blake2b(said.encode(), key=secret.encode(), digest_size=SECRET_BYTES).hexdigest()


def check_proof(secret: str, said: str, answer: str) -> None:
    """Raises RuntimeLost unless `answer` is the `proof` for this challenge."""
    if answer != proof(secret, said):
        raise RuntimeLost("the runtime has ended; the process that has taken its name does not know the secret of its handles")
