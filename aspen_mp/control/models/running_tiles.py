"""The tiles that workers execute: which op and model they belong to, and whether anybody wants their results."""

from __future__ import annotations

from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models.published_plans import Plans
from aspen_mp.control.pool.watchdog import At, Estimate
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._mapping import Mapping


class RunningTiles:
    def __init__(self, table: _control.ControlTable, segments: SegmentStore, plans: Plans) -> None:
        self._table, self._segments, self._plans = table, segments, plans

    def _plan(self, instance: int) -> int:
        plan: int = self._table.instance(instance)["plan"]
        return plan

    def op(self, instance: int, tile: int) -> int:
        """The op that a tile belongs to."""
        return self._plans.op_of_tile(self._plan(instance), tile)

    def name(self, instance: int, tile: int) -> tuple[str, str]:
        """The model and the op that a tile belongs to; empty where the plan has gone."""
        return self._plans.tile_name(self._plan(instance), tile)

    def estimate(self, instance: int, tile: int) -> Estimate:
        """What the plan says of a tile."""
        return self._plans.estimate(self._plan(instance), tile)

    def unwanted(self, at: At) -> bool:
        """Whether nobody wants the result of a request that a worker has been in one tile of for some time."""
        instance, _, generation = at
        held = self._segments.get(self._table.instance(instance)["client_segment"])
        try:
            client = None if held is None else Mapping(held.fd, held.nbytes, False)
        except (OSError, MemoryError):
            client = None  # without memory for a look, what the control table says has to do
        try:
            return self._table.unwanted(instance, generation, client)
        finally:
            if client is not None:
                client.close()
