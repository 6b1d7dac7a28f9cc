"""Whether the result of an opaque tile is still wanted: the code that executes it asks between its steps.

So a loop without an end ends with its request, and its worker goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_unwanted: Callable[[], bool] | None = None


class Unwanted(BaseException):
    """The request was cancelled, or its client is gone. No operator's handling of errors takes it for one of its own."""


@contextmanager
def asking(unwanted: Callable[[], bool]) -> Iterator[None]:
    """Makes `step` ask `unwanted()` within the block."""
    global _unwanted  # noqa: PLW0603 (a worker executes one tile at a time)
    _unwanted = unwanted
    try:
        yield
    finally:
        _unwanted = None


def step() -> None:
    """Called between two steps. Raises Unwanted when nobody wants the result any more."""
    if _unwanted is not None and _unwanted():
        raise Unwanted
