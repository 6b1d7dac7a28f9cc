"""Tracks the users of a node's runtime: locks on a file in the run directory, which the kernel releases however their holder ends.

Every user holds a shared lock on byte `_USERS`. The keeper of the runtime waits until it gets that byte alone, and ends the runtime then.
Whoever looks whether there is a runtime, and starts one where there is none, holds byte `_START` alone meanwhile.

Locks belong to the open file, not to the process (``F_OFD_SETLKW``). So they work between the threads of a process, and do not end where
another descriptor of the file is closed. The last one removes the file while it holds `_USERS` alone. So whoever gets a lock looks whether
the file still has its name, and begins again with the new file otherwise.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from aspen_mp.control.wire import run_directory
from aspen_mp.errors import AspenError

_USERS: Final = 0
_START: Final = 1
_SUFFIX: Final = ".users"
_LOCK: Final = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, first byte, bytes, process."""


class Users:
    """A user of the runtime `name`, from construction to `close`. Waits while a keeper ends the runtime."""

    def __init__(self, name: str) -> None:
        self.name = run_directory.check_name(name)
        self._fd = -1
        while self._fd < 0:
            fd = _open(name)
            try:
                _lock(fd, fcntl.F_RDLCK, _USERS)
                if _named(fd, name):
                    self._fd = fd
            finally:
                if self._fd < 0:
                    os.close(fd)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """One user at a time."""
        _lock(self._fd, fcntl.F_WRLCK, _START)
        try:
            yield
        finally:
            _lock(self._fd, fcntl.F_UNLCK, _START)

    def give_up(self) -> None:
        """`close` where no keeper could be started: nobody else would remove the file."""
        with suppress(BlockingIOError):  # another user tries, too
            _lock(self._fd, fcntl.F_WRLCK, _USERS, fcntl.F_OFD_SETLK)
            _remove(self._fd, self.name)
        self.close()

    def close(self) -> None:
        """The runtime may end, as far as this user is concerned."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Ending:
    """The keeper's view of the users of the runtime `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fd = _open(name)

    def wait(self) -> None:
        """Sleeps until there is no user. New ones wait from then on, until this process has ended or called `close`."""
        _lock(self._fd, fcntl.F_WRLCK, _USERS)

    def close(self) -> None:
        """Removes the file, and lets those who wait go on with a new one. After `wait`."""
        try:
            _remove(self._fd, self._name)
        finally:
            os.close(self._fd)


def left() -> list[str]:
    """Names with a file that nobody uses: a keeper or a user was killed."""
    return [name for name in _files() if _unused(name, remove=False)]


def clean() -> list[str]:
    """Removes these files. Returns the names of those that are gone."""
    return [name for name in _files() if _unused(name, remove=True)]


def _files() -> list[str]:
    try:
        directory = run_directory.open_directory(create=False)
    except (OSError, AspenError):
        return []
    try:
        return sorted(entry.removesuffix(_SUFFIX) for entry in os.listdir(directory) if entry.endswith(_SUFFIX))
    finally:
        os.close(directory)


def _unused(name: str, *, remove: bool) -> bool:
    """Whether no user has the file and no runtime of that name lives; `remove`: takes it away then."""
    try:
        fd = _open(run_directory.check_name(name), create=False)
    except (OSError, AspenError):
        return False
    try:
        _lock(fd, fcntl.F_WRLCK, _USERS, fcntl.F_OFD_SETLK)
        if run_directory.holder(name) is not None:
            return False
        if remove:
            _remove(fd, name)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def _file(name: str) -> str:
    return f"{name}{_SUFFIX}"


def _open(name: str, *, create: bool = True) -> int:
    """Descriptor of the file, which is made where there is none; FileNotFoundError then, if not `create`."""
    while True:
        directory = run_directory.open_directory(create=create)
        try:
            make = os.O_CREAT if create else 0
            return os.open(_file(name), os.O_RDWR | make | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except FileNotFoundError:
            if not create:
                raise
            continue  # the directory was removed in between
        finally:
            os.close(directory)


def _named(fd: int, name: str) -> bool:
    """Whether the file's name still leads to it."""
    directory = run_directory.open_directory(create=True)
    try:
        return os.path.samestat(os.stat(_file(name), dir_fd=directory, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
    finally:
        os.close(directory)


def _remove(fd: int, name: str) -> None:
    """Takes its name from the file, unless that leads to another one by now. With byte `_USERS` held alone."""
    if not _named(fd, name):
        return
    directory = run_directory.open_directory(create=True)
    try:
        with suppress(FileNotFoundError):
            os.unlink(_file(name), dir_fd=directory)
    finally:
        os.close(directory)


def _lock(fd: int, kind: int, byte: int, how: int = fcntl.F_OFD_SETLKW) -> None:
    try:
        fcntl.fcntl(fd, how, _LOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno == errno.ENOLCK:
            error.add_note(f"{run_directory.path()} lies on a file system without locks. Set XDG_RUNTIME_DIR to a local folder")
        raise
