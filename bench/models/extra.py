"""Networks outside the zoo, for tests: kinds of structure that the zoo lacks (depthwise, gates, patches, encoder-decoder,
one-dimensional)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto

from .net import Init, Net, Weights, product
from .text import TextNet, TextOptions
from .vision import ImageOptions, Map, VisionNet

MOBILE = (  # expansion, channels, blocks, stride
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(name: str, options: ImageOptions, weights: Weights) -> onnx.ModelProto:
    """MobileNetV2 (arXiv:1801.04381): depthwise convolutions, ReLU6, linear bottlenecks."""
    net = VisionNet(name, options, weights)
    x = net.relu6(net.conv_bn(net.image(), "features.0.0", "features.0.1", 32, 3, stride=2, pad=1))
    index = 1
    for expansion, channels, blocks, first in MOBILE:
        for block in range(blocks):
            x = inverted_residual(net, x, f"features.{index}.conv", expansion, channels, first if block == 0 else 1)
            index += 1
    x = net.relu6(net.conv_bn(x, "features.18.0", "features.18.1", 1280, 1))
    return net.logits(net.global_pool(x), "classifier.1", 1280)


def inverted_residual(net: VisionNet, x: Map, name: str, expansion: int, channels: int, stride: int) -> Map:
    hidden = x.channels * expansion
    y, index = x, 0
    if expansion != 1:
        y = net.relu6(net.conv_bn(y, f"{name}.0.0", f"{name}.0.1", hidden, 1))
        index = 1
    y = net.relu6(net.conv_bn(y, f"{name}.{index}.0", f"{name}.{index}.1", hidden, 3, stride=stride, pad=1, group=hidden))
    residual = stride == 1 and x.channels == channels
    y = net.conv_bn(y, f"{name}.{index + 1}", f"{name}.{index + 2}", channels, 1, gamma=0.5 if residual else 1.0)
    return net.add(y, x) if residual else y


EFFICIENT = (  # expansion, kernel, stride, channels, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
SILU = 1.6
"""Scale of a BatchNorm before a SiLU that makes the mean square of the result about one."""


def efficientnet_b0(name: str, options: ImageOptions, weights: Weights) -> onnx.ModelProto:
    """EfficientNet-B0 (arXiv:1905.11946): depthwise convolutions, SiLU, channels that are gated by their means."""
    net = VisionNet(name, options, weights)
    x = silu(net, net.conv_bn(net.image(), "features.0.0", "features.0.1", 32, 3, stride=2, pad=1, gamma=SILU))
    for stage, (expansion, kernel, first, channels, blocks) in enumerate(EFFICIENT, 1):
        for block in range(blocks):
            stride = first if block == 0 else 1
            x = gated_residual(net, x, f"features.{stage}.{block}.block", expansion, kernel, channels, stride)
    x = silu(net, net.conv_bn(x, "features.8.0", "features.8.1", 1280, 1, gamma=SILU))
    return net.logits(net.global_pool(x), "classifier.1", 1280)


def gated_residual(net: VisionNet, x: Map, name: str, expansion: int, kernel: int, channels: int, stride: int) -> Map:
    hidden = x.channels * expansion
    y, index = x, 0
    if expansion != 1:
        y = silu(net, net.conv_bn(y, f"{name}.0.0", f"{name}.0.1", hidden, 1, gamma=SILU))
        index = 1
    names = f"{name}.{index}.0", f"{name}.{index}.1"
    y = silu(net, net.conv_bn(y, *names, hidden, kernel, stride=stride, pad=kernel // 2, group=hidden, gamma=SILU))
    y = gate(net, y, f"{name}.{index + 1}", max(1, x.channels // 4))
    residual = stride == 1 and x.channels == channels
    gamma = 0.7 if residual else 1.6  # gates lose part of it
    y = net.conv_bn(y, f"{name}.{index + 2}.0", f"{name}.{index + 2}.1", channels, 1, gamma=gamma)
    return net.add(y, x) if residual else y


def gate(net: VisionNet, x: Map, name: str, squeezed: int) -> Map:
    """Squeeze and excitation: a factor for each channel, made of the means of all."""
    mean = Map(net.op("GlobalAveragePool", x.tensor), x.channels, 1, 1)
    factors = net.conv(silu(net, net.conv(mean, f"{name}.fc1", squeezed, 1)), f"{name}.fc2", x.channels, 1)
    return replace(x, tensor=net.op("Mul", net.op("Sigmoid", factors.tensor), x.tensor))


def silu(net: VisionNet, x: Map) -> Map:
    """The activation as PyTorch's exporter writes it."""
    return replace(x, tensor=net.op("Mul", x.tensor, net.op("Sigmoid", x.tensor)))


