"""The answer to an error: the status of HTTP, after how long a client should try again, and the message."""

from __future__ import annotations

import sys
import traceback
from typing import Final, NamedTuple

from aspen_mp.shm.errors import (
    AspenError,
    ConfigError,
    DeadlineMissed,
    ExternalDataError,
    ModelInvalidError,
    ModelParseError,
    PoisonTile,
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ResourceLimitError,
    RuntimeLost,
    RuntimeNotFound,
    TooLarge,
    UnsupportedModelError,
)


class Refused(AspenError):
    """A request that the server itself refuses. `status`: of HTTP; `retry_s`: of ``Retry-After``."""

    def __init__(self, status: int, message: str, retry_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_s = retry_s


class Answered(NamedTuple):
    """A status, and seconds for ``Retry-After`` if it has one."""

    status: int
    retry_s: int | None = None


TABLE: Final[list[tuple[type[BaseException], Answered]]] = [
    (QueueFull, Answered(429, 1)),
    (DeadlineMissed, Answered(504)),
    (RequestTimeout, Answered(504)),
    (PoisonTile, Answered(500)),
    (RequestCancelled, Answered(503, 1)),
    (RequestError, Answered(400)),
    (RuntimeLost, Answered(503, 1)),
    (RuntimeNotFound, Answered(503, 1)),
    (TooLarge, Answered(413)),
    (ResourceLimitError, Answered(503, 5)),
    (ModelParseError, Answered(400)),
    (ModelInvalidError, Answered(400)),
    (UnsupportedModelError, Answered(400)),
    (ExternalDataError, Answered(400)),
    (ConfigError, Answered(400)),
]
"""The first class that fits counts. Everything else is 500."""


def of(error: BaseException) -> Answered:
    """How an error is answered."""
    if isinstance(error, Refused):
        return Answered(error.status, error.retry_s)
    return next((answered for kind, answered in TABLE if isinstance(error, kind)), Answered(500))


def told(error: BaseException) -> str:
    """The message for a client. An error that is not ours is not told in detail: it goes to standard error."""
    if isinstance(error, AspenError):
        return str(error)
    traceback.print_exception(error, file=sys.stderr)
    return "an error inside the server; its log says more"
