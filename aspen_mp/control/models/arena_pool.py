"""Arenas of plans that were dropped, of which a model has many for shapes that seldom come back (behind data, pictures of ever new sizes),
wait for its next such plan: to reserve memory takes about as long as to plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aspen_mp.control.memory.segments import SegmentStore

MAX_SPARES: Final = 4
MAX_SPARE_BYTES: Final = 512 << 20
"""Of a model. What is beyond goes as other segments do."""

Spare = tuple[int, int]
"""Bytes and descriptor of an arena."""


class ArenaPool:
    """Of one model."""

    def __init__(self, segments: SegmentStore) -> None:
        self._segments = segments
        self._expected: set[int] = set()
        self._spares: list[Spare] = []

    def expect(self, arenas: Iterable[int]) -> None:
        """Segments that are to be used again when no request uses them any more."""
        self._expected.update(arenas)

    def give_up(self, arena: int) -> None:
        """A segment that is not to be used again: somebody may still write to it."""
        self._expected.discard(arena)

    def keep(self, segments: set[int]) -> set[int]:
        """Those of segments that nothing refers to any more which are kept for other plans."""
        kept = set()
        for segment in self._expected & segments:
            if self._room(self._segments[segment].nbytes):
                self._spares.append(self._segments.withdraw(segment))
                kept.add(segment)
        self._expected -= segments
        return kept

    def lend(self) -> list[Spare]:
        """All that there are: for a plan that is to take one of them, and gives the others back."""
        lent, self._spares = self._spares, []
        return lent

    def give_back(self, spares: list[Spare]) -> None:
        """Those that a plan did not need; empties the list."""
        for nbytes, fd in spares:
            if self._room(nbytes):
                self._spares.append((nbytes, fd))
            else:
                self._segments.discard(nbytes, fd)
        spares.clear()

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(nbytes for nbytes, _ in self._spares)

    def close(self) -> int:
        """The model goes, or the planner process does, or memory is wanted: how many bytes that gives back."""
        freed = self.nbytes
        for nbytes, fd in self._spares:
            self._segments.discard(nbytes, fd)
        self._spares.clear()
        self._expected.clear()
        return freed

    def _room(self, nbytes: int) -> bool:
        """For another one."""
        return len(self._spares) < MAX_SPARES and self.nbytes + nbytes <= MAX_SPARE_BYTES
