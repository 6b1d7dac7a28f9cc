"""ResNet (arXiv:1512.03385, with the stride on the 3×3 convolution as torchvision has it) and DenseNet (arXiv:1608.06993)."""

from __future__ import annotations

import math

import onnx

from .net import Weights
from .vision import ImageOptions, Map, VisionNet

RESNET = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
BASIC = ("resnet18", "resnet34")

DENSENET = {  # growth rate, layers a block, channels of the first convolution
    "densenet121": (32, (6, 12, 24, 16), 64),
    "densenet161": (48, (6, 12, 36, 24), 96),
    "densenet169": (32, (6, 12, 32, 32), 64),
    "densenet201": (32, (6, 12, 48, 32), 64),
}
BOTTLENECK = 4  # channels of a dense layer's 1×1 convolution, in growth rates


def resnet(name: str, options: ImageOptions, weights: Weights) -> onnx.ModelProto:
    depths = RESNET[name]
    net = VisionNet(name, options, weights)
    x = net.relu(net.conv_bn(net.image(), "conv1", "bn1", 64, 7, stride=2, pad=3))
    x = net.max_pool(x, 3, 2, pad=1)
    # Each block adds branch_gamma² of variance to the stream; over the whole depth it grows by a small factor, whatever the depth.
    branch_gamma = math.sqrt(2 / sum(depths))
    block = basic_block if name in BASIC else bottleneck
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(net, x, f"layer{stage + 1}.{index}", 64 << stage, stride, branch_gamma)
    return net.logits(net.global_pool(x), "fc", x.channels)


def basic_block(net: VisionNet, x: Map, name: str, width: int, stride: int, gamma: float) -> Map:
    y = net.relu(net.conv_bn(x, f"{name}.conv1", f"{name}.bn1", width, 3, stride=stride, pad=1))
    y = net.conv_bn(y, f"{name}.conv2", f"{name}.bn2", width, 3, pad=1, gamma=gamma)
    return net.relu(net.add(y, shortcut(net, x, name, width, stride)))


def bottleneck(net: VisionNet, x: Map, name: str, width: int, stride: int, gamma: float) -> Map:
    y = net.relu(net.conv_bn(x, f"{name}.conv1", f"{name}.bn1", width, 1))
    y = net.relu(net.conv_bn(y, f"{name}.conv2", f"{name}.bn2", width, 3, stride=stride, pad=1))
    y = net.conv_bn(y, f"{name}.conv3", f"{name}.bn3", 4 * width, 1, gamma=gamma)
    return net.relu(net.add(y, shortcut(net, x, name, 4 * width, stride)))


def shortcut(net: VisionNet, x: Map, name: str, channels: int, stride: int) -> Map:
    if stride == 1 and x.channels == channels:
        return x
    return net.conv_bn(x, f"{name}.downsample.0", f"{name}.downsample.1", channels, 1, stride=stride, gamma=1.0)


def densenet(name: str, options: ImageOptions, weights: Weights) -> onnx.ModelProto:
    growth, blocks, first = DENSENET[name]
    net = VisionNet(name, options, weights)
    x = net.relu(net.conv_bn(net.image(), "features.conv0", "features.norm0", first, 7, stride=2, pad=3))
    x = net.max_pool(x, 3, 2, pad=1)
    for block, layers in enumerate(blocks, start=1):
        maps = [x]
        for layer in range(1, layers + 1):
            maps.append(dense_layer(net, maps, f"features.denseblock{block}.denselayer{layer}", growth))
        x = net.concat(maps)
        if block < len(blocks):
            prefix = f"features.transition{block}"
            x = net.relu(net.batch_norm(x, f"{prefix}.norm"))
            x = net.avg_pool(net.conv(x, f"{prefix}.conv", x.channels // 2, 1, bias=False), 2, 2)
    x = net.relu(net.batch_norm(x, "features.norm5", gamma=math.sqrt(2)))
    return net.logits(net.global_pool(x), "classifier", x.channels)


def dense_layer(net: VisionNet, maps: list[Map], name: str, growth: int) -> Map:
    x = net.concat(maps) if len(maps) > 1 else maps[0]
    x = net.relu(net.batch_norm(x, f"{name}.norm1", gamma=math.sqrt(2)))
    x = net.relu(net.conv_bn(x, f"{name}.conv1", f"{name}.norm2", BOTTLENECK * growth, 1))
    return net.conv(x, f"{name}.conv2", growth, 3, pad=1, bias=False, gain=1.0)
