"""Rows that data pick, and whose results go to their places in a tensor of known shape: no stage ends there. Loops over experts, in the
spellings of exporters, with tokens sent to any experts, all to one, or none to some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_graphs import bind, run_model
from net_tools import Net
from onnx import numpy_helper

from aspen_mp.planner import api, stages
from aspen_mp.planner.frontends.binding import enclosed

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 11, 12, 20, 4, 2
SHAPE = (TOKENS, WIDTH)


def i64(net: Net, *values: int) -> str:
    return net.constant(np.array(values, np.int64))


def zeros(net: Net, like: str) -> str:
    return net("ConstantOfShape", net("Shape", like), value=numpy_helper.from_array(np.zeros(1, net.dtype)))


def gated(net: Net, rows: str, gemm: bool) -> str:
    def product(x: str, depth: int, width: int) -> str:
        weight = net.weight(*((width, depth) if gemm else (depth, width)), scale=0.3)
        return net("Gemm", x, weight, net.weight(width), transB=1) if gemm else net("MatMul", x, weight)

    gate, up = product(rows, WIDTH, INNER), product(rows, WIDTH, INNER)
    return product(net("Mul", net("Mul", gate, net("Sigmoid", gate)), up), INNER, WIDTH)


def zeros_and_add(net: Net, total: str, rows: str, update: str) -> str:
    """PyTorch's exporter of old, of index_add before opset 16."""
    places = net("Expand", net("Unsqueeze", rows, i64(net, 1)), net("Shape", update))
    return net("Add", total, net("ScatterElements", zeros(net, total), places, update, axis=0))


def scatter_add(net: Net, total: str, rows: str, update: str) -> str:
    places = net("Expand", net("Unsqueeze", rows, i64(net, 1)), net("Shape", update))
    return net("ScatterElements", total, places, update, axis=0, reduction="add")


def scatter_rows(net: Net, total: str, rows: str, update: str) -> str:
    """PyTorch's exporter of today."""
    return net("ScatterND", total, net("Unsqueeze", rows, i64(net, 1)), update, reduction="add")


def read_and_write(net: Net, total: str, rows: str, update: str) -> str:
    """As index_put of what was there and the update."""
    return net("ScatterND", total, net("Unsqueeze", rows, i64(net, 1)), net("Add", net("Gather", total, rows), update))


def experts(net: Net, x: str, into: Callable[[Net, str, str, str], str], *, gemm: bool = False, compress: bool = False) -> str:
    """Expert after expert, each for the tokens that the router sends to it."""
    scores = net("Softmax", net("MatMul", x, net.weight(WIDTH, EXPERTS, scale=3.0)), axis=-1)
    best, which = net("TopK", scores, i64(net, CHOSEN)), f"which{len(net.nodes)}"
    net.nodes[-1].output.append(which)
    mask = net("OneHot", which, i64(net, EXPERTS), i64(net, 0, 1))  # [tokens, chosen, experts]
    total = zeros(net, x)
    for k in range(EXPERTS):
        mine = net("Cast", net("Gather", mask, net.constant(k), axis=2), to=onnx.TensorProto.BOOL)
        if compress:
            everything = net("Range", net.constant(0), net.constant(TOKENS * CHOSEN), net.constant(1))
            at = net("Compress", everything, net("Reshape", mine, i64(net, -1)))
            rows = net("Div", at, net.constant(CHOSEN))
            share = net("Gather", net("Reshape", best, i64(net, -1, 1)), at)
        else:
            at = net("Transpose", net("NonZero", mine), perm=[1, 0])
            rows = net("Squeeze", net("Slice", at, i64(net, 0), i64(net, 1), i64(net, 1)), i64(net, 1))
            share = net("Unsqueeze", net("GatherND", best, at), i64(net, 1))
        update = net("Mul", gated(net, net("Gather", x, rows), gemm), share)
        total = into(net, total, rows, update)
    return total


