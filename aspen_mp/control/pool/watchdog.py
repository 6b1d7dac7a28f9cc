"""Notices workers that hang. One that runs on and on in a tile, or sleeps where no kernel ever sleeps, is ended; another does its tile.

The clock is the worker's own CPU time. A worker's heartbeat counts the turns of its loop, so it stands still for the length of a tile. On a
machine that is merely overloaded, paused or throttled it stands still for any length of wall time, but uses no CPU meanwhile. A tile that
does not end uses CPU without end. So CPU time used since the heartbeat last moved counts. Its bound is `TIMES` the time that the plan
estimates for the tile, and no less than `LEAST_S`. A worker that neither moves nor is able to run sleeps in the kernel, state S: in a lock
that is never released. It is told by the same amount of time, counted only while it is seen to sleep. A worker that waits for a CPU is
runnable, and one that somebody has stopped or traces is in T or t. One that waits for a disk is in state D, and is given `STUCK_S`. No look
counts for more than twice the time between looks, and three in a row are needed. So a machine or a container that was frozen, planner
process included, wakes up to no false alarm.

    tile of a kernel           max(LEAST_S, TIMES × estimate) of CPU time, or asleep; GROWTH times that for each time it was blamed before
    opaque tile (Python)       takes as long as it takes; OPAQUE_S asleep
    any, result unwanted       `grace_s` since that was first seen, whatever it does
    between two tiles          LEAST_S of CPU time, or asleep
    mapping segments, leaving  MAPPING_S of CPU time, or asleep
    parked                     LEAST_S of CPU time; or asleep although there is something to do, and all have been woken for it

The estimate may be wrong (another machine, a kernel that this one runs slowly): that is what the growth is for. A tile fails its request
alone (PoisonTile) only after three workers have been lost to it, the last one after 16 times the first bound. A tile whose result nobody
wants any more (the request was cancelled or has failed, or its client is gone) is given `grace_s`. Then its worker is ended, without blame
for the tile, and recovery makes the rest of that request no-ops. All workers may be in such tiles, so this does not rest on a worker's
having seen the cancellation. A tile that runs for longer than SLOW_S is reported once, wanted or not.

A worker that looks for work moves its heartbeat. One that says that it is parked may sleep for ever; but it uses no CPU time, and its
heartbeat moves when it is woken. So where there is something that it would see, everybody is woken once. A worker that does not stir then
does not sleep where it should. While there is nothing to do nobody is woken. Looking costs the planner process a microsecond a worker and
second and a clock's reading; more only when a heartbeat stands still.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import Loop, Timer
from aspen_mp.shm.bindings import _control
from aspen_mp.system import clock, filesystem

LEAST_S = 1.0
TIMES = 10.0
GROWTH = 4.0
OPAQUE_S = 60.0
MAPPING_S = 10.0
STUCK_S = 30.0
SLOW_S = 10.0
"""A tile that has been seen in execution for this long is reported."""
SOON_S = 0.1
"""How soon a worker is looked at again whose heartbeat has stood still since the last look."""
LOOKS: Final = 3
PARKED: Final = 2

At = tuple[int, int, int]
"""(instance, tile, generation): a tile of one request."""


@dataclass(slots=True)
class Watched:
    """A worker to look at. `leaving`: it has been told to go."""

    row: int
    pid: int
    leaving: bool


@dataclass(slots=True)
class Estimate:
    """The plan's facts about a tile: its op's name, whether Python executes it, and how long it may well take, in seconds."""

    name: str
    opaque: bool
    seconds: float


@dataclass(slots=True)
class _Stand:
    """A worker's heartbeat as it was when it was last seen to move, and what has been seen since."""

    pid: int
    pulse: tuple[int, int, bool]
    at: float
    cpu: float
    looks: int = 0
    spent: float = 0.0
    asleep: float = 0.0
    stuck: float = 0.0
    bound: tuple[float, float, str] | None = None
    woken: bool = False
    since: float = field(default_factory=lambda: clock.monotonic())
    unwanted: float | None = None
    reported: bool = False


class Pool(Protocol):
    """The workers, as far as hanging is concerned."""

    def watched(self) -> Iterable[Watched]:
        """Those that have come to run."""

    def hung(self, row: int, seconds: float, what: str) -> None:
        """Ends a worker that hangs."""

    def withdrawn(self, row: int, seconds: float, what: str) -> None:
        """Ends a worker whose tile is unwanted."""


class Tiles(Protocol):
    """The facts about the tiles that workers execute."""

    def name(self, instance: int, tile: int) -> tuple[str, str]:
        """The model and the op that a tile belongs to."""

    def estimate(self, instance: int, tile: int) -> Estimate:
        """The plan's facts about a tile."""

    def unwanted(self, at: At) -> bool:
        """Whether nobody wants that request's result any more."""


class Blame(Protocol):
    """The facts that recoveries know of tiles."""

    @property
    def going_on(self) -> bool:
        """Whether the world is stopped: then nobody is watched."""

    def hangs(self, at: At) -> int:
        """How many workers have hung in this tile of a request."""


