"""Weights of few bits with scales by blocks, and products that are quantised on the way, against onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from contrib_tools import RNG, array, both, compared, small
from kernel_graphs import bind, run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api, stages
from aspen_mp.shm.errors import ModelInvalidError, UnsupportedModelError

NAMES = ["x", "w", "scale", "zero", "order", "bias"]


def weights(bits: int, depth: int, width: int, size: int, zero: str, dtype: Any = np.float32) -> dict[str, Any]:
    blocks = -(-depth // size)
    constants: dict[str, Any] = {"w": RNG.integers(0, 256, (width, blocks, size * bits // 8)).astype(np.uint8)}
    constants["scale"] = (np.abs(array(width, blocks)) * 0.1 + 0.01).astype(dtype)
    if zero == "packed":
        constants["zero"] = RNG.integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8)
    elif zero == "real":
        constants["zero"] = (array(width, blocks) + (1 << (bits - 1))).astype(dtype)
    return constants


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("depth", "width", "size"), [(64, 24, 32), (70, 5, 16), (16, 8, 64), (96, 7, 32)])
@pytest.mark.parametrize("zero", ["", "packed", "real"])
def test_products(bits: int, depth: int, width: int, size: int, zero: str) -> None:
    constants = weights(bits, depth, width, size, zero)
    if depth == 64:
        constants["bias"] = array(width)
    feeds, attrs = {"x": array(2, 3, depth)}, {"bits": bits, "block_size": size, "K": depth, "N": width}
    if bits == 8 and zero == "real":  # which onnxruntime does not have for a CPU
        (got,) = run_model(api.load(both("MatMulNBits", NAMES, feeds, constants, ["y"], alone=True, **attrs)), feeds)
        values = constants["w"].astype(np.float32) - constants["zero"][..., None]
        columns = (values * constants["scale"][..., None]).reshape(width, -1)[:, :depth]
        want = feeds["x"] @ columns.T + constants.get("bias", 0)
    else:
        (got,), (want,) = both("MatMulNBits", NAMES, feeds, constants, ["y"], **attrs)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_stay_small_constants(bits: int) -> None:
    """[terms, columns] as ONNX has it, with scales of blocks of terms; what they are made of is read when they are."""
    constants, found = weights(bits, 64, 24, 32, "packed"), []
    for rows in (1, 7):
        feeds = {"x": array(rows, 64)}
        proto = both("MatMulNBits", NAMES, feeds, constants, ["y"], bits=bits, block_size=32, K=64, N=24, alone=True)
        nodes = stages.derive(api.load(proto), [bind(feeds)]).graph.nodes
        assert [n.op for n in nodes if n.op != "Identity"] == ["MatMul"]
        weight = nodes[0].inputs[1]
        assert weight is not None
        assert weight.is_const
        assert weight.shape == (64, 24)
        found.append(weight.weight_key)
    assert found[0] == found[1] is not None


def test_products_in_half_precision() -> None:
    constants = weights(4, 64, 24, 32, "packed", np.float16)
    x = array(3, 64).astype(np.float16)
    names = ["x", "w", "scale", "zero"]
    (got,), (want,) = compared(
        "MatMulNBits", names, constants, {"y": np.float16}, {"bits": 4, "block_size": 32, "K": 64, "N": 24}, {"x": x}
    )
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0.02, atol=0.02 * np.abs(want).max())


@pytest.mark.parametrize(
    ("attrs", "more", "kind", "message"),
    [
        ({"bits": 3}, {}, UnsupportedModelError, "weights of 3 bits"),
        ({"weight_prepacked": 1}, {}, UnsupportedModelError, "attribute weight_prepacked"),
        ({}, {"order": np.zeros(64, np.int32)}, UnsupportedModelError, "terms in another order"),
        ({"block_size": 16}, {}, ModelInvalidError, "in blocks of 16"),
    ],
)
def test_what_is_refused(attrs: dict[str, int], more: dict[str, Any], kind: type[Exception], message: str) -> None:
    feeds, constants = {"x": array(1, 64)}, weights(4, 64, 24, 32, "") | more
    proto = both("MatMulNBits", NAMES, feeds, constants, ["y"], **({"bits": 4, "block_size": 32, "K": 64, "N": 24} | attrs), alone=True)
    with pytest.raises(kind, match=rf"node 'it' \(MatMulNBits\).*{message}"):
        run_model(api.load(proto), feeds)


def test_weights_have_to_be_constant() -> None:
    feeds, constants = {"x": array(1, 64)}, weights(4, 64, 24, 32, "")
    feeds["w"] = constants.pop("w")
    proto = both("MatMulNBits", NAMES, feeds, constants, ["y"], bits=4, block_size=32, K=64, N=24, alone=True)
    with pytest.raises(UnsupportedModelError, match="computes its input 'w', which has to be constant"):
        run_model(api.load(proto), feeds)


# ------------------------------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("indices", [np.array([[3, 0, 9]]), np.array(4), np.array([[1], [-1]], np.int32)])
@pytest.mark.parametrize("kind", ["packed", "bytes", "uint4", "int4"])
def test_tables(kind: str, indices: np.ndarray, zero: bool) -> None:
    rows, columns, size = 10, 48, 16
    bits = 8 if kind == "bytes" else 4
    dtype = {"uint4": ml_dtypes.uint4, "int4": ml_dtypes.int4}.get(kind, np.uint8)
    low, high = (-8, 8) if kind == "int4" else (0, 16 if kind == "uint4" else 256)
    share = 2 if kind == "packed" else 1

    def drawn(*shape: int) -> np.ndarray:
        return RNG.integers(low, high, shape).astype(dtype)

    constants = {"t": drawn(rows, columns // share), "scale": np.abs(array(rows, columns // size)) + 0.1}
    if zero:
        constants["zero"] = drawn(rows, -(-columns // size // share))
    attrs: dict[str, int] = {"block_size": size, "gather_axis": 0, "quantize_axis": 1} | ({"bits": bits} if dtype == np.uint8 else {})
    names = ["t", "at", "scale", "zero"]
    (got,), (want,) = both("GatherBlockQuantized", names, {"at": indices}, constants, ["y"], version=21, **attrs)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("gathered", "blocked"), [(1, 0), (0, 0), (1, 1), (2, 1), (0, 2)])
def test_tables_along_other_axes(gathered: int, blocked: int) -> None:
    shape = (32, 20, 16)
    scale = [d if k != blocked else -(-d // 16) for k, d in enumerate(shape)]
    constants = {"t": RNG.integers(-8, 8, shape).astype(ml_dtypes.int4), "scale": np.abs(array(*scale)) + 0.1}
    attrs = {"block_size": 16, "gather_axis": gathered, "quantize_axis": blocked}
    feeds = {"at": np.array([[1, 3], [0, 2]])}
    (got,), (want,) = both("GatherBlockQuantized", ["t", "at", "scale"], feeds, constants, ["y"], version=21, **attrs)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------------------------------ quantised on the way


@pytest.mark.parametrize("stored", [np.int8, np.uint8])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_quantised_on_the_way(stored: Any, columns: bool, biased: bool) -> None:
    count = (24,) if columns else ()
    constants = {"w": small(stored, 16, 24), "scale": np.asarray(np.abs(array(*count)) * 0.1 + 0.01, np.float32)}
    constants["zero"] = np.full(count, 3 if stored == np.uint8 else 0, stored)
    if biased:
        constants["bias"] = array(24)
    counts: dict[str, int] = {}
    names, feeds = ["x", "w", "scale", "zero", "bias"], {"x": array(2, 3, 16)}
    proto = both("DynamicQuantizeMatMul", names, feeds, constants, ["y"], alone=True)
    run_model(api.load(proto), feeds, counts=counts)
    assert counts["QGEMM"] == 1
    assert "GEMM" not in counts
    (got,), (want,) = both("DynamicQuantizeMatMul", names, feeds, constants, ["y"])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


# ------------------------------------------------------------------------------------------------- what ONNX has of this


@pytest.mark.parametrize("kind", ["UINT4", "INT4", "UINT8", "INT8"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("zero", [False, True])
def test_blocks_of_onnx(kind: str, axis: int, zero: bool) -> None:
    """DequantizeLinear by blocks that do not divide the axis."""
    shape, size = (20, 24), 16
    scales = (2, 24) if axis == 0 else (20, 2)
    low, high = {"UINT4": (0, 16), "INT4": (-8, 8), "UINT8": (0, 256), "INT8": (-128, 128)}[kind]
    element = getattr(TensorProto, kind)
    values = RNG.integers(low, high, shape)
    zeros = RNG.integers(low, high, scales) if zero else np.zeros(scales, int)
    scale = np.abs(array(*scales)) + 0.1
    stored = [helper.make_tensor("w", element, shape, values.reshape(-1)), numpy_helper.from_array(scale, "s")]
    if zero:
        stored.append(helper.make_tensor("z", element, scales, zeros.reshape(-1)))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", *(["z"] if zero else [])], ["d"], axis=axis, block_size=size),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 20])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = array(3, 20)
    whole = (values - np.repeat(zeros, size, axis)[:20, :24]) * np.repeat(scale, size, axis)[:20, :24]
    np.testing.assert_allclose(run_model(api.load(proto), {"x": x})[0], x @ whole.astype(np.float32), rtol=1e-4, atol=1e-3)
