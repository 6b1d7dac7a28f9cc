"""Operators as opsets 1 to 6 define them, which onnxruntime has no longer: against numpy, as kernels and not in onnx.reference; what cannot
be run is refused when the model is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api
from aspen_mp.shm.errors import UnsupportedModelError

N = helper.make_node
RNG = np.random.default_rng(11)


def array(*shape: int) -> np.ndarray:
    return (np.abs(RNG.standard_normal(shape)) + 0.1).astype(np.float32)


def model(opset: int, node: onnx.NodeProto, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Constants are inputs too, as was the rule before IR version 4."""

    def info(name: str, x: np.ndarray) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)

    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    stored = [numpy_helper.from_array(x, n) for n, x in constants.items()]
    graph = helper.make_graph([node], "old", [info(n, x) for n, x in (feeds | constants).items()], outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


X = array(2, 3, 4, 5)
PICTURE = {name: array(3, 4, 5) for name in ("scale", "bias", "mean", "variance")}
CHANNELS = {name: array(3) for name in ("scale", "bias", "mean", "variance")}
TERMS = array(3)
LEFT, RIGHT = array(4, 3), array(5, 3)


def normalised(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    shape = scale.shape + (1,) * (x.ndim - 1 - scale.ndim)
    scale, bias, mean, variance = (t.reshape(shape) for t in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + bias


def case(opset: int, op: str, want: Any, x: np.ndarray = X, constants: dict[str, np.ndarray] | None = None, **attributes: Any) -> Any:
    wants = want if isinstance(want, list) else [want]
    outputs = [f"y{k}" for k in range(len(wants))]
    return pytest.param(opset, N(op, ["x", *(constants or {})], outputs, **attributes), x, constants or {}, wants, id=f"{op}-{opset}")


SLOPES = {"slope": np.arange(5, dtype=np.float32)}
NEGATIVE = -array(2, 5, 3, 5)  # as many columns as channels, which the slope belongs to
PARTS = [X[:, :1], X[:, 1:]]
CASES = [
    *(case(o, "Add", X + TERMS[:, None, None], constants={"w": TERMS}, broadcast=1, axis=1) for o in (1, 6)),
    *(case(o, "Div", X / TERMS[:, None, None], constants={"w": TERMS}, broadcast=1, axis=-3) for o in (1, 6)),
    case(1, "Pow", X ** TERMS[:, None, None], constants={"w": TERMS}, broadcast=1, axis=1),
    case(6, "Sub", X - X[0, 0], constants={"w": X[0, 0]}, broadcast=1),
    *(case(o, "Gemm", LEFT @ RIGHT.T + 2, LEFT, {"w": RIGHT, "c": np.full(5, 2, np.float32)}, transB=1, broadcast=1) for o in (1, 6)),
    case(1, "BatchNormalization", normalised(X, **CHANNELS), constants=CHANNELS, is_test=1, consumed_inputs=[0, 0, 0, 1, 1]),
    case(6, "BatchNormalization", normalised(X, **CHANNELS), constants=CHANNELS, is_test=1),
    case(6, "BatchNormalization", normalised(X, **PICTURE), constants=PICTURE, is_test=1, spatial=0),
    case(7, "BatchNormalization", normalised(X, **PICTURE), constants=PICTURE, spatial=0),
    *(case(o, "PRelu", NEGATIVE * SLOPES["slope"][:, None, None], NEGATIVE, SLOPES) for o in (1, 6)),
    case(1, "Split", PARTS, axis=1, split=[1, 2]),
    case(1, "Split", PARTS, constants={"parts": np.array([1, 2], np.float32)}, axis=1),
    case(1, "Reshape", X.reshape(2, -1), shape=[0, -1]),
    case(1, "Concat", np.concatenate([X, TERMS.reshape(1, 3, 1, 1) + 0 * X], 1), constants={"w": TERMS.reshape(1, 3, 1, 1) + 0 * X}),
    case(1, "Cast", X, X.astype(np.float64), to="FLOAT"),
    case(1, "Tile", np.tile(X, (1, 2, 1, 1)), constants={"tiles": np.float32(2).reshape(1), "axis": np.float32(1).reshape(1)}),
    case(1, "Upsample", X.repeat(2, 2).repeat(3, 3), height_scale=2.0, width_scale=3.0),
    case(1, "Pad", np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=3), paddings=[0, 0, 1, 0, 0, 0, 0, 2], value=3.0),
    case(1, "Clip", X.clip(0.2, 0.5), min=0.2, max=0.5),
    case(1, "Relu", X, consumed_inputs=[0]),
    case(1, "Dropout", X, is_test=1, consumed_inputs=[0]),
    case(1, "Selu", X * 1.0507, consumed_inputs=[0]),
]


@pytest.mark.parametrize(("opset", "node", "x", "constants", "wants"), CASES)
def test_old_definitions(
    opset: int, node: onnx.NodeProto, x: np.ndarray, constants: dict[str, np.ndarray], wants: list[np.ndarray]
) -> None:
    got = run_model(api.load(model(opset, node, {"x": x}, constants)), {"x": x})
    for have, want in zip(got, wants, strict=True):
        assert (have.shape, have.dtype) == (want.shape, np.float32)
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_batch_normalisation_in_training_is_refused() -> None:
    node = N("BatchNormalization", ["x", *CHANNELS], ["y"], name="trained")
    with pytest.raises(UnsupportedModelError, match=r"'trained' \(BatchNormalization\).*export the model for inference"):
        api.load(model(6, node, {"x": X}, CHANNELS))


def test_old_nodes_in_bodies_are_refused() -> None:
    """There onnx.reference would run them, as it understands them."""
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, []), ("c", 9, []), ("v", 1, [2, 3, 4, 5]))]
    nodes = [N("Add", ["v", "w"], ["v2"], name="inner", broadcast=1, axis=1), N("Identity", ["c"], ["c2"])]
    results = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("c2", 9, []), ("v2", 1, [2, 3, 4, 5]))]
    body = helper.make_graph(nodes, "body", infos, results)
    loop = N("Loop", ["trips", "", "x"], ["y"], body=body)
    with pytest.raises(UnsupportedModelError, match=r"'inner' \(Add\).*version_converter"):
        api.load(model(6, loop, {"x": X}, {"w": TERMS, "trips": np.array(2)}))
