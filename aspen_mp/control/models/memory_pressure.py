"""Memory pressure: plans that nobody has used of late go, with their arenas, before a request is refused for want of memory.

Bounds follow what there is. What all plans hold may be as much as what is free besides (a control group's limit counts as well as the
machine's memory), or what the profile says; beyond, the plan that was used longest ago goes. Where memory for a new plan is refused all the
same, more of them go, and it is tried again when their memory has come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.models.plan_states import Model, Plan
from aspen_mp.shm.segments import memory_available

PATIENCE_S: Final = 5.0
"""So long one waits at most for memory of plans that were dropped: requests that run on them go on to their ends."""
WORTH: Final = 4
"""Plans go for a request that was refused only where they hold this part of what is free, or more: else it is not they that stand in the
way, and nobody who asks for more than there is can take others' plans from them."""


class Pressure:
    """`models`: those that are loaded, by number. `retire(plan)` ends a live plan. `most`: bytes that the plans of all may hold, 0: as much
    as is free besides."""

    def __init__(self, models: Mapping[int, Model], resources: Resources, retire: Callable[[Plan], None], most: int = 0) -> None:
        self._models = models
        self._table = resources.table
        self._segments = resources.segments
        self._retire = retire
        self._loop = resources.loop
        self._event_log = resources.event_log
        self._most = most
        self._awaited: set[int] = set()
        self._waiting: list[Callable[[], None]] = []

    def make_room(self, newest: Plan) -> None:
        """After a model has got another plan: the plans of all models are not to hold more than they may."""
        held = self._held()
        self._drop(held - (self._most or (held + memory_available()) // 2), newest)

    def relieve(self, then: Callable[[], None]) -> bool:
        """Has half of what plans hold dropped. `then()` follows when its memory has come back, or not for `PATIENCE_S`. False: there is
        nothing to drop, or it would not help, and what others have given up before, a client its data segments, has come back."""
        held = self._held()
        if (held * WORTH < memory_available() or not self._drop(max(held // 2, 1), None)) and not self._segments.settling:
            return False
        self._waiting.append(then)
        self._loop.later(PATIENCE_S, lambda: self._go_on(then))
        self._look()
        return True

    def collected(self, segments: set[int]) -> None:
        """Nothing refers to these segments any more."""
        self._awaited -= segments
        self._look()

    def _look(self) -> None:
        if not self._awaited and self._waiting:
            waiting = list(self._waiting)
            # Workers have them mapped a little longer, and large ones are given back by a process of their own.
            self._segments.settled(lambda: [self._loop.later(0.0, lambda then=then: self._go_on(then)) for then in waiting])  # type: ignore[misc]

    def _go_on(self, then: Callable[[], None]) -> None:
        if then in self._waiting:
            self._waiting.remove(then)
            then()

    def _drop(self, nbytes: int, newest: Plan | None) -> bool:
        """Plans until they hold so many bytes less, those that have served longest ago first. Whether there was any."""
        dropped = 0
        if nbytes > 0:
            dropped += sum(model.spares.close() for model in self._models.values())
        for plan in sorted(self._live(), key=self._last_used):
            if dropped >= nbytes:
                break
            if plan is newest or not plan.segments:
                continue
            size = self._bytes(plan)
            self._awaited.update(plan.segments)
            self._event_log.info("plan-dropped", model=plan.model.name, plan=plan.answer.plan, bytes=size)
            self._retire(plan)
            dropped += size
        return dropped > 0

    def _last_used(self, plan: Plan) -> tuple[bool, float]:
        """Those that have served since they were last looked at come last, then those that were asked for last."""
        served = self._table.plan(plan.answer.plan)["served"] if plan.answer.plan else 0
        busy, plan.seen = served != plan.seen, served
        return busy, plan.asked_at

    def _live(self) -> Iterator[Plan]:
        for model in self._models.values():
            yield from model.live.values()

    def _held(self) -> int:
        return sum(map(self._bytes, self._live())) + sum(model.spares.nbytes for model in self._models.values())

    def _bytes(self, plan: Plan) -> int:
        return sum(self._segments[segment].nbytes for segment in plan.segments)
