"""Small networks of layers that do not mix channels: what depth-first execution (BrainSlug, Weber et al., 2018) is measured with.

Each takes an image of `channels` channels and gives one of feature maps. Sizes are those of the networks that the layers come from.
"""

from __future__ import annotations

import onnx

from .net import Init, Weights
from .vision import ImageOptions, Map, VisionNet


def pool_blocks(name: str, options: ImageOptions, weights: Weights, *, blocks: int = 10, channels: int = 64) -> onnx.ModelProto:
    """BrainSlug's chain (section 5.1): `blocks` times a maximum of 3×3, a BatchNorm and a ReLU."""
    net = VisionNet(name, options, weights)
    x = net.image(channels=channels)
    for block in range(blocks):
        x = net.relu(net.batch_norm(net.max_pool(x, 3, 1, pad=1), f"{block}.bn"))
    return maps(net, x)


def sppf(name: str, options: ImageOptions, weights: Weights, *, channels: int = 256) -> onnx.ModelProto:
    """The pyramid of YOLOv5 and YOLOv8: three maxima of 5×5 one behind the other, side by side with what they come from."""
    net = VisionNet(name, options, weights)
    found = [net.image(channels=channels)]
    for _ in range(3):
        found.append(net.max_pool(found[-1], 5, 1, pad=2))
    return maps(net, net.concat(found))


def poolformer(name: str, options: ImageOptions, weights: Weights, *, layers: int = 12, channels: int = 96) -> onnx.ModelProto:
    """Token mixers of PoolFormer (arXiv:2111.11418) without the layers that mix channels. Each of `layers` is an average of 3×3 less the
    image itself, scaled by channel and added to it."""
    net = VisionNet(name, options, weights)
    x = net.image(channels=channels)
    for layer in range(layers):
        scale = net.param(f"{layer}.layer_scale", (channels, 1, 1), Init(0.1, 0.5))
        mixed = net.op("Sub", net.avg_pool(x, 3, 1, pad=1, include_pad=False).tensor, x.tensor)
        x = Map(net.op("Add", x.tensor, net.op("Mul", mixed, scale)), channels, x.height, x.width)
    return maps(net, x)


def inception_pools(name: str, options: ImageOptions, weights: Weights, *, channels: int = 256) -> onnx.ModelProto:
    """Branches of Inception v3 that pool, a block of each grid. An average of 3×3 stands beside its input, which gives twice as many
    channels. A maximum of 3×3 leads to the next grid."""
    net = VisionNet(name, options, weights)
    x = net.image(channels=channels)
    for grid in range(3):
        x = net.max_pool(x, 3, 2) if grid else x
        x = net.concat([x, net.avg_pool(x, 3, 1, pad=1)])
    return maps(net, x)


def depthwise_chain(
    name: str, options: ImageOptions, weights: Weights, *, layers: int = 8, channels: int = 256, kernel: int = 5
) -> onnx.ModelProto:
    """`layers` depthwise convolutions with bias, each with a ReLU."""
    net = VisionNet(name, options, weights)
    x = net.image(channels=channels)
    for layer in range(layers):
        x = net.relu(net.conv(x, f"{layer}.conv", channels, kernel, pad=kernel // 2, group=channels))
    return maps(net, x)


def maps(net: VisionNet, x: Map) -> onnx.ModelProto:
    """Feature maps as the only output; finishes the model."""
    net.output(x.tensor, "output", [net.options.batch, x.channels, x.height, x.width])
    return net.finish()
