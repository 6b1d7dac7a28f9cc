"""Memory pressure: plans that nobody has used of late go, with their arenas, before a request is refused for want of memory.

Bounds follow what there is. What all plans hold may be as much as what is free besides (a control group's limit counts as well as the
machine's memory), or what the profile says; beyond, the plan that was used longest ago goes. Where memory for a new plan is refused all the
same, more of them go, and it is tried again when their memory has come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models.model_state import Model, Stage
from aspen_mp.control.models.publishing import Publisher
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.segments import memory_available

PATIENCE_S: Final = 5.0
"""So long one waits at most for memory of plans that were dropped: requests that run on them go on to their ends."""
WORTH: Final = 4
"""Plans go for a request that was refused only where they hold this part of what is free, or more: else it is not they that stand in the
way, and nobody who asks for more than there is can take others' plans from them."""

_Owned = tuple[Model, bytes, Stage]


class Pressure:
    """`models`: those that are loaded, by number. `most`: bytes that the plans of all may hold, 0: as much as is free besides.
    `free()`: how much that is."""

    def __init__(
        self,
        models: Mapping[int, Model],
        table: _control.ControlTable,
        segments: SegmentStore,
        publisher: Publisher,
        loop: Loop,
        event_log: EventLog,
        most: int = 0,
        free: Callable[[], int] = memory_available,
    ) -> None:
        self._models = models
        self._table = table
        self._segments = segments
        self._publisher = publisher
        self._loop = loop
        self._event_log = event_log
        self._most = most
        self._free = free
        self._awaited: set[int] = set()
        self._waiting: list[Callable[[], None]] = []

    def make_room(self, newest: Stage) -> None:
        """After a model has got another stage: the plans of all models are not to hold more than they may."""
        held = self._held()
        self._drop(held - (self._most or (held + self._free()) // 2), newest)

    def relieve(self, then: Callable[[], None]) -> bool:
        """Has half of what plans hold dropped. `then()` follows when its memory has come back, or not for `PATIENCE_S`. False: there is
        nothing to drop, or it would not help, and what others have given up before, a client its data segments, has come back."""
        held = self._held()
        if (held * WORTH < self._free() or not self._drop(max(held // 2, 1), None)) and not self._segments.settling:
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

    def _drop(self, nbytes: int, newest: Stage | None) -> bool:
        """Plans until they hold so many bytes less, those that have served longest ago first. Whether there was any."""
        dropped = 0
        if nbytes > 0:
            dropped += sum(model.spares.close() for model in self._models.values())
        for model, key, stage in sorted(self._stages(), key=self._last_used):
            if dropped >= nbytes:
                break
            if stage is newest or not stage.segments:
                continue
            if key == model.replanning:
                model.stop_replanning()
            size = self._bytes(stage)
            self._awaited.update(stage.segments)
            self._event_log.info("plan-dropped", model=model.name, plan=stage.answer.plan, bytes=size)
            self._publisher.drop(model, key)
            dropped += size
        return dropped > 0

    def _last_used(self, owned: _Owned) -> tuple[bool, float]:
        """Those that have served since they were last looked at come last, then those that were asked for last."""
        stage = owned[2]
        served = self._table.plan(stage.answer.plan)["served"] if stage.answer.plan else 0
        busy, stage.seen = served != stage.seen, served
        return busy, stage.asked_at

    def _stages(self) -> Iterator[_Owned]:
        for model in list(self._models.values()):
            for key, stage in list(model.stages.items()):
                yield model, key, stage

    def _held(self) -> int:
        return sum(self._bytes(stage) for _, _, stage in self._stages()) + sum(model.spares.nbytes for model in self._models.values())

    def _bytes(self, stage: Stage) -> int:
        return sum(self._segments[segment].nbytes for segment in stage.segments)
