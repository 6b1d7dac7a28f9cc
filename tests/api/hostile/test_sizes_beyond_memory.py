"""Shapes that no machine has the memory for: drawn ones, whose products overflow 64 bits, through every door of the library."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp.compat import default_runtime
from aspen_mp.errors import ResourceLimitError

EXTENTS = [2**31, 2**31 + 1, 2**40, 2**53 + 1, 2**62, 2**63 - 1]
VALUES = {
    "ConstantOfShape": ["s"],
    "Expand": ["x", "s"],
    "Tile": ["x", "s"],
}
"""Operators whose input says the shape of what they compute."""


def model(op: str, inputs: list[str], shape: list[int] | None = None) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "s" else TensorProto.FLOAT, ["rank"] if name == "s" else shape)
        for name in inputs
    ]
    graph = helper.make_graph([helper.make_node(op, inputs, ["y"])], "g", infos, [helper.make_tensor_value_info("y", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drawn(seed: int, at_least: int = 1) -> list[int]:
    """A shape of at least 2^45 elements."""
    chosen = random.Random(seed)
    while True:
        shape = [chosen.choice([1, 2, *EXTENTS]) for _ in range(chosen.randint(at_least, 4))]
        if math.prod(shape) >= 2**45:
            return shape


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=1) as started:
        yield started


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("op", VALUES)
def test_shapes_that_inputs_say(op: str, seed: int, runtime: aspen_mp.Runtime) -> None:
    shape = drawn(seed)
    feeds = {"x": np.zeros([1] * len(shape), np.float32), "s": np.array(shape, np.int64)}
    loaded = runtime.load(model(op, VALUES[op], [1] * len(shape)))
    with pytest.raises(ResourceLimitError):
        loaded.run({name: feeds[name] for name in VALUES[op]})
    loaded.unload()


@pytest.mark.parametrize("seed", range(8))
def test_shapes_of_inputs(seed: int, runtime: aspen_mp.Runtime) -> None:
    shape = drawn(seed)
    with pytest.raises(ResourceLimitError):
        runtime.load(model("Neg", ["x"], shape))
    loaded = runtime.load(model("Neg", ["x"], ["a", "b", "c", "d"][: len(shape)]))
    with pytest.raises(ResourceLimitError):
        loaded.prepare({"x": shape})
    try:
        feed = np.broadcast_to(np.float32(0), shape)  # no memory stands behind it
    except ValueError:
        return  # beyond what numpy has arrays for
    with pytest.raises(ResourceLimitError):
        loaded.run({"x": feed})


def test_sessions() -> None:
    try:
        for seed in range(8):
            with pytest.raises(ResourceLimitError):
                aspen_mp.InferenceSession(model("Neg", ["x"], drawn(seed)).SerializeToString())
    finally:
        default_runtime.close()


def test_products_of_inputs(runtime: aspen_mp.Runtime) -> None:
    """Each input is small, what they make together is not."""
    for n, m in ((2**31, 2**31), (2**40, 2**40), (2**40, 2**10)):
        loaded = runtime.load(model("Mul", ["x", "w"]))
        with pytest.raises(ResourceLimitError):
            loaded.run({"x": np.broadcast_to(np.float32(0), (n, 1)), "w": np.broadcast_to(np.float32(0), (1, m))})


def test_random_values_of_the_command(tmp_path) -> None:
    for k, shape in enumerate(([2**40, 2**40], [2**62], [2**31, 2**31])):
        onnx.save(model("Neg", ["x"], shape), tmp_path / f"{k}.onnx")
        command = [sys.executable, "-m", "aspen_mp.cli", "run", tmp_path / f"{k}.onnx", "--random", "--workers", "1", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert json.loads(done.stdout)["error"]["type"] == "ResourceLimitError"
