"""Outputs that no node computes and no kernel copies: constants and inputs that are strings, sequences, numbers of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kernel_graphs import run_model
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from aspen_mp.planner import api

N = helper.make_node
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
K = helper.make_tensor_value_info("k", TensorProto.STRING, [2])
WORDS = np.array(["a", "ü"], object)
HELD = numpy_helper.from_array(WORDS, "k")
FEEDS: dict[str, Any] = {"x": np.array([-1, 2], np.float32)}
RELU = [N("Relu", ["x"], ["y"])]
RESULT = np.array([0, 2], np.float32)


def run(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Sequence[TensorProto] = (),
    **feeds: Any,
) -> list[Any]:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return run_model(api.load(model), {**(FEEDS if X in inputs else {}), **feeds})


def test_initializers() -> None:
    y, k = run(RELU, [X], [Y, K], [HELD])
    assert y.tolist() == RESULT.tolist()
    assert k.tolist() == WORDS.tolist()


def test_nothing_else() -> None:
    assert run([], [], [K], [HELD])[0].tolist() == WORDS.tolist()


def test_beside_what_depends_on_data() -> None:
    places = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    y, k = run([N("NonZero", ["x"], ["y"])], [X], [places, K], [HELD])
    assert y.tolist() == [[0, 1]]
    assert k.tolist() == WORDS.tolist()


@pytest.mark.parametrize("given", [False, True])
def test_defaults_that_may_be_given(given: bool) -> None:
    other = np.array(["p", "q"], object)
    y, k = run(RELU, [X, K], [Y, K], [HELD], **({"k": other} if given else {}))
    assert y.tolist() == RESULT.tolist()
    assert k.tolist() == (other if given else WORDS).tolist()


def test_inputs() -> None:
    copy = helper.make_tensor_value_info("c", TensorProto.STRING, [2])
    k, c, y = run([*RELU, N("Identity", ["k"], ["c"])], [X, K], [K, copy, Y], k=WORDS)
    assert k.tolist() == c.tolist() == WORDS.tolist()
    assert y.tolist() == RESULT.tolist()


def test_sequences() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    s, y = run(RELU, [X, sequence], [sequence, Y], s=[np.ones(3, np.float32)])
    assert [x.tolist() for x in s] == [[1, 1, 1]]
    assert y.tolist() == RESULT.tolist()


def test_numbers_of_few_bits() -> None:
    few = helper.make_tensor_value_info("f", TensorProto.INT4, [3])
    y, f = run(RELU, [X], [Y, few], [helper.make_tensor("f", TensorProto.INT4, [3], [1, -2, 7])])
    assert f.astype(int).tolist() == [1, -2, 7]
    assert y.tolist() == RESULT.tolist()


def test_many() -> None:
    """More than a tile has operands."""
    names = [f"c{k}" for k in range(70)]
    nodes = [N("Constant", [], [name], value_string=name) for name in names]
    outputs = [helper.make_tensor_value_info(name, TensorProto.STRING, []) for name in names]
    y, *words = run([*RELU, *nodes], [X], [Y, *outputs])
    assert [str(word) for word in words] == names
    assert y.tolist() == RESULT.tolist()
