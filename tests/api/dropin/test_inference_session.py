"""InferenceSession: what a program written for onnxruntime finds."""

from __future__ import annotations

import copy
import gc
import pickle
import queue
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import small_models
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp import errors
from aspen_mp.compat import default_runtime


@pytest.fixture(autouse=True)
def _end_of_shared_runtime() -> Iterator[None]:
    yield
    default_runtime.close()


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


def test_initializers_can_be_overridden() -> None:
    proto = small_models.with_defaults()
    theirs = onnxruntime.InferenceSession(proto.SerializeToString())
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(1, 6), "scale": np.array(0.5, np.float32)}
    with aspen_mp.InferenceSession(proto) as ours:
        for mine, other in (
            (ours.get_inputs(), theirs.get_inputs()),
            (ours.get_overridable_initializers(), theirs.get_overridable_initializers()),
        ):
            assert sorted((a.name, a.shape, a.type) for a in mine) == sorted((a.name, a.shape, a.type) for a in other)
        np.testing.assert_array_equal(ours.run(None, feeds)[0], theirs.run(None, feeds)[0])


def test_sessions_share_one_runtime(model: onnx.ModelProto) -> None:
    options = aspen_mp.SessionOptions(intra_op_num_threads=1)
    first, second = aspen_mp.InferenceSession(model, options), aspen_mp.InferenceSession(model, onnxruntime.SessionOptions())
    assert first._runtime is second._runtime is default_runtime.runtime()
    first.close()
    assert second.run(["s"], {"x": np.zeros((2, 4), np.float32)})[0].tolist() == [2, 4]
    del first, second
    gc.collect()


def test_a_runtime_of_ones_own(model: onnx.ModelProto) -> None:
    with aspen_mp.Runtime(workers=1) as runtime, aspen_mp.InferenceSession(model, runtime=runtime) as session:
        assert session._runtime is runtime
        assert session.run(None, {"x": np.ones((1, 4), np.float32)})[1].tolist() == [1, 4]


def test_options_of_both_packages_are_taken(model: onnx.ModelProto) -> None:
    x = np.ones((1, 4), np.float32)
    for package in (aspen_mp, onnxruntime):
        options = package.SessionOptions()
        options.graph_optimization_level = package.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.execution_mode = package.ExecutionMode.ORT_PARALLEL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        run_options = package.RunOptions()
        run_options.log_severity_level = 3
        providers = package.get_available_providers()
        with aspen_mp.InferenceSession(model, options, ["CPUExecutionProvider"], [{}], disabled_optimizers=["None"]) as session:
            assert session.get_session_options() is options
            assert "CPUExecutionProvider" in providers
            assert [y.tolist() for y in session.run([], {"x": x}, run_options)] == [y.tolist() for y in session.run(None, {"x": x})]
            run_options.terminate = True
            with pytest.raises(errors.RequestCancelled):
                session.run(None, {"x": x}, run_options)
    with pytest.raises(AttributeError):
        aspen_mp.SessionOptions().intra_op_threads = 2  # type: ignore[attr-defined]


def test_requests_have_deadlines(model: onnx.ModelProto) -> None:
    x = np.ones((1, 4), np.float32)
    options = aspen_mp.RunOptions()
    options.add_run_config_entry("aspen_mp.deadline_ms", "1e7")
    options.add_run_config_entry("aspen_mp.priority", "high")
    with aspen_mp.InferenceSession(model) as session:
        assert session.run(None, {"x": x}, options)[1].tolist() == [1, 4]
        options.add_run_config_entry("aspen_mp.deadline_ms", "0.000001")
        with pytest.raises(errors.DeadlineMissed):
            session.run(None, {"x": x}, options)
        options.add_run_config_entry("aspen_mp.on_late", "run")
        assert session.run(None, {"x": x}, options)[1].tolist() == [1, 4]


def test_run_async(model: onnx.ModelProto) -> None:
    answers: queue.SimpleQueue[tuple[list[np.ndarray], object, str]] = queue.SimpleQueue()
    with aspen_mp.InferenceSession(model) as session:
        x = np.ones((1, 4), np.float32)
        session.run_async(["s"], {"x": x}, lambda *answer: answers.put(answer), "mine")
        (shape,), mine, error = answers.get(timeout=60)
        assert (shape.tolist(), mine, error) == ([1, 4], "mine", "")


def test_a_copy_outlives_the_session_that_it_was_made_of(model: onnx.ModelProto) -> None:
    x = np.ones((1, 4), np.float32)
    session = aspen_mp.InferenceSession(model)
    for other in (copy.copy(session), copy.deepcopy(session), pickle.loads(pickle.dumps(session))):
        assert other.run(["s"], {"x": x})[0].tolist() == [1, 4]
        del other
        gc.collect()
        assert session.run(["s"], {"x": x})[0].tolist() == [1, 4]
    session.close()


def test_wrong_use_is_named(model: onnx.ModelProto) -> None:
    with pytest.warns(UserWarning, match="CUDAExecutionProvider") as warned:
        session = aspen_mp.InferenceSession(model, providers=[("CUDAExecutionProvider", {}), "CPUExecutionProvider"])
    assert warned[0].filename == __file__
    with session:
        with pytest.warns(UserWarning, match="'Nonsense'"), pytest.raises(RuntimeError, match="Unknown Provider Type: Nonsense"):
            session.set_providers(["Nonsense"])
        with pytest.raises(TypeError, match="output_names"):
            session.run(3, {"x": np.zeros((1, 4), np.float32)})
        with pytest.raises(TypeError, match="run_options"):
            session.run(None, {"x": np.zeros((1, 4), np.float32)}, 3)
        with pytest.raises(TypeError, match="callback"):
            session.run_async(None, {"x": np.zeros((1, 4), np.float32)}, None, None)
        with pytest.raises(errors.RequestError, match="no output 'z'"):
            session.run(["z"], {"x": np.zeros((1, 4), np.float32)})
        with pytest.raises(errors.RequestError, match="x"):
            session.run(None, {"x": np.zeros((1, 5), np.float32)})
        with pytest.raises(errors.RequestError, match="x") as missing:
            session.run(None, {})
        assert isinstance(missing.value, ValueError)  # as in onnxruntime
    with pytest.raises(errors.ModelParseError):
        aspen_mp.InferenceSession(b"nonsense")
    for wrong, error, message in (
        ({"sess_options": ["CPUExecutionProvider"]}, TypeError, "sess_options"),
        ({"sess_options": aspen_mp.SessionOptions(intra_op_num_threads=-1)}, ValueError, "intra_op_num_threads"),
        ({"providers": [3]}, ValueError, "providers"),
        ({"providers": ["CPUExecutionProvider"], "provider_options": [{}, {}]}, ValueError, "provider_options"),
    ):
        with pytest.raises(error, match=message):
            aspen_mp.InferenceSession(model, **wrong)
