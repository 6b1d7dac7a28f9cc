"""ConvInteger and QLinearConv over any number of axes, by QCONV, QDWCONV and otherwise, against ONNX's own evaluator; room for QCONV in
plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from kernel_graphs import run_model
from onnx.reference import ReferenceEvaluator
from small_graphs import images_of_bytes
from test_quantization import alone

from aspen_mp.planner import api
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.ops.convolutions import image_scratch
from aspen_mp.planner.ops.table import params
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import ModelInvalidError
from aspen_mp.workers import _kernels

Array = np.ndarray[Any, np.dtype[Any]]
U8, I8, I32 = np.uint8, np.int8, np.int32

IMAGES = [
    ((11,), {"pads": [2, 1], "strides": [2]}),
    ((11,), {"dilations": [3]}),
    ((7, 6), {}),
    ((7, 6), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((7, 6), {"dilations": [2, 1], "pads": [4, 4, 4, 4]}),
    ((5, 4, 4), {"pads": [1] * 6}),
]
IDS = [f"{len(image)}d-{k}" for k, (image, _) in enumerate(IMAGES)]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def convolved(x: Array, w: Array, x_zero: int, w_zero: Array, attrs: dict[str, Any]) -> Array:
    """In int32, by the evaluator's convolution of float64."""
    columns = np.asarray(w_zero, np.float64).reshape(-1, *[1] * (w.ndim - 1))
    inputs = {"x": (np.float64, x.shape), "w": (np.float64, w.shape)}
    feeds = {"x": x.astype(np.float64) - x_zero, "w": w - columns}
    (found,) = ReferenceEvaluator(alone("Conv", inputs, {"y": np.float64}, **attrs)).run(None, feeds)
    return np.asarray(found).astype(np.int64).astype(I32)


