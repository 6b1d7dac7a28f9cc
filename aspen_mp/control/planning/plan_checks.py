"""Whether a plan that a planning child has sent may be published.

The child has read a file that may be hostile, so what it sends is copied to where it cannot reach, and checked there. For a plan of very
many tiles that takes seconds. It is Python that checks, which would keep the interpreter's lock from the planner process's only thread, and
a second thread there would make forking unsafe: so large plans are checked by a process forked for it, small ones at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.control.wire.forked import end, forked
from aspen_mp.shm.errors import AspenError, PlanError, ResourceLimitError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors

AT_ONCE: Final = 1 << 20
"""Plans of up to so many bytes take as long to check as a fork does, or a little more."""
_MOST_TEXT: Final = 4096
_REFUSED: Final = 1


def copied(fd: int, nbytes: int) -> Segment:
    """The plan behind a descriptor that others hold too, in a segment of our own. PlanError where it is shorter than announced."""
    data = descriptors.pread(fd, nbytes, 0) if nbytes > 0 else b""
    if not data or len(data) != nbytes:
        raise PlanError(f"plan: {nbytes} bytes announced, {len(data)} there")
    segment = Segment.create("plan", nbytes)
    segment.buf[:nbytes] = data
    return segment


def check(segment: Segment) -> None:
    """Raises PlanError unless workers may map this plan, which nobody else can write to."""
    from aspen_mp.planner.plan import plan_file

    try:
        plan_file.validate(segment.buf)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # numbers that no check of ours had thought of
        raise PlanError(f"plan: {type(error).__name__}: {error}") from error


class Check:
    """`check` in a process of its own; `then(error)` follows, with None where the plan is good."""

    def __init__(self, loop: Loop, segment: Segment, then: Callable[[AspenError | None], None]) -> None:
        """Owns `segment` until `then` is called. Raises OSError where there is no process to be had."""
        self.segment = segment
        self._then: Callable[[AspenError | None], None] | None = then
        self._heard, told = descriptors.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._pid = forked(loop, lambda: _run(segment, told), self._ended, "aspen-check", keep={told}, oom_score=900)
        except OSError:
            descriptors.close(self._heard)
            raise
        finally:
            descriptors.close(told)

    def _ended(self, status: int) -> None:
        text = ""
        with suppress(BlockingIOError):
            text = descriptors.read(self._heard, _MOST_TEXT).decode(errors="replace")
        descriptors.close(self._heard)
        if self._then is None:
            return
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            self._then(None)
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == _REFUSED:
            self._then(PlanError(text or "plan: it was refused"))
        else:
            self._then(ResourceLimitError("the process that checks the plan was ended, most likely because memory ran out"))

    def close(self) -> None:
        """Nobody waits any more."""
        if self._then is not None:
            self._then = None
            end(self._pid)
            self.segment.close()


def _run(segment: Segment, told: int) -> int:
    """In the forked process, where the segment is mapped."""
    try:
        check(segment)
    except PlanError as error:
        descriptors.write(told, str(error).encode()[:_MOST_TEXT])
        return _REFUSED
    return 0
