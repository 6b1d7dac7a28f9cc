"""How exporters write LayerNorm, RMSNorm and GroupNorm: each spelling becomes one NORM, or of
images MOMENTS and STANDARDIZE, with the numbers that ONNX defines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
import onnx
import pytest
from net_tools import N, Net, check, ops

from aspen_mp.planner.ir.graph import Node

B, S, D = 3, 5, 24
EPS = 1e-3
F16, F32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT

INVERSES: dict[str, Callable[[Net, str], str]] = {
    "reciprocal of the root": lambda n, v: n("Reciprocal", n("Sqrt", v)),
    "one over the root": lambda n, v: n("Div", n.number(1), n("Sqrt", v)),
    "root of the reciprocal": lambda n, v: n("Sqrt", n("Reciprocal", v)),
    "power -0.5": lambda n, v: n("Pow", v, n.number(-0.5)),
    "reciprocal of power 0.5": lambda n, v: n("Reciprocal", n("Pow", v, n.number(0.5))),
}
SQUARES: dict[str, Callable[[Net, str], str]] = {
    "power": lambda n, x: n("Pow", x, n.number(2)),
    "product": lambda n, x: n("Mul", x, x),
}


def only(nodes: Sequence[Node], mode: str = "layer") -> Node:
    assert ops(list(nodes)) == ["NORM"]
    assert nodes[0].attrs["mode"] == mode
    return nodes[0]


def average(net: Net, x: str, axes: Sequence[int] = (-1,), keepdims: int = 1) -> str:
    """ReduceMean, with axes where the opset has them."""
    if net.opset < 18:
        return net("ReduceMean", x, axes=list(axes), keepdims=keepdims)
    return net("ReduceMean", x, net.constant(np.array(axes, np.int64)), keepdims=keepdims)


def plus_eps(net: Net, variance: str, value: float = EPS) -> str:
    return net("Add", variance, net.number(value))


def affine(net: Net, y: str, *shape: int) -> str:
    return net("Add", net("Mul", y, net.weight(*shape or (D,))), net.weight(*shape or (D,)))


def moments(net: Net, x: str, axes: Sequence[int] = (-1,), square: str = "product") -> tuple[str, str, str]:
    """Mean, difference, variance."""
    mean = average(net, x, axes)
    centred = net("Sub", x, mean)
    return mean, centred, average(net, SQUARES[square](net, centred), axes)


# ------------------------------------------------------------------------------------------------------------------- LayerNorm


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize("square", SQUARES)
def test_pytorch_torchscript(square: str, opset: int) -> None:
    net = Net(x=(B, S, D), opset=opset)
    _, centred, variance = moments(net, "x", square=square)
    node = only(check(net, affine(net, net("Div", centred, net("Sqrt", plus_eps(net, variance)))), reference=True))
    assert node.attrs["eps"] == pytest.approx(EPS)
    assert len(node.inputs) == 3


def test_pytorch_torchscript_difference_twice() -> None:
    net = Net(x=(B, S, D))
    mean = average(net, "x")
    first, second = net("Sub", "x", mean), net("Sub", "x", mean)
    y = net("Div", first, net("Sqrt", plus_eps(net, average(net, net("Pow", second, net.number(2))))))
    only(check(net, affine(net, y), reference=True))


def test_pytorch_dynamo() -> None:
    net = Net(x=(B, S, D))
    only(check(net, net("LayerNormalization", "x", net.weight(D), net.weight(D), axis=-1, epsilon=EPS), reference=True))


@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("swapped", [False, True])
def test_pytorch_dynamo_decomposed(inverse: str, swapped: bool) -> None:
    net = Net(x=(B, S, D), opset=18)
    _, centred, variance = moments(net, "x")
    factors = [centred, INVERSES[inverse](net, plus_eps(net, variance))]
    only(check(net, affine(net, net("Mul", *(factors[::-1] if swapped else factors))), reference=True))


@pytest.mark.parametrize("axes", [(-1,), (2,), (-2, -1), (1, 2)])
def test_axes_counted_from_both_ends(axes: tuple[int, ...]) -> None:
    net = Net(x=(B, S, D))
    _, centred, variance = moments(net, "x", axes)
    y = affine(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), *(S, D)[-len(axes) :])
    assert only(check(net, y, reference=True)).attrs["axis"] == 3 - len(axes)


def test_statistics_without_their_axis() -> None:
    """keepdims=0, the axis put back afterwards."""
    net = Net(x=(B, S, D))
    mean = net("Unsqueeze", average(net, "x", keepdims=0), net.constant([-1]))
    centred = net("Sub", "x", mean)
    variance = net("Unsqueeze", average(net, net("Mul", centred, centred), keepdims=0), net.constant([2]))
    only(check(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), reference=True))


@pytest.mark.parametrize("way", ["sums", "sum of squares"])
def test_means_by_sums(way: str) -> None:
    net = Net(x=(B, S, D), opset=13)
    axes = net.constant([-1])
    mean = net("Mul", net("ReduceSum", "x", axes), net.number(1 / D))
    centred = net("Sub", "x", mean)
    total = net("ReduceSum", net("Mul", centred, centred), axes) if way == "sums" else net("ReduceSumSquare", centred, axes=[-1])
    y = net("Div", centred, net("Sqrt", plus_eps(net, net("Div", total, net.number(D)))))
    only(check(net, y, reference=True))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("version", ["TensorFlow", "Keras 3"])
def test_tensorflow_moments(version: str, scale: bool, center: bool) -> None:
    """tf2onnx of `tf.nn.moments` and `tf.nn.batch_normalization`: no squared difference, no inverse root in ONNX."""
    net = Net(x=(B, S, D), opset=13)
    mean, _, variance = moments(net, "x")
    factor = net("Reciprocal", net("Sqrt", plus_eps(net, variance)))
    factor = net("Mul", factor, net.weight(D)) if scale else factor
    scaled = net("Mul", "x", factor)
    if version == "TensorFlow" and center:
        y = net("Add", scaled, net("Sub", net.weight(D), net("Mul", mean, factor)))
    elif version == "TensorFlow":
        y = net("Sub", scaled, net("Mul", mean, factor))
    else:
        offset = net("Mul", net("Neg", mean), factor)
        y = net("Add", scaled, net("Add", offset, net.weight(D)) if center else offset)
    node = only(check(net, y, reference=True))
    assert len(node.inputs) == 1 + 2 * center + (scale and not center)


@pytest.mark.parametrize("clamp", ["Max", "Relu", None])
def test_flax_fast_variance(clamp: str | None) -> None:
    """mean(x²) - mean(x)², scale joined with the root's inverse."""
    net = Net(x=(B, S, D))
    mean = average(net, "x")
    variance = net("Sub", average(net, net("Mul", "x", "x")), net("Mul", mean, mean))
    variance = net("Max", net.number(0), variance) if clamp == "Max" else net("Relu", variance) if clamp else variance
    factor = net("Mul", net("Reciprocal", net("Sqrt", plus_eps(net, variance))), net.weight(1, 1, D))
    y = net("Add", net("Mul", net("Sub", "x", mean), factor), net.weight(1, 1, D))
    assert len(only(check(net, y, reference=True)).inputs) == 3


