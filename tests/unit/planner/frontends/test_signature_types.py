"""Types of inputs and outputs are spelled as onnxruntime spells them."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, TypeProto, helper

from aspen_mp.planner import api

TENSORS = {
    name: helper.make_tensor_type_proto(number, [2])
    for name, number in TensorProto.DataType.items()
    if name not in {"UNDEFINED", "FLOAT8E8M0", "COMPLEX64", "COMPLEX128", "UINT2", "INT2", "FLOAT6E2M3", "FLOAT6E3M2"}  # not all in both
}
FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
TYPES: dict[str, TypeProto] = {
    **TENSORS,
    "sequence": helper.make_sequence_type_proto(FLOATS),
    "sequence of strings": helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.STRING, None)),
    "optional": helper.make_optional_type_proto(FLOATS),
    "optional sequence": helper.make_optional_type_proto(helper.make_sequence_type_proto(FLOATS)),
    "map": helper.make_map_type_proto(TensorProto.INT64, FLOATS),
    "map of strings": helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.INT64, None)),
}


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    """Of an input that is an output, so that no operator has to take the type."""
    kind = TYPES[name]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x, helper.make_value_info("v", kind)], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    want = onnxruntime.InferenceSession(model.SerializeToString()).get_inputs()[1].type
    assert api.inspect(model).inputs[1].type == want


def test_types_that_are_inferred() -> None:
    """Of outputs whose type the model does not say."""
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["list"]), helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING)]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("list", "text")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    want = [o.type for o in onnxruntime.InferenceSession(model.SerializeToString()).get_outputs()]
    assert [o.type for o in api.inspect(model).outputs] == want == ["seq(tensor(float))", "tensor(string)"]
