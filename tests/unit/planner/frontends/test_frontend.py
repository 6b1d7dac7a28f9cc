"""The ONNX front-end: models as files, bytes and messages; every kind of bad model and the error it gets."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bad_models import BAD, RELU, N, constant, conv, external, given, model, value
from kernel_graphs import bind, run_model
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from plan_requests import plan_request

from aspen_mp.planner import api, stages
from aspen_mp.planner.frontends import wire
from aspen_mp.shm.errors import (
    AspenError,
    ExternalDataError,
    ModelInvalidError,
    RequestError,
    UnsupportedModelError,
)


def plan(source: Any) -> None:
    """Everything up to kernels, for inputs of the declared shapes."""
    opened = api.load(source)
    feeds = {i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape or ()], i.dtype) for i in opened.signature.inputs}
    stage = stages.derive(opened, [bind(feeds)])
    api.lowered(stage.graph, opened, [v.name for v in stage.outputs], plan_request())


@pytest.mark.parametrize("case", BAD)
def test_bad_models(case: str, tmp_path: Path) -> None:
    """Each is refused with its error, by name."""
    bad = BAD[case]
    source = given(bad, tmp_path)
    with pytest.raises(bad.error) as caught:
        plan(source)
    assert type(caught.value) is bad.error
    missing = [name for name in bad.names if name not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


def lettered() -> bytes:
    """A model with a string of its own, ending in 7, in each kind of place."""
    inner = helper.make_graph(
        [N("Relu", ["outer7"], ["inner7"], name="within7", doc_string="note7")], "branch7", [], [value("inner7", None)]
    )
    nodes = [
        N("Conv", ["input7", "weight7"], ["outer7"], name="conv7", doc_string="remark7", strides=[1, 1], auto_pad="mode7"),
        N("If", ["choice7"], ["picked7"], name="if7", then_branch=inner, else_branch=inner),
        N("Own", ["picked7"], ["output7"], name="call7", domain="local7", factor7=2.0, letters7=["word7"]),
    ]
    stored = [numpy_helper.from_array(np.zeros((4, 4, 1, 1), np.float32), "weight7"), numpy_helper.from_array(np.array(True), "choice7")]
    body = [N("LeakyRelu", ["a7"], ["b7"], name="body7"), helper.make_node("Identity", ["b7"], ["c7"])]
    body[0].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="factor7", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function("local7", "Own", ["a7"], ["c7"], body, [helper.make_opsetid("", 17)], ["factor7", "letters7"])
    about = value("outer7", ["batch7", 4, 8, 8])
    graph = helper.make_graph(nodes, "graph7", [value("input7", ["batch7", 4, 8, 8])], [value("output7", None)], stored, "text7", [about])
    proto = helper.make_model(graph, functions=[function], opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("local7", 1)])
    proto.producer_name, proto.doc_string = "tool7", "story7"
    helper.set_model_props(proto, {"key7": "content7"})
    return proto.SerializeToString()


@pytest.mark.parametrize("name", sorted(set(re.findall(rb"[a-z]+7", lettered()))))
def test_strings_that_are_not_text_are_refused_with_a_reason_or_harmless(name: bytes) -> None:
    damaged = re.sub(rb"(?<![a-z])%s" % name, b"\xff\xfe" + name[2:], lettered())
    reason = "none needed"
    try:
        api.load(damaged)
    except AspenError as error:
        reason = str(error)
    assert re.search("[a-z]{3}", reason)


def test_every_unknown_operator_is_named() -> None:
    nodes = [N("Foo", ["x"], ["a"], name="first"), N("Bar", ["a"], ["b"], domain="com.x", name="second"), N("Relu", ["b"], ["y"])]
    with pytest.raises(UnsupportedModelError) as caught:
        api.load(model(nodes))
    assert "first" in str(caught.value)
    assert "second" in str(caught.value)


def test_random_damage_is_a_typed_error() -> None:
    rng = np.random.default_rng(3)
    whole = conv(6, 4, 3, 3).SerializeToString()
    for _ in range(400):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), rng.integers(1, 6)):
            damaged[at] = rng.integers(0, 256)
        with contextlib.suppress(AspenError):
            plan(bytes(damaged))


# ----------------------------------------------------------------------------------------------------------- external data


def test_external_data(tmp_path: Path) -> None:
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(64) + array.tobytes())
    x = np.ones((1, 4, 8, 8), np.float32)
    for entries in ({"location": "data/w.bin", "offset": "64", "length": "256"}, {"location": "data/w.bin", "offset": "64"}):
        opened = api.load(str(external(tmp_path, **entries)))
        assert np.array_equal(run_model(opened, {"x": x})[0], x @ array)


def test_damaged_references(tmp_path: Path) -> None:
    """A model cannot pretend to have been stripped of its data by us."""
    with pytest.raises((ExternalDataError, ModelInvalidError)):
        api.load(str(external(tmp_path, location=wire.REFERENCE, span="0")))


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(256))
    path = external(tmp_path, location="w.bin")
    with pytest.raises(ExternalDataError, match="folder"):
        api.load(path.read_bytes())
    api.load(path.read_bytes(), folder=str(tmp_path))


# ---------------------------------------------------------------------------------------------------------- good models


def large() -> onnx.ModelProto:
    """Weights as initializers, in a Constant node, and in a branch, all too long to stay in the stripped model."""
    rng = np.random.default_rng(5)
    first, second, third = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(3))
    inner = helper.make_graph([N("MatMul", ["b", "v"], ["t"])], "then", [], [value("t", None)], [constant("v", third)])
    other = helper.make_graph([N("Identity", ["b"], ["e"])], "else", [], [value("e", None)])
    nodes = [
        N("MatMul", ["x", "w"], ["a"]),
        N("Constant", [], ["u"], value=constant("u", second)),
        N("MatMul", ["a", "u"], ["b"]),
        N("If", ["c"], ["y"], then_branch=inner, else_branch=other),
    ]
    return model(nodes, [constant("w", first)], [value("x", [2, 64]), value("c", [], TensorProto.BOOL)])


@pytest.mark.parametrize("form", ["message", "bytes", "file"])
@pytest.mark.parametrize("chosen", [True, False])
def test_forms_of_a_model(tmp_path: Path, form: str, chosen: bool) -> None:
    proto = large()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    source: Any = {"message": proto, "bytes": proto.SerializeToString(), "file": path}[form]
    opened = api.load(source)
    assert opened.proto.ByteSize() < (8000 if form != "message" else 24000)  # of a message, branches stay as they are
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32), "c": np.array(chosen)}
    want = ReferenceEvaluator(proto).run(None, feeds)[0]
    assert np.allclose(run_model(opened, feeds)[0], want, atol=1e-4)


@pytest.mark.parametrize("form", ["message", "bytes", "file"])
def test_tensors_that_say_where_their_data_are(tmp_path: Path, form: str) -> None:
    """As onnx writes them that were read from external data and saved in one file: `data_location` says DEFAULT, behind the data."""
    onnx.save(large(), tmp_path / "external.onnx", save_as_external_data=True, location="w.bin", size_threshold=0, convert_attribute=True)
    proto = onnx.load(tmp_path / "external.onnx")
    assert proto.graph.initializer[0].HasField("data_location")
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    (tmp_path / "w.bin").unlink()
    source: Any = {"message": proto, "bytes": path.read_bytes(), "file": path}[form]
    opened = api.load(source)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32), "c": np.array(True)}
    assert np.allclose(run_model(opened, feeds)[0], ReferenceEvaluator(proto).run(None, feeds)[0], atol=1e-4)


def test_stripping_keeps_the_model() -> None:
    proto = large()
    data = proto.SerializeToString()
    stripped = wire.strip(memoryview(data), 100)
    again = onnx.ModelProto.FromString(stripped.model)
    assert [n.op_type for n in again.graph.node] == [n.op_type for n in proto.graph.node]
    at, length = stripped.spans[-1]
    assert data[at : at + length] == proto.graph.initializer[0].raw_data
    assert len(stripped.spans) == 3


def test_signature() -> None:
    proto = model([N("Relu", ["x"], ["y"])], inputs=[value("x", ["batch", 3, None])])
    signature = api.inspect(proto)
    assert signature.inputs[0].shape == ("batch", 3, "x.2")
    assert signature.outputs[0].shape is not None
    assert signature.outputs[0].shape[:2] == ("batch", 3)
    assert signature.inputs[0].dtype == np.float32


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("x", np.zeros((1, 4, 8, 8))),
        ("x", np.zeros((1, 4, 8), np.float32)),
        ("x", np.zeros((1, 5, 8, 8), np.float32)),
        ("z", np.zeros(1, np.float32)),
    ],
)
def test_bindings_must_fit(name: str, array: np.ndarray) -> None:
    opened = api.load(RELU)
    bindings = bind({"x": np.zeros((1, 4, 8, 8), np.float32), name: array})
    with pytest.raises(RequestError, match=name):
        stages.derive(opened, [bindings])


def test_unbound_input() -> None:
    with pytest.raises(UnsupportedModelError, match="unbound"):
        stages.derive(api.load(RELU), [{}])


def test_local_functions_are_inlined() -> None:
    body = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [N("Constant", [], ["two"]), N("Mul", ["a", "two"], ["c"]), N("LeakyRelu", ["c"], ["b"])],
        [helper.make_opsetid("", 17)],
        ["slope"],
    )
    body.node[0].attribute.append(helper.make_attribute("value_float", 2.0))
    body.node[2].attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    nodes = [N("Twice", ["x"], ["h"], domain="own", slope=0.5), N("Twice", ["h"], ["y"], domain="own", slope=0.25)]
    graph = helper.make_graph(nodes, "g", [value("x", [3])], [value("y", [3])])
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)], functions=[body], ir_version=8
    )
    x = np.array([-1, 0, 2], np.float32)
    counts: dict[str, int] = {}
    assert run_model(api.load(proto), {"x": x}, counts=counts)[0].tolist() == [-0.5, 0, 8]
    assert "OPAQUE" not in counts


def test_values_of_shapes_may_be_columns() -> None:
    """ONNX's propagation of values has no axes, and takes a column and a row of other lengths for a mistake."""
    nodes = [
        N("Shape", ["x"], ["shape"]),
        N("Unsqueeze", ["shape", "one"], ["column"]),
        N("Mul", ["column", "row"], ["table"]),
        N("Cast", ["table"], ["y"], to=TensorProto.FLOAT),
    ]
    numbers = {"one": np.array([1]), "row": np.array([1, 2, 3])}
    graph = helper.make_graph(
        nodes, "g", [value("x", (4, "n"))], [value("y", ("a", "b"))], [numpy_helper.from_array(x, n) for n, x in numbers.items()]
    )
    (got,) = run_model(
        api.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)), {"x": np.zeros((4, 5), np.float32)}
    )
    np.testing.assert_array_equal(got, np.array([[4, 8, 12], [5, 10, 15]], np.float32))


