"""The one runtime that sessions and the ONNX backend of a process share, unless they are told to use another."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from aspen_mp.shm.errors import AspenError

if TYPE_CHECKING:
    from aspen_mp import Runtime

_lock = threading.Lock()
_runtime: Runtime | None = None
_owner = 0


def runtime(workers: int | None = None) -> Runtime:
    """The shared runtime, started by the first call (with `workers`, if given) and closed when the process ends.

    A forked child gets one of its own: the parent's stays the parent's. A runtime that was closed or lost is replaced by a new one.
    """
    global _runtime, _owner  # noqa: PLW0603
    with _lock:
        if _runtime is not None and _owner != os.getpid():
            _runtime = None
        if _runtime is None or _runtime.closed:
            from aspen_mp import Runtime

            _runtime = Runtime(workers=workers)
            if _owner != os.getpid():
                atexit.register(close)
            _owner = os.getpid()
        return _runtime


def start_early() -> None:
    """Begins to start the shared runtime and does not wait. A failure is raised by the next call of `runtime`."""
    if _runtime is None or _runtime.closed or _owner != os.getpid():
        threading.Thread(target=_start, name="aspen-mp-start", daemon=True).start()


def _start() -> None:
    with suppress(AspenError, OSError):
        runtime()


def close() -> None:
    """Closes the shared runtime, if this process has started one; the next use starts another."""
    with _lock:
        if _runtime is not None and _owner == os.getpid() and not _runtime.closed:
            _runtime.close()


os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))
