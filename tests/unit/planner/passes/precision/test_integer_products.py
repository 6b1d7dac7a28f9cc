"""Products of bytes: what of a quantised network becomes one QGEMM, and what must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs_by_hand import GraphBuilder
from kernel_graphs import run_model
from net_tools import Net, lowered
from onnx import TensorProto
from plan_requests import plan_request
from small_graphs import products_of_bytes

from aspen_mp.planner import api
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.ops.products import packed_bytes
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import ModelInvalidError

BIAS, RESIDUAL, FACTOR, ZERO = 2, 3, 4, 5
DEPTH, COLUMNS = 21, 40
U8, I8 = np.uint8, np.int8


def quantised(net: Net, x: str, kind: Any = U8) -> tuple[str, str]:
    """Bytes of `x` and their zero point."""
    zero = net.constant(np.array(117 if kind == U8 else -3, kind))
    return net("QuantizeLinear", x, net.number(0.03), zero), zero


def sums(net: Net, x: str, kind: Any = U8, weights: Any = I8, points: Any = None) -> str:
    """x, quantised, times a constant matrix, in int32. `points`: zero points of the weights."""
    info = np.iinfo(weights)
    w = net.constant(net.rng.integers(info.min, info.max + 1, (DEPTH, COLUMNS)).astype(weights))
    given, zero = quantised(net, x, kind)
    return net("MatMulInteger", given, w, zero, *([] if points is None else [net.constant(points)]))


def scaled(net: Net, total: str, columns: int = COLUMNS) -> str:
    return net("Mul", net("Cast", total, to=TensorProto.FLOAT), net.weight(columns, scale=1e-3))


def kernels(net: Net, *outputs: str, integers: tuple[str, ...] = (), first: str = "QGEMM") -> list[Node]:
    """The kernels that remain from the first product on, after comparing results with those of a graph without passes: no bit differs.
    `integers`: which outputs are int32."""
    model: onnx.ModelProto = net.model(*outputs)
    for value in model.graph.output:
        if value.name in integers:
            value.type.tensor_type.elem_type = TensorProto.INT32
    feeds = {n: net.rng.standard_normal(s).astype(np.float32) for n, s in net.inputs.items()}
    opened = api.load(model)
    plain, fused = run_model(opened, feeds, plan_request(fuse=False)), run_model(opened, feeds)
    for want, got in zip(plain, fused, strict=True):
        np.testing.assert_array_equal(got, want)
    nodes = [n for n in lowered(model, feeds).nodes if not n.op.startswith("view.")]
    return nodes[next(k for k, n in enumerate(nodes) if n.op == first) :]


def present(node: Node) -> set[int]:
    return {i for i, t in enumerate(node.inputs) if t is not None and i > 1}


@pytest.mark.parametrize("kind", [U8, I8])
@pytest.mark.parametrize("weights", [U8, I8])
@pytest.mark.parametrize("points", ["none", "one", "columns"])
def test_a_layer_is_one_kernel(kind: Any, weights: Any, points: str) -> None:
    net = Net(x=(2, 5, DEPTH), r=(2, 5, COLUMNS))
    y = {"none": None, "one": weights(7), "columns": net.rng.integers(0, 9, COLUMNS).astype(weights)}[points]
    total = scaled(net, sums(net, "x", kind, weights, y))
    (node,) = kernels(net, net("Relu", net("Add", net("Add", total, net.weight(COLUMNS)), "r")))
    assert node.op == "QGEMM"
    assert present(node) == {BIAS, RESIDUAL, FACTOR, ZERO}
    assert node.attrs["act"][0] == "RELU"
    assert not node.attrs.get("residual_last", False)
    assert node.attrs["zeros"] == (points != "none" or weights == U8)


def test_dynamic_quantisation() -> None:
    """As tools write it: scale and zero point of the data are computed, and multiplied with those of the weights."""
    net = Net(x=(3, DEPTH))
    x = net("DynamicQuantizeLinear", "x")
    net.nodes[-1].output.extend(["x_scale", "x_zero"])
    w = net.constant(net.rng.integers(-128, 128, (DEPTH, COLUMNS)).astype(I8))
    total = net("MatMulInteger", x, w, "x_zero", net.constant(np.zeros(COLUMNS, I8)))
    factor = net("Mul", "x_scale", net.weight(COLUMNS, positive=True, scale=0.01))
    y = net("Mul", net("Cast", total, to=TensorProto.FLOAT), factor)
    *_, node = kernels(net, net("Add", y, net.weight(COLUMNS)))
    assert node.op == "QGEMM"
    assert present(node) == {BIAS, FACTOR, ZERO}
    assert not node.attrs["zeros"]


def test_a_gate_and_a_late_residual() -> None:
    net = Net(x=(4, DEPTH), r=(4, COLUMNS))
    late = net("Add", net("Relu", scaled(net, sums(net, "x"))), "r")
    (node,) = kernels(net, late)
    assert present(node) == {RESIDUAL, FACTOR, ZERO}
    assert node.attrs["residual_last"]
    net = Net(x=(4, DEPTH), r=(4, COLUMNS))
    (node,) = kernels(net, net("Mul", net("Relu", net("Add", scaled(net, sums(net, "x")), net.weight(COLUMNS))), "r"))
    assert present(node) == {BIAS, RESIDUAL, FACTOR, ZERO}
    assert node.attrs["gated"]


def test_sums_with_another_reader_stay_integers() -> None:
    net = Net(x=(4, DEPTH))
    total = sums(net, "x")
    nodes = kernels(net, scaled(net, total), net("Cast", net("Neg", total), to=TensorProto.FLOAT))
    assert [n.op for n in nodes].count("CAST") == 2
    assert nodes[0].output.dtype == "int32"
    assert present(nodes[0]) == {ZERO}


def test_sums_that_the_graph_gives_stay_integers() -> None:
    net = Net(x=(4, DEPTH))
    total = sums(net, "x")
    nodes = kernels(net, scaled(net, total), total, integers=(total,))
    assert nodes[0].output.dtype == "int32"
    assert present(nodes[0]) == {ZERO}


@pytest.mark.parametrize("who", ["another node", "the graph"])
def test_floats_with_another_reader_take_no_factor(who: str) -> None:
    net = Net(x=(4, DEPTH))
    wide = net("Cast", sums(net, "x"), to=TensorProto.FLOAT)
    other = net("Exp", net("Neg", net("Abs", wide))) if who == "another node" else wide
    nodes = kernels(net, net("Mul", wide, net.weight(COLUMNS)), other)
    assert nodes[0].output.dtype == "float32"
    assert present(nodes[0]) == {ZERO}


def test_a_factor_of_more_axes_is_none() -> None:
    net = Net(x=(4, DEPTH))
    nodes = kernels(net, net("Mul", net("Cast", sums(net, "x"), to=TensorProto.FLOAT), net.weight(3, 4, COLUMNS)))
    assert [n.op for n in nodes] == ["QGEMM", "BINARY"]
    assert present(nodes[0]) == {ZERO}


def test_a_factor_that_makes_more_rows_is_none() -> None:
    net = Net(x=(1, DEPTH))
    nodes = kernels(net, net("Mul", net("Cast", sums(net, "x"), to=TensorProto.FLOAT), net.weight(4, COLUMNS)))
    assert [n.op for n in nodes] == ["QGEMM", "BINARY"]
    assert present(nodes[0]) == {ZERO}


def test_a_factor_behind_a_bias_is_none() -> None:
    net = Net(x=(4, DEPTH))
    biased = net("Add", net("Cast", sums(net, "x"), to=TensorProto.FLOAT), net.weight(COLUMNS))
    nodes = kernels(net, net("Mul", biased, net.weight(COLUMNS, scale=0.01)))
    assert [n.op for n in nodes] == ["QGEMM", "BINARY"]
    assert present(nodes[0]) == {BIAS, ZERO}


def test_a_second_factor_stays() -> None:
    net = Net(x=(4, DEPTH), r=(4, COLUMNS))
    nodes = kernels(net, net("Mul", scaled(net, sums(net, "x")), net.weight(COLUMNS)))
    assert [n.op for n in nodes] == ["QGEMM", "BINARY"]
    assert present(nodes[0]) == {FACTOR, ZERO}


def test_squares() -> None:
    net = Net(x=(4, DEPTH))
    wide = net("Cast", sums(net, "x"), to=TensorProto.FLOAT)
    nodes = kernels(net, net("Mul", wide, wide))
    assert FACTOR not in present(nodes[0])


def test_products_of_two_products() -> None:
    """One is the other's factor."""
    net = Net(x=(4, DEPTH))
    one, other = (net("Cast", sums(net, "x"), to=TensorProto.FLOAT) for _ in range(2))
    nodes = kernels(net, net("Mul", one, other))
    assert sorted(present(n) == {FACTOR, ZERO} for n in nodes if n.op == "QGEMM") == [False, True]


