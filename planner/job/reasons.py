"""Why a plan is as it is: a record of each decision.

It has the other ways that were tried, their cost, and the rule that rejected them.

Nobody records unless `recording` is entered. Otherwise a decision costs one look at a context variable. Plans are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TypeVar

import msgspec

Decision = Literal["precision", "algorithm", "fusion", "stack", "layout", "split", "tiles", "order"]
Measure = Literal["", "one core", "all cores", "network"]
"""The scope of costs: the node on one core; the node on all cores, until its last tile ends; the simulated network. "": there are none. "":
there are none."""
NETWORK: Final = ""
"""The node of a decision about the whole network."""


class Tried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A choice that was not taken. `rule`: what rejected it. `ms`: its predicted cost; None: it was rejected before that was known."""

    choice: str
    rule: str
    ms: float | None = None


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decision. `rule`: why this was chosen, or what left no other choice. `absorbed`: nodes that became part of this one.

    `node`: the name of what it is about; None: what `about` says. `op`: which op of the node, where it matters.
    """

    decision: Decision
    choice: str
    rule: str
    ms: float | None = None
    measure: Measure = ""
    tried: tuple[Tried, ...] = ()
    absorbed: tuple[str, ...] = ()
    node: str | None = None
    op: str = ""


class _Recorder:
    """`node`, `op`: the subject of present decisions, and the record from which they begin. `step`: the pass at work."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []
        self.node, self.op, self.step = NETWORK, "", ""
        self.begin = 0


R = TypeVar("R", bound="_Recorder | None")

_recorder: ContextVar[_Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(wanted: bool = True) -> Iterator[list[Reason]]:
    """Record the planner's decisions within the block, in their order, if that is wanted."""
    with _within(_Recorder() if wanted else None) as recorder:
        yield recorder.reasons if recorder is not None else []


@contextmanager
def trial() -> Iterator[Callable[[], None]]:
    """Set the records of one of several ways apart. The function that it gives keeps them: this way was chosen."""
    outer = _recorder.get()
    if outer is None:
        yield lambda: None
        return
    with _within(_Recorder()) as inner:
        yield lambda: outer.reasons.extend(inner.reasons)


@contextmanager
def _within(recorder: R) -> Iterator[R]:
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


def asked() -> bool:
    """Whether somebody records."""
    return _recorder.get() is not None


def about(node: str, op: str = "") -> None:
    """Makes later decisions that name no node be about this one."""
    if (recorder := _recorder.get()) is not None:
        recorder.node, recorder.op, recorder.begin = node, op, len(recorder.reasons)


def by(step: str) -> None:
    """Makes this pass the author of later decisions."""
    if (recorder := _recorder.get()) is not None:
        recorder.step = step


def step() -> str:
    """The pass at work, while somebody records."""
    recorder = _recorder.get()
    return recorder.step if recorder is not None else ""


def tell(make: Callable[[], Reason]) -> None:
    """Record a decision. It is made into words only if somebody records."""
    if (recorder := _recorder.get()) is not None:
        reason = make()
        here = {} if reason.node is not None else {"node": recorder.node, "op": recorder.op}
        recorder.reasons.append(msgspec.structs.replace(reason, **here))


def here() -> tuple[Reason, ...]:
    """The reasons recorded since `about` was called."""
    recorder = _recorder.get()
    return tuple(recorder.reasons[recorder.begin :]) if recorder is not None else ()


def again(reasons: Iterable[Reason]) -> None:
    """Record the same for a node that is alike: the one that `about` says."""
    if (recorder := _recorder.get()) is not None:
        recorder.reasons += [msgspec.structs.replace(reason, node=recorder.node, op=recorder.op) for reason in reasons]
