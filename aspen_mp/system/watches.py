"""Watches of folders: the kernel says when their entries change (inotify)."""

from __future__ import annotations

import ctypes
import os
from typing import Final

__all__ = [
    "add_watch",
    "init",
]

_libc: Final = ctypes.CDLL(None, use_errno=True)

CLOSED_AFTER_WRITING: Final = 0x8
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATED: Final = 0x100
DELETED: Final = 0x200
FOLDER_DELETED: Final = 0x400
FOLDER_MOVED: Final = 0x800
UNWATCHED: Final = 0x8000
"""The kernel tells it unasked: the watch has ended."""


def init() -> int:
    """Return a new descriptor without watches, which does not block. It is readable once an entry of a watched folder has changed.

    Raises:
        OSError: The system has no descriptor to give, or this user has as many of them as it allows.
    """
    fd: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(*_failure())
    return fd


def add_watch(fd: int, folder: str | os.PathLike[str], events: int) -> None:
    """Watch another folder, or the same one for these events instead.

    Args:
        fd: What `init` returned.
        folder: The path of the folder.
        events: The constants of this module, added.

    Raises:
        OSError: The folder is not there, cannot be read, or this user has as many watches as the system allows.
    """
    if _libc.inotify_add_watch(fd, os.fsencode(folder), events) < 0:
        raise OSError(*_failure(), os.fsdecode(folder))


def _failure() -> tuple[int, str]:
    error = ctypes.get_errno()
    return error, f"folders cannot be watched: {os.strerror(error)} (sysctl fs.inotify limits watches)"
