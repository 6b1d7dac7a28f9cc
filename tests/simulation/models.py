"""Small models that simulated users run, and what they answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from tests.simulation.small_models import model_bytes, small_integers, value_info

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


def _sum() -> Known:
    data = model_bytes(
        [helper.make_node("Add", ["x", "y"], ["z"])],
        [value_info("x", [4, 4]), value_info("y", [4, 4])],
        [value_info("z", [4, 4])],
        name="sum",
    )
    return Known(
        "sum",
        data,
        (0,),
        lambda seed, n: {"x": small_integers(seed, 4, 4), "y": small_integers(seed + 1, 4, 4)},
        lambda f: {"z": f["x"] + f["y"]},
    )


def _chain() -> Known:
    weights = [small_integers(k, 16, 16) for k in range(3)]
    nodes, at = [], "x"
    for k in range(3):
        nodes.append(helper.make_node("MatMul", [at, f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"r{k}"]))
        at = f"r{k}"
    data = model_bytes(
        nodes, [value_info("x", ["n", 16])], [value_info("r2", ["n", 16])], {f"w{k}": w for k, w in enumerate(weights)}, name="chain"
    )

    def answer(feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        value = feeds["x"]
        for weight in weights:
            value = np.maximum(value @ weight, 0)
        return {"r2": value}

    return Known("chain", data, (1, 3, 8, 20, 64), lambda seed, n: {"x": small_integers(seed, n, 16)}, answer)


def _places() -> Known:
    """Where its input is not zero: how long the result is depends on values, and Python computes it."""
    data = model_bytes(
        [helper.make_node("NonZero", ["x"], ["p"]), helper.make_node("Add", ["p", "one"], ["q"])],
        [value_info("x", ["n"])],
        [value_info("q", [1, "m"], TensorProto.INT64)],
        {"one": np.array([1], np.int64)},
        name="places",
    )
    return Known(
        "places",
        data,
        (2, 5, 9),
        lambda seed, n: {"x": small_integers(seed, n)},
        lambda f: {"q": np.array([np.nonzero(f["x"])[0] + 1], np.int64)},
    )


def _branches() -> Known:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["left"]),
        helper.make_node("MatMul", ["x", "b"], ["right"]),
        helper.make_node("Mul", ["left", "right"], ["both"]),
        helper.make_node("ReduceSum", ["both", "axis"], ["s"], keepdims=0),
    ]
    a, b = small_integers(5, 12, 40), small_integers(6, 12, 40)
    data = model_bytes(
        nodes, [value_info("x", [24, 12])], [value_info("s", [24])], {"a": a, "b": b, "axis": np.array([1], np.int64)}, name="branches"
    )

    def answer(feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        return {"s": ((feeds["x"] @ a) * (feeds["x"] @ b)).sum(axis=1)}

    return Known("branches", data, (0,), lambda seed, n: {"x": small_integers(seed, 24, 12)}, answer)


def _pool() -> Known:
    """The largest numbers of squares, half of whose padding lies before the picture: each size needs a plan of its own."""
    side = 4
    data = model_bytes(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[side, side], strides=[side, side], auto_pad="SAME_UPPER")],
        [value_info("x", [1, 2, "h", "w"])],
        [value_info("y", [1, 2, "p", "q"])],
        name="pool",
    )

    def answer(feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        missing = [-extent % side for extent in feeds["x"].shape[2:]]
        around = [(0, 0), (0, 0), *((each // 2, each - each // 2) for each in missing)]
        padded = np.pad(feeds["x"], around, constant_values=-np.inf)
        height, width = (extent // side for extent in padded.shape[2:])
        return {"y": padded.reshape(1, 2, height, side, width, side).max(axis=(3, 5))}

    return Known("pool", data, (5, 9, 14, 18), lambda seed, n: {"x": small_integers(seed, 1, 2, n, 3 + n % 7)}, answer)


@functools.cache
def known() -> tuple[Known, ...]:
    return (_sum(), _chain(), _places(), _branches(), _pool())


BROKEN: Final = b"no model"
"""Bytes that no frontend accepts."""
