"""A finished trace as tables: who did what, when, for which request.

Times are nanoseconds since the trace began, as int64. Records come from the rings of the trace segment (`docs/protocol/trace.md`), names
and events from the planner process. Nothing here trusts the order in which rings were written: rows are joined by time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.shm.bindings import _control, _tables
from aspen_mp.shm.tables import TRACE_RECORD, TRACE_RING
from aspen_mp.tracing.names import PlanNames

Array = npt.NDArray[Any]

WHAT: Final = _tables.TRACE_WHATS
CAMES: Final = {number: name.lower() for name, number in _tables.TRACE_CAMES.items()}

SPAN: Final = np.dtype(
    [
        ("worker", np.int32),  # index of Recording.workers
        ("begin", np.int64),
        ("end", np.int64),
        ("came", np.uint8),  # TRACE_CAMES
        ("skipped", np.bool_),  # its request had failed, or nothing that changed reaches it
        ("cut", np.bool_),  # its worker died in it, or the trace ended
        ("plan", np.int32),  # index of Recording.plans, -1: unknown
        ("tile", np.int32),
        ("instance", np.int32),
        ("generation", np.int32),  # low 16 bits
        ("request", np.int32),  # index of Recording.requests
        ("came_from", np.int32),  # row
    ]
)
"""A tile that a worker executed."""

GAP: Final = np.dtype([("worker", np.int32), ("begin", np.int64), ("end", np.int64), ("open", np.bool_)])
"""A stretch without work. `open`: it was not over when the trace ended."""


@dataclass(slots=True)
class TracedWorker:
    """A worker process: `row` is its place in the ready pool, which another one may take after it. `joined`, `left`: ns, None where it was
    there before the trace, or after it. `since`: when it began to record, ns. `end`: "left", "died" or
    "abandoned" (killed, and it does not end), and `why`."""

    row: int
    pid: int
    cpu: int
    core_class: str
    joined: int | None = None
    left: int | None = None
    since: int = 0
    end: str = ""
    why: str = ""

    @property
    def label(self) -> str:
        kind = f" {self.core_class}" if self.core_class else ""
        return f"worker {self.row}: CPU {self.cpu}{kind} (process {self.pid})"


@dataclass(slots=True)
class Request:
    """`submitted`, `started`, `ended`: ns, None where that was before the trace, after it, or its record was overwritten. `error`: number
    of `_control.ERRORS`. `starter`, `ender`: workers."""

    instance: int
    generation: int
    plan: int
    client: int | None = None
    submitted: int | None = None
    started: int | None = None
    ended: int | None = None
    error: int = 0
    starter: int = -1
    ender: int = -1


@dataclass(slots=True)
class Recording:
    """`tiles` (`SPAN`), `idle`, `parked`, `stopped` and `away` (`GAP`) by worker and time. `instants`: (ns, worker or -1, what,
    facts). `lost`: records that were overwritten, by row. `duration`: ns."""

    about: dict[str, Any]
    duration: int
    workers: list[TracedWorker]
    tiles: Array
    idle: Array
    parked: Array
    stopped: Array
    away: Array
    requests: list[Request]
    plans: list[PlanNames]
    instants: list[tuple[int, int, str, dict[str, Any]]] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.about["runtime"]) or "private"

    def model_of(self, request: Request) -> str:
        return self.plans[request.plan].model if request.plan >= 0 else "unknown model"


def read(segment: memoryview, about: dict[str, Any], plan: Callable[[int], bytes]) -> Recording:
    """`segment`: the trace segment, which stopped being written but for the tiles that were in hand. `about`: the planner process's
    description. `plan(k)`: the bytes of its k-th plan."""
    clock = _Clock(about["began"], about["ended"])
    records, rings, lost = _rings(segment, about)
    workers, instants = _workers(about, clock)
    begin = clock.ns(records["begin"])
    records, begin = records[begin <= clock.duration], begin[begin <= clock.duration]  # later ones: before the workers heard of the end
    end = clock.ns(records["end"])
    who = _owners(workers, records["row"], begin, clock.duration)
    kinds = records["what"] & 0xFF
    is_tile = kinds == WHAT["TILE"]
    plan_of = _plan_table(about)
    plans = _plans(about, plan, records, rings, plan_of)

    tiles = np.zeros(int(is_tile.sum()), SPAN)
    found = records[is_tile]
    tiles["worker"], tiles["begin"], tiles["end"] = who[is_tile], begin[is_tile], end[is_tile]
    tiles["came"] = (found["what"] >> 8) & 0xFF
    tiles["skipped"] = (found["what"] & _tables.TRACE_SKIPPED) != 0
    tiles["cut"] = (found["what"] & _tables.TRACE_CUT) != 0
    _identify(tiles, found["item"], found["begin"], plan_of, plans)
    tiles["came_from"] = found["more"]
    tiles = _unfinished(tiles, rings, workers, clock, plan_of, plans)
    tiles = np.sort(tiles, order=["worker", "begin", "end"])

    idle = _gaps(who, begin, end, kinds == WHAT["IDLE"])
    since = [(row, int(clock.ns(np.array([ring["idle"]]))[0])) for row, ring in enumerate(rings) if ring["idle"]]
    for row, at in since:  # not over yet, or its worker died in it
        worker = int(_owners(workers, np.array([row]), np.array([at]), clock.duration)[0])
        until = workers[worker].left
        idle = np.append(idle, np.array([(worker, at, clock.duration if until is None else until, until is None)], GAP))
    for worker, what in ((w, n) for n in ("JOIN", "LEAVE") for w in np.flatnonzero(kinds == WHAT[n]).tolist()):
        _placed(workers[who[worker]], what, int(begin[worker]))
    parked, stopped, away = (_clipped(_gaps(who, begin, end, kinds == WHAT[name]), clock.duration) for name in ("PARK", "STOP", "AWAY"))
    _recorded_since(workers, rings, who, begin, clock)
    requests = _requests(records, kinds, begin, who, tiles, plan_of, plans, clock)
    instants += [(w.joined, k, "joined", {"cpu": w.cpu}) for k, w in enumerate(workers) if w.joined is not None]
    instants += [(w.left, k, w.end, {"why": w.why} if w.why else {}) for k, w in enumerate(workers) if w.left is not None]
    return Recording(
        about,
        clock.duration,
        workers,
        tiles,
        _clipped(idle, clock.duration),
        parked,
        stopped,
        away,
        requests,
        plans,
        sorted(instants, key=lambda i: i[0]),
        lost,
    )


class _Clock:
    """Ticks as nanoseconds since the trace began: both clocks were read at its beginning and at its end."""

    def __init__(self, began: list[int], ended: list[int]) -> None:
        self._ticks, self.monotonic = began
        self.duration = ended[1] - began[1]
        self._scale = self.duration / max(1, ended[0] - began[0])

    def ns(self, ticks: Array) -> Array:
        # Differences of moments decades apart cannot occur, but garbage can: it wraps, and is clipped by whoever uses it.
        passed = (ticks.astype(np.uint64) - np.uint64(self._ticks)).astype(np.int64)
        result: Array = np.rint(passed * self._scale).astype(np.int64)
        return result

    def at(self, ticks: int) -> int:
        return int((ticks - self._ticks) * self._scale)


def _rings(segment: memoryview, about: dict[str, Any]) -> tuple[Array, Array, dict[int, int]]:
    """Every record that is whole, oldest first by row, with its row; ring headers; records lost by row."""
    n, capacity = about["rings"], about["capacity"]
    shared = np.frombuffer(segment, TRACE_RING, n, _control.TRACE_RINGS)
    all_records = np.frombuffer(segment, TRACE_RECORD, n * capacity, _control.TRACE_RECORDS).reshape(n, capacity)
    wide = np.dtype([("row", np.int32), *[(name, TRACE_RECORD.fields[name][0]) for name in TRACE_RECORD.names or ()]])  # type: ignore[index]
    parts, lost = [], {}
    for row in range(n):
        written = int(shared["written"][row])
        if not written:
            continue
        first = max(0, written - capacity)
        slots = np.arange(first, written, dtype=np.int64) % capacity
        part = np.zeros(len(slots), wide)
        for name in TRACE_RECORD.names or ():
            part[name] = all_records[name][row, slots]
        part["row"] = row
        # The record after the last may have been in the making, over the oldest one.
        valid = max(0, int(shared["written"][row]) - capacity + 1)
        parts.append(part[valid - first :] if valid > first else part)
        if valid:
            lost[row] = valid
    records = np.concatenate(parts) if parts else np.zeros(0, wide)
    known = (records["what"] & 0xFF >= 1) & (records["what"] & 0xFF <= max(WHAT.values()))
    return records[known], shared.copy(), lost


def _workers(about: dict[str, Any], clock: _Clock) -> tuple[list[TracedWorker], list[tuple[int, int, str, dict[str, Any]]]]:
    """Every worker process that was there, by row and time, and what else happened."""
    workers = [TracedWorker(w["worker"], w["pid"], w["cpu"], w["core_class"]) for w in about["workers"]]
    by_pid = {worker.pid: k for k, worker in enumerate(workers)}
    instants: list[tuple[int, int, str, dict[str, Any]]] = []
    for event in about["events"]:
        at, what = clock.at(event["ticks"]), event["event"]
        facts = {key: value for key, value in event.items() if key not in ("ticks", "event", "core_class")}
        pid = event.get("pid")
        if pid is not None and "worker" in event and pid not in by_pid:
            by_pid[pid] = len(workers)
            workers.append(TracedWorker(event["worker"], pid, event["cpu"], event["core_class"], joined=at))
        k = by_pid.get(pid, -1) if "worker" in event else -1
        if what in ("worker-left", "worker-died", "worker-abandoned"):
            worker = workers[k]
            worker.left, worker.end, worker.why = at, what.removeprefix("worker-"), str(event.get("why", ""))
        elif what != "worker-joined":
            if what == "recovered":
                facts["began_ns"] = at - int(1e9 * event["seconds"])
            instants.append((at, k, what, facts))
    return workers, instants


def _placed(worker: TracedWorker, what: str, at: int) -> None:
    """A worker's own times of coming and going are more exact than those at which the planner process heard of them."""
    if what == "JOIN":
        worker.joined = at
    elif worker.end == "left":
        worker.left = at


