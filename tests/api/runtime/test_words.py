"""Models that look strings up and name classes, beside onnxruntime: no worker sees a string where nothing but that is done with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from asking import in_every_way
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp import errors
from aspen_mp.planner import api

N = helper.make_node
F, I64, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
ML = "ai.onnx.ml"
WORDS = ["x", "y", "Zürich", "", "a longer word than others", "x ", "日本", "0", "nan"]


def info(name: str, kind: int, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def texts(name: str, values: list[str]) -> TensorProto:
    return helper.make_tensor(name, S, [len(values)], [v.encode() for v in values])


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any] | None = None) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid(ML, 3)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, constants or []), opset_imports=opsets, ir_version=9)


def encoder(rng: np.random.Generator, x: str, y: str, strings: bool = False) -> tuple[list[Any], int, bool]:
    """A node that looks strings up, the type of what it gives, and whether it refuses unknown ones."""
    known = [str(w) for w in rng.choice(WORDS, int(rng.integers(1, 7)))]  # some twice
    kind = "strings" if strings else str(rng.choice(["hot", "strict", "floats", "ints", "mapper"]))
    if kind in ("hot", "strict"):
        known = list(dict.fromkeys(known))
        return [N("OneHotEncoder", [x], [y], domain=ML, cats_strings=known, zeros=int(kind == "hot"))], F, kind == "strict"
    if kind == "mapper":
        numbers = rng.permutation(50)[: len(known)].tolist()
        known = list(dict.fromkeys(known))
        return (
            [N("CategoryMapper", [x], [y], domain=ML, cats_strings=known, cats_int64s=numbers[: len(known)], default_int64=-7)],
            I64,
            False,
        )
    values: dict[str, Any] = {
        "floats": {"values_floats": rng.standard_normal(len(known)).astype(np.float32).tolist(), "default_float": 0.5},
        "ints": {"values_int64s": rng.integers(-9, 9, len(known)).tolist()},
        "strings": {"values_strings": [str(w) for w in rng.choice(WORDS, len(known))], "default_string": "none of these"},
    }[kind]
    return [N("LabelEncoder", [x], [y], domain=ML, keys_strings=known, **values)], {"floats": F, "ints": I64, "strings": S}[kind], False


def drawn(seed: int) -> tuple[onnx.ModelProto, int, bool]:
    """Columns of strings that are moved, looked up, compared and given back; how many columns; whether unknown words are refused."""
    rng = np.random.default_rng(seed)
    columns = int(rng.integers(1, 4))
    inputs = [info(f"c{k}", S, ["n", 1]) for k in range(columns)]
    nodes, constants, x = [], [], "c0"
    if columns > 1:
        nodes.append(N("Concat", [f"c{k}" for k in range(columns)], ["all"], axis=1))
        x = "all"
    if seed % 4 == 1:
        constants.append(numpy_helper.from_array(np.array([0, columns - 1]), "which"))
        nodes.append(N("ArrayFeatureExtractor", [x, "which"], ["picked"], domain=ML))
        x = "picked"
    elif seed % 4 == 2:
        constants.append(numpy_helper.from_array(np.array([-1]), "flat"))
        nodes.append(N("Reshape", [x, "flat"], ["row"]))
        x = "row"
    outputs, refuses = [], False
    if seed % 5 == 1:  # as an imputer is written: a word in place of others
        constants.append(numpy_helper.from_array(np.array([0]), "zero"))
        word = str(rng.choice(WORDS))
        nodes += [
            N("LabelEncoder", ["zero"], ["word"], domain=ML, keys_int64s=[0], values_strings=[word], default_string=word),
            N("LabelEncoder", [x], ["odd"], domain=ML, keys_strings=[str(rng.choice(WORDS))], values_int64s=[1], default_int64=0),
            N("Cast", ["odd"], ["missing"], to=TensorProto.BOOL),
            N("Where", ["missing", "word", x], ["filled"]),
        ]
        x = "filled"
    if seed % 3 == 0:  # strings of strings, which may come out or be looked up once more
        more, _, _ = encoder(rng, x, "again", strings=True)
        nodes += more
        if seed % 2:
            outputs.append(info("again", S))
        x = "again" if seed % 2 == 0 else x
    for k in range(int(rng.integers(1, 3))):
        more, kind, strict = encoder(rng, x, f"y{k}")
        nodes += more
        outputs.append(info(f"y{k}", kind))
        refuses |= strict
    if seed % 5 == 0:
        constants.append(texts("one", [str(rng.choice(WORDS))]))
        nodes += [N("Equal", [x, "one"], ["same"]), N("Not", ["same"], ["other"])]
        outputs.append(info("other", TensorProto.BOOL))
    return model(nodes, inputs, outputs, constants), columns, refuses


def same(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    if want.dtype.kind == "O":
        assert got.tolist() == want.tolist()
    else:
        np.testing.assert_array_equal(got, want)


def test_shapes_that_are_known_before(shared_runtime: aspen_mp.Runtime) -> None:
    """Strings that are looked up, strings that stay strings, numbers beside them, and shapes that are wrong or half known."""
    looked_up = N("LabelEncoder", ["s"], ["y"], domain=ML, keys_strings=["x"], values_int64s=[1], default_int64=0)
    for node, kind in ((looked_up, I64), (N("StringNormalizer", ["s"], ["y"], case_change_action="UPPER"), S)):
        proto = model([node, N("Neg", ["n"], ["m"])], [info("s", S, ["k"]), info("n", F, ["l"])], [info("y", kind), info("m", F)])
        loaded = shared_runtime.load(proto, input_shapes={"s": (2,), "n": (3,)})
        results = loaded.run({"s": np.array(["x", "y"], object), "n": np.ones(3, np.float32)})
        assert results["y"].tolist() == ([1, 0] if kind == I64 else ["X", "Y"])
        assert (results["m"] == -1).all()
        loaded.unload()
        with pytest.raises(errors.RequestError, match=r"input_shapes does not say all dimensions of n\."):
            shared_runtime.load(proto, input_shapes={"s": (2,)})


@pytest.mark.parametrize("seed", range(24))
def test_drawn_columns(shared_runtime: aspen_mp.Runtime, seed: int) -> None:
    proto, columns, refuses = drawn(seed)
    assert all(i.keys for i in api.inspect(proto).inputs)
    theirs, loaded = onnxruntime.InferenceSession(proto.SerializeToString()), shared_runtime.load(proto)
    rng = np.random.default_rng(seed)
    answered = 0
    for rows in (1, 9, 9):
        feeds = {f"c{k}": rng.choice([*WORDS, "never met"], (rows, 1)).astype(object) for k in range(columns)}
        try:
            want = theirs.run(None, feeds)
        except Exception:  # a word of no category
            assert refuses
            with pytest.raises(errors.RequestError):
                loaded.run(feeds)
            continue
        answered += 1
        others = {name: x.astype(str) for name, x in feeds.items()}
        for results in (*in_every_way(loaded, feeds), loaded.run(others)):
            for output, value in zip(proto.graph.output, want, strict=True):
                same(results[output.name], value)
    assert answered or refuses
    loaded.unload()


def test_many_words(shared_runtime: aspen_mp.Runtime) -> None:
    """More categories than a table has a row for."""
    words = [f"word {k}" for k in range(2000)]
    for zeros in (0, 1):
        proto = model(
            [N("OneHotEncoder", ["c"], ["y"], "hot", domain=ML, cats_strings=words, zeros=zeros)], [info("c", S, ["n"])], [info("y", F)]
        )
        loaded = shared_runtime.load(proto)
        feeds = {"c": np.array([words[7], words[1999], words[0]], object)}
        same(loaded.run(feeds)["y"], onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)[0])
        unknown = {"c": np.array(["word 7", "no word"], object)}
        if zeros:
            assert loaded.run(unknown)["y"].sum(1).tolist() == [1, 0]
        else:
            with pytest.raises(errors.RequestError, match="hot, OneHotEncoder with zeros=0"):
                loaded.run(unknown)
        loaded.unload()


def test_items_that_are_no_str(shared_runtime: aspen_mp.Runtime) -> None:
    proto = model(
        [N("LabelEncoder", ["c"], ["y"], domain=ML, keys_strings=["1", "None", "é"], values_int64s=[5, 6, 7])],
        [info("c", S, ["n"])],
        [info("y", I64)],
    )
    loaded = shared_runtime.load(proto)
    for items, want in (([1, None, "é"], [5, 6, 7]), (["é".encode(), b"\xff", "x"], [7, -1, -1])):
        assert loaded.run({"c": np.array(items, object)})["y"].tolist() == want
    assert loaded.run({"c": np.array(["1", "x"], object)[::-1]})["y"].tolist() == [-1, 5]
    with pytest.raises(errors.RequestError, match="array of strings holds"):
        loaded.run({"c": [object()]})
    with pytest.raises(errors.RequestError, match="shape"):
        loaded.run({"c": np.array([["1"]], object)})
    loaded.prepare({"c": (4,)})
    loaded.unload()


def test_names_picked_from_a_list(shared_runtime: aspen_mp.Runtime) -> None:
    """As converters write classifiers without an operator of their own."""
    nodes = [
        N("ArgMax", ["x"], ["k"], axis=1, keepdims=0),
        N("ArrayFeatureExtractor", ["names", "k"], ["row"], domain=ML),
        N("Reshape", ["row", "flat"], ["label"]),
    ]
    constants = [texts("names", ["no", "yes", "may be"]), numpy_helper.from_array(np.array([-1]), "flat")]
    proto = model(nodes, [info("x", F, ["n", 3])], [info("label", S, ["n"])], constants)
    loaded = shared_runtime.load(proto)
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    for _ in range(3):
        same(loaded.run({"x": x})["label"], want)
    loaded.unload()


LOOKED_UP = [N("LabelEncoder", ["c"], ["y"], domain=ML, keys_strings=["a", "b"], values_int64s=[1, 2])]
OTHERS = {
    "they come out again": (LOOKED_UP, [info("y", I64), info("c", S)]),
    "something else reads them": (
        [*LOOKED_UP, N("StringNormalizer", ["c"], ["z"], case_change_action="UPPER", locale="C")],
        [info("y", I64), info("z", S)],
    ),
    "others meet them": (
        [
            N("StringNormalizer", ["c"], ["u"], locale="C"),
            N("Concat", ["c", "u"], ["d"], axis=0),
            N("LabelEncoder", ["d"], ["y"], domain=ML, keys_strings=["a"], values_int64s=[1]),
        ],
        [info("y", I64)],
    ),
    "nobody knows a word": ([N("Equal", ["c", "c"], ["y"])], [info("y", TensorProto.BOOL)]),
}


@pytest.mark.parametrize("why", OTHERS)
def test_strings_that_stay_strings(shared_runtime: aspen_mp.Runtime, why: str) -> None:
    nodes, outputs = OTHERS[why]
    proto = model(nodes, [info("c", S, ["n"])], outputs)
    assert not any(v.keys for v in (*api.inspect(proto).inputs, *api.inspect(proto).outputs))
    loaded = shared_runtime.load(proto)
    feeds = {"c": np.array(["b", "q", "a"], object)}
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for output, value in zip(outputs, want, strict=True):
        same(loaded.run(feeds)[output.name], value)
    loaded.unload()


def test_no_worker_sees_a_string() -> None:
    """One plan without Python in it, and another for whoever plans for strings."""
    proto, columns, _ = drawn(4)
    opened = api.load(proto)
    for dtype, shape in ((np.dtype(np.int64), (5, 1)), (np.dtype(object), (256,))):
        stage = api.plan_stage(opened, [{f"c{k}": api.Binding(dtype, shape) for k in range(columns)}], workers=2)
        assert (stage.opaque == []) == (dtype == np.int64)
        assert stage.kind == ("static" if dtype == np.int64 else "dynamic")