def test_keras_fused_batch_norm_in_training() -> None:
    """[1, rows, features, 1], normalised by BatchNormalization with the batch's own statistics, then scaled outside."""
    net = Net(x=(B, S, D), opset=15)
    flat = net("Reshape", "x", net.constant([1, B * S, D, 1]))
    ones, zeros = net.constant(np.ones(B * S, np.float32)), net.constant(np.zeros(B * S, np.float32))
    net.nodes.append(N("BatchNormalization", [flat, ones, zeros, zeros, ones], ["y", "mean", "var"], epsilon=EPS, training_mode=1))
    node = only(check(net, affine(net, net("Reshape", "y", net.constant([B, S, D]))), reference=True))
    assert len(node.inputs) == 3


@pytest.mark.parametrize("shape", [(3, 6, 4, 5), (3, 6, 4), (7, 6)])
def test_batch_norm_in_training(shape: tuple[int, ...]) -> None:
    net = Net(x=shape, opset=15)
    inputs = ["x", *(net.weight(6, positive=True) for _ in range(4))]
    net.nodes.append(N("BatchNormalization", inputs, ["y", "mean", "var"], epsilon=EPS, training_mode=1, momentum=0.7))
    assert "OPAQUE" not in ops(check(net, "y", "mean", "var", reference=True))


def test_keras_fused_batch_norm_with_computed_statistics() -> None:
    """The same with mean and variance computed before."""
    net = Net(x=(B, S, D), opset=13)
    flat = net("Reshape", "x", net.constant([1, B * S, D, 1]))
    mean, _, variance = moments(net, flat, (0, 2, 3))
    ones, zeros = net.constant(np.ones(B * S, np.float32)), net.constant(np.zeros(B * S, np.float32))
    mean, variance = (net("Squeeze", t, net.constant([0, 2, 3])) for t in (mean, variance))
    y = net("BatchNormalization", flat, ones, zeros, mean, variance, epsilon=EPS)
    node = only(check(net, affine(net, net("Reshape", y, net.constant([B, S, D]))), reference=True))
    assert len(node.inputs) == 3


