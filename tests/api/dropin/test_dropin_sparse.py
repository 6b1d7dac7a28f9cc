"""Sparse inputs, outputs and constants beside onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp.compat import onnxruntime as compat

TYPES = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
    TensorProto.UINT32: np.uint32,
    TensorProto.UINT64: np.uint64,
}


def value(module: Any, dense: np.ndarray, form: str) -> Any:
    """An OrtValue of a sparse tensor, and of the indices that it points to."""
    device = module.OrtDevice.make("cpu", 0)
    rows, columns = (part.astype(np.int64) for part in np.nonzero(dense))
    values = np.ascontiguousarray(dense[rows, columns])
    if form == "csr":
        outer = np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int64)
        made = module.SparseTensor.sparse_csr_from_numpy(list(dense.shape), values, columns, outer, device)
    else:
        indices = np.flatnonzero(dense).astype(np.int64) if form == "flat" else np.ascontiguousarray(np.stack([rows, columns], 1))
        made = module.SparseTensor.sparse_coo_from_numpy(list(dense.shape), values, indices, device)
    return module.OrtValue.ort_value_from_sparse_tensor(made)


@pytest.mark.parametrize("form", ["flat", "pairs", "csr"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products(kind: int, form: str, trans_a: int, trans_b: int, shared_runtime: aspen_mp.Runtime) -> None:
    rng = np.random.default_rng([kind, len(form), trans_a, trans_b])
    n, m, k = rng.integers(1, 9, 3).tolist()
    a = (rng.integers(0, 5, (m, n) if trans_a else (n, m)) * rng.integers(0, 2, (m, n) if trans_a else (n, m))).astype(TYPES[kind])
    b = rng.integers(0, 5, (k, m) if trans_b else (m, k)).astype(TYPES[kind])
    a[0, 0] = 1  # onnxruntime takes no tensor of zeros alone
    alpha = float(rng.integers(1, 4))
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft", transA=trans_a, transB=trans_b, alpha=alpha)
    ends = [helper.make_sparse_tensor_value_info("a", kind, a.shape)]
    ends += [helper.make_tensor_value_info(name, kind, shape) for name, shape in (("b", b.shape), ("y", (n, k)))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:2], ends[2:]), opset_imports=opsets, ir_version=8).SerializeToString()
    ours = compat.InferenceSession(model, runtime=shared_runtime)
    assert ours.get_inputs()[0].type == value(compat, a, form).data_type()
    wanted = alpha * ((a.T if trans_a else a).astype(np.float64) @ (b.T if trans_b else b).astype(np.float64))
    (found,) = ours.run_with_ort_values(["y"], {"a": value(compat, a, form), "b": compat.OrtValue.ortvalue_from_numpy(b)})
    assert found.data_type() == ours.get_outputs()[0].type
    np.testing.assert_array_equal(found.numpy(), wanted)
    if trans_a or trans_b or form == "flat" or (alpha != 1 and kind != TensorProto.FLOAT):
        return  # onnxruntime infers other shapes, has no kernel, or forgets the factor
    theirs = onnxruntime.InferenceSession(model)
    assert [(i.name, i.type, i.shape) for i in ours.get_inputs()] == [(i.name, i.type, i.shape) for i in theirs.get_inputs()]
    feeds = {"a": value(onnxruntime, a, form), "b": onnxruntime.OrtValue.ortvalue_from_numpy(b)}
    np.testing.assert_array_equal(found.numpy(), theirs.run_with_ort_values(["y"], feeds)[0].numpy())


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(1, 9), (3, 4), (5, 2)])
def test_a_constant_as_output(kind: int, shape: tuple[int, ...], shared_runtime: aspen_mp.Runtime) -> None:
    rng = np.random.default_rng([kind, *shape])
    size = int(np.prod(shape))
    places = np.sort(rng.choice(size, 3, replace=False))
    values = rng.integers(1, 9, 3).astype(TYPES[kind])
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("y", kind, [3], values.tolist()), helper.make_tensor("", TensorProto.INT64, [3], places), shape
    )
    graph = helper.make_graph([], "g", [], [helper.make_sparse_tensor_value_info("y", kind, shape)])
    graph.sparse_initializer.append(sparse)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    for module, more in ((compat, {"runtime": shared_runtime}), (onnxruntime, {})):
        session = module.InferenceSession(model, **more)
        (found,) = session.run_with_ort_values(["y"], {})
        tensor = found.as_sparse_tensor()
        assert tensor.dense_shape() == list(shape)
        assert tensor.data_type().startswith("sparse_tensor(")
        np.testing.assert_array_equal(tensor.values(), values)
        np.testing.assert_array_equal(tensor.as_coo_view().indices(), places)
