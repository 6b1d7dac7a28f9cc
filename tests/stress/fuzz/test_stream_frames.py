"""Streams of random networks: frames after random changes have the bits of whole requests.

A failing case names its seed. `check(runtime, seed)` repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.errors import ResourceLimitError

NETS = 3000 if os.environ.get("ASPEN_MP_TIER") == "long" else 40
FRAMES = 6
F32 = TensorProto.FLOAT
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as own:
        yield own


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


def forgetful(loaded: aspen_mp.Model, most: int, rng: np.random.Generator, stack: ExitStack) -> aspen_mp.ModelStream | None:
    """A stream that keeps a part of the activations; None where inputs and outputs alone need more than was drawn."""
    stream = stack.enter_context(loaded.stream(memory=int(most * rng.uniform(0.2, 1))))
    try:
        stream.run({one.name: np.zeros(one.shape, one.dtype) for one in loaded.inputs})
    except ResourceLimitError:
        return None
    stream.reset()
    return stream


def check(runtime: aspen_mp.Runtime, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = Net(rng)
    for _ in range(rng.integers(1, 7)):
        net.grow()
    loaded = runtime.load(net.model())
    with loaded.stream() as stream, loaded.stream() as whole, loaded.stream(same_bits=False) as close, ExitStack() as more:
        x, changed = rng.standard_normal(net.shape).astype(np.float32), None
        for frame in range(FRAMES):
            got, near = stream.run({"x": x}, changed), close.run({"x": x}, changed)
            if not frame:
                small = forgetful(loaded, stream.nbytes, rng, more)
            same = got if small is None else small.run({"x": x}, changed)
            whole.reset()
            want = whole.run({"x": x})
            for name, value in want.items():
                assert got[name].tobytes() == value.tobytes(), f"seed {seed}, frame {frame}, {name}"
                assert same[name].tobytes() == value.tobytes(), f"seed {seed}, frame {frame}, {name}: forgetful"
                assert np.abs(near[name] - value).max() <= 1e-4 * np.ptp(value) + 1e-6, f"seed {seed}, frame {frame}, {name}: too far"
            x, changed = next_frame(rng, x)
    loaded.unload()


@pytest.mark.parametrize("part", range(4))
def test_frames_have_the_bits_of_whole_requests(runtime: aspen_mp.Runtime, part: int) -> None:
    for seed in range(part, NETS, 4):
        check(runtime, seed)


@pytest.mark.parametrize("what", ["nothing", "an empty input"])
def test_values_that_no_change_reaches(runtime: aspen_mp.Runtime, what: str) -> None:
    """The first frame, and one after `reset`, computes them too."""
    info = helper.make_tensor_value_info
    inputs, feeds = [info("x", F32, [4])], {"x": np.ones(4, np.float32)}
    if what == "nothing":
        nodes = [helper.make_node("RandomNormal", [], ["y"], shape=[4], seed=3.0)]
    else:
        nodes = [helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0), helper.make_node("Cos", ["s"], ["y"])]
        inputs.append(info("z", F32, [0, 3]))
        feeds["z"] = np.zeros((0, 3), np.float32)
    nodes.append(helper.make_node("Add", ["x", "y"], ["o"]))
    loaded = runtime.load(model(nodes, inputs, [info("o", F32, [4]), info("y", F32, None)]))
    want = loaded.run(feeds)
    with loaded.stream() as stream:
        for _ in range(2):
            got = stream.run(feeds)
            assert all(got[name].tobytes() == value.tobytes() for name, value in want.items())
            stream.reset()
    loaded.unload()
