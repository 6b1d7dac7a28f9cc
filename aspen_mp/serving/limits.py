"""The sizes that a server accepts, and its times of waiting."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds, rates in bytes per second. Each is of one front end.

    A request is answered with 413 beyond `body`, `json`, `marks`, `strings` or `texts`. It is answered with 431 beyond `header`, with 429
    beyond `pending`, `queued`, `sequences` or `client_sequences`, and with 408 beyond `header_s` or `body_s` or below `rate`.

    Attributes:
        header: Request line and headers of a request.
        body: A request's body.
        json: The part of it that is JSON.
        marks: Commas, colons, quotes and brackets of the JSON, long lists of numbers left out. Counted from 256 KiB of JSON on.
        strings: Elements of a tensor of strings.
        texts: The body of a request for embeddings.
        pending: What all unanswered requests hold: bytes that have arrived, and arrays that were made of JSON or strings. Requests that
            hold more than 1 MiB get seven eighths of it.
        unsent: Answers that clients have not read yet. Beyond it, the connections end that have read nothing for the longest time.
        queued: Requests that wait for workers. 0: no limit.
        sequences: Sequences that are open, of all clients and models.
        client_sequences: Those of one client, by its address.
        streams: Calls over gRPC that one connection may have at a time. More wait in the client.
        header_s: From the first byte of a connection or a request to the end of its headers.
        body_s: From the end of the headers to the end of the body.
        rate: The least rate of a body, over each `slow_s`, and of a client that reads an answer, over each `unread_s`.
        slow_s: The time over which the rate of a body is measured.
        unread_s: The time over which the rate of an answer is measured. Then the connection ends.
        keep_alive_s: How long a connection without a request is kept.
        sequence_s: How long a sequence without a request is kept.
        runtime_s: How long requests wait for a runtime that was lost to be there again; later ones are answered with 503 at once.
    """

    header: int = 32 << 10
    body: int = 256 << 20
    json: int = 32 << 20
    marks: int = 1 << 20
    strings: int = 1 << 20
    texts: int = 8 << 20
    pending: int = 512 << 20
    unsent: int = 256 << 20
    queued: int = 1024
    sequences: int = 64
    client_sequences: int = 16
    streams: int = 128
    header_s: float = 10.0
    body_s: float = 60.0
    rate: int = 16 << 10
    slow_s: float = 10.0
    unread_s: float = 30.0
    keep_alive_s: float = 75.0
    sequence_s: float = 60.0
    runtime_s: float = 5.0
