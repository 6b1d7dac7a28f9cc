"""A request whose inputs arrive in pieces. Parts of the model run while other rows are on their way.

No worker waits for a writer. Each time rows have arrived, and the band before has ended, the client submits an ordinary request, a *band*.
It runs the elements whose inputs are all there now (docs/protocol/reach.md, "Arriving rows"). So a writer that dies leaves nothing running.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from aspen_mp.client import arguments
from aspen_mp.client.future import RequestFuture, expired
from aspen_mp.client.requests.stage import Short, Stale
from aspen_mp.client.streams.arriving_tensors import ArrivingInput, ArrivingOutput, rows_of
from aspen_mp.client.streams.changed_inputs import COUNTS, trust_word
from aspen_mp.client.streams.model_stream import Streamed
from aspen_mp.shm.bindings._channel import Urgency
from aspen_mp.shm.errors import AspenError, DeadlineMissed, RequestCancelled, RequestError, RequestTimeout, RuntimeLost
from aspen_mp.shm.scarcity import start_thread
from aspen_mp.shm.tables import NUMBERS
from aspen_mp.system import clock, processes, threads

if TYPE_CHECKING:
    from aspen_mp.client.requests.region import Region
    from aspen_mp.client.requests.stage import Stage
    from aspen_mp.client.requests.waiting import Waiting
    from aspen_mp.shm.bindings import _channel

Results = dict[str, npt.NDArray[Any]]
_FIRST, _ARRIVING, _TOLD = (NUMBERS[f"REACH_{name}"] for name in ("FIRST", "ARRIVING", "TOLD"))
_ENDS: Final = RequestTimeout, DeadlineMissed, RequestCancelled


class Arriving(Streamed, Protocol):
    """A model as such requests see it: `client.model.Model`."""

    def taken_over(
        self, arrays: dict[str, Any], names: Sequence[str] | None, urgency: Urgency, future: RequestFuture, lost: RuntimeLost | None
    ) -> None: ...
    def limit(self, future: RequestFuture, urgency: Urgency, timeout: float | None = None) -> None: ...


class ArrivingRequest:
    """A request whose inputs are written in pieces. Made by `Model.begin`.

    Parts of the model run as soon as the rows that they read have been written. Any thread may write and read. Leaving the `with` block, or
    forgetting the request, cancels it where it has not ended.

    Attributes:
        future (RequestFuture): {output name: array}, once all rows have been written and computed. Cancelling it cancels the request.
    """

    def __init__(
        self,
        model: Arriving,
        blanks: Mapping[str, Any],
        names: Sequence[str] | None,
        terms: tuple[Urgency, float | None],
        outputs: Sequence[str],
    ) -> None:
        """`blanks`: of inputs, arrays that have their shape and dtype. `names`: of outputs that are wanted. `outputs`: names of all."""
        self._model = model
        self._blanks = blanks
        self._names = names
        self._wanted = list(outputs if names is None else names)
        self._urgency, limit = terms
        self._changed = threads.Condition()
        self._owner = processes.getpid()
        self._running: Waiting | None = None
        self._copying = 0  # writes that copy into the region
        self._last = False  # the band that runs has all inputs
        self._bands = 0  # that have ended
        self._at_end = False  # nothing runs before all inputs are there: a band has failed, or there are none
        self._elsewhere = False  # then it is an ordinary request
        self._handed_over = False
        self._lost: RuntimeLost | None = None
        self._moving = False  # the plan has gone; a thread looks for another one
        left = int(self._urgency.left() * 1e9) if self._urgency.due_ns else 0
        self._band_urgency = Urgency(self._urgency.level, left, True)  # the future drops what is late
        self._outputs: dict[str, ArrivingOutput] = {}
        self._stage: Stage | None = None
        self._region: Region | None = None
        self.future = model.begun(self._urgency, limit)
        try:
            self._begin(None if limit is None else clock.monotonic() + limit)
        except BaseException:
            self._release()
            self.future.settle()
            raise
        own = weakref.ref(self)  # the request ends when it is forgotten, so its future does not keep it
        self.future.stop = partial(_if_there, own, ArrivingRequest._stop)
        self.future.add_done_callback(lambda _: _if_there(own, ArrivingRequest._wake))
        self._go_on()  # there may be nothing to wait for; or its time was over while it was planned

    def _begin(self, deadline: float | None) -> None:
        """Find the plan and take memory. Without a plan that keeps activations, inputs are collected, and are an ordinary request's."""
        stage = self._plan(deadline)
        if stage is not None:
            self._attach(stage)
        views = {} if stage is None else self._views
        for view in views.values():
            view[...] = 0  # a request that runs whole before its time finds no other's data, and no index out of range
        self._inputs = {
            one: ArrivingInput(self._model.name, one, views[one] if one in views else np.zeros(blank.shape, blank.dtype))
            for one, blank in self._blanks.items()
        }
        self._planned = [self._inputs[one] for one in views]
        self._elsewhere, self._at_end = stage is None, not views

    def _attach(self, stage: Stage) -> None:
        """Take memory for a plan."""
        region = stage.take_region()
        self._stage, self._region = stage, region
        *slots, changes = stage.planned.inputs
        self._bounds = region.inputs[-1]
        self._trust = trust_word(region.span.buffer, region.span.offset, changes)
        self._views = {slot.name: view for slot, view in zip(slots, region.inputs, strict=False)}
        there = [slot.name for slot in stage.planned.outputs]
        for one in self._wanted:
            self._outputs.setdefault(one, ArrivingOutput()).attach(region.outputs[there.index(one)])
        self._places = [(self._outputs[one], there.index(one)) for one in self._wanted]

    def _plan(self, deadline: float | None) -> Stage | None:
        """The plan. None where there is none that is all of the model and keeps activations."""
        losses = 0
        while True:
            try:
                self._tree = self._model.stages(deadline).for_streams("rows")
                self._session = self._tree.session
                stage = self._tree.plan_first(self._blanks, None, ahead=False).stage
            except RuntimeLost as lost:
                losses = self._model.losses(losses, lost)
                continue
            there = [] if stage is None else [slot.name for slot in stage.planned.outputs]
            return stage if stage is not None and stage.plain and all(one in there for one in self._wanted) else None

    def _move(self) -> None:
        """The plan has gone: begin again with the one in its place. A thread of its own waits for the planner process."""
        with self._changed:
            self._changed.wait_for(lambda: not self._copying and self._running is None)  # writers that come now wait
            self._copying += 1
        old, region = self._stage, self._region
        try:
            if self.future.done():
                return
            stage = self._plan(None)
            if stage is not None:
                self._attach(stage)
                for one in self._planned:
                    one.move(self._views[one.name])
                if old is not None and region is not None:
                    old.end(region)
            self._elsewhere |= stage is None
        except BaseException as error:
            self.future.fail(error)
        finally:
            with self._changed:
                self._copying -= 1
                self._moving = False
                self._bands = 0
                self._changed.notify_all()
            self._go_on()

    def __enter__(self) -> ArrivingRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {one.first_missing} of {one.length} rows" for name, one in self._inputs.items())
        return f"<aspen_mp.ArrivingRequest of {self._model.name!r}: {rows}>"

    # ---- inputs

    def write(self, name: str, rows: npt.ArrayLike, at: int | None = None, *, axis: int | None = None) -> None:
        """Write rows of an input. They are copied before this returns.

        Args:
            name: The input.
            rows: The rows, whole along all other axes, with the input's dtype. Lists and numbers are converted to it.
            at: The first row's number. None: the one behind those of the last write. Rows come in any order, each once. The first row
                that is missing decides how much can run.
            axis: Which axis rows are elements of. The first write to an input decides. None: the axis along which it has fewer elements
                than the input, such as an image's height.

        Raises:
            RequestError: There is no such input, the rows do not fit it, or some were written before. Or the request has ended: then this
                is the error that ended it.
            RequestTimeout, DeadlineMissed, RequestCancelled, RuntimeLost: The request has ended so.
        """
        if name not in self._inputs:
            self._model.check_names([name])
            raise RequestError(f"model {self._model.name!r}: input {name!r} has no shape in this request")
        with self._changed:
            self._changed.wait_for(lambda: not self._moving)
            self._check_open()
            one = self._inputs[name]
            array, place, span = one.take(rows, at, axis)
            self._copying += 1
        copied = False
        try:
            place[...] = array
            copied = True
        finally:
            with self._changed:
                self._copying -= 1
                if self._moving:
                    self._changed.notify_all()
                if copied:
                    one.arrive(span)
                else:
                    one.give_up(span)
            self._go_on()

    def _check_open(self) -> None:
        if not self.future.done():
            return
        error = None if self.future.cancelled() else self.future.exception()
        if error is not None:
            raise error
        ended = "was cancelled" if self.future.cancelled() else "has all of its inputs"
        raise RequestCancelled(f"model {self._model.name!r}: the request {ended}")

    def expire(self, deadline_ms: float) -> None:
        """Give the request a deadline, once. It counts from now, and in the order of requests from the next rows on.

        Args:
            deadline_ms: Milliseconds. When they are over, the request is dropped and fails with DeadlineMissed.

        Raises:
            TypeError, ValueError: It is not a number of milliseconds, or not more than 0.
        """
        urgency = Urgency(self._urgency.level, arguments.deadline("deadline_ms", deadline_ms))
        with self._changed:
            self._urgency, self._band_urgency = urgency, Urgency(urgency.level, urgency.span_ns, True)
        self._model.limit(self.future, urgency)

    # ---- outputs

    def rows(self, name: str | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Return an iterator of an output's rows, as they are computed.

        Rows are elements along the axis by which the first of them are computed, such as an image's height. An output of which no part is
        computed before the rest comes as one array.

        Args:
            name: The output. None: the only one.

        Returns:
            An iterator of pairs (number of the first row, rows). The arrays are read-only views of the output that `result` returns.

        Raises:
            RequestError: There is no such output, or it was not asked for. Iterating raises what `result` would.
        """
        if name is None and len(self._wanted) == 1:
            name = self._wanted[0]
        if name not in self._wanted:
            raise RequestError(f"model {self._model.name!r}: {name!r} is not an output of this request: {', '.join(self._wanted)}")
        return self._rows(name)

    def _rows(self, name: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        one, first, begun = self._outputs.get(name), 0, False
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_more, one, first))
                whole = one is not None and one.whole
                axis = -1 if one is None else one.axis
                last = None if one is None or whole or self.future.done() else one.rows
            if last is None and not whole:
                array = self.future.result()[name]
            else:
                assert one is not None
                array = one.array
            length = array.shape[axis] if axis >= 0 else 0
            if not begun or first < length:
                yield first, rows_of(array, axis, first, last)
            if last is None:
                return
            first, begun = last, True

    def _has_more(self, one: ArrivingOutput | None, first: int) -> bool:
        return self.future.done() or (one is not None and (one.whole or one.rows > first))

    def result(self, timeout: float | None = None) -> Results:
        """Wait for the result.

        Args:
            timeout: Seconds. None: no limit.

        Returns:
            {output name: array}.

        Raises:
            RequestError: Rows are missing. The message names the input and says how many. Or an operator has failed.
            TimeoutError: The result is not there after `timeout` seconds. The request goes on.
            RequestTimeout, DeadlineMissed, RuntimeLost: As of `Model.run`.
            concurrent.futures.CancelledError: The request was cancelled.
        """
        with self._changed:
            if not self.future.done():
                for one in self._inputs.values():
                    if not one.complete:
                        raise RequestError(one.missing())
        return self.future.result(timeout)

    def cancel(self) -> bool:
        """Cancel the request. Return False where its result or error is there already."""
        return self.future.cancel()

    # ---- bands

    def _go_on(self) -> None:
        """Start what the rows that are there allow, and give back what is not needed."""
        if self.future.done():
            self._let_go()
            return
        try:
            with self._changed:
                complete = all(one.complete for one in self._inputs.values())
                due = complete or (not self._at_end and any(one.due for one in self._planned))
                waits = self._elsewhere or self._moving or self._running is not None or self.future.done()
                if due and not waits:
                    self._submit(complete)
                over = self._elsewhere and complete and not self._handed_over
                self._handed_over |= over
            if over:
                self._hand_over()
            elif self.future.done():  # meanwhile
                self._let_go()
        except RuntimeLost as lost:
            if self._survives(lost):
                self._go_on()
            else:
                self._fail(lost)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, AspenError):
                raise

    def _hand_over(self) -> None:
        """All inputs are there, and an ordinary request takes them."""
        arrays = {name: one.array for name, one in self._inputs.items()}
        try:
            self._model.taken_over(arrays, self._names, self._urgency, self.future, self._lost)
        except BaseException as error:
            self.future.fail(error)
            self.future.settle()
            if not isinstance(error, AspenError):
                raise
        finally:
            self._let_go()

    def _submit(self, complete: bool) -> None:
        """With the lock held: the next band."""
        stage, region = self._stage, self._region
        assert stage is not None
        assert region is not None
        first = self._at_end or not self._bands
        for one, bounds in zip(self._planned, self._bounds, strict=False):
            one.tell(bounds, _FIRST if first else _ARRIVING)
        if first:
            self._trust[...] = 0 if complete else _TOLD
        elif self._trust[0] == _TOLD:  # a worker died before it could say that the first band has ended
            self._trust[...] = 0
        self._last = complete
        self._running = waiting = stage.request_in(region, self._band_urgency, self._ended)
        try:
            self._session.submit(waiting)
        except BaseException:
            if not waiting.handed_over:
                self._running = None
            raise

    def _ended(self, outcome: _channel.Result | AspenError) -> None:
        """A band has ended. The resolver's thread calls this."""
        stage, region = self._stage, self._region
        assert stage is not None
        assert region is not None
        failed: BaseException | None = None
        found: list[tuple[ArrivingOutput, tuple[int, int, bool]]] = []
        try:
            if isinstance(outcome, AspenError):
                raise outcome
            if outcome.error:
                stage.fail(outcome, region, self._urgency)
            if not self.future.done():
                ready = region.outputs[-1].ravel()[COUNTS:].reshape(-1, 2).astype(np.int64).tolist()
                found = [(one, one.take(*ready[k])) for one, k in self._places]
        except BaseException as error:
            failed = error
        over = failed is not None and not self.future.done() and not self._survives(failed)
        with self._changed:
            self._running = None
            self._bands += 1
            for one, (axis, rows, whole) in found:
                one.axis, one.rows, one.whole = axis, rows, whole
            self._changed.notify_all()
        if failed is not None:
            if over:
                self._fail(failed)
        elif self._last and self._urgency.drops and not self._urgency.left():
            self._fail(expired(self._model.name, self._urgency))  # whoever drops what is late has not had its turn yet
        elif self._last:
            self.future.finish({name: one.array for name, one in self._outputs.items()})
        failed = None  # it refers to this frame, and so to the request, which may be forgotten
        self._go_on()

    def _survives(self, error: BaseException) -> bool:
        """Whether the request begins again when all inputs are there. A band that was run whole after a fault may have met garbage."""
        if isinstance(error, RuntimeLost):
            try:
                self._model.losses(0, error)
            except RuntimeLost:
                return False
            self._elsewhere, self._lost = True, error
        elif isinstance(error, Stale):
            if self._stage is not None:
                self._tree.stale(self._stage)
            self._moving = True
            start_thread(threads.Thread(target=self._move, name="aspen-mp arriving", daemon=True))
        elif isinstance(error, Short):
            self._elsewhere = True
        elif isinstance(error, RequestError) and not isinstance(error, _ENDS) and not self._last:
            self._at_end = True
        else:
            return False
        return True

    # ---- the end

    def _fail(self, error: BaseException) -> None:
        self.future.fail(error)
        self._let_go()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _stop(self) -> None:
        """Nobody waits for the result any more."""
        with self._changed:
            if self._running is not None:
                self._session.cancel(self._running)
        self._let_go()

    def _let_go(self) -> None:
        """Give the region back where nobody uses it any more. Unless it was handed over, the request has ended then."""
        with self._changed:
            over = self.future.done() or self._handed_over
            if not over or self._running is not None or self._copying:
                return
        self._release()
        if not self._handed_over:
            self.future.settle()

    def _release(self) -> None:
        with self._changed:
            stage, region = self._stage, self._region
            self._stage = self._region = None
        if stage is not None and region is not None and processes.getpid() == self._owner:
            stage.end(region)

    def __del__(self) -> None:
        future = getattr(self, "future", None)
        if future is None or not hasattr(self, "_session") or self._handed_over:
            return
        if self._region is not None or not future.done():  # its time may have ended just now, and nobody was left to be told
            self._release()
            self._session.later(partial(_forget, future))  # it takes locks, which may be held here


def _if_there(own: weakref.ref[ArrivingRequest], do: Callable[[ArrivingRequest], None]) -> None:
    request = own()
    if request is not None:
        do(request)


def _forget(future: RequestFuture) -> None:
    future.cancel()
    future.settle()
