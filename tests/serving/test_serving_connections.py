"""Bodies that pass by the parser, in pieces of any size, without a server: what follows them on the connection is not disturbed."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import serving_tools
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from aspen_mp.serving.access.connections import EXCHANGE, Exchange, LimitedConnection


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the digest of the body. The path says how much of it is received, and the sizes of what the rest is read into."""
    exchange: Exchange = scope["extensions"][EXCHANGE]
    received, *sizes = map(int, scope["path"][1:].split("/"))
    said = int(dict(scope["headers"])[b"content-length"])
    body = b""
    while len(body) < received:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    for size in sizes:
        array = np.zeros(min(size, said - len(body)), np.uint8)
        assert await exchange.read_into(array.data) == array.size
        body += array.tobytes()
    while len(body) < said:
        body += (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64")]})
    await send({"type": "http.response.body", "body": hashlib.sha256(body).hexdigest().encode()})


def connected(app: Any) -> tuple[socket.socket, Any]:
    """A client's end, and what makes the server's within a loop."""
    client, server = socket.socketpair()
    client.setblocking(False)
    config = uvicorn.Config(app, http=LimitedConnection, ws="none", lifespan="off", interface="asgi3", log_level="warning")

    async def serve() -> Any:
        loop = asyncio.get_running_loop()
        return await loop.connect_accepted_socket(lambda: LimitedConnection(config, ServerState(), {}), server)

    return client, serve


@given(
    sizes=st.lists(st.integers(0, 40000), min_size=1, max_size=4),
    received=st.lists(st.integers(0, 20000), min_size=4, max_size=4),
    rooms=st.lists(st.lists(st.integers(0, 30000), max_size=4), min_size=4, max_size=4),
    cuts=st.lists(st.integers(0, 160000), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_every_byte_comes_once(sizes: list[int], received: list[int], rooms: list[list[int]], cuts: list[int]) -> None:
    rng = np.random.default_rng(len(cuts))
    bodies = [rng.bytes(size) for size in sizes]
    data = b""
    for body, first, room in zip(bodies, received, rooms, strict=False):
        path = "/".join(map(str, (first, *room)))
        data += f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    marks = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})

    async def work() -> bytes:
        client, serve = connected(application)
        loop = asyncio.get_running_loop()
        transport, _ = await serve()
        said = b""
        try:
            for a, b in pairwise(marks):  # requests are sent ahead of the answers before them
                await loop.sock_sendall(client, data[a:b])
                await asyncio.sleep(0)
            while said.count(b"HTTP/1.1 200") < len(bodies) or len(said.rpartition(b"\r\n\r\n")[2]) < 64:
                part = await loop.sock_recv(client, 1 << 16)
                assert part, said
                said += part
        finally:
            transport.close()
            client.close()
        return said

    said = asyncio.run(asyncio.wait_for(work(), serving_tools.WATCHDOG_S))
    assert [part.rpartition(b"\r\n\r\n")[2][:64].decode() for part in said.split(b"HTTP/1.1 200")[1:]] == [
        hashlib.sha256(body).hexdigest() for body in bodies
    ]


@pytest.mark.parametrize("while_reading", [True, False])
def test_who_waits_learns_that_the_client_has_gone(while_reading: bool) -> None:
    async def work() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def waits(scope: Any, receive: Any, send: Any) -> None:
            exchange: Exchange = scope["extensions"][EXCHANGE]
            if while_reading:
                found.set_result(await exchange.read_into(np.empty(1 << 20, np.uint8).data))
                return
            exchange.watch(lambda: found.set_result(-1))
            await found

        client, serve = connected(waits)
        await serve()
        length = 1 << 20 if while_reading else 0
        await asyncio.get_running_loop().sock_sendall(client, f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        await asyncio.sleep(0)
        client.close()
        return await found

    assert asyncio.run(asyncio.wait_for(work(), serving_tools.WATCHDOG_S)) == -1
