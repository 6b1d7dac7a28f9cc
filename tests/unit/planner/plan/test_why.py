"""The reasons for plans: every op has some, they change no plan, and they are found by the names of a model's nodes."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest
from kernel_graphs import bind
from net_tools import Net
from plan_requests import plan_request

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.cost import algorithms
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.options import AUTOMATIC, Experiment
from aspen_mp.planner.job.reasons import NETWORK, Reason, Tried
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.planner.plan import plan_file
from aspen_mp.planner.plan.plan import OpInfo, Plan
from aspen_mp.planner.plan.why import COSTLIEST, UnknownNode, Why, explained

NETWORKS = ["resnet50", "bert_base", "mobilenet_v2", "phases", "pool_blocks", "gpt2", "smollm2_135m", "tcn", "unet"]
WAYS = [plan_request(planning=AUTOMATIC), plan_request(bf16=True, accuracy="strict"), plan_request(fuse=False, winograd=False)]
WAYS += [plan_request(planning=Experiment(in_flight=4)), plan_request(strassen="", planning=Experiment(stacks=False))]
CASES = [(network, WAYS[(k + by) % len(WAYS)]) for k, network in enumerate(NETWORKS) for by in (0, 2)]
PRODUCTS = ("CONV", "WINO", "DWCONV", "PWDW", "GEMM", "BGEMM", "BCONV")


def planned(model: Any, feeds: Any, asked: PlanRequest, *, record: bool, workers: int = 4) -> tuple[Plan, list[Reason]]:
    with reasons.recording(record) as recorded:
        plan = api.plan_stage(model, [bind(feeds)], workers=workers, request=asked).plan
    assert plan is not None
    return plan, recorded


@pytest.mark.parametrize(("network", "asked"), CASES)
def test_every_op_has_reasons_and_plans_are_the_same(network: str, asked: PlanRequest) -> None:
    """Whether anybody asks or not. A reason names another choice, or the rule that left none."""
    model = models.build(network, **models.miniature(network))
    feeds = models.inputs(model)
    silent, nothing = planned(model, feeds, asked, record=False)
    plan, recorded = planned(model, feeds, asked, record=True)
    assert plan_file.dump(plan) == plan_file.dump(silent)
    assert nothing == []
    assert all(reason.choice and (reason.tried or reason.rule) for reason in recorded)
    assert all(tried.choice and tried.rule for reason in recorded for tried in reason.tried)
    found = explained(plan.info, recorded, [], most=len(plan.info)).nodes
    assert {row.name for row in plan.info} <= {name for why in found for name in why.nodes}
    for why in found:
        decided = {reason.decision for reason in why.reasons}
        assert "tiles" in decided, why
        assert not any(kernel.split()[0] in PRODUCTS for kernel in why.kernels) or decided & {"algorithm", "precision"}, why


def test_nobody_records_unless_asked() -> None:
    def never() -> Reason:
        raise AssertionError

    reasons.tell(never)
    with reasons.recording(False):
        reasons.tell(never)
        assert not reasons.asked()
    with reasons.recording() as outer:
        with reasons.recording() as inner:
            reasons.tell(lambda: Reason("tiles", "1 tile", "it is short", node="b"))
        assert [reason.node for reason in inner] == ["b"]
    assert outer == []
    assert not reasons.asked()


def test_trials_leave_nothing_unless_they_are_kept() -> None:
    with reasons.recording() as recorded:
        for kept in (False, True):
            with reasons.trial() as keep:
                reasons.about(f"kept: {kept}")
                reasons.tell(lambda: Reason("tiles", "1 tile", "it is short"))
            if kept:
                keep()
    assert [reason.node for reason in recorded] == ["kept: True"]


def test_reasons_of_nodes_that_became_one_op() -> None:
    """By whatever name of these somebody asks."""
    net = Net(x=(1, 16, 14, 14))
    y = net("Relu", net("Add", net("Conv", "x", net.weight(32, 16, 1, 1)), net.weight(1, 32, 1, 1)))
    model = api.load(net.model(net("Reshape", y, net.constant(np.array([32, 196], np.int64)))))
    plan, recorded = planned(model, {"x": np.ones(net.inputs["x"], np.float32)}, plan_request(), record=True)
    names = [node.name for node in model.proto.graph.node]
    found = [explained(plan.info, recorded, names, name) for name in names[:3]]
    assert found[0] == found[1] == found[2]
    assert found[0].nodes[0].nodes == names[:3]
    fused = [reason for reason in found[0].nodes[0].reasons if reason.decision == "fusion"]
    assert [reason.choice for reason in fused] == ["Conv + Add", "CONV"], "weights take the constant, the kernel takes the function"
    together, apart = fused[1].ms, fused[1].tried[0].ms
    assert together is not None
    assert apart is not None
    assert together < apart
    (view,) = explained(plan.info, recorded, names, names[3]).nodes
    assert (view.kernels, view.predicted_ms) == ([], None)
    assert view.reasons[0].choice == "no op"


def test_a_function_that_stays_apart_says_why() -> None:
    """Two functions of one product: its kernel can take neither, because both read it."""
    net = Net(x=(8, 16))
    product = net("MatMul", "x", net.weight(16, 32))
    model = api.load(net.model(net("Relu", product), net("Sigmoid", product)))
    plan, recorded = planned(model, {"x": np.ones(net.inputs["x"], np.float32)}, plan_request(), record=True)
    assert [info.kernel.split()[0] for info in plan.info].count("UNARY") == 2
    for node in model.proto.graph.node[1:]:
        (why,) = explained(plan.info, recorded, [], node.name).nodes
        apart = next(reason for reason in why.reasons if reason.decision == "fusion")
        assert (apart.choice, apart.rule) == ("an op of its own", "others read what the function is of")
        assert apart.tried[0].choice == "GEMM with the function"


def test_a_choice_shows_what_it_was_compared_with() -> None:
    """The costs are those that the choice was made by: what was not taken gains too little, if anything."""
    net = Net(x=(1, 128, 28, 28))
    model = api.load(net.model(net("Conv", "x", net.weight(128, 128, 3, 3), pads=[1, 1, 1, 1])))
    feeds = {"x": np.ones(net.inputs["x"], np.float32)}
    for asked, chosen in ((plan_request(), "Winograd"), (plan_request(winograd=False), "direct")):
        _, recorded = planned(model, feeds, asked, record=True)
        algorithm = next(reason for reason in recorded if reason.decision == "algorithm" and reason.node != NETWORK)
        assert algorithm.choice.startswith(chosen)
        assert algorithm.tried
        costs = [tried.ms for tried in algorithm.tried if tried.ms is not None]
        assert all(cost >= (1 - algorithms.WORTH) * (algorithm.ms or 0.0) for cost in costs)


def row(name: str, ms: float) -> OpInfo:
    return OpInfo(name, "Relu", "UNARY", 1, (1,), 1.0, 1.0, ms, False)


def test_an_unknown_node_names_similar_ones() -> None:
    rows = [row("layer1.conv1", 1.0), row("layer1.conv2", 1.0), row("head", 1.0)]
    with pytest.raises(UnknownNode, match=re.escape("no node is named 'layer1.conv3'. Similar names: 'layer1.conv")):
        explained(rows, [], ["head"], "layer1.conv3")
    with pytest.raises(UnknownNode, match=r"no node is named '####'$"):
        explained(rows, [], [], "####")


def test_the_costliest_come_first() -> None:
    rows = [row(f"n{k}", float(k % 7 + k / 100)) for k in range(30)]
    found = explained(rows, [], []).nodes
    costs = [node.predicted_ms or 0.0 for node in found]
    assert len(costs) == COSTLIEST
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == max(each.predicted_ms for each in rows)


def test_reasons_as_json() -> None:
    tried = (Tried("direct sums", "it takes longer", 2.0),)
    recorded = [
        Reason("algorithm", "Winograd", "least time", 1.0, "one core", tried, node="a"),
        Reason("order", "layers", "one", node=NETWORK),
    ]
    why = explained([row("a", 1.0)], recorded, [])
    assert msgspec.json.decode(msgspec.json.encode(why), type=Why) == why
    assert [reason.decision for reason in why.network] == ["order"]
