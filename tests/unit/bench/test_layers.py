"""Layers of networks, counted by the planner: beside what their graphs hold."""

from __future__ import annotations

import pytest

from aspen_mp.bench import models
from aspen_mp.bench.figures import layers
from aspen_mp.bench.peers.cases import parse

OPTIMISABLE = {"Relu", "Clip", "Add", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool"}


@pytest.mark.parametrize("case", ["resnet18@image=32", "mobilenet_v2@image=32,batch=3", "squeezenet1_1@image=64", "poolformer@image=9"])
def test_layers_are_those_of_the_graph(case: str) -> None:
    network = parse(case)
    ops = models.describe(network.network, batch=network.batch, **network.options).ops
    found = layers.measure(network, [0])
    assert found.case == network.label
    assert found.layers == sum(ops.values())
    assert found.optimisable == sum(count for op, count in ops.items() if op in OPTIMISABLE | {"Sub", "Mul"})
    assert 0 < found.share <= 1
    assert 0 <= found.stacked <= 1
    assert (found.stacks > 0) == (found.stacked > 0)
    if network.network == "mobilenet_v2":
        assert found.stacks > 0, "pointwise and depthwise convolutions run together"


def test_the_paper_has_21_networks() -> None:
    assert len(set(layers.NETWORKS)) == 21
    assert set(layers.NETWORKS) <= set(models.names())
