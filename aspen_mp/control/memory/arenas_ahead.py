"""An arena that is reserved while the plan which is going to use it is still being made.

Memory that the kernel hands out is zeroed first. For a network that sees an image of a new size, that takes as long as a sixth of planning.
So a thread does it meanwhile: it holds no interpreter lock in the kernel.
"""

from __future__ import annotations

from contextlib import suppress

from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import threads


class Ahead:
    """One arena at most. Whoever forks takes it, or closes it, before: a thread does not come along."""

    def __init__(self) -> None:
        self._thread: threads.Thread | None = None
        self._made: Segment | None = None

    def begin(self, nbytes: int) -> None:
        """An arena of `nbytes` bytes is likely to be wanted."""
        self.close()
        thread = threads.Thread(target=self._make, args=(nbytes,), name="aspen-mp arena", daemon=True)
        with suppress(RuntimeError):  # no thread: it is made when it is wanted
            thread.start()
            self._thread = thread

    def _make(self, nbytes: int) -> None:
        with suppress(ResourceLimitError, OSError, MemoryError):  # whoever wants it finds that out again
            self._made = Segment.create("arena", nbytes)

    def take(self, least: int) -> Segment | None:
        """The arena, the caller's from now on, if it has at least `least` bytes."""
        made = self._joined()
        if made is not None and made.nbytes < least:
            made.close()
            made = None
        return made

    def close(self) -> None:
        """It is not wanted after all."""
        made = self._joined()
        if made is not None:
            made.close()

    def _joined(self) -> Segment | None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        made, self._made = self._made, None
        return made
