"""Every segment that workers map, by its id in the control table, with its descriptor and what it is for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aspen_mp.shm import _control


@dataclass(slots=True)
class Held:
    """A segment of `nbytes` bytes; `owner` says in status what it belongs to."""

    id: int
    role: str
    nbytes: int
    fd: int
    owner: str


class SegmentStore:
    """Owns descriptors. `attach` and `detach` tell all workers; `publish` makes them look."""

    def __init__(self, table: _control.ControlTable, attach: Callable[[Held], None], detach: Callable[[int], None]) -> None:
        self._table = table
        self._attach = attach
        self._detach = detach
        self._held: dict[int, Held] = {}

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __getitem__(self, segment: int) -> Held:
        return self._held[segment]

    def add(self, role: str, nbytes: int, fd: int, owner: str) -> int:
        """Takes over `fd` (closed here even if this raises). Workers get it before anything can refer to it; publish() must follow."""
        try:
            segment = self._table.add_segment(role, nbytes)
        except BaseException:
            os.close(fd)
            raise
        held = self._held[segment] = Held(segment, role, nbytes, fd, owner)
        self._attach(held)
        return segment

    def drop(self, segment: int) -> None:
        """Gives up a segment that nothing refers to."""
        self._table.drop_segment(segment)
        self.forget(segment)

    def forget(self, segment: int) -> None:
        """Tells workers to unmap a segment that the control table has marked already, and closes it."""
        held = self._held.pop(segment)
        self._detach(segment)
        os.close(held.fd)

    def close(self) -> None:
        for held in self._held.values():
            os.close(held.fd)
        self._held.clear()