def _recorded_since(workers: list[TracedWorker], rings: Array, who: Array, begin: Array, clock: _Clock) -> None:
    """When each worker's records begin: the latest of a row has said so, of those before it there is the first record."""
    first = np.full(len(workers), clock.duration, np.int64)
    np.minimum.at(first, who, begin)
    for row in np.flatnonzero(rings["opened"]).tolist():
        at = clock.ns(rings["opened"][row : row + 1])
        worker = int(_owners(workers, np.array([row]), at, clock.duration)[0])
        first[worker] = min(first[worker], int(at[0]))
    for k, since in enumerate(first.tolist()):
        workers[k].since = max(0, since)


def _owners(workers: list[TracedWorker], rows: Array, begin: Array, duration: int) -> Array:
    """The worker of each record: of those that were in its row, the first that had not gone by then."""
    result = np.zeros(len(rows), np.int32)
    for row in np.unique(rows).tolist():
        here = sorted((k for k, w in enumerate(workers) if w.row == row), key=lambda k: _left(workers[k], duration))
        if not here:  # the planner process never told of it
            workers.append(TracedWorker(row, 0, -1, ""))
            here = [len(workers) - 1]
        ends = np.array([_left(workers[k], duration) for k in here[:-1]], np.int64)
        mine = rows == row
        result[mine] = np.array(here, np.int32)[np.searchsorted(ends, begin[mine], side="left")]
    return result