class Watchdog:
    """Ends workers that hang, by way of the pool. `slow_tiles`: how many long tiles it has reported."""

    def __init__(
        self, loop: Loop, table: _control.ControlTable, event_log: EventLog, *, pool: Pool, tiles: Tiles, recovery: Blame, grace_s: float
    ) -> None:
        """`grace_s`: see above."""
        self._loop = loop
        self._table = table
        self._event_log = event_log
        self._pool = pool
        self._tiles = tiles
        self._recovery = recovery
        self._grace_s = grace_s
        self._stands: dict[int, _Stand] = {}
        self.slow_tiles = 0
        self._soon: Timer | None = None

    def look(self, interval: float) -> None:
        """Look at all workers; the caller does so every `interval` seconds. Looks again sooner by itself where a worker seems to stand
        still."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        still = False
        rows = set()
        for worker in [] if self._recovery.going_on else list(self._pool.watched()):
            rows.add(worker.row)
            heartbeat, item, idle, mapped = self._table.pulse(worker.row)
            stand = self._stands.get(worker.row)
            parked = idle == PARKED
            pulse = (heartbeat, item, parked)
            with suppress(OSError):  # it has just ended
                if stand is None or (stand.pid, stand.pulse) != (worker.pid, pulse):
                    self._stands[worker.row] = _Stand(worker.pid, pulse, clock.monotonic(), cpu_seconds(worker.pid))
                elif parked:
                    still |= self._parked(worker, stand, interval)
                else:
                    still |= self._still(worker, stand, interval, mapped)
        for row in set(self._stands) - rows:
            del self._stands[row]
        if still:
            self._soon = self._loop.later(SOON_S, lambda: self.look(SOON_S))

    def seconds(self, row: int) -> float:
        """The seconds for which a worker has been seen in the tile that it executes; 0 where it moves."""
        stand = self._stands.get(row)
        return clock.monotonic() - stand.since if stand is not None and stand.looks and stand.pulse[1] else 0.0

    def _spend(self, worker: Watched, stand: _Stand, interval: float) -> None:
        """Counts what it has done since the last look."""
        now, cpu = clock.monotonic(), cpu_seconds(worker.pid)
        passed, used = now - stand.at, cpu - stand.cpu
        stand.at, stand.cpu = now, cpu
        stand.looks += 1
        stand.spent += min(used, 2 * interval)
        state = _state(worker.pid) if used < 0.05 * passed else ""
        stand.asleep += min(passed, 2 * interval) * (state == "S")
        stand.stuck += min(passed, 2 * interval) * (state == "D")

    def _parked(self, worker: Watched, stand: _Stand, interval: float) -> bool:
        """It says that it sleeps, as it did at the last look. Whether it is to be looked at again soon."""
        before = stand.spent
        self._spend(worker, stand, interval)
        if not self._table.due(worker.row):
            stand.woken, stand.asleep = False, 0.0
            if stand.spent == before:
                stand.looks = 0
        elif not stand.woken:
            self._table.wake_all()
            stand.woken, stand.asleep, stand.looks = True, 0.0, 0
        if stand.looks >= LOOKS and (stand.spent > LEAST_S or stand.asleep > LEAST_S):
            del self._stands[worker.row]
            how = "without an end" if stand.spent > LEAST_S else "asleep"
            self._pool.hung(worker.row, max(stand.spent, stand.asleep), f"parked, {how}")
            return False
        return stand.woken or stand.spent > before

    def _still(self, worker: Watched, stand: _Stand, interval: float, mapped: bool) -> bool:
        """Its heartbeat has not moved. Whether it is to be looked at again soon."""
        self._spend(worker, stand, interval)
        at = self._table.current(worker.row)
        if at is not None and self._tile(worker, stand, at):
            return False
        if stand.bound is None:
            stand.bound = self._bounds(worker, at, mapped)
        most_spent, most_asleep, what = stand.bound
        if stand.looks < LOOKS or (stand.spent <= most_spent and stand.asleep <= most_asleep and stand.stuck <= STUCK_S):
            return True
        del self._stands[worker.row]
        how = "without an end" if stand.spent > most_spent else "asleep" if stand.asleep > most_asleep else "in the kernel"
        self._pool.hung(worker.row, max(stand.spent, stand.asleep, stand.stuck), f"{what}, {how}")
        return False

    def _tile(self, worker: Watched, stand: _Stand, at: At) -> bool:
        """It has been in this tile since the last look. Whether it was ended, because nobody wants what comes of it."""
        now = clock.monotonic()
        if now - stand.since > SLOW_S and not stand.reported:
            stand.reported = True
            self._slow(worker.row, now - stand.since, at)
        if not self._tiles.unwanted(at):
            stand.unwanted = None
        elif stand.unwanted is None:
            stand.unwanted = now
        elif now - stand.unwanted >= self._grace_s:
            del self._stands[worker.row]
            self._pool.withdrawn(worker.row, now - stand.since, self._tiles.estimate(at[0], at[1]).name)
            return True
        return False

    def _slow(self, row: int, seconds: float, at: At) -> None:
        self.slow_tiles += 1
        model, op = self._tiles.name(at[0], at[1])
        self._event_log.warning("tile-slow", worker=row, seconds=seconds, model=model, op=op)

    def _bounds(self, worker: Watched, at: At | None, mapped: bool) -> tuple[float, float, str]:
        """How much CPU time, and how long asleep, until it counts as hung, and where it is."""
        if at is not None:
            tile = self._tiles.estimate(at[0], at[1])
            if tile.opaque:
                return float("inf"), OPAQUE_S, f"in {tile.name}"
            bound = max(LEAST_S, TIMES * tile.seconds) * GROWTH ** self._recovery.hangs(at)
            return bound, bound, f"in {tile.name}"
        if worker.leaving or not mapped:
            return MAPPING_S, MAPPING_S, "leaving" if worker.leaving else "mapping segments"
        return LEAST_S, LEAST_S, "between two tiles"


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads. OSError if there is none."""
    return clock.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid() makes it: the process's CPU-time clock


def _state(pid: int) -> str:
    """The state of a process's main thread, as in /proc/pid/stat."""
    try:
        with filesystem.open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
