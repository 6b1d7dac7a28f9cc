"""Sequences against a plain model of them: drawn starts, ends, frames, clients and times, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import cost_tools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol.inference import Call, Frame
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.sequences import Places, Sequences
from aspen_mp.serving.telemetry.ledger import Field, Ledger
from aspen_mp.shm.errors import RequestError

LIMITS = Limits(sequences=4, client_sequences=3, sequence_s=10.0)
TAKES_S = 1.7321
"""No sum of these times and of pauses is that of `LIMITS`."""
PAUSES = [0.0, 0.0, 1.1412, 5.2361, 11.0]


class Stream:
    """One of `Streams`: a frame takes `TAKES_S`, or fails if it is -1. `holding`: the streams that have memory, of which there are no more
    than places."""

    def __init__(self, number: int, holding: set[Stream]) -> None:
        self.number = number
        self.holding = holding
        self.running = 0
        self.closed = False

    async def run_async(self, feeds: Any, outputs: Any = None, **more: Any) -> dict[str, Any]:
        assert not self.closed
        self.holding.add(self)
        assert len(self.holding) <= LIMITS.sequences
        self.running += 1
        try:
            await asyncio.sleep(TAKES_S)
            if feeds["x"] < 0:
                raise RequestError("below zero")
            return {"y": np.array(self.number)}
        finally:
            self.running -= 1

    def close(self) -> None:
        assert not self.closed
        assert not self.running
        self.holding.discard(self)
        self.closed = True


class Streams:
    """A model that only makes streams."""

    def __init__(self, holding: set[Stream]) -> None:
        self.made: list[Stream] = []
        self.holding = holding

    def stream(self, **how: Any) -> Stream:
        assert how == {"tol": 1.0}
        self.made.append(Stream(len(self.made), self.holding))
        return self.made[-1]


def call(number: Any, client: str, value: int = 0, *, start: bool = False, end: bool = False) -> Call:
    return Call("", {"x": np.array(value)}, None, {}, False, None, None, frame=Frame(number, start, end), client=client)


class Book:
    """Two versions' sequences, and beside them what they should be: by version and id, the stream, its client and when it was last used."""

    def __init__(self) -> None:
        holding: set[Stream] = set()
        self.models = [Streams(holding), Streams(holding)]
        self.rows = [Ledger().row("m", k, in_batches=False) for k in range(2)]
        places = Places(LIMITS)
        self.all = [Sequences(model, {"tol": 1.0}, places, row) for model, row in zip(self.models, self.rows, strict=True)]  # type: ignore[arg-type]
        self.open: dict[tuple[int, Any], list[Any]] = {}

    async def ask(self, version: int, number: Any, client: str, value: int, *, start: bool, end: bool) -> None:
        """One request, from start to end."""
        key = version, number
        self.expire()
        want = self._wanted(key, client, start=start)
        entry = self.open.get(key)
        stream = None if entry is None or want != 200 else entry[0]
        if end and want == 200:
            del self.open[key]
        found = await self._status(self.all[version].run(call(number, client, value, start=start, end=end), "normal", None))
        assert found == ((want, stream) if want != 200 or value >= 0 else (200, None)), (key, start, end)
        if want == 200 and key in self.open and self.open[key][0] == stream:
            self.open[key][2] = asyncio.get_running_loop().time()

    @staticmethod
    async def _status(work: Any) -> tuple[int, int | None]:
        """The status of a request, and the stream that has answered. An error of the model is none of sequences."""
        try:
            return 200, int((await work)["y"])
        except Refused as refused:
            return refused.status, None
        except RequestError:
            return 200, None

    def expire(self) -> None:
        now = asyncio.get_running_loop().time()
        self.open = {key: entry for key, entry in self.open.items() if now < entry[2] + LIMITS.sequence_s}

    def _wanted(self, key: tuple[int, Any], client: str, *, start: bool) -> int:
        """The status, after `open` has changed as a start changes it."""
        if not start:
            return 200 if key in self.open else 400
        now, made = asyncio.get_running_loop().time(), len(self.models[key[0]].made)
        if key in self.open:
            self.open[key] = [made, self.open[key][1], now]
            return 200
        if len(self.open) >= LIMITS.sequences or sum(entry[1] == client for entry in self.open.values()) >= LIMITS.client_sequences:
            return 429
        self.open[key] = [made, client, now]
        return 200

    async def check(self) -> None:
        """Counts are right, and streams that nobody can reach are closed."""
        while busy := [each for each in self.all if each._closing]:  # time passes meanwhile, and ends others
            closed = asyncio.Event()
            busy[0].when_closed(closed.set)
            await closed.wait()
        self.expire()
        for version, (model, row) in enumerate(zip(self.models, self.rows, strict=True)):
            held = {entry[0] for (which, _), entry in self.open.items() if which == version}
            assert row._numbers[Field.SEQUENCES] == len(held)
            assert {stream.number for stream in model.made if not stream.closed} == held


STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from([1, 2, "1", "a", 3]),
        st.sampled_from(["here", "there"]),
        st.sampled_from([0, 0, 0, -1]),
        st.booleans(),
        st.sampled_from([False, False, True]),
        st.sampled_from(PAUSES),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_requests_one_after_the_other(steps: list[Any]) -> None:
    async def work() -> None:
        book = Book()
        for version, number, client, value, start, end, pause in steps:
            await book.ask(version, number, client, value, start=start, end=end)
            await book.check()
            await asyncio.sleep(pause)
            await book.check()
        await asyncio.sleep(LIMITS.sequence_s + 1)
        await book.check()
        assert not book.open

    cost_tools.run(work())


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_any_requests_at_once(steps: list[Any]) -> None:
    """Each begins while those before run. No frame runs in a closed stream, and all streams are closed at the end."""

    async def work() -> None:
        book = Book()
        tasks = []
        for version, number, client, value, start, end, pause in steps:
            request = call(number, client, value, start=start, end=end)
            tasks.append(asyncio.ensure_future(book.all[version].run(request, "normal", None)))
            await asyncio.sleep(pause / 4)
            if pause == PAUSES[3]:
                tasks[len(tasks) // 2].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, dict | Refused | RequestError | asyncio.CancelledError) for each in found), found
        for each in book.all:
            each.close()
        await book.check()

    cost_tools.run(work())


def test_a_sequence_that_is_used_does_not_end() -> None:
    async def work() -> None:
        book = Book()
        await book.ask(0, 1, "here", 0, start=True, end=False)
        for _ in range(5):
            await asyncio.sleep(LIMITS.sequence_s - 1)
            await book.ask(0, 1, "here", 0, start=False, end=False)
        await book.check()
        await asyncio.sleep(LIMITS.sequence_s + 1)
        with pytest.raises(Refused, match="for 10 s"):
            await book.all[0].run(call(1, "here"), "normal", None)

    cost_tools.run(work())
