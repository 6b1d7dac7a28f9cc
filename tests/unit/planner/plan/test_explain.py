"""What plans say about themselves, and that tiles come out as the policy promises."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from plan_requests import plan_request
from small_graphs import attention, dense_block, residual_block

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import AUTOMATIC
from aspen_mp.planner.ops.spec import STACKS
from aspen_mp.planner.passes import depth_first
from aspen_mp.planner.plan import explain
from aspen_mp.planner.plan.plan import StackInfo
from aspen_mp.shm.tables import KERNELS, LIMITS


def big(b: GraphBuilder) -> Graph:
    x = b.conv(b.input(1, 64, 56, 56), 64)
    x = b.conv(x, 256, kernel=1)
    y = b.reshape(b.transpose(x, 0, 2, 3, 1), 1, 56 * 56, 256)
    return b.graph(b.softmax(b.norm(b.linear(y, 192))))


def wide(b: GraphBuilder) -> Graph:
    return b.graph(b.linear(b.linear(b.input(1, 4, 1024), 4096), 1024))


def test_report() -> None:
    plan = build_plan(residual_block(GraphBuilder()), workers=2)
    report = json.loads(json.dumps(explain.report(plan, 2)))
    assert len(report["layers"]) == report["totals"]["ops"] == len(plan.info)
    assert [row["kernel"] for row in report["layers"]] == [i.kernel for i in plan.info]
    totals, predicted = report["totals"], report["prediction"]
    assert totals["tiles"] == sum(row["tiles"] for row in report["layers"]) + totals["joins"] + 1
    assert totals["edges"] == len(plan.children)
    assert predicted["longest_path_ms"] <= predicted["predicted_ms"] <= predicted["one_core_ms"] == predicted["serial_ms"]
    assert 0 < predicted["utilisation"] < 1
    assert 1 <= predicted["speedup"] <= 2
    assert 0 <= predicted["parallel_fraction"] <= 1
    assert predicted["requests_per_s"] > 1000 / predicted["predicted_ms"], "two at a time"
    assert totals["opaque"] == 0
    assert totals["weights_bytes"] == plan.weights_bytes > 0


def blocks(b: GraphBuilder, count: int, shape: tuple[int, ...]) -> Graph:
    x = b.input(*shape)
    for _ in range(count):
        window = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "count_include_pad": False}
        x = b.node("POOL", [x], shape, mode="max", **window)
    return b.graph(x)


@pytest.mark.parametrize(("side", "images", "most", "sequences"), [(56, 2, None, 1), (448, 1, None, 2), (56, 1, 2, 6)])
def test_stacks(side: int, images: int, most: int | None, sequences: int) -> None:
    """What is written is what a plan writes: one tensor for each sequence."""
    count, shape = 12, (images, 32, side, side)
    graph = blocks(GraphBuilder(), count, shape)
    depth_first.fuse_stacks(graph, most)
    found = [row.stack for row in build_plan(graph, workers=2).info]
    assert len(found) == len(graph.nodes) == sequences
    steps = [step for stack in found for step in stack.steps]
    assert [(step.kernel, step.shape) for step in steps] == [("POOL", shape)] * count
    assert {stack.number for stack in found} == {0}, "sequences of one stack"
    assert sum(stack.saved_bytes for stack in found) == 4 * (count - len(found)) * prod(shape)
    assert all(0 < stack.together_ms < stack.apart_ms for stack in found)


def test_stacks_of_a_batch_in_slices() -> None:
    """A row for each slice, which together are the layer."""
    images = 64
    model = models.build("mobilenet_v2", batch=images)
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in models.inputs(model).items()}]
    plan = api.plan_stage(model, bindings, workers=2, request=plan_request(planning=AUTOMATIC)).plan
    of_layer: dict[str, list[StackInfo]] = {}
    for row in plan.info:
        assert (row.stack is not None) == (row.kernel in STACKS)
        if row.stack is not None:
            of_layer.setdefault(row.name, []).append(row.stack)
    assert [{stack.number for stack in rows} for rows in of_layer.values()] == [{k} for k in range(len(of_layer))]
    first = next(iter(of_layer.values()))
    assert len(first) > 1
    assert sum(stack.saved_bytes for stack in first) == 4 * images * 96 * 112 * 112
    assert all([step.kernel for step in stack.steps] == ["CONV", "DWCONV"] for stack in first)


@pytest.mark.parametrize("graph", [big, wide, dense_block, attention])
def test_more_cores_are_no_slower(graph) -> None:
    plan = build_plan(graph(GraphBuilder()), workers=8)
    times = [explain.predict(plan, cores).predicted_ms for cores in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(explain.predict(plan, 1).one_core_ms)


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_tiles_of_large_layers(workers: int) -> None:
    plan = build_plan(big(GraphBuilder()), workers=workers)
    for row in plan.info:
        if row.predicted_ms > 0.5:
            assert row.tiles >= min(4 * workers, row.predicted_ms * 1e6 / 50_000)
            assert row.predicted_ms * 1e6 / row.tiles < 200_000, "about 150 µs at most"
        assert row.predicted_ms * 1e6 / row.tiles > 1000, "not dust"


def test_large_weights_are_read_once() -> None:
    """Few rows, many weights: cut by columns, in whole panels."""
    plan = build_plan(wide(GraphBuilder()), workers=4)
    for row in plan.info:
        if row.kernel == "GEMM":
            assert row.tile_shape[-2] == 4
            assert row.tile_shape[-1] % 32 == 0


def test_reduced_axes_stay_whole() -> None:
    plan = build_plan(big(GraphBuilder()), workers=64)
    for row in plan.info:
        if row.kernel in ("SOFTMAX", "NORM"):
            assert row.tile_shape[-1] == 192
            assert row.tiles > 1


def test_depth_bins_rise_and_ranks_follow_layers() -> None:
    plan = build_plan(dense_block(GraphBuilder()), workers=2)
    kernel = plan.ops["kernel"][plan.tiles["op"]]
    real = plan.tiles[(kernel != KERNELS["JOIN"].code) & (kernel != KERNELS["END"].code)]
    assert (np.diff(real["depth"].astype(int)) >= 0).all()
    assert (np.diff(real["rank"].astype(int)) > 0).all()
    assert real["depth"].max() < LIMITS["depths"]


def test_results_do_not_depend_on_how_many_workers_a_plan_is_for() -> None:
    """The same operands, wherever offsets are: kernels that sum in an order of their own take it from shapes and strides."""
    graph = dense_block(GraphBuilder())
    plans = [build_plan(graph, workers=w) for w in (1, 2, 64)]
    for plan in plans[1:]:
        for name in ("dtype", "rank", "dims", "strides", "space"):
            assert (plan.operands[name] == plans[0].operands[name]).all()
        assert plan.weight_uses.tolist() == plans[0].weight_uses.tolist()


def test_memory_is_reused() -> None:
    graph = residual_block(GraphBuilder())
    own = build_plan(graph, workers=2, options=PlanOptions(reuse_memory=False)).activation_bytes
    assert build_plan(graph, workers=2).activation_bytes < 0.8 * own


def test_wanted_tiles_grow_with_work_and_workers() -> None:
    assert op_cost.wanted_tiles(1000.0, 2, 0.5) == 1
    assert op_cost.wanted_tiles(1e6, 2, 0.5) < op_cost.wanted_tiles(1e6, 8, 0.5) < op_cost.wanted_tiles(1e8, 8, 0.5)
