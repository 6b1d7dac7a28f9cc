"""Small models that simulated users run, and what they answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Known:
    """A model as bytes, how to draw its inputs, and a function that answers.

    Attributes:
        lengths: Lengths of its free dimension that users ask for; one alone where it has none.
    """

    name: str
    data: bytes
    lengths: tuple[int, ...]
    feeds: Callable[[int, int], Arrays]
    answer: Callable[[Mapping[str, npt.NDArray[Any]]], Arrays]


def _bytes(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Mapping[str, npt.NDArray[Any]] | None = None, name: str = "g"
) -> bytes:
    graph = helper.make_graph(nodes, name, inputs, outputs, [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model.SerializeToString()


def _value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _small(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Whole numbers, so that all orders of sums give the same bits."""
    state = np.arange(1, int(np.prod(shape)) + 1, dtype=np.int64) * 7919 + seed * 104729
    return ((state >> 3) % 5 - 2).astype(np.float32).reshape(shape)


def _sum() -> Known:
    data = _bytes(
        [helper.make_node("Add", ["x", "y"], ["z"])], [_value("x", [4, 4]), _value("y", [4, 4])], [_value("z", [4, 4])], name="sum"
    )
    return Known(
        "sum", data, (0,), lambda seed, n: {"x": _small(seed, 4, 4), "y": _small(seed + 1, 4, 4)}, lambda f: {"z": f["x"] + f["y"]}
    )


def _chain() -> Known:
    weights = [_small(k, 16, 16) for k in range(3)]
    nodes, at = [], "x"
    for k in range(3):
        nodes.append(helper.make_node("MatMul", [at, f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"r{k}"]))
        at = f"r{k}"
    data = _bytes(nodes, [_value("x", ["n", 16])], [_value("r2", ["n", 16])], {f"w{k}": w for k, w in enumerate(weights)}, name="chain")

    def answer(feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        value = feeds["x"]
        for weight in weights:
            value = np.maximum(value @ weight, 0)
        return {"r2": value}

    return Known("chain", data, (1, 3, 8, 20, 64), lambda seed, n: {"x": _small(seed, n, 16)}, answer)


def _places() -> Known:
    """Where its input is not zero: how long the result is depends on values, and Python computes it."""
    data = _bytes(
        [helper.make_node("NonZero", ["x"], ["p"]), helper.make_node("Add", ["p", "one"], ["q"])],
        [_value("x", ["n"])],
        [_value("q", [1, "m"], TensorProto.INT64)],
        {"one": np.array([1], np.int64)},
        name="places",
    )
    return Known(
        "places", data, (2, 5, 9), lambda seed, n: {"x": _small(seed, n)}, lambda f: {"q": np.array([np.nonzero(f["x"])[0] + 1], np.int64)}
    )


def _branches() -> Known:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["left"]),
        helper.make_node("MatMul", ["x", "b"], ["right"]),
        helper.make_node("Mul", ["left", "right"], ["both"]),
        helper.make_node("ReduceSum", ["both", "axis"], ["s"], keepdims=0),
    ]
    a, b = _small(5, 12, 40), _small(6, 12, 40)
    data = _bytes(nodes, [_value("x", [24, 12])], [_value("s", [24])], {"a": a, "b": b, "axis": np.array([1], np.int64)}, name="branches")

    def answer(feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        return {"s": ((feeds["x"] @ a) * (feeds["x"] @ b)).sum(axis=1)}

    return Known("branches", data, (0,), lambda seed, n: {"x": _small(seed, 24, 12)}, answer)


@functools.cache
def known() -> tuple[Known, ...]:
    return (_sum(), _chain(), _places(), _branches())


BROKEN: Final = b"no model"
"""Bytes that no frontend accepts."""
