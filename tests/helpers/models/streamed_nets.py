"""Random networks over images, and frames for streams of them: each differs in some boxes from the one before."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import aspen_mp

F32 = TensorProto.FLOAT
Array = np.ndarray[Any, np.dtype[Any]]


class Net:
    """A network under construction. `x`: its last value, of `channels` channels."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.shape = [int(rng.integers(1, 3)), int(rng.integers(1, 5)), *(int(side) for side in rng.integers(6, 40, 2))]
        self.channels, self.x = self.shape[1], "x"

    def const(self, value: Array) -> str:
        self.stored.append(numpy_helper.from_array(value, f"c{len(self.stored)}"))
        return self.stored[-1].name

    def draw(self, *shape: int) -> str:
        scale = np.sqrt(max(np.prod(shape[1:]), 1))
        return self.const((self.rng.standard_normal(shape) / scale).astype(np.float32))

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"v{len(self.nodes)}"], **attrs))
        return self.nodes[-1].output[0]

    def grow(self) -> None:
        rng, x, c = self.rng, self.x, self.channels
        strides = [int(rng.choice([1, 1, 2]))] * 2
        match rng.choice(["conv", "conv", "depthwise", "pool", "resize", "function", "concat", "softmax", "norm", "transpose", "mean"]):
            case "conv":
                self.channels, side = int(rng.integers(1, 40)), int(rng.choice([1, 3, 5]))
                weights = self.draw(self.channels, c, side, side), self.draw(self.channels)
                self.x = self.add("Conv", x, *weights, pads=[side // 2] * 4, strides=strides)
            case "depthwise":
                self.x = self.add("Conv", x, self.draw(c, 1, 3, 3), pads=[1] * 4, group=c)
            case "pool":
                self.x = self.add(str(rng.choice(["MaxPool", "AveragePool"])), x, kernel_shape=[3, 3], pads=[1] * 4, strides=strides)
            case "resize":
                scales = self.const(np.array([1, 1, 2, 2], np.float32))
                self.x = self.add("Resize", x, "", scales, mode=str(rng.choice(["nearest", "linear"])))
            case "function":
                self.x = self.add(str(rng.choice(["Relu", "Sigmoid", "Tanh"])), x)
            case "concat":
                self.x, self.channels = self.add("Concat", x, self.add("Relu", x), axis=1), 2 * c
            case "softmax":
                self.x = self.add("Softmax", x, axis=int(rng.choice([1, 3])))
            case "norm":
                ones, zeros = (self.const(np.full(c, value, np.float32)) for value in (1, 0))
                self.x = self.add("InstanceNormalization", x, ones, zeros)
            case "transpose":
                self.x = self.add("Transpose", self.add("Neg", x), perm=[0, 1, 3, 2])
            case "mean":
                self.x = self.add("Mul", x, self.add("GlobalAveragePool", x))

    def model(self) -> onnx.ModelProto:
        middle = self.nodes[len(self.nodes) // 2].output[0]
        outputs = [helper.make_tensor_value_info(name, F32, None) for name in dict.fromkeys((self.x, middle))]
        return model(self.nodes, [helper.make_tensor_value_info("x", F32, self.shape)], outputs, self.stored)


def model(nodes: Any, inputs: Any, outputs: Any, stored: Any = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def next_frame(rng: np.random.Generator, x: Array) -> tuple[Array, Any]:
    """Another input, and what may be said of the change."""
    y, boxes = x.copy(), []
    if rng.random() < 0.1:
        return rng.standard_normal(x.shape).astype(x.dtype), None
    for _ in range(rng.integers(0, 4)):
        low = [int(rng.integers(0, d)) for d in x.shape]
        high = [a + int(rng.integers(1, 6)) for a in low]
        box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        y[box] = rng.standard_normal(y[box].shape)
        boxes.append((low, high))
    return y, [None, boxes, x != y][rng.integers(0, 3)]


def drawn(rng: np.random.Generator, most: int = 6) -> Net:
    """A network of up to `most` layers."""
    net = Net(rng)
    for _ in range(rng.integers(1, most + 1)):
        net.grow()
    return net


class Whole:
    """Whole runs of the plan that a stream of the model has."""

    def __init__(self, loaded: aspen_mp.Model) -> None:
        self._stream = loaded.stream()

    def __call__(self, x: Array) -> dict[str, bytes]:
        self._stream.reset()
        return bits(self._stream.run({"x": x}))

    def close(self) -> None:
        self._stream.close()


def bits(results: dict[str, Array]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in results.items()}
