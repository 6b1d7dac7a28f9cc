"""aspen_mp.backend: the interface of onnx.backend.base."""

from __future__ import annotations

import unittest
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto, checker, helper
from onnx.backend.test import BackendTest

from aspen_mp import backend, errors
from aspen_mp.compat import default_runtime


@pytest.fixture(autouse=True)
def _end_of_shared_runtime() -> Iterator[None]:
    yield
    default_runtime.close()


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")


def test_models_take_inputs_in_any_habit() -> None:
    x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xyz"]
    model = helper.make_model(helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "g", infos[:2], infos[2:]), ir_version=10)
    assert backend.is_compatible(model)
    prepared = backend.prepare(model)
    for inputs in ([x, y], (x, y), {"x": x, "y": y}):
        result = prepared.run(inputs)
        assert result.z.tolist() == result[0].tolist() == result["z"].tolist() == [1, 2, 3, 4]
    with pytest.raises(errors.RequestError, match="3 inputs were given"):
        prepared.run([x, y, y])
    prepared.close()
    assert backend.run_model(model, [x, y])[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(errors.RequestError, match="CUDA"):
        backend.prepare(model, "CUDA")


def test_single_nodes() -> None:
    x = np.array([[1.0, -2.0]], np.float32)
    assert backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])[0].tolist() == [[1, 0]]
    parts = backend.run_node(helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2), [x])
    assert [p.tolist() for p in parts] == [[[1]], [[-2]]]
    clip = helper.make_node("Clip", ["x", "", "hi"], ["y"])
    assert backend.run_node(clip, [x, np.float32(0.5)])[0].tolist() == [[0.5, -2]]
    softmax = helper.make_node("Softmax", ["x"], ["y"])
    got = backend.run_node(softmax, {"x": x}, opset_version=11, outputs_info=[(np.dtype(np.float32), (1, 2))])
    np.testing.assert_allclose(got[0].sum(), 1, rtol=1e-6)
    with pytest.raises(checker.ValidationError):
        backend.run_node(helper.make_node("NoSuchOp", ["x"], ["y"]), [x])


@pytest.mark.parametrize(
    "name", ["test_add_cpu", "test_nonzero_example_cpu", "test_sequence_insert_at_back_cpu", "test_string_split_basic_cpu"]
)
def test_the_official_runner_takes_it(name: str) -> None:
    cases = BackendTest(backend, __name__).include(f"^{name}$").test_cases["OnnxBackendNodeModelTest"]
    result = unittest.TestResult()
    cases(name).run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    assert result.testsRun == 1
    assert not result.skipped
