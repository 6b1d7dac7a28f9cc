"""The cores of a runtime: which of them the machine offers, and what happens when that changes.

Nothing tells of a change of the machine, so the planner process looks once in `LOOK_S`. Where the user has not said how many workers there
are to be, there are as many as the machine is good for. Plans that are used are made again, in the background, for the new cores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from aspen_mp.control.models.model_store import ModelStore
from aspen_mp.control.planning.schedule_child import Core
from aspen_mp.control.pool import placement
from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.control.pool.core_speeds import CoreSpeeds, Count, alike
from aspen_mp.control.pool.recovery import Recovery
from aspen_mp.control.pool.watchdog import Watchdog
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.control.process.config import Config
from aspen_mp.control.wire import protocol, status
from aspen_mp.control.wire.event_log import EventLog, ShortageLog
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.bindings import _control, _tables
from aspen_mp.shm.errors import AspenError, RequestError, ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.shm.words import count
from aspen_mp.workers import topology

LOOK_S = 1.0
"""How often the planner process looks at its workers' heartbeats and at what the machine lets it use."""
STEADY = 3
"""Looks at which the cores were the same before plans are made for them."""


class Cores:
    """The cores that the machine offers to this runtime, and those that plans are made for.

    `first`: the CPUs to start workers on. `follows`: there are as many workers as the machine is good for. `changes`: how often the
    machine's offer has changed. `planned_for`: the speeds of the cores that plans are made for.
    """

    def __init__(self, config: Config) -> None:
        """ResourceLimitError where the number of workers is not allowed."""
        self.leases = Leases(config.leases)
        self._limits_reader = topology.LimitsReader()
        self.limits = self._limits_reader.read()
        self.topology = topology.read()
        self._classes, self._smt = config.classes or None, config.smt
        taken = self.leases.others()
        self.first = self.topology.select(config.workers, config.cores, classes=self._classes, smt=self._smt, taken=taken)
        self.follows = config.workers is None and config.cores is None
        max_workers = config.max_workers or max(16, len(self.first), self.topology.online)
        self.max_workers = min(max_workers, _tables.LIMITS["workers"])
        if len(self.first) > self.max_workers:
            raise ResourceLimitError(
                f"{count(len(self.first), 'worker')} asked for, but max_workers is only {self.max_workers}. Give a larger max_workers"
            )
        self.changes = 0
        self._measured = CoreSpeeds()
        self.planned_for = self.topology.speeds(self.first)

    def read_limits(self) -> topology.Limits:
        """The limits of this runtime on the machine now. `limits` is what it did at the last change."""
        return self._limits_reader.read()

    def changed(self, limits: topology.Limits, machine: topology.Topology) -> None:
        """The machine offers this from now on."""
        self.limits, self.topology = limits, machine
        self.changes += 1

    def preferred(self) -> list[int]:
        """CPUs of the classes that the user wants, the best one first."""
        return self.topology.limited(self._classes, self._smt).placement()

    def automatic(self, cpus: list[int], others: Iterable[int]) -> int:
        """How many workers there are to be where the user has not said. `cpus`: where there are workers now."""
        return min(self.max_workers, placement.automatic(self.topology, self.preferred(), cpus, set(others)))

    def measure(self, paces: Iterable[Count]) -> None:
        """Takes up how fast workers were since the last look."""
        self._measured.look(paces, {core.cpu: core.speed for core in self.topology.cores})

    def plan_for(self, cpus: list[int]) -> bool:
        """Plans that are made from now on are for workers on these CPUs. Whether those differ from what plans were made for before."""
        before = self.planned_for
        self.planned_for = self.topology.speeds(cpus, self._measured.gives) or before
        return not alike(before, self.planned_for)

    def of_rows(self, workers: Iterable[dict[str, Any]]) -> dict[int, Core]:
        """The core of each worker that runs, by its row. `workers`: as of `ControlTable.workers`."""
        found = {}
        for worker in workers:
            core = self.topology.by_cpu.get(worker["cpu"])
            if core is not None and worker["state"] == "running":
                found[worker["row"]] = Core(core.speed, core.rank, core.l3, core.node)
        return found

    def describe(self) -> status.Cores:
        """Describes the cores for `status`."""
        return status.Cores(
            cpus=topology.format_cpus(self.limits.cpus),
            cpu_quota=self.limits.quota,
            workers="follow" if self.follows else "fixed",
            shared_cpus=topology.format_cpus(self.leases.shared),
            changes=self.changes,
        )


