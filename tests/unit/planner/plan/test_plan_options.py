"""Plans of experiments: as many tiles as asked for, operator barriers that hold, with few edges, and layers without stacks."""

from __future__ import annotations

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from plan_requests import plan_request
from small_graphs import attention, dense_block, residual_block
from test_explain import big, wide

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.build import build_plan
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.ops.spec import STACKS
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.tables import KERNELS, LIMITS

GRAPHS = [residual_block, dense_block, attention, big, wide]


def ancestors(plan: Plan) -> list[int]:
    """Of each tile, as bits."""
    found = [-1] * plan.n_tiles
    begins, parents = plan.parent_begin.tolist(), plan.parents.tolist()
    waiting = plan.parent_counts.tolist()
    ready = [t for t, n in enumerate(waiting) if not n]
    while ready:
        t = ready.pop()
        found[t] = 0
        for p in parents[begins[t] : begins[t + 1]]:
            found[t] |= found[p] | 1 << p
        first = int(plan.tiles["children"][t])
        for child in plan.children[first : first + int(plan.tiles["n_children"][t])].tolist():
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    return found


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("tiles", [None, 40])
def test_barriers(graph, tiles: int | None) -> None:
    """Every tile of an operator comes after every tile of those before it."""
    plan = build_plan(graph(GraphBuilder()), workers=4, planning=Experiment(tiles=tiles, barriers=True))
    validate(plan.segment())
    above, op = ancestors(plan), plan.tiles["op"].astype(int)
    work = ~np.isin(plan.ops["kernel"][op], [KERNELS["JOIN"].code, KERNELS["END"].code])
    before = 0
    for k in range(len(plan.ops) - 2):
        here = np.flatnonzero(work & (op == k)).tolist()
        bits = sum(1 << t for t in here)
        for t in here:
            assert above[t] & before == before
            assert not above[t] & bits
        before |= bits
    assert above[-1] & before == before
    assert plan.tiles["n_children"].max() <= LIMITS["fanout"]
    assert len(plan.children) <= 3 * plan.n_tiles, "edges stay linear"


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("search", ["none", "quick"])
def test_only_edges_differ(graph, search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aspen_mp.planner.tiling.search.LEAST_SEARCHED_NS", 0.0)
    monkeypatch.setattr("aspen_mp.planner.tiling.search.BEGIN", 0)
    plannings = [Experiment(search=search, barriers=b) for b in (False, True)]
    free, barred = (build_plan(graph(GraphBuilder()), workers=4, planning=planning) for planning in plannings)
    assert ("search" in free.metadata) is (search != "none")
    assert "search" not in barred.metadata, "its predictions are of the plan without barriers"
    assert [row.tiles for row in free.info] == [row.tiles for row in barred.info]
    assert free.activation_bytes == barred.activation_bytes
    n = sum(row.tiles for row in free.info)
    for name in ("lo", "hi", "depth", "rank"):
        assert (free.tiles[name][:n] == barred.tiles[name][:n]).all()


def test_layers_run_depth_first_unless_told_otherwise() -> None:
    model = models.build("mobilenet_v2", image=32)
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in models.inputs(model).items()}]
    plannings = [Experiment(search="none", stacks=stacks) for stacks in (True, False)]
    plans = [api.plan_stage(model, bindings, workers=1, request=plan_request(planning=planning)).plan for planning in plannings]
    counts = [sum(row.kernel in STACKS for row in plan.info) for plan in plans if plan is not None]
    assert counts[0] > 0 == counts[1]
    assert len(plans[1].info) >= len(plans[0].info) + counts[0]


@pytest.mark.parametrize("tiles", [1, 2, 7, 24, 100])
def test_tiles_as_asked_for(tiles: int) -> None:
    plan = build_plan(big(GraphBuilder()), workers=2, planning=Experiment(tiles=tiles))
    for row in plan.info:
        assert 0.6 * tiles <= row.tiles <= 1.6 * tiles, row


def test_tiles_beyond_what_a_layer_has() -> None:
    """Granules of the kernels are kept."""
    plan = build_plan(wide(GraphBuilder()), workers=2, planning=Experiment(tiles=4096))
    assert [row.tiles for row in plan.info if row.kernel == "GEMM"] == [4096 // 32, 1024 // 32]


@pytest.mark.parametrize("values", [{"tiles": 0}, {"tiles": 5000}, {"tiles": "8"}, {"barriers": 1}, {"stack_steps": 1}])
def test_values_out_of_range(values) -> None:
    with pytest.raises(ValueError, match="planning"):
        Experiment(**values).checked()
