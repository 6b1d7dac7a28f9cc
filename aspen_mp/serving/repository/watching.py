"""When folders of models change: the kernel says so (inotify), nothing is polled."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aspen_mp.system import descriptors

_EVENTS: Final = 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800  # closed after writing, moved from or to, created, deleted, itself gone
_FULL: Final = 1 << 16


class Watch:
    """Folders whose entries may change. `fd` is readable once one has. OSError where the kernel gives no watch."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise _failure("folders")

    def add(self, folders: Iterable[Path]) -> None:
        """Watches these, too. One that is watched already stays so; one that has gone is left out."""
        for folder in folders:
            if self._libc.inotify_add_watch(self.fd, os.fsencode(folder), _EVENTS) < 0 and folder.is_dir():
                raise _failure(str(folder))

    def read(self) -> None:
        """Takes all pending events, so that `fd` becomes readable for later ones only."""
        with suppress(BlockingIOError):
            while descriptors.read(self.fd, _FULL):
                pass

    def close(self) -> None:
        descriptors.close(self.fd)


def _failure(what: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, f"{what} cannot be watched: {os.strerror(error)} (sysctl fs.inotify limits watches)")
