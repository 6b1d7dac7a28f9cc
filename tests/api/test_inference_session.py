"""InferenceSession: what a program written for onnxruntime finds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp import errors, shared


@pytest.fixture(autouse=True)
def _end_of_shared_runtime() -> Iterator[None]:
    yield
    shared.close()


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"]), helper.make_node("Shape", ["x"], ["s"])]
    w = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.linspace(-1, 1, 12))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3]), helper.make_tensor_value_info("s", TensorProto.INT64, [2])],
        initializer=[w],
        doc_string="about the graph",
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests", domain="d")
    helper.set_model_props(model, {"key": "value"})
    return model


def test_same_answers_as_onnxruntime(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
    for source in (str(path), path, model.SerializeToString(), model):
        with aspen_mp.InferenceSession(source, providers=["CPUExecutionProvider"]) as ours:
            for names in (None, ["y"], ["s", "y"]):
                for got, want in zip(ours.run(names, {"x": x}), theirs.run(names, {"x": x}), strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
            for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
                assert [(a.name, a.shape, a.type) for a in mine] == [(a.name, a.shape, a.type) for a in other]
            mine_meta, their_meta = ours.get_modelmeta(), theirs.get_modelmeta()
            for key in ("producer_name", "graph_name", "domain", "description", "graph_description", "custom_metadata_map"):
                assert getattr(mine_meta, key) == getattr(their_meta, key), key
            assert ours.get_providers() == theirs.get_providers()


def test_sessions_share_one_runtime(model: onnx.ModelProto) -> None:
    options = aspen_mp.SessionOptions(intra_op_num_threads=1)
    first, second = aspen_mp.InferenceSession(model, options), aspen_mp.InferenceSession(model, onnxruntime.SessionOptions())
    assert first._runtime is second._runtime is shared.runtime()
    first.close()
    assert second.run(["s"], {"x": np.zeros((2, 4), np.float32)})[0].tolist() == [2, 4]
    del first, second
    gc.collect()


def test_a_runtime_of_ones_own(model: onnx.ModelProto) -> None:
    with aspen_mp.Runtime(workers=1) as runtime, aspen_mp.InferenceSession(model, runtime=runtime) as session:
        assert session._runtime is runtime
        assert session.run(None, {"x": np.ones((1, 4), np.float32)})[1].tolist() == [1, 4]


def test_wrong_use_is_named(model: onnx.ModelProto) -> None:
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        session = aspen_mp.InferenceSession(model, providers=[("CUDAExecutionProvider", {})])
    with session:
        with pytest.raises(errors.RequestError, match="no output 'z'"):
            session.run(["z"], {"x": np.zeros((1, 4), np.float32)})
        with pytest.raises(errors.RequestError, match="x"):
            session.run(None, {"x": np.zeros((1, 5), np.float32)})
        with pytest.raises(errors.RequestError, match="x"):
            session.run(None, {})
    with pytest.raises(errors.ModelParseError):
        aspen_mp.InferenceSession(b"nonsense")