def _left(worker: TracedWorker, duration: int) -> int:
    return duration + 1 if worker.left is None else worker.left


# ---- plans and requests

PlanTable = dict[int, tuple[Array, Array]]
"""By instance: since which ticks, in rising order, it has held which plan."""


def _plan_table(about: dict[str, Any]) -> PlanTable:
    held: dict[int, list[tuple[int, int]]] = {}
    for k, row in enumerate(about["plans"]):
        for instance in row["instances"]:
            held.setdefault(instance, []).append((row["since"], k))
    table = {}
    for instance, uses in held.items():
        uses.sort()
        table[instance] = np.array([since for since, _ in uses], np.uint64), np.array([k for _, k in uses], np.int32)
    return table


def _plans(about: dict[str, Any], plan: Callable[[int], bytes], records: Array, rings: Array, plan_of: PlanTable) -> list[PlanNames]:
    """Those whose tiles were executed are asked for; of the others the model is all that is needed."""
    met: set[int] = set()
    for items, ticks in ((records["item"], records["begin"]), (rings["item"], rings["since"])):
        met.update(_plan_at((items >> np.uint64(32)) & np.uint64(0xFFFF), ticks, plan_of).tolist())
    return [PlanNames(plan(k) if k in met else b"", row["model"] or "unloaded model") for k, row in enumerate(about["plans"])]


