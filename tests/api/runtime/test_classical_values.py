"""Pipelines of classical models as users run them: maps that are fed, sequences of maps and labels that come back, and broken ensembles."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from asking import in_every_way
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp import errors

N = helper.make_node
F, D, I64, S = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
ML = "ai.onnx.ml"
X = np.random.default_rng(3).standard_normal((7, 2)).astype(np.float32)


def info(name: str, kind: int, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def map_type(key: int, value: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any] | None = None) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, constants or []), opset_imports=opsets, ir_version=8)


def both(runtime: aspen_mp.Runtime, proto: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    loaded = runtime.load(proto)
    results = loaded.run(feeds)
    got = [results[o.name] for o in proto.graph.output]
    loaded.unload()
    return got, onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)


def classifier(strings: bool, zipped: bool) -> onnx.ModelProto:
    """Scaled columns, a linear model of three classes; probabilities as maps where `zipped`, as converters write it."""
    named = {"classlabels_strings": ["no", "yes", "maybe"]} if strings else {"classlabels_ints": [3, 5, 9]}
    nodes = [
        N("Scaler", ["x"], ["scaled"], domain=ML, offset=[0.5, -0.25], scale=[2.0, 0.5]),
        N(
            "LinearClassifier",
            ["scaled"],
            ["label", "p"],
            domain=ML,
            coefficients=[1.0, -2.0, 0.5, 0.25, -1.0, 3.0],
            intercepts=[0.1, -0.2, 0.3],
            post_transform="SOFTMAX",
            **named,
        ),
    ]
    outputs = [info("label", S if strings else I64, ["n"]), info("p", F, ["n", 3])]
    if zipped:
        keys = {"classlabels_strings": named["classlabels_strings"]} if strings else {"classlabels_int64s": [3, 5, 9]}
        nodes.append(N("ZipMap", ["p"], ["maps"], domain=ML, **keys))
        outputs[1] = helper.make_value_info("maps", helper.make_sequence_type_proto(map_type(S if strings else I64, F)))
    return model(nodes, [info("x", F, ["n", 2])], outputs)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("strings", [False, True])
def test_labels_and_probabilities(shared_runtime: aspen_mp.Runtime, strings: bool, zipped: bool) -> None:
    (label, p), (want_label, want_p) = both(shared_runtime, classifier(strings, zipped), {"x": X})
    assert label.tolist() == want_label.tolist()
    if not zipped:
        np.testing.assert_allclose(p, want_p, rtol=1e-5)
        return
    assert isinstance(p, list)
    assert all(type(row) is dict and all(type(v) is float for v in row.values()) for row in p)
    assert [list(row) for row in p] == [list(row) for row in want_p]
    np.testing.assert_allclose([list(row.values()) for row in p], [list(row.values()) for row in want_p], rtol=1e-5)


def test_thousands_of_maps(shared_runtime: aspen_mp.Runtime) -> None:
    """More than the plan has guessed that they need."""
    x = np.random.default_rng(4).standard_normal((20_000, 2)).astype(np.float32)
    (_, got), (_, want) = both(shared_runtime, classifier(strings=True, zipped=True), {"x": x})
    assert len(got) == len(want)
    np.testing.assert_allclose([list(row.values()) for row in got], [list(row.values()) for row in want], rtol=1e-4, atol=1e-6)


def drawn_maps(seed: int) -> tuple[onnx.ModelProto, int]:
    """Scores, straight from the caller or from nodes (behind data, every third time), as maps whose keys have no order or are there
    twice; and the number of columns."""
    rng = np.random.default_rng(seed)
    columns, strings = int(rng.integers(1, 6)), bool(rng.integers(2))
    numbers = rng.integers(-9, 9, columns).tolist()
    keys = {"classlabels_strings": [f"c{k}é" for k in numbers]} if strings else {"classlabels_int64s": numbers}
    nodes, scores = [], "x"
    if seed % 3 == 1:
        nodes, scores = [N("Softmax", ["x"], ["s"], axis=1), N("Mul", ["s", "x"], ["p"])], "p"
    elif seed % 3 == 2:  # which rows there are, data decide
        nodes = [N("Greater", ["x0", "zero"], ["c"]), N("Compress", ["x", "c"], ["p"], axis=0), N("Relu", ["p"], ["q"])]
        nodes.insert(0, N("ReduceSum", ["x", "one"], ["x0"], keepdims=0))
        scores = "q"
    nodes.append(N("ZipMap", [scores], ["maps"], domain=ML, **keys))
    outputs = [helper.make_value_info("maps", helper.make_sequence_type_proto(map_type(S if strings else I64, F)))]
    if seed % 2 and scores != "x":
        outputs.append(info(scores, F, [None, columns]))
    constants = [helper.make_tensor("zero", F, [], [0.0]), helper.make_tensor("one", I64, [1], [1])]
    return model(nodes, [info("x", F, ["n", columns])], outputs, constants), columns


@pytest.mark.parametrize("seed", range(12))
def test_maps_of_any_keys(shared_runtime: aspen_mp.Runtime, seed: int) -> None:
    """Each request of the same shape goes a shorter way than the one before: all give the same."""
    proto, columns = drawn_maps(seed)
    theirs, loaded = onnxruntime.InferenceSession(proto.SerializeToString()), shared_runtime.load(proto)
    for rows in (1, 6):
        x = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
        want = theirs.run(["maps"], {"x": x})[0]
        answers = [loaded.run({"x": x})["maps"] for _ in range(3)]
        answers += [loaded.submit({"x": x}).result()["maps"], loaded.run({"x": x}, ["maps"])["maps"], *(r["maps"] for r in loaded.map([x]))]
        for got in answers:
            assert type(got) is list
            assert [list(row) for row in got] == [list(row) for row in want]
            np.testing.assert_allclose([list(row.values()) for row in got], [list(row.values()) for row in want], rtol=1e-5, atol=1e-6)
    if seed % 3 != 2:
        assert "maps" not in loaded.input_buffers({"x": (3, columns)}).outputs
    loaded.unload()


@pytest.mark.parametrize("labels", [[1, 2], [1, 2, 3, 4]])
def test_maps_of_other_columns_than_keys_are_refused(shared_runtime: aspen_mp.Runtime, labels: list[int]) -> None:
    nodes = [N("Relu", ["x"], ["p"]), N("ZipMap", ["p"], ["maps"], "zip", domain=ML, classlabels_int64s=labels)]
    maps = helper.make_value_info("maps", helper.make_sequence_type_proto(map_type(I64, F)))
    loaded = shared_runtime.load(model(nodes, [info("x", F, ["n", "m"])], [maps]))
    with pytest.raises(errors.RequestError, match=rf"zip \(ZipMap\).*{len(labels)} class labels"):
        loaded.run({"x": np.zeros((2, 3), np.float32)})
    assert len(loaded.run({"x": np.zeros((2, len(labels)), np.float32)})["maps"]) == 2
    loaded.unload()


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "dtype"),
    [(S, F, np.float32), (S, D, np.float64), (S, I64, np.int64), (I64, F, np.float32), (I64, D, np.float64), (I64, S, object)],
)
def test_a_map_becomes_a_row(shared_runtime: aspen_mp.Runtime, key: int, value: int, dtype: Any, behind: bool) -> None:
    """In the type that the model declares, also where other nodes read it; Python's numbers and numpy's are alike."""
    keys: list[Any] = ["a", "c"] if key == S else [1, 3]
    vocabulary = {"string_vocabulary": ["c", "b", "a"]} if key == S else {"int64_vocabulary": [3, 2, 1]}
    nodes = [N("DictVectorizer", ["d"], ["v" if behind else "y"], domain=ML, **vocabulary)]
    if behind:
        nodes.append(N("Concat", ["v", "v"], ["y"], axis=1))
    proto = model(nodes, [helper.make_value_info("d", map_type(key, value))], [info("y", value, [1, None])])
    loaded = shared_runtime.load(proto)
    given: list[Any] = ["u", "v"] if value == S else [5, 7]
    want = (["v", "", "u"] if value == S else [7, 0, 5]) * (2 if behind else 1)
    kinds = [lambda v: v] if value == S else [lambda v: v, np.dtype(dtype).type, lambda v: np.array(v, dtype)]
    for kind in kinds:
        for results in in_every_way(loaded, {"d": dict(zip(keys, map(kind, given), strict=True))}):
            y = results["y"]
            assert (y.dtype, y.tolist()) == (dtype, [want])
    loaded.unload()


@pytest.mark.parametrize("form", ["DENSE", "SPARSE"])
@pytest.mark.parametrize(("to", "kind"), [("TO_FLOAT", F), ("TO_INT64", I64), ("TO_STRING", S)])
def test_values_of_a_map_are_cast(shared_runtime: aspen_mp.Runtime, to: str, kind: int, form: str) -> None:
    nodes = [N("CastMap", ["d"], ["y"], domain=ML, cast_to=to, map_form=form, max_map=5)]
    proto = model(nodes, [helper.make_value_info("d", map_type(I64, F))], [info("y", kind, [1, None])])
    (got,), (want,) = both(shared_runtime, proto, {"d": {3: 1.75, 1: -2.5}})
    assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())


@pytest.mark.parametrize("wrong", [5, None, [1, 2], {"a": 1.0}, {1: [1.0, 2.0]}])
def test_what_is_no_map_is_refused(shared_runtime: aspen_mp.Runtime, wrong: Any) -> None:
    nodes = [N("CastMap", ["d"], ["y"], "cast", domain=ML)]
    proto = model(nodes, [helper.make_value_info("d", map_type(I64, F))], [info("y", F, [1, None])])
    loaded = shared_runtime.load(proto)
    with pytest.raises(errors.RequestError, match=r"cast \(CastMap\)"):
        loaded.run({"d": wrong})
    assert loaded.run({"d": {1: 0.5}})["y"].tolist() == [[0.5]]
    loaded.unload()


def test_classical_operators_in_branches_and_of_constants(shared_runtime: aspen_mp.Runtime) -> None:
    def branch(name: str, op: str, **attributes: Any) -> onnx.GraphProto:
        return helper.make_graph([N(op, ["x"], [name], domain=ML, **attributes)], name, [], [info(name, F)])

    nodes = [
        N("ReduceSum", ["x"], ["sum"], keepdims=0),
        N("Greater", ["sum", "zero"], ["c"]),
        N(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("t", "Scaler", offset=[0.5], scale=[2.0]),
            else_branch=branch("e", "Normalizer", norm="L1"),
        ),
        N("LabelEncoder", ["names"], ["ids"], domain=ML, keys_strings=["a", "b"], values_int64s=[3, 4]),
    ]
    constants = [helper.make_tensor("zero", F, [], [0.0]), helper.make_tensor("names", S, [2], [b"b", b"q"])]
    proto = model(nodes, [info("x", F, ["n", 2])], [info("y", F), info("ids", I64)], constants)
    for x in (np.array([[1, 2]], np.float32), np.array([[-1, -3]], np.float32)):
        got, want = both(shared_runtime, proto, {"x": x})
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine, theirs)


STUMP: dict[str, Any] = {
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"], "nodes_falsenodeids": [2, 2, 0]}, "below itself"),
    ({"nodes_truenodeids": [7, 0, 0]}, "node 7"),
    ({"nodes_truenodeids": [-1, 0, 0]}, "node -1"),
    ({"nodes_nodeids": [0, 1, 1]}, "node 1 of tree 0"),
    ({"nodes_nodeids": [0, 1, 2**62]}, ""),
    ({"nodes_featureids": [5, 0, 0]}, "feature 5"),
    ({"nodes_featureids": [-1, 0, 0]}, "feature -1"),
    ({"nodes_modes": ["BRANCH_ODD", "LEAF", "LEAF"]}, "BRANCH_ODD"),
    ({"nodes_values": [0.0]}, "entries for 3 nodes"),
    ({"target_ids": [0, 3]}, "target 3"),
    ({"target_treeids": [0, 9]}, "tree 9"),
    ({"post_transform": "ODD"}, "ODD"),
    ({"aggregate_function": "ODD"}, "ODD"),
    ({"base_values": [1.0, 2.0]}, "base values"),
    ({"n_targets": 0}, "0 columns"),
    ({"n_targets": -3}, "-3 columns"),
]


@pytest.mark.parametrize(("change", "says"), BROKEN, ids=lambda v: "" if isinstance(v, str) else "-".join(v))
def test_broken_ensembles_are_refused(shared_runtime: aspen_mp.Runtime, change: dict[str, Any], says: str) -> None:
    """When the model is loaded or at its first request, with the node's name; nothing hangs, and the runtime goes on."""
    node = N("TreeEnsembleRegressor", ["x"], ["y"], "forest", domain=ML, **STUMP | change)
    proto = model([node], [info("x", F, ["n", 1])], [info("y", F, ["n", 1])])
    with pytest.raises(errors.AspenError, match=f"forest.*{says}"):
        shared_runtime.load(proto).run({"x": np.zeros((2, 1), np.float32)})
