"""The result of a request that is still to come."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt

from aspen_mp.client.deadlines import deadlines
from aspen_mp.shm.bindings import _tally
from aspen_mp.shm.bindings._channel import Urgency
from aspen_mp.shm.errors import AspenError, DeadlineMissed, RequestTimeout
from aspen_mp.system import threads

if TYPE_CHECKING:
    from aspen_mp.client.loop_results import LoopResults

NO_PREDICTION_NS: Final = 10**18
"""A prediction of so long is none."""


def too_late(model: str, timeout: float | None) -> RequestTimeout:
    """What becomes of a request whose result is not there in time."""
    return RequestTimeout(f"model {model!r}: the request did not finish within {timeout:g} s and was cancelled")


def refused(model: str, urgency: Urgency, predicted_ns: int) -> DeadlineMissed:
    """What becomes of a request whose result is predicted after its deadline, `predicted_ns` after its submission."""
    deadline_ms = urgency.span_ns / 1e6
    known = predicted_ns < NO_PREDICTION_NS
    predicted_ms = max(predicted_ns / 1e6, deadline_ms) if known else math.inf
    expected = f"the result is predicted after {predicted_ms:.3g} ms" if known else "too many requests run to predict a time"
    error = DeadlineMissed(
        f"model {model!r}: the deadline of {deadline_ms:g} ms cannot be met, {expected}; nothing of the request has run. Submit it later, "
        'with more time or a higher priority, add workers, or pass on_late="run"'
    )
    error.deadline_ms, error.predicted_ms = deadline_ms, predicted_ms
    return error


def expired(model: str, urgency: Urgency) -> DeadlineMissed:
    """What becomes of a request whose deadline has passed."""
    deadline_ms = urgency.span_ns / 1e6
    late_ms = max(0.0, (_tally.now() - urgency.due_ns) / 1e6)
    error = DeadlineMissed(
        f"model {model!r}: the deadline of {deadline_ms:g} ms has passed and the request was dropped. Give it more time or a higher "
        'priority, add workers, or pass on_late="run" to get late results'
    )
    error.deadline_ms, error.late_ms = deadline_ms, late_ms
    return error


class RequestFuture(Future[dict[str, npt.NDArray[Any]]]):
    """The result of a request that is still to come, as a `concurrent.futures.Future`.

    `result` returns {output name: array}. A request with a time limit fails with RequestTimeout when that is over.
    """

    def __init__(self, loop: LoopResults | None = None) -> None:
        """`loop`: takes the result, if it is not the resolver's to take."""
        super().__init__()
        self.loop = loop
        self.stop: Callable[[], None] | None = None
        self.answered: Callable[[RequestFuture, BaseException | None], None] | None = None  # the model counts the answer before it is seen
        self.ended: Callable[[RequestFuture], None] | None = None  # the model, which stays loaded for as long as the request may need it
        self.left: Callable[[RequestFuture], None] | None = None  # the model is told that nobody waits for the result any more
        self.began = 0  # of `_tally.now`
        self.planning = False  # there is no plan for the request yet
        self.over = False  # the model's: it has been told that the request has ended
        self._first = threads.Lock()  # held from the first answer on: a result, an error, a time limit, `cancel`
        self._unlimited: Callable[[], None] | None = None  # takes the time limit back

    def limit(self, seconds: float, late: Callable[[], BaseException]) -> None:
        """Unless the result is there in `seconds` seconds, the request is dropped, and the future fails with `late()`."""

        def expire() -> None:
            if self.fail(late()):
                self._leave()

        self._unlimited = deadlines.add(seconds, expire)

    def finish(self, result: dict[str, npt.NDArray[Any]]) -> None:
        """Answer with `result`, unless there is an answer already."""
        self._answer(None, lambda: self.set_result(result))

    def fail(self, error: BaseException) -> bool:
        """Answer with `error`. Return False where there is an answer already."""
        return self._answer(error, lambda: self.set_exception(error))

    def _answer(self, error: BaseException | None, give: Callable[[], None]) -> bool:
        """Count the answer, then give it. Return False where there is one already."""
        try:
            if not self._first.acquire(blocking=False):
                return False
            if self.set_running_or_notify_cancel():
                self._count(error)
                give()
                return True
            self._count(CancelledError())  # a second call of `cancel` came between
            return False
        except BaseException as interrupt:  # Ctrl-C in the thread of an event loop: nobody else will answer
            self._first.acquire(blocking=False)
            self._count(interrupt)
            if not self.done():
                self.set_exception(interrupt)
            raise

    def _count(self, error: BaseException | None) -> None:
        answered, self.answered = self.answered, None
        if answered is not None:
            answered(self, error)

    def settle(self) -> None:
        """Lets go of everything that only a request in flight needs."""
        if self._first.acquire(blocking=False):  # it was never submitted: who asked for it gets the error
            self._count(AspenError())
        self.stop = None
        unlimited, self._unlimited = self._unlimited, None
        if unlimited is not None:
            unlimited()
        ended, self.ended = self.ended, None
        self.left = None
        if ended is not None:
            ended(self)

    def cancel(self) -> bool:
        """Cancel the request. Return False where its result or error is there already."""
        if not self._first.acquire(blocking=False):
            return super().cancel()  # true where it has been cancelled
        self._count(CancelledError())
        super().cancel()
        self.set_running_or_notify_cancel()
        self._leave()
        return True

    def _leave(self) -> None:
        """Nobody waits for the result any more."""
        stop, left = self.stop, self.left
        if stop is not None:
            stop()
        if left is not None:
            left(self)
