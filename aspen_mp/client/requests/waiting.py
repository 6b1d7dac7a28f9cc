"""Requests that are published, or wait for a slot, and whom to tell when they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aspen_mp.client.loop_results import LoopResults
    from aspen_mp.shm.bindings import _channel
    from aspen_mp.shm.errors import AspenError


class TicketWatcher(Protocol):
    """Told which ticket a request waits for, -1 when it no longer does, so that it can cancel it."""

    def started(self, ticket: int) -> None: ...


OnDone = Callable[["_channel.Result | AspenError"], None]
"""Called once with how a request ended; with an error when the runtime was lost. The slot has been given back by then."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that is published, or waits for a slot: what to publish, and whom to tell.

    `loop`: calls `on_done` if the request ends well; otherwise, and if it is busy, the resolver does. `handed_over`: `on_done` will be
    called, or has been. Whoever submitted it sees to nothing any more.
    """

    plan: int
    generation: int
    data: int
    offset: int
    urgency: _channel.Urgency
    on_done: OnDone
    extent: int = 0
    loop: LoopResults | None = None
    ticket: int = -1
    cancelled: bool = False
    handed_over: bool = False


def tell(ended: Iterable[tuple[Waiting, _channel.Result | AspenError]]) -> None:
    """Hand each request its outcome."""
    for waiting, outcome in ended:
        do(partial(waiting.on_done, outcome))


def do(work: Callable[[], None]) -> None:
    """Do what nobody waits for; an error is printed."""
    try:
        work()
    except Exception as error:  # nobody to hand it to, and the others' results must still be delivered
        sys.excepthook(type(error), error, error.__traceback__)
