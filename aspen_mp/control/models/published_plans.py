"""Published plans by number, until no worker uses them any more: whose they are, and what their tiles and ops are called.

A plan outlives its place in a model: when it has been replaced, or its model unloaded, requests that run on it go on to their ends. Its
ops can be named for some seconds more, because a client asks why its request has failed when that may have been the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models import tile_names
from aspen_mp.control.models.plans import Model, Plan
from aspen_mp.control.pool.watchdog import Estimate
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.system import descriptors

NAMED_S: Final = 10.0
"""How long the ops of a plan that has gone can be named, to who still has its model loaded. That takes the memory of its segment, and a
descriptor."""
MOST_NAMED: Final = 64
"""Of so many plans that have gone, the last ones: models with ever new shapes lose many."""


class Plans:
    def __init__(self, loop: Loop, segments: SegmentStore, ended: Callable[[Plan], None]) -> None:
        """`ended(plan)`: no worker uses it any more."""
        self._loop = loop
        self._segments = segments
        self._ended = ended
        self._plans: dict[int, Plan] = {}
        self._gone: dict[tuple[int, int], tuple[Model, int]] = {}  # by number and generation: whose it was, a descriptor of its segment

    def add(self, plan: Plan) -> None:
        self._plans[plan.answer.plan] = plan

    def segments_of(self, model: Model) -> set[int]:
        """Of the model's plans that workers may still use."""
        return {plan.segments[0] for plan in self._plans.values() if plan.model is model}

    def collected(self, segments: set[int]) -> None:
        """These are used no longer, and are going to be closed."""
        for number, plan in list(self._plans.items()):
            if plan.segments[0] in segments:
                del self._plans[number]
                if plan.model.users:  # somebody may ask
                    self._keep_names(plan)
                self._ended(plan)

    def _keep_names(self, plan: Plan) -> None:
        number, generation = plan.answer.plan, plan.answer.generation
        with suppress(OSError):  # no descriptor: no names
            self._gone[number, generation] = plan.model, descriptors.dup(self._segments[plan.segments[0]].fd)
            self._loop.later(NAMED_S, partial(self._forget, number, generation))
            if len(self._gone) > MOST_NAMED:
                self._forget(*next(iter(self._gone)))

    def _forget(self, plan: int, generation: int) -> None:
        _, fd = self._gone.pop((plan, generation), (None, -1))
        if fd >= 0:
            descriptors.close(fd)

    def unloaded(self, model: Model) -> None:
        """Nobody has the model loaded any more."""
        for (plan, generation), (whose, _) in list(self._gone.items()):
            if whose is model:
                self._forget(plan, generation)

    def close(self) -> None:
        for plan, generation in list(self._gone):
            self._forget(plan, generation)

    def _fd(self, plan: int) -> int:
        return self._segments[self._plans[plan].segments[0]].fd

    def name_of(self, plan: int) -> str:
        """The model that a plan belongs to; empty where the plan has gone."""
        return self._plans[plan].model.name if plan in self._plans else ""

    def op_of_tile(self, plan: int, tile: int) -> int:
        """The op that a tile of a plan belongs to."""
        return tile_names.op_of_tile(self._fd(plan), tile) if plan in self._plans else 0

    def tile_name(self, plan: int, tile: int) -> tuple[str, str]:
        """The model and the op that a tile belongs to; empty where the plan has gone."""
        return (self.name_of(plan), tile_names.op_of(self._fd(plan), tile)) if plan in self._plans else ("", "")

    def estimate(self, plan: int, tile: int) -> Estimate:
        """What the plan says of a tile. Of one of a plan that has gone nothing is known: it may take any time."""
        if plan not in self._plans:
            return Estimate("a tile of a plan that has gone", True, 0.0)
        return Estimate(*tile_names.tile_estimate(self._fd(plan), tile))

    def op_name(self, plan: int, generation: int, op: int, client: int) -> str:
        """ "node name (op type)" of an op of a plan of a model that the client has loaded."""
        there = self._plans.get(plan)
        if there is not None and there.answer.generation == generation:
            model, fd = there.model, self._fd(plan)
        elif (plan, generation) in self._gone:
            model, fd = self._gone[plan, generation]
        else:
            return f"op {op}"
        return (client in model.users and tile_names.op_name(fd, op)) or f"op {op}"
