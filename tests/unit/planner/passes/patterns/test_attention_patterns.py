"""How exporters write attention: each spelling becomes one ATTENTION between its projections, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
import pytest
from net_tools import Net, check, lowered, ops

from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.ir.graph import Node, Tensor

B, H, S, D = 2, 4, 9, 8
LOWEST = float(np.finfo(np.float32).min)
TRIL = np.tril(np.ones((S, S), np.bool_))[None, None]


def heads(net: Net, source: str, *, keys: bool = False, tokens: int = S, count: int = H) -> str:
    """Projection with bias, heads split off: [B, H, S, D] or, for keys, [B, H, D, S]."""
    y = net("Add", net("MatMul", source, net.weight(H * D, count * D, scale=0.2)), net.weight(count * D))
    return net("Transpose", net("Reshape", y, net.constant([B, tokens, count, D])), perm=[0, 2, 3, 1] if keys else [0, 2, 1, 3])


def merged(net: Net, context: str, tokens: int = S) -> str:
    return net("Reshape", net("Transpose", context, perm=[0, 2, 1, 3]), net.constant([B, tokens, H * D]))


def only(nodes: Sequence[Node], op: str = "ATTENTION") -> Node:
    found = [n for n in nodes if n.op == op]
    assert len(found) == 1
    return found[0]


def self_attention(net: Net, spell: Callable[[Net, str, str, str], str], opset: int = 17) -> tuple[Node, list[Node]]:
    """Checks projections + spell(net, q, k^T, v) + output projection; returns the node and all kernels."""
    q, k, v = heads(net, "x"), heads(net, "x", keys=True), heads(net, "x")
    y = net("MatMul", merged(net, spell(net, q, k, v)), net.weight(H * D, H * D, scale=0.2))
    nodes = check(net, net("Add", y, "x"))
    return only(nodes), nodes


def masked(mask: Callable[[Net, str], str], *, scale: str = "Div") -> Callable[[Net, str, str, str], str]:
    def spell(net: Net, q: str, k: str, v: str) -> str:
        scores = net(scale, net("MatMul", q, k), net.number(sqrt(D) if scale == "Div" else 1 / sqrt(D)))
        return net("MatMul", net("Softmax", mask(net, scores), axis=-1), v)

    return spell


def test_what_few_rows_take() -> None:
    """A step of decoding reads values where they are: a row to many keys takes no more than what follows from packing keys alone."""
    times = []
    for rows in (1, 23, 24):
        q, k = (Tensor(n, (1, 2, m, 64), np.dtype(np.float32)) for n, m in (("q", rows), ("k", 512)))
        out = Tensor("y", q.shape, q.dtype)
        node = Node("ATTENTION", "y", [q, k, k], [out], {"causal": False})
        times.append(float(tile_cost.of(node)([np.array([2]), np.array([rows]), np.array([64])])[0]))
    assert times[0] < times[1] / 4
    assert times[1] < times[2]


@pytest.mark.parametrize("scale", ["Div", "Mul"])
@pytest.mark.parametrize("shape", [(B, 1, 1, S), (B, 1, S, S), (1, 1, S, S), (1, 1, 1, S), (1, H, S, S), (B, H, S, S), (S,)])
def test_torchscript_added_mask(shape: tuple[int, ...], scale: str) -> None:
    node, nodes = self_attention(Net(x=(B, S, H * D), mask=shape), masked(lambda net, s: net("Add", s, "mask"), scale=scale))
    assert sorted(ops(nodes)) == ["ATTENTION", "GEMM", "GEMM"]
    assert node.attrs["scale"] == pytest.approx(1 / sqrt(D))
    assert not node.attrs["causal"]
    assert len(node.inputs) == 4


def test_mask_on_the_left() -> None:
    node, _ = self_attention(Net(x=(B, S, H * D), mask=(B, 1, 1, S)), masked(lambda net, s: net("Add", "mask", s)))
    assert len(node.inputs) == 4


def test_no_mask() -> None:
    node, nodes = self_attention(Net(x=(B, S, H * D)), masked(lambda net, s: s))
    assert len(node.inputs) == 3
    assert sorted(ops(nodes)) == ["ATTENTION", "GEMM", "GEMM"]


def test_dynamo_scaled_dot_product() -> None:
    """Both factors scaled by the root of the scale, NaN rows made zero."""

    def spell(net: Net, q: str, k: str, v: str) -> str:
        root = net("Sqrt", net.number(1 / sqrt(D)))
        scores = net("MatMul", net("Mul", q, root), net("Mul", k, root))
        p = net("Softmax", net("Add", scores, "mask"), axis=-1)
        return net("MatMul", net("Where", net("IsNaN", p), net.number(0.0), p), v)

    node, nodes = self_attention(Net(x=(B, S, H * D), mask=(B, 1, S, S)), spell)
    assert node.attrs["guard"] == "nan"
    assert node.attrs["scale"] == pytest.approx(1 / sqrt(D))
    assert sorted(ops(nodes)) == ["ATTENTION", "GEMM", "GEMM"]


def test_heads_in_the_batch() -> None:
    """Three-dimensional products (BART, OPT): heads and batch are one axis but around the mask."""

    def spell(net: Net, q: str, k: str, v: str) -> str:
        q, v = (net("Reshape", t, net.constant([B * H, S, D])) for t in (q, v))
        k = net("Reshape", k, net.constant([B * H, D, S]))
        scores = net("Reshape", net("MatMul", q, k), net.constant([B, H, S, S]))
        scores = net("Reshape", net("Add", scores, "mask"), net.constant([B * H, S, S]))
        return net("Reshape", net("MatMul", net("Softmax", scores, axis=-1), v), net.constant([B, H, S, D]))

    node, nodes = self_attention(Net(x=(B, S, H * D), mask=(B, 1, S, S)), spell)
    assert node.output.shape == (B, H, S, D)
    assert sorted(ops(nodes)) == ["ATTENTION", "GEMM", "GEMM"]


def test_tensorflow_transposes_and_multiplied_mask() -> None:
    def spell(net: Net, q: str, k: str, v: str) -> str:
        scores = net("Mul", net("MatMul", q, k), net.number(1 / sqrt(D)))
        adder = net("Mul", net("Sub", net.number(1.0), "mask"), net.number(-10000.0))
        return net("MatMul", net("Softmax", net("Add", scores, adder), axis=-1), v)

    node, _ = self_attention(Net(x=(B, S, H * D), mask=(B, 1, 1, S)), spell)
    assert node.inputs[3] is not None


def test_tensorflow_einsum() -> None:
    """Keys times queries, heads second to last."""
    net = Net(x=(B, S, H * D), mask=(B, 1, 1, S))
    q, k, v = (net("Reshape", net("MatMul", "x", net.weight(H * D, H * D, scale=0.2)), net.constant([B, S, H, D])) for _ in range(3))
    scores = net("Einsum", k, net("Mul", q, net.number(1 / sqrt(D))), equation="aecd,abcd->acbe")
    p = net("Softmax", net("Add", scores, "mask"), axis=-1)
    y = net("Reshape", net("Einsum", p, v, equation="acbe,aecd->abcd"), net.constant([B, S, H * D]))
    nodes = check(net, net("MatMul", y, net.weight(H * D, 24)))
    assert sorted(ops(nodes)) == ["ATTENTION", "GEMM", "GEMM"]
    assert only(nodes).attrs["scale"] == pytest.approx(1 / sqrt(D))


@pytest.mark.parametrize("fill", [LOWEST, -np.inf, -1e4])
def test_causal_where(fill: float) -> None:
    """GPT-2: a slice of a constant lower triangle."""

    def mask(net: Net, scores: str) -> str:
        table = net.constant(np.tril(np.ones((32, 32), np.bool_))[None, None])
        part = net("Slice", table, net.constant([0, 0]), net.constant([S, S]), net.constant([2, 3]))
        return net("Where", part, scores, net.number(fill))

    node, _ = self_attention(Net(x=(B, S, H * D)), masked(mask))
    assert node.attrs["causal"]
    assert node.attrs["offset"] == 0
    assert node.attrs["fill"] == pytest.approx(fill)
    assert len(node.inputs) == 3


def test_causal_masked_fill() -> None:
    node, _ = self_attention(Net(x=(B, S, H * D)), masked(lambda net, s: net("Where", net.constant(~TRIL), net.number(-np.inf), s)))
    assert node.attrs["causal"]
    assert len(node.inputs) == 3


@pytest.mark.parametrize("fill", [LOWEST, -np.inf])
def test_causal_addend(fill: float) -> None:
    node, _ = self_attention(
        Net(x=(B, S, H * D)), masked(lambda net, s: net("Add", s, net.constant(np.where(TRIL, 0, fill).astype(np.float32))))
    )
    assert node.attrs["causal"]
    assert len(node.inputs) == 3


def test_small_addend_is_no_mask() -> None:
    node, _ = self_attention(
        Net(x=(B, S, H * D)), masked(lambda net, s: net("Add", s, net.constant(np.where(TRIL, 0, -3).astype(np.float32))))
    )
    assert not node.attrs["causal"]
    assert len(node.inputs) == 4


def test_early_gpt2() -> None:
    """w * b - 10000 * (1 - b)"""

    def mask(net: Net, scores: str) -> str:
        keep = net.constant(TRIL.astype(np.float32))
        return net("Sub", net("Mul", scores, keep), net("Mul", net.number(1e4), net("Sub", net.number(1.0), keep)))

    node, _ = self_attention(Net(x=(B, S, H * D)), masked(mask))
    assert node.attrs["causal"]
    assert node.attrs["fill"] == -1e4


@pytest.mark.parametrize("first", [False, True])
def test_causal_and_padding(first: bool) -> None:
    def mask(net: Net, scores: str) -> str:
        table = net.constant(TRIL)
        if first:
            return net("Where", table, net("Add", scores, "mask"), net.number(LOWEST))
        return net("Add", net("Where", table, scores, net.number(LOWEST)), "mask")

    node, _ = self_attention(Net(x=(B, S, H * D), mask=(B, 1, 1, S)), masked(mask))
    assert node.attrs["causal"]
    assert node.attrs["mask_first"] == first
    assert len(node.inputs) == 4


@pytest.mark.parametrize("fill", [LOWEST, -np.inf, -10.0])
@pytest.mark.parametrize("dropped", [False, True])
def test_boolean_mask(fill: float, dropped: bool) -> None:
    def mask(net: Net, scores: str) -> str:
        if dropped:
            return net("Where", net("Not", "mask"), net.number(fill), scores)
        return net("Where", "mask", scores, net.number(fill))

    net = Net(x=(B, S, H * D), mask=(B, 1, 1, S), bools=["mask"])
    q, k, v = heads(net, "x"), heads(net, "x", keys=True), heads(net, "x")
    nodes = check(net, merged(net, masked(mask)(net, q, k, v)))
    assert only(nodes).attrs["fill"] == pytest.approx(fill)


def test_boolean_and_bias() -> None:
    """A relative bias is added, padding becomes -inf."""

    def mask(net: Net, scores: str) -> str:
        return net("Where", "mask", net("Add", scores, "bias"), net.number(-np.inf))

    node, nodes = self_attention(Net(x=(B, S, H * D), bias=(1, H, S, S), mask=(B, 1, 1, S), bools=["mask"]), masked(mask))
    assert "TERNARY" in ops(nodes)
    assert len(node.inputs) == 4


def test_two_addends() -> None:
    node, nodes = self_attention(
        Net(x=(B, S, H * D), bias=(1, H, S, S), mask=(B, 1, 1, S)),
        masked(lambda net, s: net("Add", net("Add", s, "bias"), "mask")),
    )
    assert ops(nodes).count("BINARY") == 1
    assert len(node.inputs) == 4


def test_softcap() -> None:
    def spell(net: Net, q: str, k: str, v: str) -> str:
        scores = net("Mul", net("Tanh", net("Div", net("MatMul", q, k), net.number(20.0))), net.number(20.0))
        return net("MatMul", net("Softmax", net("Add", scores, "mask"), axis=-1), v)

    node, _ = self_attention(Net(x=(B, S, H * D), mask=(B, 1, 1, S)), spell)
    assert node.attrs["softcap"] == 20.0
    assert node.attrs["scale"] == pytest.approx(1.0)


def test_repeated_key_heads() -> None:
    """Grouped queries: Unsqueeze, Expand, Reshape before the products are read through."""
    groups = H // 2
    net = Net(x=(B, S, H * D), mask=(B, 1, S, S))
    q, k, v = heads(net, "x"), heads(net, "x", count=2), heads(net, "x", count=2)

    def repeated(t: str) -> str:
        wide = net("Expand", net("Unsqueeze", t, net.constant([2])), net.constant([B, 2, groups, S, D]))
        return net("Reshape", wide, net.constant([B, H, S, D]))

    k, v = net("Transpose", repeated(k), perm=[0, 1, 3, 2]), repeated(v)
    nodes = check(net, merged(net, masked(lambda net, s: net("Add", s, "mask"))(net, q, k, v)))
    assert only(nodes).output.shape == (B, 2, groups, S, D)
    assert set(ops(nodes)) == {"ATTENTION", "GEMM"}


def test_cross_attention() -> None:
    """Keys and values of another sequence; only those two projections merge."""
    net = Net(x=(B, S, H * D), y=(B, 13, H * D))
    q = heads(net, "x")
    k, v = heads(net, "y", keys=True, tokens=13), heads(net, "y", tokens=13)
    nodes = check(net, merged(net, masked(lambda net, s: s)(net, q, k, v)))
    assert sorted(ops(nodes)) == ["ATTENTION", "GEMM", "GEMM"]
    assert sorted(n.output.shape[-1] for n in nodes if n.op == "GEMM") == [H * D, 2 * H * D]


@pytest.mark.parametrize("read", ["scores", "weights", "both"])
def test_read_elsewhere(read: str) -> None:
    """Scores or weights that are outputs, or read by others, are computed."""
    net = Net(x=(B, S, H * D))
    q, k, v = heads(net, "x"), heads(net, "x", keys=True), heads(net, "x")
    scores = net("Div", net("MatMul", q, k), net.number(sqrt(D)))
    weights = net("Softmax", scores, axis=-1)
    extra = {"scores": [scores], "weights": [net("Mul", weights, net.number(2.0))], "both": [scores, weights]}[read]
    assert "ATTENTION" not in ops(check(net, merged(net, net("MatMul", weights, v)), *extra))


def test_softmax_along_queries_is_another_thing() -> None:
    net = Net(x=(B, S, H * D))
    q, k, v = heads(net, "x"), heads(net, "x", keys=True), heads(net, "x")
    weights = net("Softmax", net("MatMul", q, k), axis=2)
    assert "ATTENTION" not in ops(check(net, merged(net, net("MatMul", weights, v))))


# ---------------------------------------------------------------------------------------------------------- merged projections


def test_projections_merge_without_copies() -> None:
    net = Net(x=(B, S, H * D))
    model_outputs = [net("Softmax", net("Add", net("MatMul", "x", net.weight(H * D, 64)), net.weight(64))) for _ in range(3)]
    nodes = check(net, net("Concat", *model_outputs, axis=0))
    product = only(nodes, "GEMM")
    weight, bias = product.inputs[1], product.inputs[2]
    assert weight is not None
    assert bias is not None
    assert weight.shape == (6, H * D, 32)
    assert weight.weight_key is not None
    assert bias.shape == (1, 192)
    parts = lowered_parts(net, model_outputs)
    np.testing.assert_array_equal(weight.value(), np.concatenate(parts))


def lowered_parts(net: Net, outputs: Sequence[str]) -> list[np.ndarray]:
    """Packed weights of the products before they merge."""
    from onnx import numpy_helper

    out = []
    for tensor in net.constants:
        value = numpy_helper.to_array(tensor)
        if value.ndim == 2:
            out.append(value.reshape(H * D, -1, 32).transpose(1, 0, 2))
    return out


def test_a_weight_read_twice_stays_single() -> None:
    net = Net(x=(B, S, 32), z=(3, 32))
    shared, other = net.weight(32, 32), net.weight(32, 32)
    first, second = net("MatMul", "x", shared), net("MatMul", "x", other)
    third = net("MatMul", "z", shared)
    nodes = check(net, net("Sigmoid", first), net("Tanh", second), net("Sigmoid", third))
    assert ops(nodes).count("GEMM") == 3


def test_narrow_projections_stay() -> None:
    net = Net(x=(B, S, 32))
    y = [net("Sigmoid", net("MatMul", "x", net.weight(32, n))) for n in (20, 12)]
    assert ops(check(net, net("Concat", *y, axis=2))).count("GEMM") == 2


def test_outputs_stay_where_they_are_written() -> None:
    net = Net(x=(B, S, 32))
    assert ops(check(net, net("MatMul", "x", net.weight(32, 32)), net("MatMul", "x", net.weight(32, 32)))) == ["GEMM", "GEMM"]


def test_same_plan_for_every_length() -> None:
    """Weights of the merged product have one key whatever the shapes."""
    keys = set()
    for tokens in (3, 40):
        net = Net(x=(1, tokens, 32))
        y = net("Add", net("Sigmoid", net("MatMul", "x", net.weight(32, 32))), net("Tanh", net("MatMul", "x", net.weight(32, 32))))
        model = net.model(y)
        graph = lowered(model, {"x": np.zeros((1, tokens, 32), np.float32)})
        keys.add(tuple(t.weight_key for n in graph.nodes for t in n.inputs if t is not None and t.is_const))
    assert len(keys) == 1
