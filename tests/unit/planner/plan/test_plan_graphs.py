"""Plans of small graphs, executed tile by tile in many orders on NaN-filled memory."""

from __future__ import annotations

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from plan_executor import PlanExecutor, evaluate
from small_graphs import GRAPHS, random_grids

from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.layout.grids import split


def check(graph: Graph, seeds: int = 3, reuse: bool = True) -> None:
    rng = np.random.default_rng(1)
    feeds = [rng.integers(-3, 4, t.shape).astype(np.float32) for t in graph.inputs]
    want = evaluate(graph, feeds)
    for seed in range(seeds):
        options = PlanOptions(reuse_memory=reuse, grids=None if seed == 0 else random_grids(seed))
        plan = build_plan(graph, workers=2, options=options)
        for order in ("fifo", "lifo", "random"):
            got = PlanExecutor(plan).run(feeds, order, seed)
            for info, y, w in zip(plan.outputs, got, want, strict=True):
                np.testing.assert_allclose(y, w, rtol=1e-4, atol=1e-4, err_msg=f"{info.name}, {order}, grids {seed}")


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "own"])
def test_executes(make, reuse: bool) -> None:
    check(make(GraphBuilder()), reuse=reuse)


def test_split() -> None:
    assert split(10, 3).tolist() == [0, 3, 6, 10]
    assert split(100, 3, 32).tolist() == [0, 32, 64, 100]
    assert split(5, 9).tolist() == [0, 1, 2, 3, 4, 5]