def _identify(tiles: Array, items: Array, ticks: Array, plan_of: PlanTable, plans: list[PlanNames]) -> None:
    """Fills in plan, tile, instance and generation."""
    tiles["tile"] = (items & np.uint64(0xFFFFFFFF)).astype(np.int64)
    tiles["instance"] = (items >> np.uint64(32)) & np.uint64(0xFFFF)
    tiles["generation"] = items >> np.uint64(48)
    tiles["plan"] = _plan_at(tiles["instance"], ticks, plan_of)
    sizes = np.array([*map(len, plans), 0])
    tiles["plan"][tiles["tile"] >= sizes[tiles["plan"]]] = -1


def _plan_at(instances: Array, ticks: Array, plan_of: PlanTable) -> Array:
    result = np.full(len(instances), -1, np.int32)
    for instance in np.unique(instances).tolist():
        if instance in plan_of:
            since, plans = plan_of[instance]
            mine = instances == instance
            at = np.searchsorted(since, ticks[mine], side="right") - 1
            result[mine] = np.where(at >= 0, plans[at], -1)
    return result


def _unfinished(
    tiles: Array, rings: Array, workers: list[TracedWorker], clock: _Clock, plan_of: PlanTable, plans: list[PlanNames]
) -> Array:
    """Tiles that were cut short get an end, and those still in hand when the trace ended are added."""
    cut = np.flatnonzero(tiles["cut"])
    for k in cut.tolist():
        left = workers[tiles["worker"][k]].left
        tiles["end"][k] = clock.duration if left is None else left
    rows = np.flatnonzero(rings["item"])
    if not len(rows):
        return tiles
    more = np.zeros(len(rows), SPAN)
    begin = clock.ns(rings["since"][rows])
    more["worker"] = _owners(workers, rows, begin, clock.duration)
    more["begin"], more["cut"], more["came_from"] = begin, True, rows
    more["end"] = [clock.duration if workers[w].left is None else workers[w].left for w in more["worker"]]
    _identify(more, rings["item"][rows], rings["since"][rows], plan_of, plans)
    done = {(w, b) for w, b in zip(tiles["worker"].tolist(), tiles["begin"].tolist(), strict=True)} if len(tiles) else set()
    fresh = [
        k for k in range(len(more)) if (int(more["worker"][k]), int(more["begin"][k])) not in done and more["begin"][k] <= more["end"][k]
    ]
    return np.concatenate([tiles, more[fresh]])


