"""Transposed convolutions against onnxruntime: strides, pads, groups, kernels smaller than their strides; what follows them joins them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api

RNG = np.random.default_rng(11)
N = helper.make_node


def build(nodes: list[Any], x: np.ndarray, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    stored = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agrees(proto: onnx.ModelProto, x: np.ndarray) -> dict[str, int]:
    counts: dict[str, int] = {}
    (got,) = run_model(api.load(proto), {"x": x}, counts=counts)
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(want).max())))
    return {kernel: n for kernel, n in counts.items() if not kernel.startswith("view.")}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


AXIS = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(
    axes=st.lists(AXIS, min_size=1, max_size=3),
    groups=st.sampled_from([(1, 3, 2), (2, 2, 3), (3, 1, 1), (4, 1, 2)]),
    batch=st.integers(1, 2),
    bias=st.booleans(),
)
def test_any(axes: list[tuple[int, ...]], groups: tuple[int, int, int], batch: int, bias: bool) -> None:
    size, kernel, strides, before, after, more = (list(column) for column in zip(*axes, strict=True))
    g, inputs, outputs = groups
    more = [min(m, s - 1) for m, s in zip(more, strides, strict=True)]
    length = [s * (d - 1) + k + m - b - a for d, k, s, b, a, m in zip(size, kernel, strides, before, after, more, strict=True)]
    assume(min(length) > 0)
    constants = {"w": normal(g * inputs, outputs, *kernel)} | ({"b": normal(g * outputs)} if bias else {})
    node = N("ConvTranspose", ["x", *constants], ["y"], group=g, strides=strides, pads=[*before, *after], output_padding=more)
    x = normal(batch, g * inputs, *size)
    assert "OPAQUE" not in agrees(build([node], x, constants), x)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(("kernel", "pads"), [(4, 1), (2, 0), (3, 1)])
def test_what_follows_joins(kernel: int, pads: int, groups: int) -> None:
    """As generators and decoders have it: normalised and activated, both in the convolution's own kernel."""
    x, channels = normal(1, 8, 5, 6), 16 if groups < 8 else 8
    norm = {n: np.abs(normal(channels)) + 0.5 for n in ("scale", "mean", "var")} | {"shift": normal(channels)}
    constants = {"w": normal(8, channels // groups, kernel, kernel), "b": normal(channels), **norm}
    nodes = [
        N("ConvTranspose", ["x", "w", "b"], ["c"], group=groups, strides=[2, 2], pads=[pads] * 4),
        N("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"]),
        N("LeakyRelu", ["n"], ["y"], alpha=0.2),
    ]
    counts = agrees(build(nodes, x, constants), x)
    assert set(counts) <= {"CONV", "DWCONV", "WINO", "COPY"}, counts


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_activation_of_shuffled_pixels(mode: str) -> None:
    x = normal(1, 6, 5, 7)
    nodes = [N("Conv", ["x", "w"], ["c"], pads=[1] * 4), N("DepthToSpace", ["c"], ["d"], blocksize=2, mode=mode), N("Relu", ["d"], ["y"])]
    counts = agrees(build(nodes, x, {"w": normal(12, 6, 3, 3)}), x)
    assert set(counts) <= {"CONV", "WINO", "COPY"}, counts


def test_activation_of_a_small_part_stays() -> None:
    """What is not wanted is not activated."""
    x = normal(1, 64, 3)
    slices = {"from": np.array([0]), "to": np.array([1]), "axis": np.array([1])}
    nodes = [N("MatMul", ["x", "w"], ["m"]), N("Slice", ["m", "from", "to", "axis"], ["s"]), N("Tanh", ["s"], ["y"])]
    assert "UNARY" in agrees(build(nodes, x, {"w": normal(3, 40), **slices}), x)
