"""The APU: finds the tiles of every node for a machine (ASPEN, section 4.2), judged by simulation.

Each node has a *ladder* of grids, from the finest tiles that fill the kernels to the coarsest ones. Tiles are merged by pixels or tokens
first, then by channels. On each rung is the grid of least work for its size (`policy.grid_for` for a growing `Aim.tail`). Where cores are
unlike there are also grids of which every core gets a whole share. The search climbs from several starts. Nodes that are alike move
together on their ladders, then each by itself, as long as the simulated latency of the whole network falls. It begins with the choice of
`policy` for each node alone. Where cores are unlike it also begins with the best of all nodes cut by the same rule (`EVEN`). Then, as far
as its effort reaches (`STARTS`), it begins at an end of the ladders. That is the coarsest tiles on few cores and the finest on many, or
both where cores are unlike and for "thorough". The best result counts. Where the network has branches, the search goes on from there with
the critical path first (`priority.py`), if that gains anything. The effect of a step on the tile graph is worked out for the node and its
readers alone, once for all alike.

Everything is deterministic: the effort is counted in simulated tiles and nodes worked out anew, not in time. Results of networks do not
depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.cost.machine import CLASS_GAP, Machine, speed_classes
from aspen_mp.planner.cost.scratch_reuse import Made, joined
from aspen_mp.planner.ir.graph import Node
from aspen_mp.planner.job import progress, reasons
from aspen_mp.planner.job.options import LEAST_SEARCHED_NS, Effort
from aspen_mp.planner.job.reasons import NETWORK, Reason, Tried
from aspen_mp.planner.layout.alike import kinds
from aspen_mp.planner.layout.grids import Grid
from aspen_mp.planner.layout.storage import Storage
from aspen_mp.planner.ops.spec import TileModel
from aspen_mp.planner.ops.table import SPECS
from aspen_mp.planner.simulation.simulate import Samples, Tiles
from aspen_mp.planner.tiling import policy
from aspen_mp.planner.tiling.edges import EdgeBuilder, Wiring
from aspen_mp.planner.tiling.policy import Aim
from aspen_mp.planner.tiling.priority import DEPTHS, critical_first, depths_and_ranks

Floats = npt.NDArray[np.float64]
EFFORT: Final[dict[Effort, int]] = {"none": 0, "quick": 450_000, "thorough": 8_000_000}
"""The effort of climbing from each start, in about a µs: …"""
STEP: Final = 400
"""… for each step, …"""
TILE: Final = 0.15
"""… for each of its tiles that is simulated, …"""
AT_ONCE: Final = 64
"""(cores among which the simulator looks for the next event in the time of all else that a tile takes; on more, it counts more,)"""
NODE: Final = 700
"""… for the reads of a node's tiles, where they were not known yet, …"""
SOURCE: Final = 50
"""… and for each node that they read from: behind the concats of a DenseNet there are many."""
STARTS: Final = 1.5
"""A quick search does not start anew when it has spent the effort of this many starts."""
FEW: Final = 4.0
"""On fewer cores than this the coarsest tiles are the better second start, on more the finest; on unlike cores it may be either."""
BEGIN: Final = 30
"""… and for each step before the first one is taken: where that alone is too much, nothing is searched."""
MANY_STEPS: Final = 2048
LAYER: Final = 5
"""In networks of more steps than `MANY_STEPS`, the extra effort for each further one whenever a latency is found."""
FOR_EACH_NS: Final = 0.2
"""The µs for each ns of work where that is less, "quick": no search takes longer than some hundred requests."""
RUNGS: Final = (0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 5.0, 8.5, 14.0, 24.0, 40.0, 68.0, 115.0, 200.0)
"""Worker-tails of a ladder, up to `FINEST` for each worker."""
FINEST: Final = 4.0
EVEN: Final = (0.17, 0.3, 0.5, 1.0, 2.0)
"""Worker-tails with which all nodes are cut alike, to find where a search for unlike cores begins. Where they are alike that gains
nothing, measured."""
MOVES: Final = (-1, 1, -2, 2)
"""Rungs up, in the order in which they are tried."""
PARTS: Final = (1, 2, 3, 4)
"""Where cores are unlike, also so many tiles for the slowest core, and for the others as many more as they are faster."""
WORTH: Final = 0.0002
"""The least gain of a step, as a share of the latency. Steps that gain less only cost time."""
WORTH_ORDER: Final = 0.01
"""The least gain of going by the critical path with the same tiles, as a share of the latency. Most networks are chains, where the orders
differ by chance alone."""
JITTER: Final = 0.05
SAMPLES: Final = 3
"""A schedule must not be good by chance: each is simulated `SAMPLES` times, with tiles that take longer or less by `JITTER`. If they vary
less than real tiles (caches, interrupts), the search finds tiles so coarse that workers wait for each other. If they vary more, it finds
ones that take longer than the waiting that they save. A tile that is longer in one sample is as much shorter in another, and the middle
sample has no jitter. With chance of its own in each, the few samples that there is time for would choose tiles that are good in them
alone."""
JITTER_UNLIKE: Final = 0.1
"""The same where cores are unlike. There samples differ by speeds, too (`AS_KNOWN`), and each has chance of its own. Mirrored, and with
less of it, VGG-16 took 3 to 4 % longer beside a core of a quarter of the speed. Other networks took about as long."""
AS_KNOWN: Final = (0.78, 0.86, 0.94, 1.0, 1.08)
"""Where cores are unlike, the share that slow ones give of their assumed speed, one sample each. Speeds are known by steps, and beside a
core that keeps the memory busy a slow one is slower than alone. A plan for one speed has as many tiles as give every core its share. At any
other speed it keeps the fast cores waiting for a slow one's last tile."""


@dataclass(frozen=True, slots=True)
class Found:
    """`grids`: one a step. `start_ns`, `best_ns`: simulated latency with the policy's grids and with these, 0 where nothing was searched.
    `steps`: along ladders; `simulated`: tiles. `critical`: whether steps with much work behind them go first (`priority.py`), rather than
    those of earlier layers."""

    grids: list[Grid]
    critical: bool = False
    start_ns: float = 0.0
    best_ns: float = 0.0
    steps: int = 0
    simulated: int = 0


def search(storage: Storage, machine: Machine, effort: Effort = "quick", longest: float = math.inf) -> Found:
    """Grids for the nodes of ``storage.steps``, for requests one at a time on a machine. `longest`: see `policy.Aim`."""
    grids = policy.choose_grids(storage, len(machine), longest=longest)
    work = sum(whole_ns(storage))
    budget = EFFORT[effort] if effort == "thorough" else min(EFFORT[effort], int(work * FOR_EACH_NS))
    rules = {
        "no search was asked for": effort == "none",
        "one core": len(machine) < 2,
        "the network takes too little time": work < LEAST_SEARCHED_NS,
        "the network has too many steps": BEGIN * len(storage.steps) > budget,
    }
    if unsearched := next((rule for rule, holds in rules.items() if holds), ""):
        tried = (Tried("a search by simulation", unsearched),)
        reasons.tell(lambda: Reason("tiles", "as each node's shape asks for", unsearched, tried=tried, node=NETWORK))
        return Found(grids)
    found = _Search(storage, machine, budget, longest)
    start = found.latency(grids)
    best: Found | None = None
    for begin in found.starts(grids, thorough=effort == "thorough"):
        if best is not None and effort == "quick" and found.spent > STARTS * budget:
            break
        other = found.climb(begin)
        if best is None or other.best_ns < best.best_ns:
            best = other
    assert best is not None
    best = found.ordered(best)
    found.tell(grids, best)
    return replace(best, start_ns=start, simulated=found.tiles)


