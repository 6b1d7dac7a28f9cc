"""The access log: a line of JSON for each request."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import TextIO


class AccessLog:
    """Writes to `stream`. One that cannot be written to loses lines; requests go on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, *, client: str, method: str, path: str, status: int | str, received: int, sent: int, seconds: float) -> None:
        """A line. `status`: of HTTP, 0 where the client went before the answer; or the name of gRPC's.

        `received` and `sent` are bytes of bodies.
        """
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client,
            "method": method,
            "path": path,
            "status": status,
            "received": received,
            "sent": sent,
            "ms": round(seconds * 1000, 3),
        }
        with contextlib.suppress(OSError):
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
