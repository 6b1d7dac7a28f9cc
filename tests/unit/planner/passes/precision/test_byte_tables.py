"""Functions of quantised values are tables, and moves of them move bytes: drawn chains as quantisation tools write them, against the
reference, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from net_tools import Net, check, ops
from onnx import helper

U8, I8 = np.uint8, np.int8
FUNCTIONS = ["Sigmoid", "Tanh", "Erf", "HardSwish", "Softplus", "Exp", "Elu", "Abs"]
SHAPE = (2, 3, 4, 5)


class Chain:
    """A drawn network over one quantised input: functions, scalars and moves, with levels in between."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.net = Net(opset=21, x=SHAPE)
        self.shape = list(SHAPE)

    def parameters(self) -> tuple[str, str]:
        kind = [U8, I8][self.rng.integers(2)]
        info = np.iinfo(kind)
        scale = np.float32(self.rng.choice([0.01, 0.037, 0.5, 1.0]))
        return self.net.constant(scale), self.net.constant(kind(self.rng.integers(info.min, info.max + 1)))

    def levels(self, x: str) -> tuple[str, tuple[str, str]]:
        beside = self.parameters()
        return self.net("DequantizeLinear", self.net("QuantizeLinear", x, *beside), *beside), beside

    def again(self, x: str, beside: tuple[str, str]) -> str:
        return self.net("DequantizeLinear", self.net("QuantizeLinear", x, *beside), *beside)

    def moved(self, x: str) -> str:
        if self.rng.random() < 0.5:
            order = self.rng.permutation(len(self.shape)).tolist()
            self.shape = [self.shape[k] for k in order]
            return self.net("Transpose", x, perm=order)
        self.shape = [self.shape[0] * self.shape[1], *self.shape[2:]] if len(self.shape) > 2 else [*self.shape, 1]
        return self.net("Reshape", x, self.net.constant(np.array(self.shape, np.int64)))

    def function(self, x: str) -> str:
        """A function of one argument, or of it and its own result, with levels in between or without."""
        y = self.net(str(self.rng.choice(FUNCTIONS)), x)
        if self.rng.random() < 0.6:
            y, _ = self.levels(y)
        if self.rng.random() < 0.6:
            y = self.net(str(self.rng.choice(["Mul", "Add", "Sub"])), x, y)
        if self.rng.random() < 0.4:
            y = self.net(str(self.rng.choice(["Mul", "Add", "Div"])), y, self.net.constant(np.float32(self.rng.choice([0.5, 1.7, 3.0]))))
        return y


@pytest.mark.parametrize("seed", range(60))
def test_drawn_chains(seed: int) -> None:
    chain = Chain(seed)
    y, beside = chain.levels("x")
    for _ in range(int(chain.rng.integers(1, 5))):
        if chain.rng.random() < 0.5:
            y = chain.again(chain.moved(y), beside)
        y, beside = chain.levels(chain.function(y))
    nodes = check(chain.net, y, scale=3.0, tolerance=0, reference=True)
    assert set(ops(nodes)) <= {"QUANTIZE", "LOOKUP", "DEQUANTIZE", "COPY", "view.reshape", "view.transpose"}
    assert ops(nodes).count("QUANTIZE") == 1


def test_a_function_that_nobody_quantises_gives_floats() -> None:
    chain = Chain(3)
    y, _ = chain.levels("x")
    nodes = check(chain.net, chain.net("Tanh", y), scale=3.0, tolerance=0, reference=True)
    assert ops(nodes) == ["QUANTIZE", "LOOKUP"]
    assert nodes[-1].output.dtype == np.float32


def test_cheap_functions_stay_beside_their_neighbours() -> None:
    chain = Chain(4)
    y, beside = chain.levels("x")
    nodes = check(chain.net, chain.again(chain.net("Relu", y), beside), scale=3.0, tolerance=0, reference=True)
    assert "LOOKUP" not in ops(nodes)


@pytest.mark.parametrize("other", ["channels", "tensor"])
def test_functions_of_more_than_one_tensor_are_not_tables(other: str) -> None:
    """A scale for each channel, or another tensor beside."""
    chain = Chain(5)
    y, _ = chain.levels("x")
    if other == "channels":
        y = chain.net("Mul", chain.net("Sigmoid", y), chain.net.constant(np.float32([[[1.0]], [[2.0]], [[3.0]]])))
    else:
        y = chain.net("Mul", chain.net("Sigmoid", y), "x")
    nodes = check(chain.net, y, scale=3.0, tolerance=1e-6, reference=True)
    (table,) = [node for node in nodes if node.op == "LOOKUP"]
    assert table.output.dtype == np.float32, "the sigmoid alone"


def test_bytes_behind_other_parameters_are_made_anew() -> None:
    chain = Chain(6)
    y, _ = chain.levels("x")
    y, _ = chain.levels(chain.moved(y))
    nodes = check(chain.net, y, scale=3.0, tolerance=0, reference=True)
    assert "LOOKUP" not in ops(nodes)


def test_values_that_others_read_stay() -> None:
    """Who reads a function of bytes reads a table. Who reads the bytes themselves goes on doing so."""
    chain = Chain(7)
    y, _ = chain.levels("x")
    gelu, _ = chain.levels(chain.net("Sigmoid", y))
    nodes = check(chain.net, gelu, chain.net("Add", y, "x"), scale=3.0, tolerance=0, reference=True)
    assert sorted(ops(nodes)) == ["BINARY", "DEQUANTIZE", "LOOKUP", "QUANTIZE"]


