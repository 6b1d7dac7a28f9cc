"""What a command line names: models, shapes, inputs, random values; and how results are compared."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.cli import sources
from aspen_mp.cli.run import compare


def test_shapes() -> None:
    assert sources.parse_shape("1x3x224x224") == (1, 3, 224, 224)
    assert sources.parse_shape("2,5") == (2, 5)
    assert sources.parse_shape("") == ()
    for bad in ("1x-3", "axb", "1.5"):
        with pytest.raises(typer.BadParameter, match="not a shape"):
            sources.parse_shape(bad)


def test_name_value_pairs() -> None:
    assert sources.pairs(["a=1", "b=x=y"], "--input") == {"a": "1", "b": "x=y"}
    assert sources.pairs(["file.npy"], "--input", lone="x") == {"x": "file.npy"}
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        sources.pairs(["file.npy"], "--input")
    with pytest.raises(typer.BadParameter, match="twice"):
        sources.pairs(["a=1", "a=2"], "--input")


def test_symbols_become_sizes() -> None:
    given = {"y": (4, 7)}
    assert sources.bind_shape("x", ["batch_size", 3, "sequence_length"], given, 2, 16) == (2, 3, 16)
    assert sources.bind_shape("x", ["N", 3], {}, None, None) == (1, 3)
    assert sources.bind_shape("x", [None, 3], {}, 5, None) == (5, 3)
    assert sources.bind_shape("y", ["a", 7], given, None, None) == (4, 7)
    for shape, name, message in (
        (["batch", "width"], "x", "'width' of input 'x' has no fixed size"),
        (["batch", "seq"], "x", "--seq"),
        (None, "x", "does not say the shape of input 'x'"),
        (["a", 8], "y", "not 4x7"),
        ([4], "y", "not 4x7"),
    ):
        with pytest.raises(typer.BadParameter, match=message):
            sources.bind_shape(name, shape, given, None, None)


def test_input_files(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x)
    (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    for name in ("x.npy", "all.npz", "x.pb"):
        np.testing.assert_array_equal(sources.load_array(str(tmp_path / name), "x"), x)
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, message in (("none.npy", "no file"), ("bad.npy", "cannot be read"), ("objects.npy", "cannot be read")):
        with pytest.raises(typer.BadParameter, match=message):
            sources.load_array(str(tmp_path / name), "x")
    with pytest.raises(typer.BadParameter, match="no array 'y'"):
        sources.load_array(str(tmp_path / "all.npz"), "y")


def test_models(tmp_path: Path) -> None:
    for bad, message in (("nosuch.onnx", "no file"), (str(tmp_path), "folder"), ("zoo:nosuch", "the zoo has no")):
        with pytest.raises(typer.BadParameter, match=message):
            sources.resolve(bad)
    assert sources.resolve("zoo:mobilenet_v2").collection, "also those beside the benchmarks' own"
    source = sources.resolve("zoo:squeezenet1_1", batch=3)
    assert source.proto().graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_random_values() -> None:
    rng = np.random.default_rng(0)
    table = helper.make_tensor("table", TensorProto.FLOAT, [7, 2], np.zeros(14))
    nodes = [helper.make_node("Cast", ["ids"], ["wide"], to=7), helper.make_node("Gather", ["table", "wide"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ids", 6, ["n"])], [helper.make_tensor_value_info("y", 1, None)], initializer=[table]
    )
    limits = sources.index_limits(helper.make_model(graph))
    assert limits == {"ids": 7}
    ids = sources.random_array("ids", np.dtype(np.int32), (500,), limits["ids"], rng)
    assert (ids.dtype, ids.min(), ids.max()) == (np.int32, 0, 6)
    assert sources.random_array("attention_mask", np.dtype(np.int64), (3,), None, rng).tolist() == [1, 1, 1]
    for dtype in (np.float16, ml_dtypes.bfloat16, np.bool_, np.complex64, np.int8, np.uint64, object):
        made = sources.random_array("x", np.dtype(dtype), (2, 3), None, rng)
        assert (made.dtype, made.shape) == (np.dtype(dtype), (2, 3))


def test_comparison() -> None:
    want = np.array([1.0, -4.0, np.inf, np.nan], np.float32)
    assert compare(want.copy(), want, 0) == {"error": 0.0, "ok": True}
    off = want.copy()
    off[0] += 0.5
    assert compare(off, want, 0.1) == {"error": 0.125, "ok": False}
    off[3] = 0
    assert compare(off, want, 1e9)["error"] == np.inf
    assert not compare(want.astype(np.float64), want, 1)["ok"]
    assert not compare(want[:2], want, 1)["ok"]
    assert compare(np.array(["a"], object), np.array(["a"], object), 0)["ok"]
    assert not compare(np.array([True]), np.array([False]), 0.5)["ok"]
    assert compare(np.array([10, 11]), np.array([10, 10]), 0.2)["ok"]
    assert not compare([want], [want, want], 1)["ok"]
    assert compare([want, None], [want, None], 0)["ok"]
    assert compare(np.zeros(0, np.float32), np.zeros(0, np.float32), 0)["ok"]
    assert compare(np.ones(2, ml_dtypes.bfloat16), np.ones(2, ml_dtypes.bfloat16), 0)["ok"]


def test_files_that_join_networks(tmp_path: Path) -> None:
    table = helper.make_tensor("table", TensorProto.FLOAT, [7, 2], np.zeros(14))
    ends = [helper.make_tensor_value_info("ids", 6, ["n"])], [helper.make_tensor_value_info("y", 1, None)]
    graph = helper.make_graph([helper.make_node("Gather", ["table", "ids"], ["y"])], "g", *ends, initializer=[table])
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    (tmp_path / "all.networks").write_text('{"networks": {"a": {"model": "a.onnx"}, "b": {"model": "a.onnx", "beside": "a"}}}')
    source = sources.resolve(str(tmp_path / "all.networks"))
    assert source.joins
    assert source.index_limits() == {"a.ids": 7, "b.ids": 7}
    with pytest.raises(typer.BadParameter, match="--check needs one"):
        source.proto()
    assert sources.bind_shape("a.ids", ("a.batch", "a.seq"), {}, 3, 5) == (3, 5)
