"""What a client process holds of a runtime: control connection, submission channel, data memory, and the thread that resolves futures."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from aspen_mp.client.loop_results import LoopResults
from aspen_mp.client.requests.idle_regions import LOOK_S
from aspen_mp.client.requests.memory import DataMemory
from aspen_mp.client.requests.waiting import TicketWatcher, Waiting, do, tell
from aspen_mp.client.requests.zero_copy import Loans
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.calls import Calls
from aspen_mp.control.wire.client import ControlClient, fresh
from aspen_mp.shm.bindings import _channel
from aspen_mp.shm.bindings._tally import Tally
from aspen_mp.shm.errors import AspenError, RequestError, RuntimeLost, RuntimeStopping
from aspen_mp.shm.greenlets import greenlets, readable
from aspen_mp.shm.scarcity import start_thread
from aspen_mp.shm.segments import Segment
from aspen_mp.system import clock, sockets, threads

if TYPE_CHECKING:
    import asyncio

    from aspen_mp.client.requests.region import Region


class MemoryUser(Protocol):
    """What keeps regions of a session's memory for its next requests: a stage."""

    @property
    def kept_bytes(self) -> int: ...

    def look(self, leave: frozenset[int]) -> None: ...


class Session(Calls):
    """One connection to one runtime. Any thread may use it."""

    def __init__(self, sock: sockets.socket, package: str, timeout: float | None, secret: str = "") -> None:
        """`timeout`: of the handshake, in seconds. `secret`: what the other end has to know (`identity.proof`); empty where that is for the
        caller to judge. Raises what `ControlClient.handshake` does."""
        self.error: AspenError | None = None
        self.stopping: RuntimeStopping | None = None
        """Why no new requests are taken, once the runtime has announced its end; what is in flight goes on."""
        self.gone = threads.Event()
        """Set when the runtime is lost, or this session was closed."""
        self.gone_at = 0.0
        """When that was, as `time.monotonic` says it."""
        self._told: Callable[[], None] | None = None
        self._quiet = False
        self._lock = threads.RLock()  # `cancel` may come from a finalizer, wherever the garbage collector runs; it changes no table
        with ExitStack() as undo:
            undo.callback(sock.close)
            self.control = ControlClient(sock, self._on_lost, self._on_stopping)
            undo.callback(self.control.close)
            self.welcome, fds = self.control.handshake(package, timeout, secret)
            self._own, self._doorbell, self._counts = _segments(fds, undo)
            self.tally = Tally(self._counts.mapping)
            undo.callback(self.tally.close)
            self.channel = self._make_channel()
            undo.callback(self._close_channel)
            self._begin()
            self.control.listen()  # last: what is heard finds a whole session
            undo.pop_all()

    def _begin(self) -> None:
        """Everything that needs neither the connection nor its thread."""
        self.memory = DataMemory(self.make_data, self._drop_data)
        self.loans = Loans(self.make_loan, self._drop_data)
        self._stages: weakref.WeakSet[MemoryUser] = weakref.WeakSet()
        """Those whose requests use `memory`."""
        self._look_at = 0.0
        """When the resolver looks next for memory that no request needs, by `time.monotonic`. 0.0: there is none to look for."""
        self.held: dict[int, Region] = {}
        """Regions whose inputs users hold, by the addresses of those (`Stage.hold`)."""
        self._scarce = threads.Condition()
        self.wanting = 0
        """Threads that sleep until there is a slot."""
        self._published: dict[int, Waiting] = {}
        self.queue: deque[Waiting] = deque()
        """Submitted requests that wait for a slot."""
        self._resolver: threads.Thread | None = None
        self._chores: list[Callable[[], None]] = []
        """What follows from requests of an event loop and may take long, so that it is the resolver's."""
        self._loop: weakref.ref[LoopResults] | None = None
        with suppress(OSError):  # then there is none when a loop asks for it, and the resolver does its work
            self.channel.event()
        self._closing = False
        self._garbage: deque[Callable[[], None]] = deque()

    def _make_channel(self) -> _channel.ClientChannel:
        green = greenlets()
        if green is None:
            return _channel.ClientChannel(self._own.mapping, self._doorbell.mapping, self.tally)
        return _channel.GreenletChannel(self._own.mapping, self._doorbell.mapping, self.tally, green.start, readable)

    @property
    def lost(self) -> bool:
        """Whether the planner process is gone, or this session was closed."""
        return self.error is not None or self.control.lost is not None

    def later(self, clean: Callable[[], None]) -> None:
        """Something to clean up at the next `sweep`: for finalizers, which may run at any moment and must take no lock."""
        self._garbage.append(clean)

    def sweep(self) -> None:
        while self._garbage:
            clean = self._garbage.popleft()
            with suppress(AspenError):
                clean()

    # ---- the runtime

    def when_stopping(self, told: Callable[[], None]) -> None:
        """`told()` is called once `stopping` is set: now, or on the control connection's thread."""
        with self._lock:
            self._told = told
            now = self.stopping is not None
        if now:
            told()

    def quiet(self) -> None:
        """Tells a runtime that is stopping that nothing of this process is in flight any more."""
        with self._lock:
            first, self._quiet = not self._quiet, True
        if first:
            self.control.tell(protocol.Quiet)

    def _on_stopping(self, message: protocol.Stopping) -> None:
        with self._lock:
            self.stopping = RuntimeStopping(
                f"the runtime is stopping: it finishes what is in flight, for {message.grace_s:g} s at most, and takes nothing new"
            )
            told = self._told
        if told is not None:
            told()

    # ---- data segments

    def _drop_data(self, index: int) -> None:
        if self.error is None:
            self.control.call(lambda number: protocol.DropData(number, index), protocol.Done)

    def memory_has_grown(self) -> None:
        """A request has taken memory that none had before. The resolver looks for it from now on if clients at rest keep less."""
        if not self._look_at and self.memory.spans > self._kept() + 1:
            with self._lock, suppress(AspenError):
                self._start_resolver()
                self._look_at = clock.monotonic() + LOOK_S

    def _kept(self) -> int:
        """Regions that wait for a request, at most one for each stage."""
        return sum(stage.kept_bytes > 0 for stage in self._all_stages())

    def _all_stages(self) -> list[MemoryUser]:
        with self._lock:
            return list(self._stages)

    def add_stage(self, stage: MemoryUser) -> None:
        """From now on `look` gives back what the stage does not need."""
        with self._lock:
            self._stages.add(stage)

    def look(self) -> None:
        """Gives memory back that no request has needed since the look before this one."""
        leave = self.memory.sparse()
        for stage in self._all_stages():
            stage.look(leave)
        with suppress(AspenError):
            self.memory.trim()
        again = leave or self.memory.spans > self._kept()
        self._look_at = clock.monotonic() + LOOK_S if again else 0.0

    # ---- requests

    def execute(
        self,
        plan: int,
        generation: int,
        data: int,
        offset: int,
        urgency: _channel.Urgency,
        timeout: float | None,
        on_left: Callable[[], None],
        stop: TicketWatcher | None = None,
        extent: int = 0,
    ) -> _channel.Result | None:
        """Publishes a request and sleeps until it is done, without a detour through another thread.

        None after `timeout` seconds. Then, and when Ctrl-C ends the wait, the request is cancelled, and `on_left()` is called as soon as
        nothing writes to its memory any more; otherwise the memory is free when this returns. `stop` can cancel it meanwhile.
        """
        channel = self.channel
        taken: list[int] = []
        try:
            if self.error is not None:
                raise _loss(self.error, False)
            ticket = channel.offer(plan, generation, data, offset, urgency, taken, extent)
            if ticket < 0:
                ticket = self._slot(lambda: channel.offer(plan, generation, data, offset, urgency, taken, extent), timeout)
        except BaseException as error:
            if taken:
                raise self.unfinished(taken[0], error, on_left) from None
            on_left()
            if isinstance(error, RuntimeLost) and self.error is not None:
                raise _loss(self.error, False) from None
            raise
        if ticket < 0:
            on_left()
            return None
        try:
            if stop is not None:
                stop.started(ticket)
            result = channel.finish(ticket, timeout)
            if stop is not None:
                stop.started(-1)
        except BaseException as error:
            raise self.unfinished(ticket, error, on_left) from None
        if result is None:
            self.leave(ticket, on_left)
            return None
        if self.wanting or self.queue:
            self.slot_is_free()
        return result

    def unfinished(self, ticket: int, error: BaseException, on_left: Callable[[], None]) -> BaseException:
        """What to raise where the wait for a ticket has ended with an error, not with a result."""
        if isinstance(error, RuntimeLost) and self.error is not None:
            begun = self._begun(ticket)
            on_left()  # nobody uses this memory any more
            return _loss(self.error, begun)
        self.leave(ticket, on_left)
        return error

    def _slot(self, offer: Callable[[], int], timeout: float | None) -> int:
        """The ticket of `offer`, repeated as slots get free; -1 after `timeout` seconds."""
        ticket = -1

        def offered() -> bool:
            nonlocal ticket
            ticket = offer()
            return ticket >= 0

        with self._scarce:
            self.wanting += 1  # before the next look: who gives a slot back after that sees it
            try:
                self._scarce.wait_for(offered, timeout)
            finally:
                self.wanting -= 1
                self._scarce.notify()  # who was woken, but left for another reason, wakes the next
        return ticket

    def slot_is_free(self) -> None:
        """For those who wait for one: whoever has given one back looks at `wanting` and `queue`, and calls this where there is anybody."""
        if self.wanting:
            with self._scarce:
                self._scarce.notify()
        if self.queue:
            self.channel.wake()

    def _begun(self, ticket: int) -> bool:
        """Whether a worker had begun with a request, now that the runtime is lost."""
        try:
            return self.channel.state(ticket) != "submitted"
        except AspenError:
            return True

    def leave(self, ticket: int, on_left: Callable[[], None]) -> None:
        """The resolver waits for what nobody else waits for."""
        waiting = Waiting(0, 0, 0, 0, _channel.Urgency(0), lambda _: on_left())
        waiting.ticket = ticket
        try:
            self.channel.cancel(ticket)
        except RequestError:  # it had ended, and its slot had been given back, when Ctrl-C came
            on_left()
            if self.wanting or self.queue:
                self.slot_is_free()
            return
        with self._lock:
            lost = self.error is not None
            if not lost:
                self.channel.expect(others=True)
                self._published[ticket] = waiting
                self._start_resolver()
                self.channel.wake()
        if lost:  # the resolver has ended, or is about to
            on_left()

    def submit(self, waiting: Waiting) -> None:
        """Publishes, or queues where all slots are taken. `waiting.on_done` is called from the resolver or from `waiting.loop`, also
        where this is interrupted once `waiting.handed_over` is set."""
        with self._lock:
            if self.error is not None:
                raise _loss(self.error, False)
            self._start_resolver()
            if waiting.loop is not self._current_loop():  # of another session, or closed since
                waiting.loop = None
            if waiting.loop is None:
                self.channel.expect(others=True)
            else:
                self.channel.expect(loop=True)
            self.channel.hand_over(waiting, self._published, self.queue)
            if self.queue:  # what is queued the resolver publishes
                self.channel.expect(others=True)

    def _publish(self, waiting: Waiting) -> bool:
        """With the lock held, in the resolver's thread. False where all slots are taken."""
        waiting.ticket = self.channel.offer(
            waiting.plan, waiting.generation, waiting.data, waiting.offset, waiting.urgency, None, waiting.extent
        )
        if waiting.ticket < 0:
            return False
        self._published[waiting.ticket] = waiting
        return True

    def cancel(self, waiting: Waiting) -> None:
        """Asks for the request to end; `on_done` still comes."""
        with self._lock:
            waiting.cancelled = True
            if waiting.ticket >= 0 and waiting.ticket in self._published:
                self.channel.cancel(waiting.ticket)
        self.channel.wake()

    # ---- event loops

    def results_on(self, loop: asyncio.AbstractEventLoop) -> LoopResults | None:
        """What takes results on a running loop; None where another loop does that, or this one watches no descriptors: then the resolver
        takes them."""
        known = self._current_loop()
        return known if known is not None and known.loop is loop else self._watched_by(loop, known)

    def _current_loop(self) -> LoopResults | None:
        return None if self._loop is None else self._loop()

    def _watched_by(self, loop: asyncio.AbstractEventLoop, known: LoopResults | None) -> LoopResults | None:
        if known is not None and not known.loop.is_closed():
            return None
        with self._lock:
            if self.error is not None:
                return None
            if known is not None:
                self._take_from(known)
            try:
                made = LoopResults(self, loop)
            except (OSError, NotImplementedError):
                return None
            self._loop = weakref.ref(made)
        return made

    def _take_from(self, loop: LoopResults) -> None:
        """With the lock held: the resolver sees to what a loop has left behind."""
        for waiting in (*self._published.values(), *self.queue):
            if waiting.loop is loop:
                waiting.loop = None
        self.channel.expect(loop=False, others=True)
        self.channel.wake()

    def take(self, loop: LoopResults) -> None:
        """Resolves what has ended of a loop's requests, in its thread."""
        ended: list[tuple[Waiting, _channel.Result | AspenError]] = []
        try:
            with self._lock:
                if self.error is not None:
                    return  # all that is left is the resolver's
                self._take_ended(loop, ended)
                if self.wanting or self.queue:
                    self.slot_is_free()
            while ended:
                tell([ended.pop(0)])
        finally:
            if ended:  # Ctrl-C came
                self.aside(partial(tell, ended))

    def _take_ended(self, loop: LoopResults, ended: list[tuple[Waiting, _channel.Result | AspenError]]) -> None:
        """With the lock held: moves what has ended of a loop's requests to `ended`; what has ended with an error is the resolver's."""
        waits = False
        for ticket, waiting in list(self._published.items()):
            if waiting.loop is not loop:
                continue
            result = self.channel.take(ticket)
            if result is None:
                waits = True
                continue
            if result is _channel.FINE:
                ended.append((waiting, result))
            else:
                self.channel.expect(others=True)
                self._chores.append(partial(waiting.on_done, result))
            del self._published[ticket]
        self.channel.expect(loop=waits)
        if self._chores:
            self.channel.wake()

    def aside(self, chore: Callable[[], None]) -> None:
        """Has the resolver do something for an event loop; at once where the runtime is lost, and with it the resolver."""
        with self._lock:
            lost = self.error is not None
            if not lost:
                self.channel.expect(others=True)
                self._chores.append(chore)
                self._start_resolver()
                self.channel.wake()
        if lost:
            chore()

    # ---- the resolver

    def _start_resolver(self) -> None:
        if self._resolver is None:
            seen = self.channel.completions()  # now: a request may end before the thread runs
            resolver = threads.Thread(target=_resolve, args=(weakref.ref(self), self.channel, seen), name="aspen-mp results", daemon=True)
            start_thread(resolver)
            self._resolver = resolver

    def _step(self, unheard: bool = False) -> bool:
        """Resolves what is done and publishes what was queued. False when the thread should end. `unheard`: an event loop has not taken
        what is its own."""
        ended: list[tuple[Waiting, _channel.Result | AspenError]] = []
        with self._lock:
            chores, self._chores = self._chores, []
            for ticket, waiting in list(self._published.items()):
                if waiting.loop is not None and not unheard:
                    continue
                result = self.channel.take(ticket)
                if result is not None:
                    del self._published[ticket]
                    if self.wanting:  # what is queued is published below
                        self.slot_is_free()
                    ended.append((waiting, result))
            error = self.error
            if error is not None:
                ended += [(waiting, _loss(error, self._begun(ticket))) for ticket, waiting in self._published.items()]
                ended += [(waiting, _loss(error, False)) for waiting in self.queue]
                self._published.clear()
                self.queue.clear()
            ended += self._publish_queue()
            published = self._published.values()
            others = bool(self.queue) or not all(waiting.loop for waiting in published)
            self.channel.expect(any(waiting.loop for waiting in published), others)
            done = (self._closing or error is not None) and not self._published and not self.queue
        for chore in chores:
            do(chore)
        tell(ended)
        if self._look_at and clock.monotonic() >= self._look_at and not done:
            self.look()
        return not done

    def _publish_queue(self) -> list[tuple[Waiting, AspenError]]:
        """With the lock held: publishes what is queued, as far as there are slots. What cannot be, with its error."""
        ended: list[tuple[Waiting, AspenError]] = []
        if self.queue:
            self.channel.expect(loop=True)  # they may be a loop's
        while self.queue:
            waiting = self.queue[0]
            if waiting.cancelled:
                ended.append((waiting, _cancelled()))
            else:
                try:
                    if not self._publish(waiting):
                        break
                except AspenError as refused:
                    ended.append((waiting, refused))
            self.queue.popleft()
        return ended

    # ---- the end

    def _on_lost(self, error: RuntimeLost) -> None:
        self._fail(error)

    def _fail(self, error: AspenError) -> None:
        """Every request in flight, and every later one, ends with `error`."""
        with self._lock:
            if self.error is None:
                self.gone_at = clock.monotonic()
                self.error = error
        self.gone.set()
        self.channel.lost()
        with self._scarce:
            self._scarce.notify_all()

    def close(self) -> None:
        """Hangs up: the planner process cancels what is in flight and reclaims the memory. Futures fail with RuntimeLost."""
        self._closing = True
        self._fail(RuntimeLost("the runtime is closed. Open another one with Runtime or connect"))
        resolver = self._resolver
        if resolver is not None and resolver is not threads.current_thread():
            resolver.join()
        self.control.close()
        self.memory.close()
        self.loans.close()
        self.held.clear()
        self._garbage.clear()
        loop = self._current_loop()
        if loop is not None:
            loop.end()
        self._close_channel()
        self.tally.close()
        for own in (self._own, self._doorbell, self._counts):
            own.close()

    def _close_channel(self) -> None:
        self.channel.close_event()
        self.channel = cast("_channel.ClientChannel", _NoChannel())

    def abandon(self, error: AspenError) -> None:
        """In a forked child: this session is the parent's. Threads do not survive a fork, locks may be held for ever: make new ones."""
        self.error = error
        self._look_at = 0.0
        self._lock = threads.RLock()
        self._scarce = threads.Condition()
        self.wanting = 0
        self._resolver = None
        loop, self._loop = self._current_loop(), None
        if loop is not None:
            loop.abandon()
        self.channel.close_event()
        self._chores = []
        self._published = {}
        self.queue = deque()
        self.held = {}
        self.loans.abandon()
        self.control.abandon(error)


