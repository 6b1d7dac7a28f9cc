"""The ONNX front-end: models as files, bytes and messages; every kind of bad model and the error it gets."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_graphs import bind, run_model
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aspen_mp.planner import api, stages
from aspen_mp.planner.frontends import wire
from aspen_mp.shm.errors import (
    AspenError,
    ExternalDataError,
    ModelInvalidError,
    ModelParseError,
    RequestError,
    ResourceLimitError,
    UnsupportedModelError,
)

N = helper.make_node


def value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: list[onnx.NodeProto],
    constants: list[TensorProto] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs or [value("x", [1, 4, 8, 8])], outputs or [value("y", None)], constants or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def plan(source: Any) -> None:
    """Everything up to kernels, for inputs of the declared shapes."""
    opened = api.load(source)
    feeds = {i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape or ()], i.dtype) for i in opened.signature.inputs}
    stage = stages.derive(opened, [bind(feeds)])
    api.lowered(stage.graph, opened, [v.name for v in stage.outputs], api.Options())


def weights(*shape: int) -> TensorProto:
    return constant("w", np.ones(shape, np.float32))


def altered(tensor: TensorProto, change: Callable[[TensorProto], None]) -> TensorProto:
    change(tensor)
    return tensor


def set_dims(*dims: int) -> Callable[[TensorProto], None]:
    def change(tensor: TensorProto) -> None:
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return change


def set_raw(length: int) -> Callable[[TensorProto], None]:
    def change(tensor: TensorProto) -> None:
        tensor.raw_data = (tensor.raw_data + bytes(16))[:length]

    return change


RELU = model([N("Relu", ["x"], ["y"], name="abcd")])
MATMUL = [N("MatMul", ["x", "w"], ["y"])]


def conv(*shape: int, **attrs: Any) -> onnx.ModelProto:
    return model([N("Conv", ["x", "w"], ["y"], name="conv7", **attrs)], [weights(*shape)])


def nested(depth: int) -> bytes:
    """Branches in branches, deeper than protobuf itself would build them."""
    graph = wire._field(1, N("Identity", ["x"], ["o"]).SerializeToString())
    for _ in range(depth):
        attribute = wire._field(1, b"then_branch") + wire._field(6, graph)
        graph = wire._field(1, wire._field(4, b"If") + wire._field(5, attribute))
    return b"\x08\x08" + wire._field(7, graph) + b"\x42\x02\x10\x11"


def chain_of(n: int) -> bytes:
    """A model of n nodes, written by hand: building it through protobuf would take longer than refusing it."""
    one = N("Relu", ["x"], ["x"]).SerializeToString()
    graph = (b"\x0a" + bytes([len(one)]) + one) * n
    return b"\x08\x08\x3a" + wire._varint(len(graph)) + graph + b"\x42\x02\x10\x11"


BAD: dict[str, tuple[type[AspenError], str | None, Any]] = {
    "empty": (ModelParseError, "empty", b""),
    "truncated": (ModelParseError, "truncated", RELU.SerializeToString()[:-7]),
    "random": (ModelParseError, None, np.random.default_rng(7).bytes(5000)),
    "text": (ModelParseError, None, b"<html>" * 99),
    "another message": (ModelParseError, "no graph", weights(2).SerializeToString()[:2]),
    "name not UTF-8": (ModelParseError, "UTF-8", RELU.SerializeToString().replace(b"abcd", b"a\xff\xfed")),
    "operator not UTF-8": (ModelParseError, "UTF-8", RELU.SerializeToString().replace(b"Relu", b"R\xff\xfeu")),
    "cycle": (ModelInvalidError, "'b'", model([N("Add", ["x", "b"], ["a"]), N("Relu", ["a"], ["b"]), N("Relu", ["b"], ["y"])])),
    "undefined input": (ModelInvalidError, "'nope'", model([N("Add", ["x", "nope"], ["y"])])),
    "output twice": (ModelInvalidError, "'y'", model([N("Relu", ["x"], ["y"]), N("Abs", ["x"], ["y"])])),
    "output missing": (ModelInvalidError, "'y'", model([N("Relu", ["x"], ["z"])])),
    "negative input": (ModelInvalidError, "'x'", model([N("Relu", ["x"], ["y"])], inputs=[value("x", [-5, 4])])),
    "negative dimension": (ModelInvalidError, "'w'", model(MATMUL, [altered(weights(8, 8), set_dims(-8, -8))])),
    "product over int64": (ModelInvalidError, "'w'", model(MATMUL, [altered(weights(8, 8), set_dims(2**40, 2**40))])),
    "raw data short": (ModelInvalidError, "'w'", model(MATMUL, [altered(weights(8, 8), set_raw(252))])),
    "raw data long": (ModelInvalidError, "'w'", model(MATMUL, [altered(weights(8, 80), set_raw(8 * 80 * 4 + 4))])),
    "stride 0": (ModelInvalidError, "conv7", conv(6, 4, 3, 3, strides=[0, 1])),
    "group 0": (ModelInvalidError, "conv7", conv(6, 4, 3, 3, group=0)),
    "group no divisor": (ModelInvalidError, "'w'", conv(6, 4, 3, 3, group=3)),
    "negative pads": (ModelInvalidError, "conv7", conv(6, 4, 3, 3, pads=[-1, 0, 0, 0])),
    "huge pads": (ModelInvalidError, "conv7", conv(6, 4, 3, 3, pads=[2**40, 0, 0, 0])),
    "kernel too large": (ModelInvalidError, "conv7", conv(6, 4, 30, 3)),
    "attribute of wrong type": (ModelInvalidError, "conv7", conv(6, 4, 3, 3, strides=1.5)),
    "reshape": (ModelInvalidError, "'x'", model([N("Reshape", ["x", "s"], ["y"])], [constant("s", [7, 9])])),
    "permutation": (ModelInvalidError, "'x'", model([N("Transpose", ["x"], ["y"], perm=[0, 0, 1, 2])])),
    "axis": (ModelInvalidError, "axis", model([N("Softmax", ["x"], ["y"], axis=9)])),
    "constant index": (ModelInvalidError, "'i'", model([N("Gather", ["x", "i"], ["y"])], [constant("i", [77])])),
    "no inputs": (ModelInvalidError, "Relu", model([N("Relu", [], ["y"])])),
    "opset": (UnsupportedModelError, "999", model([N("Relu", ["x"], ["y"])], opset=999)),
    "tile": (ResourceLimitError, "Tile", model([N("Tile", ["x", "s"], ["y"])], [constant("s", [10**4] * 4)])),
    "fill": (ResourceLimitError, "'y'", model([N("ConstantOfShape", ["s"], ["y"])], [constant("s", [10**7, 10**7])])),
    "resize": (
        ResourceLimitError,
        "'y'",
        model([N("Resize", ["x", "", "s"], ["y"])], [constant("s", np.array([1, 1, 1e5, 1e5], np.float32))]),
    ),
    "million nodes": (ResourceLimitError, "nodes", chain_of(10**6)),
    "nested": (ModelParseError, None, nested(120)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_models(case: str) -> None:
    kind, text, source = BAD[case]
    source = source if isinstance(source, bytes) else source.SerializeToString()
    start = time.monotonic()
    with pytest.raises(kind, match=text):
        plan(source)
    assert time.monotonic() - start < 20  # a watchdog against quadratic surprises


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


def external(folder: Path, **entries: str) -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    proto = model(MATMUL)
    proto.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(64) + array.tobytes())
    x = np.ones((1, 4, 8, 8), np.float32)
    for entries in ({"location": "data/w.bin", "offset": "64", "length": "256"}, {"location": "data/w.bin", "offset": "64"}):
        opened = api.load(str(external(tmp_path, **entries)))
        assert np.array_equal(run_model(opened, {"x": x})[0], x @ array)


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "../w.bin"},
        {"location": "sub/../../w.bin"},
        {"location": "/etc/hostname"},
        {"location": "link"},
        {"location": "linked/w.bin"},
        {"location": "fifo"},
        {"location": "/dev/zero"},
        {"location": "w.bin", "offset": "64"},
        {"location": "w.bin", "offset": "-4"},
        {"location": "w.bin", "length": "128"},
        {"location": "w.bin", "length": "99999999999999999999"},
        {"location": "short.bin"},
        {"location": "missing.bin"},
        {"location": ""},
        {"location": "\0aspen", "span": "0"},
    ],
)
def test_bad_external_data(tmp_path: Path, entries: dict[str, str]) -> None:
    home = tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(256))
    (home / "w.bin").write_bytes(bytes(256))
    (home / "short.bin").write_bytes(bytes(100))
    (home / "link").symlink_to(tmp_path / "w.bin")
    (home / "linked").symlink_to(tmp_path)
    os.mkfifo(home / "fifo")
    expected: tuple[type[AspenError], ...] = (ExternalDataError,) if "span" not in entries else (ExternalDataError, ModelInvalidError)
    with pytest.raises(expected):
        api.load(str(external(home, **entries)))


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
