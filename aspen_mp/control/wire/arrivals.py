"""Waiting for a runtime of some name to come: the run directories are watched (inotify), nothing is polled."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Final

from aspen_mp.control.wire import run_directory
from aspen_mp.shm.errors import RuntimeNotFound
from aspen_mp.shm.greenlets import readable
from aspen_mp.system import clock, descriptors, sockets, watches

_EVENTS: Final = watches.CREATED | watches.MOVED_TO | watches.FOLDER_DELETED | watches.FOLDER_MOVED
_GONE: Final = watches.FOLDER_DELETED | watches.FOLDER_MOVED | watches.UNWATCHED
_EVENT: Final = struct.Struct("iIII")
_LONGEST_S: Final = 1e6
"""The longest that poll(2) can wait: it counts milliseconds in 31 bits."""


class Watch:
    """The run directories, in which a socket may appear. OSError where the kernel gives no watch."""

    def __init__(self) -> None:
        self._fd = watches.init()
        try:
            directories = run_directory.open_directories(create=True)  # a new runtime would make them first
            try:
                for directory in directories.values():
                    watches.add_watch(self._fd, f"/proc/self/fd/{directory}", _EVENTS)
            finally:
                for directory in directories.values():
                    descriptors.close(directory)  # or its removal would not be told
        except BaseException:
            descriptors.close(self._fd)
            raise
        self.ended = False
        """Whether one of them is no longer what its name leads to."""

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        descriptors.close(self._fd)

    def wait(self, seconds: float, stop: int) -> bool:
        """Sleeps until something has appeared in the directory, or it has gone. False after `seconds`, and once `stop` is readable."""
        ready = readable([self._fd, stop], min(max(0.0, seconds), _LONGEST_S))
        if not ready and seconds > _LONGEST_S:
            return True  # the caller looks once more, and waits on
        if self._fd not in ready or stop in ready:
            return False
        with suppress(BlockingIOError):
            data = descriptors.read(self._fd, 1 << 16)
            while data:
                _, mask, _, length = _EVENT.unpack_from(data)
                self.ended |= bool(mask & _GONE)
                data = data[_EVENT.size + length :]
        return True


def connections(name: str, until: float, stop: int) -> Iterator[sockets.socket]:
    """Connected sockets to the runtime `name`: one as soon as it listens, and, where the caller asks for more, one at each later change.

    `until`: of `time.monotonic`; there is at least one attempt. `stop`: a descriptor that ends the wait when it is readable. Raises
    RuntimeNotFound where none came, ProtocolError where the run directory or its socket is not to be trusted.
    """
    missing: RuntimeNotFound | None = None
    with ExitStack() as stack:
        watch: Watch | None = None
        while True:
            try:
                sock = run_directory.connect(name)
                missing = None
            except RuntimeNotFound as error:
                missing = error
            else:
                yield sock
            if watch is not None and not watch.ended:
                if not watch.wait(until - clock.monotonic(), stop):
                    break
            elif clock.monotonic() < until:  # what happened before this watch began the next attempt sees
                stack.close()
                watch = stack.enter_context(Watch())
            else:
                break
    if missing is not None:
        raise missing
