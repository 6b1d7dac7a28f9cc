"""Which plans go when there are too many: of one model, of those behind data, and of all models together."""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping
from typing import Final

from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models.memory_pressure import Pressure
from aspen_mp.control.models.model_state import Model, Stage
from aspen_mp.control.models.publishing import Publisher
from aspen_mp.shm.bindings import _control

MAX_PLANS: Final = 256
"""Plans of one model: beyond, the one that was asked for longest ago is dropped. Clients that still use it ask for it again."""
MAX_PLAN_BYTES: Final = 4 << 30
"""The same for what the plans of a model and their arenas take together."""
MAX_BEHIND: Final = 64
MAX_BEHIND_BYTES: Final = 512 << 20
"""The same for plans of stages whose shapes follow from data, such as a number of detections: most are never asked for again. Those that
have served least of late are dropped."""
MOST_OF_ALL: Final = 0.6
"""The plans of all models may take so much of what there is for them: places in the runtime's tables, and descriptors. Beyond, the model
with the most plans loses the one that was asked for longest ago. The rest is for plans that are in use after that, and for clients."""


class Eviction:
    """`models`: those that are loaded, by number."""

    def __init__(
        self, models: Mapping[int, Model], table: _control.ControlTable, segments: SegmentStore, publisher: Publisher, pressure: Pressure
    ) -> None:
        self._pressure = pressure
        self._models = models
        self._table = table
        self._segments = segments
        self._publisher = publisher

    def make_room(self, model: Model, newest: Stage) -> None:
        """After a model has got another stage, the last of its stages."""
        self._drop_behind(model, newest)
        while len(model.stages) > 1 and (len(model.stages) > MAX_PLANS or self._bytes(model.stages) > MAX_PLAN_BYTES):
            oldest = next(iter(model.stages))
            if not newest.searched:  # the next one most likely is for yet another shape
                model.spares.expect(model.stages[oldest].segments[1:])
            self._publisher.drop(model, oldest)
        while self._crowded():
            largest = max(self._models.values(), key=lambda model: len(model.stages))
            if len(largest.stages) < 2:
                break  # so many models: whoever loads another one is told
            largest.stop_replanning()
            self._publisher.drop(largest, next(iter(largest.stages)))
        self._pressure.make_room(newest)

    def _drop_behind(self, model: Model, newest: Stage) -> None:
        """Plans behind data that are too many."""
        while True:
            behind = {key: stage for key, stage in model.stages.items() if stage.behind}
            if len(behind) < 2 or (len(behind) <= MAX_BEHIND and self._bytes(behind) <= MAX_BEHIND_BYTES):
                return
            served = {k: self._table.plan(s.answer.plan)["served"] if s.answer.plan else 0 for k, s in behind.items() if s is not newest}
            key = min(served, key=lambda k: served[k] - behind[k].mark)  # of equal ones the one that was asked for longest ago
            if key == model.replanning:
                model.stop_replanning()
            model.spares.expect(behind[key].segments[1:])
            self._publisher.drop(model, key)
            for other, count in served.items():
                behind[other].mark = (behind[other].mark + count) / 2

    def _bytes(self, stages: Mapping[bytes, Stage]) -> int:
        return sum(self._segments[segment].nbytes for stage in stages.values() for segment in stage.segments)

    def _crowded(self) -> bool:
        plans = sum(len(model.stages) for model in self._models.values())
        instances = sum(len(model.stages) * model.instances for model in self._models.values())
        descriptors = sum(len(stage.segments) for model in self._models.values() for stage in model.stages.values())
        available = (_control.MAX_PLANS, _control.MAX_INSTANCES, descriptor_limit())
        return any(taken > MOST_OF_ALL * most for taken, most in zip((plans, instances, descriptors), available, strict=True))


def descriptor_limit() -> float:
    """How many descriptors this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit
