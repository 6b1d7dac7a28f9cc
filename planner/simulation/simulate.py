"""Simulates the workers of a machine with a tile graph, in time: the scheduling engine event by event (`simulate.h`).

No such machine has to be there. A simulation is deterministic: the same tiles, machine and rules give the same outcome. Given are the
tiles' times alone on a core of speed 1, from the cost model or measured. Computed are who runs which tile when, who waits, and the cost of
sharing the memory's bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost.cross_core_traffic import Flow
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.scratch_reuse import Made
from aspen_mp.planner.simulation import _simulate

if TYPE_CHECKING:
    from aspen_mp.planner.plan.plan import Plan

Ints = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]

NOT_COPIED = 4 << 20
"""Outputs of at least this many bytes are handed to the caller where they are."""
FEWEST = 40
"""Requests from which a throughput is told: fewer end too seldom."""
ORDERS = ("fifo", "lifo", "random", "layer")


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """A tile graph as the engine sees it: of n tiles the last is END, which every tile leads to. Children in CSR form; `parent_counts`: how
    often a tile is named as a child; `initial`: those that nobody names. `rank`: of the children that become ready together the lowest is
    followed. `depth`: the pool's column. `ns`: alone on a core of speed 1, 0 where there is no kernel (joins, END); `bytes`: that go to
    memory behind the caches. `input_bytes`, `output_bytes`: bytes that a client copies to where workers read them, and back. `flow`: reads
    of tiles from each other, `far`: ns more for each such byte that another core has written. `made`: the scratch that they find.

    ValueError where the arrays' lengths or numbers do not fit each other; counts and edges are believed.
    """

    child_begin: Ints
    children: Ints
    parent_counts: Ints
    initial: Ints
    rank: Ints
    depth: npt.NDArray[np.uint8]
    ns: Floats
    bytes: Floats
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    far: float = 0.0
    flow: Flow = field(default_factory=Flow.none)
    made: Made = field(default_factory=Made.none)

    def __post_init__(self) -> None:
        for name, dtype in _TYPES.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype))
        n = len(self.ns)
        whole: list[npt.NDArray[Any]] = [self.parent_counts, self.rank, self.depth, self.bytes]
        begin, children = self.child_begin, self.children
        if n == 0 or len(begin) != n + 1 or any(len(x) != n for x in whole):
            raise ValueError(f"arrays of {n} tiles: lengths {[len(begin), *map(len, whole)]}")
        if begin[0] != 0 or begin[-1] != len(children) or (begin[1:] < begin[:-1]).any():
            raise ValueError("child_begin: not a partition of the children")
        if (children >= n).any() or (self.initial >= n).any():
            raise ValueError(f"a tile is not below {n}")
        if not all(np.isfinite(x).all() and (x >= 0).all() for x in (self.ns, self.bytes, np.array(self.far))):
            raise ValueError("times and bytes are finite and not negative")
        if self.flow.tiles > n:
            raise ValueError(f"{self.flow.tiles} tiles that read something, of {n}")
        if len(self.made) not in (0, n):
            raise ValueError(f"scratch reuse of {len(self.made)} tiles, of {n}")

    @property
    def n(self) -> int:
        return len(self.ns)

    def arrays(self, ns: Floats) -> _Arrays:
        """The arguments of `_simulate.run` about a graph whose tiles take `ns` [n]."""
        graph = (self.child_begin, self.children, self.parent_counts, self.initial, self.rank, self.depth, ns, self.bytes)
        flow = (self.far, self.flow.tiles, self.flow.begin, self.flow.sources, self.flow.nbytes)
        return (*graph, *flow, self.made.group, self.made.first, self.made.again)

    def levels(self) -> list[npt.NDArray[np.int64]]:
        """The tiles in groups: each comes after all that lead to it, which are in groups before. ValueError: the graph has a cycle."""
        begin, count = self.child_begin.astype(np.int64), np.diff(self.child_begin).astype(np.int64)
        missing = self.parent_counts.astype(np.int64)
        ready = self.initial.astype(np.int64)
        out, seen = [], 0
        while len(ready):
            out.append(ready)
            seen += len(ready)
            children = self.children[_runs(begin[ready], count[ready])].astype(np.int64)
            found, times = np.unique(children, return_counts=True)
            missing[found] -= times
            ready = found[missing[found] == 0]
        if seen != self.n:
            raise ValueError("the graph has a cycle, or counts that do not fit its edges")
        return out

    def longest_path(self, extra: float = 0.0) -> tuple[int, float]:
        """Tiles on the longest path, and its nanoseconds (two paths, maybe). `extra`: ns for each tile that has a kernel."""
        begin, count = self.child_begin.astype(np.int64), np.diff(self.child_begin).astype(np.int64)
        own = self.ns + np.where(self.ns > 0, extra, 0.0)
        depth, time = np.ones(self.n, np.int64), own.copy()
        for level in self.levels():
            children = self.children[_runs(begin[level], count[level])]
            parents = np.repeat(level, count[level])
            np.maximum.at(depth, children, depth[parents] + 1)
            np.maximum.at(time, children, time[parents] + own[children])
        return int(depth.max()), float(time.max())


_Flow = tuple[float, int, Ints, Ints, npt.NDArray[np.float32]]
_Arrays = tuple[Ints, Ints, Ints, Ints, Ints, npt.NDArray[np.uint8], Floats, Floats, *_Flow, Ints, Floats, Floats]
_TYPES: dict[str, Any] = dict.fromkeys(("child_begin", "children", "parent_counts", "initial", "rank"), np.uint32)
_TYPES |= {"depth": np.uint8, "ns": np.float64, "bytes": np.float64}


def _runs(begin: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """begin[0] … begin[0] + count[0] - 1, begin[1] …, one after the other."""
    ends = np.cumsum(count)
    out: npt.NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - count), count)
    return out


def of_plan(plan: Plan, ns: npt.ArrayLike | None = None) -> Tiles:
    """The tile graph of a plan. `ns`: measured times of its tiles [n]; None: the cost model's, tile by tile, where the plan was just made,
    or else each op's average."""
    n = plan.n_tiles
    tiles = plan.tiles
    begin = np.append(tiles["children"], len(plan.children))
    costs = plan.tile_costs()
    return Tiles(
        begin,
        plan.children,
        plan.parent_counts,
        plan.initial,
        tiles["rank"],
        tiles["depth"],
        costs.ns if ns is None else np.asarray(ns, np.float64).reshape(n),
        costs.bytes,
        float(sum(info.nbytes for info in plan.inputs)),
        float(sum(info.nbytes for info in plan.outputs if info.nbytes < NOT_COPIED)),
        costs.far if ns is None else 0.0,  # measured times have it in them
        costs.flow(),
        costs.made() if ns is None else Made.none(),
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """How the pool is used. `order`: "fifo" (the engine's own), "lifo", "random" (also whether a child is followed), or "layer". With
    "layer" nothing is followed, and a row's tile of the oldest request and lowest rank comes first. `steal`: False leaves every tile to its
    row's owner.
    `seed`: of "random"."""

    order: Literal["fifo", "lifo", "random", "layer"] = "fifo"
    steal: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Every tile that was executed, in the order of ends. Nanoseconds since the first submission; `start`: of the kernel."""

    tile: Ints
    request: Ints
    core: npt.NDArray[np.uint16]
    start: Floats
    end: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """`latencies` [requests]: from a client's call to its result, in the order of submission. `makespan_ns`: until the last result.
    `busy_ns`, `schedule_ns` [cores]: in kernels, in the engine; the rest is idle. `tiles`, `steals` [cores]: how many were executed, and
    taken from another row."""

    latencies: Floats
    makespan_ns: float
    busy_ns: Floats
    schedule_ns: Floats
    tiles: Ints
    steals: Ints
    speeds: Floats
    timeline: Timeline | None = None

    @property
    def latency_ns(self) -> float:
        """Latency of a request, on average."""
        return float(self.latencies.mean())

    @property
    def requests_per_s(self) -> float:
        return len(self.latencies) / self.makespan_ns * 1e9 if self.makespan_ns else float("inf")

    @property
    def utilisation(self) -> float:
        """The part of the machine's speed that went into kernels, 0 to 1."""
        there = float(self.speeds.sum()) * self.makespan_ns
        return float((self.busy_ns * self.speeds).sum()) / there if there else 0.0


def simulate(
    tiles: Tiles, machine: Machine, *, requests: int = 1, in_flight: int = 1, rules: Rules | None = None, timeline: bool = False
) -> Outcome:
    """Simulate `requests` requests for one graph, `in_flight` of them at a time: a client submits the next one as soon as it has a result.

    ValueError: the graph gets stuck, or an argument is out of range.
    """
    rules = rules or Rules()
    in_flight = min(in_flight, requests)
    if requests < 1 or in_flight < 1 or in_flight * tiles.n >= 1 << 32 or requests >= 1 << 31:
        raise ValueError(f"{requests} requests, {in_flight} of them at a time, of {tiles.n} tiles")
    speeds = np.array([core.speed for core in machine.cores], np.float64)
    latency, makespan, busy, schedule, count, steals, _, lines = _simulate.run(
        *tiles.arrays(tiles.ns),
        speeds,
        machine.victims(),
        machine.bytes_per_ns,
        machine.timings(tiles.input_bytes, tiles.output_bytes),
        (ORDERS.index(rules.order), int(rules.steal), rules.seed & 0xFFFFFFFF, requests, in_flight),
        timeline,
    )
    return Outcome(latency, makespan, busy, schedule, count, steals, speeds, None if lines is None else Timeline(*lines))


def throughput(tiles: Tiles, machine: Machine, in_flight: int) -> float:
    """Requests a second where always `in_flight` of them run at a time. The first ones, which begin together, do not count, nor do the last
    ones, which leave cores idle. ValueError as `simulate`."""
    requests = max(5 * in_flight, FEWEST)
    latencies = simulate(tiles, machine, requests=requests, in_flight=in_flight).latencies.tolist()
    running = latencies[:in_flight]
    heapify(running)
    ends = [heapreplace(running, running[0] + latency) for latency in latencies[in_flight:]]  # each is submitted when another ends
    seconds = (ends[-1] - ends[in_flight - 1]) * 1e-9
    return (len(ends) - in_flight) / seconds if seconds else math.inf


class Samples:
    """Simulates one request at a time on a machine, again and again: like `simulate` with nothing but latencies looked at, sooner."""

    def __init__(self, machine: Machine, speeds: Sequence[npt.ArrayLike] = ()) -> None:
        """`speeds` [cores]: of the cores, for one sample after the other; none: the machine's."""
        own = [core.speed for core in machine.cores]
        self._speeds = [np.asarray(each, np.float64) for each in speeds or [own]]
        self._victims, self._timings, self._bytes_per_ns = machine.victims(), machine.timings(), machine.bytes_per_ns

    def latency_ns(self, tiles: Tiles, ns: Floats) -> float:
        """Latency of a request on average, where its tiles take the times in a row of `ns` [samples, tiles] instead of `tiles.ns`."""
        total = 0.0
        for k, times in enumerate(ns):
            total += _simulate.run(
                *tiles.arrays(times),
                self._speeds[k % len(self._speeds)],
                self._victims,
                self._bytes_per_ns,
                self._timings,
                _ONE,
                False,
            )[0][0]
        return total / len(ns)


_ONE = (ORDERS.index("fifo"), 1, 0, 1, 1)
"""The engine's own rules, one request."""


def parallel_fraction(one_core_ns: float, latency_ns: float, power: float) -> float:
    """Karp and Flatt's experimentally determined parallel fraction (CACM 33(5), 1990). It is 1 - e, where e = (1/S - 1/p) / (1 - 1/p) for a
    speedup S over one core on `power` such cores. 1 where there is no more than one."""
    if power <= 1:
        return 1.0
    return 1.0 - (latency_ns / one_core_ns - 1 / power) / (1 - 1 / power)
