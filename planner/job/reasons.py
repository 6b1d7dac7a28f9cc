"""Why a plan is as it is: a record of each decision, with what else was tried, its cost, and the rule that rejected it.

Nobody records unless `recording` is entered. Otherwise a decision costs one look at a context variable. Plans are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

import msgspec

Decision = Literal["precision", "algorithm", "fusion", "stack", "layout", "split", "tiles", "order"]
Measure = Literal["", "one core", "all cores", "network"]
"""What costs count: the node on one core; the node on all cores, until its last tile ends; the simulated network. "": there are none."""
NETWORK: Final = ""
"""The node of a decision about the whole network."""


class Tried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A choice that was not taken. `rule`: what rejected it. `ms`: its predicted cost; None: it was rejected before that was known."""

    choice: str
    rule: str
    ms: float | None = None


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decision. `rule`: why this was chosen, or what left no other choice. `node`: the name of what it is about; None: what
    `about` says. `absorbed`: nodes that became part of it."""

    decision: Decision
    choice: str
    rule: str
    ms: float | None = None
    measure: Measure = ""
    tried: tuple[Tried, ...] = ()
    absorbed: tuple[str, ...] = ()
    node: str | None = None


class _Recorder:
    """`node`: what is being decided on. `step`: the pass at work."""

    def __init__(self, node: str = NETWORK, step: str = "") -> None:
        self.reasons: list[Reason] = []
        self.node, self.step = node, step


_recorder: ContextVar[_Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording() -> Iterator[list[Reason]]:
    """Record the planner's decisions within the block, in their order."""
    with _within(_Recorder()) as recorder:
        yield recorder.reasons


@contextmanager
def trial() -> Iterator[Callable[[], None]]:
    """Set the records of one of several ways apart. The function that it gives keeps them: this way was chosen."""
    outer = _recorder.get()
    if outer is None:
        yield lambda: None
        return
    with _within(_Recorder(outer.node, outer.step)) as inner:
        yield lambda: outer.reasons.extend(inner.reasons)


@contextmanager
def _within(recorder: _Recorder) -> Iterator[_Recorder]:
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


def asked() -> bool:
    """Whether somebody records."""
    return _recorder.get() is not None


def about(node: str) -> None:
    """From now on decisions that name no node are about this one."""
    if (recorder := _recorder.get()) is not None:
        recorder.node = node


def by(step: str) -> None:
    """From now on this pass is at work."""
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
        recorder.reasons.append(reason if reason.node is not None else msgspec.structs.replace(reason, node=recorder.node))


def alike(first: str, nodes: list[str], decision: Decision) -> None:
    """What was decided for the first of nodes that are alike holds for the others."""
    if (recorder := _recorder.get()) is not None:
        found = [reason for reason in recorder.reasons if reason.node == first and reason.decision == decision]
        recorder.reasons += [msgspec.structs.replace(reason, node=node) for node in nodes for reason in found[-1:]]