def convnext_tiny(
    name: str, options: ImageOptions, weights: Weights, *, channels: int = 96, depths: tuple[int, ...] = (3, 3, 9, 3)
) -> onnx.ModelProto:
    """ConvNeXt-Tiny (arXiv:2201.03545): depthwise convolutions of 7×7, and two products for each pixel between two transpositions."""
    if options.opset < 17:
        raise ValueError(f"{name}: LayerNormalization came with opset 17, not {options.opset}")
    net = VisionNet(name, options, weights)
    x = norm_of_channels(net, net.conv(net.image(), "features.0.0", channels, 4, stride=4, gain=1.0), "features.0.1")
    for stage, blocks in enumerate(depths):
        if stage:
            x = norm_of_channels(net, x, f"features.{2 * stage}.0")
            x = net.conv(x, f"features.{2 * stage}.1", 2 * x.channels, 2, stride=2, gain=1.0)
        for block in range(blocks):
            x = pixel_block(net, x, f"features.{2 * stage + 1}.{block}")
    pooled = Map(net.op("GlobalAveragePool", x.tensor), x.channels, 1, 1)
    flat = net.op("Flatten", norm_of_channels(net, pooled, "classifier.0").tensor, axis=1)
    return net.logits(flat, "classifier.2", x.channels)


def norm_of_channels(net: VisionNet, x: Map, name: str) -> Map:
    """LayerNorm2d of torchvision: over the channels of each pixel."""
    y = layer_norm(net, net.op("Transpose", x.tensor, perm=[0, 2, 3, 1]), name, x.channels)
    return replace(x, tensor=net.op("Transpose", y, perm=[0, 3, 1, 2]))


def layer_norm(net: VisionNet, x: str, name: str, channels: int) -> str:
    scale, bias = net.param(f"{name}.weight", (channels,), Init(0.1, 1.0)), net.param(f"{name}.bias", (channels,), Init(0.1))
    return net.op("LayerNormalization", x, scale, bias, name=f"{name}/LayerNormalization", axis=-1, epsilon=1e-6)


def pixel_block(net: VisionNet, x: Map, name: str) -> Map:
    channels = x.channels
    y = net.conv(x, f"{name}.block.0", channels, 7, pad=3, group=channels, gain=1.0)
    rows = layer_norm(net, net.op("Transpose", y.tensor, perm=[0, 2, 3, 1]), f"{name}.block.2", channels)
    rows = of_pixels(net, rows, f"{name}.block.3", channels, 4 * channels, y)
    erf = net.op("Erf", net.op("Div", rows, net.scalar(math.sqrt(2.0))))
    rows = net.op("Mul", net.op("Mul", rows, net.op("Add", erf, net.scalar(1.0))), net.scalar(0.5))
    rows = of_pixels(net, rows, f"{name}.block.5", 4 * channels, channels, y)
    scale = net.param(f"{name}.layer_scale", (channels, 1, 1), Init(0.05, 0.3))
    return net.add(replace(x, tensor=net.op("Mul", scale, net.op("Transpose", rows, perm=[0, 3, 1, 2]))), x)


def of_pixels(net: VisionNet, x: str, name: str, inputs: int, outputs: int, image: Map) -> str:
    """A linear layer for each pixel of [batch, height, width, inputs]."""
    weight = net.param(f"{name}.weight", (inputs, outputs), Init(math.sqrt(2 / inputs)), transposed=True)
    bias = net.param(f"{name}.bias", (outputs,), Init(0.05))
    net.add_macs(product(net.options.batch, image.height, image.width, inputs, outputs))
    return net.op("Add", net.op("MatMul", x, weight, name=f"{name}/MatMul"), bias, name=f"{name}/Add")


