"""Lets go of everything that is no longer used."""

from __future__ import annotations

from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.shm.bindings import _control


class Collector:
    """Models ask for it whenever something of theirs has changed. So `models` is set once they have been made."""

    models: ModelStore

    def __init__(self, table: _control.ControlTable, segments: SegmentStore, pool: WorkerPool) -> None:
        self._table, self._segments, self._pool = table, segments, pool

    def collect(self) -> None:
        """Closes segments that nothing refers to, and makes what has been announced known to the workers."""
        gone = set(self._table.collect())
        self.models.plans.collected(gone)
        for segment in gone - self.models.spared(gone):
            self._segments.forget(segment)
        self.models.collected(gone)
        self._pool.publish()
