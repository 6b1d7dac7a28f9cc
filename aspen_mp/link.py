"""A process's way to a runtime, which its handles share: the session, made anew in a process that got the handles by fork or by pickle."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

import aspen_mp
from aspen_mp.shm.errors import RuntimeLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from aspen_mp.revival import Reviver
    from aspen_mp.session import Session

CONNECT_S = 5.0
"""How long a runtime may take to answer a process that connects."""


class Link:
    """`address` leads to this very runtime, as long as it lives, from any process of the same user. `session` is None in a process that
    has not used its handles yet."""

    def __init__(self, address: str, session: Session | None = None, reviver: Reviver | None = None) -> None:
        """`reviver`: starts another runtime where this one is lost; the address is then the new one's."""
        self.address = address
        self._session = session
        self._reviver = reviver
        self._closed = False
        self._lock = threading.Lock()
        self._forked: weakref.WeakSet[Handle] = weakref.WeakSet()
        _links.add(self)

    def session(self) -> Session:
        """The session, connected at first use. Raises RuntimeLost where the runtime has ended or this link was closed."""
        session = self._session
        if session is not None and not (self._reviver is not None and session.lost and self.revives):
            return session
        with self._lock:
            session = self._session
            if session is None:
                session = self._connect()
            elif self._reviver is not None and session.lost and self.revives:
                session = self._reviver.again(session)
                self.address = session.welcome.address
            self._session = session
            return session

    @property
    def revives(self) -> bool:
        """Whether a runtime that is lost is started again."""
        return self._reviver is not None and not self._closed and not self._reviver.given_up

    def later(self, action: Callable[[], None]) -> bool:
        """Runs it on a thread for what outlives a loss; False where nothing does."""
        return self._reviver is not None and self._reviver.later(action)

    def _connect(self) -> Session:
        from aspen_mp.control import rundir
        from aspen_mp.control.identity import Address
        from aspen_mp.session import Session

        if self._closed:
            raise RuntimeLost("the runtime is closed")
        address = Address.parse(self.address)
        try:
            sock = rundir.connect_to(address)
        except OSError:
            raise RuntimeLost("the runtime that this handle belongs to has ended") from None
        return Session(sock, aspen_mp.__version__, CONNECT_S, address.secret)

    @property
    def lost(self) -> bool:
        """Whether there is no way any more."""
        return self._closed or (self._session is not None and self._session.error is not None and not self.revives)

    def on_fork(self, handle: Handle) -> None:
        """`handle.forked()` is called in every forked child in which it lives."""
        self._forked.add(handle)

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
        self._lock = threading.Lock()
        self._reviver = None
        session, self._session = self._session, None
        if session is not None:
            session.abandon(RuntimeLost("this belongs to the parent process; use the runtime's or the model's handle"))
        for handle in list(self._forked):
            handle.forked()


class Handle(Protocol):
    """What holds something of a session."""

    def forked(self) -> None:
        """In a forked child, before anything else: drop it without a word to the runtime."""


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_by_address: weakref.WeakValueDictionary[str, Link] = weakref.WeakValueDictionary()
_by_address_lock = threading.Lock()


def to(address: str) -> Link:
    """This process's link for unpickled handles of a runtime."""
    with _by_address_lock:
        link = _by_address.get(address)
        if link is None or link.lost:
            link = _by_address[address] = Link(address)
        return link


@atexit.register
def _close_all() -> None:
    for link in list(_links):
        link.close()


def _after_fork() -> None:
    global _by_address_lock  # noqa: PLW0603
    _by_address_lock = threading.Lock()
    for link in list(_links):
        link._after_fork()


os.register_at_fork(after_in_child=_after_fork)