def test_sums_of_integers_are_not_taken_for_bias_or_residual() -> None:
    net = Net(x=(4, DEPTH), r=(4, DEPTH))
    total = net("Add", sums(net, "x"), net.constant(net.rng.integers(-(2**30), 2**30, COLUMNS).astype(np.int32)))
    nodes = kernels(net, scaled(net, net("Add", total, sums(net, "r"))))
    assert all(present(n) <= {ZERO} and n.output.dtype == "int32" for n in nodes if n.op == "QGEMM")


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (1, COLUMNS - 1), (1, COLUMNS + 1), (1, 0), (3, 1), (5, COLUMNS)])
def test_zero_points_that_fit_nothing(rows: int, columns: int) -> None:
    """Such models are refused when they are planned, not when their weights are written."""
    net = Net(x=(4, DEPTH))
    given, _ = quantised(net, "x")
    w = net.constant(np.ones((DEPTH, COLUMNS), I8))
    zeros = net.constant(np.ones(rows, U8)), net.constant(np.zeros(columns, I8))
    with pytest.raises(ModelInvalidError, match="MatMulInteger"):
        lowered(net.model(scaled(net, net("MatMulInteger", given, w, *zeros))), {"x": np.ones((4, DEPTH), np.float32)})


@pytest.mark.parametrize("shape", [(2, 3, DEPTH), (3, DEPTH), (2, 2, 3, DEPTH)])
def test_a_zero_point_of_each_row(shape: tuple[int, ...]) -> None:
    net = Net(x=shape)
    w = net.constant(net.rng.integers(0, 256, (DEPTH, COLUMNS)).astype(U8))
    given, _ = quantised(net, "x")
    zero = net.constant(np.array([0, 128, 255], U8))
    (node,) = kernels(net, scaled(net, net("MatMulInteger", given, w, zero, net.constant(U8(3)))))
    assert present(node) == {FACTOR, ZERO}
    assert node.inputs[ZERO] is not None
    assert node.inputs[ZERO].shape == (*[1] * (len(shape) - 2), 3, 1)