def _requests(
    records: Array, kinds: Array, begin: Array, who: Array, tiles: Array, plan_of: PlanTable, plans: list[PlanNames], clock: _Clock
) -> list[Request]:
    """Every request that a record tells of, in the order in which they started; fills in `request` of the tiles."""
    requests: list[Request] = []
    by_key: dict[tuple[int, int], list[int]] = {}
    started = np.flatnonzero(kinds == WHAT["START"])
    started = started[np.argsort(begin[started], kind="stable")]
    plan = _plan_at((records["item"][started] >> np.uint64(32)) & np.uint64(0xFFFF), records["begin"][started], plan_of)
    for at, k in enumerate(started.tolist()):
        key = _request_key(int(records["item"][k]))
        submitted = int(records["end"][k]) - clock.monotonic  # as its client says
        start = int(begin[k])
        by_key.setdefault(key, []).append(len(requests))
        requests.append(
            Request(
                *(*key, int(plan[at]), int(records["more"][k])),
                submitted=submitted if start - 86400 * 10**9 < submitted <= start else start,
                started=start,
                starter=int(who[k]),
            )
        )

    def of(key: tuple[int, int], at: int, plan: int) -> int:
        """The request in this instance that had started last by then."""
        known = by_key.get(key, [])
        for k in reversed(known):
            start = requests[k].started
            if start is None or start <= at:
                return k
        requests.append(Request(*key, plan))
        by_key.setdefault(key, []).insert(0, len(requests) - 1)
        return len(requests) - 1

    ended = np.flatnonzero(kinds == WHAT["END"])
    plan = _plan_at((records["item"][ended] >> np.uint64(32)) & np.uint64(0xFFFF), records["begin"][ended], plan_of)
    for at, k in enumerate(ended.tolist()):
        request = requests[of(_request_key(int(records["item"][k])), int(begin[k]), int(plan[at]))]
        request.ended, request.error, request.ender = int(begin[k]), int(records["more"][k]), int(who[k])
    keys = (tiles["instance"].astype(np.int64) << 16) | tiles["generation"]
    for key in np.unique(keys).tolist():
        mine = np.flatnonzero(keys == key)
        pair = key >> 16, key & 0xFFFF
        starts = [requests[k].started for k in by_key.get(pair, [])]
        if len(starts) == 1 and starts[0] is not None and (tiles["begin"][mine] >= starts[0]).all():
            tiles["request"][mine] = by_key[pair][0]
            continue
        tiles["request"][mine] = [of(pair, int(tiles["begin"][k]), int(tiles["plan"][k])) for k in mine.tolist()]
    # A worker that dies between END and the answer leaves no record of the end: the planner process answers.
    for k in np.flatnonzero(tiles["plan"] >= 0).tolist() if any(r.ended is None for r in requests) else ():
        request = requests[tiles["request"][k]]
        if request.ended is None and plans[tiles["plan"][k]].end_tile == tiles["tile"][k]:
            request.ended, request.ender = int(tiles["end"][k]), int(tiles["worker"][k])
    return requests


def _request_key(item: int) -> tuple[int, int]:
    return (item >> 32) & 0xFFFF, item >> 48


def _gaps(who: Array, begin: Array, end: Array, chosen: Array) -> Array:
    gaps = np.zeros(int(chosen.sum()), GAP)
    gaps["worker"], gaps["begin"], gaps["end"] = who[chosen], begin[chosen], end[chosen]
    return np.sort(gaps, order=["worker", "begin"])


def _clipped(gaps: Array, duration: int) -> Array:
    """In order, within the trace: a worker hears of its end a moment later."""
    gaps["open"] |= gaps["end"] > duration
    gaps["begin"] = np.clip(gaps["begin"], 0, duration)
    gaps["end"] = np.clip(gaps["end"], 0, duration)
    return np.sort(gaps, order=["worker", "begin"])