def _segments(fds: list[int], undo: ExitStack) -> list[Segment]:
    """The client's own segment, the doorbell page and the tally, whose descriptors came in this order; `undo` closes them."""
    undo.callback(lambda: protocol.close_all(fds))
    if len(fds) != 3:
        raise RuntimeLost("the runtime's answer lacks its descriptors")
    mapped = []
    for role in ("client", "doorbell", "tally"):
        segment = Segment.from_fd(fds.pop(0), role, writable=True, check=role == "client")
        undo.callback(segment.close)
        segment.close_fd()
        mapped.append(segment)
    return mapped


class _NoChannel:
    """In place of a closed session's channel, so that its memory is unmapped: refuses everything that is not harmless."""

    running = 0

    def offer(self, *_: object) -> int:
        raise RuntimeLost("the runtime is closed. Open another one with Runtime or connect")

    def cancel(self, *_: object) -> None: ...

    def wake(self) -> None: ...

    def heard(self) -> None: ...

    def expect(self, *_: object) -> None: ...

    def close_event(self) -> None: ...

    def lost(self) -> None: ...

    def state(self, _: object) -> str:
        return "running"


def _loss(error: AspenError, begun: bool) -> AspenError:
    """Why a request ends that was in flight when the runtime was lost."""
    loss = fresh(error)
    if isinstance(loss, RuntimeLost):
        loss.begun = begun
    return loss


def _cancelled() -> AspenError:
    from aspen_mp.shm.errors import RequestCancelled

    return RequestCancelled("the request was cancelled")


def _resolve(reference: weakref.ref[Session], channel: _channel.ClientChannel, seen: int) -> None:
    """The resolver's thread: holds the session only while it works, so that a forgotten runtime can be collected. `seen`: the count of
    completions before its first request."""
    unheard = False
    while True:
        session = reference()
        if session is None or not session._step(unheard):
            return
        del session
        seen, unheard = channel.attend(seen)
