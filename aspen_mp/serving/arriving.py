"""Requests that run while their bodies come: rows of a large tensor that have come start parts of the model.

A body is read into an array as ever. If it comes slowly, beside the time that the model takes, rows of the array are written into a request
of `Model.begin` as well. Whatever goes wrong with that request before the body is whole, an ordinary one takes the array.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, Final

import numpy.typing as npt

import aspen_mp
from aspen_mp.client.loop_results import arrival
from aspen_mp.client.streams.arriving_tensors import BANDS, LEAST_ROWS
from aspen_mp.client.streams.changed_inputs import image_axes
from aspen_mp.serving.telemetry.ledger import Field, Row
from aspen_mp.system import clock

LARGE: Final = 1 << 20
"""Bytes of a tensor that is worth it."""
LEAST_NS: Final = 5_000_000
"""The least time of the rest of a body …"""
PART: Final = 0.25
"""… which is at least this part of the model's time."""
MOST_FORMS: Final = 16
"""Most shapes of a version that are known at a time."""
LATEST: Final = 8
"""Ordinary requests whose shortest time is the model's."""
TRIES: Final = 3
"""Requests in pieces that were not faster than ordinary ones, until bodies run whole …"""
REST: Final = 32
"""… and slow bodies that run whole then, before the next try."""

Arrays = Mapping[str, npt.NDArray[Any]]
Results = Mapping[str, npt.NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]


