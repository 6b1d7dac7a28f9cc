"""Marks of rare things: what planner processes and users went through, noted as it happens.

A night's histories have to reach each of `EXPECTED`. One that is never reached says that the histories test less than they seem to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simulation.world.world import World

EXPECTED: Final = (
    *("descriptors were lost on their way", "event draining", "event machine-changed", "event no-workers", "event not-replanned"),
    *("event one-shape", "event plan-dropped", "event planner-lacks", "event recovered", "event replanned", "event runtime-restarted"),
    *("event weights-lost", "event worker-died", "event worker-joined", "event worker-left", "event worker-moves"),
    *("event worker-not-started", "event worker-stopped", "event zygote-died", "model gone: failed", "model loaded: asked"),
    *("model loaded: left", "model loading: asked", "model loading: failed", "model loading: left", "model loading: read"),
    *("model loading: twin", "plan cached: verified", "plan failed: failed", "plan live: asked", "plan live: retired"),
    *("plan planning: asked", "plan planning: built", "plan planning: failed", "plan planning: lacked", "plan planning: stopped"),
    *("plan publishing: failed", "plan publishing: lacked", "plan publishing: published", "plan requested: asked"),
    *("plan requested: hit", "plan requested: missed", "plan requested: stopped", "plan reserving: built", "plan reserving: lacked"),
    *("plan reserving: missed", "plan reserving: reserved", "plan retiring: collected", "plan waiting: failed", "plan waiting: relieved"),
)
"""Marks of histories of a runtime and its users."""


def observe(world: World) -> None:
    """Note the steps of plans and models, and the events of runtimes."""
    from aspen_mp.control.models import plan_machine
    from aspen_mp.control.wire import event_log

    history = world.history
    step, keep = plan_machine.Machine._step, event_log.EventLog._keep

    def stepped(self: Any, subject: Any, event: Any) -> None:
        kind = "plan" if hasattr(subject, "job") else "model"
        history.sometimes(f"{kind} {subject.state.value}: {type(event).__name__.lower()}")
        step(self, subject, event)

    def kept(self: Any, level: Any, event: str, facts: dict[str, Any]) -> float:
        history.sometimes(f"event {event}")
        history.note(f"{world.here.name}: {event}")
        return keep(self, level, event, facts)

    plan_machine.Machine._step = stepped  # type: ignore[method-assign,assignment]
    event_log.EventLog._keep = kept  # type: ignore[method-assign]
