"""Clients that do not keep to the protocol: raw bytes and descriptors on a runtime's socket, and what comes back."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from aspen_mp.control.wire import protocol, run_directory
from aspen_mp.control.wire.identity import Address
from aspen_mp.shm.bindings import _tables

WATCHDOG_S = 60.0
LAYOUT = f"{_tables.LAYOUT_HASH:016x}"
HELLO = ["Hello", protocol.VERSION, LAYOUT, "guest"]
_HEADER = struct.Struct("<IHH")


def frame(payload: bytes, fds: int = 0) -> bytes:
    return _HEADER.pack(len(payload), fds, 0x4D41) + payload


def packed(message: Any, fds: int = 0) -> bytes:
    """A frame around any msgpack value."""
    return frame(msgspec.msgpack.encode(message), fds)


class Guest:
    """A connection to the runtime `name` (or to the address of an unnamed one). `greet`: it introduces itself and is a client then."""

    def __init__(self, name: str, *, greet: bool = True) -> None:
        self.sock = run_directory.connect(name) if len(name) < 20 else run_directory.connect_to(Address.parse(name))
        self.sock.settimeout(WATCHDOG_S)
        self.receiver = protocol.client_receiver()
        self.welcome: protocol.Welcome | None = None
        self.fds: list[int] = []
        """Of the client segment and the doorbell page."""
        if greet:
            self.send(packed(HELLO))
            message = self.answer()
            assert isinstance(message, protocol.Welcome), message
            self.welcome = message

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()
        self.receiver.close()
        protocol.close_all(self.fds)
        self.fds.clear()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> bool:
        """False: the other end has hung up."""
        try:
            if fds:
                sent = socket.send_fds(self.sock, [data], list(fds))
                data = data[sent:]
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def answer(self) -> Any:
        """The next message, None at the end of the stream."""
        while True:
            for message, fds in self.receiver.messages():
                self.fds += fds
                return message
            if not self.receiver.read(self.sock):
                return None

    def rest(self) -> list[Any]:
        """All messages up to the end of the stream."""
        found = []
        while (message := self.answer()) is not None:
            found.append(message)
        return found

    def ask(self, *fields: Any, fds: Sequence[int] = ()) -> Any:
        """A message by its fields, and what comes back for it, progress left out."""
        self.send(packed(list(fields), len(fds)), fds)
        message = self.answer()
        while isinstance(message, protocol.Progress):
            message = self.answer()
        return message

    def refused(self) -> protocol.Failed:
        """Why the connection was ended; fails where it was not, or without a word."""
        found = self.rest()
        assert found, "hung up without a word"
        assert isinstance(found[-1], protocol.Failed), found
        assert found[-1].id == 0, found
        return found[-1]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