def test_a_batch_of_one_matrix() -> None:
    """Weights with more axes than the data has."""
    net = Net(x=(3, DEPTH))
    given, zero = quantised(net, "x")
    w = net.constant(net.rng.integers(-128, 128, (1, 1, DEPTH, COLUMNS)).astype(I8))
    nodes = kernels(net, scaled(net, net("MatMulInteger", given, w, zero)))
    assert [n.op for n in nodes] == ["QGEMM"]


# ------------------------------------------------------------------------------------------------------------ bytes that they write


def written(net: Net, x: str, kind: Any = U8, scale: str | None = None) -> str:
    """What quantising `x` makes, as floats."""
    zero = net.constant(np.array(kind(120), kind))
    return net("Cast", net("QuantizeLinear", x, scale or net.number(0.07), zero), to=TensorProto.FLOAT)


@pytest.mark.parametrize("kind", [U8, I8])
def test_a_layer_writes_bytes(kind: Any) -> None:
    net = Net(x=(2, 5, DEPTH), r=(2, 5, COLUMNS))
    y = net("Relu", net("Add", net("Add", scaled(net, sums(net, "x")), net.weight(COLUMNS)), "r"))
    node, cast = kernels(net, written(net, y, kind))
    assert (node.op, cast.op) == ("QGEMM", "CAST")
    assert node.output.dtype == kind
    assert present(node) == {BIAS, RESIDUAL, FACTOR, ZERO}
    assert (node.attrs["scale"], node.attrs["zero"]) == (np.float32(0.07), 120)
    assert node.attrs["act"][0] == "RELU"


def test_a_gate_before_bytes() -> None:
    net = Net(x=(4, DEPTH), r=(4, COLUMNS))
    node, _ = kernels(net, written(net, net("Mul", net("Relu", scaled(net, sums(net, "x"))), "r")))
    assert node.output.dtype == U8
    assert node.attrs["gated"]


def test_bytes_without_a_zero_point_or_a_factor() -> None:
    net = Net(x=(4, DEPTH))
    q = net("QuantizeLinear", net("Cast", sums(net, "x"), to=TensorProto.FLOAT), net.number(3000.0))
    node, _ = kernels(net, net("Cast", q, to=TensorProto.FLOAT))
    assert (node.output.dtype, node.attrs["zero"], present(node)) == (U8, 0, {FACTOR, ZERO})