@pytest.mark.parametrize("way", ["decomposed", "operator"])
def test_channels_first(way: str) -> None:
    """ConvNeXt: over axis 1 of an image, or around transposes."""
    net = Net(x=(2, D, 4, 5))
    if way == "decomposed":
        _, centred, variance = moments(net, "x", (1,))
        y = net("Div", centred, net("Sqrt", plus_eps(net, variance)))
    else:
        y = net("LayerNormalization", net("Transpose", "x", perm=[0, 2, 3, 1]), net.constant(np.ones(D, np.float32)), epsilon=EPS)
        y = net("Transpose", y, perm=[0, 3, 1, 2])
    node = only(check(net, affine(net, y, D, 1, 1), reference=True))
    assert node.attrs["axis"] == 3
    assert len(node.inputs) == 3


def test_first_axis() -> None:
    net = Net(x=(D, 7))
    _, centred, variance = moments(net, "x", (0,))
    only(check(net, affine(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), D, 7), reference=True))


@pytest.mark.parametrize("groups", [1, 4, 24])
def test_pytorch_group_norm(groups: int) -> None:
    """Groups as channels of an InstanceNormalization, scale and shift of the real channels outside."""
    net = Net(x=(2, D, 4, 5))
    neutral = net.constant(np.ones(groups, np.float32)), net.constant(np.zeros(groups, np.float32))
    y = net("InstanceNormalization", net("Reshape", "x", net.constant([0, groups, -1])), *neutral, epsilon=EPS)
    standardized(check(net, affine(net, net("Reshape", y, net.constant([2, D, 4, 5])), D, 1, 1), reference=True), groups)


def standardized(nodes: Sequence[Node], groups: int, inputs: int = 4, act: str = "IDENTITY", rows: int = 1) -> None:
    assert ops(list(nodes)) == ["MOMENTS", "STANDARDIZE"]
    moments, node = nodes
    assert moments.output.shape[2] == groups
    assert len(node.inputs) == inputs
    assert node.attrs["act"][0] == act
    x = node.inputs[0]
    assert x is not None
    for t in node.inputs[2:4]:
        assert t is not None
        assert t.shape == (rows, x.shape[1])


def test_group_norm_operator() -> None:
    net = Net(x=(2, D, 4, 5), opset=21)
    y = net("GroupNormalization", "x", net.weight(D), net.weight(D), num_groups=4, epsilon=EPS)
    standardized(check(net, net("Mul", y, net("Sigmoid", y)), reference=True), 4, act="SWISH")


def test_scale_of_each_group() -> None:
    net = Net(x=(2, D, 4, 5))
    y = net("InstanceNormalization", net("Reshape", "x", net.constant([0, 4, -1])), net.weight(4), net.weight(4), epsilon=EPS)
    standardized(check(net, net("Reshape", y, net.constant([2, D, 4, 5])), reference=True), 4)


@pytest.mark.parametrize("spatial", [(7,), (4, 5), (2, 3, 4)])
def test_instance_norm(spatial: tuple[int, ...]) -> None:
    net = Net(x=(2, D, *spatial))
    y = net("InstanceNormalization", "x", net.weight(D), net.weight(D), epsilon=EPS)
    standardized(check(net, net("Relu", y), reference=True), D, act="RELU")


def test_instance_norm_without_scale() -> None:
    net = Net(x=(2, D, 4, 5))
    neutral = net.constant(np.ones(D, np.float32)), net.constant(np.zeros(D, np.float32))
    nodes = check(net, net("InstanceNormalization", "x", *neutral, epsilon=EPS), reference=True)
    standardized(nodes, D)


def test_group_norm_whose_scale_follows_from_the_input() -> None:
    """Styles: a scale and a shift for each image and channel, absorbed where nothing but the normalisation stands before them."""
    net = Net(x=(2, D, 4, 5), scale=(2, D, 1, 1), shift=(2, D, 1, 1))
    neutral = net.constant(np.ones(D, np.float32)), net.constant(np.zeros(D, np.float32))
    y = net("InstanceNormalization", "x", *neutral, epsilon=EPS)
    standardized(check(net, net("Add", net("Mul", y, "scale"), "shift"), reference=True), D, rows=2)


