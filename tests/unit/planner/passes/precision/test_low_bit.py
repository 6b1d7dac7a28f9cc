"""Weights of 4, 8 and 16 bits: which products take them as they are stored, what becomes part of these, and what plans keep of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from contrib_tools import array, both
from graphs_by_hand import GraphBuilder
from kernel_graphs import bind, run_model
from net_tools import Net, check, lowered, ops
from plan_requests import plan_request
from test_contrib_blocks import NAMES, weights

from aspen_mp.bench import models
from aspen_mp.planner import api, stages
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.ir.graph import Node, Stored, Tensor
from aspen_mp.planner.ops.packing import low_bit
from aspen_mp.planner.plan.validate import validate

I4, U4, I8, U8 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4), np.dtype(np.int8), np.dtype(np.uint8)
LEVELS = {I4: (-8, 8), U4: (0, 16), I8: (-128, 128), U8: (0, 256)}
BIAS, RESIDUAL = 2, 3


def weight(
    net: Net, k: int, n: int, kind: Any = I4, block: int | None = 32, points: bool = False, axis: int = 0, scales: Any = np.float32
) -> str:
    """[k, n] in blocks along axis 0, or [n, k] along axis 1; a scale for each column where there is no block."""
    low, high = LEVELS[np.dtype(kind)]
    rows = 1 if block is None else -(-k // block)
    values = net.rng.integers(low, high, (k, n)).astype(kind)
    scale = ((net.rng.random((rows, n)) + 0.1) / high).astype(scales)
    zero = net.rng.integers(low, high, (rows, n)).astype(kind)
    parts = [values, scale, *([zero] if points else [])]
    if block is None:
        parts[1:] = [x[0] for x in parts[1:]]
        along = {"axis": 1 - axis}
    else:
        along = {"axis": axis, "block_size": block}
    return net("DequantizeLinear", *[net.constant(x.T if axis == 1 and x.ndim == 2 else x) for x in parts], **along)


def made(net: Net, *outputs: str, tolerance: float = 1e-5) -> list[Node]:
    return check(net, *outputs, tolerance=tolerance, reference=True)


def present(node: Node) -> set[int]:
    return {i for i, t in enumerate(node.inputs) if t is not None and i > 1}


@pytest.mark.parametrize("kind", [I4, U4, I8, U8], ids=str)
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(("block", "axis"), [(32, 0), (None, 0), (8, 0), (16, 1), (None, 1)])
@pytest.mark.parametrize("shape", [(1, 80), (2, 3, 77), (77,)], ids=str)
def test_matmul(kind: Any, points: bool, block: int | None, axis: int, shape: tuple[int, ...]) -> None:
    net = Net(opset=21, x=shape)
    w = weight(net, shape[-1], 40, kind, block, points, axis)
    (node,) = made(net, net("MatMul", "x", w if axis == 0 else net("Transpose", w, perm=[1, 0])))
    assert node.op == "QNBITGEMM"
    assert node.attrs["bits"] == (4 if kind in (I4, U4) else 8)
    assert node.attrs["block"] == min(block or 1000, shape[-1])
    assert node.attrs["zeros"] == points


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int) -> None:
    net = Net(opset=21, x=(5, 64))
    (node,) = made(net, net("Gemm", "x", weight(net, 64, 40, axis=transposed), net.weight(40), transB=transposed, alpha=0.5, beta=2.0))
    assert node.op == "QNBITGEMM"
    assert node.attrs["alpha"] == 0.5
    assert present(node) == {BIAS}


def test_factors_of_columns_leave_weights_alone() -> None:
    net = Net(opset=21, x=(5, 64))
    y = net("Mul", net("Gemm", "x", weight(net, 64, 40), net.weight(40)), net.weight(40))
    statistics = [net.weight(40), net.weight(40), net.weight(40), net.weight(40, positive=True)]
    z = net("BatchNormalization", net("Gemm", "x", weight(net, 64, 40, kind=U8, block=None)), *statistics)
    nodes = made(net, y, z)
    assert ops(nodes) == ["QNBITGEMM", "QNBITGEMM"]
    assert [present(n) for n in nodes] == [{BIAS, 4, 5}, {4, 5}]


def test_one_scale_and_one_zero_point() -> None:
    net = Net(opset=21, x=(3, 64))
    values, scale = net.constant(net.rng.integers(0, 16, (64, 33)).astype(U4)), net.number(0.07)
    (node,) = made(net, net("MatMul", "x", net("DequantizeLinear", values, scale, net.constant(np.array(5, U4)))))
    assert (node.op, node.attrs["zeros"], node.attrs["zero"]) == ("QNBITGEMM", False, 5)
    net = Net(opset=21, x=(3, 64))
    values, scale = net.constant(net.rng.integers(-8, 8, (64, 33)).astype(I4)), net.weight(2, 33)
    zero = net.constant(np.full((2, 33), 3, I4))
    (node,) = made(net, net("MatMul", "x", net("DequantizeLinear", values, scale, zero, axis=0, block_size=32)))
    assert (node.op, node.attrs["zeros"], node.attrs["zero"]) == ("QNBITGEMM", False, 11)


def test_what_follows_is_part_of_it() -> None:
    """The halves of SwiGLU and the product behind them, with a residual; a bias; a scale."""
    net = Net(opset=21, x=(3, 64))
    gate = net("MatMul", "x", weight(net, 64, 96))
    up = net("MatMul", "x", weight(net, 64, 96, points=True))
    inner = net("Mul", net("Mul", gate, net("Sigmoid", gate)), up)
    y = net("Add", "x", net("MatMul", inner, weight(net, 96, 64, block=16)))
    z = net("Relu", net("Add", net("MatMul", y, weight(net, 64, 50)), net.weight(50)))
    nodes = made(net, net("Mul", net("MatMul", z, weight(net, 50, 20, block=None)), net.weight(20)))
    assert ops(nodes) == ["QNBITGEMM"] * 5
    assert nodes[1].attrs["act"][0] == "SWISH"
    assert nodes[1].attrs["gated"]
    assert [present(n) for n in nodes] == [set(), {RESIDUAL}, {RESIDUAL}, {BIAS}, {4, 5}]


def test_products_of_the_same_rows_are_one() -> None:
    net = Net(opset=21, x=(2, 5, 64))
    q, k, v = (net("MatMul", "x", weight(net, 64, n)) for n in (96, 32, 32))
    other = net("MatMul", "x", weight(net, 64, 32, block=16))
    scores = net("MatMul", net("MatMul", net("Softmax", k), net("Transpose", v, perm=[0, 2, 1])), net("Softmax", net.weight(5, 96)))
    nodes = made(net, net("Add", scores, net("Tanh", q)), net("Softmax", other))
    assert sorted(n.output.shape[-1] for n in nodes if n.op == "QNBITGEMM") == [
        32,
        64,
        96,
    ]  # one with a function of its own, one of other blocks


def test_refused() -> None:
    """Blocks that are no whole words, scales that are computed."""
    net = Net(opset=21, x=(3, 60), s=(2, 40))
    odd = net("MatMul", "x", weight(net, 60, 40, block=30))
    levels = net.constant(net.rng.integers(-8, 8, (60, 40)).astype(I4))
    nodes = made(net, odd, net("MatMul", "x", net("Transpose", weight(net, 60, 40, block=20, axis=1), perm=[1, 0])))
    assert ops(nodes) == ["GEMM", "GEMM"]
    graph = lowered(
        net.model(net("MatMul", "x", net("DequantizeLinear", levels, "s", axis=0, block_size=30))),
        {"x": np.zeros((3, 60), np.float32), "s": np.ones((2, 40), np.float32)},
    )
    assert "QNBITGEMM" not in ops(graph.nodes)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", ["", "packed"])
def test_products_of_onnxruntime(bits: int, zero: str) -> None:
    """MatMulNBits is the same; weights of 2 bits take bytes."""
    feeds, attrs = {"x": array(2, 3, 70)}, {"bits": bits, "block_size": 32, "K": 70, "N": 24}
    proto = both("MatMulNBits", NAMES, feeds, weights(bits, 70, 24, 32, zero), ["y"], alone=True, **attrs)
    opened = api.load(proto)
    stage = stages.derive(opened, [bind(feeds)])
    nodes = [n for n in api.lowered(stage.graph, opened, ["y"], plan_request()).nodes if not n.op.startswith("view.")]
    assert [n.op for n in nodes] == ["QNBITGEMM"]
    assert nodes[0].attrs["bits"] == (4 if bits == 4 else 8)
    assert nodes[0].attrs["zeros"] == (zero == "packed")


@pytest.mark.parametrize("rows", [1, 4, 33, 200])
def test_what_tiles_take(rows: int) -> None:
    """More than the same weights as floats that are at hand, less where they come from memory; scratch memory is that of a panel."""
    b = GraphBuilder()
    x = b.input(rows, 256)
    few, many = (out.producer for out in (b.by_bits(x, 320, bias=False), b.linear(x, 320)))
    assert few is not None
    assert many is not None
    of_few, of_many = (tile_cost.of(node)([np.array([1]), np.array([rows]), np.array([320])])[0] for node in (few, many))
    assert 0 < of_few < 3 * of_many
    assert op_cost.weight_bytes(few) < op_cost.weight_bytes(many) / 3
    assert op_cost.scratch_bytes(few) == 128 * 256


def tensor(value: Any, dtype: Any) -> Tensor:
    return Tensor("x", np.shape(value), np.dtype(dtype), data=np.asarray(value).astype(dtype))


def test_forms() -> None:
    values, scale = tensor(np.zeros((64, 40)), I4), tensor(np.ones((2, 40)), np.float32)
    assert low_bit.form_of(Stored(values, scale, None, 0, 32)) == low_bit.Form(4, 32, False, 8)
    assert low_bit.form_of(Stored(values, tensor(np.ones(40), np.float16), None, 1)) == low_bit.Form(4, 64, False, 8)
    assert low_bit.form_of(Stored(values, tensor(1.0, np.float32), tensor(-3, I4), 1)) == low_bit.Form(4, 64, False, 5)
    for bad in (
        Stored(values, scale, None, 1, 32),
        Stored(values, scale, None, 0, 31),
        Stored(values, scale, None, 0, 16),
        Stored(values, scale, None, 0, 0),
        Stored(values, scale, tensor(np.zeros((2, 40)), U4), 0, 32),
        Stored(values, scale, tensor(np.zeros(40), I4), 0, 32),
        Stored(values, tensor(np.ones((2, 40)), np.float64), None, 0, 32),
        Stored(tensor(np.zeros((64, 40)), np.int16), scale, None, 0, 32),
        Stored(tensor(np.zeros((2, 32, 40)), I4), scale, None, 0, 32),
        Stored(tensor(np.zeros((0, 40)), I4), tensor(np.ones((0, 40)), np.float32), None, 0, 32),
        Stored(values, Tensor("s", (2, 40), np.dtype(np.float32)), None, 0, 32),
    ):
        assert low_bit.form_of(bad) is None


def test_half_precision() -> None:
    """Scales become f32, and weights are not rounded to the model's type: nearer to what it means."""
    net = Net(opset=21, dtype=np.float16, x=(3, 64))
    nodes = made(net, net("MatMul", "x", weight(net, 64, 40, scales=np.float16)), tolerance=2e-3)
    assert "QNBITGEMM" in ops(nodes)


