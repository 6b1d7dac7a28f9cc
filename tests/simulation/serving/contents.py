"""Small models that simulated servers serve. Each file adds a number of its own to its results: an answer tells which file made it."""

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
DATATYPES: Final = {"float32": "FP32", "int64": "INT64"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model.

    Attributes:
        file: The bytes of a model that adds a number.
        feeds: Inputs, by a seed and a number of rows.
        answer: The results, by the inputs and the number that is added.
        rows: Numbers of rows that visitors ask for; 0 alone where it has no free dimension.
        joins: Whether its requests can be joined with others.
    """

    name: str
    file: Callable[[int], bytes]
    feeds: Callable[[int, int], Arrays]
    answer: Callable[[Mapping[str, npt.NDArray[Any]], int], Arrays]
    rows: tuple[int, ...]
    joins: bool


def _twice(name: str, columns: int, rows: tuple[int, ...]) -> Kind:
    """y = 2 x + c, row by row."""

    def file(c: int) -> bytes:
        nodes = [helper.make_node("Mul", ["x", "two"], ["t"]), helper.make_node("Add", ["t", "c"], ["y"])]
        constants = {"two": np.array(2, np.float32), "c": np.array(c, np.float32)}
        return model_bytes(nodes, [value_info("x", ["n", columns])], [value_info("y", ["n", columns])], constants, name)

    return Kind(
        name, file, lambda seed, n: {"x": small_integers(seed, n, columns)}, lambda f, c: {"y": f["x"] * 2 + np.float32(c)}, rows, True
    )


def _pair() -> Kind:
    """Two inputs and two outputs of fixed shapes."""

    def file(c: int) -> bytes:
        nodes = [
            helper.make_node("Add", ["a", "b"], ["ab"]),
            helper.make_node("Add", ["ab", "c"], ["sum"]),
            helper.make_node("Sub", ["a", "b"], ["d"]),
            helper.make_node("Add", ["d", "c"], ["difference"]),
        ]
        shapes = [value_info(each, [2, 3]) for each in ("a", "b", "sum", "difference")]
        return model_bytes(nodes, shapes[:2], shapes[2:], {"c": np.array(c, np.float32)}, "pair")

    def answer(f: Mapping[str, npt.NDArray[Any]], c: int) -> Arrays:
        return {"sum": f["a"] + f["b"] + np.float32(c), "difference": f["a"] - f["b"] + np.float32(c)}

    return Kind("pair", file, lambda seed, n: {"a": small_integers(seed, 2, 3), "b": small_integers(seed + 1, 2, 3)}, answer, (0,), False)


TABLE: Final = 20


def _pick() -> Kind:
    """Elements of a table by their places: one that is not there is an error of this request alone."""

    def file(c: int) -> bytes:
        nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
        table = (np.arange(TABLE) * 3 + c).astype(np.float32)
        return model_bytes(nodes, [value_info("x", ["n"], TensorProto.INT64)], [value_info("y", ["n"])], {"table": table}, "pick")

    def feeds(seed: int, n: int) -> Arrays:
        return {"x": ((np.arange(n, dtype=np.int64) * 7 + seed) % TABLE).astype(np.int64)}

    return Kind("pick", file, feeds, lambda f, c: {"y": (f["x"] * 3 + c).astype(np.float32)}, (1, 2, 5), True)


@functools.cache
def kinds() -> dict[str, Kind]:
    found = (_twice("twice", 4, (1, 2, 3, 5)), _twice("wide", 4096, (1, 4, 12)), _pair(), _pick())
    return {kind.name: kind for kind in found}
