"""What goes first: the critical path before everything else, where the simulator says that it is worth it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import attention, dense_block, residual_block

from aspen_mp.planner import build
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import AUTOMATIC
from aspen_mp.planner.plan.validate import validate
from aspen_mp.planner.simulation.simulate import of_plan, simulate
from aspen_mp.planner.tiling.policy import choose_grids
from aspen_mp.planner.tiling.priority import DEPTHS, critical_first, depths_and_ranks, memory_depths
from aspen_mp.planner.tiling.search import Found


def order(ns: list[float], *pairs: tuple[int, int]) -> list[int]:
    parents, children = np.array(pairs, np.int64).reshape(-1, 2).T
    return critical_first(ns, parents, children).tolist()


def test_critical_first() -> None:
    assert order([]) == []
    assert order([1, 1, 1], (0, 1), (1, 2)) == [0, 1, 2]
    assert order([1, 1, 1]) == [0, 1, 2], "layers, where nothing is longer"
    assert order([1, 2, 1, 5, 1], (0, 1), (0, 2), (1, 4), (2, 3), (3, 4)) == [0, 2, 3, 1, 4]
    assert order([1, 0, 1], (0, 0), (0, 1), (0, 1), (1, 2)) == [0, 1, 2], "a step with itself, and pairs given twice"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 40))
def test_no_edge_leads_against_the_order(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    ns = rng.integers(0, 3, n) * rng.choice([1.0, 1e3, 1e9], n) * (rng.random(n) if seed % 2 else 1.0)
    parents = rng.integers(0, n, 2 * n)
    children = np.minimum(parents + rng.integers(0, 5, 2 * n), n - 1)
    found = critical_first(ns, parents, children)
    place = np.argsort(found)
    assert sorted(found.tolist()) == list(range(n))
    assert (place[parents] <= place[children]).all()
    counts = rng.integers(0, 4, n)
    depth, rank = depths_and_ranks(found, ns, counts)
    assert (np.diff(depth[found].astype(int)) >= 0).all()
    assert depth.max() < DEPTHS
    step = np.repeat(np.arange(n), counts)
    assert sorted(rank.tolist()) == list(range(1, len(step) + 1))
    assert (np.diff(place[step[np.argsort(rank)]]) >= 0).all(), "step after step"


def test_depths_never_decrease() -> None:
    """Whatever sums are rounded to where a bin begins: steps of no work come there between others."""
    for x in np.random.default_rng(5).random(50):
        ns = np.tile([x, 0.0], DEPTHS)
        depth, _ = depths_and_ranks(np.arange(len(ns)), ns, np.ones(len(ns), np.int64))
        assert (np.diff(depth.astype(int)) >= 0).all()
    assert depths_and_ranks(np.arange(0), [], [])[0].shape == (0,)


def branches(b: GraphBuilder) -> Graph:
    """Four times a branch of one layer, written down first, beside one of four layers."""
    x = b.input(1, 64, 28, 28)
    for _ in range(4):
        short, long = b.conv(x, 64), x
        for _ in range(4):
            long = b.conv(long, 64)
        x = b.concat([short, long], 1)
        x = b.conv(x, 64, kernel=1)
    return b.graph(x)


@pytest.mark.parametrize("make", [residual_block, dense_block, attention, branches])
@pytest.mark.parametrize("reuse", [True, False])
def test_plans(make: Callable[[GraphBuilder], Graph], reuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid ones: no tile has a smaller depth than what it waits for, be it for recycled memory. Tiles and edges are as ever."""
    plans = []
    for critical in (False, True):
        monkeypatch.setattr(
            build, "_tiled", lambda _, storage, machine, *__, c=critical: (storage, Found(choose_grids(storage, 4), c), machine)
        )
        plans.append(build_plan(make(GraphBuilder()), workers=4, options=PlanOptions(reuse_memory=reuse)))
        validate(plans[-1].segment())
    layers, first = plans
    assert (layers.children == first.children).all()
    assert (layers.parent_counts == first.parent_counts).all()
    for name in ("op", "lo", "hi", "children", "n_children"):
        assert (layers.tiles[name] == first.tiles[name]).all()
    assert sorted(layers.tiles["rank"].tolist()) == sorted(first.tiles["rank"].tolist())


def sums(b: GraphBuilder) -> Graph:
    """Six running sums, written down first, beside one of six that follow each other; none can be cut."""
    x = b.input(1 << 19)
    short, long = [b.cumsum(x, 0) for _ in range(6)], x
    for _ in range(6):
        long = b.cumsum(long, 0)
    return b.graph(*short, long)


def test_the_search_sends_long_branches_ahead() -> None:
    machine = Machine.parse("2")
    first = build_plan(sums(GraphBuilder()), workers=2, machine=machine, planning=AUTOMATIC)
    assert first.metadata["search"]["order"] == "critical path"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aspen_mp.planner.tiling.search.WORTH_ORDER", 1.0)
        layers = build_plan(sums(GraphBuilder()), workers=2, machine=machine, planning=AUTOMATIC)
    assert layers.metadata["search"]["order"] == "layers"
    assert simulate(of_plan(first), machine).latency_ns < 0.8 * simulate(of_plan(layers), machine).latency_ns


def test_chains_have_no_branches() -> None:
    def chain(b: GraphBuilder) -> Graph:
        x = b.input(1, 64, 28, 28)
        for _ in range(6):
            x = b.conv(x, 64)
        return b.graph(x)

    assert build_plan(chain(GraphBuilder()), workers=4, planning=AUTOMATIC).metadata["search"]["order"] == "layers"


def test_depths_wait_for_memory_that_ask_for_half_of_what_a_core_moves() -> None:
    depth = np.array([0, 0, 1, 3, 3], np.uint8)
    ns, nbytes = np.array([10.0, 10, 10, 10, 0]), np.array([150.0, 50, 90, 250, 0])
    assert memory_depths(depth, ns, nbytes, 20.0) == 0b1001
    assert memory_depths(depth, ns, np.zeros(5), 20.0) == 0
