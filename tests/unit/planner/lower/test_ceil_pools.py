"""Pools whose output is rounded up: windows that begin in the input, the last one cut off, whatever the opset, and none behind it."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper

from aspen_mp.planner import api
from aspen_mp.shm.errors import ModelInvalidError


def pool(op: str, opset: int, shape: tuple[int, ...], **attrs: object) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], ceil_mode=1, **attrs)], "pool", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def places(n: int, kernel: int, stride: int, before: int, after: int) -> list[tuple[int, int]]:
    """Where windows lie in the input: they begin in it or in the padding before it."""
    length = -(-(before + n + after - kernel) // stride) + 1
    starts = [k * stride - before for k in range(length)]
    return [(max(at, 0), min(at + kernel, n)) for at in starts if at < n]


def wanted(op: str, x: np.ndarray, kernel: int, stride: int, before: int, after: int) -> np.ndarray:
    rows, columns = (places(n, kernel, stride, before, after) for n in x.shape[2:])
    out = np.empty((*x.shape[:2], len(rows), len(columns)))
    for (i, (top, bottom)), (j, (left, right)) in itertools.product(enumerate(rows), enumerate(columns)):
        part = x[:, :, top:bottom, left:right].astype(np.float64)
        out[:, :, i, j] = {
            "MaxPool": lambda part: part.max(axis=(2, 3)),
            "AveragePool": lambda part: part.mean(axis=(2, 3)),
            "LpPool": lambda part: np.sqrt((part**2).sum(axis=(2, 3))),
        }[op](part)
    return out


OPSETS = {"MaxPool": (11, 21, 22), "AveragePool": (11, 21, 22), "LpPool": (18, 21, 22)}


@pytest.mark.parametrize(("op", "opset"), [(op, opset) for op, opsets in OPSETS.items() for opset in opsets])
def test_windows(op: str, opset: int) -> None:
    rng = np.random.default_rng(0)
    for kernel, stride, (before, after), n in itertools.product((2, 3), (2, 3, 4), ((0, 0), (1, 1), (0, 1), (1, 0)), (2, 3, 5, 6)):
        x = rng.standard_normal((1, 3, n, n + 1)).astype(np.float32)
        model = pool(op, opset, x.shape, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[before] * 2 + [after] * 2)
        (y,) = run_model(api.load(model), {"x": x})
        want = wanted(op, x, kernel, stride, before, after)
        assert y.shape == want.shape, (kernel, stride, before, after, n)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_norms_over_windows(p: int, dilation: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 7), dtype=np.float32)
    model = pool("LpPool", 18, x.shape, kernel_shape=[3], strides=[2], pads=[1, 1], dilations=[dilation], p=p)
    (y,) = run_model(api.load(model), {"x": x})
    taps = np.arange(y.shape[2])[:, None] * 2 - 1 + np.arange(3) * dilation
    padded = np.pad(np.abs(x.astype(np.float64)), ((0, 0), (0, 0), (1, 8)))
    np.testing.assert_allclose(y, (padded[:, :, taps + 1] ** p).sum(axis=-1) ** (1 / p), rtol=1e-5)


@pytest.mark.parametrize(("kernel", "stride", "fits"), [(3, 2, True), (5, 4, True), (3, 4, True), (5, 3, False)])
def test_windows_longer_than_the_input(kernel: int, stride: int, fits: bool) -> None:
    """One window, cut off, where rounding up makes room for one; none where not even that does."""
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    model = pool("AveragePool", 22, x.shape, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    if fits:
        np.testing.assert_allclose(run_model(api.load(model), {"x": x})[0], [[[[2.5]]]])
    else:
        with pytest.raises(ModelInvalidError, match="longer than axis 2"):
            run_model(api.load(model), {"x": x})


@pytest.mark.parametrize("opset", [12, 17, 22])
def test_what_follows_has_the_right_shapes(opset: int) -> None:
    """Also in the model's signature, and where a product behind the pool would not fit the shape of older inferences; also in a branch."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 2, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    cut = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1] * 4, "ceil_mode": 1}
    branch = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["q"], **cut)], "branch", [], [helper.make_tensor_value_info("q", 1, None)]
    )
    nodes = [
        helper.make_node("If", ["yes"], ["p"], then_branch=branch, else_branch=branch),
        helper.make_node("AveragePool", ["p"], ["a"], **cut),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"]),
    ]
    constants = {"w": np.ones((3, 4), np.float32), "yes": np.array(True)}
    graph = helper.make_graph(nodes, "g", [x], [y], [onnx.numpy_helper.from_array(v, name) for name, v in constants.items()])
    model = api.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
    assert model.signature.outputs[0].shape == (1, 4)
    image = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    np.testing.assert_allclose(run_model(model, {"x": image})[0], np.full((1, 4), 3 + 7 + 11))
