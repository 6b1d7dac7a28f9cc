"""The search for tiles: never worse than what each node's own policy gives, the same every time, and cut to the machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from graphs_by_hand import GraphBuilder

from aspen_mp.bench import models
from aspen_mp.planner import api, build
from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import AUTOMATIC, Effort
from aspen_mp.planner.layout.grids import Grid
from aspen_mp.planner.layout.storage import Storage, assign_storage
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.simulation.simulate import of_plan, simulate
from aspen_mp.planner.tiling import policy
from aspen_mp.planner.tiling.edges import EdgeBuilder
from aspen_mp.planner.tiling.search import (
    AS_KNOWN,
    JITTER,
    JITTER_UNLIKE,
    NODE,
    SAMPLES,
    SOURCE,
    STEP,
    Found,
    _fair,
    _Search,
    _speeds,
    _tiles,
    search,
)

NETWORKS = {"squeezenet1_1": {"image": 128}, "bert_base": {"layers": 2, "seq": 64}}


@pytest.fixture(scope="module", params=NETWORKS)
def graph(request: pytest.FixtureRequest) -> Graph:
    """A kernel-level graph."""
    options = dict(NETWORKS[request.param])
    model = models.build(request.param, **{**models.miniature(request.param), **options, **({"hidden": 256} if "seq" in options else {})})
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in models.inputs(model).items()}]
    kept: list[Graph] = []
    with pytest.MonkeyPatch.context() as patch:
        original = build.build_plan
        patch.setattr(api, "build_plan", lambda found, **options: kept.append(found) or original(found, **options))
        api.plan_stage(model, bindings, workers=2)
    return kept[0]


@pytest.fixture
def storage(graph: Graph) -> Storage:
    return assign_storage(graph)


def cuts(found: Found) -> list[list[list[int]]]:
    return [[c.tolist() for c in grid.cuts] for grid in found.grids]


@pytest.mark.parametrize("cores", ["2", "16", "2+2@0.5"])
def test_not_worse_and_the_same_again(storage: Storage, cores: str) -> None:
    machine = Machine.parse(cores)
    found = search(storage, machine)
    assert 0 < found.best_ns <= found.start_ns
    assert found.simulated > 0
    assert cuts(search(storage, machine)) == cuts(found)


def test_all_of_every_output(storage: Storage) -> None:
    for node, grid in zip(storage.steps, search(storage, Machine.parse("4")).grids, strict=True):
        lo, hi = grid.boxes()
        assert int((hi - lo).prod(axis=1).sum()) == int(np.prod(node.output.shape))


def test_one_core_and_no_effort(storage: Storage) -> None:
    """One core waits for nobody."""
    for cores, effort in [("1", "quick"), ("8", "none")]:
        found = search(storage, Machine.parse(cores), effort)  # type: ignore[arg-type]
        own = policy.choose_grids(storage, int(cores))
        assert found.simulated == 0
        assert cuts(found) == [[c.tolist() for c in grid.cuts] for grid in own]


@pytest.mark.parametrize("effort", ["none", "quick"])
@pytest.mark.parametrize("cores", ["1", "2", "16"])
def test_no_tile_is_longer_than_it_may_be(storage: Storage, cores: str, effort: Effort) -> None:
    """By the estimate that grids are chosen by: of what can be cut so fine, and with less work than cutting everything."""

    def longest(grids: list[Grid]) -> list[float]:
        each = zip(storage.steps, grids, strict=True)
        return [float(tile_cost.tile_costs(node, *grid.boxes(), int(cores))[0].max(initial=0.0)) for node, grid in each]

    machine = Machine.parse(cores)
    free = search(storage, machine, effort)
    limit = max(longest(free.grids)) / 3
    bound = search(storage, machine, effort, limit)
    finest = longest([policy.grid_for(node, storage, policy.Aim(int(cores), 1e9)) for node in storage.steps])
    for ns, least in zip(longest(bound.grids), finest, strict=True):
        assert ns <= max(limit, least) * 1.05  # a grid is chosen by its whole tiles, those at borders may cost more
    assert sum(grid.n for grid in bound.grids) > sum(grid.n for grid in free.grids)
    assert cuts(search(storage, machine, effort, 1e12)) == cuts(free)


def test_more_cores_want_more_tiles(storage: Storage) -> None:
    counts = [sum(grid.n for grid in search(storage, Machine.parse(cores)).grids) for cores in ("1", "4", "32")]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_alike_is_what_costs_the_same() -> None:
    """Sums that differ in where an operand comes from, and in what its elements are."""
    b = GraphBuilder()
    x, y = b.input(512, 512), b.input(512, 512)
    sums = [b.binary(x, y), b.binary(x, b.const(512, 512, weight=True)), b.binary(y, x)]
    halves = [b.node("CAST", [t], t.shape, np.float16, saturate=True) for t in (x, y)]
    sums.append(b.node("BINARY", halves, (512, 512), np.float16, opcode="ADD", act=NO_ACT))
    sums.append(b.node("BINARY", halves, (512, 512), np.float32, opcode="ADD", act=NO_ACT))
    storage = assign_storage(b.graph(*sums))
    found = _Search(storage, Machine.uniform(4), 0)
    for node, ladder in zip(storage.steps, found.ladders, strict=True):
        for rung in ladder:
            ns, moved = tile_cost.tile_costs(node, *rung.grid.boxes())
            np.testing.assert_array_equal(ns, rung.ns)
            np.testing.assert_array_equal(moved, rung.bytes)
    kinds = [kind for kind, node in zip(found.kinds, storage.steps, strict=True) if node.op == "BINARY"]
    assert [kinds.index(kind) for kind in kinds] == [0, 1, 0, 3, 4]


def test_tiles_of_the_same_pixels_share_what_is_transformed() -> None:
    """On average over the tiles of each worker, they take what the search takes them to take."""
    b = GraphBuilder()
    storage = assign_storage(b.graph(b.wino(b.input(1, 256, 14, 14), 256, 2)))
    found = _Search(storage, Machine.uniform(2), 0)
    (k,) = (k for k, step in enumerate(storage.steps) if step.op == "WINO")
    node, ladder = storage.steps[k], found.ladders[k]
    shared = [rung for rung in ladder if rung.made.group.max() < rung.grid.n]
    assert shared
    for rung in shared:
        lo, _ = rung.grid.boxes()
        pixels = {tuple(each) for each in np.delete(lo, 1, axis=1).tolist()}
        assert rung.made.group.tolist() == [1 + sorted(pixels).index(tuple(each)) for each in np.delete(lo, 1, axis=1).tolist()]
        assert (rung.made.again < rung.made.first).all()
        for group in range(1, len(pixels) + 1):
            ns, first, again = (x[rung.made.group == group] for x in (rung.ns, rung.made.first, rung.made.again))
            if len(ns) > 2:
                assert (ns * first)[:2].sum() + (ns * again)[2:].sum() == pytest.approx(ns.sum()), "one of either worker's makes it"
    alone = tile_cost.scratch_reuse(node, *ladder[0].grid.boxes(), 1)
    assert (alone.again <= 1).all()
    assert (alone.first >= 1).all()


def test_tiles_on_large_machines_count_more(storage: Storage) -> None:
    spent = []
    for cores in (63, 64, 192):
        found = _Search(storage, Machine.uniform(cores), 0)
        rungs = [ladder[0] for ladder in found.ladders]
        found._latency(rungs)
        nodes = found.spent
        found._latency(rungs)
        spent.append(found.spent - nodes - STEP)
    assert spent[0] > 0
    assert [n / spent[0] for n in spent] == pytest.approx([1, 2, 4], rel=0.2), "ladders differ a little"


def test_effort_grows_with_what_nodes_read() -> None:
    """A node that reads four others through a concat counts more than one that reads one. Those four are alike and count once; what has
    been worked out counts no more."""
    b = GraphBuilder()
    parts = [b.unary(b.input(1, 64, 64)) for _ in range(4)]
    storage = assign_storage(b.graph(b.unary(b.concat(parts, 1))))
    found = _Search(storage, Machine.uniform(2), 0)
    rungs = [ladder[-1] for ladder in found.ladders]
    found._latency(rungs)
    first, found.spent = found.spent, 0
    found._latency(rungs)
    assert found.edges.followed == 4
    assert len(storage.steps) == 5
    assert first - found.spent == NODE * 2 + SOURCE * 4


def test_latency_is_of_the_simulator(storage: Storage) -> None:
    machine = Machine.parse("1+1@0.5")
    found = _Search(storage, machine, 0)
    rungs = [ladder[-1] for ladder in found.ladders]
    tiles = _tiles(found.edges.wiring([rung.grid for rung in rungs]), rungs, found.layers)
    jitter = np.hstack([found._jitter(k, rung.grid.n) for k, rung in enumerate(rungs)])
    rest = np.ones((len(AS_KNOWN), tiles.n - jitter.shape[1]))
    samples = [replace(tiles, ns=tiles.ns * factors) for factors in np.hstack([jitter, rest])]
    machines = [Machine.of_speeds([1.0, 0.5 * by]) for by in AS_KNOWN]
    assert found._latency(rungs) == pytest.approx(np.mean([simulate(*each).latency_ns for each in zip(samples, machines, strict=True)]))


def test_cores_that_are_alike_are_as_known() -> None:
    assert _speeds(Machine.uniform(3)) == [[1.0, 1.0, 1.0]] * SAMPLES


def test_only_slow_cores_are_not_as_known() -> None:
    assert [core for core, *_ in _speeds(Machine.parse("1+2@0.5"))] == [1.0] * 5
    assert [core for *_, core in _speeds(Machine.parse("1+2@0.5"))] == pytest.approx([0.39, 0.43, 0.47, 0.5, 0.54])


def test_chance_is_the_same_whatever_has_been_changed(storage: Storage) -> None:
    """A step's tiles are held up alike in every trial: they must not look better because another step is cut otherwise."""
    one, other = (_Search(storage, Machine.uniform(2), 0) for _ in range(2))
    few = one._jitter(3, 7).copy()
    many = one._jitter(3, 500)
    np.testing.assert_array_equal(many[:, :7], few)
    np.testing.assert_array_equal(one._jitter(3, 7), few)
    np.testing.assert_array_equal(other._jitter(3, 500), many)
    assert not np.array_equal(one._jitter(4, 7), few)


