"""A drawn graph of some thousand nodes, from a file's bytes to a result."""

from __future__ import annotations

import random

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.control.planning.plan_checks import AT_ONCE

NODES = 1600
"""Steps of one to four nodes."""


def drawn(seed: int) -> bytes:
    """A graph of small operators: each reads one of the last few results, some of them two. Values stay where float32 tells them apart."""
    rng = random.Random(seed)
    weights = np.random.default_rng(seed).standard_normal((16, 16)).astype(np.float32) / 4
    known, nodes = ["x"], []
    for k in range(NODES):
        op = rng.choice(["Add", "Mul", "Sub", "Tanh", "Sigmoid", "MatMul", "Transpose"])
        first, second = known[-1], rng.choice(known[-6:])
        name = f"t{k}"
        if op in ("Tanh", "Sigmoid"):
            nodes.append(helper.make_node(op, [first], [name]))
        elif op == "Transpose":
            nodes += [
                helper.make_node(op, [first], [f"{name}t"], perm=[1, 0]),
                helper.make_node("MatMul", [first, f"{name}t"], [f"{name}p"]),
            ]
            nodes += [helper.make_node("MatMul", [f"{name}p", first], [f"{name}q"]), helper.make_node("Tanh", [f"{name}q"], [name])]
        elif op == "MatMul":
            nodes += [helper.make_node(op, [first, "w"], [f"{name}m"]), helper.make_node("Tanh", [f"{name}m"], [name])]
        else:
            nodes += [helper.make_node(op, [first, second], [f"{name}s"]), helper.make_node("Tanh", [f"{name}s"], [name])]
        known.append(name)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 16]) for name in ("x", known[-1])]
    graph = helper.make_graph(nodes, "drawn", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_large_graph(runtime: aspen_mp.Runtime) -> None:
    seed = 5
    data, heard = drawn(seed), list[tuple[str, int, int]]()
    model = runtime.load(data, progress=lambda *how: heard.append(how))
    x = np.random.default_rng(seed).standard_normal((8, 16)).astype(np.float32)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    (got,) = model.run({"x": x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert all(0 <= done <= total for _, done, total in heard)
    (known,) = runtime.status()["models"]
    assert known["doing"] is None
    assert known["plans"][0]["bytes"] > AT_ONCE
    assert "checking the plan" in {step for step, _, _ in heard}
