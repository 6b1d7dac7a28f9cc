"""Runs of layers that are executed for one slice of the batch after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs
from kernel_graphs import run_graph
from net_tools import Net, lowered
from plan_executor import PlanExecutor, evaluate
from plan_requests import plan_request
from small_graphs import random_grids
from test_plan_random import graphs

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.ops.verify import verify
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.validate import validate
from aspen_mp.planner.tiling import batch_splitting
from aspen_mp.planner.tiling.batch_splitting import Run, _batch, _Cut, find_runs, in_slices


def separable(graph: Graph) -> list[Run]:
    """All longest runs, each image for itself."""
    batch = [_batch(node) for node in graph.nodes]
    found, at = [], 0
    for k in range(1, len(batch) + 1):
        if k == len(batch) or batch[k] != batch[at]:
            if batch[at] > 1:
                found.append(Run(at, k, batch[at]))
            at = k
    return found


@hs.composite
def cut_graphs(draw: hs.DrawFn) -> tuple[Graph, Graph]:
    graph = draw(graphs(5))
    runs = []
    for run in separable(graph):
        begin = draw(hs.integers(run.begin, run.end - 1))
        runs.append(Run(begin, draw(hs.integers(begin + 1, run.end)), draw(hs.integers(2, run.slices))))
    return graph, _Cut(graph).by(runs)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(cut_graphs(), hs.integers(0, 1000), hs.sampled_from(["fifo", "lifo", "random"]))
def test_random_graphs_in_random_parts(pair: tuple[Graph, Graph], seed: int, order: str) -> None:
    graph, cut = pair
    rng = np.random.default_rng(seed)
    feeds = [rng.integers(-2, 3, t.shape).astype(np.float32) for t in graph.inputs]
    plan = build_plan(cut, workers=2, options=PlanOptions(grids=random_grids(seed) if seed % 4 else None))
    validate(plan.segment())
    with np.errstate(all="ignore"):
        want = evaluate(graph, feeds)
        for got, w in zip(evaluate(cut, feeds), want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-3, atol=1e-3)  # numpy's own products depend on how many matrices there are
    for y, w in zip(PlanExecutor(plan).run(feeds, order, seed), want, strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-3, atol=1e-3)


def test_what_sees_one_image_only() -> None:
    b = GraphBuilder()
    x, y = b.input(4, 6, 8, 8), b.input(4, 5, 8)
    alone = [
        b.conv(x, 8),
        b.pool(x),
        b.unary(x),
        b.reduce(x, (2, 3)),
        b.concat([x, x], 1),
        b.transpose(x, 0, 2, 3, 1),
        b.reshape(x, 4, 384),
    ]
    alone += [b.softmax(y), b.linear(y, 7), b.norm(y)]
    assert [_batch(t.producer) for t in alone if t.producer] == [4] * 10
    others = [
        b.softmax(y, 0),
        b.reduce(y, (0,)),
        b.concat([x, x], 0),
        b.transpose(x, 1, 0, 2, 3),
        b.reshape(y, 20, 8),
        b.reshape(y, 2, 2, 40),
    ]
    others += [
        b.slice(y, (1, 0, 0), (1, 1, 1), (3, 5, 8)),
        b.slice(y, (3, 0, 0), (-1, 1, 1), (4, 5, 8)),
        b.gather(y, [0, 0, 1, 2], 0),
        b.cumsum(y, 0),
    ]
    others += [b.pad(y, (0, 1, 0), (0, 0, 0)), b.binary(y, b.const(4, 5, 8)), b.matmul(b.reshape(y, 20, 8), b.const(8, 3))]
    assert [_batch(t.producer) for t in others if t.producer] == [0] * len(others)


def test_all_of_a_run_and_nothing_else() -> None:
    """What the run reads is sliced, what is read after it is put together, and all else stays as it is."""
    b = GraphBuilder()
    x = b.input(6, 4, 9, 9)
    before = b.unary(x)
    first = b.conv(before, 8)
    second = b.conv(first, 8, residual=first)
    last = b.softmax(b.binary(second, first), 0)
    graph = b.graph(last, second)
    cut = _Cut(graph).by([Run(1, 3, 4)])
    verify(cut, "slices", kernel_level=True)
    verify(graph, "slices", kernel_level=True)
    ops = [node.op for node in cut.nodes]
    assert ops == ["UNARY", *["view.slice", "CONV", "CONV"] * 4, "concat", "concat", "BINARY", "SOFTMAX"]
    assert [node.batch_slice for node in cut.nodes if node.op == "CONV"] == [(k, 4) for k in range(4) for _ in range(2)]
    assert [node.output.shape[0] for node in cut.nodes if node.op == "view.slice"] == [1, 2, 1, 2]
    assert [t.name for t in cut.outputs] == [t.name for t in graph.outputs]


def chain(batch: int, side: int = 64, layers: int = 4) -> Graph:
    net = Net(x=(batch, 16, side, side))
    y = "x"
    for _ in range(layers):
        y = net("Relu", net("Conv", y, net.weight(16, 16, 3, 3), pads=[1, 1, 1, 1]))
    return lowered(net.model(y), {"x": np.zeros((batch, 16, side, side), np.float32)})


def test_where_layers_move_more_than_a_cache_holds() -> None:
    """Half a MiB an image and layer: 48 of them pass through memory, 8 stay; larger batches have more slices."""
    assert find_runs(chain(1), 15_000.0) == find_runs(chain(8), 15_000.0) == []
    (run,) = find_runs(chain(48), 15_000.0)
    assert (run.begin, run.end) == (0, 4)
    assert run.slices in (4, 8)
    (more,) = find_runs(chain(192), 15_000.0)
    assert more.slices > run.slices
    assert find_runs(chain(48, layers=1), 15_000.0) == [], "nothing passes from one layer to another"
    assert find_runs(chain(48), 1e9) == []


def test_weights_of_a_run_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(48, layers=6)
    each = max(op_cost.weight_bytes(node) for node in graph.nodes)
    monkeypatch.setattr(batch_splitting, "cached_weights", lambda: 2 * each)
    assert [run.end - run.begin for run in find_runs(graph, 15_000.0)] == [2, 2, 2]


def test_graphs_grow_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(64, layers=6)
    monkeypatch.setattr(batch_splitting, "MOST_NODES", 40)
    cuts = in_slices(graph)
    assert cuts
    assert all(sum(node.op != "view.slice" for node in cut.nodes) <= len(graph.nodes) + 40 + 1 for cut in cuts)


@pytest.fixture(scope="module")
def batch_of_squeezenet() -> tuple[Any, dict[str, Any]]:
    model = models.build("squeezenet1_1", batch=32, image=96)
    return model, models.inputs(model, batch=32)


def planned(model: Any, feeds: dict[str, Any], search: str, cores: str) -> Plan:
    machine = Machine.parse(cores)
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in feeds.items()}]
    request = plan_request(planning=Experiment(search=search))  # type: ignore[arg-type]
    plan = api.plan_stage(model, bindings, workers=len(machine), machine=machine, request=request).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("cores", ["1", "2", "2@1.0+2@0.5"])
def test_a_network_takes_less_memory_and_time(batch_of_squeezenet: tuple[Any, dict[str, Any]], cores: str) -> None:
    whole, cut = (planned(*batch_of_squeezenet, search, cores) for search in ("none", "quick"))
    validate(cut.segment())
    assert {row.batch_slice for row in whole.info} == {(0, 1)}
    assert max(row.batch_slice[1] for row in cut.info) > 1
    assert cut.activation_bytes < 0.8 * whole.activation_bytes
    assert sum(row.predicted_ms for row in cut.info) < sum(row.predicted_ms for row in whole.info)


def test_a_network_has_the_same_bits() -> None:
    model = models.build("squeezenet1_1", batch=5, image=64)
    feeds = models.inputs(model, batch=5)
    graph = lowered(model, feeds)
    cut = _Cut(graph).by([Run(run.begin, run.end, 3) for run in separable(graph)])
    verify(cut, "slices", kernel_level=True)
    for whole, split in zip(run_graph(graph, feeds), run_graph(cut, feeds), strict=True):
        assert whole.tobytes() == split.tobytes()
