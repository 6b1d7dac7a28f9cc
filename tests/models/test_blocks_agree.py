"""Building blocks of convolutional networks, each small: onnxruntime's results, the same bits for any tiling, and fused as meant."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from test_plans_agree import check, planned

from aspen_mp.bench.models import inputs
from aspen_mp.bench.models.net import Init, RandomWeights
from aspen_mp.bench.models.vision import ImageOptions, Map, VisionNet

SIZE = 23


class Blocks(VisionNet):
    """A network of a few layers."""

    def __init__(self) -> None:
        super().__init__("blocks", ImageOptions(batch=2, image=(SIZE, SIZE)), RandomWeights(1))

    def normed(self, x: Map, name: str) -> Map:
        parts = [self.param(f"{name}.{part}", (x.channels,), Init(0.3)) for part in ("weight", "bias", "mean")]
        variance = self.const(np.linspace(0.5, 2, x.channels, dtype=np.float32))
        return self.moved(x, self.op("BatchNormalization", x.tensor, *parts, variance))

    @staticmethod
    def moved(x: Map, tensor: str) -> Map:
        return Map(tensor, x.channels, x.height, x.width)

    def unary(self, x: Map, op: str, **attrs: object) -> Map:
        return self.moved(x, self.op(op, x.tensor, **attrs))

    def done(self, x: Map) -> ModelProto:
        self.output(x.tensor, "output", [self.options.batch, x.channels, x.height, x.width])
        return self.finish()


def darknet(net: Blocks) -> Map:
    """Residual after the activation."""
    x = net.conv(net.image(), "stem", 40, 3, pad=1)
    y = net.unary(net.conv(x, "a", 24, 1), "LeakyRelu", alpha=0.1)
    y = net.unary(net.conv(y, "b", 40, 3, pad=1), "LeakyRelu", alpha=0.1)
    return net.add(y, x)


def preactivation(net: Blocks) -> Map:
    """Normalisation and activation before 1×1 convolutions, alone and with a second reader."""
    x = net.conv(net.image(), "stem", 40, 7, stride=2, pad=3)
    y = net.conv(net.unary(net.normed(x, "n1"), "Relu"), "a", 48, 1)
    both = net.unary(net.normed(y, "n2"), "Relu")
    z = net.add(net.conv(both, "b", 40, 1), net.conv(both, "c", 40, 3, pad=1))
    return net.conv(net.unary(net.normed(z, "n3"), "Relu"), "d", 20, 1, stride=2)


def speech(net: Blocks) -> Map:
    """Normalisation after the activation, then a residual."""
    x = net.conv(net.image(), "stem", 33, 3, pad=1)
    y = net.normed(net.unary(net.conv(x, "a", 33, 3, pad=1), "Relu"), "n1")
    return net.add(y, x)


def resnext(net: Blocks) -> Map:
    """Groups of four and of eight channels."""
    x = net.unary(net.conv(net.image(), "stem", 32, 3, stride=2, pad=1), "Relu")
    x = net.unary(net.conv(x, "a", 64, 3, pad=1, group=8), "Relu")
    return net.conv(x, "b", 40, 5, pad=2, group=8)


def hard(net: Blocks) -> Map:
    """MobileNetV3: depthwise 5×5, hard swish, a gate."""
    x = net.unary(net.conv(net.image(), "stem", 24, 3, stride=2, pad=1), "HardSwish")
    y = net.unary(net.conv(x, "dw", 24, 5, pad=2, group=24), "HardSwish")
    gate = net.unary(net.conv(net.moved(y, net.op("GlobalAveragePool", y.tensor)), "se", 24, 1), "HardSigmoid", alpha=1 / 6, beta=0.5)
    return net.add(net.conv(net.moved(y, net.op("Mul", y.tensor, gate.tensor)), "project", 24, 1), x)


def pools(net: Blocks) -> Map:
    """Windows of common sizes, with and without margins."""
    x = net.conv(net.image(), "stem", 40, 3, pad=1)
    for op, kernel, stride, pad in (("MaxPool", 3, 2, 1), ("AveragePool", 3, 1, 1), ("MaxPool", 2, 2, 0), ("AveragePool", 2, 1, 0)):
        side = (x.height + 2 * pad - kernel) // stride + 1
        tensor = net.op(op, x.tensor, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)
        x = Map(tensor, x.channels, side, side)
    return x


@pytest.mark.parametrize(
    ("block", "kernels"),
    [
        (darknet, ["CONV"] * 3),
        (preactivation, None),
        (speech, None),
        (resnext, ["CONV"] * 3),
        (hard, None),
        (pools, ["CONV", "STACK"]),
    ],
)
def test_block(block, kernels):
    net = Blocks()
    model = net.done(block(net))
    feeds = inputs(model)
    check(model, feeds)
    found = [info.kernel.split()[0].replace("WINO", "CONV") for info in planned(model.SerializeToString(), feeds, 2).plan.info]
    if kernels is not None:
        assert [k for k in found if k != "COPY"] == kernels
    assert "UNARY" not in found, "every activation is part of a kernel"