SPELLINGS: dict[str, tuple[Callable[..., str], dict[str, bool]]] = {
    "zeros-and-add": (zeros_and_add, {}),
    "gemm": (zeros_and_add, {"gemm": True}),
    "compress": (zeros_and_add, {"compress": True}),
    "scatter-add": (scatter_add, {}),
    "scatter-rows": (scatter_rows, {"gemm": True}),
    "read-and-write": (read_and_write, {}),
}


def compare(proto: onnx.ModelProto, feeds: dict[str, Any], atol: float = 1e-5) -> dict[str, int]:
    """How often each kernel runs."""
    counts: dict[str, int] = {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    want = onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
    for got, expected in zip(run_model(api.load(proto), feeds, counts=counts), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=atol)
    return counts


def first(proto: onnx.ModelProto, feeds: dict[str, Any]) -> stages.StageGraph:
    return stages.derive(api.load(proto), [bind(feeds)])


@pytest.mark.parametrize("name", SPELLINGS)
def test_experts(name: str) -> None:
    into, how = SPELLINGS[name]
    net = Net(opset=18, x=SHAPE)
    x = "x"
    for _ in range(2):
        x = net("Add", x, experts(net, net("LayerNormalization", x, net.weight(WIDTH, positive=True)), into, **how))
    proto = net.model(x)
    rng = np.random.default_rng(3)
    several, same = rng.standard_normal(SHAPE), np.repeat(rng.standard_normal((1, WIDTH)), TOKENS, 0)  # `same`: to two experts alone
    for x in (several, same):
        assert compare(proto, {"x": x.astype(np.float32)})["OPAQUE"] == 2 * EXPERTS
    stage = first(proto, {"x": several.astype(np.float32)})
    assert stage.kind == "static"
    assert not stage.more


def test_experts_of_half_precision() -> None:
    net = Net(opset=18, dtype=np.float16, x=SHAPE)
    proto = net.model(experts(net, "x", zeros_and_add))
    feeds = {"x": np.random.default_rng(3).standard_normal(SHAPE).astype(np.float16)}
    compare(proto, feeds, atol=5e-3)
    assert not first(proto, feeds).more


def picked(net: Net) -> tuple[str, str]:
    """Places and rows of what is above 0."""
    at = net("Transpose", net("NonZero", net("Greater", "x", net.number(0.0))), perm=[1, 0])
    return at, net("GatherND", "x", at)


FEEDS = {"x": np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)}


def test_values_whose_shape_data_decide_end_a_stage_where_others_read_them() -> None:
    net = Net(opset=18, x=SHAPE)
    at, values = picked(net)
    there = net("ScatterND", "x", at, net("Mul", values, values))
    proto = net.model(there, values)  # the caller reads them
    compare(proto, FEEDS)
    assert first(proto, FEEDS).outputs[-1].shape is None
    net = Net(opset=18, x=SHAPE)
    at, values = picked(net)
    there = net("ScatterND", "x", at, net("Mul", net("LpNormalization", values), values))  # no operator of numpy's
    compare(net.model(there), FEEDS)
    assert first(net.model(there), FEEDS).more


def test_results_of_one_group_that_the_other_reads() -> None:
    """Directly, and through what is planned."""
    net = Net(opset=18, x=SHAPE)
    at, values = picked(net)
    squares = net("ScatterND", "x", at, net("Mul", values, values))
    direct = net("ScatterND", squares, at, net("Add", net("GatherND", squares, at), values))
    planned = net("MatMul", net("Transpose", squares, perm=[1, 0]), direct)
    both = net("MatMul", direct, planned)
    again = net("ScatterND", both, at, net("GatherND", both, at), reduction="max")
    proto = net.model(squares, direct, again)
    compare(proto, FEEDS)


def test_large_products_have_a_plan_for_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(opset=18, x=SHAPE)
    proto = net.model(experts(net, "x", zeros_and_add))
    assert not first(proto, FEEDS).more
    monkeypatch.setattr(enclosed, "_MOST_WORK", 1)
    compare(proto, FEEDS)
    assert first(proto, FEEDS).more
