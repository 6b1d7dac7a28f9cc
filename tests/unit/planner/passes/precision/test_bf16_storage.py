"""Which activations are stored as bf16, and which are not."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_graphs import bind, run_model
from net_tools import Net
from plan_requests import plan_request

from aspen_mp.planner import api, stages
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.passes.precision.bf16_storage import BF16

NEAR = 3e-2


def lowered(net: Net, *outputs: str, bf16: bool = True) -> Graph:
    opened = api.load(net.model(*outputs))
    stage = stages.derive(opened, [bind({n: np.ones(s, np.float32) for n, s in net.inputs.items()})])
    return api.lowered(stage.graph, opened, [v.name for v in stage.outputs], plan_request(bf16=bf16, winograd=False))


def stored(net: Net, *outputs: str) -> list[str]:
    """The kernels whose results are stored as bf16, after comparing those of the network with exact ones."""
    model = net.model(*outputs)
    feeds = {n: net.rng.standard_normal(s).astype(np.float32) for n, s in net.inputs.items()}
    request = plan_request(bf16=True, winograd=False)
    for y, w in zip(run_model(api.load(model), feeds, request), run_model(api.load(model), feeds), strict=True):
        assert np.abs(y - w).max() <= NEAR * np.abs(w).max()
    return [n.op for n in lowered(net, *outputs).nodes if n.output.dtype == BF16]


def test_between_products() -> None:
    net = Net(x=(5, 64))
    y = net("Relu", net("MatMul", "x", net.weight(64, 96)))
    z = net("MatMul", y, net.weight(96, 64))
    assert stored(net, net("MatMul", net("Add", z, "x"), net.weight(64, 33))) == ["BGEMM", "BGEMM"]


def test_through_views_and_joins() -> None:
    net = Net(x=(1, 32, 6, 5))
    left, right = (net("Conv", "x", net.weight(40, 32, 1, 1)) for _ in range(2))
    joined = net("Concat", left, right, axis=1)
    rows = net("Transpose", net("Reshape", joined, net.constant([1, 80, 30])), perm=[0, 2, 1])
    found = stored(net, net("MatMul", rows, net.weight(80, 33)))
    assert found.count("BCONV") == 2
    assert {"concat", "view.transpose"} <= set(found)


def test_around_depthwise_convolutions() -> None:
    net = Net(x=(1, 24, 12, 12))
    wide = net("Relu", net("Conv", "x", net.weight(96, 24, 1, 1)))
    deep = net("Clip", net("Conv", wide, net.weight(96, 1, 3, 3), group=96, pads=[1, 1, 1, 1]), net.number(0.0), net.number(6.0))
    assert stored(net, net("Conv", deep, net.weight(24, 96, 1, 1))) == ["BCONV", "DWCONV"]


@pytest.mark.parametrize("reader", ["Softmax", "Abs", "output", "ReduceMean"])
def test_what_somebody_else_reads_stays(reader: str) -> None:
    net = Net(x=(5, 64))
    y = net("MatMul", "x", net.weight(64, 96))
    other = [y] if reader == "output" else [net(reader, y)]
    assert stored(net, net("MatMul", y, net.weight(96, 40)), *other) == []


def test_inputs_and_volumes_stay() -> None:
    net = Net(x=(1, 20, 4, 5, 5))
    y = net("Conv", "x", net.weight(32, 20, 1, 1, 1))
    assert stored(net, net("Conv", y, net.weight(32, 1, 3, 3, 3), group=32, pads=[1] * 6)) == []


def test_between_depthwise_convolutions_alone_nothing_is() -> None:
    net = Net(x=(1, 96, 12, 12))
    y = "x"
    for _ in range(3):
        y = net("Relu", net("Conv", y, net.weight(96, 1, 3, 3), group=96, pads=[1, 1, 1, 1]))
    assert stored(net, y) == []


def test_nothing_is_stored_so_in_f32() -> None:
    net = Net(x=(5, 64))
    y = net("MatMul", net("MatMul", "x", net.weight(64, 96)), net.weight(96, 40))
    assert all(t.dtype != BF16 for n in lowered(net, y, bf16=False).nodes for t in n.outputs)