def test_table_that_is_looked_up_too() -> None:
    """A table of tokens whose transpose is the last product: rows of it are floats."""
    net = Net(opset=21, x=(3, 64))
    table = weight(net, 64, 100, axis=1)
    rows = net("Gather", table, net.constant(np.array([5, 99])), axis=0)
    nodes = made(net, net("MatMul", "x", net("Transpose", table, perm=[1, 0])), net("MatMul", rows, weight(net, 64, 8)))
    assert ops(nodes).count("QNBITGEMM") >= 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1, 80), (2, 3, 77), (77,)], ids=str)
def test_half_precision_stays_as_it_is(dtype: Any, shape: tuple[int, ...]) -> None:
    """As it is, transposed by a node and by Gemm."""
    net = Net(opset=21, dtype=dtype, x=shape)
    k = shape[-1]
    outputs = [net("MatMul", "x", net.weight(k, 40)), net("MatMul", "x", net("Transpose", net.weight(70, k), perm=[1, 0]))]
    if len(shape) == 2:
        outputs.append(net("Gemm", "x", net.weight(33, k), net.weight(33), transB=1))
    nodes = check(net, *outputs, tolerance=2e-3 if dtype == np.float16 else 2e-2)
    products = [n for n in nodes if n.op in ("GEMM", "QNBITGEMM")]
    assert {n.op for n in products} == {"QNBITGEMM"}
    for node in products:
        packed = node.inputs[1]
        assert packed is not None
        assert (node.attrs["bits"], node.attrs["zeros"], node.attrs["zero"]) == (16, False, int(dtype != np.float16))
        assert packed.shape == low_bit.packed_shape(k, node.output.shape[-1], 16, k, False)
        assert packed.shape[1] == 128 * -(-k // 2)


@pytest.mark.parametrize("rows", [1, 64])
def test_half_precision_is_stored_once(rows: int) -> None:
    """However many rows there are: Strassen's products read the weights that few rows read."""
    net = Net(opset=21, dtype=np.float16, x=(rows, 512))
    w = net.weight(512, 512)
    nodes = lowered(net.model(net("MatMul", "x", w)), {"x": np.ones((rows, 512), np.float16)}).nodes
    (node,) = (n for n in nodes if n.op in ("GEMM", "QNBITGEMM"))
    packed = node.inputs[1]
    assert packed is not None
    assert packed.weight_key == f"{w}|float32|16 bits"
    assert (len(node.inputs) > 6) == (rows == 64)


def sizes(model: Any, feeds: dict[str, Any]) -> tuple[int, dict[str, int]]:
    """Bytes of packed weights in a plan, and how many nodes of each kernel there are."""
    opened = api.load(model)
    stage = stages.derive(opened, [bind(feeds)])
    graph = api.lowered(stage.graph, opened, [v.name for v in stage.outputs], plan_request())
    plan = build_plan(graph, workers=2, options=PlanOptions())
    validate(plan.segment())
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.op] = counts.get(node.op, 0) + 1
    total = sum(t.nbytes for t in {t for n in graph.nodes for t in n.inputs if t is not None and t.is_const and n.op != "GATHER"})
    return total, counts