@pytest.mark.parametrize("scale", [0.0, -2.0, np.inf, np.nan, 1e-42])
def test_bytes_of_odd_scales(scale: float) -> None:
    net = Net(x=(4, DEPTH))
    nodes = kernels(net, written(net, scaled(net, sums(net, "x")), scale=net.number(scale)))
    assert nodes[0].op == "QGEMM"


@pytest.mark.parametrize("who", ["another node", "the graph", "both as bytes"])
def test_floats_with_another_reader_stay_floats(who: str) -> None:
    net = Net(x=(4, DEPTH))
    y = scaled(net, sums(net, "x"))
    other = {"another node": lambda: net("Neg", net("Abs", y)), "the graph": lambda: y, "both as bytes": lambda: written(net, y, I8)}[who]()
    nodes = kernels(net, written(net, y), other)
    assert nodes[0].output.dtype == np.float32
    assert "QUANTIZE" in [n.op for n in nodes]


def test_scales_that_are_computed_or_many_stay_outside() -> None:
    net = Net(x=(4, DEPTH), s=(1,))
    nodes = kernels(net, written(net, scaled(net, sums(net, "x")), scale=net("ReduceMax", net("Abs", "s"), keepdims=0)))
    assert nodes[0].output.dtype == np.float32
    net = Net(x=(4, DEPTH))
    zeros = net.constant(np.arange(COLUMNS).astype(U8))
    q = net("QuantizeLinear", scaled(net, sums(net, "x")), net.weight(COLUMNS, positive=True), zeros, axis=1)
    nodes = kernels(net, net("Cast", q, to=TensorProto.FLOAT))
    assert nodes[0].output.dtype == np.float32
    assert "QUANTIZE" in [n.op for n in nodes]


def test_a_zero_point_that_is_computed_stays_outside() -> None:
    net = Net(x=(4, DEPTH), s=(1,))
    zero = net("Cast", net("ReduceMax", net("Abs", "s"), keepdims=0), to=TensorProto.UINT8)
    q = net("QuantizeLinear", scaled(net, sums(net, "x")), net.number(0.05), zero)
    nodes = kernels(net, net("Cast", q, to=TensorProto.FLOAT))
    assert nodes[0].output.dtype == np.float32


@pytest.mark.parametrize("kind", [np.int16, np.uint16])
def test_words_are_made_outside(kind: Any) -> None:
    net = Net(opset=21, x=(4, DEPTH))
    nodes = kernels(net, written(net, scaled(net, sums(net, "x")), kind))
    assert nodes[0].output.dtype == np.float32
    assert "QUANTIZE" in [n.op for n in nodes]


def linear_product(net: Net, many: bool = False, kind: Any = U8) -> str:
    """QLinearMatMul. `many`: scales of columns."""
    w = net.constant(net.rng.integers(-128, 128, (DEPTH, COLUMNS)).astype(I8))
    given, zero = quantised(net, "x")
    scales = net.weight(COLUMNS, positive=True, scale=0.01) if many else net.number(0.01)
    points = net.constant(net.rng.integers(-9, 9, COLUMNS).astype(I8)) if many else net.constant(I8(3))
    return net("QLinearMatMul", given, net.number(0.03), zero, w, scales, points, net.number(0.1), net.constant(np.array(100, kind)))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", [U8, I8])
def test_sums_times_a_factor_are_bytes(many: bool, kind: Any) -> None:
    net = Net(opset=21, x=(2, 3, DEPTH))
    node, _ = kernels(net, net("Cast", linear_product(net, many, kind), to=TensorProto.FLOAT))
    assert (node.op, node.output.dtype) == ("QGEMM", kind)
    assert present(node) == {FACTOR, ZERO}
    assert (node.attrs["scale"], node.attrs["zero"]) == (1.0, 100)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("image", [(6, 7), (9,)], ids=str)
