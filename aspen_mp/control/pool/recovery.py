"""Recovers from a worker's death: the world is stopped, queues and counters are made anew from the executed tiles, and it goes on.

    idle ── a worker dies ──► stopping ── every other has parked, or was ended and reaped ──► rebuilt ──► idle, and new workers start

Requests in flight are continued, not lost. Where the dead worker may have written anywhere (it died of a fault of its own), they begin anew
from their inputs. A tile whose execution ends worker after worker fails its request alone (PoisonTile).
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.pool.recovery_stats import RecoveryStats
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import Loop, Timer
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._mapping import Mapping
from aspen_mp.shm.errors import AspenError
from aspen_mp.shm.scarcity import reason
from aspen_mp.system import clock

PARK_S: Final = 2.0
"""How long a worker may take to finish the tile in hand; then it is ended as well. Kernels take milliseconds, opaque tiles maybe longer."""
AGAIN_S: Final = 1.0
"""How soon it is looked again whether those are gone that were ended because they were late. Their ends are news anyway."""
MEMORY_S: Final = 0.1
"""How soon it is tried again to get memory without which the world cannot go on."""
FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})
MOST_FAULTS: Final = 3
MOST_KILLS: Final = 8
MOST_HANGS: Final = 3
MOST_BOOTS: Final = 8
"""Workers in a row that end by themselves before they run: then no more are started."""
MOST_DELAY_S: Final = 1.0
BURST: Final = 8
BURST_S: Final = 10.0
"""More faults than `BURST` in this time: the next worker waits a second, so that a request that kills workers does not fill the machine."""


@dataclass(slots=True)
class Death:
    """A worker that ended unasked. `number`: the signal, 0 if it exited by itself; `at`: (instance, tile, generation) it was executing.
    `booted`: it had come to run. `hung`: it was ended because it did not come out of that tile. `late`: it held a recovery up, for which
    the tile is not blamed. `abandoned`: it was killed and does not end, so `at` may still be written to."""

    row: int
    pid: int
    cpu: int
    why: str
    number: int
    at: tuple[int, int, int] | None
    booted: bool
    hung: bool = False
    late: bool = False
    abandoned: bool = False

    @property
    def killed(self) -> bool:
        """Ended by others, not by a fault of its own."""
        return not self.hung and self.number in {signal.SIGKILL, signal.SIGTERM}


class Pool(Protocol):
    """The workers, as far as a recovery is concerned."""

    def kill(self, rows: list[int]) -> None:
        """Ends workers, whose deaths are told when they have ended."""

    def stopped(self, rows: list[int]) -> list[int]:
        """Those of these rows whose workers somebody has stopped (SIGSTOP), which would hold everybody up."""

    def refill(self) -> None:
        """Starts a worker for each that has died."""

    def abandon(self) -> int:
        """Does without those that have died; how many that are."""

    def publish(self) -> None:
        """Tells workers of what has been announced."""

    @property
    def processes(self) -> int:
        """How many there are."""

    @property
    def running(self) -> int:
        """How many take tiles."""


class Tiles(Protocol):
    """The facts about the tiles that workers execute."""

    def op(self, instance: int, tile: int) -> int:
        """The op that a tile belongs to."""


class Recovery:
    """`deaths` … `replaced` are told in `status`."""

    def __init__(
        self,
        loop: Loop,
        table: _control.ControlTable,
        segments: SegmentStore,
        event_log: EventLog,
        pool: Pool,
        *,
        tiles: Tiles,
        replace: Callable[[int], None],
        after: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        """`replace(instance)` gives an instance another arena. `after()` is called when the world goes on, `give_up(why)` when no worker
        stays alive."""
        self.loop, self.table, self.segments, self.event_log, self.pool = loop, table, segments, event_log, pool
        self.tiles, self.replace, self.after, self.give_up = tiles, replace, after, give_up
        self.deaths = self.given_up = self.recoveries = self.replaced = 0
        self.last, self.last_stop_s = "", 0.0
        self.totals: Counter[str] = Counter()
        self.outages = RecoveryStats()
        self.closed = False
        self._attempts: Counter[tuple[int, int, int]] = Counter()
        self._kills: Counter[tuple[int, int, int]] = Counter()
        self._hangs: Counter[tuple[int, int, int]] = Counter()
        self._unborn = self._failed = 0
        self._poisoned: list[tuple[int, int, int]] = []
        self._lost: set[tuple[int, int]] = set()
        self._faults: deque[float] = deque(maxlen=BURST)
        self._since: float | None = None
        self._timer: Timer | None = None
        self._lacking = "", ""
        self._restart = False

    @property
    def going_on(self) -> bool:
        """Whether the world is stopped."""
        return self._since is not None

    def died(self, death: Death) -> None:
        """Begins a recovery, or joins the one that goes on."""
        if self.closed:
            return
        self.deaths += 1
        self.outages.died(death.pid)
        self.last = f"worker {death.row} on CPU {death.cpu} {death.why}"
        self._unborn = 0 if death.booted else self._unborn + 1
        # Whoever was killed by others (memory ran out, say) would perhaps have come to run.
        self._failed = 0 if death.booted else self._failed + (not death.killed)
        fault = death.number in FAULTS
        if fault:
            self._faults.append(clock.monotonic())
        self._restart |= fault or death.abandoned  # of the latter nobody knows what it is dying of
        if death.at is not None:
            if death.abandoned:
                self._lost.add((death.at[0], death.at[2]))
            if not death.late:
                self._blame(death.at, fault, death.hung)
        if self._since is None:
            self._since = clock.monotonic()
            self.table.epoch_begin()
        self.look()

    def started(self) -> None:
        """A new worker runs: starting them works again."""
        self._unborn = self._failed = 0

    def hangs(self, at: tuple[int, int, int]) -> int:
        """How many workers have hung in this tile of a request."""
        return self._hangs[at]

    def _blame(self, at: tuple[int, int, int], fault: bool, hung: bool) -> None:
        instance, tile, generation = at
        counts, most = (self._hangs, MOST_HANGS) if hung else (self._attempts, MOST_FAULTS) if fault else (self._kills, MOST_KILLS)
        counts[at] += 1
        if counts[at] >= most:
            self._poisoned.append((instance, generation, self.tiles.op(instance, tile)))

    def look(self) -> None:
        """Goes on with a recovery, if all have parked or are gone. To be called when a worker has parked, ended or been stopped."""
        if self._since is None or self.closed:
            return
        late = self.table.epoch_stopped()  # I7: nothing is rebuilt before each has parked or been reaped
        left = self._since + PARK_S - clock.monotonic()
        doomed = late if left < 0 else self.pool.stopped(late)
        if doomed:
            self.pool.kill(doomed)
        if late:
            self._look_in(left if left > 0 else AGAIN_S)
        elif not self._replace_lost() or (buffers := self._mapped()) is None:
            self._look_in(MEMORY_S)
        else:
            self._rebuild(buffers)

    def _look_in(self, seconds: float) -> None:
        """Look in `seconds`, instead of at any other time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.look()

    def _replace_lost(self) -> bool:
        """Replaces memory that workers that do not end may still write to. False: there is no memory to replace it with, so the world has
        to stand still."""
        for instance, generation in list(self._lost):
            if self.table.instance(instance)["generation"] == generation:
                try:
                    self.replace(instance)
                    self.pool.publish()
                except (AspenError, OSError, MemoryError) as error:
                    self._lacks("arena-not-replaced", error)
                    return False
                self.replaced += 1
            self._lost.discard((instance, generation))
        return True

    def _lacks(self, event: str, error: BaseException) -> None:
        """It is tried again and again, but said once."""
        why = reason(error)
        if (event, why) != self._lacking:
            self._lacking = event, why
            self.event_log.warning(event, why=why)

    def _mapped(self) -> dict[int, Mapping] | None:
        """The segments to rebuild, mapped, by segment. None: there is no memory for that (address space, mappings), so the world has to
        stand still."""
        buffers: dict[int, Mapping] = {}
        try:
            for segment in self.table.recovery_segments(restart=self._restart):
                held = self.segments[segment]
                buffers[segment] = Mapping(held.fd, held.nbytes, held.role != "plan")
        except (OSError, MemoryError) as error:
            for mapping in buffers.values():
                mapping.close()
            self._lacks("recovery-waits", error)
            return None
        self._lacking = "", ""
        return buffers

    def _rebuild(self, buffers: dict[int, Mapping]) -> None:
        assert self._since is not None
        for instance, generation, op in self._poisoned:  # now that the world stands still, the instance cannot become another request's
            self.table.fail(instance, generation, _control.ERRORS["POISON"], op)
        self._poisoned.clear()
        outcome = self.table.recover(buffers, restart=self._restart)
        self.totals.update(outcome)
        for mapping in buffers.values():
            mapping.close()
        self.table.epoch_end()
        self.recoveries += 1
        self.last_stop_s = clock.monotonic() - self._since
        self.event_log.warning("recovered", seconds=self.last_stop_s, **outcome)
        self.outages.ended(self.pool.running, self._restart)
        self._since = None
        self._restart = False
        self._forget_old()
        self.after()
        self._refill()

    def _forget_old(self) -> None:
        """Blame is for a request: it ends with it."""
        for counts in (self._attempts, self._kills, self._hangs):
            for at in list(counts):
                if self.table.instance(at[0])["generation"] != at[2]:
                    del counts[at]

    def _refill(self) -> None:
        """Replaces the dead: at once, but later and later where they do not even come to run."""
        if self._failed >= MOST_BOOTS:
            n = self.pool.abandon()
            if n:
                self.given_up += n
                self.event_log.warning("workers-given-up", workers=n, left=self.pool.processes, why=self.last)
            if not self.pool.processes:
                self.give_up(self.last)
            return
        delay = min(MOST_DELAY_S, 0.01 * 2**self._unborn) if self._unborn else 0.0
        if len(self._faults) == BURST and clock.monotonic() - self._faults[0] < BURST_S:
            delay = MOST_DELAY_S
        if delay:
            self.loop.later(delay, self._start)
        else:
            self._start()

    def _start(self) -> None:
        if self.closed:
            return
        try:
            self.pool.refill()
        except Exception as error:
            self.last = f"a worker could not be started: {error}"
            self.event_log.warning("worker-not-started", why=str(error))
            if not self.pool.processes:
                self.give_up(self.last)