class _Form:
    """Requests whose inputs have the same shapes.

    Attributes:
        runs: Nanoseconds that the latest ordinary ones took.
        rests: Nanoseconds that the latest ones in pieces took from the last byte on.
        plan: Whether there is a plan for pieces; None: not yet.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.runs: deque[int] = deque(maxlen=LATEST)
        self.rests: deque[int] = deque(maxlen=TRIES)
        self.plan: bool | None = None
        self._passed_over = 0

    def pays(self) -> bool:
        """Whether requests in pieces are faster, as far as is known. Asked once for each slow body."""
        if len(self.rests) < TRIES or min(self.rests) < min(self.runs):
            return True
        self._passed_over += 1
        if self._passed_over % REST == 0:
            self.rests.clear()
        return False


class Arrivals:
    """The slow bodies of one version. All of this happens on the event loop, except that threads plan and write rows."""

    def __init__(self, model: aspen_mp.Model, counts: Row, priority: str) -> None:
        """`priority`: of requests that name none."""
        self.model = model
        self.counts = counts
        self._priority = priority
        self.begun = 0
        """Requests in pieces that have begun and not ended: each has memory for all activations."""
        self._home = ""
        self._forms: OrderedDict[tuple[tuple[str, tuple[int, ...]], ...], _Form] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._planning = False

    def feed(
        self, feeds: Arrays, binary: Mapping[str, memoryview], outputs: Sequence[str] | None, priority: str | None, come: int
    ) -> Feed | None:
        """Return the watcher of a body whose tensors are about to be read. None where the request may not run before the body is whole.

        `binary`: by input, the bytes of arrays in `feeds` that are read, one after the other. All other arrays are there. `come`: how many
        of them are at hand."""
        large = [name for name, piece in binary.items() if len(piece) >= LARGE]
        if len(large) != 1 or any(array.dtype.kind in "Ob" for array in feeds.values()):
            return None
        rows = _Rows(large[0], feeds[large[0]])
        if rows.length < 2 * LEAST_ROWS:
            return None
        return Feed(self, self._form(feeds), feeds, binary, rows, (outputs, priority or self._priority), come)

    def _form(self, feeds: Arrays) -> _Form:
        """Return what is known of requests with such inputs."""
        if self.model.home != self._home:  # the runtime was lost with all plans
            self._home = self.model.home
            for each in self._forms.values():
                each.plan = None
        shapes = {name: array.shape for name, array in feeds.items()}
        key = tuple(shapes.items())
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _Form(shapes)
            if len(self._forms) > MOST_FORMS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(key)
        return form

    @property
    def pool(self) -> Executor:
        """Threads that do what may have to wait for the planner process."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.model.instances + 1, thread_name_prefix="aspen-mp arriving")
        return self._pool

    def may_begin(self, form: _Form) -> bool:
        """Whether a request in pieces can begin now. If it lacks the plan only, that is made."""
        if form.plan is None and not self._planning:
            with suppress(RuntimeError):  # there is no thread
                planned = asyncio.get_running_loop().run_in_executor(self.pool, self.model.prepare_arriving, form.shapes)
                self._planning = True
                planned.add_done_callback(partial(self._note_plan, form))
        return bool(form.plan) and self.begun < self.model.instances

    def _note_plan(self, form: _Form, planned: asyncio.Future[bool]) -> None:
        self._planning = False
        if not planned.cancelled():
            form.plan = planned.exception() is None and planned.result()

    def close(self) -> None:
        """The version is served no more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class _Rows:
    """How a tensor's rows lie among its bytes. A row is whole when its part in the last of the blocks in front of its axis is there."""

    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        self.name = name
        self.array = array
        self.axis = image_axes(array.shape)[0]
        self.length = array.shape[self.axis] if array.ndim else 1
        self._part = prod(array.shape[self.axis + 1 :]) * array.itemsize
        self._before = array.nbytes - self.length * self._part

    def whole(self, nbytes: int) -> int:
        """How many are there with the first bytes of the tensor."""
        return min(max(nbytes - self._before, 0) // self._part, self.length)

    def between(self, first: int, last: int) -> npt.NDArray[Any]:
        return self.array[(*(slice(None),) * self.axis, slice(first, last))]


class Feed:
    """One request whose body comes. `body.Body` tells it what has come, and when the request has ended."""

    def __init__(
        self,
        arrivals: Arrivals,
        form: _Form,
        feeds: Arrays,
        binary: Mapping[str, memoryview],
        rows: _Rows,
        terms: tuple[Sequence[str] | None, str],
        come: int,
    ) -> None:
        """`terms`: names of outputs, and the priority. Else as of `Arrivals.feed`."""
        self._arrivals = arrivals
        self._form = form
        self._feeds = feeds
        self._rows = rows
        self._terms = terms
        ends = dict(zip(binary, accumulate(map(len, binary.values())), strict=True))
        self._nbytes = sum(map(len, binary.values()))
        self._start = ends[rows.name] - len(binary[rows.name])
        self._others = {name: ends.get(name, 0) for name in feeds if name != rows.name}
        """Inputs that have not been written, and how many bytes have come when they are there."""
        self._come = self._at_first = come
        self._began = self._latest = clock.monotonic_ns()
        self._pause = 0  # the longest time without bytes: whatever was its reason, it says nothing of the link
        self._pays: bool | None = None
        self._written = 0
        self._whole = self._over = False
        self._deadline_ms: float | None = None
        self._more = asyncio.Event()
        self._task: asyncio.Task[bool] | None = None
        self._request: aspen_mp.ArrivingRequest | None = None

    # ---- while the body comes

    def note(self, come: int) -> None:
        """Take note of how many bytes of tensors have come. They lie in their arrays."""
        self._come = come
        if self._task is not None:
            self._more.set()
        elif self._is_slow() and self._arrivals.may_begin(self._form):
            self._arrivals.begun += 1
            self._task = asyncio.get_running_loop().create_task(self._feed())

    def _is_slow(self) -> bool:
        """Whether rows come, and the rest takes so long that it is worth it."""
        now = clock.monotonic_ns()
        self._pause = max(self._pause, now - self._latest)
        self._latest = now
        if not self._form.runs or self._come == self._at_first or not self._rows.whole(self._come - self._start):
            return False
        rest_ns = (now - self._began - self._pause) * (self._nbytes - self._come) / (self._come - self._at_first)
        if rest_ns < max(LEAST_NS, PART * min(self._form.runs)):
            return False
        if self._pays is None:
            self._pays = self._form.pays()
        return self._pays

    async def _feed(self) -> bool:
        """Write rows until all are written. False where that has failed."""
        loop, pool = asyncio.get_running_loop(), self._arrivals.pool
        least = max(LEAST_ROWS, self._rows.length // BANDS)
        try:
            await loop.run_in_executor(pool, self._begin)
            while self._written < self._rows.length:
                there, last = self._rows.whole(self._come - self._start), self._whole
                if not last:
                    there = min(there, self._rows.length - 1)  # the body may still turn out to be wrong
                if last or there - self._written >= least:
                    others = [name for name, end in self._others.items() if end <= self._come]
                    await loop.run_in_executor(pool, partial(self._write, others, there, last=last))
                else:
                    self._more.clear()
                    await self._more.wait()
        except Exception:  # an ordinary request takes its place, and says what is wrong
            return False
        return True

    def _begin(self) -> None:
        outputs, priority = self._terms
        self._request = self._arrivals.model.begin(self._form.shapes, outputs, priority=priority)
        if self._over:
            self._request.cancel()

    def _write(self, others: Sequence[str], there: int, *, last: bool) -> None:
        """Write inputs that are whole, and rows up to one. `last`: nothing else follows."""
        request = self._request
        assert request is not None
        if last and self._deadline_ms is not None:
            request.expire(self._deadline_ms)
        for name in others:
            del self._others[name]
            if self._feeds[name].size:
                request.write(name, self._feeds[name])
        if there > self._written:
            request.write(self._rows.name, self._rows.between(self._written, there), self._written, axis=self._rows.axis)
            self._written = there

    # ---- once it is whole

    async def results(self, deadline_ms: float | None) -> Results | None:
        """The results, or None where an ordinary request has to be run. Errors are those of `Model.run_async`."""
        if self._task is None or self._request is None:
            self.close()  # it may be about to begin
            return None
        began = clock.monotonic_ns()
        self._deadline_ms, self._whole = deadline_ms, True
        self._more.set()
        if not await self._task:
            self.close()
            return None
        results = await arrival(self._request.future, asyncio.get_running_loop())
        self._form.rests.append(clock.monotonic_ns() - began)
        self._arrivals.counts.add(Field.PIECES)
        return results

    def took(self, ns: int) -> None:
        """An ordinary request has been run instead."""
        self._form.runs.append(ns)

    def close(self) -> None:
        """The request has ended."""
        if self._task is None or self._over:
            return
        self._over = True
        self._arrivals.begun -= 1
        self._task.cancel()
        if self._request is not None:
            self._request.cancel()
