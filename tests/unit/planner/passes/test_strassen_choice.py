"""Which products run by Strassen's algorithm, and what a graph looks like then."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from net_tools import Net, lowered

from aspen_mp.planner import api
from aspen_mp.planner.cost import algorithms
from aspen_mp.planner.ir.graph import Node
from aspen_mp.planner.job.options import Vectors
from aspen_mp.planner.job.request import Instructions, PlanRequest
from aspen_mp.planner.ops.products import left_factors

VECTORS: tuple[Vectors, ...] = ("", "short", "halved", "whole")


def kernels(net: Net, *outputs: str) -> list[Node]:
    feeds = {name: np.ones(shape, np.float32) for name, shape in net.inputs.items()}
    return lowered(net.model(*outputs), feeds).nodes


def test_readers_share_left_factors() -> None:
    """Of the same rows they are made once, also where one product is fused with what follows; of other rows anew."""
    net = Net(x=(2, 64, 512))
    y, z = net("MatMul", "x", net.weight(512, 640)), net("Relu", net("Add", net("MatMul", "x", net.weight(512, 512)), net.weight(512)))
    nodes = kernels(net, y, net("MatMul", z, net.weight(512, 576)))
    made = [n for n in nodes if n.op == "STRASSEN"]
    products = [n for n in nodes if n.op == "GEMM"]
    assert len(made) == 2
    assert len(products) == 3
    assert all(len(n.inputs) == 7 and n.inputs[6] in {m.output for m in made} for n in products)
    assert [m.output.shape for m in made] == [left_factors((2, 64, 512))] * 2
    for n in products:
        (mine,) = (m for m in made if m.output is n.inputs[6])
        assert mine.inputs[0] is n.inputs[0]


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "yes", "others"),
    [
        (128, 768, 768, True, True),
        (64, 768, 768, True, True),
        (63, 768, 768, True, False),
        (48, 512, 512, True, False),
        (47, 512, 512, False, False),
        (128, 511, 512, False, False),
        (128, 769, 768, False, False),
        (128, 512, 480, False, False),
        (128, 768, 767, True, False),
        (128, 766, 768, True, False),
        (1, 4096, 4096, False, False),
    ],
)
def test_where_it_is_worth_it(rows: int, terms: int, columns: int, yes: bool, others: bool) -> None:
    assert (not algorithms.strassen_refused(rows, terms, columns, "halved")) == yes
    for vectors in ("short", "whole"):
        assert (not algorithms.strassen_refused(rows, terms, columns, vectors)) == others
    assert algorithms.strassen_refused(rows, terms, columns, "")
    net = Net(x=(rows, terms))
    assert ("STRASSEN" in [n.op for n in kernels(net, net("MatMul", "x", net.weight(terms, columns)))]) == yes


def test_not_for_computed_weights_or_rows_that_are_broadcast() -> None:
    net = Net(x=(64, 512), w=(512, 512))
    assert [n.op for n in kernels(net, net("MatMul", "x", "w"))] == ["GEMM"]


def test_the_option() -> None:
    net = Net(x=(64, 512))
    model = net.model(net("MatMul", "x", net.weight(512, 512)))
    bindings = [{"x": api.Binding(np.dtype(np.float32), (64, 512), None)}]
    for winograd, strassen in product((True, False), VECTORS):
        plan = api.plan_stage(model, bindings, workers=2, options=api.Options(winograd=winograd, strassen=strassen)).plan
        assert plan is not None
        assert ("STRASSEN" in {row.kernel for row in plan.info}) == (winograd and strassen == "halved")


def test_plans_with_and_without_are_not_taken_for_each_other() -> None:
    """Packed weights are the same; plans are not."""
    one, other = (PlanRequest(instructions=Instructions(on)) for on in VECTORS[:2])
    assert one.cache_key != other.cache_key
    assert one.weights_key == other.weights_key
