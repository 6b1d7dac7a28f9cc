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


def _around(x: npt.NDArray[Any], weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A convolution of 3 x 3 with a line of zeros around the picture."""
    height, width = x.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    views = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.einsum("knchw,kmc->nmhw", np.stack(views), weights.reshape(*weights.shape[:2], 9).transpose(2, 0, 1)).astype(np.float32)


def _picture() -> Known:
    """Convolutions, which widen changes, and a sum with what was before them."""
    first, second = small_integers(11, 4, 2, 3, 3), small_integers(12, 4, 4, 3, 3)
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    data = model_bytes(
        [
            helper.make_node("Conv", ["x", "v"], ["a"], **pads),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "w"], ["c"], **pads),
            helper.make_node("Add", ["b", "c"], ["d"]),
            helper.make_node("MaxPool", ["d"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
        ],
        [value_info("x", [1, 2, "h", "w"])],
        [value_info("y", [1, 4, "p", "q"])],
        {"v": first, "w": second},
        name="picture",
    )

    def answer(feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        before = np.maximum(_around(feeds["x"], first), 0)
        whole = before + _around(before, second)
        height, width = whole.shape[2] // 2, whole.shape[3] // 2
        return {"y": whole[:, :, : 2 * height, : 2 * width].reshape(1, 4, height, 2, width, 2).max(axis=(3, 5))}

    return Known("picture", data, (8, 12, 20, 33), lambda seed, n: {"x": small_integers(seed, 1, 2, n, 4 + n % 9)}, answer)


def _views() -> Known:
    """Two pictures of the same place, of which one may change alone."""
    weights = small_integers(13, 3, 2, 3, 3)
    data = model_bytes(
        [
            helper.make_node("Conv", ["left", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Conv", ["right", "w"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Sub", ["a", "b"], ["c"]),
            helper.make_node("Abs", ["c"], ["y"]),
        ],
        [value_info("left", [1, 2, 24, 10]), value_info("right", [1, 2, 24, 10])],
        [value_info("y", [1, 3, 24, 10])],
        {"w": weights},
        name="views",
    )
    return Known(
        "views",
        data,
        (0,),
        lambda seed, n: {"left": small_integers(seed, 1, 2, 24, 10), "right": small_integers(seed + 1, 1, 2, 24, 10)},
        lambda f: {"y": np.abs(_around(f["left"], weights) - _around(f["right"], weights))},
    )


def _lookup() -> Known:
    """Rows of a table by their numbers. Numbers may be wrong."""
    table, weights = small_integers(14, ROWS_OF_TABLE, 8), small_integers(15, 8, 12)
    data = model_bytes(
        [helper.make_node("Gather", ["table", "i"], ["rows"]), helper.make_node("MatMul", ["rows", "w"], ["y"])],
        [value_info("i", [24], TensorProto.INT64)],
        [value_info("y", [24, 12])],
        {"table": table, "w": weights},
        name="lookup",
    )
    return Known(
        "lookup",
        data,
        (0,),
        lambda seed, n: {"i": (small_integers(seed, 24) + 2).astype(np.int64)},
        lambda f: {"y": table[f["i"]] @ weights},
    )


@functools.cache
def streamed() -> tuple[Known, ...]:
    """Models of streams: most keep activations in one stage, one has values that are not tensors of a known shape."""
    picture = _picture()
    return (picture, _views(), _lookup(), picture, _chain(), _pool(), _places())


ROWS_OF_TABLE: Final = 6
"""Rows of the table of `lookup`: a larger number is an error."""
BROKEN: Final = b"no model"
"""Bytes that no frontend accepts."""
