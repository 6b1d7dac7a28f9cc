"""Layers of image networks on top of `Net`: feature maps with known size, convolution with or without BatchNorm, pooling, classifier.

Values keep E[x²] near 1 at the input of every convolution. Weights without BatchNorm have variance 2 / fan-in (He). Weights before
BatchNorm have variance `PRE_BN` / fan-in and the running variance says so; gamma restores the scale. Activations and outputs so stay of
order one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from .net import Dim, Init, Net, NoWeights, RandomWeights, Weights, product

PRE_BN = 0.6  # variance of a convolution's output before its BatchNorm: anything but 1, so that ignoring running_var shows


@dataclass(frozen=True, slots=True)
class Map:
    """A tensor of shape [batch, channels, height, width]."""

    tensor: str
    channels: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How an image network is written.

    `image`: height and width in pixels. `bn`: "keep" BatchNormalization nodes, or "fold" them into the convolutions before them, as
    PyTorch's exporter does by default. `pool`: final pooling as "global" (GlobalAveragePool + Flatten) or "mean" (ReduceMean + Reshape).
    """

    batch: Dim = 1
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    bn: str = "keep"
    pool: str = "global"
    opset: int = 17

    def __post_init__(self) -> None:
        if self.bn not in ("keep", "fold"):
            raise ValueError(f"bn={self.bn!r}: 'keep' or 'fold'")
        if self.pool not in ("global", "mean"):
            raise ValueError(f"pool={self.pool!r}: 'global' or 'mean'")


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def pooled(size: int, kernel: int, stride: int, pad: int, ceil: bool) -> int:
    """Output size of a pooling window; in ceil mode a window that would start in the right padding is dropped."""
    span = size + 2 * pad - kernel
    out = -(-span // stride) + 1 if ceil else span // stride + 1
    return out - 1 if ceil and (out - 1) * stride >= size + pad else out


class VisionNet(Net):
    """A `Net` for images, float32 NCHW."""

    def __init__(self, name: str, options: ImageOptions, weights: Weights) -> None:
        super().__init__(name, opset=options.opset, weights=weights)
        self.options = options

    def image(self, name: str = "input", *, channels: int = 3, normalised: bool = True) -> Map:
        h, w = self.options.image
        kind = "image" if normalised else "pixels"
        self.input(name, TensorProto.FLOAT, [self.options.batch, channels, h, w], kind=kind)
        return Map(name, channels, h, w)

    # ---- convolutions

    def conv(
        self,
        x: Map,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
        group: int = 1,
        bias: bool = True,
        gain: float = 2.0,
    ) -> Map:
        """Convolution with parameters NAME.weight, NAME.bias; weight variance is `gain` / fan-in."""
        kh, kw = pair(kernel)
        shape = (channels, x.channels // group, kh, kw)
        init = Init(math.sqrt(gain / math.prod(shape[1:])))
        inputs = [x.tensor, self.param(f"{name}.weight", shape, init)]
        if bias:
            inputs.append(self.param(f"{name}.bias", (channels,), Init(0.05)))
        return self._conv_node(x, name, inputs, shape, stride, pair(pad), group)

    def _conv_node(
        self, x: Map, name: str, inputs: Sequence[str], shape: tuple[int, int, int, int], stride: int, pad: tuple[int, int], group: int
    ) -> Map:
        channels, _, kh, kw = shape
        ph, pw = pad
        out = self.op(
            "Conv",
            *inputs,
            name=f"{name}/Conv",
            dilations=[1, 1],
            group=group,
            kernel_shape=[kh, kw],
            pads=[ph, pw, ph, pw],
            strides=[stride, stride],
        )
        h, w = (x.height + 2 * ph - kh) // stride + 1, (x.width + 2 * pw - kw) // stride + 1
        if h < 1 or w < 1:
            raise ValueError(
                f"{self.graph.name}: an image of {self.options.image[0]}×{self.options.image[1]} is too small, {name} has nothing left"
            )
        self.add_macs(product(self.options.batch, math.prod(shape), h, w))
        return Map(out, channels, h, w)

    def conv_bn(
        self,
        x: Map,
        conv: str,
        bn: str,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
        group: int = 1,
        bias: bool = False,
        eps: float = 1e-5,
        gamma: float = math.sqrt(2),
    ) -> Map:
        """Convolution CONV followed by BatchNorm BN. `gamma`: mean scale of the result, √2 before a ReLU and 1 where nothing follows."""
        if self.options.bn == "keep":
            y = self.conv(x, conv, channels, kernel, stride=stride, pad=pad, group=group, bias=bias, gain=PRE_BN)
            return self.batch_norm(y, bn, eps=eps, gamma=gamma, variance=PRE_BN)
        kh, kw = pair(kernel)
        shape = (channels, x.channels // group, kh, kw)
        std = math.sqrt(PRE_BN / math.prod(shape[1:]))
        weight, offset = self._folded(conv, bn, shape, std, bias, eps, gamma)
        self.parameters += math.prod(shape) + (3 if bias else 2) * channels  # as published, with gamma and beta
        for suffix, value in (("weight", weight), ("bias", offset)):
            dims = shape if suffix == "weight" else (channels,)
            self.graph.initializer.add(name=f"{conv}.{suffix}", data_type=TensorProto.FLOAT, dims=dims, raw_data=value)
        return self._conv_node(x, conv, [x.tensor, f"{conv}.weight", f"{conv}.bias"], shape, stride, pair(pad), group)

    def _folded(
        self, conv: str, bn: str, shape: tuple[int, int, int, int], std: float, bias: bool, eps: float, gamma: float
    ) -> tuple[bytes, bytes]:
        """Weight and bias that do what the unfolded convolution and BatchNorm of the same names do."""
        if isinstance(self.weights, NoWeights):
            return b"", b""

        def values(name: str, dims: tuple[int, ...], init: Init) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
            if isinstance(self.weights, RandomWeights):
                return self.weights.draw(name, dims, init).astype(np.float64)
            return np.frombuffer(self.weights.get(name, dims, init, False), np.float32).reshape(dims).astype(np.float64)

        inits = bn_inits(gamma, PRE_BN)
        scale, beta, mean, var = (values(f"{bn}.{key}", shape[:1], init) for key, init in inits.items())
        factor = scale / np.sqrt(var + eps)
        weight = values(f"{conv}.weight", shape, Init(std)) * factor[:, None, None, None]
        offset = values(f"{conv}.bias", shape[:1], Init(0.05)) if bias else np.zeros(shape[0])
        return weight.astype(np.float32).tobytes(), (beta + (offset - mean) * factor).astype(np.float32).tobytes()

    def batch_norm(self, x: Map, name: str, *, eps: float = 1e-5, gamma: float = 1.0, variance: float = 1.0) -> Map:
        keys = bn_inits(gamma, variance).items()
        inputs = [self.param(f"{name}.{key}", (x.channels,), init, count=not key.startswith("running")) for key, init in keys]
        out = self.op("BatchNormalization", x.tensor, *inputs, name=f"{name}/BatchNormalization", epsilon=eps, momentum=0.9)
        return replace(x, tensor=out)

    # ---- activations

    def relu(self, x: Map) -> Map:
        return replace(x, tensor=self.op("Relu", x.tensor))

    def relu6(self, x: Map) -> Map:
        return replace(x, tensor=self.op("Clip", x.tensor, self.scalar(0.0), self.scalar(6.0)))

    def leaky(self, x: Map, alpha: float = 0.1) -> Map:
        return replace(x, tensor=self.op("LeakyRelu", x.tensor, alpha=alpha))

    def add(self, a: Map, b: Map) -> Map:
        return replace(a, tensor=self.op("Add", a.tensor, b.tensor))

    def concat(self, maps: Sequence[Map]) -> Map:
        tensor = self.op("Concat", *(m.tensor for m in maps), axis=1)
        return replace(maps[0], tensor=tensor, channels=sum(m.channels for m in maps))

    # ---- pooling

    def max_pool(self, x: Map, kernel: int, stride: int, pad: int = 0, ceil: bool = False) -> Map:
        tensor = self.op(
            "MaxPool", x.tensor, ceil_mode=int(ceil), kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2, dilations=[1, 1]
        )
        return self._pooled(replace(x, tensor=tensor), kernel, stride, pad, ceil)

    def avg_pool(self, x: Map, kernel: int, stride: int, pad: int = 0, include_pad: bool = True) -> Map:
        tensor = self.op(
            "AveragePool",
            x.tensor,
            ceil_mode=0,
            count_include_pad=int(include_pad),
            kernel_shape=[kernel] * 2,
            pads=[pad] * 4,
            strides=[stride] * 2,
        )
        return self._pooled(replace(x, tensor=tensor), kernel, stride, pad, False)

    def _pooled(self, x: Map, kernel: int, stride: int, pad: int, ceil: bool) -> Map:
        h, w = (pooled(size, kernel, stride, pad, ceil) for size in (x.height, x.width))
        if h < 1 or w < 1:
            raise ValueError(f"{self.graph.name}: an image of {self.options.image[0]}×{self.options.image[1]} is too small")
        return replace(x, height=h, width=w)

    def adaptive_avg_pool(self, x: Map, size: int) -> Map:
        """Average pooling to size × size. A map that is smaller already stays as it is; one whose sides are not a multiple cannot be
        exported to ONNX."""
        if x.height < size or x.width < size:
            return x
        kh, kw = x.height // size, x.width // size
        if x.height % size or x.width % size:
            raise ValueError(
                f"{self.graph.name}: adaptive pooling of {x.height}×{x.width} to {size}×{size} has no ONNX form; choose another image size"
            )
        tensor = self.op("AveragePool", x.tensor, kernel_shape=[kh, kw], strides=[kh, kw])
        return replace(x, tensor=tensor, height=size, width=size)

    def global_pool(self, x: Map) -> str:
        """Mean over all pixels: [batch, channels]."""
        if self.options.pool == "global":
            return self.op("Flatten", self.op("GlobalAveragePool", x.tensor), axis=1)
        return self.op("Reshape", self.reduce_mean(x.tensor, [-1, -2]), self.ints(0, -1))

    def upsample(self, x: Map, factor: int = 2) -> Map:
        scales = self.const(np.array([1, 1, factor, factor], np.float32))
        tensor = self.op(
            "Resize",
            x.tensor,
            "",
            scales,
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
            cubic_coeff_a=-0.75,
        )
        return replace(x, tensor=tensor, height=x.height * factor, width=x.width * factor)

    # ---- classifier

    def linear(self, x: str, name: str, inputs: int, outputs: int, *, gain: float = 2.0) -> str:
        """Fully connected layer on [batch, inputs], written as Gemm with a transposed weight, as PyTorch exports it."""
        weight = self.param(f"{name}.weight", (outputs, inputs), Init(math.sqrt(gain / inputs)))
        bias = self.param(f"{name}.bias", (outputs,), Init(0.05))
        self.add_macs(product(self.options.batch, inputs, outputs))
        return self.op("Gemm", x, weight, bias, name=f"{name}/Gemm", alpha=1.0, beta=1.0, transB=1)

    def logits(self, x: str, name: str, inputs: int) -> onnx.ModelProto:
        """Last layer and output of a classifier; finishes the model."""
        y = self.linear(x, name, inputs, self.options.classes, gain=1.0)
        self.output(y, "output", [self.options.batch, self.options.classes])
        return self.finish()


def bn_inits(gamma: float, variance: float) -> dict[str, Init]:
    """Distributions of a BatchNorm's parameters, in the order of the node's inputs."""
    return {
        "weight": Init(0.1 * gamma, gamma),
        "bias": Init(0.1),
        "running_mean": Init(0.1 * math.sqrt(variance)),
        "running_var": Init(0.1 * variance, variance),
    }