@pytest.mark.parametrize(("image", "attrs"), IMAGES, ids=IDS)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("of_x", [U8, I8])
@pytest.mark.parametrize("of_w", [U8, I8])
@pytest.mark.parametrize("zeros", ["none", "x", "both", "columns"])
def test_sums(image: tuple[int, ...], attrs: dict[str, Any], groups: int, of_x: Any, of_w: Any, zeros: str) -> None:
    rng = np.random.default_rng(3)
    outputs = 36 if groups == 6 else 34
    x, w = drawn(rng, (2, 6, *image), of_x), drawn(rng, (outputs, 6 // groups, *[3, 2, 2][: len(image)]), of_w)
    inputs: dict[str, Any] = {"x": (of_x, x.shape), "w": w}
    x_zero, w_zero = drawn(rng, (), of_x), drawn(rng, (outputs,) if zeros == "columns" else (), of_w)
    inputs.update({"none": {}, "x": {"x_zero": x_zero}}.get(zeros, {"x_zero": x_zero, "w_zero": w_zero}))
    model = alone("ConvInteger", inputs, {"y": I32}, group=groups, **attrs)
    counts: dict[str, int] = {}
    (found,) = run_model(api.load(model), {"x": x}, counts=counts)
    want = convolved(x, w, int(x_zero) if "x_zero" in inputs else 0, w_zero if "w_zero" in inputs else I32(0), {"group": groups, **attrs})
    assert found.dtype == I32
    np.testing.assert_array_equal(found, want)
    assert counts.get("QCONV", 0) == (groups == 1 and len(image) < 3)
    assert counts.get("QDWCONV", 0) == (groups == 6 and len(image) < 3)


@pytest.mark.parametrize(("image", "attrs"), IMAGES, ids=IDS)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize(("of_x", "of_w", "of_y"), [(U8, I8, U8), (I8, I8, I8), (U8, U8, U8)])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_levels(
    image: tuple[int, ...], attrs: dict[str, Any], groups: int, of_x: Any, of_w: Any, of_y: Any, columns: bool, bias: bool
) -> None:
    rng = np.random.default_rng(4)
    outputs = 36 if groups == 6 else 34
    x, w = drawn(rng, (2, 6, *image), of_x), drawn(rng, (outputs, 6 // groups, *[3, 2, 2][: len(image)]), of_w)
    many = (outputs,) if columns else ()
    scale, point = (rng.random(many) * 0.02 + 0.001).astype(np.float32), drawn(rng, many, of_w)
    inputs: dict[str, Any] = {"x": (of_x, x.shape), "xs": np.float32(0.03), "xz": np.array(100, of_x), "w": w, "ws": np.asarray(scale)}
    inputs |= {"wz": point, "ys": np.float32(0.9), "yz": np.array(60, of_y)}
    if bias:
        inputs["b"] = rng.integers(-90000, 90000, outputs).astype(I32)
    (found,) = run_model(api.load(alone("QLinearConv", inputs, {"y": of_y}, group=groups, **attrs)), {"x": x})
    sums = convolved(x, w, 100, point, {"group": groups, **attrs}).astype(np.float64)
    across = (-1, *[1] * len(image))
    sums += inputs["b"].reshape(across) if bias else 0
    info = np.iinfo(of_y)
    real = sums * (np.float64(0.03) * scale.reshape(across if columns else ()) / 0.9) + 60
    assert found.dtype == of_y
    np.testing.assert_allclose(found, np.clip(real, info.min, info.max), atol=0.5 + 1e-3)
    assert len(np.unique(found)) > 10


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
def test_zero_points_that_fit_nothing(op: str) -> None:
    """Such models are refused when they are planned, not when their weights are written."""
    w, x = np.ones((6, 4, 3, 3), I8), np.ones((1, 4, 5, 5), U8)
    if op == "ConvInteger":
        inputs: dict[str, Any] = {"x": (U8, x.shape), "w": w, "xz": U8(0), "wz": np.ones(5, I8)}
    else:
        one = np.float32(1)
        inputs = {"x": (U8, x.shape), "xs": one, "xz": U8(0), "w": w, "ws": one, "wz": I8(0), "ys": one, "yz": U8(0), "b": np.ones(5, I32)}
    inputs = {n: v if isinstance(v, tuple) else np.asarray(v) for n, v in inputs.items()}
    with pytest.raises(ModelInvalidError, match=op):
        run_model(api.load(alone(op, inputs, {"y": I32 if op == "ConvInteger" else U8})), {"x": x})


@pytest.mark.parametrize("channels", [3, 5, 8])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
def test_weights_of_other_channels(op: str, groups: int, channels: int) -> None:
    """Also where both come to the same number of groups of four bytes."""
    w, x = np.ones((6, channels, 3, 3), I8), np.ones((1, 4, 5, 5), U8)
    one = np.asarray(np.float32(1))
    inputs: dict[str, Any] = {"x": (U8, x.shape), "w": w}
    if op == "QLinearConv":
        zero = np.asarray(U8(0))
        inputs = {"x": (U8, x.shape), "xs": one, "xz": zero, "w": w, "ws": one, "wz": np.asarray(I8(0)), "ys": one, "yz": zero}
    with pytest.raises(ModelInvalidError, match="has 4 channels"):
        run_model(api.load(alone(op, inputs, {"y": I32 if op == "ConvInteger" else U8}, group=groups)), {"x": x})


def test_weights_are_packed_once() -> None:
    """For the same zero points and constants, in whatever way these are given."""

    def tensor(value: Any, dtype: Any, key: str | None = None) -> Tensor:
        data = np.asarray(value).astype(dtype)
        return Tensor("t", data.shape, data.dtype, data=data, weight_key=key)

    b, w = Builder(), tensor(np.random.default_rng(1).integers(0, 99, (9, 5, 3, 3)), I8, "w")
    points, constants = tensor(np.arange(9), I8), tensor(np.arange(9), I32)
    found = [b.packed_bytes(w, *more)[0] for more in ((None, None), (points, None), (None, constants), (points, constants))]
    assert len({t.weight_key for t in found}) == 4
    assert b.packed_bytes(w, tensor(0, I8), tensor([0] * 9, I32))[0] is found[0]
    assert b.packed_bytes(w, tensor(0, I8), tensor(0, I32))[0] is found[0]
    for zero, constant in ((tensor([0] * 8, I8), None), (None, tensor([0] * 5, I32))):
        with pytest.raises(ValueError, match="of 9 columns"):
            b.packed_bytes(w, zero, constant)


@pytest.mark.parametrize(("channels", "outputs", "side", "kernel"), [(3, 64, 30, 3), (64, 64, 14, 3), (256, 40, 7, 1), (21, 300, 9, 5)])
def test_bytes_take_less_time(channels: int, outputs: int, side: int, kernel: int) -> None:
    b = GraphBuilder()
    x = b.input(1, channels, side, side)
    made = b.conv_bytes(b.whole(x, U8), outputs, (kernel, kernel)), b.conv(x, outputs, kernel)
    of_bytes, of_floats = (tile_cost.of(t.producer) for t in made if t.producer is not None)
    sides = [np.array([1, 1, 1]), np.array([outputs] * 3), np.array([1, (side + 1) // 2, side]), np.array([side] * 3)]
    assert (of_bytes(sides) <= of_floats(sides)).all()
    assert (np.diff(of_bytes(sides)) >= 0).all()


def test_scratch_is_enough_for_any_tile() -> None:
    for node in images_of_bytes(GraphBuilder()).nodes:
        if node.op != "QCONV":
            continue
        arrays = [None if t is None else np.broadcast_to(np.zeros((), t.dtype), t.shape) for t in node.inputs]
        arrays = [a if a is None or i not in {3, 4} else np.broadcast_to(a, node.output.shape) for i, a in enumerate(arrays)]
        out, shape = np.empty(node.output.shape, node.output.dtype), node.output.shape
        for lo, hi in (((0,) * 4, shape), ((1, 0, 1, 1), (2, 3, 2, 2)), ((0, 1, 0, 1), (2, 3, shape[2], 2))):
            x, box, window = node.inputs[0], (hi[2] - lo[2], hi[3] - lo[3]), [node.attrs[k] for k in ("kernel", "strides", "dilations")]
            assert x is not None
            assert _kernels.scratch("QCONV", [out, *arrays], params(node), lo, hi) <= image_scratch(x.shape[1], box, *window)


def test_plans_are_whole() -> None:
    validate(build_plan(images_of_bytes(GraphBuilder()), workers=2, options=PlanOptions()).segment())