@pytest.mark.parametrize("positive", [False, True])
def test_names_in_branches_of_functions(positive: bool) -> None:
    """A branch defines names which values of the caller have, too: it reads the caller's, not its own."""
    then = helper.make_graph(
        [N("Neg", ["v"], ["x"]), N("Exp", ["x"], ["w"])], "then", [], [value("w", None)], [constant("y", np.float32(3))]
    )
    orelse = helper.make_graph([N("Identity", ["v"], ["x"])], "else", [], [value("x", None)])
    nodes = [N("If", ["c"], ["r"], then_branch=then, else_branch=orelse)]
    body = helper.make_function("own", "F", ["v", "c"], ["r"], nodes, [helper.make_opsetid("", 17)])
    calls = [
        N("ReduceMax", ["x"], ["m"], keepdims=0),
        N("Greater", ["m", "zero"], ["c"]),
        N("F", ["x", "c"], ["w"], domain="own"),
        N("F", ["w", "c"], ["y"], domain="own"),
    ]
    proto = model(calls, [constant("zero", np.float32(0))], [value("x", [3])])
    proto.functions.append(body)
    x = np.array([-0.5, -1, 2 if positive else -2], np.float32)
    want = np.exp(-np.exp(-x)) if positive else x
    np.testing.assert_allclose(run_model(api.load(proto), {"x": x})[0], want, rtol=1e-6)
