"""Sequences of maps that only the caller reads are tables to a plan: no worker makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from aspen_mp.planner import api

N = helper.make_node
F = TensorProto.FLOAT
ML = "ai.onnx.ml"


def planned(nodes: list[Any], outputs: list[str], columns: int = 3) -> tuple[api.Signature, api.StageResult]:
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(F, []))
    given = [helper.make_value_info("maps", helper.make_sequence_type_proto(kind))]
    given += [helper.make_tensor_value_info(name, F, ["n", columns]) for name in outputs]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", F, ["n", columns])], given)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)], ir_version=8)
    model = api.load(proto)
    return model.signature, api.plan_stage(model, [{"x": api.Binding(np.dtype(np.float32), (4, columns))}], workers=2)


@pytest.mark.parametrize("labels", [[1, 2, 3], [3, 1, 2], [1, 1, 1]])
@pytest.mark.parametrize("outputs", [[], ["p"]])
def test_a_table(labels: list[int], outputs: list[str]) -> None:
    signature, stage = planned([N("Relu", ["x"], ["p"]), N("ZipMap", ["p"], ["maps"], domain=ML, classlabels_int64s=labels)], outputs)
    assert signature.outputs[0].keys == tuple(sorted(set(labels)))
    assert (stage.opaque, stage.more, stage.plan is not None) == ([], False, True)
    found = {t.name: (t.dtype, t.shape) for t in stage.plan.outputs}  # type: ignore[union-attr]
    assert found["maps"] == ("float32", (4, len(set(labels))))
