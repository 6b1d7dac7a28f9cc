"""How many workers runtimes of this machine have on each core: a lock for each worker, on one file that all of them open.

Byte `cpu * LEVELS + level` of the file stands for a *level* of a core. A worker holds the lowest level of its core that was free when it
came. So its level is the number of workers that were there before it. Levels are advice: they decide where a worker goes, never whether it
runs. Where the file cannot be had, a runtime knows of no other.

The protocol, and why it holds, is in the README of `aspen_mp/control`.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from aspen_mp.shm.scarcity import OPENING
from aspen_mp.system import descriptors, filesystem

FOLDER = "/tmp/aspen-mp-cores"
"""The folder of all users, because they share the cores."""
FILE = "workers"
LEVELS: Final = 1 << 10
"""Most workers of a core that are told apart. A worker above these holds no lock."""
MOST_LOOKS: Final = 1 << 14
"""Most system calls of one look. It ends a look at a file on which somebody holds locks without number."""
_LOCK: Final = struct.Struct("@hhqqi4x")
"""`struct flock`: type, whence, start, length, pid."""


def folder() -> str:
    """Where the lock file is: the environment variable ASPEN_MP_LEASES, else `FOLDER`. Empty for "off": nobody is told or asked."""
    setting = os.environ.get("ASPEN_MP_LEASES") or FOLDER
    return "" if setting == "off" else os.path.abspath(setting)


class Leases:
    """The levels that the workers of one runtime hold."""

    def __init__(self, where: str) -> None:
        """`where`: the folder, see `folder`; empty for none. OSError where only descriptors or memory are lacking to open it."""
        self._where = where
        self._fd = _open(where) if where else -1
        self._held: dict[int, set[int]] = {}

    def hold(self, cpu: int) -> int:
        """Takes a level for a worker that is going to run on `cpu`, and returns it."""
        own = self._held.setdefault(cpu, set())
        level = next(k for k in range(LEVELS + len(own) + 1) if k not in own and (k >= LEVELS or self._lock(cpu, k)))
        own.add(level)
        return level

    def drop(self, cpu: int) -> None:
        """Gives back the highest level of those held on `cpu`: a worker there has ended."""
        level = max(self._held[cpu])
        self._held[cpu].remove(level)
        if not self._held[cpu]:
            del self._held[cpu]
        self._unlock(cpu, level)

    @property
    def ahead(self) -> dict[int, int]:
        """How many workers of others were on each of our CPUs before ours. CPUs without any are left out."""
        found = {cpu: max(own) + 1 - len(own) for cpu, own in self._held.items()}
        return {cpu: n for cpu, n in found.items() if n}

    @property
    def shared(self) -> list[int]:
        """CPUs on which a worker runs that came after another runtime's."""
        return sorted(self.ahead)

    def retry(self) -> list[int]:
        """Takes lower levels where others have left some. Returns the CPUs on which nobody is ahead of us any more."""
        self._renew()
        before = self.shared
        for cpu in before:
            own = self._held[cpu]
            for level in sorted(own, reverse=True):
                lower = next((k for k in range(min(level, LEVELS)) if k not in own and self._lock(cpu, k)), None)
                if lower is not None:
                    own.add(lower)
                    own.remove(level)
                    self._unlock(cpu, level)
        return sorted(set(before).difference(self.ahead))

    def others(self) -> list[int]:
        """CPUs of other runtimes' workers, each named once for each worker."""
        self._renew()
        found: list[int] = []
        spans = [(0, 1 << 62)] if self._fd >= 0 else []
        for _ in range(MOST_LOOKS):
            if not spans:
                break
            begin, end = spans.pop()
            lock = self._somebody(begin, end)
            if lock is None:
                continue
            if lock.end - lock.begin <= LEVELS:  # a longer one is not a runtime's
                found += [byte // LEVELS for byte in range(max(begin, lock.begin), min(end, lock.end))]
            spans += [(a, b) for a, b in ((begin, lock.begin), (lock.end, end)) if a < b]
        return sorted(found)

    def close(self) -> None:
        self._held.clear()
        if self._fd >= 0:
            descriptors.close(self._fd)
            self._fd = -1

    # ---- the file

    def _renew(self) -> None:
        """Opens the file again where somebody has removed it, as cleaners of /tmp do, and takes levels of the new one."""
        if self._fd < 0 or descriptors.fstat(self._fd).st_nlink:
            return
        with suppress(OSError):  # the next look tries again
            old, self._fd = self._fd, _open(self._where)
            descriptors.close(old)
            held, self._held = self._held, {}
            for cpu, own in held.items():
                for _ in own:
                    self.hold(cpu)

    def _lock(self, cpu: int, level: int) -> bool:
        """Locks a level. False where another runtime holds it. Where locks cannot be had at all, it counts as locked."""
        if self._fd < 0:
            return True
        try:
            descriptors.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, cpu * LEVELS + level, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return True
        return True

    def _unlock(self, cpu: int, level: int) -> None:
        if self._fd >= 0 and level < LEVELS:
            with suppress(OSError):
                descriptors.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, cpu * LEVELS + level, 1, 0))

    def _somebody(self, begin: int, end: int) -> _Range | None:
        """A lock of another runtime in this range of bytes, if there is one."""
        try:
            found = descriptors.fcntl(self._fd, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, end - begin, 0))
        except OSError:
            return None
        kind, _, start, length, _ = _LOCK.unpack(found)
        return None if kind == fcntl.F_UNLCK else _Range(start, start + length if length else end)


class _Range(NamedTuple):
    begin: int
    end: int


def _open(folder: str) -> int:
    """A descriptor of the lock file in the folder; both are made if need be. -1 where they cannot be had.

    The folder is not a link and has the sticky bit, so that nobody removes another user's file. Anybody may lock the file.
    """
    with suppress(OSError):
        filesystem.mkdir(folder)
        filesystem.chmod(folder, 0o1777)
    inside = -1
    try:
        inside = descriptors.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        info = descriptors.fstat(inside)
        if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
            return -1
        return _open_file(inside)
    except OSError as error:
        if error.errno in OPENING:
            raise
        return -1
    finally:
        if inside >= 0:
            descriptors.close(inside)


def _open_file(inside: int) -> int:
    """OSError where it cannot be had. It is not opened with O_CREAT where it exists: the kernel refuses that for another user's file."""
    how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(2):
        with suppress(FileNotFoundError):
            fd = descriptors.open(FILE, how, dir_fd=inside)
            if stat.S_ISREG(descriptors.fstat(fd).st_mode):
                return fd
            descriptors.close(fd)
            return -1
        mask = filesystem.umask(0)
        try:
            with suppress(FileExistsError):
                return descriptors.open(FILE, how | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=inside)
        finally:
            filesystem.umask(mask)
    return -1