def test_decoder() -> None:
    """Results are onnxruntime's of the same model; weights take 5 bits each, and every constant product takes them."""
    options = {**models.miniature("smollm2_135m"), "hidden": 128, "inner": 256, "vocab": 512}
    small, large = (models.build("smollm2_135m", seq=5, dtype=dtype, opset=21, **options) for dtype in ("int4", "f32"))
    feeds = models.inputs(small)
    want = onnxruntime.InferenceSession(small.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = want.run(None, feeds)
    for got, wanted in zip(run_model(api.load(small), feeds), theirs, strict=True):
        assert np.abs(got - wanted).max() <= 0.1 * np.abs(wanted).max()  # onnxruntime rounds activations to bytes
    (few, counts), (many, others) = sizes(small, feeds), sizes(large, feeds)
    assert counts["QNBITGEMM"] == others["GEMM"]
    assert "GEMM" not in counts
    assert few < many * 5 / 32 + (1 << 16)


@pytest.mark.parametrize("seq", [1, 5, 70])
def test_decoder_in_half_precision(seq: int) -> None:
    """Results are onnxruntime's of the same model; weights take 16 bits, in every constant product."""
    options = {**models.miniature("smollm2_135m"), "hidden": 128, "inner": 256, "vocab": 512}
    small, large = (models.build("smollm2_135m", seq=seq, dtype=dtype, opset=21, **options) for dtype in ("f16", "f32"))
    feeds = models.inputs(small)
    want = onnxruntime.InferenceSession(small.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, wanted in zip(run_model(api.load(small), feeds), want.run(None, feeds), strict=True):
        assert np.abs(got - wanted).max() <= 2e-2 * np.abs(wanted).max()
    (half, counts), (whole, others) = sizes(small, feeds), sizes(large, models.inputs(large))
    assert counts["QNBITGEMM"] == others["GEMM"]
    assert "GEMM" not in counts
    assert half < whole / 2 + (1 << 16)