@pytest.mark.parametrize("swapped", [False, True])
def test_residual_behind_an_image(swapped: bool) -> None:
    """Absorbed in front of an activation, not behind one."""
    net = Net(x=(2, D, 4, 5), z=(2, D, 4, 5))
    y = net("InstanceNormalization", "x", net.weight(D), net.weight(D), epsilon=EPS)
    y = net("Relu", net("Add", *(("z", y) if swapped else (y, "z"))))
    standardized(check(net, y, reference=True), D, 5, "RELU")
    net = Net(x=(2, D, 4, 5), z=(2, D, 4, 5))
    y = net("Relu", net("InstanceNormalization", "x", net.weight(D), net.weight(D), epsilon=EPS))
    assert ops(check(net, net("Add", y, "z"), reference=True)) == ["MOMENTS", "STANDARDIZE", "BINARY"]


def test_image_far_from_zero() -> None:
    net = Net(x=(2, D, 4, 5))
    far = net("Add", "x", net.number(1000))
    y = net("InstanceNormalization", net("Reshape", far, net.constant([0, 4, -1])), net.weight(4), net.weight(4), epsilon=EPS)
    nodes = check(net, affine(net, net("Reshape", y, net.constant([2, D, 4, 5])), D, 1, 1), tolerance=1e-4)
    assert ops(nodes)[1:3] == ["MOMENTS", "STANDARDIZE"]


def test_layer_norm_of_an_image() -> None:
    """Over channels and pixels: one group, if scale and shift do not vary by pixels."""
    for scale, kernels in (((D, 1, 1), ["MOMENTS", "STANDARDIZE"]), ((D, 4, 5), ["NORM"])):
        net = Net(x=(2, D, 4, 5))
        _, centred, variance = moments(net, "x", (1, 2, 3))
        y = affine(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), *scale)
        assert ops(check(net, y, reference=True)) == kernels


def test_tokens_are_no_image() -> None:
    net = Net(x=(B, S, D))
    _, centred, variance = moments(net, "x")
    only(check(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), reference=True))


