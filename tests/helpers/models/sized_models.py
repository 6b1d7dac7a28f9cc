"""Networks over pictures of any size, drawn at random: windows, pools, branches that meet again, tokens, resizing. Each takes every picture
that is large enough."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SMALLEST = 24
"""Sides from here on are large enough."""


@dataclass
class Picture:
    """A value of the graph: its name, channels, and how many times it has been halved."""

    name: str
    channels: int
    halvings: int = 0


@dataclass
class Drawn:
    """A network that grows. `x`: where it has got to; `kept`: values that later layers may read again."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    kept: list[Picture] = field(default_factory=list)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        values = self.rng.standard_normal(shape) / max(np.sqrt(np.prod(shape[1:])), 1)
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def integers(self, *values: int) -> str:
        name = f"i{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    # ---- layers

    def convolve(self, x: Picture) -> Picture:
        channels = int(self.rng.choice([8, 16, 24]))
        kernel = int(self.rng.choice([1, 2, 3, 5, 7]))
        stride = int(self.rng.choice([1, 1, 2])) if x.halvings < 2 else 1
        before, after = (int(self.rng.integers(kernel // 2 + 1)) for _ in range(2))
        pads = [before, before, after, after]
        y = self.node("Conv", x.name, self.weight(channels, x.channels, kernel, kernel), strides=[stride] * 2, pads=pads)
        return Picture(self.node(str(self.rng.choice(["Relu", "Sigmoid"])), y), channels, x.halvings + (stride > 1))

    def depthwise(self, x: Picture) -> Picture:
        kernel = int(self.rng.choice([3, 5]))
        y = self.node("Conv", x.name, self.weight(x.channels, 1, kernel, kernel), group=x.channels, pads=[kernel // 2] * 4)
        return Picture(y, x.channels, x.halvings)

    def pool(self, x: Picture) -> Picture:
        if x.halvings > 1:
            return x
        kernel, pad = int(self.rng.choice([2, 3])), int(self.rng.integers(2))
        op = str(self.rng.choice(["MaxPool", "AveragePool"]))
        ceil = int(self.rng.integers(2)) if op == "MaxPool" else 0
        y = self.node(op, x.name, kernel_shape=[kernel] * 2, strides=[2, 2], pads=[pad] * 4, ceil_mode=ceil)
        return Picture(y, x.channels, x.halvings + 1)

    def residual(self, x: Picture) -> Picture:
        y = self.node("Conv", x.name, self.weight(x.channels, x.channels, 3, 3), pads=[1] * 4)
        return Picture(self.node("Add", x.name, y), x.channels, x.halvings)

    def enlarge(self, x: Picture) -> Picture:
        """By two; nearest elements or between them."""
        if not x.halvings:
            return x
        scales = self.node("Constant", value_floats=[1.0, 1.0, 2.0, 2.0])
        mode = str(self.rng.choice(["nearest", "linear"]))
        return Picture(self.node("Resize", x.name, "", scales, mode=mode), x.channels, x.halvings - 1)

    def meet(self, x: Picture) -> Picture:
        """Resized to the size of an earlier value, beside it."""
        other = self.kept[int(self.rng.integers(len(self.kept)))]
        sides = self.node("Slice", self.node("Shape", other.name), self.integers(2), self.integers(4))
        front = self.node("Slice", self.node("Shape", x.name), self.integers(0), self.integers(2))
        sizes = self.node("Concat", front, sides, axis=0)
        mode = str(self.rng.choice(["nearest", "linear"]))
        y = self.node("Resize", x.name, "", "", sizes, mode=mode)
        return Picture(self.node("Concat", y, other.name, axis=1), x.channels + other.channels, other.halvings)

    def tokens(self, x: Picture) -> Picture:
        """Rows of pixels, normalised, through a product, and back to a picture."""
        shape = self.node("Shape", x.name)
        rows = self.node("Transpose", self.node("Reshape", x.name, self.integers(0, 0, -1)), perm=[0, 2, 1])
        normal = self.node("LayerNormalization", rows, self.weight(x.channels), self.weight(x.channels))
        y = self.node("Add", rows, self.node("MatMul", normal, self.weight(x.channels, x.channels)))
        return Picture(self.node("Reshape", self.node("Transpose", y, perm=[0, 2, 1]), shape), x.channels, x.halvings)

    def squeeze(self, x: Picture) -> Picture:
        """A factor for each channel, from all pixels."""
        y = self.node("Conv", self.node("GlobalAveragePool", x.name), self.weight(x.channels, x.channels, 1, 1))
        return Picture(self.node("Mul", x.name, self.node("Sigmoid", y)), x.channels, x.halvings)


LAYERS = ("convolve", "convolve", "depthwise", "pool", "residual", "enlarge", "meet", "tokens", "squeeze")
ENDS = ("picture", "classes", "rows")


def drawn(seed: int, layers: int = 6) -> onnx.ModelProto:
    """A network of so many layers. Input "x": [1, 3, height, width], f32. Its output: a picture, classes, or a row for each pixel."""
    net = Drawn(np.random.default_rng(seed))
    x = net.convolve(Picture("x", 3))
    for _ in range(layers):
        net.kept.append(x)
        x = getattr(net, str(net.rng.choice(LAYERS)))(x)
    end = str(net.rng.choice(ENDS))
    y = x.name
    if end == "classes":
        y = net.node("MatMul", net.node("ReduceMean", y, axes=[2, 3], keepdims=0), net.weight(x.channels, 10))
    elif end == "rows":
        y = net.node("Reshape", y, net.integers(0, x.channels, -1))
    net.nodes.append(helper.make_node("Identity", [y], ["y"], name="y"))
    shape = [1, 3, "height", "width"]
    inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", shape), ("y", None)))
    graph = helper.make_graph(net.nodes, f"drawn{seed}", [inputs], [outputs], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