def test_chance_is_mirrored(storage: Storage) -> None:
    """What is longer in one sample is as much shorter in another, so that no grid is good by chance alone."""
    jitter = np.log(_Search(storage, Machine.uniform(2), 0)._jitter(0, 500))
    assert jitter.shape == (SAMPLES, 500)
    np.testing.assert_allclose(jitter, -jitter[::-1], atol=1e-12)
    assert jitter[: SAMPLES // 2].std() == pytest.approx(JITTER, rel=0.1)


def test_chance_beside_unlike_cores(storage: Storage) -> None:
    jitter = np.log(_Search(storage, Machine.parse("1+1@0.5"), 0)._jitter(0, 500))
    assert jitter.shape == (len(AS_KNOWN), 500)
    assert jitter.std() == pytest.approx(JITTER_UNLIKE, rel=0.1)
    assert np.abs(np.corrcoef(jitter) - np.eye(len(AS_KNOWN))).max() < 0.2


def test_unlike_cores_have_grids_of_fair_shares(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many tiles as let a core of a quarter of the speed run one while the other runs four, beside all others."""
    assert _fair(Machine.uniform(4)) == []
    assert [tiles for _, tiles in _fair(Machine.parse("1+1@0.25"))] == [5, 10, 15, 20]
    assert [tiles for _, tiles in _fair(Machine.parse("2+4@0.5"))] == [8, 16, 24, 32]

    def numbers() -> list[set[int]]:
        return [{rung.grid.n for rung in ladder} for ladder in _Search(storage, Machine.parse("1+1@0.25"), 0).ladders]

    found = numbers()
    monkeypatch.setattr("aspen_mp.planner.tiling.search.PARTS", ())
    others = numbers()
    assert all(more >= less for more, less in zip(found, others, strict=True))
    assert found != others


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_wiring_is_the_graph(storage: Storage, workers: int) -> None:
    """The same edges in the same order, whatever grids there were before."""
    edges = EdgeBuilder(storage)
    edges.wiring(policy.choose_grids(storage, 3))
    grids = policy.choose_grids(storage, workers)
    wiring, graph = edges.wiring(grids), EdgeBuilder(storage).graph(grids)
    parents, children = np.concatenate(graph.parents), np.concatenate(graph.children)
    sinks = np.setdiff1d(np.arange(graph.n), parents)
    parents, children = np.concatenate([parents, sinks]), np.concatenate([children, np.full(len(sinks), graph.n)])
    assert wiring.n == graph.n + 1
    assert wiring.join_step == graph.join_step
    np.testing.assert_array_equal(np.diff(wiring.child_begin), np.bincount(parents, minlength=wiring.n))
    np.testing.assert_array_equal(wiring.children, children[np.argsort(parents, kind="stable")])
    np.testing.assert_array_equal(wiring.parent_counts, np.bincount(children, minlength=wiring.n))
    np.testing.assert_array_equal(wiring.initial, np.setdiff1d(np.arange(graph.n), children))


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_what_is_alike_is_wired_alike(storage: Storage, workers: int) -> None:
    """Layers that are worked out once give the graph that each by itself gives."""
    found = _Search(storage, Machine.uniform(workers), 0)
    steps = zip(found.kinds, storage.steps, policy.choose_grids(storage, workers), strict=True)
    grids = [found._rung(kind, node, grid).grid for kind, node, grid in steps]
    shared, alone = found.edges.wiring(grids), EdgeBuilder(storage).wiring(grids)
    assert shared.join_step == alone.join_step
    for name in ("child_begin", "children", "parent_counts", "initial"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
    for name in ("begin", "sources", "nbytes"):
        np.testing.assert_array_equal(getattr(shared.flow, name), getattr(alone.flow, name))


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_what_tiles_read_of_each_other(storage: Storage, workers: int) -> None:
    """Element by element: so many of each tile as regions say; of groups, which several tiles read, all."""
    edges = EdgeBuilder(storage)
    grids = policy.choose_grids(storage, workers)
    wiring = edges.wiring(grids)
    flow, base = wiring.flow, wiring.base
    boxes = [grid.boxes() for grid in grids]
    assert flow.tiles == base[-1]

    def entries(row: int) -> list[tuple[int, float]]:
        some = slice(flow.begin[row], flow.begin[row + 1])
        return list(zip(flow.sources[some].tolist(), flow.nbytes[some].tolist(), strict=True))

    whole = np.concatenate([4 * (hi - lo).prod(axis=1) for lo, hi in boxes])
    for group in range(flow.tiles, len(flow.begin) - 1):
        assert all(nbytes == whole[tile] for tile, nbytes in entries(group))
    for k, node in enumerate(storage.steps):
        wanted: list[Counter[tuple[int, float]]] = [Counter() for _ in range(grids[k].n)]
        for cells in edges._read(node, np.arange(grids[k].n), *boxes[k], grids):
            for tile, lo, hi in zip(cells.tiles.tolist(), cells.lo, cells.hi, strict=True):
                for parent, (first, last) in enumerate(zip(*boxes[cells.step], strict=True)):
                    shared = 4 * np.maximum(np.minimum(hi, last) - np.maximum(lo, first), 0).prod()
                    if shared:
                        wanted[tile][int(base[cells.step]) + parent, float(shared)] += 1
        for tile, want in enumerate(wanted):
            found = entries(int(base[k]) + tile)
            direct = Counter((source, nbytes) for source, nbytes in found if source < flow.tiles and nbytes)
            assert direct <= want
            in_groups = {member for source, _ in found if source >= flow.tiles for member, _ in entries(source)}
            assert {source for source, _ in want - direct} <= in_groups


def test_less_is_exchanged_where_that_takes_long(storage: Storage) -> None:
    machine = Machine.uniform(2)

    def exchanged(far: float) -> float:
        """Bytes that cores fetch from each other: what that costs, if a byte costs something, with tiles searched for `far`."""
        before = op_cost.rates()
        op_cost.use(msgspec.structs.replace(before, far=far))
        try:
            found = search(storage, machine)
            seen = _Search(storage, machine, 0)
            rungs = [seen._rung(kind, node, grid) for kind, node, grid in zip(seen.kinds, storage.steps, found.grids, strict=True)]
            tiles = _tiles(seen.edges.wiring(found.grids), rungs, seen.layers)
        finally:
            op_cost.use(before)
        return float(simulate(replace(tiles, far=1.0), machine).busy_ns.sum() - tiles.ns.sum())

    assert exchanged(1.0) < 0.9 * exchanged(0.0)


def test_thorough_finds_no_less(storage: Storage) -> None:
    machine = Machine.parse("6")
    assert search(storage, machine, "thorough").best_ns <= search(storage, machine).best_ns


@pytest.mark.parametrize("cores", ["2", "8", "4+4@0.5"])
def test_plans(graph: Graph, cores: str) -> None:
    """Searched tiles make plans that are predicted to be no slower, joins, fan-out and recycled memory included: a per cent of chance."""
    machine = Machine.parse(cores)
    own = build.build_plan(graph, workers=len(machine), machine=machine)
    searched = build.build_plan(graph, workers=len(machine), machine=machine, planning=AUTOMATIC)
    assert simulate(of_plan(searched), machine).latency_ns <= 1.01 * simulate(of_plan(own), machine).latency_ns
