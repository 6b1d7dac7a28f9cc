"""Operators of our own, against onnxruntime: grids, spectra, old definitions; constants of quantised models; nearest elements of Resize."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api

N = helper.make_node
F = TensorProto.FLOAT


def info(name: str, kind: int, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def build(
    nodes: list[Any], feeds: dict[str, Any], constants: dict[str, Any] | None = None, opset: int = 17, out: int = F
) -> onnx.ModelProto:
    inputs = [info(n, helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape)) for n, x in feeds.items()]
    stored = [numpy_helper.from_array(np.asarray(x), n) for n, x in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", F)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def agrees(proto: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    (got,) = run_model(api.load(proto), feeds)
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3, 7, 5)).astype(np.float32)
GRID = RNG.uniform(-1.6, 1.6, (2, 4, 6, 2)).astype(np.float32)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "opset"), [(m, 16) for m in ("bilinear", "nearest", "bicubic")] + [(m, 20) for m in ("linear", "cubic")])
def test_grid_sample(mode: str, opset: int, padding: str, align: int) -> None:
    node = N("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=align)
    feeds = {"x": X, "grid": GRID}
    agrees(build([node], feeds, opset=opset), feeds)


def test_grid_sample_in_space() -> None:
    feeds = {
        "x": RNG.standard_normal((1, 2, 3, 4, 5)).astype(np.float32),
        "grid": RNG.uniform(-1.5, 1.5, (1, 2, 3, 2, 3)).astype(np.float32),
    }
    agrees(build([N("GridSample", ["x", "grid"], ["y"])], feeds, opset=20), feeds)


def test_grid_of_doubles() -> None:
    """As PyTorch exports deformable attention. onnxruntime has none of these: it is given the same grid in single precision."""
    node = N("GridSample", ["x", "grid"], ["y"], align_corners=0)
    feeds, wide = {"x": X, "grid": GRID}, {"x": X, "grid": GRID.astype(np.float64)}
    counts: dict[str, int] = {}
    (got,) = run_model(api.load(build([node], wide)), wide, counts=counts)
    (want,) = onnxruntime.InferenceSession(build([node], feeds).SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert counts["GRIDSAMPLE"] == 1


@pytest.mark.parametrize("shape", [(2, 50), (2, 50, 1)])
@pytest.mark.parametrize("onesided", [0, 1])
def test_spectra_of_signals_with_and_without_an_axis_of_parts(shape: tuple[int, ...], onesided: int) -> None:
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
    constants = {"step": np.int64(5), "window": np.hanning(16).astype(np.float32), "length": np.int64(16)}
    agrees(build([N("STFT", ["x", "step", "window", "length"], ["y"], onesided=onesided)], feeds, constants), feeds)


@pytest.mark.parametrize(("opset", "attributes"), [(1, {}), (11, {"axis": 1}), (11, {"axis": 0}), (13, {}), (13, {"axis": 1})])
def test_hardmax_of_all_opsets(opset: int, attributes: dict[str, int]) -> None:
    agrees(build([N("Hardmax", ["x"], ["y"], **attributes)], {"x": X}, opset=opset), {"x": X})


@pytest.mark.parametrize("opset", [10, 16])
def test_regions_lie_half_a_pixel_off_from_opset_16_on(opset: int) -> None:
    feeds = {"x": X, "rois": np.array([[0, 0, 4, 3], [1, 1, 3, 6]], np.float32), "which": np.array([0, 1])}
    node = N("RoiAlign", ["x", "rois", "which"], ["y"], output_height=3, output_width=2, spatial_scale=0.5, sampling_ratio=2)
    agrees(build([node], feeds, opset=opset), feeds)


def test_determinants_of_halves() -> None:
    feeds = {"x": RNG.standard_normal((2, 3, 3)).astype(np.float16)}
    proto = build([N("Det", ["x"], ["y"])], feeds)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    (got,) = run_model(api.load(proto), feeds)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, np.linalg.det(feeds["x"].astype(np.float64)), rtol=2e-3)


def test_an_optional_holds_the_value_itself() -> None:
    nodes = [N("Optional", ["x"], ["o"]), N("OptionalGetElement", ["o"], ["y"])]
    agrees(build(nodes, {"x": X}, opset=18), {"x": X})


@pytest.mark.parametrize(("opset", "per_channel"), [(10, False), (13, False), (13, True), (19, True)])
def test_constants_of_quantised_models(opset: int, per_channel: bool) -> None:
    """As onnxruntime's tools write them: weights in eight bits, biases in 32, both dequantised in the graph."""
    count = 6 if per_channel else 1
    scale = np.abs(RNG.standard_normal(count)).astype(np.float32).reshape([count] if per_channel else [])
    constants = {
        "w": RNG.integers(-127, 127, (6, 3, 3, 3)).astype(np.int8),
        "b": RNG.integers(-999, 999, 6).astype(np.int32),
        "s": scale,
        "z": np.zeros(scale.shape, np.int8),
        "z32": np.zeros(scale.shape, np.int32),
    }
    axis = {"axis": 0} if per_channel else {}
    nodes = [
        N("DequantizeLinear", ["w", "s", "z"], ["wf"], **axis),
        N("DequantizeLinear", ["b", "s", "z32"], ["bf"], **axis),
        N("Conv", ["x", "wf", "bf"], ["y"], pads=[1, 1, 1, 1]),
    ]
    proto = build(nodes, {"x": X}, constants, opset)
    (got,) = run_model(api.load(proto), {"x": X})
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (want,) = session.run(None, {"x": X})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("scale", [0.3, 0.6, 0.7, 1.1, 1.4, 2.3])
@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (10, {}),
        (13, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        (13, {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}),
    ],
)
def test_the_nearest_element_is_the_same(opset: int, attributes: dict[str, str], scale: float) -> None:
    """Scales that are no powers of two: whole positions come out whole, or a little less, as single precision has it."""
    feeds = {"x": RNG.standard_normal((1, 2, 44, 61)).astype(np.float32)}
    inputs = ["x", "scales"] if opset == 10 else ["x", "", "scales"]
    node = N("Resize", inputs, ["y"], mode="nearest", **attributes)
    agrees(build([node], feeds, {"scales": np.array([1, 1, scale, 2 if opset == 10 else scale], np.float32)}, opset), feeds)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "picked"), [((1, 512), 1, (1, 64)), ((70, 5), 0, (3, 5)), ((4, 6, 40), -1, (2, 3, 50)), ((7,), 0, (40,))]
)
def test_gather_elements(shape: tuple[int, ...], axis: int, picked: tuple[int, ...], known: bool, inside: bool) -> None:
    """As BERT's exporters look token types up: of constants, on long axes, with fewer indices on the others, in a branch."""
    x = RNG.standard_normal(shape).astype(np.float32)
    values = {"x": x, "i": RNG.integers(-x.shape[axis], x.shape[axis], picked)}
    nodes = [N("GatherElements", ["x", "i"], ["g"], axis=axis)]
    if inside:
        branches = {name: helper.make_graph([N(op, ["g"], [name])], name, [], [info(name, F)]) for name, op in (("a", "Neg"), ("b", "Abs"))}
        body = helper.make_graph(
            [*nodes, N("If", ["c"], ["h"], then_branch=branches["a"], else_branch=branches["b"])], "body", [], [info("h", F)]
        )
        empty = helper.make_graph([N("Identity", ["x"], ["e"])], "other", [], [info("e", F)])
        nodes = [
            N("Greater", ["z", "zero"], ["c"]),
            N("If", ["c"], ["g2"], then_branch=body, else_branch=empty),
            N("Add", ["g2", "z"], ["y"]),
        ]
    else:
        nodes += [N("Add", ["g", "z"], ["y"])]
    feeds = {"z": np.array(0.5, np.float32)} | ({} if known else values)
    agrees(build(nodes, feeds, {"zero": np.float32(0)} | (values if known else {}), opset=17), feeds)
