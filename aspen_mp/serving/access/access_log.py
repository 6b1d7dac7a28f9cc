"""The access log: a line of JSON for each request."""

from __future__ import annotations

import contextlib
import json
import re
from datetime import UTC, datetime
from typing import Final, TextIO

from aspen_mp.system import clock

_TRACE: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
"""Version, trace, span of the client, flags. One of zeros only is none."""


class AccessLog:
    """Writes to `stream`. One that cannot be written to loses lines; requests go on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(
        self, *, client: str, method: str, path: str, status: int | str, received: int, sent: int, seconds: float, trace: bytes = b""
    ) -> None:
        """A line. `status`: of HTTP, 0 where the client went before the answer; or the name of gRPC's.

        `received` and `sent` are bytes of bodies. `trace`: the header ``traceparent`` of W3C Trace Context, as the client sent it.
        """
        line = {
            "time": datetime.fromtimestamp(clock.time(), UTC).isoformat(timespec="milliseconds"),
            "client": client,
            "method": method,
            "path": path,
            "status": status,
            "received": received,
            "sent": sent,
            "ms": round(seconds * 1000, 3),
        }
        if (found := _TRACE.fullmatch(trace)) is not None:
            line |= {"trace": found[1].decode(), "span": found[2].decode()}
        with contextlib.suppress(OSError):
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
