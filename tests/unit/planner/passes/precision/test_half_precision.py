"""f16 and bf16 are how values are stored; kernels compute in f32, and round where values go out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from kernel_graphs import run_model
from net_tools import Net, check, lowered, ops
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.ir.graph import Node

N = helper.make_node
V = helper.make_tensor_value_info
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
RNG = np.random.default_rng(3)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, int], **constants: Any) -> onnx.ModelProto:
    """`inputs`: arrays; `outputs`: element types."""
    infos = [V(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in inputs.items()]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "halves", infos, [V(name, kind, None) for name, kind in outputs.items()], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[npt.NDArray[Any]]:
    return list(run_model(api.load(proto), feeds))


def halves(*shape: int) -> npt.NDArray[np.float16]:
    return RNG.standard_normal(shape).astype(np.float16)


def made(nodes: list[Node]) -> list[tuple[str, str]]:
    return [(n.op, n.output.dtype.name) for n in nodes if not n.op.startswith("view.")]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_network_is_rounded_once(dtype: Any) -> None:
    net = Net(opset=22, x=(1, 8, 6, 6), dtype=dtype)
    y = net("Conv", "x", net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4)
    y = net("BatchNormalization", y, net.weight(8), net.weight(8), net.weight(8), net.weight(8, positive=True))
    y = net("Conv", net("Relu", y), net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4)
    nodes = check(net, net("Relu", net("Add", y, "x")), tolerance=2.0**-8)
    assert ops(nodes) == ["CAST", "CONV", "CONV", "CAST"]
    assert all(t.dtype == F32 for n in nodes[1:-1] for t in n.inputs if t is not None)


def test_results_are_those_of_wide_steps() -> None:
    x, w, v = halves(4, 64), halves(64, 64), halves(64, 64)
    nodes = [N("MatMul", ["x", "w"], ["a"]), N("Sin", ["a"], ["b"]), N("MatMul", ["b", "v"], ["y"])]
    (got,) = run(model(nodes, {"x": x}, {"y": TensorProto.FLOAT16}, w=w, v=v), {"x": x})
    want = np.sin(x.astype(np.float64) @ w) @ v.astype(np.float64)
    assert got.dtype == F16
    np.testing.assert_allclose(got, want, rtol=2.0**-11, atol=1e-3)


def test_large_weights_are_widened_once_under_a_key_of_their_own() -> None:
    net = Net(x=(1, 64, 9, 9), dtype=np.float16)
    nodes = check(net, net("Conv", "x", net.weight(300, 64, 5, 5), strides=[2, 2]), tolerance=2e-3)
    assert ops(nodes) == ["CAST", "CONV", "CAST"]
    weights = nodes[1].inputs[1]
    assert weights is not None
    assert weights.weight_key is not None
    assert "float32" in weights.weight_key


def test_tables_stay_as_they_are() -> None:
    table, rows = halves(1000, 64), np.array([[3, 999], [0, 17]])
    nodes = [N("Gather", ["t", "i"], ["g"]), N("Relu", ["g"], ["y"])]
    proto = model(nodes, {"i": rows}, {"y": TensorProto.FLOAT16}, t=table)
    assert made(lowered(proto, {"i": rows}).nodes)[:2] == [("GATHER", "float16"), ("CAST", "float32")]
    (got,) = run(proto, {"i": rows})
    assert np.array_equal(got, np.maximum(table[rows], 0))


def test_caches_of_keys_take_what_is_new() -> None:
    """The larger part of what is joined is stored: what is computed is rounded, the cache is not widened for it."""
    past, x, w = halves(1, 40, 16), halves(1, 2, 16), halves(16, 16)
    nodes = [N("MatMul", ["x", "w"], ["k"]), N("Concat", ["past", "k"], ["present"], axis=1)]
    feeds = {"past": past, "x": x}
    proto = model(nodes, feeds, {"present": TensorProto.FLOAT16}, w=w)
    assert ("CAST", "float32") in made(lowered(proto, feeds).nodes)
    assert all(n.output.size <= 2 * 16 for n in lowered(proto, feeds).nodes if n.op == "CAST")
    (got,) = run(proto, feeds)
    assert np.array_equal(got[:, :40], past)
    np.testing.assert_allclose(got[:, 40:], x.astype(np.float64) @ w, rtol=2.0**-10, atol=1e-3)


def test_parts_that_are_computed_are_joined_unrounded() -> None:
    x, z = halves(1, 8, 4), halves(1, 1, 4)
    nodes = [N("Sin", ["x"], ["a"]), N("Cos", ["x"], ["b"]), N("Concat", ["a", "b", "z"], ["c"], axis=1), N("Neg", ["c"], ["y"])]
    feeds = {"x": x, "z": z}
    kinds = made(lowered(model(nodes, feeds, {"y": TensorProto.FLOAT16}), feeds).nodes)
    assert ("concat", "float32") in kinds
    assert sum(kind == ("CAST", "float16") for kind in kinds) == 1


ODD = np.array([1.0001, 3.14159265, 2049.0], np.float32)


def test_what_a_conversion_is_made_from_is_computed_with() -> None:
    nodes = [N("Cast", ["x"], ["a"], to=TensorProto.FLOAT16), N("Relu", ["a"], ["b"]), N("Cast", ["b"], ["y"], to=TensorProto.FLOAT)]
    (got,) = run(model(nodes, {"x": ODD}, {"y": TensorProto.FLOAT}), {"x": ODD})
    assert np.array_equal(got, ODD)


@pytest.mark.parametrize("to", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64])
def test_a_conversion_behind_another_reads_what_was_rounded(to: int) -> None:
    nodes = [N("Cast", ["x"], ["a"], to=TensorProto.FLOAT16), N("Cast", ["a"], ["y"], to=to)]
    (got,) = run(model(nodes, {"x": ODD}, {"y": to}), {"x": ODD})
    assert np.array_equal(got, ODD.astype(np.float16).astype(got.dtype))


def test_integers_are_made_of_what_was_rounded() -> None:
    x, z = np.array([1500, 7], np.float16), np.array([0.6, 0.5], np.float16)
    nodes = [N("Add", ["x", "z"], ["a"]), N("Cast", ["a"], ["y"], to=TensorProto.INT64)]
    feeds = {"x": x, "z": z}
    (got,) = run(model(nodes, feeds, {"y": TensorProto.INT64}), feeds)
    assert got.tolist() == (x + z).astype(np.int64).tolist() == [1501, 7]


def test_a_conversion_to_f32_of_what_was_computed_is_none() -> None:
    x = halves(3, 5)
    nodes = [N("Sin", ["x"], ["a"]), N("Cast", ["a"], ["b"], to=TensorProto.FLOAT), N("Cos", ["b"], ["y"])]
    proto = model(nodes, {"x": x}, {"y": TensorProto.FLOAT})
    assert made(lowered(proto, {"x": x}).nodes) == [("CAST", "float32"), ("UNARY", "float32"), ("UNARY", "float32")]
    (got,) = run(proto, {"x": x})
    np.testing.assert_allclose(got, np.cos(np.sin(x.astype(np.float64))), rtol=1e-6)


def test_the_same_value_goes_out_in_both_precisions() -> None:
    """Who reads the rounded one before makes no difference to others."""
    x = halves(3, 5)
    nodes = [N("Sin", ["x"], ["a"]), N("Cast", ["a"], ["n"], to=TensorProto.INT32), N("Cast", ["a"], ["b"], to=TensorProto.FLOAT)]
    outputs = {"a": TensorProto.FLOAT16, "b": TensorProto.FLOAT, "c": TensorProto.FLOAT16, "n": TensorProto.INT32}
    a, b, c, n = run(model([*nodes, N("Identity", ["x"], ["c"])], {"x": x}, outputs), {"x": x})
    assert np.array_equal(n, a.astype(np.int32))
    np.testing.assert_allclose(b, np.sin(x.astype(np.float64)), rtol=1e-6)
    assert np.array_equal(a, b.astype(np.float16))
    assert np.array_equal(c, x)


def test_branches_read_and_give_what_is_stored() -> None:
    """Operators without kernels see values of the types that the model says, captured ones too."""
    x, flag = halves(3, 4), np.array(True)
    branch = [
        helper.make_graph([N(op, ["a", "x"], [out])], out, [], [V(out, TensorProto.FLOAT16, None)])
        for op, out in (("Add", "s"), ("Mul", "p"))
    ]
    nodes = [N("Sin", ["x"], ["a"]), N("If", ["flag"], ["c"], then_branch=branch[0], else_branch=branch[1]), N("Neg", ["c"], ["y"])]
    feeds = {"x": x, "flag": flag}
    (got,) = run(model(nodes, feeds, {"y": TensorProto.FLOAT16}), feeds)
    assert got.dtype == F16
    assert np.array_equal(got, -(np.sin(x.astype(np.float32)).astype(np.float16) + x))


def test_constants_that_bfloat16_has_rounded_are_those_of_functions() -> None:
    net = Net(x=(4, 50), dtype=ml_dtypes.bfloat16)
    half = net.number(0.5)
    inner = net("Add", net.number(1.0), net("Erf", net("Mul", "x", net.number(0.7071067811865476))))
    nodes = check(net, net("Mul", net("Mul", "x", inner), half), tolerance=2.0**-7)
    assert [n.attrs["opcode"] for n in nodes if n.op == "UNARY"] == ["GELU_ERF"]


def test_scales_of_quantised_values_are_of_their_own_type() -> None:
    x = np.array([-3.0, 0.26, 9.0], np.float16)
    nodes = [N("Add", ["x", "x"], ["a"]), N("QuantizeLinear", ["a", "s", "z"], ["q"]), N("DequantizeLinear", ["q", "s", "z"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [V("x", TensorProto.FLOAT16, [3])],
        [V("y", TensorProto.FLOAT16, [3])],
        [numpy_helper.from_array(np.array(0.25, np.float16), "s"), numpy_helper.from_array(np.array(3, np.int8), "z")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    (got,) = run(proto, {"x": x})
    assert got.dtype == F16
    assert got.tolist() == [-6.0, 0.5, 18.0]


def test_bfloat16_before_the_opset_that_has_it() -> None:
    """PyTorch exports such convolutions in opset 18; ONNX's have the type from opset 22 on."""
    net = Net(opset=18, x=(1, 8, 6, 6), dtype=ml_dtypes.bfloat16)
    y = net("Conv", "x", net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4)
    nodes = check(net, net("GlobalAveragePool", net("Relu", y)), tolerance=2.0**-7)
    assert "CONV" in ops(nodes)


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "unet", "bert_base", "gpt2", "smollm2_135m", "vit_b_16"])
def test_networks_are_those_of_f32_between_their_inputs_and_outputs(name: str) -> None:
    wide, narrow = (models.build(name, seq=24, dtype=dtype, **models.miniature(name)) for dtype in ("f32", "f16"))
    feeds = models.inputs(wide)
    for got, want in zip(run(narrow, feeds), run(wide, feeds), strict=True):
        assert got.dtype == want.dtype
        assert np.abs(got - want).max() <= 5e-3 * np.abs(want).max()
    of_narrow, of_wide = ([op for op, _ in made(lowered(proto, feeds).nodes) if op not in {"CAST", "COPY"}] for proto in (narrow, wide))
    products = of_narrow.count("QNBITGEMM")  # of weights as they are stored
    assert sorted("GEMM" if op == "QNBITGEMM" else op for op in of_narrow) == sorted(of_wide)
    assert products > 0 or name == "unet"
