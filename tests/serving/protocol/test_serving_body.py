"""Bodies that come in pieces of any size, and limits, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import serving_tools  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol.body import Body, Budget, Disconnected
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


def test_bodies_together_have_a_limit() -> None:
    budget = Budget(LIMITS.pending)
    with Body(coming([]), {b"content-length": b"1000"}, LIMITS, budget):
        with pytest.raises(Refused) as refused, Body(coming([]), {b"content-length": b"501"}, LIMITS, budget):
            pass
        assert (refused.value.status, refused.value.retry_s) == (429, 1)
        with Body(coming([]), {b"content-length": b"500"}, LIMITS, budget):
            pass
    with Body(coming([]), {b"content-length": b"501"}, LIMITS, budget):
        pass
