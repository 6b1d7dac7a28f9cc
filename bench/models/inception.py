"""Inception v3 (arXiv:1512.00567) with torchvision's layer names and branches."""

from __future__ import annotations

import onnx

from .net import Weights
from .vision import ImageOptions, Map, VisionNet

EPS = 0.001


def inception_v3(name: str, options: ImageOptions, weights: Weights, *, aux: bool = False) -> onnx.ModelProto:
    """`aux`: with the auxiliary classifier of the training graph, as second output "aux"."""
    net = Inception(name, options, weights)
    x = net.basic(net.image(), "Conv2d_1a_3x3", 32, 3, stride=2)
    x = net.basic(x, "Conv2d_2a_3x3", 32, 3)
    x = net.basic(x, "Conv2d_2b_3x3", 64, 3, pad=1)
    x = net.max_pool(x, 3, 2)
    x = net.basic(x, "Conv2d_3b_1x1", 80, 1)
    x = net.basic(x, "Conv2d_4a_3x3", 192, 3)
    x = net.max_pool(x, 3, 2)
    for block, pool in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = net.block_a(x, block, pool)
    x = net.block_b(x, "Mixed_6a")
    for block, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = net.block_c(x, block, width)
    side = net.aux_logits(x) if aux else None
    x = net.block_d(x, "Mixed_7a")
    for block in ("Mixed_7b", "Mixed_7c"):
        x = net.block_e(x, block)
    model = net.logits(net.global_pool(x), "fc", x.channels)
    if side is not None:
        net.output(side, "aux", [options.batch, options.classes])
    return model


class Inception(VisionNet):
    """The building blocks; every convolution is convolution, BatchNorm, ReLU."""

    def basic(
        self, x: Map, name: str, channels: int, kernel: int | tuple[int, int], *, stride: int = 1, pad: int | tuple[int, int] = 0
    ) -> Map:
        return self.relu(self.conv_bn(x, f"{name}.conv", f"{name}.bn", channels, kernel, stride=stride, pad=pad, eps=EPS))

    def row(self, x: Map, name: str, channels: int, length: int) -> Map:
        """1 × length convolution, same size."""
        return self.basic(x, name, channels, (1, length), pad=(0, length // 2))

    def column(self, x: Map, name: str, channels: int, length: int) -> Map:
        """length × 1 convolution, same size."""
        return self.basic(x, name, channels, (length, 1), pad=(length // 2, 0))

    def pool_branch(self, x: Map, name: str, channels: int) -> Map:
        return self.basic(self.avg_pool(x, 3, 1, pad=1), f"{name}.branch_pool", channels, 1)

    def block_a(self, x: Map, name: str, pool: int) -> Map:
        one = self.basic(x, f"{name}.branch1x1", 64, 1)
        five = self.basic(x, f"{name}.branch5x5_1", 48, 1)
        five = self.basic(five, f"{name}.branch5x5_2", 64, 5, pad=2)
        three = self.basic(x, f"{name}.branch3x3dbl_1", 64, 1)
        three = self.basic(three, f"{name}.branch3x3dbl_2", 96, 3, pad=1)
        three = self.basic(three, f"{name}.branch3x3dbl_3", 96, 3, pad=1)
        return self.concat([one, five, three, self.pool_branch(x, name, pool)])

    def block_b(self, x: Map, name: str) -> Map:
        three = self.basic(x, f"{name}.branch3x3", 384, 3, stride=2)
        double = self.basic(x, f"{name}.branch3x3dbl_1", 64, 1)
        double = self.basic(double, f"{name}.branch3x3dbl_2", 96, 3, pad=1)
        double = self.basic(double, f"{name}.branch3x3dbl_3", 96, 3, stride=2)
        return self.concat([three, double, self.max_pool(x, 3, 2)])

    def block_c(self, x: Map, name: str, width: int) -> Map:
        one = self.basic(x, f"{name}.branch1x1", 192, 1)
        seven = self.basic(x, f"{name}.branch7x7_1", width, 1)
        seven = self.row(seven, f"{name}.branch7x7_2", width, 7)
        seven = self.column(seven, f"{name}.branch7x7_3", 192, 7)
        double = self.basic(x, f"{name}.branch7x7dbl_1", width, 1)
        double = self.column(double, f"{name}.branch7x7dbl_2", width, 7)
        double = self.row(double, f"{name}.branch7x7dbl_3", width, 7)
        double = self.column(double, f"{name}.branch7x7dbl_4", width, 7)
        double = self.row(double, f"{name}.branch7x7dbl_5", 192, 7)
        return self.concat([one, seven, double, self.pool_branch(x, name, 192)])

    def block_d(self, x: Map, name: str) -> Map:
        three = self.basic(x, f"{name}.branch3x3_1", 192, 1)
        three = self.basic(three, f"{name}.branch3x3_2", 320, 3, stride=2)
        seven = self.basic(x, f"{name}.branch7x7x3_1", 192, 1)
        seven = self.row(seven, f"{name}.branch7x7x3_2", 192, 7)
        seven = self.column(seven, f"{name}.branch7x7x3_3", 192, 7)
        seven = self.basic(seven, f"{name}.branch7x7x3_4", 192, 3, stride=2)
        return self.concat([three, seven, self.max_pool(x, 3, 2)])

    def block_e(self, x: Map, name: str) -> Map:
        one = self.basic(x, f"{name}.branch1x1", 320, 1)
        three = self.basic(x, f"{name}.branch3x3_1", 384, 1)
        three = self.concat([self.row(three, f"{name}.branch3x3_2a", 384, 3), self.column(three, f"{name}.branch3x3_2b", 384, 3)])
        double = self.basic(x, f"{name}.branch3x3dbl_1", 448, 1)
        double = self.basic(double, f"{name}.branch3x3dbl_2", 384, 3, pad=1)
        double = self.concat([self.row(double, f"{name}.branch3x3dbl_3a", 384, 3), self.column(double, f"{name}.branch3x3dbl_3b", 384, 3)])
        return self.concat([one, three, double, self.pool_branch(x, name, 192)])

    def aux_logits(self, x: Map) -> str:
        x = self.avg_pool(x, 5, 3)
        x = self.basic(x, "AuxLogits.conv0", 128, 1)
        x = self.basic(x, "AuxLogits.conv1", 768, 5)
        return self.linear(self.global_pool(x), "AuxLogits.fc", x.channels, self.options.classes, gain=1.0)
