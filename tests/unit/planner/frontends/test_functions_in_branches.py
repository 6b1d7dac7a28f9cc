"""Branches that Python runs call functions of the model: in whatever order those are listed, and with long constants in them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api

N = helper.make_node
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
LONG = np.arange(2048, dtype=np.float32)
"""More bytes than stay in a model's structure."""
FUNCTIONS = {
    "outer": [N("inner", ["a"], ["h"], domain="own"), N("Neg", ["h"], ["b"])],
    "inner": [N("Constant", [], ["c"], value=numpy_helper.from_array(LONG)), N("Add", ["a", "c"], ["b"])],
    "other": [N("Abs", ["a"], ["b"])],
}


@pytest.mark.parametrize("order", list(permutations(FUNCTIONS)))
def test_functions_of_a_branch_are_found(order: tuple[str, ...]) -> None:
    branches = {
        name: helper.make_graph(
            [N(op, ["x"], ["r"], domain="own")], name, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2048])]
        )
        for name, op in (("then_branch", "outer"), ("else_branch", "other"))
    }
    nodes = [
        N("ReduceMax", ["x"], ["most"], keepdims=0),
        N("Cast", ["most"], ["so"], to=TensorProto.BOOL),
        N("If", ["so"], ["y"], **branches),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2048]) for name in ("x", "y")]
    functions = [helper.make_function("own", name, ["a"], ["b"], FUNCTIONS[name], OPSETS) for name in order]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=OPSETS, functions=functions, ir_version=8)
    for x, y in ((LONG - 3, -(2 * LONG - 3)), (-LONG, LONG)):
        np.testing.assert_array_equal(run_model(api.load(model.SerializeToString()), {"x": x})[0], y)
