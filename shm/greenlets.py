"""Programs whose threads are greenlets, because gevent or eventlet has patched `threading`.

A wait in C stops every greenlet of its thread there. So greenlets wait for descriptors, and what has to wait in C gets a native thread.
"""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from aspen_mp.shm.errors import RequestError
from aspen_mp.system import sockets, threads

Start = Callable[[Callable[[], object], tuple[()]], int]
Select = Callable[[Collection[int], tuple[()], tuple[()], float | None], tuple[list[int], list[int], list[int]]]


class Greenlets(NamedTuple):
    """A library's functions for waits, where it patches threads.

    Attributes:
        start: Starts a function in a native thread.
        poll: Makes a `select.poll` that lets other greenlets run. None: the library has none.
        select: As `select.select`, but other greenlets run meanwhile.
    """

    start: Start
    poll: Callable[[], Any] | None
    select: Select


def greenlets() -> Greenlets | None:
    """Return what greenlets wait with; None where threads are not patched.

    Raises:
        RequestError: Threads were patched after this package had been imported, so that some of its locks stop all greenlets.
    """
    found = _patched()
    if found is not None and threading.Lock is not threads.Lock:
        raise RequestError(
            "threads were patched (gevent.monkey.patch_all, eventlet.monkey_patch) after aspen_mp had been imported. Patch them first: at "
            "the top of the program, or of gunicorn.conf.py with gunicorn --preload"
        )
    return found


def readable(watched: Collection[int], timeout: float | None) -> set[int]:
    """Sleep until one of the descriptors is readable. Return those that are: none after `timeout` seconds."""
    patched = _patched()
    make = sockets.poll if patched is None else patched.poll
    if make is None:
        assert patched is not None
        return set(patched.select(watched, (), (), timeout)[0])
    poll = make()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)}


def _patched() -> Greenlets | None:
    return _gevent() or _eventlet()


def _gevent() -> Greenlets | None:
    patches = sys.modules.get("gevent.monkey")
    if patches is None or not patches.is_module_patched("threading"):
        return None
    from gevent.select import poll
    from gevent.select import select as wait

    return Greenlets(patches.get_original("_thread", "start_new_thread"), poll, wait)


def _eventlet() -> Greenlets | None:
    patches = sys.modules.get("eventlet.patcher")
    if patches is None or not patches.is_monkey_patched("thread"):
        return None
    from eventlet.green.select import select as wait

    return Greenlets(patches.original("_thread").start_new_thread, None, wait)
