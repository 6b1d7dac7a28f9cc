"""Every QuantizeLinear and DequantizeLinear that stays an op of its own is named with the reason, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_graphs import bind
from net_tools import Net
from test_drawn_quantised import PAIRS, grown
from test_stored_products import COLUMNS, DEPTH, data, weight

from aspen_mp.planner import api
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import NETWORK, Reason
from aspen_mp.planner.passes.precision.round_trips import CHOICE
from aspen_mp.planner.plan.why import explained

U8, I8 = np.uint8, np.int8


def told(model: Any, feeds: dict[str, Any]) -> tuple[dict[str, str], list[Reason], Any]:
    """The reason for each op between levels and f32, by name; all reasons; the rows of the plan."""
    with reasons.recording() as recorded:
        stage = api.plan_stage(model, [bind(feeds)], workers=2)
    assert stage.plan is not None
    if stage.kind != "static":  # one node of ONNX's evaluator
        return {}, recorded, []
    named = {reason.node: reason.rule for reason in recorded if reason.choice == CHOICE and reason.node}
    listed = [reason for reason in recorded if reason.node == NETWORK and "conversion" in reason.choice]
    assert len(listed) == bool(named)
    assert {tried.rule for reason in listed for tried in reason.tried} == set(named.values())
    return named, recorded, stage.plan.info


def of(net: Net, *outputs: str) -> tuple[dict[str, str], list[Reason]]:
    proto = net.model(*outputs)
    named, recorded, rows = told(api.load(proto), {n: np.ones(s, np.float32) for n, s in net.inputs.items()})
    for name, rule in named.items():  # whoever asks for the node finds it there
        (why,) = explained(rows, recorded, [node.name for node in proto.graph.node], name).nodes
        assert rule in {reason.rule for reason in why.reasons}
    return named, recorded


@pytest.mark.parametrize("style", PAIRS)
@pytest.mark.parametrize("seed", range(6))
def test_all_are_named_and_no_others(style: str, seed: int) -> None:
    """Drawn networks: the kernels of their plans say which there are."""
    net, outputs = grown(seed, PAIRS[style])
    named, _, rows = told(api.load(net.model(outputs).SerializeToString()), net.feeds)
    levels = ("QuantizeLinear", "DequantizeLinear")
    kernels = ("QUANTIZE", "DEQUANTIZE", "OPAQUE", "UNARY")
    stayed = {row.name for row in rows if row.op.rpartition(" ")[2] in levels and row.kernel.startswith(kernels)}
    assert set(named) == stayed
    assert all(len(rule.split()) > 4 for rule in named.values())


def test_what_feeds_operators_of_f32() -> None:
    net = Net(opset=21, x=(4, DEPTH))
    y = net("Softmax", data(net, "x"), axis=-1)
    named, _ = of(net, net("MatMul", data(net, y, scale=0.004), weight(net, DEPTH, COLUMNS)))
    assert any(rule.startswith("its result feeds Softmax 'Softmax") for rule in named.values())
    assert any(rule.startswith("it reads the result of Softmax 'Softmax") for rule in named.values())


def test_between_products_nothing_stays() -> None:
    net = Net(opset=21, x=(4, DEPTH))
    y = net("Relu", net("MatMul", data(net, "x"), weight(net, DEPTH, COLUMNS)))
    named, _ = of(net, net("MatMul", data(net, y), weight(net, COLUMNS, COLUMNS)))
    assert list(named.values()) == ["it reads an input of the network or a constant, which is f32"]


def test_scales_that_differ() -> None:
    net = Net(opset=21, x=(4, DEPTH))
    step, other, zero = net.number(0.1), net.number(0.2), net.constant(U8(3))
    y = net("DequantizeLinear", net("QuantizeLinear", "x", step, zero), other, zero)
    named, _ = of(net, y)
    assert any("its scale or zero point differs from that of QuantizeLinear" in rule for rule in named.values())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(np.int16, "its levels are int16"), (np.uint16, "its levels are uint16"), (U8, "a scale or zero point for each index")],
)
def test_levels_that_no_kernel_multiplies(kind: Any, expected: str) -> None:
    net = Net(opset=21, x=(4, DEPTH))
    shape = (DEPTH,) if kind == U8 else ()
    parameters = net.constant(np.full(shape, 0.1, np.float32)), net.constant(np.full(shape, 3, kind))
    x = net("Relu", net("DequantizeLinear", net("QuantizeLinear", "x", *parameters, axis=1), *parameters, axis=1))
    y = net("QuantizeLinear", net("Tanh", net("Add", x, "x")), *parameters, axis=1)
    named, _ = of(net, net("Neg", net("DequantizeLinear", y, *parameters, axis=1)))
    assert any(expected in rule for rule in named.values())


def test_what_a_kernel_adds_in_floats_or_others_read() -> None:
    net = Net(opset=21, x=(4, DEPTH))
    product = net("MatMul", data(net, "x"), weight(net, DEPTH, COLUMNS))
    named, _ = of(net, net("MatMul", data(net, product), weight(net, COLUMNS, 5)), net("Softmax", product))
    assert any("others read the result of MatMul" in rule for rule in named.values())


REFUSED = {
    "activations": "both factors are activations",
    "floats": "its weights are constants of f32",
    "plain": "its weights are levels, but what they are multiplied with is not",
    "rows": "its weights have scales along the axis that is summed",
    "wide": "its factors are uint8 and int16, and kernels multiply bytes",
    "bias": "its bias is computed by the network",
    "turned": "its left factor is transposed",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_products_that_are_not_of_bytes_say_why(kind: str) -> None:
    net = Net(opset=21, x=(DEPTH, DEPTH), b=(COLUMNS,))
    x = data(net, "x")
    made = {
        "activations": lambda: net("Gemm", x, data(net, "x", I8)),
        "floats": lambda: net("MatMul", x, net.weight(DEPTH, COLUMNS)),
        "plain": lambda: net("MatMul", net("Tanh", "x"), weight(net, DEPTH, COLUMNS)),
        "rows": lambda: net("MatMul", x, weight(net, DEPTH, COLUMNS, axis=0)),
        "wide": lambda: net("MatMul", x, weight(net, DEPTH, COLUMNS, kind=np.int16)),
        "bias": lambda: net("Gemm", x, weight(net, DEPTH, COLUMNS), net("Neg", "b")),
        "turned": lambda: net("Gemm", x, weight(net, DEPTH, COLUMNS), transA=1),
    }[kind]()
    _, recorded = of(net, made, *([] if kind == "bias" else [net("Neg", "b")]), net("Neg", x))
    assert [reason.rule for reason in recorded if reason.choice == "f32 factors"] == [REFUSED[kind]]


def test_networks_without_levels_say_nothing() -> None:
    net = Net(opset=21, x=(4, DEPTH))
    named, recorded = of(net, net("Relu", net("MatMul", "x", net.weight(DEPTH, COLUMNS))))
    assert not named
    assert not [reason for reason in recorded if reason.choice == "f32 factors"]
