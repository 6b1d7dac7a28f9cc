"""Products and convolutions of rounded factors: which they are, how their weights are packed, and their results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_graphs import bind, run_model
from net_tools import Net
from onnx import TensorProto
from plan_requests import plan_request

from aspen_mp.planner import api, stages
from aspen_mp.planner.cost import algorithms
from aspen_mp.planner.ir.graph import Graph, Stored, Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.ops.packing import bf16, low_bit

F32 = np.dtype(np.float32)
NEAR = 3e-2


def lowered(net: Net, *outputs: str, **options: Any) -> Graph:
    opened = api.load(net.model(*outputs))
    stage = stages.derive(opened, [bind({n: np.ones(s, np.float32) for n, s in net.inputs.items()})])
    return api.lowered(stage.graph, opened, [v.name for v in stage.outputs], plan_request(bf16=True, **options))


def kernels(net: Net, *outputs: str, **options: Any) -> list[str]:
    """Those that multiply, after comparing results with those of exact factors."""
    model = net.model(*outputs)
    feeds = {n: net.rng.standard_normal(s).astype(np.float32) for n, s in net.inputs.items()}
    want, found = run_model(api.load(model), feeds), run_model(api.load(model), feeds, plan_request(bf16=True, **options))
    for y, w in zip(found, want, strict=True):
        assert np.abs(y - w).max() <= NEAR * np.abs(w).max()
    multiply = {"GEMM", "QNBITGEMM", "BGEMM", "QGEMM", "CONV", "BCONV", "DWCONV", "WINO", "PWDW"}
    return [n.op for n in lowered(net, *outputs, **options).nodes if n.op in multiply]


@pytest.mark.parametrize(("depth", "columns", "taps"), [(1, 1, 1), (6, 32, 1), (7, 40, 1), (17, 33, 9), (2, 70, 4)])
def test_packing(depth: int, columns: int, taps: int) -> None:
    panels = -(-columns // 32)
    values = np.random.default_rng(depth).standard_normal((panels, taps * depth, 32)).astype(np.float32)
    packed = bf16.packed(Tensor("w", values.shape, F32, data=values, weight_key="w"), taps)
    assert packed.shape == bf16.packed_shape(depth, columns, taps) == (panels, taps * -(-depth // 2), 32)
    words = packed.value().reshape(panels, taps, -1, 32)
    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32).reshape(panels, taps, depth, 32)
    for k in range(depth):
        half = words[:, :, k // 2] << 16 if k % 2 == 0 else words[:, :, k // 2] & 0xFFFF0000
        np.testing.assert_array_equal(half.astype(np.uint32).view(np.float32), rounded[:, :, k])
    if depth % 2:
        assert not (words[:, :, -1] >> 16).any()


def test_keys_tell_packings_apart() -> None:
    """Equal keys mean equal bytes: of exact and rounded weights, of one tap and of several."""
    w = Tensor("w", (1, 1, 12, 32), F32, data=np.zeros((1, 1, 12, 32), np.float32), weight_key="w")
    assert len({w.weight_key, bf16.packed(w, 1).weight_key, bf16.packed(w, 4).weight_key}) == 3
    assert bf16.packed(Tensor("c", w.shape, F32, data=w.data)).weight_key is None


def test_products_and_what_is_fused_with_them() -> None:
    net = Net(x=(5, 64))
    y = net("Add", net("MatMul", "x", net.weight(64, 96)), net.weight(96))
    z = net("Relu", net("Gemm", y, net.weight(40, 96), net.weight(40), transB=1))
    assert kernels(net, net("Add", z, net("MatMul", "x", net.weight(64, 40)))) == ["BGEMM", "BGEMM", "BGEMM"]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("depth", "columns"), [(7, 40), (64, 33)])
def test_weights_that_are_stored_in_half_precision(dtype: Any, depth: int, columns: int) -> None:
    """They are pairs already; bf16 stays what it is."""
    values = np.random.default_rng(1).standard_normal((depth, columns)).astype(dtype)
    wide = np.zeros((-(-columns // 32), depth, 32), np.float32)
    for k in range(columns):
        wide[k // 32, :, k % 32] = values[:, k]
    b = Builder()
    weight = Tensor("w", values.shape, F32, weight_key="w", stored=Stored(Tensor("v", values.shape, values.dtype, data=values), None, None))
    form = low_bit.form_of(weight.stored) if weight.stored is not None else None
    assert form is not None
    words = bf16.of_halves(b.packed_nbits(weight, form), depth, dtype is ml_dtypes.bfloat16)
    want = bf16.packed(Tensor("p", wide.shape, F32, data=wide))
    assert words.shape == want.shape
    np.testing.assert_array_equal(words.value(), want.value())


@pytest.mark.parametrize("to", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_networks_in_half_precision(to: int) -> None:
    net = Net(opset=21, x=(5, 64))
    y = net("MatMul", net("Cast", "x", to=to), net("Cast", net.weight(64, 96), to=to))
    assert kernels(net, net("Cast", net("Relu", y), to=TensorProto.FLOAT)) == ["BGEMM"]


def test_convolutions_and_what_is_fused_with_them() -> None:
    net = Net(x=(1, 20, 9, 8))
    y = net("Relu", net("Conv", "x", net.weight(48, 20, 1, 1), net.weight(48)))
    z = net("Conv", y, net.weight(40, 48, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    assert kernels(net, net("Add", z, net("Conv", "x", net.weight(40, 20, 1, 1), strides=[2, 2])), winograd=False) == ["BCONV"] * 3


def test_normalisation_before_a_convolution() -> None:
    net = Net(x=(1, 40, 7, 6))
    statistics = [net.weight(40), net.weight(40), net.weight(40), net.weight(40, positive=True)]
    y = net("Relu", net("BatchNormalization", "x", *statistics))
    z = net("Conv", y, net.weight(33, 40, 1, 1))
    assert kernels(net, z) == ["BCONV"]
    (node,) = (n for n in lowered(net, z).nodes if n.op == "BCONV")
    assert len(node.inputs) == 8


def test_few_channels_stay_with_the_depthwise_convolution_behind_them() -> None:
    for channels, wanted in ((12, ["PWDW"]), (16, ["BCONV", "DWCONV"])):
        net = Net(x=(1, channels, 12, 12))
        wide = net("Relu", net("Conv", "x", net.weight(96, channels, 1, 1)))
        assert kernels(net, net("Conv", wide, net.weight(96, 1, 3, 3), group=96, pads=[1, 1, 1, 1])) == wanted


def test_lines_are_images() -> None:
    net = Net(x=(2, 20, 50))
    assert kernels(net, net("Conv", "x", net.weight(33, 20, 4), pads=[3, 0])) == ["BCONV"]


def test_winograd_stays_where_it_is_faster() -> None:
    net = Net(x=(1, 64, 56, 56))
    y = net("Conv", "x", net.weight(64, 64, 3, 3), pads=[1, 1, 1, 1])
    assert [n.op for n in lowered(net, y).nodes if n.op in {"CONV", "BCONV", "WINO"}] == ["WINO"]
    small = Net(x=(1, 512, 7, 7))
    y = small("Conv", "x", small.weight(512, 512, 3, 3), pads=[1, 1, 1, 1])
    assert [n.op for n in lowered(small, y).nodes if n.op in {"CONV", "BCONV", "WINO"}] == ["BCONV"]
    shape = (1, 512, 7, 7)
    assert algorithms.block_for(shape, shape) > 0
    assert algorithms.block_for(shape, shape, bf16=True) == 0


def test_what_stays_exact() -> None:
    net = Net(x=(1, 64, 9, 9), y=(64, 9))
    few = net("Conv", net("Slice", "x", *(net.constant([k]) for k in (0, 8, 1))), net.weight(40, 8, 1, 1))
    grouped = net("Conv", "x", net.weight(40, 32, 3, 3), group=2)
    deep = net("Conv", "x", net.weight(64, 1, 3, 3), group=64)
    computed = net("MatMul", "x", net("Transpose", "y", perm=[1, 0]))
    assert kernels(net, few, grouped, deep, computed) == ["CONV", "CONV", "DWCONV", "GEMM"]


def test_volumes_stay_exact() -> None:
    net = Net(x=(1, 20, 4, 5, 5))
    assert kernels(net, net("Conv", "x", net.weight(33, 20, 3, 3, 3))) in (["CONV"], ["WINO"])


def test_sums_of_integers_stay_exact() -> None:
    """What has no kernel for bytes is computed in floats, which hold such sums exactly, and would not if factors were rounded."""
    net = Net(x=(1, 32, 6, 5), b=(34,))
    byte, scale = net.constant(np.uint8(3)), net.number(0.5)
    weights = net.constant(net.rng.integers(0, 9, (34, 32, 3, 3)).astype(np.uint8))
    bias = net("Cast", "b", to=TensorProto.INT32)
    y = net("QLinearConv", net("Cast", "x", to=TensorProto.UINT8), scale, byte, weights, scale, byte, scale, byte, bias)
    graph = lowered(net, net("Cast", y, to=TensorProto.FLOAT))
    assert [n.op for n in graph.nodes if n.op in {"CONV", "BCONV", "QCONV"}] == ["CONV"]


def test_rows_that_are_many_are_not_strassens() -> None:
    net = Net(x=(128, 768))
    y = net("MatMul", "x", net.weight(768, 1024))
    assert [n.op for n in lowered(net, y).nodes] == ["BGEMM"]


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_weights_that_the_model_stores_in_half_precision(dtype: int) -> None:
    """They could stay as they are, too; in pairs they are multiplied twice as fast."""
    net = Net(x=(5, 64))
    y = net("MatMul", net("Cast", "x", to=dtype), net("Cast", net.weight(64, 96), to=dtype))
    assert kernels(net, net("Cast", y, to=TensorProto.FLOAT)) == ["BGEMM"]
