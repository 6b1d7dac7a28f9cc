"""`Model.map`: an iterable streamed through the runtime, with no more requests in flight than was asked for."""

from __future__ import annotations

import itertools
import reprlib
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import timedelta
from operator import length_hint
from queue import Empty
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aspen_mp.client.future import too_late
from aspen_mp.shm.errors import RequestError, RuntimeLost
from aspen_mp.system import clock, threads

if TYPE_CHECKING:
    import asyncio

    from rich.progress import Progress as Bar

WAITING: Final = 2
"""Requests in flight for each instance of the model, unless told otherwise: one that executes and one that follows at once."""

AHEAD: Final = 8
"""While some requests wait for a plan, so many times as many are in flight at most, unless told otherwise: others have plans."""

Results = dict[str, Any]
MOST_ERRORS: Final = 1000
"""Errors of an iterable in a row after which it counts as broken, and its error ends the stream in any case."""
LINE_S: Final = 10.0
"""Seconds between two lines of progress where there is no terminal."""
Progress = bool | Callable[[int, int | None], None]
"""True: a bar on standard error, or lines where that is no terminal. A function: called as ``progress(done, total)`` after each item;
`total` is None where nobody says."""


Submit = Callable[[Any], "Future[Results]"]
"""Starts a request with what the iterable gave."""
SubmitAsync = Callable[[Any], Awaitable["Future[Results]"]]
"""The same for an event loop."""


@dataclass(slots=True, eq=False)
class _Item:
    """What the iterable gave, or how it failed. `source`: the stream ends with this error of the iterable. `watched`: the stream is told
    when the future is done."""

    index: int
    key: Any
    future: Future[Results]
    deadline: float | None
    source: bool = False
    late: bool = False
    watched: bool = False

    @property
    def planning(self) -> bool:
        """Whether the request waits for a plan."""
        return getattr(self.future, "planning", False) and not self.future.done()

    @property
    def left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - clock.monotonic())

    def error(self) -> BaseException | None:
        return self.future.exception(0)


def _failed(error: BaseException) -> Future[Results]:
    future: Future[Results] = Future()
    future.set_exception(error)
    return future


def _noted(error: BaseException, item: _Item) -> BaseException:
    """Says which item it was: whoever maps thousands has to know."""
    note = f"item {item.index} of the iterable" + ("" if item.key is None else f", key {reprlib.repr(item.key)}")
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


@dataclass(frozen=True, slots=True)
class Terms:
    """How items become results, as `Model.map` describes it. `model`: its name, for errors; `timeout`: seconds; `keys`: items are pairs;
    `ahead`: requests that wait for a plan do not count for `concurrency`."""

    model: str
    concurrency: int
    ordered: bool
    timeout: float | None
    return_exceptions: bool
    progress: Progress
    total: int | None = None
    keys: bool = False
    ahead: bool = False

    def has_room(self, flying: Collection[_Item]) -> bool:
        """Whether another item may be taken beside these, which have not been returned."""
        if len(flying) < self.concurrency:
            return True
        if not self.ahead or len(flying) >= AHEAD * self.concurrency or not any(item.planning for item in flying):
            return False
        return sum(not item.future.done() and not item.planning for item in flying) < self.concurrency

    def shown(self, items: Any) -> _Progress:
        """Progress over `items`."""
        hint = self.total is None and not isinstance(items, AsyncIterable)
        return _Progress.start(self.progress, (length_hint(items) or None) if hint else self.total)

    def pair(self, value: Any) -> tuple[Any, Any]:
        """The key of what the iterable gave, None without keys, and the inputs."""
        if not self.keys:
            return None, value
        if isinstance(value, tuple) and len(value) == 2:
            return value
        raise RequestError(f"model {self.model!r}: keys=True takes pairs (key, inputs), not a {type(value).__name__} as an item")

    def ends(self, errors: int) -> bool:
        """Whether the stream ends where the iterable has failed so many times in a row. It may go on: not all iterators are generators."""
        return not self.return_exceptions or errors >= MOST_ERRORS

    def deadline(self) -> float | None:
        """When the result of an item that is taken now is late, by `time.monotonic`."""
        return None if self.timeout is None else clock.monotonic() + self.timeout

    def late(self, item: _Item) -> _Item:
        """The item, which has failed because its result did not come in time."""
        return _Item(item.index, item.key, _failed(too_late(self.model, self.timeout)), None)

    def result(self, item: _Item) -> Any:
        """The item's outputs, or its error in their place; with its key, or with its index where results come in any order. Raises the
        error that ends everything."""
        error = item.error()
        if error is not None:
            _noted(error, item)
            if item.source or not self.return_exceptions or isinstance(error, RuntimeLost):
                raise error
        outcome = item.future.result() if error is None else error
        if self.keys:
            return item.key, outcome
        return outcome if self.ordered else (item.index, outcome)


R = TypeVar("R")


