"""The planner process's reactions to news of a worker."""

from __future__ import annotations

from aspen_mp.control.pool.recovery import Death
from aspen_mp.control.process.admission import Admission
from aspen_mp.control.process.parts import Parts
from aspen_mp.system import descriptors


class Supervisor:
    """Hears of workers (`PoolListener`)."""

    def __init__(self, parts: Parts, admission: Admission) -> None:
        self._parts, self._admission = parts, admission
        self._worked = False

    def worker_ready(self) -> None:
        self._worked = True
        pool, recovery = self._parts.workers.pool, self._parts.care.recovery
        recovery.started()
        if pool.running:
            recovery.outages.running()
        if not pool.starting:
            self._admission.workers_started()

    def worker_died(self, death: Death) -> None:
        self._parts.care.recovery.died(death)
        self._worked |= death.booted
        if not self._worked and not death.killed:
            # No worker has ever run, and this one ended by itself: so will the next.
            self._parts.base.drain.no_workers(death.why)

    def parked(self) -> None:
        """One or more have parked for a recovery."""
        descriptors.eventfd_read(self._parts.workers.parked)
        self._parts.care.recovery.look()

    def worker_stopped(self) -> None:
        self._parts.care.recovery.look()

    def worker_left(self) -> None:
        self._parts.memory.collector.collect()
        self._parts.care.recovery.look()

    def drained(self) -> None:
        self._parts.models.store.look_at_weights()
        self._parts.memory.collector.collect()

    def unmapped(self, number: int) -> None:
        self._parts.memory.segments.unmapped(number)
