"""Opaque tiles: whole ONNX (sub-)graphs on views, failures that name node and op, values too large for their buffer."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from aspen_mp.shm import values
from aspen_mp.shm.errors import RequestError
from aspen_mp.workers.fallback.opaque_tile import Opaque, OpaqueCache, run_tile


def model(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], **kwargs: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "part", inputs, outputs, **kwargs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def tensor(name: str, dtype: int, shape: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def det() -> bytes:
    return bytes(
        model(
            [helper.make_node("Det", ["x"], ["y"], name="d")], [tensor("x", 1, [None, 2, 2])], [tensor("y", 1, [None])]
        ).SerializeToString()
    )


def test_views_with_strides_and_read_only() -> None:
    x = np.random.default_rng(0).standard_normal((2, 2, 5), dtype=np.float32).T
    x.flags.writeable = False
    (y,) = Opaque(det(), "d (Det)").run([x])
    np.testing.assert_allclose(y, np.linalg.det(x), rtol=1e-5)
    assert y.dtype == np.float32


def test_results_have_the_declared_dtype() -> None:
    nodes = [helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")]
    m = model(
        nodes, [tensor("x", TensorProto.FLOAT16, [1, 3]), tensor("i", TensorProto.INT64, [1])], [tensor("y", TensorProto.FLOAT16, None)]
    )
    m.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    (y,) = Opaque(m.SerializeToString()).run([np.ones((1, 3), np.float16), np.array([2])])
    assert (y.dtype, y.shape) == (np.float16, (1, 1))


def test_bfloat16() -> None:
    m = model(
        [helper.make_node("Hardmax", ["x"], ["y"])], [tensor("x", TensorProto.BFLOAT16, [4])], [tensor("y", TensorProto.BFLOAT16, [4])]
    )
    (y,) = Opaque(m.SerializeToString()).run([np.array([1, 3, 2, 0], ml_dtypes.bfloat16)])
    assert y.dtype == ml_dtypes.bfloat16
    assert y.tolist() == [0, 1, 0, 0]


def test_several_outputs_into_place() -> None:
    nodes = [helper.make_node("Unique", ["x"], ["u", "i", "v", "c"], sorted=1)]
    outs = [tensor("u", 1, ["n"]), *(tensor(n, TensorProto.INT64, ["n"]) for n in "ivc")]
    blob = model(nodes, [tensor("x", 1, [5])], outs).SerializeToString()
    results = [np.zeros(3, np.float32), np.zeros(3, np.int64), np.zeros(5, np.int64), np.zeros(3, np.int64)]
    assert run_tile(OpaqueCache(), 0, blob, "u (Unique)", outputs=results, inputs=[np.array([3, 1, 1, 2, 3], np.float32)]) == ("", 0)
    assert results[0].tolist() == [1, 2, 3]
    assert results[2].tolist() == [2, 0, 0, 1, 2]
    error, _ = run_tile(OpaqueCache(), 0, blob, "u (Unique)", outputs=results, inputs=[np.zeros(5, np.float32)])
    assert "u (Unique)" in error
    assert "shape" in error


def test_object_operands_and_too_small_a_buffer() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"]), helper.make_node("StringConcat", ["s", "s"], ["t"])]
    blob = model(
        nodes,
        [tensor("x", 1, None), tensor("s", TensorProto.STRING, ["n"])],
        [tensor("y", TensorProto.INT64, None), tensor("t", TensorProto.STRING, None)],
    ).SerializeToString()
    inputs = [memoryview(values.encode(np.ones((3, 4), np.float32))), memoryview(values.encode(np.array(["a", "ß"])))]
    cache = OpaqueCache()
    small = [memoryview(bytearray(100)), memoryview(bytearray(1000))]
    error, needed = run_tile(cache, 0, blob, "two", outputs=small, inputs=inputs)
    assert error == ""
    own = values.needed_bytes(small[0])
    assert values.needed_bytes(small[1]) == 0
    assert needed == own + values.used_bytes(small[1])
    large = [memoryview(bytearray(own)), small[1]]
    assert run_tile(cache, 0, blob, "two", outputs=large, inputs=inputs) == ("", 0)
    assert values.decode(large[0]).tolist() == np.argwhere(np.ones((3, 4))).T.tolist()
    assert values.decode(large[1]).tolist() == ["aa", "ßß"]


def test_failures_name_node_and_op() -> None:
    with pytest.raises(RequestError, match=r"d \(Det\)"):
        Opaque(det(), "d (Det)").run([np.zeros((3, 2, 1), np.float32)])
    error, needed = run_tile(OpaqueCache(), 0, det(), "d (Det)", outputs=[np.zeros(1)], inputs=[np.zeros((1, 2, 3), np.float32)])
    assert needed == 0
    assert error.startswith("d (Det) failed: ")
    inner = model([helper.make_node("Det", ["x"], ["y"], name="inner")], [tensor("x", 1, None)], [tensor("y", 1, None)])
    error, _ = run_tile(
        OpaqueCache(), 0, inner.SerializeToString(), "outer", outputs=[np.zeros(1)], inputs=[np.zeros((1, 2, 3), np.float32)]
    )
    assert "inner (Det)" in error


@pytest.mark.parametrize("blob", [b"", b"\xff" * 30, b"\x08"])
def test_damaged_blobs_fail_the_request_alone(blob: bytes) -> None:
    error, _ = run_tile(OpaqueCache(), 0, blob, "n (Op)", outputs=[np.zeros(1, np.float32)], inputs=[np.zeros(1, np.float32)])
    assert "n (Op)" in error


def test_unknown_operator_and_wrong_count() -> None:
    m = model([helper.make_node("NoSuchOp", ["x"], ["y"])], [tensor("x", 1, None)], [tensor("y", 1, None)])
    with pytest.raises(RequestError, match="NoSuchOp"):
        Opaque(m.SerializeToString(), "n")
    with pytest.raises(RequestError, match="it has 1 inputs and was given 2"):
        Opaque(det(), "d").run([np.zeros(1), np.zeros(1)])


def test_operands_are_never_changed() -> None:
    """CastMap, ScatterElements and friends copy; whichever does not is given a copy."""
    nodes = [helper.make_node("ScatterElements", ["x", "i", "u"], ["y"])]
    m = model(nodes, [tensor("x", 1, [3]), tensor("i", 7, [1]), tensor("u", 1, [1])], [tensor("y", 1, [3])])
    x = np.ones(3, np.float32)
    (y,) = Opaque(m.SerializeToString()).run([x, np.array([1]), np.array([5], np.float32)])
    assert (x.tolist(), y.tolist()) == ([1, 1, 1], [1, 5, 1])


def test_cache_reuses_and_forgets() -> None:
    cache = OpaqueCache(limit=2)
    first = cache.get(1, det())
    assert cache.get(1, b"not looked at") is first
    cache.get(2, det())
    cache.get(3, det())
    assert cache.get(1, det()) is not first


def test_onnx_is_imported_late() -> None:
    code = "import sys, aspen_mp.workers.fallback.opaque_tile, aspen_mp.shm.values; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd="/").returncode == 0