def test_maxima_of_bytes_are_taken_of_bytes() -> None:
    chain = Chain(8)
    y, beside = chain.levels("x")
    y = chain.again(chain.net("MaxPool", y, kernel_shape=[2, 3], strides=[1, 2], pads=[1, 0, 0, 1]), beside)
    nodes = check(chain.net, y, scale=3.0, tolerance=0, reference=True)
    assert ops(nodes) == ["QUANTIZE", "POOL", "DEQUANTIZE"]


@pytest.mark.parametrize("alone", [True, False])
def test_parts_of_a_concat_are_quantised_before_it(alone: bool) -> None:
    """Where nobody else reads it. Parts with levels of their own are rounded to these first."""
    chain = Chain(9)
    left, _ = chain.levels("x")
    right, _ = chain.levels(chain.net("Mul", "x", chain.net.constant(np.float32(0.3))))
    joined = chain.net("Concat", left, "x", right, axis=1)
    quantised, _ = chain.levels(joined)
    outputs = [quantised] if alone else [quantised, chain.net("Neg", joined)]
    nodes = check(chain.net, *outputs, scale=3.0, tolerance=0, reference=True)
    assert ops(nodes).count("QUANTIZE") == (3 if alone else 0)


def test_wider_levels_are_left_as_they_are() -> None:
    """No kernel takes maxima of 16 bits."""
    chain = Chain(10)
    beside = chain.net.constant(np.float32(0.01)), chain.net.constant(np.int16(5))
    y = chain.net("MaxPool", chain.again("x", beside), kernel_shape=[2, 2])
    nodes = check(chain.net, chain.again(y, beside), scale=3.0, tolerance=0, reference=True)
    assert ops(nodes) == ["QUANTIZE", "DEQUANTIZE", "POOL", "QUANTIZE", "DEQUANTIZE"]


MOVES: dict[str, Any] = {
    "Gather": lambda net, x: net("Gather", x, net.constant(np.array([2, 0, 1, 1])), axis=1),
    "Expand": lambda net, x: net("Expand", x, net.constant(np.array([2, 2, 3, 4, 5]))),
    "Tile": lambda net, x: net("Tile", x, net.constant(np.array([1, 2, 1, 1]))),
    "Pad": lambda net, x: net("Pad", x, net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 0]))),
    "Pad of a value": lambda net, x: net("Pad", x, net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 0])), net.constant(np.float32(0.731))),
    "Pad of a large value": lambda net, x: net("Pad", x, net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 0])), net.constant(np.float32(-1e6))),
    "Pad by reflection": lambda net, x: net("Pad", x, net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 0])), mode="reflect"),
    "Resize": lambda net, x: net(
        "Resize", x, "", net.constant(np.float32([1, 1, 2, 2])), coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    ),
    "Slice": lambda net, x: net("Slice", x, net.constant(np.array([1])), net.constant(np.array([3])), net.constant(np.array([2]))),
    "two moves": lambda net, x: net("Flatten", net("Gather", x, net.constant(np.array([1, 1])), axis=0)),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("move", MOVES)
def test_moves_of_bytes(move: str, seed: int) -> None:
    chain = Chain(seed)
    y, beside = chain.levels("x")
    nodes = check(chain.net, chain.again(MOVES[move](chain.net, y), beside), scale=3.0, tolerance=0, reference=True)
    assert sorted(op for op in ops(nodes) if "QUANTIZE" in op) == ["DEQUANTIZE", "QUANTIZE"]
    assert {node.output.dtype.name for node in nodes[1:-1]} <= {"uint8", "int8"}


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_bytes(seed: int) -> None:
    """All parts of a Split, each with a QuantizeLinear of its own, and one part that is read as it is."""
    chain = Chain(seed)
    y, beside = chain.levels("x")
    net, parts = chain.net, [f"part{k}" for k in range(3)]
    net.nodes.append(helper.make_node("Split", [y], parts, name="split", axis=1, num_outputs=3))
    outputs = [chain.again(part, beside) for part in parts[:2]]
    nodes = check(net, *outputs, net("Neg", parts[2]), scale=3.0, tolerance=0, reference=True)
    assert sum(op == "QUANTIZE" for op in ops(nodes)) == 1


@pytest.mark.parametrize("other", ["levels", "number", "floats"])
@pytest.mark.parametrize("seed", range(3))
def test_choices_of_bytes(other: str, seed: int) -> None:
    chain = Chain(seed)
    net = chain.net
    y, beside = chain.levels("x")
    z = {"levels": lambda: chain.again(net("Neg", "x"), beside), "number": lambda: net.constant(np.float32(0.4)), "floats": lambda: "x"}[
        other
    ]()
    condition = net.constant(np.arange(120).reshape(SHAPE) % 3 == 0)
    nodes = check(net, chain.again(net("Where", condition, y, z), beside), scale=3.0, tolerance=0, reference=True)
    (choice,) = [node for node in nodes if node.op == "TERNARY"]
    assert choice.output.dtype.name in {"uint8", "int8"}


@pytest.mark.parametrize("same", [True, False])
def test_rows_of_a_table_of_bytes(same: bool) -> None:
    """Embeddings: the table stays bytes where its rows are quantised with its own scale and zero point."""
    net = Net(opset=21, x=(3, 4))
    scale, zero = net.constant(np.float32(0.03)), net.constant(U8(120))
    table = net("DequantizeLinear", net.constant(net.rng.integers(0, 256, (50, 8)).astype(U8)), scale, zero)
    rows = net("Gather", table, net("Cast", net("Abs", "x"), to=7))
    other = scale if same else net.constant(np.float32(0.04))
    nodes = check(
        net, net("DequantizeLinear", net("QuantizeLinear", rows, other, zero), other, zero), scale=9.0, tolerance=0, reference=True
    )
    (gather,) = [node for node in nodes if node.op == "GATHER"]
    assert gather.output.dtype == (U8 if same else np.float32)