class Stream(Iterator[R]):
    """The iterator that `Model.map` returns.

    `close`, the end of a ``with`` block, or forgetting it cancels what is in flight. Any thread may take results, and several may take
    turns; each result goes to one of them.
    """

    def __init__(self, submit: Submit, items: Iterable[Any], terms: Terms) -> None:
        self._submit = submit
        self._terms = terms
        self._items: Iterator[Any] | None = iter(items)
        self._flying: deque[_Item] = deque()
        self._done: threads.SimpleQueue[_Item] = threads.SimpleQueue()  # where results come in any order
        self._ended: threads.SimpleQueue[None] = threads.SimpleQueue()  # where they come in order and the first one waits for a plan
        self._next = 0
        self._lock = threads.Lock()
        self._closed = False
        self._errors = 0
        self._progress = terms.shown(items)

    def __iter__(self) -> Stream[R]:
        return self

    def __next__(self) -> R:
        with self._lock:
            if self._closed:
                raise StopIteration
            try:
                return self._step()
            except BaseException:  # the end as well
                self.close()
                raise

    def _step(self) -> R:
        taken = False
        while True:
            # One item is taken for each result, so that the workers do not run dry; more only while there is nothing to return.
            if self._ready and (taken or not self._may_take):
                break
            if self._may_take:
                self._take()
                taken = True
            elif not self._await_room():
                break
        if not self._flying:
            raise StopIteration
        item = self._wait()
        if self._closed:
            raise StopIteration
        result = self._terms.result(item)
        self._progress.count()
        return cast("R", result)

    # ---- taking

    @property
    def _may_take(self) -> bool:
        return self._items is not None and not self._closed and self._terms.has_room(self._flying)

    def _take(self) -> None:
        assert self._items is not None
        source, key = False, None
        try:
            value = next(self._items)
        except StopIteration:
            self._items = None
            return
        except Exception as error:
            self._errors += 1
            future, source = _failed(error), self._terms.ends(self._errors)
            if source:  # comes after the results of the items before it
                self._items = None
        else:
            self._errors = 0
            try:
                key, value = self._terms.pair(value)
                future = self._submit(value)
            except Exception as error:
                future = _failed(error)
        item = _Item(self._next, key, future, self._terms.deadline(), source)
        self._next += 1
        self._flying.append(item)
        if not self._terms.ordered and not source:
            tell = self._done.put  # not this object, which is to be closed when it is forgotten
            future.add_done_callback(lambda _: None if item.late else tell(item))
        if self._closed:  # by another thread, which has not seen this one
            future.cancel()

    # ---- waiting

    def _await_room(self) -> bool:
        """Wait until a request has ended, where the one whose turn it is waits for a plan: there may be room then. False where there is
        nothing to take, or the next result is what to wait for."""
        if self._items is None or not self._terms.ordered or not self._terms.ahead or not self._flying[0].planning:
            return False
        tell = self._ended.put
        for item in self._flying:
            if not item.watched:
                item.watched = True
                item.future.add_done_callback(lambda _: tell(None))
        try:
            self._ended.get(timeout=self._flying[0].left)
        except Empty:
            return False
        return True

    @property
    def _ready(self) -> bool:
        if self._terms.ordered:
            return bool(self._flying) and self._flying[0].future.done()
        return not self._done.empty()

    def _wait(self) -> _Item:
        return self._first() if self._terms.ordered else self._any()

    def _first(self) -> _Item:
        item = self._flying[0]
        try:
            item.future.exception(item.left)
        except TimeoutError:
            item = self._give_up(item)
        except CancelledError:
            pass  # closed by another thread
        self._flying.popleft()
        return item

    def _any(self) -> _Item:
        waits = [item for item in self._flying if not item.source]
        if not waits:  # the iterable's own error, after everything else
            return self._flying.popleft()
        try:
            item = self._done.get(timeout=waits[0].left)  # the oldest is the first to be late
        except Empty:
            oldest = waits[0]
            self._flying.remove(oldest)
            return self._give_up(oldest)
        if item not in self._flying:
            return self._any()  # given up before it came
        self._flying.remove(item)
        return item

    def _give_up(self, item: _Item) -> _Item:
        """It takes too long; unless its result comes at this very moment."""
        item.late = True
        return self._terms.late(item) if item.future.cancel() else item

    # ---- the end

    def close(self) -> None:
        """Cancels what is in flight; there are no more results. Who waits for one in another thread gets StopIteration."""
        if self._closed:
            return
        self._closed = True
        for item in list(self._flying):
            item.future.cancel()
        self._progress.close()

    def __enter__(self) -> Stream[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_progress"):
            self.close()


async def stream_async(submit: SubmitAsync, items: Iterable[Any] | AsyncIterable[Any], terms: Terms) -> AsyncGenerator[Any, None]:
    """`Stream` for asyncio: an item is taken as soon as a slot is free, whatever the consumer waits for."""
    flight = _Flight(submit, _AsyncSource(items), terms)
    shown = terms.shown(items)
    try:
        while flight.more or flight.items:
            ready = await flight.step()
            if ready is None:
                continue
            result = terms.result(ready)
            shown.count()
            yield result
        if flight.failure is not None:
            raise flight.failure
    finally:
        await flight.end()
        shown.close()


class _Flight:
    """The requests of `stream_async`, and the taking of the next item.

    `items`: in the order in which they were taken. `more`: whether there may be another one; `failure`: why the iterable has none.
    """

    def __init__(self, submit: SubmitAsync, source: _AsyncSource, terms: Terms) -> None:
        self._submit = submit
        self._source = source
        self._terms = terms
        self._waits: dict[asyncio.Future[Results], _Item] = {}
        self._taking: asyncio.Future[Any] | None = None
        self._next = 0
        self._errors = 0
        self.items: deque[_Item] = deque()
        self.more = True
        self.failure: BaseException | None = None

    async def step(self) -> _Item | None:
        """Waits for whatever comes first, and takes an item that is there. Returns the one whose turn it is, if it was done before."""
        import asyncio

        if self.more and self._taking is None and self._terms.has_room(self.items):
            self._taking = asyncio.ensure_future(self._source.take())
        turn = itertools.islice(self.items, 1) if self._terms.ordered else self.items
        ready = next((item for item in turn if item.future.done()), None)
        if ready is None:
            await self._wait()
        elif self._taking is not None:
            await asyncio.sleep(0)  # an item that is there is taken before a result is handed out
        if self._taking is not None and self._taking.done():
            taken, self._taking = self._taking, None
            await self._begin(taken)
        if ready is not None:
            self.items.remove(ready)
        return ready

    async def _wait(self) -> None:
        import asyncio

        pending: list[asyncio.Future[Any]] = [*self._waits, *([self._taking] if self._taking is not None else [])]
        left = self.items[0].left if self.items else None
        await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for done in [future for future in self._waits if future.done()]:
            del self._waits[done]
        if self.items and self.items[0].left == 0.0 and not self.items[0].future.done():
            late = self.items[0]
            late.future.cancel()
            self.items[0] = self._terms.late(late)

    async def _begin(self, taken: asyncio.Future[Any]) -> None:
        """Starts a request with what was taken."""
        import asyncio

        key = None
        try:
            value = taken.result()
        except StopAsyncIteration:
            self.more = False
            return
        except Exception as error:
            self._errors += 1
            future = _failed(error)
            if self._terms.ends(self._errors):
                self.more, self.failure = False, _noted(error, _Item(self._next, key, future, None))
                return
        else:
            self._errors = 0
            try:
                key, value = self._terms.pair(value)
                future = await self._submit(value)
            except Exception as error:
                future = _failed(error)
        item = _Item(self._next, key, future, self._terms.deadline())
        self._next += 1
        self.items.append(item)
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(_seen)
        self._waits[wrapped] = item

    async def end(self) -> None:
        """Cancels what is in flight."""
        import asyncio

        for item in self.items:
            item.future.cancel()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)


