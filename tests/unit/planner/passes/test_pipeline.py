"""The list of passes: its order, the options that passes need, and the verifier behind each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_graphs import bind, run_graph
from net_tools import Net
from plan_requests import plan_request

from aspen_mp.planner import api, stages
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.planner.ops import verify
from aspen_mp.planner.passes import pipeline
from aspen_mp.planner.passes.request import Decided, PassRequest

STRICT = plan_request(accuracy="strict")
OPTIONAL = [k for k, step in enumerate(pipeline.PASSES) if step.when in {pipeline.FUSING, pipeline.STACKING, pipeline.FEWER_PRODUCTS}]


def network() -> tuple[Net, list[str]]:
    """Convolutions, some depthwise, pooling, a normalisation and products, with what passes look for between them."""
    net = Net(x=(2, 8, 12, 12))
    y = net("Relu", net("Conv", "x", net.weight(24, 8, 1, 1)))
    y = net("Conv", y, net.weight(24, 1, 3, 3), group=24, pads=[1, 1, 1, 1])
    pooled = net("MaxPool", net("Relu", net("Add", y, net.weight(24, 1, 1))), kernel_shape=[3, 3])
    rows = net("Reshape", pooled, net.constant(np.array([2, 24, 100], np.int64)))
    products = [net("MatMul", rows, net.weight(100, 32)) for _ in range(3)]
    summed = net("Add", net("Mul", products[0], products[1]), products[2])
    return net, [net("LayerNormalization", summed, net.weight(32), net.weight(32), axis=-1), net("Identity", y)]


def passed(net: Net, outputs: list[str], passes: Sequence[pipeline.Pass], asked: PlanRequest = STRICT) -> tuple[Graph, dict[str, Any]]:
    """The kernel-level graph behind some passes, and inputs for it."""
    opened = api.load(net.model(*outputs))
    feeds = {name: net.rng.standard_normal(shape).astype(np.float32) for name, shape in net.inputs.items()}
    stage = stages.derive(opened, [bind(feeds)])
    request = PassRequest(asked, opened, [value.name for value in stage.outputs], decided=Decided())
    return pipeline.run(stage.graph, request, passes), feeds


def test_operators_come_before_kernels() -> None:
    levels = [step.level for step in pipeline.PASSES]
    assert levels == sorted(levels, key=("operators", "kernels").index)
    assert next(step.name for step in pipeline.PASSES if step.level == "kernels") == "lowering"


@pytest.mark.parametrize("left_out", OPTIONAL, ids=lambda k: f"{k}-{pipeline.PASSES[k].name}")
def test_results_do_not_depend_on_an_optional_pass(left_out: int) -> None:
    """No pass needs another one that an option can switch off."""
    net, outputs = network()
    plain, feeds = passed(net, outputs, pipeline.PASSES, plan_request(fuse=False))
    graph, _ = passed(net, outputs, [step for k, step in enumerate(pipeline.PASSES) if k != left_out])
    for got, want in zip(run_graph(graph, feeds), run_graph(plain, feeds), strict=True):
        assert np.allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        (plan_request(), {"bf16", "bf16 activations"}),
        (plan_request(bf16=True), set()),
        (plan_request(strassen="", bf16=True), {"Strassen's algorithm"}),
        (plan_request(winograd=False, bf16=True), {"Strassen's algorithm"}),
        (plan_request(planning=Experiment(stacks=False), bf16=True), {"depth first", "pointwise and depthwise"}),
    ],
)
def test_options_decide_which_passes_run(asked: PlanRequest, missing: set[str]) -> None:
    ran: set[str] = set()

    def watched(step: pipeline.Pass) -> pipeline.Pass:
        def run(graph: Graph, request: PassRequest) -> Graph | None:
            ran.add(step.name)
            return step.run(graph, request)

        return replace(step, run=run)

    net, outputs = network()
    passed(net, outputs, list(map(watched, pipeline.PASSES)), asked)
    assert {step.name for step in pipeline.PASSES} - ran == missing


def test_a_broken_graph_is_found_behind_the_pass_that_broke_it() -> None:
    def forget(graph: Graph, request: PassRequest) -> None:
        graph.nodes = graph.nodes[:-1]

    net, outputs = network()
    planted = pipeline.Pass("forget the last node", "kernels", forget)
    with pytest.raises(verify.GraphError, match="after forget the last node"):
        passed(net, outputs, [*pipeline.PASSES, planted])
