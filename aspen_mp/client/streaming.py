"""`Model.map`: an iterable streamed through the runtime, with no more requests in flight than was asked for."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from operator import length_hint
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from aspen_mp.client.future import too_late
from aspen_mp.shm.errors import RuntimeLost

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future as Future_

    from rich.progress import Progress as Bar

WAITING: Final = 2
"""Requests in flight for each instance of the model, unless told otherwise: one that executes and one that follows at once."""

Results = dict[str, Any]
Progress = bool | Callable[[int, int | None], None]
"""True: a bar on standard error, where that is a terminal. A function: called as ``progress(done, total)`` after each item; `total` is
None where the iterable does not say."""


class Submit(Protocol):
    """Starts a request with what the iterable gave."""

    def __call__(self, item: Any) -> Future_[Results]: ...


class SubmitAsync(Protocol):
    """The same for an event loop."""

    async def __call__(self, item: Any) -> Future_[Results]: ...


class _Item:
    """What the iterable gave, or how it failed (`source`)."""

    __slots__ = ("deadline", "future", "index", "late", "source")

    def __init__(self, index: int, future: Future_[Results], deadline: float | None, source: bool = False) -> None:
        self.index = index
        self.future = future
        self.deadline = deadline
        self.source = source
        self.late = False

    @property
    def left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def error(self) -> BaseException | None:
        return self.future.exception(0)


def _failed(error: BaseException) -> Future_[Results]:
    future: Future_[Results] = Future()
    future.set_exception(error)
    return future


def _noted(error: BaseException, item: _Item) -> BaseException:
    """Says which item it was: whoever maps thousands has to know."""
    if not item.source:
        note = f"item {item.index} of the iterable"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return error


R = TypeVar("R")


class Stream(Iterator[R]):
    """The iterator that `Model.map` returns. `close` (or the end of a ``with`` block, or forgetting it) cancels what is in flight.

    Any thread may take results, also several in turn; each gets its own.
    """

    def __init__(
        self,
        submit: Submit,
        items: Iterable[Any],
        *,
        model: str,
        concurrency: int,
        ordered: bool,
        timeout: float | None,
        return_exceptions: bool,
        progress: Progress,
    ) -> None:
        self._submit = submit
        self._model = model
        self._items: Iterator[Any] | None = iter(items)
        self._concurrency = concurrency
        self._ordered = ordered
        self._timeout = timeout
        self._keep_errors = return_exceptions
        self._flying: deque[_Item] = deque()
        self._done: SimpleQueue[_Item] = SimpleQueue()
        self._next = 0
        self._lock = threading.Lock()
        self._closed = False
        self._progress = _Progress.start(progress, length_hint(items) or None)

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
            if not self._may_take:
                break
            self._take()
            taken = True
        if not self._flying:
            raise StopIteration
        item = self._wait()
        if self._closed:
            raise StopIteration
        error = item.error()
        if error is not None and (item.source or not self._keep_errors or isinstance(error, RuntimeLost)):
            raise _noted(error, item)
        self._progress.count()
        result = item.future.result() if error is None else _noted(error, item)
        return cast("R", result if self._ordered else (item.index, result))

    # ---- taking

    @property
    def _may_take(self) -> bool:
        return self._items is not None and len(self._flying) < self._concurrency and not self._closed

    def _take(self) -> None:
        assert self._items is not None
        source = False
        try:
            value = next(self._items)
        except StopIteration:
            self._items = None
            return
        except Exception as error:  # comes after the results of the items before it
            self._items = None
            future, source = _failed(error), True
        else:
            try:
                future = self._submit(value)
            except Exception as error:
                future = _failed(error)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        item = _Item(self._next, future, deadline, source)
        self._next += 1
        self._flying.append(item)
        if not self._ordered and not source:
            tell = self._done.put  # not this object, which is to be closed when it is forgotten
            future.add_done_callback(lambda _: None if item.late else tell(item))
        if self._closed:  # by another thread, which has not seen this one
            future.cancel()

    # ---- waiting

    @property
    def _ready(self) -> bool:
        if self._ordered:
            return bool(self._flying) and self._flying[0].future.done()
        return not self._done.empty()

    def _wait(self) -> _Item:
        return self._first() if self._ordered else self._any()

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
        if item.future.cancel():
            return _Item(item.index, _failed(too_late(self._model, self._timeout)), None)
        return item

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


async def stream_async(
    submit: SubmitAsync,
    items: Iterable[Any] | AsyncIterable[Any],
    *,
    model: str,
    concurrency: int,
    ordered: bool,
    timeout: float | None,
    return_exceptions: bool,
    progress: Progress,
) -> AsyncGenerator[Any, None]:
    """`Stream` for asyncio: an item is taken as soon as a slot is free, whatever the consumer waits for."""
    import asyncio

    source = _AsyncSource(items)
    shown = _Progress.start(progress, None if isinstance(items, AsyncIterable) else length_hint(items) or None)
    flying: deque[_Item] = deque()
    waits: dict[asyncio.Future[Results], _Item] = {}
    taking: asyncio.Future[Any] | None = None
    numbers = itertools.count()
    failure: BaseException | None = None
    more = True
    try:
        while more or flying:
            if more and taking is None and len(flying) < concurrency:
                taking = asyncio.ensure_future(source.take())
            ready = next((item for item in (itertools.islice(flying, 1) if ordered else flying) if item.future.done()), None)
            if ready is None:
                left = flying[0].left if flying else None
                pending: list[asyncio.Future[Any]] = [*waits, *([taking] if taking is not None else [])]
                await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for done in [future for future in waits if future.done()]:
                    del waits[done]
                if flying and flying[0].left == 0.0 and not flying[0].future.done():
                    late = flying[0]
                    late.future.cancel()
                    flying[0] = _Item(late.index, _failed(too_late(model, timeout)), None)
            elif taking is not None:
                await asyncio.sleep(0)  # an item that is there is taken before a result is handed out
            if taking is not None and taking.done():
                done_taking, taking = taking, None
                try:
                    value = done_taking.result()
                except StopAsyncIteration:
                    more = False
                except Exception as error:
                    more, failure = False, error
                else:
                    try:
                        future = await submit(value)
                    except Exception as error:
                        future = _failed(error)
                    item = _Item(next(numbers), future, None if timeout is None else time.monotonic() + timeout)
                    flying.append(item)
                    wrapped = asyncio.wrap_future(future)
                    wrapped.add_done_callback(_seen)
                    waits[wrapped] = item
            if ready is None:
                continue
            flying.remove(ready)
            outcome = ready.error()
            if outcome is not None and (not return_exceptions or isinstance(outcome, RuntimeLost)):
                raise _noted(outcome, ready)
            shown.count()
            result = ready.future.result() if outcome is None else _noted(outcome, ready)
            yield result if ordered else (ready.index, result)
        if failure is not None:
            raise failure
    finally:
        for item in flying:
            item.future.cancel()
        if taking is not None:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        shown.close()


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


class _Progress:
    """How many items are done, for whoever wants to see it."""

    def __init__(self, tell: Callable[[int, int | None], None] | None, total: int | None, bar: Bar | None = None) -> None:
        self._tell = tell
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
            return cls(None, total)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=console)
        task = bar.add_task("", total=total, rate="")
        bar.start()
        began = time.monotonic()

        def tell(done: int, total: int | None) -> None:
            bar.update(task, completed=done, rate=f"{done / max(1e-9, time.monotonic() - began):.1f}/s")

        return cls(tell, total, bar)

    def count(self) -> None:
        self._n += 1
        if self._tell is not None:
            self._tell(self._n, self._total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
