"""`Runtime.trace`: from its beginning to its end, every worker records what it does."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from aspen_mp.shm.errors import AspenError, RequestError
from aspen_mp.shm.segments import Segment

if TYPE_CHECKING:
    from aspen_mp.tracing.recording import Recording


class Traced(Protocol):
    """The way to a runtime that is traced: a client's session."""

    def begin_trace(self, records: int) -> Segment:
        """The segment that workers record into, in rings of `records` records each."""

    def end_trace(self) -> dict[str, Any]:
        """Stops recording; what the records mean."""

    def traced_plan(self, index: int) -> bytes:
        """A plan that was there while the trace ran."""

    def drop_trace(self) -> None:
        """Lets go of the trace."""


class Trace:
    """A trace of a runtime, as a context manager; made by `Runtime.trace`.

    It holds every tile of all clients' requests that were submitted after its beginning and answered before its end. Where the ring of a
    worker was too small, `lost` says how many records were overwritten.
    """

    def __init__(self, session: Callable[[], Traced], path: str | os.PathLike[str] | None, records: int) -> None:
        self._connect = session
        self._records = records
        self._session: Traced | None = None
        self._segment: Segment | None = None
        self._recording: Recording | None = None
        self.path = None if path is None else Path(path)

    def __enter__(self) -> Trace:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if value is None:
            self.stop()
            return
        with suppress(AspenError, OSError):  # what went wrong in the block matters more
            self.stop()

    def start(self) -> None:
        """Begin.

        Raises:
            RequestError: It has begun already, or somebody else traces the runtime.
            ResourceLimitError: There is too little memory.
            FileNotFoundError: The folder of its file is missing.
        """
        if self._session is not None:
            raise RequestError("this trace has been started already. Make another one")
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(f"there is no folder {self.path.absolute().parent}. Make it first, or write elsewhere")
        session = self._connect()
        self._segment = session.begin_trace(self._records)
        self._session = session

    def stop(self) -> None:
        """End, and write the file if there is to be one.

        Raises:
            RuntimeLost: The runtime is gone, and only it knew what the tiles are called.
        """
        from aspen_mp.tracing import recording

        session, segment, self._segment = self._session, self._segment, None
        if session is None or segment is None:
            return
        try:
            about = session.end_trace()
            self._recording = recording.read(segment.buf, about, session.traced_plan)
        finally:
            segment.close()
            with suppress(AspenError):
                session.drop_trace()
        if self.path is not None:
            self.write(self.path)

    @property
    def recording(self) -> Recording:
        """The records as tables; see `aspen_mp.tracing.recording`.

        Raises:
            RequestError: The trace has not ended yet.
        """
        if self._recording is None:
            raise RequestError("the trace has not ended yet. Read it after its with block")
        return self._recording

    @property
    def lost(self) -> int:
        """How many records were overwritten because a ring was full."""
        return sum(self.recording.lost.values())

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write Chrome's trace event JSON, for ui.perfetto.dev or chrome://tracing.

        Args:
            path: The file; a name that ends in ".gz" is packed.

        Returns:
            How many events were written.
        """
        from aspen_mp.tracing import chrome

        return chrome.write(self.recording, path)

    def plot(self, path: str | os.PathLike[str], *, begin: float | None = None, end: float | None = None) -> None:
        """Draw the timeline: a row for each worker, tiles coloured by kind of op, stolen tiles marked.

        Args:
            path: The picture, PNG, SVG or PDF as its name ends.
            begin: Seconds since the trace began. None: the first tile.
            end: Seconds since the trace began. None: the last tile.

        Raises:
            AspenError: matplotlib is missing.
        """
        from aspen_mp.tracing import plot

        plot.draw(self.recording, path, begin=begin, end=end)

    def plot_tiles(self, path: str | os.PathLike[str]) -> None:
        """Draw the tiles of the last request: a column for each op, rows of its output downwards, tiles that ran dark.

        It shows what a change has reached, if that request is a frame of a `ModelStream`.

        Args:
            path: The picture, PNG, SVG or PDF as its name ends.

        Raises:
            AspenError: matplotlib is missing.
            RequestError: No request has been recorded.
        """
        from aspen_mp.tracing import tiles

        tiles.draw(self.recording, path)

    def summary(self) -> dict[str, Any]:
        """Return workers' shares of time, kinds of ops, requests and the longest gaps, as plain numbers and strings.

        `aspen_mp.tracing.summary` describes the keys.
        """
        from aspen_mp.tracing import summary

        return summary.of(self.recording)

    def text(self) -> str:
        """Return the summary as text for people."""
        from aspen_mp.tracing import summary

        return summary.text(self.summary())
