"""Sequences: requests that clients number as frames of one stream, of each of which only what changed runs.

A front end keeps the sequences that began with it. Everything happens on its event loop, except that threads close streams.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.telemetry.ledger import Field, Row

if TYPE_CHECKING:
    import aspen_mp
    from aspen_mp.serving.protocol.inference import Call, Frame

Results = Mapping[str, npt.NDArray[Any]]
Id = int | str


class Places:
    """The sequences that a front end has room for, those of all models together. One stream at a time has memory in a place."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Take a place for a client. Refused (429) where there is none."""
        limits, all_taken = self.limits, self._taken.total()
        if all_taken >= limits.sequences:
            raise Refused(
                429, f"{all_taken} sequences are open, and this server keeps {limits.sequences}. End one, or raise --max-sequences", 1
            )
        if self._taken[client] >= limits.client_sequences:
            most = f"{limits.client_sequences} of one address. End one, or raise --client-sequences"
            raise Refused(429, f"this client has {self._taken[client]} sequences open, and this server keeps {most}", 1)
        self._taken[client] += 1

    def give(self, client: str) -> None:
        """The stream of the client's sequence is closed."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]


class _Sequence:
    """One that is open, or ends.

    Attributes:
        client: Who has its place.
        after: `closed` of the sequence whose place it took. It holds no memory before.
        running: Its requests that have not ended.
        ended: Whether requests do not find it any more.
        succeeded: Whether another one took its place.
        closed: Done once its stream is closed.
        used: When its last request ended, by the loop's clock.
    """

    def __init__(self, stream: aspen_mp.ModelStream, client: str, after: asyncio.Future[None] | None) -> None:
        self.stream = stream
        self.client = client
        self.after = after
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.succeeded = False
        self.running = 0
        self.ended = False
        self.used = asyncio.get_running_loop().time()
        self.timer: asyncio.TimerHandle | None = None


class Sequences:
    """The open sequences of a version of a model. `how`: arguments of `Model.stream`. `counts`: of the version's requests."""

    def __init__(self, model: aspen_mp.Model, how: Mapping[str, Any], places: Places, counts: Row) -> None:
        self._model = model
        self._how = how
        self._places = places
        self._counts = counts
        self._open: dict[Id, _Sequence] = {}
        self._closing: set[asyncio.Future[None]] = set()

    async def run(self, call: Call, priority: str, deadline_ms: float | None) -> Results:
        """The results of a frame. The last one's come when the stream's memory is free. Refused (400) where its sequence is not open, (429)
        where there is no place for another one; other errors are those of `ModelStream.run_async`."""
        frame = call.frame
        assert frame is not None
        found = self._begun(frame, call.client) if frame.start else self._open.get(frame.id)
        if found is None:
            raise Refused(
                400,
                f"sequence {frame.id!r} is not open: its first request must say sequence_start. It may have ended, have had no request for "
                f"{self._places.limits.sequence_s:g} s, or belong to another version or process of the server",
            )
        found.running += 1
        try:
            if frame.end:
                self._end(frame.id)
            if found.after is not None and not found.after.done():
                deadline_ms = await _until(found.after, deadline_ms)
            return await found.stream.run_async(call.feeds, outputs=call.outputs, priority=priority, deadline_ms=deadline_ms, copy=False)
        finally:
            found.running -= 1
            found.used = asyncio.get_running_loop().time()
            self._close_if_ended(found)
            if frame.end:
                await asyncio.shield(found.closed)  # whoever has this answer may begin another one

    def _begun(self, frame: Frame, client: str) -> _Sequence:
        """A new sequence. It takes the place of one that is open under the same id."""
        before = self._open.get(frame.id)
        if before is None:
            self._places.take(client)
            try:
                found = _Sequence(self._model.stream(**self._how), client, None)
            except BaseException:
                self._places.give(client)
                raise
        else:
            found = _Sequence(self._model.stream(**self._how), before.client, before.closed)
            before.succeeded = True
            self._end(frame.id)
        self._open[frame.id] = found
        self._counts.add(Field.SEQUENCES)
        self._look_later(frame.id, found, self._places.limits.sequence_s)
        return found

    def _look_later(self, number: Id, found: _Sequence, seconds: float) -> None:
        found.timer = asyncio.get_running_loop().call_later(seconds, self._end_if_unused, number, found)

    def _end_if_unused(self, number: Id, found: _Sequence) -> None:
        if found.ended:
            return
        whole = self._places.limits.sequence_s
        end = found.used + whole
        now = asyncio.get_running_loop().time()
        if found.running:
            self._look_later(number, found, whole)
        elif now < end:
            self._look_later(number, found, end - now)
        else:
            self._end(number)

    def _end(self, number: Id) -> None:
        """End a sequence, if it is open. Its requests that run get their results."""
        found = self._open.pop(number, None)
        if found is None:
            return
        found.ended = True
        if found.timer is not None:
            found.timer.cancel()
        self._closing.add(found.closed)
        self._counts.add(Field.SEQUENCES, -1)
        self._close_if_ended(found)

    def _close_if_ended(self, found: _Sequence) -> None:
        if not found.ended or found.running:
            return
        if found.after is not None and not found.after.done():
            found.after.add_done_callback(lambda _: self._close(found))
        else:
            self._close(found)

    def _close(self, found: _Sequence) -> None:
        """In a thread, because a frame that was cancelled may still run."""
        closing = asyncio.get_running_loop().run_in_executor(None, found.stream.close)
        closing.add_done_callback(partial(self._note_closed, found))

    def _note_closed(self, found: _Sequence, closing: asyncio.Future[None]) -> None:
        self._closing.discard(found.closed)
        if not found.succeeded:
            self._places.give(found.client)
        found.closed.set_result(None)

    def when_closed(self, done: Callable[[], object]) -> None:
        """Call `done` once streams that have ended have given their memory back: now, if there are none."""

        def closed(_: object) -> None:
            with suppress(RuntimeError):  # the server has ended
                done()

        if self._closing:
            asyncio.gather(*self._closing, return_exceptions=True).add_done_callback(closed)
        else:
            done()

    def close(self) -> None:
        """End all sequences: the version is not served any more."""
        for number in list(self._open):
            self._end(number)


async def _until(done: asyncio.Future[None], deadline_ms: float | None) -> float | None:
    """Wait, and return the milliseconds that are left of some."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.shield(done)
    return None if deadline_ms is None else max(deadline_ms - 1e3 * (loop.time() - began), 1e-3)