def unet(
    name: str, options: ImageOptions, weights: Weights, *, width: int = 32, depth: int = 4, transposed: bool = False
) -> onnx.ModelProto:
    """U-Net (arXiv:1505.04597) with same-size convolutions: image → class scores of each pixel [batch, classes, H, W].
    `transposed`: decoder steps by ConvTranspose instead of Resize + convolution."""
    if options.image[0] % 2**depth or options.image[1] % 2**depth:
        raise ValueError(f"{name}: image sides must be multiples of {2**depth}, not {options.image[0]}×{options.image[1]}")
    net = VisionNet(name, options, weights)
    x = double_conv(net, net.image(), "inc", width)
    skips: list[Map] = []
    for level in range(1, depth + 1):
        skips.append(x)
        x = double_conv(net, net.max_pool(x, 2, 2), f"down{level}", width << level)
    for level in range(depth, 0, -1):
        channels = width << (level - 1)
        up = conv_transpose(net, x, f"up{level}.up", channels) if transposed else net.conv(net.upsample(x), f"up{level}.up", channels, 1)
        x = double_conv(net, net.concat([skips[level - 1], up]), f"up{level}.conv", channels)
    x = net.conv(x, "outc", options.classes, 1, gain=1.0)
    net.output(x.tensor, "output", [options.batch, options.classes, x.height, x.width])
    return net.finish()


def double_conv(net: VisionNet, x: Map, name: str, channels: int) -> Map:
    x = net.relu(net.conv_bn(x, f"{name}.0", f"{name}.1", channels, 3, pad=1))
    return net.relu(net.conv_bn(x, f"{name}.3", f"{name}.4", channels, 3, pad=1))


def conv_transpose(net: VisionNet, x: Map, name: str, channels: int) -> Map:
    weight = net.param(f"{name}.weight", (x.channels, channels, 2, 2), Init(math.sqrt(1 / x.channels)))
    bias = net.param(f"{name}.bias", (channels,), Init(0.05))
    net.add_macs(product(net.options.batch, 4 * x.channels * channels, x.height, x.width))
    tensor = net.op("ConvTranspose", x.tensor, weight, bias, kernel_shape=[2, 2], strides=[2, 2])
    return Map(tensor, channels, 2 * x.height, 2 * x.width)


