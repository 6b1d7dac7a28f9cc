"""What happens when a worker dies: the world is stopped, queues and counters are made anew from what has been executed, and it goes on.

    idle ── a worker dies ──► stopping ── every other has parked, or was ended and reaped ──► rebuilt ──► idle, and new workers start

Requests in flight are continued, not lost. Where the dead worker may have written anywhere (it died of a fault of its own), they begin anew
from their inputs. A tile whose execution ends worker after worker fails its request alone (PoisonTile).
"""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aspen_mp.control.journal import Journal
from aspen_mp.control.loop import Loop
from aspen_mp.control.outages import Outages
from aspen_mp.control.segments import SegmentStore
from aspen_mp.shm import _control
from aspen_mp.shm._mapping import Mapping

PARK_S: Final = 2.0
"""How long a worker may take to finish the tile in hand; then it is ended as well. Kernels take milliseconds, opaque tiles maybe longer."""
TICK_S: Final = 0.0005
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
    `booted`: it had come to run. `hung`: it was ended because it did not come out of that tile."""

    row: int
    pid: int
    cpu: int
    why: str
    number: int
    at: tuple[int, int, int] | None
    booted: bool
    hung: bool = False

    @property
    def killed(self) -> bool:
        """Ended by others, not by a fault of its own."""
        return not self.hung and self.number in {signal.SIGKILL, signal.SIGTERM}


@dataclass(slots=True)
class Recovery:
    """`kill(rows)` ends and reaps workers without a word and returns their pids; `stopped(rows)` are those of them that have been stopped
    (SIGSTOP), which would hold everybody up; `refill()` starts one for each that has died, `abandon()` does without them; `alive()`
    counts those there are, `running()` those that take tiles; `op_of(instance, tile)` finds a tile's op; `after()` is called when the
    world goes on; `give_up(why)` when no worker stays alive."""

    loop: Loop
    table: _control.ControlTable
    segments: SegmentStore
    kill: Callable[[list[int]], list[int]]
    stopped: Callable[[list[int]], list[int]]
    refill: Callable[[], None]
    abandon: Callable[[], int]
    alive: Callable[[], int]
    running: Callable[[], int]
    op_of: Callable[[int, int], int]
    after: Callable[[], None]
    give_up: Callable[[str], None]
    journal: Journal
    deaths: int = 0
    given_up: int = 0
    recoveries: int = 0
    last: str = ""
    last_stop_s: float = 0.0
    totals: Counter[str] = field(default_factory=Counter)
    outages: Outages = field(default_factory=Outages)
    _attempts: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    _kills: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    _hangs: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    _unborn: int = 0
    _failed: int = 0
    _poisoned: list[tuple[int, int, int]] = field(default_factory=list)
    _faults: deque[float] = field(default_factory=lambda: deque(maxlen=BURST))
    _since: float | None = None
    _restart: bool = False
    closed: bool = False

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
            self._faults.append(time.monotonic())
        self._restart |= fault
        if death.at is not None:
            self._blame(death.at, fault, death.hung)
        if self._since is None:
            self._since = time.monotonic()
            self.table.epoch_begin()
        self._tick()

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
            self._poisoned.append((instance, generation, self.op_of(instance, tile)))

    def _tick(self) -> None:
        if self._since is None or self.closed:
            return
        late = self.table.epoch_stopped()  # I7: nothing is rebuilt before each has parked or been reaped
        doomed = late if time.monotonic() - self._since > PARK_S else self.stopped(late)
        if doomed:
            for pid in self.kill(doomed):
                self.deaths += 1
                self.outages.died(pid)
            late = self.table.epoch_stopped()
        if late:
            self.loop.later(TICK_S, self._tick)
            return
        self._rebuild()

    def _rebuild(self) -> None:
        assert self._since is not None
        buffers = {}
        for segment in self.table.recovery_segments(restart=self._restart):
            held = self.segments[segment]
            buffers[segment] = Mapping(held.fd, held.nbytes, held.role != "plan")
        for instance, generation, op in self._poisoned:  # now that the world stands still, the instance cannot become another request's
            self.table.fail(instance, generation, _control.ERRORS["POISON"], op)
        self._poisoned.clear()
        outcome = self.table.recover(buffers, restart=self._restart)
        self.totals.update(outcome)
        for mapping in buffers.values():
            mapping.close()
        self.table.epoch_end()
        self.recoveries += 1
        self.last_stop_s = time.monotonic() - self._since
        self.journal.warning("recovered", seconds=self.last_stop_s, **outcome)
        self.outages.ended(self.running(), self._restart)
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
            n = self.abandon()
            if n:
                self.given_up += n
                self.journal.warning("workers-given-up", workers=n, left=self.alive(), why=self.last)
            if not self.alive():
                self.give_up(self.last)
            return
        delay = min(MOST_DELAY_S, 0.01 * 2**self._unborn) if self._unborn else 0.0
        if len(self._faults) == BURST and time.monotonic() - self._faults[0] < BURST_S:
            delay = MOST_DELAY_S
        if delay:
            self.loop.later(delay, self._start)
        else:
            self._start()

    def _start(self) -> None:
        if self.closed:
            return
        try:
            self.refill()
        except Exception as error:
            self.last = f"a worker could not be started: {error}"
            self.journal.warning("worker-not-started", why=str(error))
            if not self.alive():
                self.give_up(self.last)
