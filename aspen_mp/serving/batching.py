"""Requests of one model that are run together: their rows are joined along the first dimension, and the results are cut apart again.

Only requests that differ in nothing but their number of rows are joined. A request that cannot be joined with any other is run by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import aspen_mp
from aspen_mp.serving.protocol.inference import Call
from aspen_mp.serving.repository.disk import Batching
from aspen_mp.serving.telemetry import steps
from aspen_mp.serving.telemetry.ledger import Field, Row
from aspen_mp.shm.errors import QueueFull, RequestError
from aspen_mp.system import clock

Results = Mapping[str, npt.NDArray[Any]]


_LARGE: Final = 4 << 20
"""Bytes of a batch that are joined by a thread."""


@dataclass(slots=True)
class _Batch:
    """Requests that wait to be run together."""

    calls: list[tuple[Call, asyncio.Future[Results]]] = field(default_factory=list)
    rows: int = 0
    since: int = field(default_factory=lambda: clock.monotonic_ns())
    traces: list[steps.StepTrace] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


def _joined(calls: list[tuple[Call, asyncio.Future[Results]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate([call.feeds[name] for call, _ in calls]) for name in calls[0][0].feeds}


class Batcher:
    """Joins requests of a model, and counts them in `counts`. Everything happens on the event loop.

    A batch goes when it is full, or `max_delay_ms` after its first request. If a batch fails with RequestError, its requests are run one
    by one, so that one bad request does not fail the others.
    """

    def __init__(self, model: aspen_mp.Model, options: Batching, counts: Row) -> None:
        self._model = model
        self._counts = counts
        self._options = options
        self._waiting: dict[Hashable, _Batch] = {}
        self._running: set[asyncio.Task[None]] = set()
        first = {info.shape[0] if info.shape else 0 for info in (*model.inputs, *model.outputs) if not info.optional}
        symbols = {dim for dim in first if not isinstance(dim, int)}
        self._joins = len(first) == 1 and len(symbols) == 1 and None not in symbols
        """Whether inputs and outputs all have the same open first dimension: then rows do not depend on where they lie."""

    def takes(self, call: Call) -> bool:
        """Whether a request can be joined with others: no deadline of its own, no sequence, and fewer rows than a full batch."""
        rows = {array.shape[0] if array.ndim else 0 for array in call.feeds.values()}
        return (
            self._joins and call.frame is None and call.deadline_ms is None and len(rows) == 1 and 0 < max(rows) < self._options.max_batch
        )

    async def run(self, call: Call, priority: str, deadline_ms: float | None) -> Results:
        """The results of a request that `takes` has accepted. Errors are those of `Model.run_async`."""
        rows = next(iter(call.feeds.values())).shape[0]
        forms = tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in call.feeds.items()))
        key = forms, tuple(call.outputs or ()), priority, deadline_ms
        batch = self._waiting.get(key)
        if batch is not None and batch.rows + rows > self._options.max_batch:
            self._go(key)
            batch = None
        loop = asyncio.get_running_loop()
        if batch is None:
            batch = self._waiting[key] = _Batch()
            batch.timer = loop.call_later(self._options.max_delay_ms / 1000, self._go, key)
        future: asyncio.Future[Results] = loop.create_future()
        batch.calls.append((call, future))
        batch.rows += rows
        if (trace := steps.CURRENT.get()) is not None:
            trace.enter(steps.QUEUE)
            batch.traces.append(trace)
        if batch.rows == self._options.max_batch:
            self._go(key)
        return await future

    def _go(self, key: Any) -> None:
        batch = self._waiting.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._run(batch, key[2], key[3]))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, batch: _Batch, priority: str, deadline_ms: float | None) -> None:
        calls = [(call, future) for call, future in batch.calls if not future.done()]  # of some the client has gone
        if not calls:
            return
        self._counts.add(Field.QUEUED_NS, clock.monotonic_ns() - batch.since)
        for trace in batch.traces:
            trace.enter(steps.RUN, **steps.of_batch(batch.rows, len(batch.calls)))
        try:
            await self._run_joined(calls, priority, deadline_ms)
        except RequestError as error:
            if isinstance(error, QueueFull | TimeoutError):
                self._fail(calls, error)  # one by one they would take only longer
                return
            await asyncio.gather(*(self._run_alone(call, future, priority, deadline_ms) for call, future in calls))
        except BaseException as error:
            self._fail(calls, error)

    def _fail(self, calls: list[tuple[Call, asyncio.Future[Results]]], error: BaseException) -> None:
        for _, future in calls:
            if not future.done():
                future.set_exception(error)

    async def _run_joined(self, calls: list[tuple[Call, asyncio.Future[Results]]], priority: str, deadline_ms: float | None) -> None:
        first = calls[0][0]
        if sum(array.nbytes for call, _ in calls for array in call.feeds.values()) < _LARGE:
            feeds = _joined(calls)
        else:
            feeds = await asyncio.to_thread(_joined, calls)
        results = await self._run_once(feeds, first.outputs, priority, deadline_ms)
        at = 0
        for call, future in calls:
            end = at + next(iter(call.feeds.values())).shape[0]
            if not future.done():
                future.set_result({name: result[at:end] for name, result in results.items()})
            at = end

    async def _run_alone(self, call: Call, future: asyncio.Future[Results], priority: str, deadline_ms: float | None) -> None:
        if future.done():
            return
        try:
            results = await self._run_once(call.feeds, call.outputs, priority, deadline_ms)
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(results)

    async def _run_once(
        self, feeds: dict[str, npt.NDArray[Any]], outputs: list[str] | None, priority: str, deadline_ms: float | None
    ) -> Results:
        began = clock.monotonic_ns()
        results = await self._model.run_async(feeds, outputs, priority=priority, deadline_ms=deadline_ms, copy=False)
        self._counts.executed(next(iter(feeds.values())).shape[0], clock.monotonic_ns() - began)
        return results
