"""How requests of a model begin, are counted, are submitted again, and end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aspen_mp.client.future import RequestFuture, expired, too_late
from aspen_mp.client.requests._fast_path import address
from aspen_mp.client.requests.stage import Stale
from aspen_mp.client.residence import Residence
from aspen_mp.client.signature import Signature
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.client import fresh
from aspen_mp.shm.bindings import _tally
from aspen_mp.shm.errors import (
    DeadlineMissed,
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ResourceLimitError,
    RuntimeLost,
    RuntimeStopping,
)
from aspen_mp.system import clock, threads

if TYPE_CHECKING:
    import asyncio

    from aspen_mp.client.link import Link
    from aspen_mp.client.loop_results import LoopResults
    from aspen_mp.client.model_source import ModelSource
    from aspen_mp.client.requests._fast_path import FastPath
    from aspen_mp.client.requests.stage_tree import StageTree
    from aspen_mp.client.session import Session
    from aspen_mp.shm.bindings._channel import Urgency


@dataclass(slots=True, eq=False)
class _Request:
    """What `submit` was asked for. `losses`: how often workers had begun it when the runtime was lost; `copy`: its inputs may change;
    `counts`: where shapes are counted that come often."""

    names: Sequence[str] | None
    urgency: Urgency
    future: RequestFuture
    copy: bool
    counts: bool = True
    losses: int = 0


class Submission:
    """What a model's handle does with requests whose arguments have been checked. `client.model.Model` is what users call."""

    def __init__(self, way: Link, loaded: protocol.Loaded, name: str | None, source: ModelSource | None, place: Session | str) -> None:
        """As of `Model`."""
        self._link = way
        self._signature = Signature(name or loaded.name, loaded)
        self.name = self._signature.model
        self._fast_path: FastPath | None = None  # of the stage that the last request ran
        self._requests = _tally.Requests()
        self._counting = threads.Lock()  # guards `_parked`
        self._parked: set[RequestFuture] = set()  # of those, the ones that wait for another runtime, and those that nobody waits for
        self._residence = Residence(way, loaded, self._signature, self._requests, source, place)

    @property
    def _tree(self) -> StageTree:
        return self._residence.tree()

    def forked(self) -> None:
        """In a forked child: see `Residence.forked`."""
        self._fast_path = None
        self._counting = threads.Lock()
        gone, self._requests = self._requests.gone, _tally.Requests()
        if gone:
            self._requests.leaves()
        self._parked = set()
        self._residence.forked(self._requests)

    def _answer(
        self, feeds: Any, outputs: Sequence[str] | None, urgency: Urgency, timeout: float | None, deadline: float | None
    ) -> dict[str, npt.NDArray[Any]]:
        """`run`, once the request counts: by the way that the last one took, or whatever it needs, as often as the runtime is lost."""
        losses = 0
        path = self._fast_path
        if path is not None:
            try:
                results = path.run(feeds, outputs, urgency, timeout)
                if results is not None:
                    return results
            except Stale:
                self._tree.stale(path.stage)
                self._fast_path = None
            except RuntimeLost as lost:
                losses = self._losses(losses, lost)
        arrays = self._check(feeds)
        while True:
            try:
                return self._run(arrays, outputs, urgency, deadline)
            except RequestTimeout:
                raise too_late(self.name, timeout) from None
            except RuntimeLost as lost:
                if self._link.revives and deadline is not None and clock.monotonic() >= deadline:
                    raise RequestTimeout(f"model {self.name!r}: the request did not finish within {timeout:g} s: {lost}") from None
                losses = self._losses(losses, lost)

    # ---- for streams

    def stages(self, until: float | None = None) -> StageTree:
        """Return the model's stages, as `Residence.tree` does."""
        self._check_there()
        return self._residence.tree(until)

    def losses(self, losses: int, lost: RuntimeLost) -> int:
        """Count a loss, as `_losses` does."""
        return self._losses(losses, lost)

    def counted(
        self, answer: Callable[[float | None], dict[str, npt.NDArray[Any]]], urgency: Urgency, timeout: float | None
    ) -> dict[str, npt.NDArray[Any]]:
        """Return what `answer(deadline)` returns, and count it as a request of the model."""
        deadline = None if timeout is None else clock.monotonic() + timeout
        began = self._begins(deadline)
        try:
            results = answer(deadline)
        except RequestTimeout as late:
            error = expired(self.name, urgency) if urgency.drops and not urgency.left() else too_late(self.name, timeout)
            self._ends(began, outcome(error))
            raise error from late
        except BaseException as error:
            self._ends(began, outcome(error))
            raise
        self._ends(began, 0)
        return results

    def begun(self, urgency: Urgency, timeout: float | None) -> RequestFuture:
        """The future of a request that counts from now on."""
        future = RequestFuture()
        future.began = self._begins(wait=False)
        future.answered, future.ended, future.left = self._answered, self._over, self._park
        self.limit(future, urgency, timeout)
        return future

    def taken_over(
        self, arrays: dict[str, Any], names: Sequence[str] | None, urgency: Urgency, future: RequestFuture, lost: RuntimeLost | None
    ) -> None:
        """Start an ordinary request with these inputs, which are copied, for a future of `begun`. `lost`: how the runtime was lost with it
        before."""
        request = _Request(names, urgency, future, copy=True)
        if lost is None:
            self._started(request, arrays)
        elif not self._lost(request, lost, _copied(arrays)):
            raise lost

    def limit(self, future: RequestFuture, urgency: Urgency, timeout: float | None = None) -> None:
        """Let a future fail when its deadline has passed, or after `timeout` seconds."""
        if urgency.drops and (timeout is None or urgency.left() < timeout):
            future.limit(urgency.left(), lambda: expired(self.name, urgency))
        elif timeout is not None:
            future.limit(timeout, lambda: too_late(self.name, timeout))

    def _check(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The feeds in the model's order, as arrays of the right dtype and shape; RequestError otherwise."""
        self._check_there()
        return self._signature.check(feeds)

    def _check_there(self) -> None:
        if self._requests.gone:
            raise RequestError(f"model {self.name!r} has been unloaded. Load it again")

    def _losses(self, losses: int, lost: RuntimeLost) -> int:
        """How often workers had begun a request when the runtime was lost, now that it was lost again; raises where that was the end."""
        losses += lost.begun
        if not self._residence.goes_on(lost, losses):
            raise lost
        return losses

    def _run(
        self, arrays: dict[str, Any], names: Sequence[str] | None, urgency: Urgency, deadline: float | None
    ) -> dict[str, npt.NDArray[Any]]:
        tree = self._residence.tree(deadline)
        timeout = None if deadline is None else max(0.0, deadline - clock.monotonic())
        stage = tree.single(arrays)
        if stage is not None:
            self._fast_path = stage.fast_path
            try:
                return stage.run(arrays, urgency, timeout, names)
            except Stale:
                tree.stale(stage)
        results = tree.run(arrays, timeout, urgency, None)
        stage = tree.single(arrays)
        self._fast_path = None if stage is None else stage.fast_path
        return results if names is None else {name: results[name] for name in names}

    def _start(
        self,
        arrays: dict[str, Any],
        names: Sequence[str] | None,
        urgency: Urgency,
        copy: bool = True,
        timeout: float | None = None,
        loop: LoopResults | None = None,
        counts: bool = True,
    ) -> RequestFuture:
        """Starts a request with what `_check` gave."""
        future = RequestFuture(loop)
        request = _Request(names, urgency, future, copy, counts)
        future.began = self._begins(wait=False)
        future.answered, future.ended, future.left = self._answered, self._over, self._park
        self.limit(future, urgency, timeout)
        try:
            return self._started(request, arrays)
        except BaseException:
            future.settle()
            raise

    def _started(self, request: _Request, arrays: dict[str, Any]) -> RequestFuture:
        future, residence = request.future, self._residence
        if residence.source is not None and residence.own is not None and residence.is_leaving(residence.own):
            # Another runtime has to be started: not while the caller waits, who may be an event loop.
            if not self._submit_later(request, _copied(arrays)):
                self._submit(request, arrays)
            return future
        try:
            self._submit(request, arrays)
        except RuntimeLost as lost:
            if not self._lost(request, lost, _copied(arrays)):
                raise
        return future

    def _submit(self, request: _Request, arrays: dict[str, Any], copied: bool = False) -> None:
        tree = self._tree
        stage = tree.single(arrays, request.counts) or tree.derived(arrays)

        def lost(error: RuntimeLost, kept: dict[str, Any]) -> bool:
            return self._lost(request, error, kept)

        if stage is None:
            stays = arrays if copied or not request.copy else _copied(arrays, tree.session.held)
            tree.submit(stays, request.urgency, request.names, request.future, lost, borrow=not request.copy)
            return
        known = stage

        def again(kept: dict[str, Any]) -> None:
            tree.stale(known)
            tree.submit(kept, request.urgency, request.names, request.future, lost)

        stage.submit(arrays, request.urgency, request.names, request.future, again, lost, borrow=not request.copy)

    def _lost(self, request: _Request, error: RuntimeLost, kept: dict[str, Any]) -> bool:
        """The runtime was lost with this request in it. Whether it is submitted again."""
        request.losses += error.begun
        return self._residence.goes_on(error, request.losses) and self._submit_later(request, kept)

    def _submit_later(self, request: _Request, kept: dict[str, Any]) -> bool:
        """Submits on the thread that goes for another runtime first. False where there will be none. Where no thread can be had the future
        fails."""

        def submit() -> None:
            future = request.future
            try:
                if not future.done():
                    self._link.session()
                    with self._counting:
                        self._parked.discard(future)
                    self._submit(request, kept, copied=True)
                    return
            except RuntimeLost as error:
                if self._lost(request, error, kept):
                    return
                future.fail(error)
            except BaseException as error:
                future.fail(error)
            future.settle()

        self._park(request.future)
        try:
            return self._link.later(submit)
        except ResourceLimitError as error:  # no thread can be had: nobody will ever submit it
            request.future.fail(error)
            request.future.settle()
            return True

    def _park(self, future: RequestFuture) -> None:
        """A request waits for another runtime, or was cancelled: a runtime that is stopping does not wait for it."""
        with self._counting:
            if not future.over:
                self._parked.add(future)
        self._link.settled()

    def _start_now(self, feeds: Mapping[str, Any], names: Sequence[str] | None, urgency: Urgency, copy: bool) -> RequestFuture:
        return self._start(self._check(feeds), names, urgency, copy)

    async def _start_soon(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str] | None,
        urgency: Urgency,
        copy: bool,
        timeout: float | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> RequestFuture:
        """`_start` for an event loop. Where there is no room for the request yet, a thread sees to it: to be given shared memory takes
        milliseconds, and tenths of a second where it is much. `loop`: the running one, if the result is to come in its thread."""
        import asyncio

        arrays = self._check(feeds)
        own = self._residence.own
        if copy and own is not None and not (own.session.lost or own.session.held):
            stage = own.single(arrays) or own.derived(arrays)
            if stage is not None and not stage.has_room():
                arrays = _copied(arrays)  # the caller's other tasks may change them meanwhile
                while not stage.has_room() and await asyncio.to_thread(stage.make_room):
                    pass  # another task may have been given it
        results = None if loop is None or own is None else own.session.results_on(loop)
        return self._start(arrays, names, urgency, copy, timeout, results)

    def _give_back(self, loop: LoopResults | None = None) -> None:
        """`loop`: may be what calls this, and does not wait for the planner process."""
        own, number = self._residence.own, self._residence.number
        if own is None:
            return
        if loop is None:
            _release(own.session, own, number)
        else:
            own.session.aside(lambda: _release(own.session, own, number))

    def _begins(self, deadline: float | None = None, *, wait: bool = True) -> int:
        """A request is counted, and when that was is returned, as `_tally.now` says it.

        Where the runtime is stopping it waits for the next one up to `deadline`, or is refused where there will be none. `wait=False`: the
        caller sees to it that the request waits elsewhere. QueueFull where too many wait already."""
        link, requests = self._link, self._requests
        while True:
            if link.limit:
                with link.admission:
                    try:
                        link.admit()
                    except QueueFull:
                        requests.refused()
                        raise
                    began = requests.begins()
            else:
                began = requests.begins()
            if not began:
                self._check_there()
            # It counts before it is asked whether the runtime stops: who tells that after has seen it.
            if link.stopping is None or not (wait or self._residence.source is None or not link.revives):
                return began
            if requests.withdraws():
                self._give_back()
            link.settled()
            source = self._residence.source
            stopping = None if source is None else link.session(deadline).stopping
            if stopping is not None or source is None:
                raise fresh(stopping or link.stopping or RuntimeStopping("the runtime is stopping"))

    def _answered(self, future: RequestFuture, error: BaseException | None) -> None:
        """Count the answer to the request of a future."""
        self._requests.answered(future.began, 0 if error is None else outcome(error))

    def _over(self, future: RequestFuture) -> None:
        """The request of a future has ended, however it did."""
        with self._counting:
            last = self._requests.ends()
            future.over = True
            self._parked.discard(future)
        self._left(last, future.loop)

    def _ends(self, began: int, outcome: int) -> None:
        """A call of `run` ends; `outcome`: an index of `_tally.OUTCOMES`."""
        self._requests.answered(began, outcome)
        self._left(self._requests.ends())

    def _left(self, last: bool, loop: LoopResults | None = None) -> None:
        """The last request of a model that has been unloaded meanwhile gives it back: those that no worker had begun needed it."""
        if last:
            self._give_back(loop)
        if self._link.stopping is not None:
            self._link.settled()

    def __del__(self) -> None:
        residence: Residence | None = getattr(self, "_residence", None)
        if residence is None or residence.own is None or self._requests.gone:
            return
        session, tree, number = residence.own.session, residence.own, residence.number
        if session.error is None:
            session.later(lambda: _release(session, tree, number))


def outcome(error: BaseException) -> int:
    """How a request has ended that raised this, as an index of `_tally.OUTCOMES`."""
    if isinstance(error, RequestTimeout):
        return 2
    if isinstance(error, DeadlineMissed):
        return 6
    if isinstance(error, RequestCancelled | CancelledError | KeyboardInterrupt):
        return 3
    return 4 if isinstance(error, RuntimeLost) else 1


def _copied(arrays: Mapping[str, Any], held: Container[int] = ()) -> dict[str, Any]:
    """Arrays that nobody else can change; those at the addresses `held` nobody may."""
    return {
        name: np.array(array) if isinstance(array, np.ndarray) and address(array) not in held else array for name, array in arrays.items()
    }


def _release(session: Session, tree: StageTree, number: int) -> None:
    tree.close()
    if session.error is None:
        with contextlib.suppress(RuntimeLost):  # then there is nothing left to give back
            session.control.call(lambda request: protocol.Unload(request, number), protocol.Done)
            session.memory.trim()
