"""How memory is shared with a connection: its first message carries descriptors, and HTTP follows the answer.

Each message is a length (4 bytes, little-endian) and JSON. The client sends `Register` with one descriptor for each name, in one sendmsg.
The server answers `Registered`, and closes the connection if that has an error.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from aspen_mp.serving.memory.regions import Region, sealed
from aspen_mp.shm.errors import RequestError

MOST_REGIONS: Final = 16
MOST_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct("<I")
_ROOM: Final = socket.CMSG_SPACE((MOST_REGIONS + 1) * array.array("i").itemsize)


class Register(msgspec.Struct, kw_only=True):
    """Names of regions, in the order of their descriptors."""

    regions: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(min_length=1, max_length=MOST_REGIONS)]


class Registered(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sizes of the regions in bytes, or why there are none."""

    sizes: list[int] = []
    error: str = ""


_decoder: Final = msgspec.json.Decoder(Register)


async def answered(sock: socket.socket, most: int) -> dict[str, Region] | None:
    """The regions of a new connection; None where it is to be closed. The client has been told why, if it still listens.

    Args:
        sock: The connection, which does not block.
        most: Regions that may be taken on now.
    """
    fds: list[int] = []
    try:
        said = await _received(sock, fds)
        if said is None:
            return None
        regions = _taken(said, fds, most)
        answer = Registered(sizes=[each.size for each in regions.values()])
    except RequestError as error:
        regions, answer = {}, Registered(error=str(error))
    except OSError:
        return None
    finally:
        for fd in fds:
            os.close(fd)
    data = msgspec.json.encode(answer)
    try:
        sock.send(_LENGTH.pack(len(data)) + data, socket.MSG_NOSIGNAL)  # fits any socket's buffer
    except OSError:
        for each in regions.values():
            each.close()
        return None
    return regions or None


def _taken(said: Register, fds: list[int], most: int) -> dict[str, Region]:
    """The regions, which own their descriptors: these are taken out of `fds`. RequestError, and then all descriptors are in `fds`."""
    if len(said.regions) != len(fds):
        raise RequestError(f"{len(said.regions)} regions are named, and {len(fds)} descriptors came. Send one for each with SCM_RIGHTS")
    if len(set(said.regions)) < len(said.regions):
        raise RequestError("two regions have the same name")
    if len(fds) > most:
        raise RequestError("clients hold as many regions as this server takes. Close other connections first")
    regions = {name: sealed(fd, f"the descriptor of region {name!r}") for name, fd in zip(said.regions, fds, strict=True)}
    fds.clear()
    return regions


async def _received(sock: socket.socket, fds: list[int]) -> Register | None:
    """The first message; not a byte more is read. Descriptors that came are added to `fds`. None where the client has gone."""
    data, wanted = bytearray(), _LENGTH.size
    while len(data) < wanted:
        await _until_readable(sock)
        try:
            piece, ancillary, flags, _ = sock.recvmsg(wanted - len(data), _ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            continue
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came = array.array("i")
                came.frombytes(payload[: len(payload) - len(payload) % came.itemsize])
                fds.extend(came)
        if flags & socket.MSG_CTRUNC or len(fds) > MOST_REGIONS:
            raise RequestError(f"a connection shares {MOST_REGIONS} regions at most; or this server has no descriptor left")
        if not piece:
            return None
        data += piece
        if len(data) == wanted == _LENGTH.size:
            (length,) = _LENGTH.unpack(data)
            if not 0 < length <= MOST_BYTES:
                raise RequestError(f"the first message has {length} bytes. It is a length, 4 bytes, little-endian, and JSON")
            wanted += length
    try:
        return _decoder.decode(data[_LENGTH.size :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the first message does not name regions: {error}") from None


async def _until_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    loop.add_reader(sock, there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(sock)
