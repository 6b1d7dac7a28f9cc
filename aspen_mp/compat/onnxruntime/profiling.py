"""`SessionOptions.enable_profiling`: a trace of the runtime while a session is there, as a list of events in Chrome's format."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aspen_mp.shm.errors import AspenError, RequestError

if TYPE_CHECKING:
    from aspen_mp import Runtime


class SessionProfile:
    """A trace that has begun. One at a time in a runtime: RequestError for a second session that profiles meanwhile."""

    def __init__(self, runtime: Runtime, prefix: str) -> None:
        self._trace = runtime.trace()
        try:
            self._trace.start()
        except RequestError as error:
            raise RequestError(
                f"{error}. Only one session of a runtime can profile at a time; call end_profiling of the other one"
            ) from None
        self._owner = os.getpid()
        self.start_ns = time.monotonic_ns()
        self._prefix = prefix
        self._path = ""

    def end(self) -> str:
        """Writes the file once, and returns its name."""
        if not self._path:
            self._trace.stop()
            self._path = str(_fresh(f"{self._prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"))
            self._write()
        return self._path

    def forgotten(self) -> None:
        """The session was closed or is gone, and nobody has asked for the file: it is written all the same, as in onnxruntime."""
        if os.getpid() == self._owner:
            with suppress(AspenError, OSError):
                self.end()

    def _write(self) -> None:
        from aspen_mp.tracing import chrome

        lines = []
        for text in chrome.events(self._trace.recording):
            event = json.loads(text)
            if event.get("ph") == "X":
                lines.append(json.dumps({"cat": "Node", **event, "args": event.get("args", {})}, ensure_ascii=False))
        Path(self._path).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _fresh(stem: str) -> Path:
    """A name that no file has."""
    path, count = Path(f"{stem}.json"), 0
    while path.exists():
        count += 1
        path = Path(f"{stem}_{count}.json")
    return path
