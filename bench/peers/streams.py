"""Requests that several runtimes serve at the same time, each at its own pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any


class Streams:
    """Requests one after the other on each of several runtimes, at the same time, however long each takes for one. `begin`: begins one, of
    each runtime."""

    def __init__(self, begin: Sequence[Callable[[], Future[Any]]]) -> None:
        self._begin = begin
        self._now: list[tuple[Future[Any], float] | None] = [None] * len(begin)
        self._ended = [0.0] * len(begin)
        self._served, self._seconds = [0] * len(begin), [0.0] * len(begin)

    def run(self) -> Any:
        """Until each has ended a request, the others going on meanwhile; what the last one gave. Their last requests go on after that."""
        missing = set(range(len(self._begin)))
        found = None
        for k in missing:
            self._go_on(k)
        while missing:
            wait([now[0] for now in self._now if now], return_when=FIRST_COMPLETED)
            for k, now in enumerate(self._now):
                if now and now[0].done():
                    found = self._end(k, *now)
                    missing.discard(k)
                    if missing:
                        self._go_on(k)
        return found

    def served(self) -> float:
        """Requests so far; one that is not over counts by its time, as a share of what they take on average."""
        now = time.perf_counter()
        parts = [
            min((now - at[1]) * n / seconds, 1.0) if at and n else 0.0
            for at, n, seconds in zip(self._now, self._served, self._seconds, strict=True)
        ]
        return sum(self._served) + sum(parts)

    def _go_on(self, k: int) -> None:
        if self._now[k] is None:
            self._ended[k] = 0.0
            begun, future = time.perf_counter(), self._begin[k]()
            self._now[k] = future, begun
            future.add_done_callback(lambda _: self._ends(k))

    def _ends(self, k: int) -> None:
        self._ended[k] = time.perf_counter()

    def _end(self, k: int, future: Future[Any], begun: float) -> Any:
        found = future.result()
        self._now[k] = None
        self._served[k] += 1
        self._seconds[k] += (self._ended[k] or time.perf_counter()) - begun  # who waits may be told before those who are called
        return found
