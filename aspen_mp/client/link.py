"""A process's way to a runtime, which its handles share: the session, made anew in a process that got the handles by fork or by pickle."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Protocol

import aspen_mp
from aspen_mp.client.reconnect import Reconnects
from aspen_mp.shm.errors import AspenError, QueueFull, RuntimeLost
from aspen_mp.system import clock, processes, threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from aspen_mp.client.restart import Reviver
    from aspen_mp.client.session import Session
    from aspen_mp.shm.errors import RuntimeStopping

CONNECT_S = 5.0
"""How long a runtime may take to answer a process that connects."""


class Link:
    """`address` leads to this very runtime, as long as it lives, from any process of the same user. `session` is None in a process that
    has not used its handles yet."""

    def __init__(self, address: str, session: Session | None = None, reviver: Reviver | None = None, max_queued: int | None = None) -> None:
        """`reviver`: knows the way to another runtime where this one is lost; the address is then that one's. `max_queued`: see `limit`."""
        self.address = address
        self._session = session
        self._reviver = reviver
        self._closed = False
        self._max_queued = max_queued
        self.limit = max_queued or 0
        """Requests of this process that may wait for workers: the lower one of its own limit and the runtime's. 0: no limit."""
        self.admission = threads.Lock()
        """Held while a request is admitted, where their number is limited."""
        self._lock = threads.Lock()
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._counting = threads.Lock()
        if session is not None:
            self._note_limit(session)
            session.when_stopping(self._teller())
        _links.add(self)

    def session(self, until: float | None = None) -> Session:
        """The session, connected at first use, or anew where the runtime was lost and there is a way to another one.

        `until`: of `time.monotonic`; the end of the wait for another runtime. Raises RuntimeLost where the runtime has ended, or this link
        was closed."""
        session = self._session
        if session is not None and not self._to_replace(session):
            return session
        if not self._lock.acquire(timeout=-1 if until is None else max(0.0, until - clock.monotonic())):
            raise RuntimeLost(
                "the runtime was lost, and no other one of its name started in the time given. Start one, or wait longer (wait_s)"
            )
        try:
            session = self._session
            if session is None:
                session = self._first(until)
            elif self._reviver is not None and self._to_replace(session):
                session = self._reviver.again(session, until)
            else:
                return session
            self.address = session.welcome.address
            self._note_limit(session)
            self._session = session
        finally:
            self._lock.release()
        session.when_stopping(self._teller())
        return session

    def _note_limit(self, session: Session) -> None:
        own, common = self._max_queued or 0, session.welcome.max_queued
        self.limit = min(own, common) if own and common else own or common

    def admit(self) -> None:
        """Raises QueueFull where as many requests of this process wait as `limit` says. With `admission` held until the request counts."""
        session, limit = self._session, self.limit
        if session is None or not limit:
            return
        with self._counting:
            handles = list(self._handles)
        waiting = sum(handle.in_flight for handle in handles) - session.channel.running
        if waiting >= limit:
            raise QueueFull(
                f"{waiting} requests of this process wait for workers, and max_queued allows only {limit}. Submit the request again later"
            )

    @property
    def latest(self) -> Session | None:
        """The session as it is, whether it is of use or not; None where this process has not connected yet."""
        return self._session

    def _to_replace(self, session: Session) -> bool:
        return self._reviver is not None and (session.lost or session.stopping is not None) and self.revives

    def _first(self, until: float | None) -> Session:
        """The first session of this process; of the next runtime where that of the handle has ended meanwhile."""
        try:
            return self._connect()
        except AspenError:
            if self._reviver is None or not self.revives:
                raise
            return self._reviver.again(None, until)

    @property
    def revives(self) -> bool:
        """Whether a runtime that is lost is followed by another one."""
        return self._reviver is not None and not self._closed and not self._reviver.given_up

    @property
    def travels(self) -> tuple[str, float] | None:
        """What a pickled handle needs to find the runtime that follows this one; None where it ends with this one."""
        return None if self._reviver is None else self._reviver.travels()

    @property
    def stopping(self) -> RuntimeStopping | None:
        """Why the runtime takes no new requests, if so."""
        session = self._session
        return None if session is None else session.stopping

    def settled(self) -> None:
        """Some request has ended. Where it was the last one of this process, a runtime that is stopping is told."""
        session = self._session
        if session is None or session.stopping is None:
            return
        with self._counting:
            handles = list(self._handles)
        if not any(handle.in_flight for handle in handles):
            session.quiet()

    def _teller(self) -> Callable[[], None]:
        """`settled`, for a session, which must not keep its link alive."""
        me = weakref.ref(self)

        def tell() -> None:
            link = me()
            if link is not None:
                link.settled()

        return tell

    def later(self, action: Callable[[], None]) -> bool:
        """Runs it on a thread for what outlives a loss; False where nothing does."""
        return self._reviver is not None and self._reviver.later(action)

    def _connect(self) -> Session:
        from aspen_mp.client.session import Session
        from aspen_mp.control.wire import run_directory
        from aspen_mp.control.wire.identity import Address

        if self._closed:
            raise RuntimeLost("the runtime is closed. Open another one with Runtime or connect")
        address = Address.parse(self.address)
        try:
            sock = run_directory.connect_to(address)
        except OSError:
            raise RuntimeLost("the runtime that this handle belongs to has ended. Start a runtime and load the model again") from None
        return Session(sock, aspen_mp.__version__, CONNECT_S, address.secret)

    @property
    def lost(self) -> bool:
        """Whether there is no way any more."""
        return self._closed or (self._session is not None and self._session.error is not None and not self.revives)

    def holds(self, handle: Handle) -> None:
        """`handle.forked()` is called in every forked child in which it lives, and its requests are waited for by a runtime that stops."""
        with self._counting:
            self._handles.add(handle)

    def close(self) -> None:
        """Hangs up for good."""
        if self._reviver is not None:
            self._reviver.close()
        with self._lock:
            closed, self._closed = self._closed, True
        if self._session is not None and not closed:
            self._session.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def _after_fork(self) -> None:
        """The session is the parent's, the lock may be held for ever."""
        self._lock = threads.Lock()
        self._counting = threads.Lock()
        self.admission = threads.Lock()
        self._reviver = None if self._reviver is None else self._reviver.forked()
        session, self._session = self._session, None
        if session is not None:
            session.abandon(RuntimeLost("this belongs to the parent process; use the runtime's or the model's handle"))
        for handle in list(self._handles):
            handle.forked()


class Handle(Protocol):
    """What holds something of a session."""

    def forked(self) -> None:
        """In a forked child, before anything else: drop it without a word to the runtime."""

    @property
    def in_flight(self) -> int:
        """Requests of it that are under way in the runtime."""


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_by_address: weakref.WeakValueDictionary[str, Link] = weakref.WeakValueDictionary()
_by_address_lock = threads.Lock()


def to(address: str, named: tuple[str, float] | None = None) -> Link:
    """This process's link for unpickled handles of a runtime. `named`: of `Link.travels`."""
    with _by_address_lock:
        link = _by_address.get(address)
        if link is None or link.lost:
            link = _by_address[address] = Link(address, None, None if named is None else Reconnects(*named))
        return link


@atexit.register
def _close_all() -> None:
    for link in list(_links):
        link.close()


def _after_fork() -> None:
    global _by_address_lock  # noqa: PLW0603
    _by_address_lock = threads.Lock()
    for link in list(_links):
        link._after_fork()


processes.register_at_fork(after_in_child=_after_fork)
