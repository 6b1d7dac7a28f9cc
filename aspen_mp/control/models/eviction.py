"""Chooses the plans to retire when there are too many of them, or when memory is wanted.

What all plans hold may be as much as what is free besides (a control group's limit counts as well as the machine's memory), or what the
profile says; beyond, the plan that was used longest ago goes. Where memory for a new plan is refused all the same, more of them go, and it
is tried again when their memory has come back.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.models.plans import Model, Plan
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.segments import memory_available
from aspen_mp.system import processes

MAX_PLANS: Final = 256
"""Plans of one model. Beyond that, the plan that was asked for longest ago is retired; clients that still use it ask again."""
MAX_PLAN_BYTES: Final = 4 << 30
"""Bytes of the plans of one model and their arenas."""
MAX_BEHIND: Final = 64
MAX_BEHIND_BYTES: Final = 512 << 20
"""Number and bytes of a model's plans behind data, whose shapes follow from data such as a number of detections. Most are never asked for
again, so the plan that has served least of late is retired."""
MOST_OF_ALL: Final = 0.6
"""The share of descriptors, and of places in the runtime's tables, that the live plans of all models may take. Beyond that, the model with
the most plans loses the plan that was asked for longest ago. The rest is for retired plans that are still in use, and for clients."""
PATIENCE_S: Final = 5.0
"""Longest wait for the memory of retired plans, in s: requests that run on them go on to their ends."""
WORTH: Final = 4
"""Plans are retired for a refused request only if they hold at least 1/`WORTH` of the free memory. So a client that asks for more than
there is cannot take the plans of others."""


class Eviction:
    """Limits of what plans hold.

    `models` are those that are loaded, by number. `retire(plan)` ends a live plan, now or later. `most`: bytes that the plans of all
    models may hold; 0: as much as is free besides.
    """

    def __init__(self, models: Mapping[int, Model], resources: Resources, retire: Callable[[Plan], None], most: int) -> None:
        self._models = models
        self._loop, self._table, self._segments = resources.loop, resources.table, resources.segments
        self._event_log = resources.event_log
        self._retire = retire
        self._most = most
        self._awaited: set[int] = set()
        self._waiting: list[Callable[[], None]] = []

    # ---- too many

    def make_room(self, newest: Plan) -> bool:
        """Retire a plan if there are too many now that `newest` is live. Return whether there may be more of them to retire."""
        surplus = self._surplus_behind(newest) or self._surplus_of_model(newest) or self._surplus_of_all()
        if surplus is not None:
            self._retire(surplus)
            return True
        held = self._held()
        self._drop(held - (self._most or (held + memory_available()) // 2), newest)
        return False

    def _surplus_behind(self, newest: Plan) -> Plan | None:
        """Return a plan to retire where too many of the model's plans are behind data."""
        behind = [plan for plan in newest.model.live.values() if len(plan.job.stages) > 1]
        if len(behind) < 2 or (len(behind) <= MAX_BEHIND and sum(map(self._bytes, behind)) <= MAX_BEHIND_BYTES):
            return None
        served = {plan: self._table.plan(plan.answer.plan)["served"] if plan.answer.plan else 0 for plan in behind if plan is not newest}
        least = min(served, key=lambda plan: served[plan] - plan.usage.average)  # of equal ones the one that was asked for longest ago
        least.model.spares.expect(least.segments[1:])
        del served[least]
        for other, count in served.items():
            other.usage.average = (other.usage.average + count) / 2
        return least

    def _surplus_of_model(self, newest: Plan) -> Plan | None:
        """Return the model's plan that was asked for longest ago, where the model has too many."""
        model = newest.model
        if len(model.live) < 2 or (len(model.live) <= MAX_PLANS and sum(map(self._bytes, model.live.values())) <= MAX_PLAN_BYTES):
            return None
        oldest = next(iter(model.live.values()))
        if not newest.job.recurs:  # the next one most likely is for yet another shape
            model.spares.expect(oldest.segments[1:])
        return oldest

    def _surplus_of_all(self) -> Plan | None:
        """Return a plan of the model with the most plans, where all models together have too many."""
        if not self._crowded():
            return None
        largest = max(self._models.values(), key=lambda model: len(model.live))
        # With so many models, whoever loads another one is told.
        return next(iter(largest.live.values())) if len(largest.live) > 1 else None

    def _crowded(self) -> bool:
        plans = sum(len(model.live) for model in self._models.values())
        instances = sum(len(model.live) * model.instances for model in self._models.values())
        segments = sum(len(plan.segments) for model in self._models.values() for plan in model.live.values())
        available = (_control.MAX_PLANS, _control.MAX_INSTANCES, descriptor_limit())
        return any(taken > MOST_OF_ALL * most for taken, most in zip((plans, instances, segments), available, strict=True))

    # ---- memory is wanted

    def relieve(self, then: Callable[[], None]) -> bool:
        """Retire plans that hold half of what all plans hold. `then()` follows when their memory has come back, or after `PATIENCE_S`.

        Return False where that would not help, and no memory that was given up before is still on its way back.
        """
        held = self._held()
        if (held * WORTH < memory_available() or not self._drop(max(held // 2, 1), None)) and not self._segments.settling:
            return False
        self._waiting.append(then)
        self._loop.later(PATIENCE_S, lambda: self._go_on(then))
        self._look()
        return True

    def collected(self, segments: set[int]) -> None:
        """Note segments that nothing refers to any more."""
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
        """Retire plans that hold so many bytes, those that have served longest ago first. Return whether there was any."""
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
        """Return a sort key: plans that have served since the last look come last, then those that were asked for last."""
        served = self._table.plan(plan.answer.plan)["served"] if plan.answer.plan else 0
        busy, plan.usage.served = served != plan.usage.served, served
        return busy, plan.usage.asked_at

    def _live(self) -> Iterator[Plan]:
        for model in self._models.values():
            yield from model.live.values()

    def _held(self) -> int:
        return sum(map(self._bytes, self._live())) + sum(model.spares.nbytes for model in self._models.values())

    def _bytes(self, plan: Plan) -> int:
        return sum(self._segments[segment].nbytes for segment in plan.segments)


def descriptor_limit() -> float:
    """Return how many descriptors this process may have."""
    limit = processes.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit
