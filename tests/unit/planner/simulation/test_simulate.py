"""The simulator: against a slow model written independently of it, and against what must hold of any schedule."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import attention, dense_block, residual_block

from aspen_mp.planner.build import build_plan
from aspen_mp.planner.cost.cross_core_traffic import Flow
from aspen_mp.planner.cost.machine import Core, Engine, Machine
from aspen_mp.planner.cost.scratch_reuse import Made, joined
from aspen_mp.planner.simulation.simulate import ORDERS, Outcome, Rules, Tiles, of_plan, parallel_fraction, simulate, throughput
from aspen_mp.shm.tables import LIMITS

FREE = Engine(tile=0, join=0, push=0, pushed=0, steal=0, look=0, wake=0, spin=0, claim=0, claimed=0, submit=0, end=0, copied=0)
ODD = Engine(tile=3, join=1, push=2, pushed=1, steal=5, look=7, wake=64, spin=32, claim=11, claimed=1, submit=13, end=17, copied=0.125)


def graph(parents: list[list[int]], ns: list[float], *, nbytes: list[float] | None = None, depth: list[int] | None = None) -> Tiles:
    """`parents[k]`: of tile k, all below k. END follows."""
    n = len(parents)
    named = {p for ps in parents for p in ps}
    parents = [*parents, [k for k in range(n) if k not in named]]
    children: list[list[int]] = [[] for _ in range(n + 1)]
    for child, ps in enumerate(parents):
        for p in ps:
            children[p].append(child)
    begin = np.cumsum([0, *map(len, children)])
    counts = np.array([len(ps) for ps in parents])
    rank = np.arange(n + 1)
    depths = [*(depth or [k * 20 // max(n, 1) for k in range(n)]), 20]
    flat = np.array([c for cs in children for c in cs], np.uint32)
    moved = [*(nbytes or [0.0] * n), 0.0]
    return Tiles(begin, flat, counts, np.flatnonzero(counts == 0), rank, np.array(depths), np.array([*ns, 0.0]), np.array(moved))


def random_flow(seed: int, tiles: Tiles) -> Flow:
    """Tiles read some of those before them, by themselves or as groups."""
    rng = np.random.default_rng(seed)
    n, groups = tiles.n - 1, int(rng.integers(0, 4))
    rows: list[list[int]] = [rng.integers(0, k, rng.integers(0, 4)).tolist() if k else [] for k in range(n)]
    for g in range(groups):
        end = int(rng.integers(0, n + 1))
        rows.append(rng.integers(0, end, rng.integers(0, 5)).tolist() if end else [])
        for k in rng.integers(end, n, rng.integers(0, 6)).tolist() if end < n else []:
            rows[k].append(n + g)
    sources = [s for row in rows for s in row]
    return Flow(n, np.cumsum([0, *map(len, rows)]), np.array(sources), rng.integers(0, 100, len(sources)))


def random_made(seed: int, tiles: Tiles) -> Made:
    rng = np.random.default_rng(seed)
    n = tiles.n
    return Made(rng.integers(0, 3, n), 1 + rng.integers(0, 5, n) / 4, 1 - rng.integers(0, 4, n) / 4)


def random_graph(seed: int, n: int, *, most_ns: int = 50, joins: float = 0.1) -> Tiles:
    rng = np.random.default_rng(seed)
    parents = [sorted(set(rng.integers(max(0, k - 12), k, rng.integers(0, 4)).tolist())) if k else [] for k in range(n)]
    ns = [0.0 if rng.random() < joins else float(rng.integers(1, most_ns + 1)) for _ in range(n)]
    return graph(parents, ns, nbytes=[float(rng.integers(0, 200)) if x else 0.0 for x in ns])


# ---------------------------------------------------------------------------------------------------- the slow model


@dataclasses.dataclass
class Lane:
    """Tiles of a request in a row, and of others that find no lane of their own."""

    request: int
    queues: dict[int, deque[tuple[int, int]]] = dataclasses.field(default_factory=dict)


class Slow:
    """The engine as its prose says it, in lists and dictionaries; every running tile's progress is worked out anew at every event."""

    def __init__(self, tiles: Tiles, machine: Machine, requests: int, in_flight: int, rules: Rules) -> None:
        self.t, self.m, self.rules = tiles, machine, rules
        self.n_cores = len(machine)
        self.rows: list[list[Lane]] = [[] for _ in machine.cores]
        self.running: dict[int, dict[str, Any]] = {}
        self.idle = dict.fromkeys(range(self.n_cores), 0.0)
        self.looks: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.tile_ns = sum(tiles.ns.tolist()) / tiles.n
        self.follow: dict[int, tuple[int, int]] = {}
        self.missing: dict[int, list[int]] = {}
        self.to_submit, self.in_flight = requests, in_flight
        self.arrivals: list[tuple[float, int]] = []
        self.submitted: list[float] = []
        self.latency: dict[int, float] = {}
        self.steals = [0] * self.n_cores
        self.made: dict[int, tuple[int, int]] = {}
        self.caches: list[set[tuple[int, int]]] = [set() for _ in machine.cores]
        fastest = max(core.speed for core in machine.cores)
        shares = [core.speed / fastest if fastest > 1.25 * core.speed else 1.0 for core in machine.cores]
        ends = list(itertools.accumulate(shares, initial=0.0))
        self.share = [math.ceil(end / ends[-1] * 65536) if rules.order == "fifo" else 0 for end in ends[:-1]]
        self.line: list[tuple[int, int, int]] = []
        self.now = self.end = 0.0
        for _ in range(in_flight):
            self.submit(0.0)

    def submit(self, at: float) -> None:
        if len(self.submitted) < self.to_submit:
            there = self.m.engine.submit + self.m.engine.copied * self.t.input_bytes
            self.arrivals.append((at + there, len(self.submitted)))
            self.submitted.append(at)

    def near(self, c: int) -> list[int]:
        def far(v: int) -> tuple[int, int]:
            a, b = self.m.cores[c], self.m.cores[v]
            level = 2 if a.node != b.node else 0 if (a.cache, a.class_) == (b.cache, b.class_) else 1
            return level, (v - c) % self.n_cores

        return sorted((v for v in range(self.n_cores) if v != c), key=far)

    def waiting(self) -> int:
        return sum(len(q) for row in self.rows for lane in row for q in lane.queues.values())

    def put(self, c: int, item: tuple[int, int]) -> None:
        depth = min(int(self.t.depth[item[1]]), LIMITS["depths"] - 1)
        queue = self.lane(self.rows[c], item[0]).queues.setdefault(depth, deque())
        if self.rules.order == "lifo":
            queue.appendleft(item)
        else:
            queue.append(item)

    def first_of_share(self, c: int, n: int) -> int:
        """Of n tiles of a layer in order, which one core `c` begins with."""
        return n * self.share[c] // 65536

    def lane(self, row: list[Lane], request: int) -> Lane:
        """Of a request in a row: its own, a new one, or where there are too many that of a neighbour in age."""
        lanes = {lane.request: lane for lane in row}
        if request in lanes:
            return lanes[request]
        if len(row) < LIMITS["lanes"] or self.rules.order == "layer":
            row.append(Lane(request))
            return row[-1]
        older = [other for other in lanes if other < request]
        found = lanes[max(older) if older else min(lanes)]
        found.request = min(found.request, request)
        return found

    def oldest(self, c: int) -> float:
        """The request that goes first in a row."""
        return min((lane.request for lane in self.rows[c]), default=math.inf)

    def pop(self, c: int, by: int) -> tuple[int, int] | None:
        """Core `by` takes an item of row `c`."""
        lane = min(self.rows[c], key=lambda lane: lane.request, default=None)
        if lane is None:
            return None
        if self.rules.order == "layer":
            item = min((i for q in lane.queues.values() for i in q), key=lambda i: int(self.t.rank[i[1]]))
            queue = next(q for q in lane.queues.values() if item in q)
        else:
            queue = lane.queues[min(lane.queues)]
            item = queue[self.first_of_share(by, max(min(len(queue), 1024 // self.n_cores), 1))]
        queue.remove(item)
        lane.queues = {depth: q for depth, q in lane.queues.items() if q}
        self.rows[c] = [lane for lane in self.rows[c] if lane.queues]
        return item

    def asleep(self, c: int, at: float) -> bool:
        return at - self.idle[c] > self.m.engine.spin and c not in self.left

    def look_at(self, c: int, start: float) -> None:
        e = self.m.engine
        self.looks[c] = start + (e.wake if self.asleep(c, start) else e.look)

    def choose(self, c: int, start: float, *, for_tiles: bool = True) -> int | None:
        free = [v for v in self.near(c) if v in self.idle and v not in self.looks and not (for_tiles and self.leaves(v))]
        awake = [v for v in free if not self.asleep(v, start)]
        return (awake or free or [None])[0]

    def leaves(self, c: int) -> bool:
        """A slow core takes nothing that faster ones will be done with sooner."""
        own = self.m.cores[c].speed
        faster = sum(core.speed / own - 1 for core in self.m.cores if core.speed > 1.25 * own) if self.rules.steal else 0.0
        return 0 < self.waiting() < 0.5 + faster

    def patience(self, c: int) -> float:
        """Until when: no longer than four tiles take it."""
        return self.left[c] + 4 * self.tile_ns / self.m.cores[c].speed

    def leave(self) -> None:
        """Slow cores that are awake begin to leave tiles when there are some, and forget about it when there are none, or enough."""
        for c in self.idle:
            if not self.leaves(c):
                self.left.pop(c, None)
            elif c not in self.looks and not self.asleep(c, self.now):
                self.left.setdefault(c, self.now)

    def call(self, c: int) -> None:
        if not self.rules.steal:
            for v in range(self.n_cores):
                if v != c and self.rows[v] and v in self.idle and v not in self.looks:
                    self.look_at(v, self.now)
            return
        while len(self.looks) < min(self.waiting(), len(self.idle)):
            v = self.choose(c, self.now)
            if v is None:
                return
            self.look_at(v, self.now)

    def finish(self, c: int) -> float:
        e, run = self.m.engine, self.running.pop(c)
        request, tile = run["item"]
        self.line.append((tile, request, c))
        for cache in self.caches:
            cache.discard((request, tile))
        self.caches[c].add((request, tile))
        ready = []
        for child in self.t.children[self.t.child_begin[tile] : self.t.child_begin[tile + 1]].tolist():
            self.missing[request][child] -= 1
            if not self.missing[request][child]:
                ready.append(child)
        pushed = []
        if ready and self.rules.order != "layer":
            best = None
            for child in ready:
                if best is None:
                    best = child
                elif self.t.rank[child] < self.t.rank[best]:
                    pushed.append(best)
                    best = child
                else:
                    pushed.append(child)
            assert best is not None
            alike = [child for child in pushed if self.t.depth[child] == self.t.depth[best]]
            if self.t.rank[best] and (at := self.first_of_share(c, len(alike) + 1)):
                pushed.remove(alike[at - 1])
                pushed.insert(0, best)
                best = alike[at - 1]
            self.follow[c] = (request, best)
        else:
            pushed = ready
        for child in pushed:
            self.put(c, (request, child))
        if tile == self.t.n - 1:
            seen = self.now + e.end + e.copied * self.t.output_bytes
            self.end = max(self.end, seen)
            self.latency[request] = seen - self.submitted[request]
            self.in_flight += 1
            self.submit(seen)
        return e.push + len(pushed) * e.pushed if pushed else 0.0

    def fetched(self, c: int, request: int, tile: int) -> float:
        """Bytes that the core does not have."""
        flow, total = self.t.flow, 0.0
        read = []
        for source, nbytes in self.entries(tile) if tile < flow.tiles else []:
            read += [(source, nbytes)] if source < flow.tiles else self.entries(source)
        for source, nbytes in read:
            if (request, source) not in self.caches[c]:
                total += nbytes
                self.caches[c].add((request, source))
        return total

    def making(self, c: int, request: int, tile: int) -> float:
        """A kernel finds what the last one on this core has made, if that was for a tile of the same group and request."""
        if not self.t.ns[tile] or not len(self.t.made):
            return 1.0
        wanted = (request, int(self.t.made.group[tile]))
        found, self.made[c] = self.made.get(c) == wanted, wanted
        return float((self.t.made.again if found else self.t.made.first)[tile]) if wanted[1] else 1.0

    def entries(self, row: int) -> list[tuple[int, float]]:
        flow = self.t.flow
        some = slice(flow.begin[row], flow.begin[row + 1])
        return list(zip(flow.sources[some].tolist(), flow.nbytes[some].tolist(), strict=True))

    def step(self, c: int, cost: float) -> None:
        e, initial = self.m.engine, self.t.initial.tolist()
        while self.arrivals and self.in_flight and self.arrivals[0][0] <= self.now:
            _, request = self.arrivals.pop(0)
            self.in_flight -= 1
            self.missing[request] = self.t.parent_counts.tolist()
            share = -(-len(initial) // self.n_cores)
            for k, tile in enumerate(initial):
                self.put((c + k // share) % self.n_cores, (request, tile))
            cost += e.claim + e.claimed * self.t.n
        item = self.follow.pop(c, None)
        several = self.rules.steal and len(self.missing) - len(self.latency) > 1
        others = [self.oldest(v) for v in range(self.n_cores) if v != c and several]
        if item is not None and min([self.oldest(c), *others]) < item[0]:
            self.put(c, item)
            item = None
            cost += e.push + e.pushed
        leaves = item is None and self.leaves(c) and not (c in self.left and self.now >= self.patience(c))
        if item is None and not leaves and min(others, default=math.inf) < self.oldest(c):
            v = next(v for v in self.near(c) if self.oldest(v) == min(others))
            item = self.pop(v, c)
            self.steals[c] += 1
            cost += e.steal
        item = item or (None if leaves else self.pop(c, c))
        if item is None and self.rules.steal and not leaves:
            for v in self.near(c):
                item = self.pop(v, c)
                if item is not None:
                    self.steals[c] += 1
                    cost += e.steal
                    break
        if item is None:
            self.idle[c] = self.now
            if leaves:
                self.left.setdefault(c, self.now)
            return
        self.left.pop(c, None)
        ns = float(self.t.ns[item[1]]) * self.making(c, *item)
        ns_of_fetching = self.t.far * self.fetched(c, *item)
        cost += e.tile if self.t.ns[item[1]] else e.join
        whole = (cost + ns + ns_of_fetching) / self.m.cores[c].speed
        self.running[c] = {"item": item, "left": whole, "demand": self.t.bytes[item[1]] / whole if whole else 0.0}

    def rates(self) -> dict[int, float]:
        """Progressive filling: what nobody needs is shared by those who want more."""
        left, open_ = self.m.bytes_per_ns, dict(sorted(self.running.items(), key=lambda kv: kv[1]["demand"]))
        out: dict[int, float] = {}
        for k, (c, run) in enumerate(open_.items()):
            got = min(run["demand"], left / (len(open_) - k))
            left -= got
            out[c] = got / run["demand"] if run["demand"] else 1.0
        return out

    def run(self) -> None:
        self.in_flight = min(self.in_flight, self.to_submit)
        while len(self.latency) < self.to_submit:
            rates = self.rates()
            events = [(self.now + run["left"] / rates[c], c) for c, run in self.running.items()]
            events += [(at, c) for c, at in self.looks.items()]
            events += [(self.patience(c), c) for c in self.left if c not in self.looks]
            first = min(events, default=(float("inf"), -1))[0]
            at, c = min((e for e in events if e[0] <= first * (1 + 1e-12)), key=lambda e: e[1], default=(first, -1))
            if self.arrivals and self.in_flight and len(self.idle) > len(self.looks) and not self.looks and at >= self.arrivals[0][0]:
                start = max(self.arrivals[0][0], self.now)
                awake = 0 in self.idle and not self.asleep(0, start)
                v = 0 if awake else self.choose(0, start, for_tiles=False)
                self.look_at(0 if v is None else v, start)
                continue
            assert c >= 0, "stuck"
            for k, run in self.running.items():
                run["left"] = max(run["left"] - max(at - self.now, 0.0) * rates[k], 0.0)
            self.now = max(self.now, at)
            cost = 0.0
            if c in self.running:
                cost = self.finish(c)
            else:
                del self.idle[c]
                self.looks.pop(c, None)
            self.step(c, cost)
            self.leave()
            if self.idle and self.waiting():
                self.call(c)


def check_against_slow(tiles: Tiles, machine: Machine, requests: int, in_flight: int, rules: Rules) -> None:
    slow = Slow(tiles, machine, requests, min(in_flight, requests), rules)
    slow.run()
    fast = simulate(tiles, machine, requests=requests, in_flight=in_flight, rules=rules, timeline=True)
    assert fast.timeline is not None
    line = list(zip(fast.timeline.tile.tolist(), fast.timeline.request.tolist(), fast.timeline.core.tolist(), strict=True))
    assert line == slow.line
    assert fast.latencies == pytest.approx([slow.latency[k] for k in range(requests)], rel=1e-9)
    assert fast.makespan_ns == pytest.approx(slow.end, rel=1e-9)
    assert fast.steals.tolist() == slow.steals
    check_laws(tiles, machine, fast, requests)


def check_laws(tiles: Tiles, machine: Machine, out: Outcome, requests: int) -> None:
    """What holds of any schedule."""
    line = out.timeline
    assert line is not None
    assert sorted(zip(line.request.tolist(), line.tile.tolist(), strict=True)) == [(r, t) for r in range(requests) for t in range(tiles.n)]
    near = 1e-9 * out.makespan_ns
    end = np.zeros((requests, tiles.n))
    start = np.zeros((requests, tiles.n))
    end[line.request, line.tile], start[line.request, line.tile] = line.end, line.start
    parent = np.repeat(np.arange(tiles.n), np.diff(tiles.child_begin))
    for r in range(requests):
        assert (end[r, parent] <= start[r, tiles.children] + near).all(), "parents end before children start"
    for c in range(len(machine)):
        mine = line.core == c
        order = np.argsort(line.end[mine], kind="stable")
        assert (line.end[mine][order][:-1] <= line.start[mine][order][1:] + near).all(), "one tile at a time"
    assert (line.start <= line.end + near).all()
    work = tiles.ns.sum() * requests
    assert out.makespan_ns >= work / machine.power - near
    assert out.latencies.min() >= tiles.longest_path()[1] / max(core.speed for core in machine.cores) - near
    assert (out.busy_ns * out.speeds).sum() >= work - near * len(machine)
    assert out.tiles.sum() == tiles.n * requests
    assert (out.busy_ns + out.schedule_ns <= out.makespan_ns + near).all()
    assert 0 <= out.utilisation <= 1 + 1e-9


# ---------------------------------------------------------------------------------------------------- tests

machines = st.sampled_from(
    [
        Machine((Core(),), engine=ODD),
        Machine((Core(), Core(0.5, 1)), engine=ODD),
        Machine((Core(2.0), Core(), Core(0.25, 1), Core(0.25, 1)), engine=ODD),
        Machine(tuple(Core(1.0, 0, k // 2, k // 4) for k in range(7)), engine=ODD),
        Machine((Core(), Core()), engine=FREE),
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 20),
    st.integers(0, 60),
    machines,
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["fifo", "lifo", "layer"]),
    st.booleans(),
)
def test_as_the_slow_model(seed: int, n: int, machine: Machine, requests: int, in_flight: int, order: Any, steal: bool) -> None:
    """Times are small whole numbers and speeds powers of two, so that both work them out exactly and ties are ties."""
    check_against_slow(random_graph(seed, n), machine, requests, in_flight, Rules(order, steal))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 40), machines, st.integers(15, 24))
def test_as_the_slow_model_with_more_requests_than_lanes(seed: int, n: int, machine: Machine, in_flight: int) -> None:
    check_against_slow(random_graph(seed, n), machine, 30, in_flight, Rules())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(0, 60), machines, st.integers(1, 4), st.integers(1, 4))
def test_as_the_slow_model_with_caches(seed: int, n: int, machine: Machine, requests: int, in_flight: int) -> None:
    plain = random_graph(seed, n)
    flow = random_flow(seed, plain)
    before = np.repeat(np.arange(len(flow.begin) - 1), np.diff(flow.begin))
    parents = [sorted({s for s in flow.sources[before == k].tolist() if s < n}) for k in range(n)]
    for k in range(n):  # whatever a tile reads comes before it
        for g in flow.sources[before == k].tolist():
            parents[k] += flow.sources[before == g].tolist() if g >= n else []
    tiles = graph([sorted(set(ps)) for ps in parents], plain.ns[:-1].tolist(), nbytes=plain.bytes[:-1].tolist())
    check_against_slow(dataclasses.replace(tiles, far=0.25, flow=flow), machine, requests, in_flight, Rules())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(0, 60), machines, st.integers(1, 4), st.integers(1, 4))
def test_as_the_slow_model_with_scratch(seed: int, n: int, machine: Machine, requests: int, in_flight: int) -> None:
    plain = random_graph(seed, n)
    tiles = dataclasses.replace(plain, made=random_made(seed, plain))
    slow = Slow(tiles, machine, requests, min(in_flight, requests), Rules())
    slow.run()
    fast = simulate(tiles, machine, requests=requests, in_flight=in_flight, timeline=True)
    assert fast.timeline is not None
    line = list(zip(fast.timeline.tile.tolist(), fast.timeline.request.tolist(), fast.timeline.core.tolist(), strict=True))
    assert line == slow.line
    assert fast.latencies == pytest.approx([slow.latency[k] for k in range(requests)], rel=1e-9)


def test_what_the_last_tile_made_is_found() -> None:
    """Of four tiles one after the other the second needs what the first has made, the third nothing; so the fourth has to make it anew."""
    chain = graph([[], [0], [1], [2]], [10.0, 10.0, 10.0, 10.0])
    made = Made(np.array([7, 7, 0, 7, 0]), np.full(5, 1.5), np.full(5, 0.5))
    one = Machine((Core(),), engine=FREE)
    assert simulate(chain, one).latency_ns == 40
    assert simulate(dataclasses.replace(chain, made=made), one).latency_ns == 15 + 5 + 10 + 15
    joined_in_between = graph([[], [0], [1]], [10.0, 0.0, 10.0])
    same = Made(np.array([7, 0, 7, 0]), np.full(4, 1.5), np.full(4, 0.5))
    assert simulate(dataclasses.replace(joined_in_between, made=same), one).latency_ns == 15 + 5, "a join makes nothing"
    assert simulate(dataclasses.replace(joined_in_between, made=same), one, requests=2).latencies.tolist() == [20, 20], "for itself only"


@pytest.mark.parametrize(
    ("group", "first", "again", "what"),
    [
        ([1], [1.0], [], "1 groups, 1 and 0 factors"),
        ([1], [-1.0], [1.0], "not negative"),
        ([1], [1.0], [np.inf], "finite"),
    ],
)
def test_what_tiles_find_fits(group: list[int], first: list[float], again: list[float], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Made(np.array(group), np.array(first), np.array(again))


def test_what_tiles_find_is_of_all_or_none() -> None:
    with pytest.raises(ValueError, match="scratch reuse of 1 tiles, of 3"):
        dataclasses.replace(graph([[], []], [1.0, 1.0]), made=Made.none(1))


def test_nodes_share_nothing_in_scratch() -> None:
    found = joined([Made.none(2), Made(np.array([1, 2, 0]), np.full(3, 2.0), np.zeros(3)), Made(np.array([1]), np.ones(1), np.ones(1))], 2)
    assert (found.group > 0).tolist() == [False, False, True, True, False, True, False, False]
    assert len(set(found.group.tolist())) == 4
    assert found.first.tolist() == [1, 1, 2, 2, 2, 1, 1, 1]
    assert found.again.tolist() == [1, 1, 0, 0, 0, 1, 1, 1]
    assert len(joined([Made.none(2)], 2)) == 0, "nothing to look up"


def test_what_another_core_wrote_is_fetched_once() -> None:
    """Two tiles of one core's read the same two, one of which the core has computed itself."""
    flow = Flow(4, np.array([0, 0, 0, 1, 2, 4]), np.array([4, 4, 0, 1]), np.array([0, 0, 100, 100]))
    tiles = graph([[], [], [0, 1], [2]], [10.0, 10.0, 10.0, 10.0])
    two = Machine((Core(), Core()), engine=FREE)
    assert simulate(tiles, two).latency_ns == 30
    assert simulate(dataclasses.replace(tiles, far=0.5, flow=flow), two).latency_ns == 80
    assert simulate(dataclasses.replace(tiles, far=0.5, flow=flow), two.fastest()).latency_ns == 40


@pytest.mark.parametrize(
    ("tiles", "begin", "sources", "nbytes"),
    [
        (2, [0, 1], [0], [1.0]),  # no second row
        (1, [0, 2, 1], [0], [1.0]),
        (1, [1, 1], [0], [1.0]),
        (1, [0, 1], [0, 0], [1.0, 1.0]),
        (1, [0, 1], [0], [1.0, 1.0]),
        (1, [0, 1], [1], [1.0]),
        (1, [0, 0, 1], [1], [1.0]),  # a group of groups
        (1, [0, 1], [0], [-1.0]),
        (1, [0, 1], [0], [float("nan")]),
    ],
)
def test_bad_flow(tiles: int, begin: list[int], sources: list[int], nbytes: list[float]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Flow(tiles, np.array(begin), np.array(sources), np.array(nbytes))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 50), st.integers(1, 6), st.integers(1, 3))
def test_as_the_slow_model_with_shared_memory(seed: int, n: int, cores: int, in_flight: int) -> None:
    rng = np.random.default_rng(seed)
    plain = random_graph(seed, n, joins=0)
    ns, nbytes = rng.uniform(10, 100, plain.n), rng.uniform(0, 400, plain.n)
    ns[-1] = nbytes[-1] = 0
    tiles = Tiles(plain.child_begin, plain.children, plain.parent_counts, plain.initial, plain.rank, plain.depth, ns, nbytes)
    machine = Machine(tuple(Core(float(s)) for s in rng.uniform(0.3, 1.2, cores)), float(rng.uniform(1, 8)), ODD)
    check_against_slow(tiles, machine, 3, in_flight, Rules())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steal", [True, False])
def test_laws_and_determinism(order: Any, steal: bool) -> None:
    tiles = random_graph(1, 400)
    machine = Machine(tuple(Core(s, k) for k, s in enumerate((1.0, 1.0, 0.5))), 3.0)
    outcomes = [simulate(tiles, machine, requests=5, in_flight=2, rules=Rules(order, steal, seed=7), timeline=True) for _ in range(2)]
    check_laws(tiles, machine, outcomes[0], 5)
    for name in ("tile", "request", "core", "start", "end"):
        assert (getattr(outcomes[0].timeline, name) == getattr(outcomes[1].timeline, name)).all()
    if order == "random":
        other = simulate(tiles, machine, requests=5, in_flight=2, rules=Rules(order, steal, seed=8), timeline=True)
        assert other.timeline is not None
        assert outcomes[0].timeline is not None
        assert (other.timeline.tile != outcomes[0].timeline.tile).any()


@pytest.mark.parametrize("make", [residual_block, dense_block, attention])
@pytest.mark.parametrize("cores", ["1", "3", "2P+2E", "64"])
def test_plans(make: Any, cores: str) -> None:
    machine = Machine.parse(cores)
    plan = build_plan(make(GraphBuilder()), workers=len(machine))
    tiles = of_plan(plan)
    out = simulate(tiles, machine, requests=3, in_flight=2, timeline=True)
    check_laws(tiles, machine, out, 3)
    ops = plan.ops["cost_ns"][plan.tiles["op"]].astype(float)
    assert tiles.ns.sum() == pytest.approx(ops.sum(), rel=1e-4)
    assert of_plan(plan, np.ones(plan.n_tiles)).ns.sum() == plan.n_tiles
    other = of_plan(plan, np.where(tiles.ns > 0, np.arange(plan.n_tiles) % 7 + 1, 0))
    assert other.far == 0
    assert other.flow.nbytes.sum() > 0
    for far in (0.0, 0.125):
        check_against_slow(dataclasses.replace(other, far=far), Machine((Core(),) * 3, engine=ODD), 2, 2, Rules())


def test_one_core_takes_the_sum() -> None:
    tiles = random_graph(2, 100)
    out = simulate(tiles, Machine((Core(0.5),), engine=FREE))
    assert out.latency_ns == out.makespan_ns == 2 * tiles.ns.sum()
    assert out.utilisation == 1
    kernels = int((tiles.ns > 0).sum())
    engine = Engine(tile=10, join=5, push=0, pushed=0, claim=0, claimed=0, look=0, submit=100, end=1000)
    out = simulate(tiles, Machine((Core(),), engine=engine))
    assert out.latency_ns == tiles.ns.sum() + 10 * kernels + 5 * (tiles.n - kernels) + 1100


def test_inputs_and_outputs_are_copied() -> None:
    plain = graph([[]], [50.0])
    arrays = {name: getattr(plain, name) for name in Tiles.__dataclass_fields__}
    copied = Tiles(**{**arrays, "input_bytes": 80.0, "output_bytes": 16.0})
    machine = Machine((Core(),), engine=ODD)
    assert simulate(copied, machine).latency_ns == simulate(plain, machine).latency_ns + 12


def test_slow_cores_are_patient_for_a_while() -> None:
    """A core of half the speed leaves the last tiles to the fast one. When that is still at a long one, it takes what it has left."""
    engine = Engine(**{**dict.fromkeys(Engine.__dataclass_fields__, 0), "spin": 1e9})
    machine = Machine((Core(), Core(0.5, 1)), engine=engine)

    def starts(ns: list[float], after: int = 0) -> list[tuple[int, float]]:
        """`after`: tiles that need the first one and take no time."""
        line = simulate(graph([[] for _ in ns] + [[0]] * after, ns + [0.0] * after), machine, timeline=True).timeline
        assert line is not None
        order = np.argsort(line.tile)
        return list(zip(line.core[order].tolist(), line.start[order].tolist(), strict=True))[: len(ns)]

    assert starts([10.0, 10.0]) == [(0, 0), (0, 10)], "done at 20 as if both had worked"
    # Four tiles take the slow core 4 * 2 * 99 / 33 = 24 on average, END being the last.
    assert starts([97.0, 2.0], 30) == [(0, 0), (1, 24)]
    assert starts([20.0, 79.0], 30) == [(0, 0), (0, 20)]


def test_older_requests_go_first() -> None:
    """Two cores, two requests of a tile that two others wait for. With the first request's second tile the second core leaves its own."""
    fan = graph([[], [0], [0]], [10.0, 10.0, 10.0])
    line = simulate(fan, Machine((Core(), Core()), engine=FREE), requests=2, in_flight=2, timeline=True).timeline
    assert line is not None
    kernels = line.tile < 3
    order = np.lexsort((line.core[kernels], line.start[kernels]))
    took = list(zip(line.start[kernels][order].tolist(), line.request[kernels][order].tolist(), strict=True))
    assert took == [(0, 0), (0, 1), (10, 0), (10, 0), (20, 1), (20, 1)]


def test_throughput_is_that_of_the_middle() -> None:
    """Two cores with a tile each, and two with a request at a time of two tiles that follow each other."""
    two = Machine((Core(), Core()), engine=FREE)
    assert throughput(graph([[]], [50.0]), two, 2) == pytest.approx(2 / 50e-9)
    assert throughput(graph([[], [0]], [50.0, 50.0]), two, 1) == pytest.approx(1 / 100e-9)
    assert throughput(graph([[], [0]], [50.0, 50.0]), two, 4) == pytest.approx(2 / 100e-9)
    assert throughput(graph([], []), two, 2) == math.inf


def test_nothing_to_do() -> None:
    """A graph of END alone, and tiles that take no time."""
    assert simulate(graph([], []), Machine.uniform(3)).tiles.sum() == 1
    out = simulate(graph([[], [0], [0], [1, 2]], [0.0] * 4), Machine((Core(),) * 2, engine=FREE), requests=2)
    assert out.makespan_ns == 0
    assert out.tiles.sum() == 10


def test_memory_is_shared() -> None:
    """Two tiles that want 6 bytes a ns each, of 8: each gets 4; beside one that wants 2, the other gets its 6."""
    machine = Machine((Core(), Core()), 8.0, FREE)
    assert simulate(graph([[], []], [100.0, 100.0], nbytes=[600.0, 600.0]), machine).makespan_ns == pytest.approx(150)
    assert simulate(graph([[], []], [100.0, 100.0], nbytes=[200.0, 600.0]), machine).makespan_ns == pytest.approx(100)
    assert simulate(graph([[], []], [50.0, 100.0], nbytes=[300.0, 600.0]), machine).makespan_ns == pytest.approx(125)


def test_bad_graphs() -> None:
    good = graph([[], [0]], [1.0, 1.0])
    arrays = {name: getattr(good, name) for name in Tiles.__dataclass_fields__}
    for name, value in {
        "child_begin": [0, 2, 1, 2],
        "children": [1, 3],
        "initial": [7],
        "rank": [1],
        "ns": [1.0, float("nan"), 0.0],
        "bytes": [-1.0, 0.0, 0.0],
        "far": -1.0,
    }.items():
        with pytest.raises(ValueError, match=r"."):
            Tiles(**{**arrays, name: np.array(value)})
    with pytest.raises(ValueError, match="read something"):
        Tiles(**{**arrays, "flow": Flow(4, np.zeros(5), np.zeros(0), np.zeros(0))})
    for counts in ([0, 2, 1], [1, 1, 1]):
        stuck = Tiles(**{**arrays, "parent_counts": np.array(counts), "initial": np.flatnonzero(np.array(counts) == 0)})
        with pytest.raises(ValueError, match="cycle"):
            simulate(stuck, Machine.uniform(2))
        with pytest.raises(ValueError, match="cycle"):
            stuck.longest_path()
    for wrong in ({"requests": 0}, {"in_flight": 0}, {"requests": 1 << 31, "in_flight": 1 << 31}):
        with pytest.raises(ValueError, match="requests"):
            simulate(good, Machine.uniform(2), **wrong)


def test_large_graphs() -> None:
    """10 000 tiles on 64 cores."""
    tiles = random_graph(3, 10_000)
    out = simulate(tiles, Machine.uniform(64))
    assert max(tiles.longest_path()[1], tiles.ns.sum() / 64) <= out.makespan_ns


def test_longest_path() -> None:
    assert graph([[], [0], [0], [1]], [5.0, 2.0, 1.0, 1.0]).longest_path() == (4, 8.0)
    assert graph([[], [0], [0], [1]], [5.0, 0.0, 1.0, 1.0]).longest_path(10.0) == (4, 26.0)


def test_parallel_fraction() -> None:
    assert parallel_fraction(100.0, 50.0, 2) == 1
    assert parallel_fraction(100.0, 100.0, 2) == 0
    assert parallel_fraction(100.0, 10.0, 1) == 1
    serial = 0.1
    assert parallel_fraction(1.0, serial + (1 - serial) / 16, 16) == pytest.approx(0.9)


# ---------------------------------------------------------------------------------------------------- machines


def test_machines_from_text() -> None:
    assert Machine.parse("64").cores == (Core(),) * 64
    assert [(c.speed, c.class_) for c in Machine.parse("2P+1E").cores] == [(1.0, 0), (1.0, 0), (0.5, 1)]
    assert [(c.speed, c.class_) for c in Machine.parse("1@0.5 + 2@1.0").cores] == [(0.5, 1), (1.0, 0), (1.0, 0)]
    assert [c.class_ for c in Machine.parse("1@1+1@0.95+1@.5").cores] == [0, 0, 1]
    assert Machine.parse("4e", speeds={"P": 1.0, "E": 0.7}).power == pytest.approx(2.8)
    assert Machine.parse("1p@2").power == 2
    for machine in ("64", "2@1+2@0.5", "1@0.25", "2@1000+1@999+1@100+1@10+1@0.001", "3@1.25+1@0.0125"):
        assert Machine.parse(machine).describe() == machine
    for text in ("", "P", "0", "8X", "8+", "1@0", "1@-1", "9999", "1.5", "2@1@2", "512+513"):
        with pytest.raises(ValueError, match=r"."):
            Machine.parse(text)
    with pytest.raises(ValueError, match="cores"):
        Machine(())


def test_victims_are_sorted_as_the_engine_does() -> None:
    machine = Machine((Core(1.0, 0, 0), Core(0.5, 1, 0), Core(1.0, 0, 1), Core(1.0, 0, 0), Core(1.0, 0, 0, 1)))
    assert machine.victims().tolist() == [[3, 1, 2, 4], [2, 3, 0, 4], [3, 0, 1, 4], [0, 1, 2, 4], [0, 1, 2, 3]]
    assert Machine.uniform(1).victims().shape == (1, 0)


def test_cores_that_take_all_of_a_memory() -> None:
    assert Machine((Core(),) * 2, 33.0).memory_cores(25.0) == 1
    assert Machine((Core(node=0), Core(node=1)), 200.0).memory_cores(25.0) == 4
    assert Machine((Core(),)).memory_cores(25.0) == 0
