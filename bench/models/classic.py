"""AlexNet (arXiv:1404.5997), VGG (arXiv:1409.1556), SqueezeNet (arXiv:1602.07360), and ASPEN's synthetic network of convolutions."""

from __future__ import annotations

import onnx

from .net import Weights
from .vision import ImageOptions, Map, VisionNet

VGG = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
VGG_CHANNELS = (64, 128, 256, 512, 512)


def alexnet(name: str, options: ImageOptions, weights: Weights) -> onnx.ModelProto:
    net = VisionNet(name, options, weights)
    x = net.relu(net.conv(net.image(), "features.0", 64, 11, stride=4, pad=2))
    x = net.max_pool(x, 3, 2)
    x = net.relu(net.conv(x, "features.3", 192, 5, pad=2))
    x = net.max_pool(x, 3, 2)
    for index, channels in ((6, 384), (8, 256), (10, 256)):
        x = net.relu(net.conv(x, f"features.{index}", channels, 3, pad=1))
    x = net.adaptive_avg_pool(net.max_pool(x, 3, 2), 6)
    return classifier(net, x, ("classifier.1", "classifier.4", "classifier.6"))


def vgg(name: str, options: ImageOptions, weights: Weights) -> onnx.ModelProto:
    base, _, suffix = name.partition("_")
    net = VisionNet(name, options, weights)
    x = net.image()
    index = 0  # of torchvision's nn.Sequential: convolution, BatchNorm if any, ReLU; then one pooling layer a stage
    for depth, channels in zip(VGG[base], VGG_CHANNELS, strict=True):
        for _ in range(depth):
            if suffix == "bn":
                x = net.conv_bn(x, f"features.{index}", f"features.{index + 1}", channels, 3, pad=1, bias=True)
                index += 3
            else:
                x = net.conv(x, f"features.{index}", channels, 3, pad=1)
                index += 2
            x = net.relu(x)
        x = net.max_pool(x, 2, 2)
        index += 1
    return classifier(net, net.adaptive_avg_pool(x, 7), ("classifier.0", "classifier.3", "classifier.6"))


def classifier(net: VisionNet, x: Map, layers: tuple[str, str, str], hidden: int = 4096) -> onnx.ModelProto:
    """Flatten and three fully connected layers (dropout does nothing in inference)."""
    inputs = x.channels * x.height * x.width
    y = net.op("Flatten", x.tensor, axis=1)
    for layer, width in zip(layers[:2], (inputs, hidden), strict=True):
        y = net.op("Relu", net.linear(y, layer, width, hidden))
    return net.logits(y, layers[2], hidden)


def vgg_classifier(name: str, options: ImageOptions, weights: Weights, *, side: int = 7, hidden: int = 4096) -> onnx.ModelProto:
    """The fully connected layers of VGG alone, on images of 512 × `side` × `side` numbers: little but reading 494 MB of weights."""
    net = VisionNet(name, options, weights)
    net.input("input", onnx.TensorProto.FLOAT, [options.batch, 512, side, side], kind="image")
    return classifier(net, Map("input", 512, side, side), ("classifier.0", "classifier.3", "classifier.6"), hidden)


# squeeze channels and expand channels (1×1 and 3×3 alike) of each Fire module, "pool" where a pooling layer stands between
FIRES: dict[str, tuple[tuple[int, int] | str, ...]] = {
    "squeezenet1_0": ("pool", (16, 64), (16, 64), (32, 128), "pool", (32, 128), (48, 192), (48, 192), (64, 256), "pool", (64, 256)),
    "squeezenet1_1": ("pool", (16, 64), (16, 64), "pool", (32, 128), (32, 128), "pool", (48, 192), (48, 192), (64, 256), (64, 256)),
}


def squeezenet(name: str, options: ImageOptions, weights: Weights) -> onnx.ModelProto:
    net = VisionNet(name, options, weights)
    channels, kernel = (96, 7) if name == "squeezenet1_0" else (64, 3)
    x = net.relu(net.conv(net.image(), "features.0", channels, kernel, stride=2))
    for index, item in enumerate(FIRES[name], start=2):
        if isinstance(item, str):
            x = net.max_pool(x, 3, 2, ceil=True)
            continue
        squeeze, expand = item
        x = net.relu(net.conv(x, f"features.{index}.squeeze", squeeze, 1))
        x = net.concat(
            [
                net.relu(net.conv(x, f"features.{index}.expand1x1", expand, 1)),
                net.relu(net.conv(x, f"features.{index}.expand3x3", expand, 3, pad=1)),
            ]
        )
    x = net.relu(net.conv(x, "classifier.1", options.classes, 1))
    net.output(net.global_pool(x), "output", [options.batch, options.classes])
    return net.finish()


def aspen(
    name: str, options: ImageOptions, weights: Weights, *, layers: int = 32, channels: int = 128, relu: bool = True
) -> onnx.ModelProto:
    """ASPEN's synthetic chain: `layers` 3×3 convolutions of `channels` to `channels` on `options.image` pixels, each followed by a ReLU or
    nothing."""
    net = VisionNet(name, options, weights)
    x = net.image(channels=channels)
    for layer in range(layers):
        x = net.conv(x, f"conv.{layer}", channels, 3, pad=1, gain=2.0 if relu else 1.0)
        if relu:
            x = net.relu(x)
    net.output(x.tensor, "output", [options.batch, x.channels, x.height, x.width])
    return net.finish()
