"""Every kind of model that must be refused, with its error, and what the message must name.

One table, in the order in which users meet the errors: bytes that are no model, models that break ONNX's rules, models that cannot be run,
models that are too large. `test_frontend.py` gives each to the planner's functions, `tests/api/hostile/test_bad_inputs.py` to a runtime.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner.frontends import wire
from aspen_mp.shm.errors import (
    AspenError,
    ExternalDataError,
    ModelInvalidError,
    ModelParseError,
    ResourceLimitError,
    TooLarge,
    UnsupportedModelError,
)

N = helper.make_node


@dataclass(frozen=True, slots=True)
class Bad:
    """`source`: a model, its bytes, or what writes it into a folder and returns its path. `names`: what the message must have in it."""

    error: type[AspenError]
    names: tuple[str, ...]
    source: onnx.ModelProto | bytes | Callable[[Path], Path]


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


def range_of(start: float, limit: float, delta: float) -> onnx.ModelProto:
    dtype = np.int64 if np.isfinite(limit) else np.float32
    ends = [constant(name, dtype(value)) for name, value in (("start", start), ("limit", limit), ("delta", delta))]
    kind = TensorProto.INT64 if np.isfinite(limit) else TensorProto.FLOAT
    return model([N("Range", [end.name for end in ends], ["y"], name="count")], ends, outputs=[value("y", ["n"], kind)])


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


def set_type(number: int) -> Callable[[TensorProto], None]:
    def change(tensor: TensorProto) -> None:
        tensor.data_type = number

    return change


RELU = model([N("Relu", ["x"], ["y"], name="abcd")])
MATMUL = [N("MatMul", ["x", "w"], ["y"], name="product")]


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
    return b"\x08\x08\x3a" + wire.varint(len(graph)) + graph + b"\x42\x02\x10\x11"


def renamed(proto: onnx.ModelProto, old: bytes) -> bytes:
    """With a string in it that is not UTF-8."""
    data = proto.SerializeToString()
    assert old in data
    return data.replace(old, b"\xff\xfe" + old[2:])


def named() -> onnx.ModelProto:
    """A model with a name of its own in every place that has names."""
    graph = helper.make_graph(
        [N("Conv", ["input7", "weight7"], ["output7"], name="node7", strides=[1, 1])],
        "graph7",
        [value("input7", ["symbol7", 4, 8, 8])],
        [value("output7", None)],
        [constant("weight7", np.ones((4, 4, 1, 1), np.float32))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def over_2_gib(folder: Path) -> Path:
    """A file without contents: its size alone is wrong."""
    path = folder / "huge.onnx"
    path.write_bytes(RELU.SerializeToString())
    os.truncate(path, (1 << 31) + 4096)
    return path


def special(make: Callable[[Path], object]) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / "model.onnx"
        make(path)
        return path

    return build


def external(folder: Path, **entries: str) -> Path:
    """A model whose tensor w, of 256 bytes, lies elsewhere."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    proto = model(MATMUL)
    proto.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def beside(**entries: str) -> Callable[[Path], Path]:
    """A model in a folder with good and bad files to refer to."""

    def build(folder: Path) -> Path:
        home = folder / "home"
        (home / "sub").mkdir(parents=True)
        for path in (folder / "w.bin", home / "w.bin"):
            path.write_bytes(bytes(256))
        (home / "short.bin").write_bytes(bytes(100))
        (home / "link").symlink_to(folder / "w.bin")
        (home / "again").symlink_to("link")
        (home / "nowhere").symlink_to("missing.bin")
        (home / "round").symlink_to("round")
        (home / "zero").symlink_to("/dev/zero")
        (home / "below").symlink_to("sub")
        (home / "linked").symlink_to(folder)
        os.mkfifo(home / "fifo")
        return external(home, **entries)

    return build


def calling(*functions: onnx.FunctionProto, gives: int = 1) -> onnx.ModelProto:
    """A model of one node, which calls the first of these."""
    proto = model([N(functions[0].name, ["x"] * gives, ["y"], domain="own", name="call")])
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)])


