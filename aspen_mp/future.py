"""The result of a request that is still to come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy.typing as npt


class RequestFuture(Future[dict[str, npt.NDArray[Any]]]):
    """A request's result to come. `stop`, if set, asks the workers to drop it. `cancel` succeeds until the result is there."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: Callable[[], None] | None = None
        self.ended: Callable[[], None] | None = None  # the model, which stays loaded for as long as the request may need it, is told
        self._first = threading.Lock()

    def settle(self) -> None:
        """Lets go of everything that only a request in flight needs."""
        self.stop = None
        ended, self.ended = self.ended, None
        if ended is not None:
            ended()

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        if not self._first.acquire(blocking=False):
            return True  # somebody has cancelled it already
        self.set_running_or_notify_cancel()
        stop = self.stop
        if stop is not None:
            stop()
        return True