def latency(storage: Storage, machine: Machine, grids: Sequence[Grid]) -> float:
    """The latency of a request alone on a machine of several cores, as the search sees it: simulated, nanoseconds."""
    return _Search(storage, machine, 0).latency(grids)


def graph(storage: Storage, machine: Machine, grids: Sequence[Grid]) -> Tiles:
    """The tiles of these grids as the simulation takes them, with costs as if the cores of the machine shared them."""
    return _Search(storage, machine, 0).graph(grids)


def whole_ns(storage: Storage) -> list[float]:
    """Nanoseconds of each step in one tile."""
    known: dict[int, float] = {}
    for kind, node in zip(kinds(storage), storage.steps, strict=True):
        if kind not in known:
            known[kind] = tile_cost.whole_ns(node)
    return [known[kind] for kind in kinds(storage)]


def unlike(machine: Machine) -> bool:
    """Whether some of its cores are faster than others."""
    return len(set(speed_classes([core.speed for core in machine.cores]).values())) > 1


def _speeds(machine: Machine) -> list[list[float]]:
    """Speeds of the cores, one list for each sample."""
    if not unlike(machine):
        return [[core.speed for core in machine.cores]] * SAMPLES
    slow = CLASS_GAP * max(core.speed for core in machine.cores)
    return [[core.speed * (by if core.speed < slow else 1.0) for core in machine.cores] for by in AS_KNOWN]


def _fair(machine: Machine) -> list[tuple[float, int | None]]:
    """Tails and numbers of tiles of which every core of a machine with unlike cores gets its share, a whole number of them."""
    shares = machine.power / min(core.speed for core in machine.cores)
    return [(1.0, max(2, round(parts * shares))) for parts in PARTS] if unlike(machine) else []


@dataclass(frozen=True, slots=True, eq=False)
class _Rung:
    """A grid of a step. `ns`, `bytes`, `made`: of each tile."""

    grid: Grid
    ns: Floats
    bytes: Floats
    made: Made
    total: float


