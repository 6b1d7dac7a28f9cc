"""Networks that read images between their pixels: onnxruntime's results in any legal order, the same bits for any tiling, and no copies
between the layouts of convolutions and of rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from test_plans_agree import check, planned
from test_volumes_agree import Net

from aspen_mp.shm.tables import KERNEL_BY_CODE

RNG = np.random.default_rng(7)


def model(net: Net, out: str, feeds: dict[str, np.ndarray], opset: int = 20) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    graph = helper.make_graph(net.nodes, "sampled", inputs, [helper.make_tensor_value_info(out, 1, None)], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def kernels(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[str]:
    plan = planned(proto.SerializeToString(), feeds, 2).plan
    found = [KERNEL_BY_CODE[int(code)].name for code in plan.ops["kernel"]]
    return [name for name in found if name not in {"JOIN", "END"}]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def deformable_attention(batch: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """As detectors with queries have it: values of four heads from a product, points and weights of each query."""
    net, feeds = Net(), {"x": normal(batch, 48, 64), "grid": RNG.uniform(-1.2, 1.2, (4 * batch, 9, 5, 2)).astype(np.float32)}
    feeds["weights"] = normal(4 * batch, 1, 9, 5)
    values = net("MatMul", "x", net.constant(normal(64, 64) / 8))
    values = net("Transpose", net("Reshape", values, net.constant(np.array([batch, 48, 64]))), perm=[0, 2, 1])
    heads = net("Reshape", values, net.constant(np.array([4 * batch, 16, 8, 6])))
    seen = net("Mul", net("GridSample", heads, "grid", mode="linear"), "weights")
    out = net("Reshape", net("ReduceSum", seen, net.constant(np.array([-1])), keepdims=0), net.constant(np.array([batch, 64, 9])))
    return model(net, net("Transpose", out, perm=[0, 2, 1]), feeds), feeds


def flow() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Pictures and their features, moved by a flow."""
    net, feeds = Net(), {"x": normal(2, 3, 20, 17), "grid": RNG.uniform(-1.1, 1.1, (2, 15, 18, 2)).astype(np.float32)}
    picture = net("GridSample", "x", "grid", mode="cubic", padding_mode="reflection")
    features = net("GridSample", net.conv("x", 3, 24, (3, 3), pads=[1] * 4), "grid", padding_mode="border", align_corners=1)
    both = net("Concat", net.conv(picture, 3, 8, (3, 3)), net.conv(features, 24, 8, (3, 3)), axis=1)
    return model(net, net.conv(both, 16, 6, (1, 1)), feeds), feeds


def regions(flat: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The head of a detector: regions to rows, or through convolutions."""
    corners = RNG.uniform(0, 60, (23, 2, 2)).astype(np.float32)
    rois = np.concatenate([corners.min(1), corners.max(1)], 1)
    net, feeds = Net(), {"x": normal(2, 3, 24, 20), "rois": rois, "which": RNG.integers(0, 2, 23)}
    x = net.conv("x", 3, 32, (3, 3), pads=[1] * 4)
    cells = net("RoiAlign", x, "rois", "which", output_height=5, output_width=5, sampling_ratio=2, spatial_scale=0.3)
    if flat:
        rows = net("Reshape", cells, net.constant(np.array([0, -1])))
        return model(net, net("MatMul", rows, net.constant(normal(800, 9) / 30)), feeds), feeds
    return model(net, net.conv(cells, 32, 6, (3, 3)), feeds), feeds


def deformable(groups: int, masked: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    net, feeds = Net(), {"x": normal(2, 3, 14, 15)}
    x = net.conv("x", 3, 32, (3, 3), pads=[1] * 4)
    offsets = net.conv(x, 32, 36, (3, 3), pads=[1] * 4, strides=[2, 1])
    mask = [net("Sigmoid", net.conv(x, 32, 18, (3, 3), pads=[1] * 4, strides=[2, 1]))] if masked else []
    inputs = [x, net.constant(normal(40, 32 // groups, 3, 3) / 12), offsets, net.constant(normal(40)), *mask]
    y = net("DeformConv", *inputs, group=groups, offset_group=2, pads=[1] * 4, strides=[2, 1], kernel_shape=[3, 3])
    return model(net, net.conv(net("Relu", y), 40, 5, (1, 1)), feeds), feeds


@pytest.mark.parametrize("batch", [1, 2])
def test_deformable_attention(batch: int) -> None:
    proto, feeds = deformable_attention(batch)
    check(proto, feeds)
    if batch == 1:  # heads are lines of channels of the product: nothing is moved in front of the points
        found = kernels(proto, feeds)
        assert found[: found.index("GRIDSAMPLE") + 1] == ["GEMM", "GRIDSAMPLE"]


def test_flow() -> None:
    proto, feeds = flow()
    check(proto, feeds)
    assert kernels(proto, feeds).count("GRIDSAMPLE") == 2


@pytest.mark.parametrize("flat", [True, False], ids=["rows", "images"])
def test_regions(flat: bool) -> None:
    proto, feeds = regions(flat)
    check(proto, feeds)
    found = kernels(proto, feeds)
    assert "OPAQUE" not in found
    assert "COPY" not in found[found.index("ROIALIGN") :][:2]


@pytest.mark.parametrize(("groups", "masked"), [(1, True), (4, False)])
def test_deformable(groups: int, masked: bool) -> None:
    proto, feeds = deformable(groups, masked)
    check(proto, feeds)
    found = kernels(proto, feeds)
    assert found[found.index("DEFORM") : found.index("DEFORM") + 2] == ["DEFORM", "CONV"]


def test_doubles_and_more_axes_have_no_kernel() -> None:
    """They run as before."""
    for kind, shape, target in ((np.float64, (1, 2, 4, 5), (3, 2)), (np.float32, (1, 2, 3, 2, 2, 2), (2, 1, 2, 1))):
        net = Net()
        feeds = {"x": normal(*shape).astype(kind), "grid": RNG.uniform(-1, 1, (1, *target, len(target))).astype(kind)}
        out = net("GridSample", "x", "grid")
        proto = model(net, out, feeds)
        proto.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        assert kernels(proto, feeds) == ["OPAQUE"]
