"""What a server accepts, and for how long it waits."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds. Beyond `body` or `json` a request is answered with 413, beyond `header` with 431, and beyond
    `pending` or `queued` with 429.

    Attributes:
        header: Request line and headers of a request.
        body: A request's body.
        json: The part of it that is JSON: decoded, it takes several times as much memory.
        pending: The bodies of all requests of a front end that have not been answered.
        queued: Requests of a front end that wait for workers. 0: no limit.
        header_s: From the first byte of a connection or a request to the end of its headers.
        body_s: From the end of the headers to the end of the body.
        keep_alive_s: How long a connection without a request is kept.
        runtime_s: How long requests wait for a runtime that was lost to be there again; later ones are answered with 503 at once.
    """

    header: int = 32 << 10
    body: int = 256 << 20
    json: int = 32 << 20
    pending: int = 1 << 30
    queued: int = 1024
    header_s: float = 10.0
    body_s: float = 60.0
    keep_alive_s: float = 75.0
    runtime_s: float = 5.0