def vit(
    name: str,
    options: ImageOptions,
    weights: Weights,
    *,
    patch: int = 16,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
) -> onnx.ModelProto:
    """Vision Transformer (arXiv:2010.11929, torchvision's vit_b_16 by default): patches, class token, pre-norm blocks with packed
    query/key/value."""
    h, w = options.image
    if h % patch or w % patch:
        raise ValueError(f"{name}: image sides must be multiples of {patch}, not {h}×{w}")
    tokens = (h // patch) * (w // patch) + 1
    text = TextOptions(batch=options.batch, seq=tokens, opset=options.opset)
    net = VitNet(name, text, weights, hidden=hidden, heads=heads, eps=1e-6)
    image = net.input("input", TensorProto.FLOAT, [options.batch, 3, h, w], kind="image")
    x = net.patches(image, patch, tokens)
    for layer in range(layers):
        x = net.block(x, f"encoder.layers.encoder_layer_{layer}", 1 / (2 * layers))
    x = net.layer_norm(x, "encoder.ln")
    first = net.op("Gather", x, net.const(np.array(0, np.int64)), axis=1)
    weight = net.param("heads.head.weight", (options.classes, hidden), Init(hidden**-0.5))
    bias = net.param("heads.head.bias", (options.classes,), Init(0.05))
    net.add_macs(product(options.batch, hidden, options.classes))
    net.output(net.op("Gemm", first, weight, bias, transB=1), "output", [options.batch, options.classes])
    return net.finish()


class VitNet(TextNet):
    """Blocks of the Vision Transformer."""

    def patches(self, image: str, patch: int, tokens: int) -> str:
        hidden = self.hidden
        weight = self.param("conv_proj.weight", (hidden, 3, patch, patch), Init(1 / math.sqrt(3 * patch * patch)))
        bias = self.param("conv_proj.bias", (hidden,), Init(0.05))
        self.add_macs(product(self.options.batch, tokens - 1, hidden, 3 * patch * patch))
        x = self.op("Conv", image, weight, bias, kernel_shape=[patch, patch], strides=[patch, patch])
        x = self.op("Transpose", self.op("Reshape", x, self.ints(0, hidden, tokens - 1)), perm=[0, 2, 1])
        token = self.param("class_token", (1, 1, hidden), Init(0.5))
        batch = self.dim(image, 0, self.options.batch)
        rows = self.op("Expand", token, self.op("Concat", batch, self.ints(1, hidden), axis=0))
        return self.op("Add", self.op("Concat", rows, x, axis=1), self.param("encoder.pos_embedding", (1, tokens, hidden), Init(0.5)))

    def block(self, x: str, name: str, residual: float) -> str:
        hidden = self.hidden
        y = self.layer_norm(x, f"{name}.ln_1")
        packed = self.linear(y, f"{name}.self_attention.in_proj", hidden, 3 * hidden)
        query, key, value = self.split(packed, -1, (hidden, hidden, hidden))
        context = self.weighted(self.scores(self.heads_of(query, x), self.heads_of(key, x, keys=True)), self.heads_of(value, x))
        y = self.linear(self.merged(context, x), f"{name}.self_attention.out_proj", hidden, hidden, gain=residual)
        x = self.op("Add", y, x)
        y = self.layer_norm(x, f"{name}.ln_2")
        y = self.gelu(self.linear(y, f"{name}.mlp.0", hidden, 4 * hidden, gain=2.0), "erf")
        return self.op("Add", x, self.linear(y, f"{name}.mlp.3", 4 * hidden, hidden, gain=residual))


def tcn(
    name: str, options: TextOptions, weights: Weights, *, features: int = 16, channels: int = 64, levels: int = 6, kernel: int = 3
) -> onnx.ModelProto:
    """Temporal convolutional network (arXiv:1803.01271): causal dilated 1-D convolutions with residuals. Input [batch, features, seq],
    output [batch, channels, seq]; odd levels pad on the left, even ones on both sides and cut the end off, as published code does."""
    net = Net(name, opset=options.opset, weights=weights)
    seq = options.seq
    x = net.input("input", TensorProto.FLOAT, [options.batch, features, seq], kind="normal")
    width = features
    for level in range(levels):
        dilation = 2**level
        y = net.op("Relu", causal_conv(net, x, f"network.{level}.conv1", width, channels, kernel, dilation, options))
        y = net.op("Relu", causal_conv(net, y, f"network.{level}.conv2", channels, channels, kernel, dilation, options))
        if width != channels:
            x = causal_conv(net, x, f"network.{level}.downsample", width, channels, 1, 1, options)
        x = net.op("Mul", net.op("Relu", net.op("Add", y, x)), net.scalar(0.6))
        width = channels
    net.output(x, "output", [options.batch, channels, seq])
    return net.finish()


def causal_conv(net: Net, x: str, name: str, inputs: int, outputs: int, kernel: int, dilation: int, options: TextOptions) -> str:
    """1-D convolution whose output at t sees inputs up to t."""
    weight = net.param(f"{name}.weight", (outputs, inputs, kernel), Init(math.sqrt(2 / (inputs * kernel))))
    bias = net.param(f"{name}.bias", (outputs,), Init(0.05))
    net.add_macs(product(options.batch, options.seq, inputs, outputs, kernel))
    reach = (kernel - 1) * dilation
    if dilation % 4 == 2 and reach:  # every second level
        padded = net.op("Pad", x, net.ints(0, 0, reach, 0, 0, 0), net.scalar(0.0), mode="constant")
        return net.op("Conv", padded, weight, bias, name=f"{name}/Conv", kernel_shape=[kernel], dilations=[dilation])
    y = net.op("Conv", x, weight, bias, name=f"{name}/Conv", kernel_shape=[kernel], dilations=[dilation], pads=[reach, reach])
    return net.op("Slice", y, net.ints(0), net.ints(-reach), net.ints(2), net.ints(1)) if reach else y
