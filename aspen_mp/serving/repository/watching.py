"""When folders of models change: the kernel says so (inotify), nothing is polled."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aspen_mp.system import descriptors, filesystem, watches

_EVENTS: Final = (
    watches.CLOSED_AFTER_WRITING
    | watches.MOVED_FROM
    | watches.MOVED_TO
    | watches.CREATED
    | watches.DELETED
    | watches.FOLDER_DELETED
    | watches.FOLDER_MOVED
)
_FULL: Final = 1 << 16


class Watch:
    """Folders whose entries may change. `fd` is readable once one has. OSError where the kernel gives no watch."""

    def __init__(self) -> None:
        self.fd = watches.init()

    def add(self, folders: Iterable[Path]) -> None:
        """Watches these, too. One that is watched already stays so; one that has gone is left out."""
        for folder in folders:
            try:
                watches.add_watch(self.fd, folder, _EVENTS)
            except OSError:
                if filesystem.isdir(folder):
                    raise

    def read(self) -> None:
        """Takes all pending events, so that `fd` becomes readable for later ones only."""
        with suppress(BlockingIOError):
            while descriptors.read(self.fd, _FULL):
                pass

    def close(self) -> None:
        descriptors.close(self.fd)