def test_convolutions_write_bytes(image: tuple[int, ...], many: bool, bias: bool) -> None:
    net = Net(opset=21, x=(2, DEPTH, *image))
    w = net.constant(net.rng.integers(-128, 128, (COLUMNS, DEPTH, *[3] * len(image))).astype(I8))
    given, zero = quantised(net, "x")
    scales = net.weight(COLUMNS, positive=True, scale=0.01) if many else net.number(0.01)
    points = net.constant(net.rng.integers(-9, 9, COLUMNS).astype(I8)) if many else net.constant(I8(3))
    inputs = [given, net.number(0.03), zero, w, scales, points, net.number(0.3), net.constant(U8(100))]
    more = [net.constant(net.rng.integers(-9000, 9000, COLUMNS).astype(np.int32))] if bias else []
    y = net("QLinearConv", *inputs, *more, pads=[1] * (2 * len(image)), strides=[2] * len(image))
    nodes = kernels(net, net("Cast", y, to=TensorProto.FLOAT), first="QCONV")
    if len(image) == 2:
        assert [n.op for n in nodes] == ["QCONV", "CAST"]
        assert present(nodes[0]) == {FACTOR, ZERO}
        assert nodes[0].output.dtype == U8


# ------------------------------------------------------------------------------------------------------------------ weights


def weight(dtype: Any, key: str | None = "w") -> Tensor:
    data = np.random.default_rng(1).integers(0, 100, (DEPTH, COLUMNS)).astype(dtype)
    return Tensor("w", data.shape, data.dtype, data=data, weight_key=key)


def points(values: Any, dtype: Any) -> Tensor:
    data = np.asarray(values).astype(dtype)
    return Tensor("y", data.shape, data.dtype, data=data)


@pytest.mark.parametrize("dtype", [U8, I8])
def test_weights_are_packed_once(dtype: Any) -> None:
    """For the same zero points, in whatever way these are given."""
    b, w = Builder(), weight(dtype)
    columns = points(np.arange(COLUMNS), dtype)
    one = b.packed_bytes(w, points(5, dtype))
    assert one[0].shape == packed_bytes(DEPTH, COLUMNS)
    assert one[0].dtype == np.int8
    assert one[0].weight_key
    assert b.packed_bytes(w, points([5], dtype))[0] is one[0]
    assert b.packed_bytes(w, points([5] * COLUMNS, dtype))[0] is one[0]
    found = [
        one[0],
        b.packed_bytes(w, None)[0],
        b.packed_bytes(w, columns)[0],
        b.packed_bytes(w, points(np.arange(COLUMNS)[::-1], dtype))[0],
    ]
    assert len({id(t) for t in found}) == len({t.weight_key for t in found}) == 4
    assert b.packed_bytes(w, columns)[0] is found[2]
    assert b.packed_bytes(w, points(0, dtype))[0] is found[1]


def test_whether_weights_have_zero_points() -> None:
    b = Builder()
    for dtype, none in ((I8, 0), (U8, 128)):
        assert not b.packed_bytes(weight(dtype), points(none, dtype))[1]
        assert not b.packed_bytes(weight(dtype), points([none] * COLUMNS, dtype))[1]
        assert b.packed_bytes(weight(dtype), points([none] * (COLUMNS - 1) + [1], dtype))[1]
    assert not b.packed_bytes(weight(I8), None)[1]
    assert b.packed_bytes(weight(U8), None)[1]


def test_weights_without_a_name_are_packed_each_time() -> None:
    b, w = Builder(), weight(I8, None)
    assert b.packed_bytes(w, None)[0].weight_key is None
    assert b.packed_bytes(w, None)[0] is not b.packed_bytes(w, None)[0]


# ------------------------------------------------------------------------------------------------------------ cost and scratch


def product(rows: int, depth: int, columns: int, lead: int = 1) -> tuple[Node, Node]:
    """Of bytes, and of floats."""
    b = GraphBuilder()
    x = b.input(lead, rows, depth)
    of_bytes, of_floats = b.by_bytes(b.whole(x, U8), columns).producer, b.linear(x, columns).producer
    assert of_bytes is not None
    assert of_floats is not None
    return of_bytes, of_floats


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 64, 64), (7, 768, 768), (128, 4096, 40), (128, 21, 3000)])
def test_bytes_take_less_time(rows: int, depth: int, columns: int) -> None:
    of_bytes, of_floats = (tile_cost.of(node) for node in product(rows, depth, columns))
    sides = [np.array([1, 1, 1]), np.array([1, (rows + 1) // 2, rows]), np.array([columns, columns, columns])]
    assert (of_bytes(sides) <= of_floats(sides)).all()
    assert (np.diff(of_bytes(sides)) >= 0).all()


def shapes(node: Node) -> list[tuple[int, ...] | None]:
    return [None if t is None else t.shape if i < 2 else node.output.shape for i, t in enumerate(node.inputs)]


def test_plans_are_whole() -> None:
    validate(build_plan(products_of_bytes(GraphBuilder()), workers=2, options=PlanOptions()).segment())
