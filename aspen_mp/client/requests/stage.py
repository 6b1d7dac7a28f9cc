"""A stage of a model: one plan, the regions of shared memory that its requests use, and a request's way through them.

`Stage.run` is the whole path of a request: inputs in, publish, sleep, outputs out; `_fast_path.pyx` is the same for ordinary ones. Which
stages a request runs, `stage_tree.py` says.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from aspen_mp.client.future import RequestFuture, expired, refused, too_late
from aspen_mp.client.requests._fast_path import FastPath, address
from aspen_mp.client.requests.idle_regions import IdleRegions
from aspen_mp.client.requests.lengths import KnownBucket, Lending
from aspen_mp.client.requests.memory import Span
from aspen_mp.client.requests.region import Layout, Region
from aspen_mp.client.requests.waiting import TicketWatcher, Waiting
from aspen_mp.client.requests.zero_copy import BORROW_BYTES, PAGE, Piece, place
from aspen_mp.client.session import Session
from aspen_mp.control.wire import protocol
from aspen_mp.shm import values
from aspen_mp.shm.bindings import _channel, _control
from aspen_mp.shm.bindings._channel import Urgency
from aspen_mp.shm.errors import AspenError, PoisonTile, RequestCancelled, RequestError, RequestTimeout, RuntimeLost
from aspen_mp.system import processes, threads

_ERRORS: Final = _control.ERRORS
_REASONS: Final = {
    "BAD_INDEX": "an index is out of range",
    "BAD_ARGUMENT": "its operands do not fit the kernel",
    "INT_DIVIDE": "integer division by zero",
    "POISON": "every worker that executed it has died",
    "LOST": "it was restarted too often, because workers died",
    "BAD_EXTENT": "its plan is for inputs of other lengths",
}
_STALE: Final = frozenset({_ERRORS["PLAN_GONE"], _ERRORS["BAD_PLAN"]})
_NEEDS_SPACE: Final = _ERRORS["NEEDS_SPACE"]


class Stale(Exception):
    """The planner process has dropped the plan meanwhile: ask for it again."""


class Short(Exception):
    """An object result did not fit; `capacities` says what it takes."""

    def __init__(self, capacities: dict[str, int]) -> None:
        super().__init__()
        self.capacities = capacities


ASK_AFTER: Final = 64
ASK_SELDOM: Final = 4096
LEND_BYTES = 4 << 20
LEND_EACH = 64 << 10
"""Where outputs of at least `LEND_EACH` bytes have so many together they are not copied: the arrays are the region itself, which no request
uses until they have gone."""
MAX_LENT = 2
"""Regions of a plan that outputs may hold at a time; further outputs are copied, so that who keeps results needs memory of his own.
Regions whose outputs a forked child has too count for ever: nobody would say when it needs them no longer."""


_numbers = itertools.count(1)
_NOTHING: Final = np.empty(0, np.uint8)
_regions = threads.RLock()
"""Guards who holds regions, in all stages: one lock, for outputs end wherever the garbage collector runs, under any other stage's."""
_stages: weakref.WeakSet[Stage] = weakref.WeakSet()


@dataclass(slots=True)
class Transfers:
    """What has been done with the inputs of a model's requests: bytes copied into shared memory, bytes that workers read where they were.
    Guarded by `_regions`."""

    requests: int = 0
    copied_bytes: int = 0
    in_place_bytes: int = 0


class _Lent(np.ndarray[Any, np.dtype[Any]]):
    """Stands between outputs and their region: of a class of its own, so that numpy keeps it as the base of an output, and every view
    of the output keeps the output."""


