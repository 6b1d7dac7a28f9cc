"""`Model.map` while some of its requests wait for a plan: others run, within bounds, and results keep their order.

The runtime goes on whenever the stream waits, so that nothing depends on time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.client.future import RequestFuture
from aspen_mp.client.streaming import AHEAD, Stream, Terms, stream_async

WATCHDOG_S = 60.0


class Runtime:
    """Runs requests of sizes, one step for each `progress`. A size of `waits` has no plan until so many requests have ended, or until
    nothing else is left to run."""

    def __init__(self, waits: dict[int, int], *, concurrency: int) -> None:
        self._waits, self._concurrency = dict(waits), concurrency
        self._planning: dict[int, list[tuple[int, RequestFuture]]] = {}
        self._running: deque[tuple[int, RequestFuture]] = deque()
        self.submitted: list[int] = []
        self.ended: list[int] = []
        self.returned = 0
        self.most_running = self.most_open = 0

    def submit(self, size: int) -> Future[dict[str, Any]]:
        number, future = len(self.submitted), Answer(self)
        self.submitted.append(size)
        if size in self._waits:
            future.planning = True
            self._planning.setdefault(size, []).append((number, future))
        else:
            self._running.append((number, future))
        self.most_running = max(self.most_running, len(self._running))
        self.most_open = max(self.most_open, len(self.submitted) - self.returned)
        return future

    async def submit_soon(self, size: int) -> Future[dict[str, Any]]:
        return self.submit(size)

    def progress(self) -> None:
        """The oldest request that has a plan ends, or a plan comes; the requests that waited for it end at once."""
        nothing_runs = not self._running
        if self._running:
            self._end(*self._running.popleft())
        for size in [size for size in self._planning if nothing_runs or self._waits[size] <= len(self.ended)]:
            del self._waits[size]
            for number, future in self._planning.pop(size):
                future.planning = False
                self._end(number, future)

    def _end(self, number: int, future: RequestFuture) -> None:
        self.ended.append(number)
        future.finish({"number": number})


class Answer(RequestFuture):
    """A result. Whoever waits for it lets the runtime go on."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def exception(self, timeout: float | None = None) -> BaseException | None:
        while timeout != 0 and not self.done():
            self._runtime.progress()
        return super().exception(timeout)


class Told(SimpleQueue[Any]):
    """The same for a stream that waits for whatever ends."""

    runtime: Runtime

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while self.empty():
            self.runtime.progress()
        return super().get(block, timeout)


def terms(concurrency: int, *, ordered: bool, ahead: bool) -> Terms:
    return Terms("model", concurrency, ordered, WATCHDOG_S, False, False, ahead=ahead)


def numbers(runtime: Runtime, sizes: list[int], how: Terms) -> list[int]:
    """The requests in the order of their results, by `Stream`."""
    stream = Stream[Any](runtime.submit, sizes, how)
    stream._done, stream._ended = Told(), Told()
    stream._done.runtime = stream._ended.runtime = runtime
    found = []
    for result in stream:
        runtime.returned += 1
        found.append(result["number"] if how.ordered else result[1]["number"])
    return found


def numbers_async(runtime: Runtime, sizes: list[int], how: Terms) -> list[int]:
    async def goes_on() -> None:
        while True:
            for _ in range(10):  # the stream takes what it may before something ends
                await asyncio.sleep(0)
            runtime.progress()

    async def go() -> list[int]:
        found, workers = [], asyncio.ensure_future(goes_on())
        async for result in stream_async(runtime.submit_soon, sizes, how):
            runtime.returned += 1
            found.append(result["number"] if how.ordered else result[1]["number"])
        workers.cancel()
        return found

    return asyncio.run(go())


@pytest.mark.parametrize("run", [numbers, numbers_async])
@given(
    sizes=st.lists(st.integers(0, 5), max_size=60),
    waits=st.dictionaries(st.integers(0, 5), st.integers(0, 30), max_size=4),
    concurrency=st.integers(1, 4),
    ordered=st.booleans(),
    ahead=st.booleans(),
)
def test_all_results_within_bounds(run: Any, sizes: list[int], waits: dict[int, int], concurrency: int, ordered: bool, ahead: bool) -> None:
    most = AHEAD * concurrency if ahead else concurrency
    runtime = Runtime(waits, concurrency=concurrency)
    found = run(runtime, sizes, terms(concurrency, ordered=ordered, ahead=ahead))
    assert (found if ordered else sorted(found)) == list(range(len(sizes)))
    assert runtime.submitted == sizes
    assert runtime.most_running <= concurrency
    assert runtime.most_open <= most + 1  # the one that is handed out counts until its reader has come back


@pytest.mark.parametrize("run", [numbers, numbers_async])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_requests_with_plans_overtake_one_without(run: Any, ordered: bool, ahead: bool) -> None:
    """Its plan comes when ten others have ended. Where a number of requests was asked for, a stream in order stops before."""
    runtime = Runtime({1: 10}, concurrency=2)
    found = run(runtime, [0, 1, *[0] * 20], terms(2, ordered=ordered, ahead=ahead))
    assert sorted(found) == list(range(22))
    overtaken = runtime.ended.index(1)
    assert overtaken >= 10 if ahead or not ordered else overtaken <= 3
