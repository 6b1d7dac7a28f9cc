"""Operators of double precision, as models converted from scikit-learn use them, beside onnxruntime: every one by kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_learned_agree import check

D = TensorProto.DOUBLE
N = helper.make_node


def constant(rng: np.random.Generator, name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(rng.standard_normal(shape), name)


def drawn(seed: int) -> tuple[list[Any], list[TensorProto], tuple[int, ...]]:
    """Nodes from x to y, their constants, the shape of x."""
    rng = np.random.default_rng(seed)
    rows, terms, columns = (int(rng.choice([1, 2, 5, 33, 100])) for _ in range(3))
    axis = int(rng.integers(2))
    cases: list[tuple[list[Any], list[TensorProto], tuple[int, ...]]] = [
        ([N("MatMul", ["x", "w"], ["y"])], [constant(rng, "w", terms, columns)], (rows, terms)),
        ([N("MatMul", ["x", "w"], ["y"])], [constant(rng, "w", terms)], (3, rows, terms)),
        ([N("MatMul", ["w", "x"], ["y"])], [constant(rng, "w", 2, 1, rows, terms)], (3, terms, columns)),
        (
            [N("Gemm", ["x", "w", "c"], ["y"], transA=axis, transB=1 - axis, alpha=0.5, beta=float(rng.choice([0, 1, 2.5])))],
            [
                constant(rng, "w", *((columns, terms) if not axis else (terms, columns))),
                constant(rng, "c", *[[], [columns], [rows, 1]][seed % 3]),
            ],
            (terms, rows) if axis else (rows, terms),
        ),
        (
            [N("MatMul", ["x", "w"], ["m"]), N("Add", ["m", "c"], ["a"]), N("Sigmoid", ["a"], ["y"])],
            [constant(rng, "w", terms, columns), constant(rng, "c", columns)],
            (rows, terms),
        ),
        ([N(str(rng.choice(["Softmax", "LogSoftmax"])), ["x"], ["y"], axis=axis)], [], (rows, terms)),
        ([N("Softmax", ["x"], ["p"], axis=1), N("MatMul", ["p", "x"], ["y"])], [], (terms, terms)),
        ([N("LpNormalization", ["x"], ["y"], p=1 + axis, axis=1)], [], (rows, terms)),
    ]
    return cases[seed % len(cases)]


def distances(seed: int) -> onnx.ModelProto:
    """A Scan over the rows of x, as skl2onnx writes distances from the rows of a constant table."""
    rng = np.random.default_rng(seed)
    kind = [D, TensorProto.FLOAT][seed % 2]
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    columns, reduction = int(rng.integers(2, 20)), str(rng.choice(["ReduceSumSquare", "ReduceL1"]))
    both = ["all", "one"] if seed % 3 else ["one", "all"]
    axes = numpy_helper.from_array(np.array([1]), "axes")
    newer = seed % 4 < 2
    total = N(reduction, ["apart", "axes"], ["sum"], keepdims=0) if newer else N(reduction, ["apart"], ["sum"], keepdims=0, axes=[1])
    body = helper.make_graph(
        [N("Identity", ["all"], ["all_out"]), N("Sub", both, ["apart"]), total, N("Identity", ["sum"], ["out"])],
        "body",
        [helper.make_tensor_value_info("all", kind, None), helper.make_tensor_value_info("one", kind, None)],
        [helper.make_tensor_value_info("all_out", kind, None), helper.make_tensor_value_info("out", kind, None)],
        [axes] if newer else [],
    )
    nodes = [N("Scan", ["table", "x"], ["same", "apart"], body=body, num_scan_inputs=1), N("Sqrt", ["apart"], ["y"])]
    table = numpy_helper.from_array(rng.standard_normal((int(rng.choice([1, 7, 70])), columns)).astype(dtype), "table")
    ends = [helper.make_tensor_value_info(name, kind, shape) for name, shape in (("x", ["n", columns]), ("y", None))]
    graph = helper.make_graph(nodes, "distances", ends[:1], ends[1:], [table])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18 if newer else 17)], ir_version=8)


@pytest.mark.parametrize("seed", range(12))
def test_distances(seed: int) -> None:
    proto = distances(seed)
    columns = proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((int(rng.choice([1, 9, 60])), columns)).astype([np.float64, np.float32][seed % 2])
    tolerance = 1e-12 if x.dtype == np.float64 else 2e-5
    assert "DGEMM" in check(proto, x, seed, tolerance, tolerance)


@pytest.mark.parametrize("seed", range(32))
def test_doubles(seed: int) -> None:
    nodes, constants, shape = drawn(seed)
    x = np.random.default_rng(seed).standard_normal(shape)
    graph = helper.make_graph(
        nodes, "doubles", [helper.make_tensor_value_info("x", D, shape)], [helper.make_tensor_value_info("y", D, None)], constants
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    check(proto, x, seed, 1e-12, 1e-12)
