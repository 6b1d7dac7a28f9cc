"""A folder for files of models that have none, which front ends read. The next start removes the files of a killed server."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aspen_mp.system import descriptors, filesystem, processes

PREFIX: Final = "aspen-mp-serve-"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder of this process, which is gone at the end. Its lock says that it is in use, and ends with the process, however that ends."""
    while True:
        path = Path(filesystem.mkdtemp(PREFIX))
        lock = descriptors.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptors.flock(lock, fcntl.LOCK_EX)
        if filesystem.isdir(path):
            break
        descriptors.close(lock)  # `clean` was between the two: it took the folder for one that was left
    try:
        yield path
    finally:
        filesystem.rmtree(path, ignore_errors=True)
        descriptors.close(lock)


def clean() -> list[Path]:
    """Removes folders of this user's servers that have been killed. Returns them."""
    removed = []
    root = Path(filesystem.gettempdir())
    for path in sorted(root / name for name in filesystem.listdir(root) if name.startswith(PREFIX)):
        with contextlib.suppress(OSError):
            lock = descriptors.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if descriptors.fstat(lock).st_uid == processes.getuid():
                    descriptors.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    filesystem.rmtree(path)
                    removed.append(path)
            finally:
                descriptors.close(lock)
    return removed