class _Search:
    def __init__(self, storage: Storage, machine: Machine, budget: int, longest: float = math.inf) -> None:
        self.storage, self.machine, self.budget, self.longest = storage, machine, budget, longest
        self.workers = max(1, round(machine.power))
        self.fair = _fair(machine)
        self.known_rungs: dict[tuple[object, ...], _Rung] = {}
        self.kinds = [self._kind(node) for node in storage.steps]
        self.edges = EdgeBuilder(storage, self.kinds)
        self.layers = np.arange(len(self.kinds))
        self.critical = self._critical()
        self.order = self.layers
        self.rungs: list[_Rung] = []
        self.jitter: dict[int, Floats] = {}
        self.spent, self.tiles = 0, 0
        self.tried: dict[int, dict[str, float]] = {}
        speeds = _speeds(machine)
        self.samples, self.simulated = len(speeds), Samples(machine, speeds)

    def latency(self, grids: Sequence[Grid], *, critical: bool = False) -> float:
        """Simulated, nanoseconds, with these grids and this order; further steps begin there."""
        self.order = self.critical if critical else self.layers
        self.rungs = self._rungs(grids)
        return self._latency(self.rungs)

    def graph(self, grids: Sequence[Grid]) -> Tiles:
        """The tile graph in the order of layers."""
        return _tiles(self.edges.wiring(grids), self._rungs(grids), self.layers)

    def _rungs(self, grids: Sequence[Grid]) -> list[_Rung]:
        steps = zip(self.kinds, self.storage.steps, grids, strict=True)
        return [self._rung(kind, node, grid) for kind, node, grid in steps]

    @property
    def branches(self) -> bool:
        """Whether it makes a difference which step goes first."""
        return bool((self.critical != self.layers).any())

    def starts(self, grids: Sequence[Grid], *, thorough: bool) -> Iterator[Sequence[Grid]]:
        """Where to climb from, the most promising first: the policy's grids, the best even cut if cores are unlike, ends of the ladders."""
        first = [grids]
        if unlike(self.machine):
            first = sorted([min(self._even(), key=self.latency), grids], key=self.latency)
        yield from first
        ends = (0, -1) if thorough or unlike(self.machine) else (0,) if self.machine.power < FEW else (-1,)
        for end in ends:
            yield [ladder[end].grid for ladder in self.ladders]

    def _even(self) -> Iterator[list[Grid]]:
        """All nodes cut by the same rule."""
        for tail, tiles in [*((tail, None) for tail in EVEN), *self.fair]:
            aim = Aim(self.workers, tail, tiles=tiles, longest=self.longest)
            yield [policy.grid_for(node, self.storage, aim) for node in self.storage.steps]

    def ordered(self, best: Found) -> Found:
        """The best from there with the critical path first, if that gains anything."""
        layers = best.best_ns
        critical = self.latency(best.grids, critical=True) if self.branches else layers
        gains = critical < layers * (1 - WORTH_ORDER)
        reasons.tell(lambda: _order(gains, self.branches, layers * 1e-6, critical * 1e-6))
        return self.climb(best.grids, critical=True) if gains else best

    def tell(self, grids: Sequence[Grid], best: Found) -> None:
        """Why each step has its tiles. `grids`: those of the policy."""
        steps = zip(self.storage.steps, grids, best.grids, strict=True)
        for k, (node, before, grid) in enumerate(steps):
            reasons.tell(partial(_tiled, node, before, grid, best.best_ns * 1e-6, self.tried.get(k, {})))

    def climb(self, grids: Sequence[Grid], *, critical: bool = False) -> Found:
        """The best that steps from these grids lead to."""
        start = best = self.latency(grids, critical=critical)
        taken, limit = 0, self.spent + self.budget
        groups = self._alike()
        while True:
            before = best
            for group in groups:
                found, n = self._move(group, best, limit)
                best, taken = found, taken + n
            if before - best < WORTH * before or self.spent >= limit:
                return Found([rung.grid for rung in self.rungs], critical, start, best, taken)

    def _critical(self) -> npt.NDArray[np.int64]:
        """The order of the steps by critical path, as good as it can be known before they are cut."""
        pairs = [(source, k) for k, sources in enumerate(self.edges.sources) for source in sources]
        parents, children = np.array(pairs, np.int64).reshape(-1, 2).T
        return critical_first(whole_ns(self.storage), parents, children)

    # ------------------------------------------------------------------------------------------------------------- ladders

    @cached_property
    def ladders(self) -> list[list[_Rung]]:
        """The ladders of all steps."""
        of: dict[tuple[object, ...], list[_Rung]] = {}
        for kind, node in zip(self.kinds, self.storage.steps, strict=True):
            if kind not in of:
                of[kind] = self._ladder(kind, node)
        return [of[kind] for kind in self.kinds]

    def _kind(self, node: Node) -> tuple[object, ...]:
        """Equal for nodes whose ladders are: constants come from memory, and a tile's bytes are its elements' dtypes'."""
        inputs = tuple(None if x is None else (x.shape, x.dtype, x.is_const) for x in node.inputs)
        attrs = tuple(sorted((name, str(value)) for name, value in node.attrs.items() if name not in ("model", "first")))
        return (
            node.op,
            node.batch_slice[0] > 0,
            self.storage.refs[node.output].strides,
            node.output.shape,
            node.output.dtype,
            inputs,
            attrs,
        )

    def _ladder(self, kind: tuple[object, ...], node: Node) -> list[_Rung]:
        """Distinct grids of a node, coarse to fine."""
        out: dict[int, _Rung] = {}
        tails = [(tail / self.workers, None) for tail in RUNGS if tail <= FINEST * self.workers]
        for tail, tiles in tails + self.fair:
            for halves in (False, True) if len(self.machine) > 1 else (False,):
                grid = policy.grid_for(node, self.storage, Aim(self.workers, tail, halves, tiles, self.longest))
                rung = self._rung(kind, node, grid)
                out.setdefault(id(rung), rung)
        return sorted(out.values(), key=lambda rung: rung.grid.n)

    def _rung(self, kind: tuple[object, ...], node: Node, grid: Grid) -> _Rung:
        key = (kind, tuple(c.tobytes() for c in grid.cuts), grid.order)
        if key not in self.known_rungs:
            ns, moved = tile_cost.tile_costs(node, *grid.boxes(), len(self.machine))
            found = tile_cost.scratch_reuse(node, *grid.boxes(), len(self.machine))
            self.known_rungs[key] = _Rung(grid, ns, moved, found, float(ns.sum()))
        return self.known_rungs[key]

    def _alike(self) -> list[list[int]]:
        """Steps that can move together, then each alone; those that take longest first."""
        kinds: dict[tuple[object, ...], list[int]] = {}
        for k, kind in enumerate(self.kinds):
            if len(self.ladders[k]) > 1:
                kinds.setdefault(kind, []).append(k)
        each = whole_ns(self.storage)
        groups = sorted(kinds.values(), key=lambda group: -sum(each[k] for k in group))
        alone = [group for group in groups if len(group) > 1 and not self._steps(group[0])]
        return groups + [[k] for group in alone for k in group]

    def _steps(self, k: int) -> bool:
        """Whether a step is one of a sequence's: cut otherwise than those before and behind it, it gains nothing, and there are many."""
        return SPECS[self.storage.steps[k].op].cost.tiles is TileModel.RECURRENCE

    # --------------------------------------------------------------------------------------------------------------- steps

    def _move(self, group: Sequence[int], best: float, limit: int) -> tuple[float, int]:
        """Moves a group along its ladder while that helps; the latency then, and how many steps it took."""
        taken = 0
        for by in MOVES:
            while self.spent < limit:
                trial = list(self.rungs)
                for k in group:
                    trial[k] = self._next(k, by)
                if all(a is b for a, b in zip(trial, self.rungs, strict=True)):
                    break
                found = self._latency(trial)
                if reasons.asked():
                    self._note(group, trial, found * 1e-6)
                if found > best * (1 - WORTH):
                    break
                best, self.rungs = found, trial
                taken += 1
        return best, taken

    def _note(self, group: Sequence[int], trial: Sequence[_Rung], ms: float) -> None:
        """Notes the network's time with other tiles for a group: the least for each way to cut them."""
        for k in group:
            known = self.tried.setdefault(k, {})
            choice = policy.described(trial[k].grid)
            known[choice] = min(ms, known.get(choice, math.inf))

    def _next(self, k: int, by: int) -> _Rung:
        """The rung that is `by` above that of a step."""
        ladder, now = self.ladders[k], self.rungs[k]
        at = next((i for i, rung in enumerate(ladder) if rung is now), None)
        if at is None:  # the policy's own, which is on no rung
            finer = [i for i, rung in enumerate(ladder) if rung.grid.n > now.grid.n]
            at = (finer[0] if finer else len(ladder)) - (1 if by > 0 else 0)
        return ladder[min(max(at + by, 0), len(ladder) - 1)]

    def _latency(self, rungs: Sequence[_Rung]) -> float:
        """Simulated, nanoseconds."""
        progress.at("searching tiles", self.spent, max(self.spent, int(STARTS * self.budget)))
        known, followed = len(self.edges.known), self.edges.followed
        tiles = _tiles(self.edges.wiring([rung.grid for rung in rungs]), rungs, self.order)
        self.spent += STEP + NODE * (len(self.edges.known) - known) + SOURCE * (self.edges.followed - followed)
        self.spent += LAYER * max(0, len(rungs) - MANY_STEPS)
        self.tiles += self.samples * tiles.n
        self.spent += int(TILE * self.samples * tiles.n) * (1 + len(self.machine) // AT_ONCE)
        factors = np.ones((self.samples, tiles.n))
        at = 0
        for k, rung in enumerate(rungs):
            factors[:, at : at + rung.grid.n] = self._jitter(k, rung.grid.n)
            at += rung.grid.n
        return self.simulated.latency_ns(tiles, tiles.ns * factors)

    def _jitter(self, k: int, n: int) -> Floats:
        """[samples, n]: the ratio of the times of a step's first n tiles to their expected times. The same whatever the other steps are:
        two latencies differ by the change alone, not by chance."""
        if k not in self.jitter or self.jitter[k].shape[1] < n:
            self.jitter[k] = np.exp(self._longer(np.random.default_rng((1, k)), max(2 * n, 16)).T)
        return self.jitter[k][:, :n]

    def _longer(self, rng: np.random.Generator, n: int) -> Floats:
        """[n, samples], logarithms."""
        if unlike(self.machine):
            return rng.normal(0.0, JITTER_UNLIKE, (n, self.samples))
        half = rng.normal(0.0, JITTER, (n, self.samples // 2))
        return np.hstack([half, np.zeros((n, self.samples % 2)), -half[:, ::-1]])


def _order(gains: bool, branches: bool, layers: float, critical: float) -> Reason:
    """Why tiles go in the order of layers, or those of the critical path first. Both in milliseconds."""
    first, second = "critical path first", "layer by layer"
    if gains:
        return Reason("order", first, "least time", critical, "network", (Tried(second, "it takes longer", layers),), node=NETWORK)
    rule = f"it gains less than {WORTH_ORDER:.0%}" if branches else "it is the order of layers"
    return Reason("order", second, rule, layers, "network", (Tried(first, rule, critical if branches else None),), node=NETWORK)


def _tiled(node: Node, before: Grid, grid: Grid, ms: float, tried: Mapping[str, float]) -> Reason:
    """Why a step has these tiles, `before` any search others: the other ways that were tried, in milliseconds of the network."""
    first, choice = policy.described(before), policy.described(grid)
    others = sorted((cost, other) for other, cost in tried.items() if other != choice)[: policy.SHOWN]
    words = tuple([Tried(other, f"ends {cost / ms - 1:.1%} later" if cost > ms else "hardly sooner", cost) for cost, other in others])
    rule = "search: as its shape asks for" if first == choice else f"search: in place of {first}"
    return Reason("tiles", choice, rule, ms, "network", words, node=node.name, op=node.op)


def _tiles(wiring: Wiring, rungs: Sequence[_Rung], order: npt.NDArray[np.int64]) -> Tiles:
    """As the engine would see the graph, but for trees of JOINs and for waiting for recycled memory."""
    n, op_tiles = wiring.n, int(wiring.base[-1])
    rest = np.zeros(n - op_tiles)
    ns = np.concatenate([*(rung.ns for rung in rungs), rest])
    moved = np.concatenate([*(rung.bytes for rung in rungs), rest])
    counts = np.diff(wiring.base)
    bins, ranks = depths_and_ranks(order, [rung.total for rung in rungs], counts)
    depth = np.zeros(n, np.uint8)
    depth[:op_tiles] = np.repeat(bins, counts)
    depth[op_tiles : n - 1] = bins[wiring.join_step] if wiring.join_step else 0
    depth[-1] = DEPTHS - 1
    rank = np.zeros(n, np.uint32)
    rank[:op_tiles] = ranks
    rank[-1] = 0xFFFFFFFF
    graph = (wiring.child_begin, wiring.children, wiring.parent_counts, wiring.initial, rank, depth, ns, moved)
    return Tiles(*graph, flow=wiring.flow, far=op_cost.rates().far, made=joined([rung.made for rung in rungs], n - op_tiles))
