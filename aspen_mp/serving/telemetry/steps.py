"""The steps of a request, told to whoever traces it. Nothing here needs a package for traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

REQUEST: Final = "request"
READ: Final = "read request"
TOKENIZE: Final = "tokenize"
EMBED: Final = "embed"
TEXTS: Final = "texts"
QUEUE: Final = "queue"
RUN: Final = "run"
POOL: Final = "pool"
ENCODE: Final = "encode answer"
IN_PIECES: Final = {"aspen_mp.pieces": True}
"""The attribute of a request that ran while its body came."""


class StepTrace(Protocol):
    """A request that is traced. Its steps follow each other. After `end` nothing is told of it any more."""

    def enter(self, step: str, **attributes: Any) -> None:
        """The step before has ended, and this one begins."""

    def note(self, **attributes: Any) -> None:
        """Says something of the whole request."""

    def part(self, name: str, **attributes: Any) -> StepTrace:
        """A part of the present step with steps of its own, which may run beside others. Whoever asks for it ends it."""

    def failed(self, error: BaseException) -> None:
        """The request, and its present step, have failed."""

    def end(self) -> None:
        """It is over."""


CURRENT: Final[ContextVar[StepTrace | None]] = ContextVar("aspen_mp.trace", default=None)
"""The request that the present task answers. None where it is not traced."""


@contextmanager
def part_of(trace: StepTrace | None, name: str, **attributes: Any) -> Iterator[StepTrace | None]:
    """A part of `trace`, which the present task answers until the end of the block. An error that leaves the block is the part's."""
    if trace is None:
        yield None
        return
    part = trace.part(name, **attributes)
    before = CURRENT.set(part)
    try:
        yield part
    except BaseException as error:
        part.failed(error)
        raise
    finally:
        CURRENT.reset(before)
        part.end()


def of_model(name: str, version: int) -> dict[str, Any]:
    """Attributes that say which model is asked."""
    return {"aspen_mp.model.name": name, "aspen_mp.model.version": str(version)}


def of_batch(size: int, requests: int = 1) -> dict[str, Any]:
    """Attributes of a run: its rows, and of how many requests they are."""
    return {"aspen_mp.batch.size": size, "aspen_mp.batch.requests": requests}