class MachineWatch:
    """Looks at the machine and at the workers again and again. Keeps as many workers as there are to be, each on the core that suits it,
    and plans that suit the cores."""

    def __init__(
        self,
        loop: Loop,
        event_log: EventLog,
        shortages: ShortageLog,
        table: _control.ControlTable,
        *,
        cores: Cores,
        pool: WorkerPool,
        models: ModelStore,
        recovery: Recovery,
        watchdog: Watchdog,
        replan: bool,
    ) -> None:
        """`replan`: plans are made again for other cores."""
        self._loop, self._event_log, self._shortages, self._table = loop, event_log, shortages, table
        self._cores, self._pool, self._models, self._recovery, self._watchdog = cores, pool, models, recovery, watchdog
        self._replans = replan
        self._steady = 0
        self._refused = self._not_replanned = ""

    def begin(self) -> None:
        """Looks from now on."""
        self._loop.later(LOOK_S, self._look)

    def _look(self) -> None:
        """Does a worker hang, has the machine changed under us, or another runtime given up a core that we want?"""
        self.begin()
        self._watchdog.look(LOOK_S)
        try:
            self._replan()
            self._look_at_machine()
        except (OSError, MemoryError, ImportError) as error:
            if not is_scarce(error):
                raise
            self._shortages.note(error)  # the next look finds what there is to be found

    # ---- plans

    def _replan(self) -> None:
        """Plans are to suit the present cores, as fast as they are now. Differences that last for a moment are not worth it."""
        self._cores.measure(self._table.paces())
        self._plan_for_now()
        self._steady += 1
        if self._steady <= STEADY or not self._replans or self._recovery.going_on:
            return
        try:
            self._models.refresh()
        except Exception as error:  # nobody has asked for it: nobody loses anything by it
            if is_scarce(error):
                raise
            why = f"{type(error).__name__}: {error}"
            if why != self._not_replanned:
                self._not_replanned = why
                self._event_log.warning("not-replanned", why=why)
                sys.excepthook(type(error), error, error.__traceback__)

    def _plan_for_now(self) -> None:
        """Plans that are made from now on are for the present cores."""
        if self._cores.plan_for(self._pool.cpus()):
            self._steady = 0

    # ---- workers

    def _look_at_machine(self) -> None:
        limits = self._cores.read_limits()
        if limits != self._cores.limits:
            self._machine_changed(limits)
            return
        self._pool.claim_shared()
        n = len(self._pool)
        if self._cores.follows and not self._recovery.given_up and n < self._automatic(()):
            n = max(n, self._automatic(self._cores.leases.others()))
        if n > len(self._pool) or self._pool.crowded:
            self._settle(n)

    def _machine_changed(self, limits: topology.Limits) -> None:
        machine, others = topology.read(), self._cores.leases.others()
        before, workers = self._cores.limits, len(self._pool)
        self._cores.changed(limits, machine)
        self._settle(self._automatic(others) if self._cores.follows else workers)
        facts: dict[str, Any] = {"cpus": topology.format_cpus(limits.cpus), "were": topology.format_cpus(before.cpus)}
        if limits.quota != before.quota:
            facts |= {"quota": limits.quota or "none", "was": before.quota or "none"}
        facts |= {"workers": len(self._pool), "had": workers}
        if len(self._pool) > len(limits.cpus):
            why = f"{count(len(self._pool), 'worker')} on {count(len(limits.cpus), 'CPU')}"
            self._event_log.warning("machine-changed", **facts, why=why)
        else:
            self._event_log.info("machine-changed", **facts)

    def _automatic(self, others: Iterable[int]) -> int:
        return self._cores.automatic(self._pool.cpus(), others)

    def _settle(self, n: int) -> None:
        """`n` workers, each where it belongs now."""
        try:
            self._pool.settle(self._cores.topology, self._cores.preferred(), n)
        except (AspenError, OSError) as error:
            if reason(error) != self._refused:  # it is tried again, but said once
                self._refused = reason(error)
                self._event_log.warning("worker-not-started", why=self._refused)
        self._plan_for_now()

    def resize(self, message: protocol.Resize) -> None:
        """A client wants other workers. RequestError or ResourceLimitError where there cannot be such."""
        if message.total == protocol.AUTOMATIC:
            n = self._automatic(self._cores.leases.others())
            self._cores.follows = True
            self._settle(n)
            return
        change = message.total - len(self._pool) if message.total >= 0 else message.add - message.remove
        if message.cores and abs(change) != len(message.cores):
            raise RequestError(
                f"{count(abs(change), 'worker')} to {'add' if change > 0 else 'remove'}, but {count(len(message.cores), 'core')} named"
            )
        if len(self._pool) + change < 0:
            raise RequestError(
                f"{count(-change, 'worker')} to remove, but there {'is' if len(self._pool) == 1 else 'are'} {len(self._pool)}"
            )
        self._cores.follows = False
        if change > 0:
            self._pool.start(change, message.cores)
        elif change < 0:
            self._pool.leave(-change, message.cores)
        self._plan_for_now()
