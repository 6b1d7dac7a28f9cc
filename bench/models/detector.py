"""A text detector for pictures of any size, as OCR pipelines run in front of their recogniser. It has a MobileNetV3 (arXiv:1905.02244), a
feature pyramid, and the map of differentiable binarisation (arXiv:1911.08947)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx

from .extra import conv_transpose
from .net import Weights
from .vision import ImageOptions, Map, VisionNet

BLOCKS = (  # kernel, expanded channels, channels, squeeze and excitation, hard swish, stride
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
LEVELS = (2, 5, 11, 14)
"""Blocks after which a level of the pyramid begins: a quarter, an eighth … of the picture's sides."""
STRIDE = 32
HEIGHT, WIDTH = "height", "width"  # names of the open sides


def text_detector(name: str, options: ImageOptions, weights: Weights, *, scale: float = 0.5, sides: str = "fixed") -> onnx.ModelProto:
    """Picture → how likely each pixel belongs to text, [batch, 1, H, W]. `scale`: of the backbone's channels. `sides`: "fixed", or "open",
    any multiples of 32."""
    if sides not in ("fixed", "open"):
        raise ValueError(f"sides={sides!r}: 'fixed' or 'open'")
    if options.image[0] % STRIDE or options.image[1] % STRIDE:
        raise ValueError(f"{name}: image sides must be multiples of {STRIDE}, not {options.image[0]}×{options.image[1]}")
    net = VisionNet(name, options, weights)
    x = _swish(net, net.conv_bn(net.image(), "backbone.conv1", "backbone.bn1", _width(16, scale), 3, stride=2, pad=1))
    levels = []
    for k, (kernel, hidden, channels, excited, swish, stride) in enumerate(BLOCKS):
        act = _swish if swish else VisionNet.relu
        x = _block(net, x, f"backbone.stage{k}", kernel, _width(hidden, scale), _width(channels, scale), excited, act, stride)
        if k in LEVELS:
            levels.append(x)
    x = _pyramid(net, levels)
    x = net.relu(net.conv_bn(x, "head.conv1", "head.bn1", 24, 3, pad=1))
    x = net.relu(net.batch_norm(conv_transpose(net, x, "head.conv2", 24), "head.bn2"))
    x = conv_transpose(net, x, "head.conv3", 1)
    net.output(net.op("Sigmoid", x.tensor), "output", [options.batch, 1, x.height, x.width])
    if sides == "open":
        for value in (*net.graph.input, *net.graph.output):
            for dim, param in zip(value.type.tensor_type.shape.dim[2:], (HEIGHT, WIDTH), strict=True):
                dim.dim_param = param
    return net.finish()


def _width(channels: int, scale: float) -> int:
    """Channels as the paper rounds them: to multiples of 8, and not by more than a tenth down."""
    wanted = channels * scale
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


def _swish(net: VisionNet, x: Map) -> Map:
    """x · hard sigmoid of x, as opsets before 14 spell HardSwish."""
    shifted = net.op("Clip", net.op("Add", x.tensor, net.scalar(3.0)), net.scalar(0.0), net.scalar(6.0))
    return replace(x, tensor=net.op("Div", net.op("Mul", x.tensor, shifted), net.scalar(6.0)))


def _excite(net: VisionNet, x: Map, name: str) -> Map:
    """x times a number for each channel, which follows from the means of all (arXiv:1709.01507)."""
    means = Map(net.op("GlobalAveragePool", x.tensor), x.channels, 1, 1)
    y = net.conv(net.relu(net.conv(means, f"{name}.conv1", max(x.channels // 4, 4), 1)), f"{name}.conv2", x.channels, 1)
    return replace(x, tensor=net.op("Mul", x.tensor, net.op("HardSigmoid", y.tensor, alpha=0.2, beta=0.5)))


def _block(
    net: VisionNet,
    x: Map,
    name: str,
    kernel: int,
    hidden: int,
    channels: int,
    excited: bool,
    act: Callable[[VisionNet, Map], Map],
    stride: int,
) -> Map:
    residual = stride == 1 and x.channels == channels
    y = act(net, net.conv_bn(x, f"{name}.expand", f"{name}.bn0", hidden, 1))
    y = net.conv_bn(y, f"{name}.depthwise", f"{name}.bn1", hidden, kernel, stride=stride, pad=kernel // 2, group=hidden)
    y = act(net, _excite(net, y, f"{name}.excite") if excited else y)
    y = net.conv_bn(y, f"{name}.project", f"{name}.bn2", channels, 1, gamma=0.5 if residual else 1.0)
    return net.add(x, y) if residual else y


def _pyramid(net: VisionNet, levels: list[Map], channels: int = 96) -> Map:
    """All levels of a feature pyramid at the size of the first, one behind the other."""
    flat = [net.conv(x, f"neck.in{k}", channels, 1, bias=False, gain=1.0) for k, x in enumerate(levels)]
    for k in range(len(flat) - 1, 0, -1):
        flat[k - 1] = net.add(flat[k - 1], net.upsample(flat[k]))
    out = [net.conv(x, f"neck.p{k}", channels // 4, 3, pad=1, bias=False, gain=1.0) for k, x in enumerate(flat)]
    return net.concat([net.upsample(x, 2**k) if k else x for k, x in enumerate(out)][::-1])
