"""Clients that send and do not read: they are disconnected, the one first that has read nothing for the longest time. Without a server."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import serving_tools  # noqa: F401 (skips these without the extra)
import uvicorn
from cost_tools import run
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from aspen_mp.serving.access.connections import EXCHANGE, LimitedConnection
from aspen_mp.serving.access.unread import Unread
from aspen_mp.serving.limits import Limits

NBYTES = 4 << 20
"""Of an answer: more than the kernel takes."""
LIMITS = Limits(rate=1 << 10, unread_s=30.0, unsent=3 * NBYTES)
CLOSE = b"Connection: close\r\n"


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """As many bytes as the path says; by way of uvicorn if it begins with /slow."""
    *_, kind, nbytes = scope["path"].split("/")
    if kind == "slow":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", nbytes.encode())]})
        await send({"type": "http.response.body", "body": bytes(int(nbytes))})
    else:
        await scope["extensions"][EXCHANGE].answer([], [bytes(int(nbytes))], close=False)


class Connection(LimitedConnection):
    """One whose end can be waited for."""

    limits = LIMITS

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.lost: asyncio.Future[float] = self.loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set_result(self.loop.time())


async def connected() -> tuple[socket.socket, Connection]:
    loop = asyncio.get_running_loop()
    client, server = socket.socketpair()
    client.setblocking(False)
    config = uvicorn.Config(
        answers, http=Connection, ws="none", lifespan="off", interface="asgi3", log_level="critical", timeout_keep_alive=75
    )
    _, connection = await loop.connect_accepted_socket(lambda: Connection(config, ServerState(), {}, loop), server)
    return client, connection


def asks(kind: str = "fast", nbytes: int = NBYTES, more: bytes = b"") -> bytes:
    return f"GET /{kind}/{nbytes} HTTP/1.1\r\nHost: x\r\n".encode() + more + b"\r\n"


@given(
    kind=st.sampled_from(["fast", "slow"]),
    ahead=st.integers(1, 5),
    more=st.sampled_from([b"", CLOSE]),
    nbytes=st.sampled_from([100, NBYTES]),
)
@settings(max_examples=12, deadline=None)
def test_who_never_reads_is_disconnected(kind: str, ahead: int, more: bytes, nbytes: int) -> None:
    """Requests are sent ahead of their answers. A small answer, that fits into the kernel, is the kernel's."""

    async def work() -> float:
        client, connection = await connected()
        client.sendall(asks(kind, nbytes, more) * ahead)
        ended = await connection.lost
        client.close()
        assert connection not in Unread.owing
        return ended

    ended = run(work())
    assert ended == (LIMITS.unread_s if nbytes == NBYTES else 0.0 if more else 75.0)
    assert not Unread.owing


@given(st.lists(st.integers(0, 3 * LIMITS.rate * 30), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_who_reads_fast_enough_gets_all(reads: list[int]) -> None:
    """A client reads drawn numbers of bytes, one in each window. The kernel counts memory, and therefore more than the bytes."""

    async def work() -> bool:
        client, connection = await connected()
        client.sendall(asks())
        loop = asyncio.get_running_loop()
        for nbytes in reads:
            left = nbytes
            await asyncio.sleep(15)
            while left and not connection.lost.done():
                left -= len(await loop.sock_recv(client, left))
                await asyncio.sleep(0)
            await asyncio.sleep(15)
            if connection.lost.done():
                break
        done = connection.lost.done()
        client.close()
        await connection.lost
        return done

    ended = run(work())
    slow = [nbytes < LIMITS.rate * 30 // 2 for nbytes in reads]
    if any(nbytes == 0 for nbytes in reads):
        assert ended
    elif not any(slow) and all(nbytes >= LIMITS.rate * 30 for nbytes in reads):
        assert not ended


@given(st.permutations(range(5)), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_those_that_have_waited_longest_end_first(order: list[int], together: int) -> None:
    """Five clients ask in a drawn order, a second apart. Three answers have room. One that reads again goes to the end of the line."""

    async def work() -> list[int]:
        pairs = [await connected() for _ in order]
        ended: list[int] = []
        for k, (_, connection) in enumerate(pairs):
            connection.lost.add_done_callback(lambda _, k=k: ended.append(k))
        for k in order:
            pairs[k][0].sendall(asks())
            await asyncio.sleep(1)
        assert sum(Unread.owing.values()) <= LIMITS.unsent
        found = list(ended)
        for client, connection in pairs:
            client.close()
            await connection.lost
        return found

    assert run(work()) == order[: len(order) - 3]
    assert not Unread.owing


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_that_nobody_reads_ends(method: str) -> None:
    """The request has been answered, and its body comes at no rate at all."""

    async def work() -> float:
        client, connection = await connected()
        client.sendall(f"{method} /slow/10 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode() + b"x")
        ended = await connection.lost
        client.close()
        return ended

    assert run(work()) == LIMITS.body_s
