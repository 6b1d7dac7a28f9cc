"""Requests that have a time limit of their own and nobody who waits for them: one thread of the process ends those that are late."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from aspen_mp.shm.scarcity import start_thread
from aspen_mp.system import clock, processes, threads

Late = Callable[[], None]


class Deadlines:
    """`late()` of an entry is called when its time has come, unless `forget` was called before. Forked children begin with none."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._changed = threads.Condition()
        self._numbers = count()
        self._times: list[tuple[float, int]] = []  # a heap; of numbers that are not in `_late` any more too
        self._late: dict[int, Late] = {}
        self._thread: threads.Thread | None = None

    def add(self, seconds: float, late: Late) -> Callable[[], None]:
        """Calls `late()` in `seconds` seconds, from another thread. What is returned takes that back. ResourceLimitError where there is no
        thread to be had."""
        with self._changed:
            if self._thread is None:
                thread = threads.Thread(target=self._run, name="aspen-mp deadlines", daemon=True)
                start_thread(thread)
                self._thread = thread
            number = next(self._numbers)
            self._late[number] = late
            heapq.heappush(self._times, (clock.monotonic() + seconds, number))
            if self._times[0][1] == number:
                self._changed.notify()
        return lambda: self.forget(number)

    def forget(self, number: int) -> None:
        with self._changed:
            if self._late.pop(number, None) is not None and len(self._times) > 64 and len(self._times) > 2 * len(self._late):
                self._times = [entry for entry in self._times if entry[1] in self._late]
                heapq.heapify(self._times)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._times and self._times[0][1] not in self._late:
                    heapq.heappop(self._times)
                left = self._times[0][0] - clock.monotonic() if self._times else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                late = self._late.pop(heapq.heappop(self._times)[1])
            late()
            del late


deadlines = Deadlines()
processes.register_at_fork(after_in_child=deadlines._begin)