def _seen(future: asyncio.Future[Any]) -> None:
    """Errors are read from the request's own future; asyncio need not complain that nobody reads this one's."""
    if not future.cancelled():
        future.exception()


class _AsyncSource:
    """One way to ask iterators of both kinds; StopAsyncIteration at the end."""

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._async = aiter(items) if isinstance(items, AsyncIterable) else None
        self._plain = None if isinstance(items, AsyncIterable) else iter(items)

    async def take(self) -> Any:
        if self._async is not None:
            return await anext(self._async)
        for value in cast("Iterator[Any]", self._plain):
            return value
        raise StopAsyncIteration


class _Lines:
    """Progress as a line every `LINE_S` seconds, and one at the end: for logs."""

    def __init__(self) -> None:
        self._began = self._last = clock.monotonic()
        self._text = ""

    def tell(self, done: int, total: int | None) -> None:
        now = clock.monotonic()
        rate = done / max(1e-9, now - self._began)
        left = f", {timedelta(seconds=round((total - done) / rate))} left" if total is not None and done < total else ""
        self._text = f"{done}{'' if total is None else f' of {total}'} items, {rate:.1f}/s{left}"
        if now - self._last >= LINE_S:
            self._last = now
            self.stop()

    def stop(self) -> None:
        """Prints what has not been printed yet."""
        if self._text:
            print(self._text, file=sys.stderr, flush=True)
            self._text = ""


class _Progress:
    """How many items are done, for whoever wants to see it."""

    def __init__(self, tell: Callable[[int, int | None], None] | None, total: int | None, bar: Bar | _Lines | None = None) -> None:
        """`tell`: called after each item; None: `bar.tell`, if there is one."""
        self._tell = bar.tell if isinstance(bar, _Lines) else tell
        self._total = total
        self._bar = bar
        self._n = 0

    @classmethod
    def start(cls, wanted: Progress, total: int | None) -> _Progress:
        if callable(wanted):
            return cls(wanted, total)
        if not wanted:
            return cls(None, total)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            return cls(None, total, _Lines())
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=console)
        task = bar.add_task("", total=total, rate="")
        bar.start()
        began = clock.monotonic()

        def tell(done: int, total: int | None) -> None:
            bar.update(task, completed=done, rate=f"{done / max(1e-9, clock.monotonic() - began):.1f}/s")

        return cls(tell, total, bar)

    def count(self) -> None:
        self._n += 1
        if self._tell is not None:
            self._tell(self._n, self._total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
