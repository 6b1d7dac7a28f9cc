"""Messages between the supervisor and a front end, over a pair of sockets that only these two have: length, then JSON."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

import msgspec

from aspen_mp.serving.memory.named import Named
from aspen_mp.serving.repository.disk import Config
from aspen_mp.system import sockets

MOST_BYTES: Final = 64 << 20
_LENGTH: Final = struct.Struct("<I")


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A version that is served. `stamp`: of its files, so that the same path with other contents is another version."""

    name: str
    version: int
    path: str
    stamp: str
    config: Config


class Unserved(msgspec.Struct, frozen=True, kw_only=True):
    """A version that is not served, and why."""

    name: str
    version: int
    reason: str


class Catalogue(msgspec.Struct, tag=True, kw_only=True):
    """Everything that is served. `number` grows with each change. `absent`: why no request can be served, empty otherwise.
    `draining`: requests are still served, and no new ones should come. `named`: memory that clients have registered by name."""

    number: int
    served: list[Served]
    unserved: list[Unserved]
    absent: str = ""
    draining: bool = False
    named: list[Named] = []


class Applied(msgspec.Struct, tag=True, kw_only=True):
    """A front end has reached a catalogue. `failed`: {model: reason} for models that it could not load."""

    number: int
    failed: dict[str, str] = {}


class Ask(msgspec.Struct, tag=True, kw_only=True):
    """A client wants a model loaded or unloaded."""

    number: int
    load: bool
    model: str


class Share(msgspec.Struct, tag=True, kw_only=True):
    """A client wants memory registered, or forgotten: that of the name `remove`, "" for all."""

    number: int
    add: Named | None = None
    remove: str | None = None


class Done(msgspec.Struct, tag=True, kw_only=True):
    """The outcome of an `Ask` or a `Share`. `status`: 200, or that of an error with its `reason`."""

    number: int
    status: int = 200
    reason: str = ""


class Finish(msgspec.Struct, tag=True):
    """Accept no more requests, answer those in flight, and end."""


Message = Catalogue | Applied | Ask | Share | Done | Finish
_decoder: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message)


class Channel:
    """One end. `receive` returns None when the other end has gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: sockets.socket) -> Channel:
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer)

    def send(self, message: Message) -> None:
        """Never waits: messages are small, and the other end reads all the time."""
        if not self._writer.is_closing():
            data = msgspec.json.encode(message)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Message | None:
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > MOST_BYTES:
                return None
            return _decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        self._writer.close()
