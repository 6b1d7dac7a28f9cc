"""Several networks as one model: what reads what, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.errors import ModelInvalidError, ModelParseError, ResourceLimitError, UnsupportedModelError
from aspen_mp.planner import api

Networks = dict[str, dict[str, Any]]


def affine(
    x: str = "x", y: str = "y", wide: int = 4, out: int = 4, opset: int = 17, batch: str | int = "n", dtype: type = np.float32
) -> onnx.ModelProto:
    """y = x @ w."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    w = numpy_helper.from_array(np.ones((wide, out), dtype), "w")
    ends = [helper.make_tensor_value_info(name, elem, [batch, n]) for name, n in ((x, wide), (y, out))]
    graph = helper.make_graph([helper.make_node("MatMul", [x, "w"], [y])], "g", ends[:1], ends[1:], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def joined(folder: Path, networks: Networks, **models: onnx.ModelProto) -> api.OnnxModel:
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    path = folder / "whole.networks"
    path.write_text(json.dumps({"networks": {name: {"model": f"{name}.onnx", **entry} for name, entry in networks.items()}}))
    return api.load(path)


def ends(model: api.OnnxModel) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    return [(v.name, v.shape) for v in model.signature.inputs], [(v.name, v.shape) for v in model.signature.outputs]


def test_apart_they_keep_their_own_inputs_and_symbols(tmp_path: Path) -> None:
    model = joined(tmp_path, {"a": {}, "b": {}}, a=affine(), b=affine(wide=3, batch=2))
    assert ends(model) == ([("a.x", ("a.n", 4)), ("b.x", (2, 3))], [("a.y", ("a.n", 4)), ("b.y", (2, 4))])


@pytest.mark.parametrize(
    ("entry", "inputs"),
    [
        ({"inputs": {"x": "a.y"}}, [("a.x", ("a.n", 4))]),
        ({"inputs": {"x": "a.x"}}, [("a.x", ("a.n", 4))]),
        ({"beside": "a"}, [("a.x", ("a.n", 4))]),
        ({"after": "a"}, [("a.x", ("a.n", 4))]),  # the only output feeds the only input, although their names differ
    ],
)
def test_what_comes_from_another_network_is_no_input(tmp_path: Path, entry: dict[str, Any], inputs: list[tuple[str, Any]]) -> None:
    model = joined(tmp_path, {"b": entry, "a": {}}, a=affine(), b=affine(batch="m"))
    assert ends(model) == (inputs, [("b.y", ("a.n", 4)), ("a.y", ("a.n", 4))])


def test_the_number_of_one_is_that_of_the_other(tmp_path: Path) -> None:
    model = joined(tmp_path, {"a": {}, "b": {"after": "a"}}, a=affine(batch=3), b=affine())
    assert ends(model)[1] == [("a.y", (3, 4)), ("b.y", (3, 4))]


def test_files_are_those_of_all_networks(tmp_path: Path) -> None:
    onnx.save(affine(), tmp_path / "b.onnx", save_as_external_data=True, location="b.bin", size_threshold=0)
    (tmp_path / "w.networks").write_text(json.dumps({"networks": {"a": {"model": "a.onnx"}, "b": {"model": "b.onnx"}}}))
    onnx.save(affine(), tmp_path / "a.onnx")
    model = api.load(str(tmp_path / "w.networks"))
    assert sorted(model.files) == [str(tmp_path / name) for name in ("a.onnx", "b.bin", "b.onnx")]
    assert np.array_equal(model.constant(model.initializers["b.w"]), np.ones((4, 4), np.float32))


STRINGS = helper.make_model(
    helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [1])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [1])],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
)


@pytest.mark.parametrize(
    ("networks", "models", "error", "message"),
    [
        ({"a": {"inputs": {"z": "b.y"}}, "b": {}}, {}, ModelInvalidError, "network 'a' has no input 'z'"),
        ({"a": {"inputs": {"x": "c.y"}}, "b": {}}, {}, ModelInvalidError, "there is no network 'c'"),
        ({"a": {"inputs": {"x": "b.q"}}, "b": {}}, {}, ModelInvalidError, "'b.q', which is not a tensor"),
        ({"a": {"after": "c"}, "b": {}}, {}, ModelInvalidError, "no such other network"),
        ({"a": {"after": "a"}, "b": {}}, {}, ModelInvalidError, "no such other network"),
        ({"a": {"after": "b"}, "b": {"after": "a"}}, {}, ModelInvalidError, "networks 'a', 'b' wait for each other's outputs"),
        ({"a": {"beside": "b"}, "b": {"beside": "a"}}, {}, ModelInvalidError, "is an input of itself"),
        ({"a": {}, "b": {"after": "a"}}, {"a": affine(out=5)}, ModelInvalidError, r"has shape \['n', 4\], and 'a.y' has \['n', 5\]"),
        ({"a": {}, "b": {"after": "a"}}, {"a": affine(dtype=np.float64)}, ModelInvalidError, "elements of type float32"),
        ({"a": {}, "b": {}}, {"b": STRINGS}, UnsupportedModelError, "network 'b': it takes or gives strings"),
        ({"a b": {}}, {}, ModelInvalidError, "needs a name of letters"),
        ({}, {}, ModelInvalidError, "names 0 networks"),
        ({f"n{k}": {} for k in range(33)}, {}, ModelInvalidError, "names 33 networks"),
        ({"a": {"behind": "b"}, "b": {}}, {}, ModelParseError, "does not say which networks to join"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, networks: Networks, models: dict[str, onnx.ModelProto], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        joined(tmp_path, networks, **({"a": affine(), "b": affine()} | models))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.networks"
    with pytest.raises(ModelParseError, match="No such file"):
        api.load(path)
    path.write_bytes(onnx.helper.make_model(affine().graph).SerializeToString())
    with pytest.raises(ModelParseError, match="does not say which networks"):
        api.load(path)
    path.write_bytes(b" " * (1 << 21))
    with pytest.raises(ResourceLimitError, match="too many"):
        api.load(path)


def test_a_model_by_another_name_is_never_taken_for_one(tmp_path: Path) -> None:
    """Only who chooses the path chooses that other files are read."""
    onnx.save(affine(), tmp_path / "a.onnx")
    path = tmp_path / "model.onnx"
    path.write_text(json.dumps({"networks": {"a": {"model": "a.onnx"}}}))
    with pytest.raises(ModelParseError, match="not an ONNX model"):
        api.load(path)
    with pytest.raises(ModelParseError, match="not an ONNX model"):
        api.load(path.read_bytes())