class Stage:
    """One plan as its client sees it, for a shape bucket one of its lengths. Regions are kept for the next request."""

    def __init__(
        self,
        session: Session,
        model: str,
        planned: protocol.Planned,
        transfers: Transfers | None = None,
        bucket: KnownBucket | None = None,
        keys: Mapping[str, values.Keys] | None = None,
        codes: Mapping[str, dict[str, int]] | None = None,
    ) -> None:
        """`keys`: of outputs that are made of numbers, sequences of maps and strings: where a plan gives these numbers, its stage makes the
        outputs if it is the last. `codes`: of inputs, the numbers of strings."""
        self._session = session
        self._model = model
        self.planned = planned
        self._layout: Layout = (planned.region, planned.inputs, planned.outputs)
        self._transfers = Transfers() if transfers is None else transfers
        self._number = next(_numbers)
        self._plan = planned.plan
        self._generation = planned.generation
        self._extent = planned.extent
        self._bucket = bucket
        self._lending = Lending() if bucket is None else bucket.lending
        self._lends = sum(slot.nbytes for slot in planned.outputs if slot.dtype != "object" and slot.nbytes >= LEND_EACH) >= LEND_BYTES
        self._inputs = [(slot.name, slot.dtype == "object") for slot in planned.inputs]
        self._outputs = [(slot.name, slot.dtype == "object") for slot in planned.outputs]
        self._keys = {
            slot.name: keys[slot.name]
            for slot in planned.outputs
            if keys is not None and slot.name in keys and slot.dtype != "object" and planned.last
        }
        self._codes = {} if codes is None else codes
        self.objects = any(is_object for _, is_object in (*self._inputs, *self._outputs))
        self.output_names = [slot.name for slot in planned.outputs]
        self._copies = sum(slot.nbytes for slot in planned.inputs)
        self._lendable = [
            (k, slot)
            for k, slot in enumerate(planned.inputs)
            if slot.nbytes >= BORROW_BYTES and slot.offset % PAGE == 0 and not any(is_object for _, is_object in self._inputs)
        ]
        self._idle = IdleRegions(session.memory, self._layout)
        self._free = self._idle.free
        self._leave: frozenset[int] = frozenset()
        self.untidy = False
        """Whether `tidy` is due when a request has ended."""
        self._given: dict[Region, int] = {}
        self.closed = False
        self._pause = self._left = min(planned.often or ASK_AFTER, ASK_AFTER)
        self.fast_path = self._make_fast_path()
        with _regions:
            _stages.add(self)
        session.add_stage(self)

    def _make_fast_path(self) -> FastPath | None:
        """The fast path of requests, where all values are tensors and no output is lent."""
        if self.objects or self._lends:
            return None
        lendable = {k for k, _ in self._lendable}
        inputs = [
            (slot.name, values.dtype_by_name(slot.dtype), slot.shape, k in lendable, self._codes.get(slot.name))
            for k, slot in enumerate(self.planned.inputs)
        ]
        return FastPath(
            self,
            self._session,
            (self._plan, self._generation, self._extent),
            self._free,
            inputs,
            [(name, self._keys.get(name)) for name in self.output_names],
            self._pause if self._extent else -1,
        )

    def due(self) -> bool:
        """Whether these shapes have come so often on a plan that serves others too that it is time to ask for one of their own: after
        `ASK_AFTER` requests or fewer long ones, and after ever more."""
        if not self._extent:
            return False
        self._left -= 1
        if self._left > 0 and (self.fast_path is None or not self.fast_path.closed):
            return False
        self._pause = self._left = min(2 * self._pause, ASK_SELDOM)
        if self.fast_path is not None:
            self.fast_path.open(self._pause)
        return True

    def count_transfers(self) -> None:
        """Adds those of the fast path to the model's."""
        if self.fast_path is not None:
            with _regions:
                taken = self.fast_path.drain()
                self._transfers.requests += taken
                self._transfers.copied_bytes += taken * self._copies

    # ---- regions

    def _acquire(self) -> Region:
        try:
            region = self._free.pop()
        except IndexError:
            region = self._idle.take() or self._another_region()
        region.holds = 1
        return region

    def _another_region(self) -> Region:
        span = self._inherited()
        if span is None:
            span = self._session.memory.allocate(self.planned.region)
            self._session.memory_has_grown()
        return Region(span, self._layout)

    def _inherited(self) -> Span | None:
        """Memory of a region that waits at another length of this plan, which came before and may not come again."""
        if self._bucket is None:
            return None
        with _regions:
            for free in reversed(self._bucket.idle.values()):
                with suppress(IndexError):
                    region = free.pop()
                    region.inputs.clear()
                    region.outputs.clear()
                    return region.span
        return None

    def has_room(self) -> bool:
        """Whether a request can have a region without asking the planner process for memory."""
        return bool(self._idle) or self._session.memory.has(self.planned.region)

    def make_room(self) -> bool:
        """A region for a request that is to come. False where there is none; the request will say why."""
        try:
            self._release(self._acquire())
        except AspenError:
            return False
        return not self.closed

    def _begin(self, arrays: Mapping[str, Any], borrow: bool) -> Region:
        """A region with the inputs in it: where one of them is there already, the region in which it lies."""
        region = None
        try:  # Ctrl-C may come at any of these lines: what was taken by then is given back
            region = self._held(arrays) if self._session.held else None
            if region is None and borrow and self._lendable:
                region = self._borrow(arrays)
            if region is None:
                region = self._acquire()
            copied = self._fill(region, arrays)
            with _regions:
                self._transfers.requests += 1
                self._transfers.copied_bytes += copied
                self._transfers.in_place_bytes += self._copies - copied
        except BaseException:
            if region is not None:
                self.end(region)
            raise
        return region

    def end(self, region: Region) -> None:
        """The request needs the region no longer."""
        if region.user:
            with _regions:
                region.busy = False
        self._release(region)

    def _release(self, region: Region) -> None:
        """The request, or an output that was lent, needs the region no longer."""
        with _regions:
            region.holds -= 1
            if region.holds:
                return
            if region.user:
                region.user = False
                for view in region.inputs:
                    self._session.held.pop(address(view), None)
            if region.loan is None:
                self._free.append(region)
                if self._bucket is not None:
                    self._bucket.idle.pop(self._number, None)
                    self._bucket.idle[self._number] = self._free
        if region.loan is not None:
            for k in region.borrowed:
                region.inputs[k] = _NOTHING
            self._session.loans.give(region.loan)
        elif self.untidy:
            self.tidy()

    def look(self, leave: frozenset[int]) -> None:
        """As of `IdleRegions.look`. Regions that requests use now follow when these have ended."""
        self._idle.look(leave)
        self._leave = leave
        self.untidy = self.closed or bool(leave)
        if self.closed:  # meanwhile
            self.shed()

    def tidy(self) -> None:
        """A request has ended, and regions are to be given back."""
        if self.closed:
            self.close()
        else:
            self.untidy = False
            self._idle.leave(self._leave)

    # ---- inputs that are there already

    def hold(self) -> tuple[Region, dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
        """A region for the user to fill: its inputs and its outputs. It comes back when nobody refers to any of those arrays any more."""
        if any(is_object for _, is_object in self._inputs):
            raise RequestError(f"model {self._model!r}: only tensors have input buffers. Pass other inputs to run() themselves")
        region = self._acquire()
        with _regions:
            region.user = True
            for view in region.inputs:
                if view.nbytes:
                    self._session.held[address(view)] = region
        names = [name for name, _ in self._inputs]
        inputs = {name: self._handed(region, view) for name, view in zip(names, region.inputs, strict=True)}
        outputs = {
            name: self._handed(region, view)
            for (name, is_object), view in zip(self._outputs, region.outputs, strict=True)
            if not is_object and name not in self._keys
        }
        self._release(region)  # the arrays hold it now
        return region, inputs, outputs

    def _handed(self, region: Region, view: npt.NDArray[Any]) -> npt.NDArray[Any]:
        handed = _Lent(view.shape, view.dtype, region.span.buffer, address(view) - address(np.frombuffer(region.span.buffer, np.uint8)))
        with _regions:
            region.holds += 1
            self._given[region] = self._given.get(region, 0) + 1
        weakref.finalize(handed, self._taken_back, region).atexit = False
        return handed.view(np.ndarray)

    def _taken_back(self, region: Region) -> None:
        with _regions:
            if region not in self._given:
                return  # shared with a forked child, or the parent's
            self._given[region] -= 1
            if not self._given[region]:
                del self._given[region]
        self._release(region)

    def _held(self, arrays: Mapping[str, Any]) -> Region | None:
        """The region of `hold` in which an input lies, if it is free for a request and of this plan's form."""
        for name, is_object in self._inputs:
            array = arrays[name]
            region = None if is_object or not array.nbytes else self._session.held.get(address(array))
            if region is None or region.layout != self._layout:
                continue
            with _regions:
                if region.user and not region.busy:
                    region.busy = True
                    region.holds += 1
                    return region
        return None

    def _borrow(self, arrays: Mapping[str, Any]) -> Region | None:
        """A region in which the pages of the user's own shared memory stand for an input."""
        pieces = []
        try:
            for k, slot in self._lendable:
                found = place(arrays[slot.name])
                if found is not None and found[1] % PAGE == 0:
                    pieces.append(Piece(k, slot.offset, slot.nbytes, *found))
            if not pieces:
                return None
            pieces = sorted(sorted(pieces, key=lambda piece: -piece.nbytes)[: protocol.MAX_FDS], key=lambda piece: piece.at)
            loan = self._session.loans.take(self._number, self.planned.region, pieces)
        except RequestError as error:
            raise RequestError(f"model {self._model!r}: {error}") from None
        if loan is None:
            return None
        if loan.region is None:
            span = Span(loan.index, PAGE, self.planned.region, loan.segment.buf)
            loan.region = Region(span, self._layout, loan, frozenset(piece.number for piece in pieces))
        region: Region = loan.region
        region.holds = 1
        for k in region.borrowed:
            region.inputs[k] = arrays[self._inputs[k][0]]  # which keeps its memory mapped
        return region

    def _lend(self, region: Region) -> _Lent | None:
        """What outputs view that lie in the region, which is released when nobody refers to any of them any more; None where enough are
        lent."""
        lent = _Lent(region.span.nbytes, np.uint8, region.span.buffer, region.span.offset)
        with _regions:
            if len(self._lending.regions) + self._lending.shared >= MAX_LENT:
                return None
            region.holds += 1
            self._lending.regions.append(region)
        weakref.finalize(lent, self._returned, region).atexit = False
        return lent

    def _returned(self, region: Region) -> None:
        with _regions:
            if region not in self._lending.regions:
                return  # shared with a forked child, or the parent's
            self._lending.regions.remove(region)
        self._release(region)

    def share(self) -> None:
        """A forked child is about to see the outputs that are lent now, and the buffers that users hold: their regions are not used for
        anything else again."""
        self._lending.shared += len(self._lending.regions)
        self._lending.regions.clear()
        self._given.clear()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the regions that wait for a request."""
        return len(self._idle) * self.planned.region

    def close(self) -> None:
        """Gives the regions back that no request uses; those in use follow when their requests end."""
        self.closed = self.untidy = True
        self.count_transfers()
        if self._lendable:
            self._session.loans.owner_ended(self._number)
        if self._bucket is not None:
            with _regions:
                self._bucket.idle.pop(self._number, None)
        self.shed()

    def shed(self) -> None:
        """Gives the regions back that wait for a request."""
        self._idle.shed()

    # ---- one request

    def _fill(self, region: Region, arrays: Mapping[str, Any]) -> int:
        """Copies in what is not there yet. Returns how many bytes."""
        if region.user or region.loan is not None:
            copied = 0
            for (name, _), view in zip(self._inputs, region.inputs, strict=True):
                array = arrays[name]
                if view is not array and (address(view) != address(array) or not array.flags.c_contiguous):
                    view[...] = array
                    copied += view.nbytes
            return copied
        if not self.objects:
            for (name, _), view in zip(self._inputs, region.inputs, strict=True):
                view[...] = arrays[name]
            return self._copies
        for (name, is_object), view in zip(self._inputs, region.inputs, strict=True):
            if is_object:
                values.Encoded(arrays[name]).write(view.data)
            else:
                view[...] = arrays[name]
        return self._copies

    def _collect(self, region: Region, names: Sequence[str] | None, *, lends: bool = True) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lent = self._lend(region) if lends and self._lends and not region.user else None
        for slot, (name, is_object), view in zip(self.planned.outputs, self._outputs, region.outputs, strict=True):
            if names is None or name in names:
                if is_object:
                    result[name] = values.decode(view.data)
                elif name in self._keys:
                    result[name] = values.told(self._keys[name], view)
                elif lent is not None and view.nbytes >= LEND_EACH:
                    result[name] = np.ndarray(view.shape, view.dtype, lent, slot.offset)
                else:
                    result[name] = view.copy()
        return result

    def run(
        self,
        arrays: Mapping[str, Any],
        urgency: Urgency,
        timeout: float | None,
        names: Sequence[str] | None,
        stop: TicketWatcher | None = None,
        *,
        borrow: bool = True,
    ) -> dict[str, Any]:
        """Copies inputs in, executes, copies outputs out. `borrow`: inputs in shared memory of the user's are read there. Raises Stale
        where the plan has gone meanwhile."""
        region = self._begin(arrays, borrow)
        span = region.span
        result = self._session.execute(
            self._plan, self._generation, span.index, span.offset, urgency, timeout, lambda: self.end(region), stop, self._extent
        )
        if result is None:
            raise self.late(timeout)
        try:
            self._check_loan(region)
            if result.error:
                self.fail(result, region, urgency)
            return self._collect(region, names)
        finally:
            self.end(region)

    def submit(
        self,
        arrays: Mapping[str, Any],
        urgency: Urgency,
        names: Sequence[str] | None,
        future: RequestFuture,
        retry: Callable[[dict[str, Any]], None],
        lost: Lost,
        *,
        borrow: bool = False,
    ) -> None:
        """As `run`, with the result in `future`. `retry(arrays)` is called where the plan has gone meanwhile; `lost` where the runtime has:
        it says whether it sees to the future."""
        region = self._begin(arrays, borrow)

        def done(outcome: _channel.Result | AspenError) -> None:
            try:
                if not future.done():
                    self._check_loan(region)
                    if isinstance(outcome, AspenError):
                        raise outcome
                    if outcome.error:
                        self.fail(outcome, region, urgency)
                    future.finish(self._collect(region, names))
            except Stale:
                try:
                    retry(self._inputs_of(region))
                    return
                except BaseException as error:
                    future.fail(error)
            except RuntimeLost as error:
                if lost(error, self._inputs_of(region)):
                    return
                future.fail(error)
            except BaseException as error:
                future.fail(error)
            finally:
                self.end(region)
            future.settle()

        waiting = None
        try:
            waiting = Waiting(self._plan, self._generation, region.span.index, region.span.offset, urgency, done, self._extent, future.loop)
            future.stop = lambda: self._session.cancel(waiting)
            self._session.submit(waiting)
        except BaseException:
            if waiting is not None and waiting.handed_over:
                self._session.cancel(waiting)
            else:
                self.end(region)
            raise

    # ---- requests that keep their region

    def take_region(self) -> Region:
        """A region for requests that follow each other (`client.streams`), until `end`."""
        return self._acquire()

    def faults(self) -> int:
        """Changes when a worker may have written anywhere, also into regions whose requests have ended."""
        return self._session.channel.faults()

    def run_in(self, region: Region, urgency: Urgency, timeout: float | None, stop: TicketWatcher | None) -> dict[str, Any] | None:
        """Executes a request in a region that has its inputs, and returns `kept_results`. None after `timeout` seconds.

        Then, and where this raises, `end(region)` has been called, or will be when nothing writes there any more."""
        span = region.span
        result = self._session.execute(
            self._plan, self._generation, span.index, span.offset, urgency, timeout, lambda: self.end(region), stop, self._extent
        )
        if result is None:
            return None
        try:
            if result.error:
                self.fail(result, region, urgency)
            return self.kept_results(region)
        except BaseException:
            self.end(region)
            raise

    def request_in(self, region: Region, urgency: Urgency, on_done: Callable[[_channel.Result | AspenError], None]) -> Waiting:
        """A request in a region that has its inputs, to be submitted by the session. It leaves the region as it is."""
        return Waiting(self._plan, self._generation, region.span.index, region.span.offset, urgency, on_done, self._extent)

    @property
    def plain(self) -> bool:
        """Whether it is all of the model, and all of its values are tensors as the plan gives them."""
        return self.planned.last and not self.objects and not self._keys and not self._codes

    def kept_results(self, region: Region) -> dict[str, Any]:
        """The outputs in a region, but for what the plan says of itself: views that nobody may write to. Copies where it is not `plain`."""
        names = [slot.name for slot in self.planned.outputs if slot.name]
        if not self.plain:
            return self._collect(region, names, lends=False)
        views = {name: region.outputs[k].view() for k, name in enumerate(names)}
        for view in views.values():
            view.flags.writeable = False
        return views

    def _check_loan(self, region: Region) -> None:
        """Before anything else is made of an answer: what it says may come from the zeros that were read, and whoever begins the request
        anew would read the missing pages himself."""
        if region.loan is not None and region.loan.torn:
            region.loan.dead = True
            raise RequestError(
                f"model {self._model!r}: an input's shared memory was truncated while it was read. Keep it until the result is there"
            )

    def _inputs_of(self, region: Region) -> dict[str, Any]:
        """What was put into a region: workers only read it."""
        return {
            name: values.decode(view.data) if is_object else view.copy()
            for (name, is_object), view in zip(self._inputs, region.inputs, strict=True)
        }

    def late(self, timeout: float | None) -> RequestTimeout:
        return too_late(self._model, timeout)

    def fail(self, result: _channel.Result, region: Region, urgency: Urgency) -> NoReturn:
        """Raises the typed error of a failed request."""
        if result.error in _STALE:
            raise Stale
        if result.error == _NEEDS_SPACE:
            needed = {
                name: values.needed_bytes(view.data)
                for (name, is_object), view in zip(self._outputs, region.outputs, strict=True)
                if is_object
            }
            raise Short({name: nbytes for name, nbytes in needed.items() if nbytes})
        if result.error == _ERRORS["TOO_LATE"]:
            since = max(0, result.submitted_ns - (urgency.due_ns - urgency.span_ns))  # stages before this one
            raise refused(self._model, urgency, since + result.needed)
        if result.error == _ERRORS["EXPIRED"]:
            raise expired(self._model, urgency)
        if result.error == _ERRORS["CANCELLED"]:
            raise RequestCancelled(f"model {self._model!r}: the request was cancelled")
        if result.error == _ERRORS["CLIENT_GONE"]:
            raise RuntimeLost("the runtime has closed the connection to this client. Connect again")
        name = _control.ERROR_NAMES.get(result.error, f"error {result.error}")
        text = result.message or _REASONS.get(name, name.lower().replace("_", " "))
        if result.op >= 0 and not result.message:
            done, _ = self._session.control.call(
                lambda number: protocol.Explain(number, self._plan, self._generation, result.op), protocol.Done
            )
            text = f"{done.text}: {text}"
        kind = PoisonTile if result.error == _ERRORS["POISON"] else RequestError
        raise kind(f"model {self._model!r}: {text}")


Lost = Callable[[RuntimeLost, dict[str, Any]], bool]
"""Told that the runtime was lost with a request, and its inputs; whether the request goes on elsewhere."""


# ---- processes that fork


def _before_fork() -> None:
    _regions.acquire()  # until the fork is over: none is lent or comes back meanwhile
    for stage in _stages:
        stage.share()


def _after_fork_in_parent() -> None:
    _regions.release()


def _after_fork_in_child() -> None:
    global _regions  # noqa: PLW0603
    _regions = threads.RLock()


processes.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