def test_keras_group_norm() -> None:
    """Channels last; each group's axes stand on both sides of the groups."""
    net = Net(x=(2, 4, 5, D), opset=13)
    grouped = net("Reshape", "x", net.constant([2, 4, 5, 6, D // 6]))
    mean, _, variance = moments(net, grouped, (1, 2, 4))
    factor = net("Mul", net("Reciprocal", net("Sqrt", plus_eps(net, variance))), net.weight(1, 1, 1, 6, D // 6))
    y = net("Add", net("Mul", grouped, factor), net("Sub", net.weight(1, 1, 1, 6, D // 6), net("Mul", mean, factor)))
    node = only(check(net, net("Reshape", y, net.constant([2, 4, 5, D])), reference=True))
    assert node.attrs["axis"] == 2
    assert len(node.inputs) == 3


def test_scale_of_a_square() -> None:
    """Channels first, as many of them as there are tokens: a scale for each element changes its axes with x, although its shape stays."""
    net = Net(x=(B, D, D))
    _, centred, variance = moments(net, "x", (1,))
    y = affine(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), 1, D, D)
    assert len(only(check(net, y, reference=True)).inputs) == 3


def test_scale_of_a_square_before_the_root() -> None:
    net = Net(x=(B, D, D))
    _, centred, variance = moments(net, "x", (1,))
    y = net("Mul", net("Mul", net.weight(1, D, D), centred), net("Reciprocal", net("Sqrt", plus_eps(net, variance))))
    assert len(only(check(net, y, reference=True)).inputs) == 2


def test_adaptive_scale_and_shift() -> None:
    """Diffusion transformers: scale and shift are computed."""
    net = Net(x=(B, S, D), scale=(B, 1, D), shift=(B, 1, D))
    y = net("LayerNormalization", "x", net.constant(np.ones(D, np.float32)), epsilon=EPS)
    y = net("Add", net("Mul", y, net("Add", "scale", net.number(1))), "shift")
    nodes = check(net, y, reference=True)
    assert ops(nodes) == ["BINARY", "NORM"]


# --------------------------------------------------------------------------------------------------------------------- RMSNorm


@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("square", SQUARES)
def test_llama(square: str, inverse: str) -> None:
    net = Net(x=(B, S, D))
    factor = INVERSES[inverse](net, plus_eps(net, average(net, SQUARES[square](net, "x"))))
    node = only(check(net, net("Mul", net.weight(D), net("Mul", "x", factor)), reference=True), "rms")
    assert len(node.inputs) == 2


ORDERS: dict[str, Callable[[Net, str, str], str]] = {
    "x / root * w": lambda n, root, w: n("Mul", n("Div", "x", root), w),
    "x * (w / root)": lambda n, root, w: n("Mul", "x", n("Div", w, root)),
    "(x * w) / root": lambda n, root, w: n("Div", n("Mul", "x", w), root),
    "(1 / root) * (w * x)": lambda n, root, w: n("Mul", n("Reciprocal", root), n("Mul", w, "x")),
    "x * w * 3 / root": lambda n, root, w: n("Div", n("Mul", n("Mul", "x", w), n.number(3)), root),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_factors(order: str) -> None:
    net = Net(x=(B, S, D))
    root = net("Sqrt", plus_eps(net, average(net, net("Mul", "x", "x"))))
    assert len(only(check(net, ORDERS[order](net, root, net.weight(D)), reference=True), "rms").inputs) == 2


def test_operator() -> None:
    net = Net(x=(B, S, D), opset=23)
    only(check(net, net("RMSNormalization", "x", net.weight(D), epsilon=EPS), reference=True), "rms")


def test_computed_weight() -> None:
    """Gemma: 1 + w."""
    net = Net(x=(B, S, D))
    factor = net("Reciprocal", net("Sqrt", plus_eps(net, average(net, net("Pow", "x", net.number(2))))))
    y = net("Mul", net("Mul", "x", factor), net("Add", net.weight(D), net.number(1)))
    only(check(net, y, reference=True), "rms")


# ----------------------------------------------------------------------------------------------------------------- half precision


def test_llama_in_half_precision() -> None:
    """Widened, normalised, rounded, scaled."""
    net = Net(x=(B, S, D), dtype=np.float16)
    wide = net("Cast", "x", to=F32)
    factor = net("Reciprocal", net("Sqrt", net("Add", average(net, net("Mul", wide, wide)), net.constant(np.float32(EPS)))))
    y = net("Mul", net.weight(D), net("Cast", net("Mul", wide, factor), to=F16))
    nodes = check(net, y, tolerance=2e-3)
    assert ops(nodes) == ["CAST", "NORM", "CAST"]
    assert len(nodes[1].inputs) == 2


def test_t5_in_half_precision() -> None:
    """The statistics alone are widened."""
    net = Net(x=(B, S, D), dtype=np.float16)
    wide = net("Cast", "x", to=F32)
    variance = average(net, net("Pow", wide, net.constant(np.float32(2))))
    factor = net("Reciprocal", net("Sqrt", net("Add", variance, net.constant(np.float32(EPS)))))
    nodes = check(net, net("Mul", net.weight(D), net("Mul", "x", net("Cast", factor, to=F16))), tolerance=2e-3)
    assert ops(nodes) == ["CAST", "NORM", "CAST"]


def test_layer_norm_all_in_half_precision() -> None:
    net = Net(x=(B, S, D), dtype=np.float16)
    _, centred, variance = moments(net, "x")
    nodes = check(net, affine(net, net("Div", centred, net("Sqrt", plus_eps(net, variance)))), tolerance=5e-3)
    assert ops(nodes) == ["CAST", "NORM", "CAST"]
    assert len(nodes[1].inputs) == 3


def test_channels_first_in_half_precision() -> None:
    net = Net(x=(2, D, 4, 5), dtype=np.float16)
    _, centred, variance = moments(net, "x", (1,))
    nodes = check(net, affine(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), D, 1, 1), tolerance=5e-3)
    assert ops(nodes) == ["CAST", "NORM", "CAST"]


def test_group_norm_in_half_precision() -> None:
    net = Net(x=(2, D, 4, 5), dtype=np.float16)
    neutral = net.constant(np.ones(4, np.float16)), net.constant(np.zeros(4, np.float16))
    y = net("InstanceNormalization", net("Reshape", "x", net.constant([0, 4, -1])), *neutral, epsilon=EPS)
    nodes = check(net, affine(net, net("Reshape", y, net.constant([2, D, 4, 5])), D, 1, 1), tolerance=5e-3)
    assert ops(nodes) == ["CAST", "MOMENTS", "STANDARDIZE", "CAST"]


# ------------------------------------------------------------------------------------------------------------------- near misses


def modes(nodes: Sequence[Node]) -> list[str]:
    return [n.attrs["mode"] for n in nodes if n.op == "NORM"]


def test_mean_of_another_tensor() -> None:
    net = Net(x=(B, S, D), z=(B, S, 1))
    centred = net("Sub", "x", "z")
    y = net("Div", centred, net("Sqrt", plus_eps(net, average(net, net("Mul", centred, centred)))))
    assert modes(check(net, y, reference=True)) == ["rms"]


def test_statistics_over_different_axes() -> None:
    net = Net(x=(B, S, D))
    centred = net("Sub", "x", average(net, "x", (1,)))
    y = net("Div", centred, net("Sqrt", plus_eps(net, average(net, net("Mul", centred, centred), (2,)))))
    assert modes(check(net, y, reference=True)) == ["rms"]


def test_variance_of_another_tensor() -> None:
    net = Net(x=(B, S, D), z=(B, S, D))
    _, _, variance = moments(net, "z")
    _, centred, _ = moments(net, "x")
    assert modes(check(net, net("Div", centred, net("Sqrt", plus_eps(net, variance))), reference=True)) == []


def test_eps_outside_the_root() -> None:
    net = Net(x=(B, S, D))
    _, centred, variance = moments(net, "x")
    assert modes(check(net, net("Div", centred, plus_eps(net, net("Sqrt", variance))), reference=True)) == []


def test_unbiased_variance_of_many() -> None:
    """Of 4096 elements the two variances differ by less than a constant in half precision may."""
    n = 4096
    net = Net(x=(2, n), opset=13)
    _, centred, _ = moments(net, "x")
    total = net("ReduceSum", net("Mul", centred, centred), net.constant([-1]))
    y = net("Div", centred, net("Sqrt", plus_eps(net, net("Div", total, net.number(n - 1)))))
    assert modes(check(net, y, reference=True)) == []


def test_sum_by_another_number() -> None:
    """Bessel's correction: one less."""
    net = Net(x=(B, S, D), opset=13)
    centred = net("Sub", "x", average(net, "x"))
    total = net("ReduceSum", net("Mul", centred, centred), net.constant([-1]))
    y = net("Div", centred, net("Sqrt", plus_eps(net, net("Div", total, net.number(D - 1)))))
    assert modes(check(net, y, reference=True)) == []


@pytest.mark.parametrize("other", ["mean", "variance", "centred"])
def test_statistics_that_others_read(other: str) -> None:
    """What is an output too stays, and the numbers are right."""
    net = Net(x=(B, S, D))
    found = dict(zip(("mean", "centred", "variance"), moments(net, "x"), strict=True))
    y = net("Div", found["centred"], net("Sqrt", plus_eps(net, found["variance"])))
    nodes = check(net, affine(net, y), net("Exp", found[other]), reference=True)
    assert modes(nodes) == ["layer"]


def test_norm_that_spares_nothing_is_left() -> None:
    net = Net(x=(B, S, D))
    _, centred, variance = moments(net, "x")
    root = net("Sqrt", plus_eps(net, variance))
    assert modes(check(net, net("Div", centred, root), root, reference=True)) == []


def test_broadcast_result_is_left() -> None:
    """A factor that has more axes than x."""
    net = Net(x=(1, S, D))
    root = net("Sqrt", plus_eps(net, average(net, net("Mul", "x", "x"))))
    nodes = check(net, net("Mul", net("Div", "x", root), net.weight(B, S, D)), reference=True)
    assert ops(nodes) == ["NORM", "BINARY"]


def test_scale_after_shift_is_left() -> None:
    net = Net(x=(B, S, D))
    y = net("LayerNormalization", "x", net.constant(np.ones(D, np.float32)), net.weight(D))
    assert ops(check(net, net("Mul", y, net.weight(D)), reference=True)) == ["NORM", "BINARY"]


def test_l2_norm_is_left() -> None:
    """A sum, not a mean."""
    net = Net(x=(B, S, D), opset=13)
    total = net("ReduceSum", net("Mul", "x", "x"), net.constant([-1]))
    assert modes(check(net, net("Div", "x", net("Sqrt", plus_eps(net, total))), reference=True)) == []


def test_sum_with_its_root_outside() -> None:
    """√d · x / |x|, with a mean after all."""
    net = Net(x=(B, S, D), opset=13)
    root = net("Sqrt", plus_eps(net, average(net, net("Mul", "x", "x"))))
    y = net("Mul", net("Div", "x", root), net.number(sqrt(D)))
    assert len(only(check(net, y, reference=True), "rms").inputs) == 2