def changed(proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    change(proto)
    return proto


def sparse(values: list[float], indices: Any, *dims: int) -> onnx.ModelProto:
    """A model that adds a sparse constant s to its input."""
    proto = model([N("Add", ["x", "s"], ["y"])])
    tensor = helper.make_sparse_tensor(constant("s", np.array(values, np.float32)), constant("", np.asarray(indices)), dims)
    proto.graph.sparse_initializer.append(tensor)
    return proto


def with_default(shape: list[int], kind: int, ir_version: int) -> onnx.ModelProto:
    """A model whose initializer w is an input too, of this shape and type."""
    proto = model(MATMUL, [weights(8, 8)], [value("x", [1, 4, 8, 8]), value("w", shape, kind)])
    proto.ir_version = ir_version
    return proto


ADD_S = [N("Add", ["x", "s"], ["y"])]
BRANCH = helper.make_graph([N("Relu", ["nope"], ["t"], name="inside")], "then", [], [value("t", None)])
CONDITION = constant("c", np.array(True))
FILL = np.array([1, 1, 1e5, 1e5], np.float32)

BAD: dict[str, Bad] = {
    # ModelParseError: the bytes are no model
    "empty": Bad(ModelParseError, ("empty",), b""),
    "truncated": Bad(ModelParseError, ("truncated",), RELU.SerializeToString()[:-7]),
    "random bytes": Bad(ModelParseError, (), np.random.default_rng(7).bytes(5000)),
    "web page": Bad(ModelParseError, ("web page",), b"<html>" * 99),
    "pointer of Git LFS": Bad(ModelParseError, ("git lfs pull",), b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
    "another message": Bad(ModelParseError, ("no graph",), weights(2).SerializeToString()[:2]),
    "over 2 GiB in one file": Bad(ModelParseError, ("2 GiB", "external data"), over_2_gib),
    "sub-graphs nested 120 deep": Bad(ModelParseError, ("nest",), nested(120)),
    "sub-graphs nested 5000 deep": Bad(ModelParseError, ("nest",), nested(5000)),
    "node name not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"node7")),
    "operator not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"Conv")),
    "tensor name not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"output7")),
    "input name not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"input7")),
    "weight name not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"weight7")),
    "symbol not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"symbol7")),
    "graph name not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"graph7")),
    "attribute name not UTF-8": Bad(ModelParseError, ("UTF-8",), renamed(named(), b"strides")),
    "a folder": Bad(ModelParseError, ("cannot read",), special(Path.mkdir)),
    "a pipe": Bad(ModelParseError, ("cannot read",), special(os.mkfifo)),
    "a device": Bad(ModelParseError, ("cannot read",), special(lambda path: path.symlink_to("/dev/zero"))),
    # ModelInvalidError: ONNX's rules
    "cycle": Bad(
        ModelInvalidError, ("'b'", "cycle"), model([N("Add", ["x", "b"], ["a"]), N("Relu", ["a"], ["b"]), N("Relu", ["b"], ["y"])])
    ),
    "cycle of a node with itself": Bad(ModelInvalidError, ("own7", "cycle"), model([N("Add", ["x", "y"], ["y"], name="own7")])),
    "cycle through a branch": Bad(
        ModelInvalidError,
        ("choose", "cycle", "Relu → 'nope'"),
        model([N("If", ["c"], ["y"], name="choose", then_branch=BRANCH, else_branch=BRANCH), N("Relu", ["y"], ["nope"])], [CONDITION]),
    ),
    "undefined input": Bad(ModelInvalidError, ("'nope'", "sum"), model([N("Add", ["x", "nope"], ["y"], name="sum")])),
    "undefined input in a branch": Bad(
        ModelInvalidError,
        ("'nope'", "choose"),
        model([N("If", ["c"], ["y"], name="choose", then_branch=BRANCH, else_branch=BRANCH)], [CONDITION]),
    ),
    "undefined input in a function": Bad(
        ModelInvalidError, ("'nope'", "own.F", "inner"), calling(function("F", N("Relu", ["nope"], ["b"], name="inner")))
    ),
    "undefined output of a function": Bad(ModelInvalidError, ("'b'", "own.F"), calling(function("F", N("Relu", ["a"], ["c"])))),
    "output twice": Bad(
        ModelInvalidError, ("'y'", "Relu", "Abs", "another name"), model([N("Relu", ["x"], ["y"]), N("Abs", ["x"], ["y"])])
    ),
    "output that is an input": Bad(
        ModelInvalidError, ("'x'", "an input", "again"), model([N("Relu", ["x"], ["x"], name="again"), N("Abs", ["x"], ["y"])])
    ),
    "output that is an initializer": Bad(
        ModelInvalidError, ("'w'", "an initializer"), model([N("Relu", ["x"], ["w"]), N("Abs", ["w"], ["y"])], [weights(8, 8)])
    ),
    "output missing": Bad(ModelInvalidError, ("'y'",), model([N("Relu", ["x"], ["z"])])),
    "output without a name": Bad(
        ModelInvalidError, ("output 1", "no name"), model([N("Relu", ["x"], ["y"])], outputs=[value("y", None), value("", None)])
    ),
    "input without a name": Bad(
        ModelInvalidError, ("input 1", "no name"), model([N("Relu", ["x"], ["y"])], inputs=[value("x", [4]), value("", [4])])
    ),
    "input without a type": Bad(
        ModelInvalidError, ("'x'", "no type"), model([N("Relu", ["x"], ["y"])], inputs=[onnx.ValueInfoProto(name="x")])
    ),
    "input twice": Bad(
        ModelInvalidError, ("'x'", "two inputs"), model([N("Relu", ["x"], ["y"])], inputs=[value("x", [4]), value("x", [4])])
    ),
    "no IR version": Bad(
        ModelInvalidError, ("IR version",), changed(model([N("Relu", ["x"], ["y"])]), lambda m: m.ClearField("ir_version"))
    ),
    "two versions of a domain": Bad(
        ModelInvalidError,
        ("17", "13", "'ai.onnx'"),
        changed(model([N("Relu", ["x"], ["y"])]), lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 13))),
    ),
    "initializer twice": Bad(
        ModelInvalidError, ("'w'", "twice"), model(MATMUL, [weights(8, 8), constant("w", np.zeros((8, 9), np.float32))])
    ),
    "default of another shape": Bad(ModelInvalidError, ("'w'", "[8, 9]", "[8, 8]"), with_default([8, 9], TensorProto.FLOAT, 8)),
    "default of another rank": Bad(ModelInvalidError, ("'w'", "[8]", "[8, 8]"), with_default([8], TensorProto.FLOAT, 3)),
    "default of another type": Bad(ModelInvalidError, ("'w'", "DOUBLE", "FLOAT"), with_default([8, 8], TensorProto.DOUBLE, 8)),
    "function twice": Bad(
        ModelInvalidError, ("own.F", "twice"), calling(function("F", N("Relu", ["a"], ["b"])), function("F", N("Abs", ["a"], ["b"])))
    ),
    "function that calls itself": Bad(ModelInvalidError, ("own.F → own.F",), calling(function("F", N("F", ["a"], ["b"], domain="own")))),
    "functions that call each other": Bad(
        ModelInvalidError,
        ("own.F → own.G → own.F",),
        calling(function("F", N("G", ["a"], ["b"], domain="own")), function("G", N("F", ["a"], ["b"], domain="own"))),
    ),
    "call with too many inputs": Bad(
        ModelInvalidError, ("call", "2 values", "own.F"), calling(function("F", N("Relu", ["a"], ["b"])), gives=2)
    ),
    "sparse index outside": Bad(ModelInvalidError, ("'s'", "outside"), sparse([1, 2], [1, 8], 8)),
    "sparse index negative": Bad(ModelInvalidError, ("'s'", "outside"), sparse([1, 2], [[1], [-1]], 8)),
    "sparse index twice": Bad(ModelInvalidError, ("'s'", "same index"), sparse([1, 2], [[0, 3], [0, 3]], 8, 8)),
    "sparse indices too few": Bad(ModelInvalidError, ("'s'", "2 values"), sparse([1, 2], [1], 8)),
    "sparse indices of another rank": Bad(ModelInvalidError, ("'s'", "[2, 1]"), sparse([1, 2], [[1], [2]], 8, 8)),
    "sparse indices that are no integers": Bad(ModelInvalidError, ("'s'", "float64"), sparse([1, 2], [1.0, 2.0], 8)),
    "sparse shape negative": Bad(ModelInvalidError, ("'s'", "negative"), sparse([1, 2], [1, 2], -8)),
    "sparse constant": Bad(
        ModelInvalidError,
        ("hold", "'s'", "outside"),
        model([N("Constant", [], ["s"], name="hold", sparse_value=sparse([1], [9], 8).graph.sparse_initializer[0]), *ADD_S]),
    ),
    "declared as another type": Bad(
        ModelInvalidError,
        ("Relu → 'y'", "float", "double"),
        model([N("Relu", ["x"], ["y"])], outputs=[value("y", None, TensorProto.DOUBLE)]),
    ),
    "too many inputs": Bad(ModelInvalidError, ("Relu → 'y'", "input size 2"), model([N("Relu", ["x", "x"], ["y"])])),
    "unknown attribute": Bad(ModelInvalidError, ("rectify", "slope"), model([N("Relu", ["x"], ["y"], name="rectify", slope=1)])),
    "negative input": Bad(ModelInvalidError, ("'x'",), model([N("Relu", ["x"], ["y"])], inputs=[value("x", [-5, 4])])),
    "negative dimension": Bad(ModelInvalidError, ("'w'",), model(MATMUL, [altered(weights(8, 8), set_dims(-8, -8))])),
    "product over int64": Bad(ModelInvalidError, ("'w'",), model(MATMUL, [altered(weights(8, 8), set_dims(2**40, 2**40))])),
    "raw data short": Bad(ModelInvalidError, ("'w'", "252"), model(MATMUL, [altered(weights(8, 8), set_raw(252))])),
    "raw data long": Bad(ModelInvalidError, ("'w'",), model(MATMUL, [altered(weights(8, 80), set_raw(8 * 80 * 4 + 4))])),
    "stride 0": Bad(ModelInvalidError, ("conv7", "strides", "'x'"), conv(6, 4, 3, 3, strides=[0, 1])),
    "group 0": Bad(ModelInvalidError, ("conv7", "group", "'x'"), conv(6, 4, 3, 3, group=0)),
    "group no divisor": Bad(ModelInvalidError, ("conv7", "'w'"), conv(6, 4, 3, 3, group=3)),
    "negative pads": Bad(ModelInvalidError, ("conv7", "pads", "'x'"), conv(6, 4, 3, 3, pads=[-1, 0, 0, 0])),
    "huge pads": Bad(ModelInvalidError, ("conv7", "pads", "'x'"), conv(6, 4, 3, 3, pads=[2**40, 0, 0, 0])),
    "rounding neither up nor down": Bad(
        ModelInvalidError,
        ("pool7", "ceil_mode", "'x'"),
        model([N("AveragePool", ["x"], ["y"], name="pool7", kernel_shape=[3, 3], ceil_mode=2)]),
    ),
    "kernel larger than the padded input": Bad(ModelInvalidError, ("conv7", "'y'"), conv(6, 4, 30, 3)),
    "bias of other channels": Bad(
        ModelInvalidError,
        ("conv7", "'b'", "6 channels"),
        model([N("Conv", ["x", "w", "b"], ["y"], name="conv7")], [weights(6, 4, 3, 3), constant("b", np.ones(9, np.float32))]),
    ),
    "bias of rank 2": Bad(
        ModelInvalidError,
        ("conv7", "'b'", "6 channels"),
        model(
            [N("ConvTranspose", ["x", "w", "b"], ["y"], name="conv7")], [weights(4, 6, 3, 3), constant("b", np.ones((6, 6), np.float32))]
        ),
    ),
    "window over no channels": Bad(ModelInvalidError, ("lrn7", "size = 0", "'x'"), model([N("LRN", ["x"], ["y"], name="lrn7", size=0)])),
    "axis beyond 32 bits": Bad(
        ModelInvalidError,
        ("norm7", "axis", "'x'"),
        model([N("LayerNormalization", ["x", "w"], ["y"], name="norm7", axis=2**31)], [weights(8)]),
    ),
    "output that attention does not have": Bad(
        ModelInvalidError,
        ("attend7", "qk_matmul_output_mode = 4"),
        model([N("Attention", ["x", "x", "x"], ["y", "", "", "z"], name="attend7", qk_matmul_output_mode=4)], opset=23),
    ),
    "windows that fit nowhere": Bad(
        ModelInvalidError,
        ("pool7", "axis 3", "'x'"),
        model([N("AveragePool", ["x"], ["y"], name="pool7", kernel_shape=[3, 14], pads=[0, 1, 0, 1], strides=[3, 3], ceil_mode=1)]),
    ),
    "samples without end": Bad(
        ModelInvalidError,
        ("align7", "sampling_ratio", "'x'"),
        model(
            [N("RoiAlign", ["x", "rois", "which"], ["y"], name="align7", sampling_ratio=2**31)],
            [constant("rois", np.ones((1, 4), np.float32)), constant("which", [0])],
        ),
    ),
    "n-grams outside their pool": Bad(
        ModelInvalidError,
        ("grams7", "ngram_counts [0, 4, 99]", "pool of 6"),
        model(
            [
                N(
                    "TfIdfVectorizer",
                    ["x"],
                    ["y"],
                    name="grams7",
                    mode="TF",
                    min_gram_length=2,
                    max_gram_length=2,
                    max_skip_count=0,
                    ngram_counts=[0, 4, 99],
                    ngram_indexes=[0, 1, 2, 3],
                    pool_int64s=[2, 3, 5, 4, 5, 6],
                )
            ],
            inputs=[value("x", [12], TensorProto.INT64)],
        ),
    ),
    "attribute of wrong type": Bad(ModelInvalidError, ("conv7", "strides"), conv(6, 4, 3, 3, strides=1.5)),
    "reshape to a wrong size": Bad(
        ModelInvalidError, ("'x'", "fold"), model([N("Reshape", ["x", "s"], ["y"], name="fold")], [constant("s", [7, 9])])
    ),
    "permutation [0, 0]": Bad(ModelInvalidError, ("'x'", "turn"), model([N("Transpose", ["x"], ["y"], name="turn", perm=[0, 0, 1, 2])])),
    "axis out of range": Bad(ModelInvalidError, ("axis", "soft"), model([N("Softmax", ["x"], ["y"], name="soft", axis=9)])),
    "constant index": Bad(ModelInvalidError, ("'i'", "pick"), model([N("Gather", ["x", "i"], ["y"], name="pick")], [constant("i", [77])])),
    "no inputs": Bad(ModelInvalidError, ("Relu",), model([N("Relu", [], ["y"])])),
    "range in steps of 0": Bad(ModelInvalidError, ("count", "steps of 0"), range_of(0, 5, 0)),
    "range without end": Bad(ModelInvalidError, ("count", "inf"), range_of(0, np.inf, 1)),
    # UnsupportedModelError
    "unknown operators": Bad(
        UnsupportedModelError,
        ("first", "Foo", "second", "com.x.Bar"),
        model([N("Foo", ["x"], ["a"], name="first"), N("Bar", ["a"], ["b"], domain="com.x", name="second"), N("Relu", ["b"], ["y"])]),
    ),
    "opset too new": Bad(UnsupportedModelError, ("999", "opset"), model([N("Relu", ["x"], ["y"])], opset=999)),
    "type of a weight": Bad(UnsupportedModelError, ("'w'", "99"), model(MATMUL, [altered(weights(8, 8), set_type(99))])),
    "type of an input": Bad(UnsupportedModelError, ("'x'", "99"), model([N("Relu", ["x"], ["y"])], inputs=[value("x", [1], 99)])),
    "opset of a function too new": Bad(
        UnsupportedModelError,
        ("999", "opset"),
        changed(calling(function("F", N("Relu", ["a"], ["b"]))), lambda m: setattr(m.functions[0].opset_import[0], "version", 999)),
    ),
    "IR version too new": Bad(
        UnsupportedModelError, ("999", "IR"), changed(model([N("Relu", ["x"], ["y"])]), lambda m: setattr(m, "ir_version", 999))
    ),
    "domain that nobody knows": Bad(
        UnsupportedModelError, ("com.x.Foo", "'com.x'"), model([N("Foo", ["x"], ["y"], domain="com.x", name="first")])
    ),
    # ResourceLimitError: needed and limit
    "sparse": Bad(ResourceLimitError, ("'s'", "elements"), sparse([1, 2], [1, 2], 2**20, 2**20)),
    "million nodes": Bad(ResourceLimitError, ("200000", "nodes"), chain_of(10**6)),
    "tile": Bad(
        TooLarge,
        ("spread", "'y'", "bytes", "limit"),
        model([N("Tile", ["x", "s"], ["y"], name="spread")], [constant("s", [10**4] * 4)]),
    ),
    "expand": Bad(
        TooLarge, ("grow", "'y'"), model([N("Expand", ["x", "s"], ["y"], name="grow")], [constant("s", [10**9, 10**3, 4, 8, 8])])
    ),
    "constant": Bad(TooLarge, ("'y'",), model([N("ConstantOfShape", ["s"], ["y"])], [constant("s", [10**7, 10**7])])),
    "resize": Bad(TooLarge, ("'y'", "scale"), model([N("Resize", ["x", "", "s"], ["y"], name="scale")], [constant("s", FILL)])),
    # ExternalDataError: names the tensor and the file
    "../": Bad(ExternalDataError, ("'w'", "../w.bin"), beside(location="../w.bin")),
    "../ inside": Bad(ExternalDataError, ("'w'",), beside(location="sub/../../w.bin")),
    "absolute path": Bad(ExternalDataError, ("'w'", "/etc/hostname"), beside(location="/etc/hostname")),
    "symbolic link": Bad(ExternalDataError, ("'w'", "link"), beside(location="link")),
    "symbolic link to a symbolic link": Bad(ExternalDataError, ("'w'", "again", "out of"), beside(location="again")),
    "symbolic link to nothing": Bad(ExternalDataError, ("'w'", "nowhere"), beside(location="nowhere")),
    "symbolic link to itself": Bad(ExternalDataError, ("'w'", "round"), beside(location="round")),
    "symbolic link to a device": Bad(ExternalDataError, ("'w'", "zero", "regular file"), beside(location="zero")),
    "symbolic link to a folder": Bad(ExternalDataError, ("'w'", "below", "regular file"), beside(location="below")),
    "linked parent": Bad(ExternalDataError, ("'w'", "linked/w.bin", "out of"), beside(location="linked/w.bin")),
    "out of a linked folder": Bad(ExternalDataError, ("'w'", "linked/../w.bin"), beside(location="linked/../w.bin")),
    "out and in again": Bad(ExternalDataError, ("'w'", "relative path"), beside(location="../home/w.bin")),
    "the folder itself": Bad(ExternalDataError, ("'w'", "relative path"), beside(location="sub/..")),
    "data in a pipe": Bad(ExternalDataError, ("'w'", "fifo"), beside(location="fifo")),
    "data in a device": Bad(ExternalDataError, ("'w'", "/dev/zero"), beside(location="/dev/zero")),
    "data in a folder": Bad(ExternalDataError, ("'w'", "sub"), beside(location="sub")),
    "offset past the end": Bad(ExternalDataError, ("'w'", "1000"), beside(location="w.bin", offset="1000")),
    "too little behind the offset": Bad(ExternalDataError, ("'w'", "192"), beside(location="w.bin", offset="64")),
    "negative offset": Bad(ExternalDataError, ("'w'", "-4"), beside(location="w.bin", offset="-4")),
    "length is not the shape's": Bad(ExternalDataError, ("'w'", "128"), beside(location="w.bin", length="128")),
    "length beyond 64 bits": Bad(ExternalDataError, ("'w'",), beside(location="w.bin", length="9" * 20)),
    "offset and length wrap": Bad(ExternalDataError, ("'w'",), beside(location="w.bin", offset="9" * 18, length="9" * 18)),
    "file too short": Bad(ExternalDataError, ("'w'", "short.bin"), beside(location="short.bin")),
    "file missing": Bad(ExternalDataError, ("'w'", "missing.bin"), beside(location="missing.bin")),
    "no location": Bad(ExternalDataError, ("'w'",), beside(location="")),
    "location with a NUL": Bad(ExternalDataError, ("'w'",), beside(location="w.bin\0")),
}
"""An unknown dtype and an opset of the future are UnsupportedModelError; a dimension that is still unbound shows when plans are made, and
shared memory that is full when a runtime reserves it: `test_frontend.test_unbound_input`, `tests/api/hostile/test_bad_inputs.py`."""


def given(case: Bad, folder: Path) -> Any:
    """What to hand to a loader: a path or bytes."""
    if callable(case.source):
        return case.source(folder)
    return case.source if isinstance(case.source, bytes) else case.source.SerializeToString()
