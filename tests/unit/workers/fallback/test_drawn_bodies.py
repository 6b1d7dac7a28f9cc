"""Bodies of Loop and Scan, drawn at random, beside onnxruntime: captured values, carries whose shapes change, results of every round,
ends by condition, branches and nodes that numpy alone does not compute."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from aspen_mp.workers.fallback import interrupt, loops, rounds
from aspen_mp.workers.fallback.bound import bound
from aspen_mp.workers.fallback.opaque_tile import Opaque

N, V = helper.make_node, helper.make_tensor_value_info
F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ROWS, WIDTH = 2, 4
UNARY = ("Tanh", "Sigmoid", "Relu", "Neg", "Abs", "Sin", "Softmax", "Softplus", "Erf", "Identity")  # numpy computes all but two
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
BEHIND = 12  # nodes


class Drawn:
    """Nodes over matrices of [ROWS, WIDTH], values of [WIDTH] and [] among what they read, with `given` to begin with."""

    def __init__(self, rng: np.random.Generator, given: list[str], outer: list[str]) -> None:
        self.rng, self.nodes, self.names, self.outer = rng, [], list(given), outer
        for _ in range(BEHIND):
            self.names.append(self.node())

    def new(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(N(op, inputs, [name], **attributes))
        return name

    def pick(self, *more: str) -> str:
        return str(self.rng.choice([*self.names[-5:], *more]))

    def node(self) -> str:
        kind = self.rng.integers(8)
        if kind < 3:
            return self.new(str(self.rng.choice(UNARY)), [self.pick()])
        if kind < 5:
            return self.new(str(self.rng.choice(BINARY)), [self.pick(), self.pick(*self.outer)])
        if kind == 5:
            return self.new("MatMul", [self.pick(), "W"])
        if kind == 6:
            halves = [f"{self.new('Identity', [self.pick()])}.{k}" for k in "ab"]
            self.nodes.append(N("Split", [self.nodes[-1].output[0], "halves"], halves, axis=1))
            return self.new("Concat", halves[::-1], axis=1)
        branches = [
            helper.make_graph([N(op, [self.pick(), self.pick(*self.outer)], [f"b{op}"])], op, [], [V(f"b{op}", F, None)])
            for op in ("Add", "Sub")
        ]
        return self.new("If", ["odd"], then_branch=branches[0], else_branch=branches[1])


def outer_values(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "W": rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 2,
        "row": rng.standard_normal(WIDTH, dtype=np.float32),
        "one": rng.standard_normal((), dtype=np.float32),
        "halves": np.array([WIDTH // 2] * 2),
    }


def loop_of(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Any]]:
    feeds = {
        **outer_values(rng),
        "n": np.array(rng.integers(1, 7)),
        "c": np.array(True),
        "s": rng.standard_normal((ROWS, WIDTH), dtype=np.float32),
        "g": rng.standard_normal((1, WIDTH), dtype=np.float32),
        "limit": np.array(rng.uniform(-1, 12), np.float32),
        "two": np.array(2),
        "axis": np.array([0]),
    }
    first = [
        N("Mod", ["i", "two"], ["rest"]),
        N("Cast", ["rest"], ["odd"], to=B),
        N("Cast", ["i"], ["f"], to=F),
        N("Mul", ["f", "row"], ["scaled"]),
    ]
    drawn = Drawn(rng, ["s"], ["row", "one", "scaled", "f"])
    last = drawn.names[-1]
    rows = [
        N("ReduceMax", ["g"], ["top"], axes=[0], keepdims=1),
        N("Add", ["top", "scaled"], ["more"]),
        N("Concat", ["g", "more"], ["g2"], axis=0),
    ]
    end = [
        N("ReduceSum", [last], ["sum"], keepdims=0),
        N("Less", ["sum", "limit"], ["c2"]),
        N("Identity", [last], ["s2"]),
        N("Gather", [last, "rest"], ["y"], axis=0),
        N("Identity", ["sum"], ["z"]),
    ]
    body = helper.make_graph(
        [*first, *drawn.nodes, *rows, *end],
        "body",
        [V("i", INT, []), V("d", B, []), V("s", F, [ROWS, WIDTH]), V("g", F, [None, WIDTH])],
        [V("c2", B, []), V("s2", F, [ROWS, WIDTH]), V("g2", F, [None, WIDTH]), V("y", F, [WIDTH]), V("z", F, [])],
    )
    return whole(N("Loop", ["n", "c", "s", "g"], ["S", "G", "Y", "Z"], body=body), feeds)


def scan_of(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Any]]:
    steps = int(rng.integers(1, 7))
    feeds = {
        **outer_values(rng),
        "s": rng.standard_normal((ROWS, WIDTH), dtype=np.float32),
        "x": rng.standard_normal((steps, ROWS, WIDTH), dtype=np.float32),
        "k": rng.integers(0, 2, steps).astype(bool),
    }
    drawn = Drawn(rng, ["s", "e"], ["row", "one", "e"])
    last = drawn.names[-1]
    body = helper.make_graph(
        [N("Identity", ["o"], ["odd"]), *drawn.nodes, N("Identity", [last], ["s2"]), N("Sub", [last, "e"], ["y"])],
        "body",
        [V("s", F, [ROWS, WIDTH]), V("e", F, [ROWS, WIDTH]), V("o", B, [])],
        [V("s2", F, [ROWS, WIDTH]), V("y", F, [ROWS, WIDTH])],
    )
    return whole(N("Scan", ["s", "x", "k"], ["S", "Y"], body=body, num_scan_inputs=2), feeds)


def whole(node: onnx.NodeProto, feeds: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    infos = [V(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in feeds.items()]
    graph = helper.make_graph([node], "outer", infos, [V(name, F, None) for name in node.output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), feeds


@pytest.mark.parametrize("make", [loop_of, scan_of])
@pytest.mark.parametrize("seed", range(20))
def test_drawn_bodies(make: Any, seed: int) -> None:
    proto, feeds = make(np.random.default_rng(seed))
    opaque = Opaque(proto)
    want = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    for _ in range(2):
        got = opaque.run([feeds[name] for name in opaque.inputs])
        for g, w in zip(got, want, strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [loop_of, scan_of])
def test_rounds_ask_whether_they_are_wanted(make: Any) -> None:
    proto, feeds = make(np.random.default_rng(0))
    asked = []

    def unwanted() -> bool:
        asked.append(1)
        return len(asked) > 3

    opaque = Opaque(proto)
    with interrupt.asking(unwanted), pytest.raises(interrupt.Unwanted):
        opaque.run([feeds[name] for name in opaque.inputs])


def test_what_does_not_change_is_computed_once() -> None:
    calls = []

    def counted(x: Any) -> Any:
        calls.append(1)
        return np.negative(x)

    class Node:
        onnx_node = N("Neg", ["x"], ["y"])

    nodes = [
        rounds.Known(Node(), counted, ("e",), ("t",)),
        rounds.Known(Node(), np.add, ("t", "s"), ("u",)),
        rounds.Known(Node(), counted, ("u",), ("v",)),
    ]
    body = rounds.Rounds(nodes, ["s"], ["v", "t"], {"e": np.ones(2)})
    for k in range(3):
        v, t = body([np.full(2, float(k))])
        np.testing.assert_array_equal(v, 1.0 - np.full(2, float(k)))
        np.testing.assert_array_equal(t, -np.ones(2))
    assert len(calls) == 1 + 3
    v, _ = body([np.full((), 4.0, np.float32)])  # another type: settled anew
    assert v.dtype == np.float64
    assert len(calls) == 1 + 3 + 2


OPERATORS: dict[str, Any] = {"Add": np.add, "Div": np.divide, "Max": np.maximum, "Less": np.less, "Equal": np.equal, "MatMul": np.matmul}
OPERATORS |= {"Tanh": np.tanh, "Exp": np.exp, "Relu": lambda x: np.maximum(x, np.float32(0)), "Abs": np.abs}


@np.errstate(all="ignore")
@pytest.mark.parametrize("op", OPERATORS)
def test_kernels_of_bodies_are_what_numpy_is(op: str) -> None:
    """Bound to some operands, called with them and with others: of other shapes, strides and types."""
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(), (4,), (3, 4), (1, 4), (3, 1), (2, 3, 4), (0, 4), (4, 4), (4, 3)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays += [
        arrays[2].T,
        arrays[5][::-1, :, ::2],
        arrays[2].astype(np.float64),
        np.arange(4),
        np.zeros(17, np.uint8)[1:].view(np.float32),
    ]
    want, n = OPERATORS[op], 1 if op in {"Tanh", "Exp", "Relu", "Abs"} else 2
    pairs = [xs for xs in itertools.product(arrays, repeat=n) if fits(want, xs)]
    refused = 0

    def rest(*xs: Any) -> Any:
        nonlocal refused
        refused += 1
        return np.asarray(want(*xs))

    for xs in pairs:
        call = bound(op, xs, rest)
        for ys in (xs, pairs[int(rng.integers(len(pairs)))], xs):
            got, expected = call(*ys), np.asarray(want(*ys))
            assert (got.shape, got.dtype, type(got)) == (expected.shape, expected.dtype, np.ndarray)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert 0 < refused < 3 * len(pairs)


def fits(function: Any, xs: tuple[Any, ...]) -> bool:
    try:
        function(*xs)
    except ValueError:
        return False
    return True


def test_parts_are_stacked_as_numpy_does() -> None:
    rng = np.random.default_rng(0)
    for shape in ((), (3,), (0, 2), (2, 3)):
        parts = [np.asarray(rng.standard_normal(shape)) for _ in range(4)]
        for axis in range(-len(shape) - 1, len(shape) + 1):
            np.testing.assert_array_equal(loops.stacked(parts, axis), np.stack(parts, axis))
    with pytest.raises(ValueError, match="same shape"):
        loops.stacked([np.zeros((2, 3)), np.zeros((1, 3))])
