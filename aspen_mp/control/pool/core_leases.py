"""Which cores other runtimes of this machine have workers on: a lock file for each core, held for as long as there is a worker.

Advice, no more: a core that somebody holds is taken last, and taken all the same where there is no other; who shares a core so tries for
its lock again and again, and has it when the holder has gone. A lock ends with its holder, whatever becomes of it. Where the folder cannot
be had, nobody knows of anybody.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import Counter
from contextlib import suppress

from aspen_mp.shm.scarcity import OPENING

FOLDER = "/tmp/aspen-mp-cores"
"""One for all users: they share the cores."""


def folder() -> str:
    """Where the lock files are: the environment variable ASPEN_MP_LEASES, else `FOLDER`. Empty for "off": nobody is told or asked."""
    setting = os.environ.get("ASPEN_MP_LEASES") or FOLDER
    return "" if setting == "off" else os.path.abspath(setting)


class Leases:
    def __init__(self, where: str) -> None:
        """`where`: the folder, see `folder`; empty for none."""
        self._folder = _open(where) if where else -1
        self._held: dict[int, int] = {}
        self._shared: set[int] = set()
        self._lacking: set[int] = set()  # CPUs whose locks there was no descriptor for
        self._uses: Counter[int] = Counter()

    def hold(self, cpu: int) -> bool:
        """A worker runs there now. False where another runtime has one there as well."""
        self._uses[cpu] += 1
        return self._take(cpu)

    @property
    def shared(self) -> list[int]:
        """CPUs on which a worker runs and another runtime's as well."""
        return sorted(self._shared)

    def retry(self) -> list[int]:
        """Tries again for the cores that are shared, or whose locks could not be opened; returns those that others have given up since."""
        for cpu in list(self._lacking):
            self._take(cpu)
        return [cpu for cpu in self.shared if self._take(cpu)]

    def _take(self, cpu: int) -> bool:
        if cpu in self._held:
            return True
        try:
            fd = self._lock(cpu)
        except OSError:
            self._lacking.add(cpu)
            return cpu not in self._shared
        self._lacking.discard(cpu)
        if fd is None:
            self._shared.add(cpu)
            return False
        self._shared.discard(cpu)
        if fd >= 0:
            self._held[cpu] = fd
        return True

    def drop(self, cpu: int) -> None:
        """A worker there has ended."""
        self._uses[cpu] -= 1
        if self._uses[cpu] <= 0:
            del self._uses[cpu]
            self._shared.discard(cpu)
            self._lacking.discard(cpu)
            if cpu in self._held:
                os.close(self._held.pop(cpu))

    def others(self) -> list[int]:
        """CPUs on which other runtimes have workers. OSError where descriptors are lacking to find out."""
        if self._folder < 0:
            return []
        found = []
        try:
            for entry in os.listdir(self._folder):
                if entry.isdigit() and int(entry) not in self._held:
                    # A shared lock: two who look at once do not see each other.
                    fd = self._lock(int(entry), fcntl.LOCK_SH)
                    if fd is None:
                        found.append(int(entry))
                    elif fd >= 0:
                        os.close(fd)
        except OSError as error:
            if error.errno in OPENING:
                raise
        return sorted(found)

    def close(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()
        self._shared.clear()
        self._lacking.clear()
        self._uses.clear()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _lock(self, cpu: int, kind: int = fcntl.LOCK_EX) -> int | None:
        """The locked file of a core; None where somebody else holds it, -1 where there is no such file to be had. OSError where only a
        descriptor is lacking."""
        if self._folder < 0:
            return -1
        try:
            fd = os.open(str(cpu), os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644, dir_fd=self._folder)
        except OSError as error:
            if error.errno in OPENING:
                raise
            return -1
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            return -1
        return fd


def _open(folder: str) -> int:
    """The folder, made if need be: a folder and no link, with the sticky bit, so that nobody removes another's files. -1 otherwise."""
    with suppress(OSError):
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    info = os.fstat(fd)
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        os.close(fd)
        return -1
    return fd
