"""Quantised operators of floats that onnxruntime's tools write and its CPU has no kernels for, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper

from aspen_mp.planner.frontends import onnx

FLOAT8 = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
REAL = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def computed(op: str, domain: str, feeds: dict[str, Any], kinds: list[int], shapes: list[tuple[int, ...]]) -> list[Any]:
    """The results of one node, whose inputs are `feeds`, in order; `kinds` and `shapes` are of its outputs."""
    outputs = [helper.make_tensor_value_info(f"out{k}", *end) for k, end in enumerate(zip(kinds, shapes, strict=True))]
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for name, v in feeds.items()]
    node = helper.make_node(op, list(feeds), [o.name for o in outputs], domain=domain)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=10)
    return run_model(onnx.load(model.SerializeToString()), feeds)


@pytest.mark.parametrize("real", REAL)
@pytest.mark.parametrize("kind", FLOAT8)
@pytest.mark.parametrize(("left", "right"), [((3, 4), (4, 5)), ((2, 3, 7), (7, 2)), ((2, 3, 7), (2, 7, 1)), ((1, 16), (16, 16))])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_products_of_bytes_that_are_floats(domain: str, left: Any, right: Any, kind: int, real: int) -> None:
    rng = np.random.default_rng([kind, real, len(left), right[-1]])
    dtype = np.dtype(FLOAT8[kind])
    columns = right[-1] if rng.integers(2) and len(right) == 2 else 1
    x, y = (rng.normal(size=shape).astype(dtype) for shape in (left, right))
    scales = [rng.uniform(0.1, 2, size).astype(REAL[real]) for size in ((), (columns,) if columns > 1 else (), ())]
    scales[2] = scales[2] * (scales[2].dtype.type(0.01) if rng.integers(2) else 1)  # some results are too large for the type
    zero = np.zeros((), dtype)
    zeros = np.zeros(scales[1].shape, dtype)
    feeds = {"x": x, "xs": scales[0], "xz": zero, "y": y, "ys": scales[1], "yz": zeros, "zs": np.asarray(scales[2]), "zz": zero}
    wanted = (x.astype(np.float64) * scales[0]) @ (y.astype(np.float64) * scales[1].astype(np.float64)) / scales[2].astype(np.float64)
    (found,) = computed("QLinearMatMul", domain, feeds, [kind], [wanted.shape])
    most = float(ml_dtypes.finfo(dtype).max)
    assert found.dtype == dtype
    step = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(np.float64), np.clip(wanted, -most, most), rtol=0.51 * step, atol=0.02)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("real", REAL)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4), (1, 64, 3)])
def test_bytes_of_a_scale_that_fits(shape: tuple[int, ...], real: int, domain: str) -> None:
    rng = np.random.default_rng([real, *shape])
    x = (rng.normal(size=shape) * 10 + rng.normal()).astype(REAL[real])
    y, scale, zero = computed("DynamicQuantizeLinear", domain, {"x": x}, [TensorProto.UINT8, real, TensorProto.UINT8], [shape, (), ()])
    low, high = (float(f(0, f.reduce(x, axis=None))) for f in (np.minimum, np.maximum))
    step = (high - low) / 255
    assert (y.dtype, scale.dtype, zero.dtype) == (np.uint8, REAL[real], np.uint8)
    assert abs(float(scale) - step) <= step * 2e-3
    assert abs(float(zero) + low / step) <= 0.501
    back = (y.astype(np.float64) - float(zero)) * step
    np.testing.assert_allclose(back, x.astype(np.float64), atol=1.01 * step)
