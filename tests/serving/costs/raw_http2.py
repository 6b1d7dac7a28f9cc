"""A client of gRPC that does what none should: it writes the frames of HTTP/2 itself."""

from __future__ import annotations

import socket
import struct

import serving_tools as tools

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_HEADERS, END_STREAM, ACK = 4, 1, 1
SERVICE = "/inference.GRPCInferenceService/"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(text: bytes) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text


class Raw:
    """A connection. `window`: bytes of an answer that the server may send on each stream before more are allowed, which never happens."""

    def __init__(self, address: str, window: int = 65535) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host.strip("[]"), int(port)), tools.WATCHDOG_S)
        self.sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window)))
        self._came = b""

    def begin(self, stream: int, method: str) -> None:
        """A call. Streams of clients have odd numbers."""
        fields = {
            b":method": b"POST",
            b":scheme": b"http",
            b":path": (SERVICE + method).encode(),
            b":authority": b"x",
            b"content-type": b"application/grpc",
            b"te": b"trailers",
        }
        block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in fields.items())
        self.sock.sendall(frame(HEADERS, END_HEADERS, stream, block))

    def message(self, stream: int, data: bytes, *, said: int | None = None, last: bool = True) -> None:
        """A message of the call. `said`: how many bytes it is said to have."""
        whole = b"\0" + struct.pack(">I", len(data) if said is None else said) + data
        pieces = [whole[k : k + 16384] for k in range(0, len(whole), 16384)]
        for k, piece in enumerate(pieces):
            self.sock.sendall(frame(DATA, END_STREAM if last and k + 1 == len(pieces) else 0, stream, piece))

    def next(self) -> tuple[int, int, int, bytes] | None:
        """The next frame that is none of settings or pings, which are acknowledged; None at the end of the connection."""
        while True:
            while len(self._came) < 9 or len(self._came) < 9 + int.from_bytes(self._came[:3], "big"):
                try:
                    part = self.sock.recv(1 << 16)
                except ConnectionError:
                    part = b""
                if not part:
                    return None
                self._came += part
            size = int.from_bytes(self._came[:3], "big")
            kind, flags, stream = self._came[3], self._came[4], int.from_bytes(self._came[5:9], "big")
            payload, self._came = self._came[9 : 9 + size], self._came[9 + size :]
            if kind in {SETTINGS, PING}:
                if not flags & ACK:
                    self.sock.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
                continue
            return kind, flags, stream, payload

    def until(self, kind: int, stream: int) -> list[tuple[int, int, int, bytes]]:
        """The frames up to the first of this kind, or to the end of the connection."""
        found = []
        while (each := self.next()) is not None:
            found.append(each)
            if each[0] == kind and each[2] == stream:
                break
        return found

    def close(self) -> None:
        self.sock.close()
