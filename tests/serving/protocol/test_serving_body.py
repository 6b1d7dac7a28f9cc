"""Bodies that come in pieces of any size, and limits, without a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import serving_tools  # noqa: F401
from cost_tools import run
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol.body import SMALL, Body, Budget, Disconnected
from aspen_mp.serving.protocol.statuses import Refused

LIMITS = Limits(body=1000, json=100, pending=1500, body_s=0.05)


def coming(pieces: Iterable[bytes], *, ends: bool = True) -> Any:
    """What uvicorn would say. `ends`: otherwise nothing follows the pieces."""
    left = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if ends and left:
        left[-1]["more_body"] = False
    elif ends:
        left = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


def cut(data: bytes, at: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(min(each, len(data)) for each in at)})
    return [data[a:b] for a, b in pairwise(marks)]


def read(
    pieces: list[bytes], header: int | None, sizes: list[int], *, said: int | None = None, ends: bool = True
) -> tuple[bytes, list[bytes]]:
    async def work() -> tuple[bytes, list[bytes]]:
        headers = {} if said is None else {b"content-length": str(said).encode()}
        budget = Budget(LIMITS.pending)
        try:
            with Body(coming(pieces, ends=ends), headers, LIMITS, budget) as body:
                text = bytes(await body.read_text(header))
                arrays = [np.empty(size, np.uint8) for size in sizes]
                if header is not None:
                    await body.read_into(memoryview(array) for array in arrays)
                return text, [array.tobytes() for array in arrays]
        finally:
            budget.take(LIMITS.pending)  # all has been given back

    return asyncio.run(work())


@given(st.binary(max_size=90), st.lists(st.binary(max_size=200), max_size=4), st.lists(st.integers(0, 900), max_size=6), st.booleans())
def test_pieces_of_any_size(text: bytes, tensors: list[bytes], marks: list[int], known: bool) -> None:
    data = text + b"".join(tensors)
    pieces = cut(data, marks)
    assert read(pieces, len(text), list(map(len, tensors)), said=len(data) if known else None) == (text, tensors)


@given(st.binary(max_size=100), st.lists(st.integers(0, 100), max_size=6))
def test_json_alone(text: bytes, marks: list[int]) -> None:
    assert read(cut(text, marks), None, []) == (text, [])


@pytest.mark.parametrize(
    ("pieces", "header", "sizes", "said", "status"),
    [
        ([b"x" * 101], None, [], None, 413),
        ([b"x" * 60, b"x" * 60], None, [], None, 413),
        ([b"x" * 10], 101, [], None, 413),
        ([b"x" * 600, b"x" * 600], 10, [1190], None, 413),
        ([b"x"], None, [], 1001, 413),
        ([b"x" * 10], 11, [], None, 400),
        ([b"x" * 10], 5, [6], None, 400),
        ([b"x" * 10], 5, [4], None, 400),
        ([b"x" * 5, b"x"], 5, [], None, 400),
    ],
)
def test_limits(pieces: list[bytes], header: int | None, sizes: list[int], said: int | None, status: int) -> None:
    with pytest.raises(Refused) as refused:
        read(pieces, header, sizes, said=said)
    assert refused.value.status == status


def test_a_body_that_stops_coming() -> None:
    with pytest.raises(Refused) as refused:
        read([b"x" * 5], 5, [5], ends=False)
    assert refused.value.status == 408


def test_a_client_that_goes() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def work() -> None:
        with Body(receive, {}, LIMITS, Budget(10)) as body:
            await body.read_text(None)

    with pytest.raises(Disconnected):
        asyncio.run(work())


@pytest.mark.parametrize("said", [b"-1", b"1e3", b"", b"9" * 16])
def test_lengths_that_are_none(said: bytes) -> None:
    with pytest.raises(Refused, match="number"):
        Body(coming([]), {b"content-length": said}, LIMITS, Budget(10))


def arrived(budget: Budget, nbytes: int, said: int = 1000) -> Body:
    """A request of whose body so many bytes have come."""
    body = Body(coming([b"x" * nbytes], ends=False), {b"content-length": b"%d" % said}, LIMITS, budget)
    asyncio.run(body._next())
    return body


def test_what_was_announced_and_has_not_come_costs_nothing() -> None:
    budget = Budget(LIMITS.pending)
    idle = [Body(coming([]), {b"content-length": b"1000"}, LIMITS, budget) for _ in range(100)]
    with contextlib.ExitStack() as stack:
        for each in idle:
            stack.enter_context(each)
        with arrived(budget, 1000):
            pass


def test_bodies_together_have_a_limit() -> None:
    budget = Budget(LIMITS.pending)
    with arrived(budget, 1000):
        with pytest.raises(Refused) as refused:
            arrived(budget, 501)
        assert (refused.value.status, refused.value.retry_s) == (429, 1)
        with arrived(budget, 500):
            pass
    with arrived(budget, 501):
        pass


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2 * SMALL)), max_size=60), st.integers(0, 12 * SMALL))
def test_a_budget_keeps_its_last_eighth_for_small_requests(takes: list[tuple[int, int]], most: int) -> None:
    """Six requests take in any order, and give everything back when one is refused."""
    budget, held = Budget(most), [0] * 6
    for k, nbytes in takes:
        others = sum(held) - held[k]
        room = most if held[k] + nbytes <= SMALL else most - most // 8
        if others and sum(held) + nbytes > room:
            with pytest.raises(Refused):
                budget.take(nbytes, held[k])
            budget.give(held[k])
            held[k] = 0
        else:
            budget.take(nbytes, held[k])
            held[k] += nbytes
    budget.give(sum(held))
    budget.take(most)


SLOW = Limits(body=10000, json=10000, rate=10, slow_s=8.0, body_s=60.0)


def status_of(arrivals: list[tuple[float, int]], size: int) -> int:
    """What the protocol asks for: 408 once a window ends in which too little has come, or the time for all is over."""
    at = window = 0.0
    since = came = 0
    for wait, nbytes in arrivals:
        at += wait
        while (end := min(window + 8, 60)) < at:
            if end == 60 or came - since < 80:
                return 408
            window, since = end, came
        came += nbytes
        if came >= size:
            return 200
    return 408


@given(
    st.lists(st.tuples(st.integers(0, 30).map(lambda seconds: seconds + 0.53), st.integers(1, 200)), max_size=30),
    st.integers(1, 2000),
    st.booleans(),
)
def test_a_body_has_a_least_rate(arrivals: list[tuple[float, int]], size: int, direct: bool) -> None:
    """Pieces come after drawn times, never just when a window ends. `direct`: they are read where they belong."""

    async def work() -> int:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        at, came = 0.0, 0
        for wait, nbytes in arrivals:
            at += wait
            piece = b"x" * min(nbytes, size - came)
            came += len(piece)
            if piece:
                loop.call_at(at, queue.put_nowait, piece)

        class Reads:
            def at_hand(self, n: int) -> memoryview | None:
                return None

            async def read_into(self, target: memoryview, until: float | None = None, note: Any = None) -> int:
                async with asyncio.timeout_at(until):
                    for k in range(len(target)):  # a byte at a time: a time-out loses none
                        if not left:
                            left.extend(await queue.get())
                        target[k : k + 1] = bytes([left.pop()])
                        note(1)
                return len(target)

        async def receive() -> Any:
            return {"type": "http.request", "body": await queue.get(), "more_body": True}

        left = bytearray()
        headers = {b"content-length": b"%d" % size}
        with Body(receive, headers, SLOW, Budget(1 << 20), Reads() if direct else None) as body:
            try:
                target = np.zeros(size, np.uint8)
                body._more = True
                if direct:
                    await body.read_into([target.data])
                else:
                    while body._seen < size:
                        await body._next()
            except Refused as refused:
                return refused.status
        return 200

    assert run(work()) == status_of(arrivals, size)
