"""Which plans go when there are too many: of one model, of those behind data, and of all models together."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.models.memory_pressure import Pressure
from aspen_mp.control.models.plan_states import Model, Plan
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
    """`models`: those that are loaded, by number. `retire(plan)` ends a live plan."""

    def __init__(self, models: Mapping[int, Model], resources: Resources, retire: Callable[[Plan], None], pressure: Pressure) -> None:
        self._pressure = pressure
        self._models = models
        self._table = resources.table
        self._segments = resources.segments
        self._retire = retire

    def make_room(self, newest: Plan) -> None:
        """After a model has got another plan, the last of its live ones."""
        model = newest.model
        self._drop_behind(newest)
        while len(model.live) > 1 and (len(model.live) > MAX_PLANS or self._bytes(model.live.values()) > MAX_PLAN_BYTES):
            oldest = next(iter(model.live.values()))
            if not newest.job.search:  # the next one most likely is for yet another shape
                model.spares.expect(oldest.segments[1:])
            self._retire(oldest)
        while self._crowded():
            largest = max(self._models.values(), key=lambda model: len(model.live))
            if len(largest.live) < 2:
                break  # so many models: whoever loads another one is told
            self._retire(next(iter(largest.live.values())))
        self._pressure.make_room(newest)

    def _drop_behind(self, newest: Plan) -> None:
        """Plans behind data that are too many."""
        while True:
            behind = [plan for plan in newest.model.live.values() if len(plan.job.stages) > 1]
            if len(behind) < 2 or (len(behind) <= MAX_BEHIND and self._bytes(behind) <= MAX_BEHIND_BYTES):
                return
            served = {
                plan: self._table.plan(plan.answer.plan)["served"] if plan.answer.plan else 0 for plan in behind if plan is not newest
            }
            least = min(served, key=lambda plan: served[plan] - plan.mark)  # of equal ones the one that was asked for longest ago
            least.model.spares.expect(least.segments[1:])
            self._retire(least)
            for other, count in served.items():
                other.mark = (other.mark + count) / 2

    def _bytes(self, plans: Iterable[Plan]) -> int:
        return sum(self._segments[segment].nbytes for plan in plans for segment in plan.segments)

    def _crowded(self) -> bool:
        plans = sum(len(model.live) for model in self._models.values())
        instances = sum(len(model.live) * model.instances for model in self._models.values())
        descriptors = sum(len(plan.segments) for model in self._models.values() for plan in model.live.values())
        available = (_control.MAX_PLANS, _control.MAX_INSTANCES, descriptor_limit())
        return any(taken > MOST_OF_ALL * most for taken, most in zip((plans, instances, descriptors), available, strict=True))


def descriptor_limit() -> float:
    """How many descriptors this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit
