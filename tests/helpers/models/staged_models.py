"""Networks whose shapes follow from data, drawn at random: rows are chosen by their scores, computed with, and chosen again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS = 60
"""Rows of the inputs `x` [rows, 8] and `s` [rows], their scores: rows of scores above 0 are chosen first."""
WIDTH = 8


@dataclass
class Staged:
    """A network that grows. Each layer makes another [found, width] of one."""

    rng: np.random.Generator
    of_none: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def const(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape) / np.sqrt(shape[0] if len(shape) == 2 else np.prod(shape[1:])), np.float32)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def rows_of(self, x: str, scores: str, least: float) -> str:
        """Those rows of `x` whose scores are larger."""
        places = self.node("NonZero", self.node("Greater", scores, self.const(least, np.float32)))
        return self.node("Gather", x, self.node("Squeeze", places, self.const([0])), axis=0)

    # ---- layers over [found, width]

    def product(self, x: str) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(WIDTH, WIDTH)), self.weight(WIDTH))

    def gemm(self, x: str) -> str:
        return self.node("Relu", self.node("Gemm", x, self.weight(WIDTH, WIDTH), self.weight(WIDTH)))

    def attention(self, x: str) -> str:
        p = self.node("Softmax", self.node("MatMul", x, self.node("Transpose", x, perm=[1, 0])), axis=-1)
        return self.node("MatMul", p, x)

    def norm(self, x: str) -> str:
        return self.node("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH), axis=-1)

    def convolution(self, x: str) -> str:
        line = self.node("Unsqueeze", self.node("Transpose", x, perm=[1, 0]), self.const([0]))
        y = self.node("Conv", line, self.weight(WIDTH, WIDTH, 3), pads=[1, 1])
        return self.node("Transpose", self.node("Squeeze", y, self.const([0])), perm=[1, 0])

    def mean(self, x: str) -> str:
        return self.node("Sub", self.node("MatMul", x, self.weight(WIDTH, WIDTH)), self.node("ReduceMean", x, axes=[0], keepdims=1))

    def beside(self, x: str) -> str:
        both = self.node("Concat", self.node("MatMul", x, self.weight(WIDTH, 3)), x, axis=1)
        return self.node("MatMul", both, self.weight(WIDTH + 3, WIDTH))

    def regions(self, x: str) -> str:
        """Crops of a picture; which picture each is of follows from their number alone."""
        part = [self.const(v) for v in ([0], [4], [1])]
        boxes = self.node("Abs", self.node("Slice", x, *part))
        count = self.node("Slice", self.node("Shape", x), self.const([0]), self.const([1]))
        which = self.node("ConstantOfShape", count, value=numpy_helper.from_array(np.zeros(1, np.int64)))
        picture = self.weight(1, 2, 9, 7)
        crops = self.node("RoiAlign", picture, boxes, which, output_height=2, output_width=2, sampling_ratio=1)
        return self.node("Reshape", crops, self.const([0, WIDTH]))

    LAYERS = (product, gemm, attention, norm, beside, regions, convolution, mean)
    OF_NONE = 6
    """The first layers are defined where nothing has been found, too."""

    def layers(self, x: str, count: int) -> str:
        for k in self.rng.permutation(self.OF_NONE if self.of_none else len(self.LAYERS))[:count]:
            x = self.LAYERS[k](self, x)
        return x


def drawn(seed: int, of_none: bool = False) -> onnx.ModelProto:
    """A network of two to four stages over `x` and `s`: outputs `y` [found, width] and `z` [width]. `of_none`: all layers take no rows."""
    rng = np.random.default_rng(seed)
    net = Staged(rng, of_none)
    x = net.rows_of(net.gemm("x"), "s", 0.0)
    x = net.layers(x, int(rng.integers(1, 4)))
    for _ in range(int(rng.integers(0, 3))):
        middle = net.node("ReduceMean", x, axes=[1], keepdims=0)
        x = net.rows_of(net.product(x), middle, float(rng.normal(-0.3, 0.1)))
        x = net.layers(x, int(rng.integers(1, 3)))
    net.nodes.append(helper.make_node("Identity", [x], ["y"]))
    net.nodes.append(helper.make_node("ReduceSum", [net.node("Tanh", x), net.const([0])], ["z"], keepdims=0))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH]),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, [ROWS]),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("y", ["found", WIDTH]), ("z", [WIDTH]))]
    graph = helper.make_graph(net.nodes, f"staged{seed}", inputs, outputs, net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def request(found: int, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Inputs of which so many rows are chosen."""
    rng = np.random.default_rng((seed, found))
    s = -np.abs(rng.standard_normal(ROWS)) - 0.01
    s[rng.permutation(ROWS)[:found]] *= -1
    return {"x": rng.standard_normal((ROWS, WIDTH)).astype(np.float32), "s": s.astype(np.float32)}


def detector(hidden: int = 32) -> onnx.ModelProto:
    """A detector in pictures `x` [1, 3, height, width] of any size. Boxes whose scores exceed `least` [1] are suppressed where they
    overlap, cut out of a feature map and classified: `y` [found, 5], `boxes` [found, 4]. Those that are sure of a class are computed with
    once more: `z` [sure, 6]."""
    net = Staged(np.random.default_rng(7))
    features = net.node("Relu", net.node("Conv", "x", net.weight(16, 3, 3, 3), strides=[4, 4], pads=[1, 1, 1, 1]))
    places = net.node("Reshape", net.node("Conv", features, net.weight(4, 16, 1, 1)), net.const([0, 4, -1]))
    corners = net.node("Mul", net.node("Abs", net.node("Transpose", places, perm=[0, 2, 1])), net.const(20, np.float32))
    near, size = (net.node("Slice", corners, *map(net.const, ([k], [k + 2], [2]))) for k in (0, 2))
    boxes = net.node("Concat", near, net.node("Add", near, size), axis=2)
    scores = net.node("Sigmoid", net.node("Conv", features, net.weight(2, 16, 1, 1)))
    scores = net.node("Reshape", scores, net.const([0, 2, -1]))
    overlap, most = net.const(0.6, np.float32), net.const(40)
    chosen = net.node("NonMaxSuppression", boxes, scores, most, overlap, "least")
    which, image = (net.node("Gather", chosen, net.const(k), axis=1) for k in (2, 0))
    found = net.node("Gather", net.node("Reshape", boxes, net.const([-1, 4])), which, axis=0)
    crops = net.node("RoiAlign", features, found, image, output_height=3, output_width=3, sampling_ratio=2, spatial_scale=0.25)
    flat = net.node("Reshape", crops, net.const([0, 144]))
    inner = net.node("Relu", net.node("Gemm", flat, net.weight(144, hidden), net.weight(hidden)))
    net.nodes.append(helper.make_node("MatMul", [inner, net.weight(hidden, 5)], ["y"]))
    net.nodes.append(helper.make_node("Identity", [found], ["boxes"]))
    sure = net.rows_of("y", net.node("ReduceMax", "y", axes=[1], keepdims=0), 1.6)
    net.nodes.append(helper.make_node("MatMul", [sure, net.weight(5, 6)], ["z"]))
    inputs = {"x": [1, 3, "height", "width"], "least": [1]}
    outputs = {"y": ["found", 5], "boxes": ["found", 4], "z": ["sure", 6]}
    of_inputs, of_outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in infos.items()] for infos in (inputs, outputs)
    )
    graph = helper.make_graph(net.nodes, "detector", of_inputs, of_outputs, net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def unrolled(width: int = 16) -> onnx.ModelProto:
    """A loop of `steps` [] rounds, which may be none, over `x` [width]. What it collects [steps, width] is multiplied: `y`."""
    net = Staged(np.random.default_rng(8))
    nodes = [
        helper.make_node("Identity", ["go"], ["goes"]),
        helper.make_node("Mul", ["v", "part"], ["w"]),
        helper.make_node("Identity", ["v"], ["row"]),
    ]
    ends = {
        "of": [("round", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [width])],
        "to": [("goes", TensorProto.BOOL, []), ("w", TensorProto.FLOAT, [width]), ("row", TensorProto.FLOAT, [width])],
    }
    of, to = ([helper.make_tensor_value_info(*info) for info in ends[k]] for k in ("of", "to"))
    body = helper.make_graph(nodes, "body", of, to, [numpy_helper.from_array(np.array(0.9, np.float32), "part")])
    net.nodes.append(helper.make_node("Loop", ["steps", "", "x"], ["last", "rows"], body=body))
    net.nodes.append(helper.make_node("Gemm", ["rows", net.weight(width, 5), net.weight(5)], ["y"]))
    inputs = [helper.make_tensor_value_info("steps", TensorProto.INT64, []), helper.make_tensor_value_info("x", TensorProto.FLOAT, [width])]
    graph = helper.make_graph(net.nodes, "unrolled", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
