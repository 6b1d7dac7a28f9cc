"""The routes of the Open Inference Protocol: both spellings of tensors, every data type, statuses of errors."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import serving_tools as tools
import small_models
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp.serving.protocol import datatypes

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "INT8": TensorProto.INT8,
    "UINT16": TensorProto.UINT16,
    "INT16": TensorProto.INT16,
    "UINT32": TensorProto.UINT32,
    "INT32": TensorProto.INT32,
    "UINT64": TensorProto.UINT64,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}


def every_type() -> onnx.ModelProto:
    """Each output is the input of the same type, turned around: [2, 3] → [3, 2]."""
    nodes = [helper.make_node("Transpose", [f"in_{name}"], [f"out_{name}"], perm=[1, 0]) for name in TYPES if name != "BYTES"]
    nodes.append(helper.make_node("Reshape", ["in_BYTES", "shape"], ["out_BYTES"]))
    inputs = [helper.make_tensor_value_info(f"in_{name}", code, [2, 3]) for name, code in TYPES.items()]
    outputs = [helper.make_tensor_value_info(f"out_{name}", code, [3, 2]) for name, code in TYPES.items()]
    shape = onnx.numpy_helper.from_array(np.array([3, 2]), "shape")
    graph = helper.make_graph(nodes, "every_type", inputs, outputs, [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def words() -> onnx.ModelProto:
    """Numbers and other names of words."""
    numbers = {"keys_strings": ["a", "Zürich"], "values_int64s": [1, 2], "default_int64": 7}
    names = {"keys_strings": ["a", "Zürich"], "values_strings": ["first", "größte"], "default_string": "?"}
    nodes = [
        helper.make_node("LabelEncoder", ["word"], [y], domain="ai.onnx.ml", **more) for y, more in (("number", numbers), ("name", names))
    ]
    inputs = [helper.make_tensor_value_info("word", TensorProto.STRING, ["n"])]
    outputs = [
        helper.make_tensor_value_info("number", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("name", TensorProto.STRING, ["n"]),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph(nodes, "words", inputs, outputs), opset_imports=opsets, ir_version=9)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    found: dict[str, np.ndarray] = {}
    for name, dtype in datatypes.NAMES.items():
        if name == "BYTES":
            found[name] = np.array([["a", "", "Ω"], ["long " * 20, "x\0y", "\N{GRINNING FACE}"]], object)
        elif dtype.kind in "iu":
            limits = np.iinfo(dtype)
            found[name] = rng.integers(limits.min, limits.max, (2, 3), dtype, endpoint=True)
        else:
            found[name] = (rng.standard_normal((2, 3)) * 3).astype(dtype)
    found["BOOL"] = found["FP32"] > 0
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    tools.save(folder, "types", 7, every_type())
    tools.save(folder, "two", 2, small_models.two_inputs())
    tools.save(folder, "words", 1, words())
    with tools.serving(folder, folder) as found:
        yield found


@pytest.fixture
def client(server: tools.Server) -> Iterator[tools.Client]:
    with tools.client(server.address) as found:
        yield found


def test_what_the_server_says_of_itself(client: tools.Client) -> None:
    status, _, about = client.ask("/v2")
    assert status == 200
    assert about["version"] == aspen_mp.__version__
    assert "binary_tensor_data" in about["extensions"]
    assert "model_repository" not in about["extensions"]
    assert client.ask("/v2/health/live")[::2] == (200, {"live": True})
    assert client.ask("/v2/health/ready")[::2] == (200, {"ready": True})
    assert client.ask("/v2/models/types/versions/7/ready")[::2] == (200, {"name": "types", "ready": True})


def test_what_models_are(client: tools.Client) -> None:
    for path in ("/v2/models/mlp", "/v2/models/mlp/versions/1"):
        about = client.ask(path)[2]
        assert about["versions"] == ["1"]
        assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
        assert about["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 8]}]
    assert client.ask("/v2/models/mlp/config")[2]["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 16]}]
    types = {each["name"]: each["datatype"] for each in client.ask("/v2/models/types")[2]["inputs"]}
    assert types == {f"in_{name}": name for name in TYPES}


def test_statistics_count(client: tools.Client) -> None:
    def count() -> int:
        return client.ask("/v2/models/mlp/stats")[2]["model_stats"][0]["inference_stats"]["success"]["count"]

    before = count()
    client.infer("mlp", tools.mlp_feeds())
    assert count() == before + 1
    assert {each["name"] for each in client.ask("/v2/models/stats")[2]["model_stats"]} == {"mlp", "types", "two", "words"}


def test_metrics(client: tools.Client) -> None:
    pytest.importorskip("prometheus_client")
    status, _, text = client.ask("/metrics")
    assert status == 200
    assert b"aspen_mp_ready 1.0" in text


def test_numbers_in_json(client: tools.Client) -> None:
    feeds = tools.mlp_feeds()
    np.testing.assert_allclose(client.infer("mlp", feeds)["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)
    nested = {"name": "x", "shape": [3, 16], "datatype": "FP32", "data": feeds["x"].tolist()}
    status, _, said = client.ask("/v2/models/mlp/infer", {"id": "abc", "inputs": [nested], "unknown": 1})
    assert status == 200
    assert (said["id"], said["model_name"], said["model_version"]) == ("abc", "mlp", "1")
    assert [out["name"] for out in client.ask("/v2/models/two/infer", two(outputs=["scaled"]))[2]["outputs"]] == ["scaled"]


def two(outputs: list[str]) -> dict[str, Any]:
    inputs = [
        {"name": "a", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]},
        {"name": "b", "shape": [3], "datatype": "FP32", "data": [1.5, 2, 3]},
    ]
    return {"inputs": inputs, "outputs": [{"name": name} for name in outputs]}


def pack(name: str, array: np.ndarray) -> bytes:
    if name != "BYTES":
        return array.tobytes()
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in array.ravel())


def unpack(name: str, data: bytes) -> list[Any]:
    if name != "BYTES":
        return np.frombuffer(data, datatypes.NAMES[name]).tolist()
    found = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        found.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return found


def binary(inputs: dict[str, np.ndarray], prefix: str = "", **more: Any) -> tuple[bytes, dict[str, str]]:
    """A request whose tensors follow as bytes, and its headers. `inputs`: by data type."""
    pieces = {name: pack(name, array) for name, array in inputs.items()}
    tensors = [
        {
            "name": f"{prefix}{name}",
            "shape": array.shape,
            "datatype": name,
            "parameters": {"binary_data_size": len(pieces[name])},
        }
        for name, array in inputs.items()
    ]
    text = json.dumps({"inputs": tensors, **more}).encode()
    return text + b"".join(pieces.values()), {"Inference-Header-Content-Length": str(len(text))}


def wanted(name: str, array: np.ndarray) -> list[Any]:
    return (array.reshape(3, 2) if name == "BYTES" else array.T).ravel().tolist()


def test_every_type_as_bytes(client: tools.Client) -> None:
    given = arrays()
    body, headers = binary(given, "in_", parameters={"binary_data_output": True})
    status, sent, data = client.ask("/v2/models/types/infer", body, headers)
    assert status == 200, data
    size = int(sent["inference-header-content-length"])
    outputs, rest = json.loads(data[:size])["outputs"], data[size:]
    assert len(outputs) == len(TYPES)
    for output in outputs:
        length = output["parameters"]["binary_data_size"]
        assert output["shape"] == [3, 2]
        assert unpack(output["datatype"], rest[:length]) == wanted(output["datatype"], given[output["datatype"]])
        rest = rest[length:]
    assert not rest


def test_every_type_as_json(client: tools.Client) -> None:
    given = arrays()
    inputs = [
        {
            "name": f"in_{name}",
            "shape": [2, 3],
            "datatype": name,
            "data": array.astype(np.float32).tolist() if name == "BF16" else array.tolist(),
        }
        for name, array in given.items()
    ]
    status, _, said = client.ask("/v2/models/types/infer", {"inputs": inputs})
    assert status == 200, said
    for output in said["outputs"]:
        name = output["datatype"]
        assert np.array(output["data"], datatypes.NAMES[name]).tolist() == wanted(name, given[name])


def test_words_that_a_model_looks_up(client: tools.Client) -> None:
    given = np.array(["Zürich", "a", "", "b"], object)
    told = [[2, 1, 7, 7], ["größte", "first", "?", "?"]]
    listed = {"name": "word", "shape": [4], "datatype": "BYTES", "data": given.tolist()}
    status, _, said = client.ask("/v2/models/words/infer", {"inputs": [listed]})
    assert status == 200, said
    assert [output["data"] for output in said["outputs"]] == told
    packed = pack("BYTES", given)
    del listed["data"]
    head = json.dumps({"inputs": [{**listed, "parameters": {"binary_data_size": len(packed)}}]}).encode()
    status, _, said = client.ask("/v2/models/words/infer", head + packed, {"Inference-Header-Content-Length": str(len(head))})
    assert status == 200, said
    assert [output["data"] for output in said["outputs"]] == told


def test_bytes_and_json_in_one_request(client: tools.Client) -> None:
    given = arrays()
    given.pop("FP64")
    body, headers = binary(given, "in_")
    text = json.loads(body[: int(headers["Inference-Header-Content-Length"])])
    text["inputs"].append({"name": "in_FP64", "shape": [2, 3], "datatype": "FP64", "data": [1, 2, 3, 4, 5, 6]})
    text["outputs"] = [{"name": "out_FP64"}, {"name": "out_INT8", "parameters": {"binary_data": True}}]
    head = json.dumps(text).encode()
    rest = body[int(headers["Inference-Header-Content-Length"]) :]
    status, sent, data = client.ask("/v2/models/types/infer", head + rest, {"Inference-Header-Content-Length": str(len(head))})
    assert status == 200, data
    size = int(sent["inference-header-content-length"])
    outputs = json.loads(data[:size])["outputs"]
    assert outputs[0]["data"] == [1, 4, 2, 5, 3, 6]
    assert unpack("INT8", data[size:]) == wanted("INT8", given["INT8"])


def test_bytes_of_truth_are_truth(client: tools.Client) -> None:
    given = arrays()
    body, headers = binary(given, "in_", parameters={"binary_data_output": True})
    at = int(headers["Inference-Header-Content-Length"])
    assert next(iter(given)) == "BOOL"
    status, sent, data = client.ask("/v2/models/types/infer", body[:at] + b"\2\0\3\0\0\xff" + body[at + 6 :], headers)
    assert status == 200
    size = int(sent["inference-header-content-length"])
    assert data[size : size + 6] == b"\1\0\0\0\1\1"


def test_empty_tensors(client: tools.Client) -> None:
    empty = {"x": np.zeros((0, 16), np.float32)}
    assert client.infer("mlp", empty)["y"].shape == (0, 8)


def test_priority_and_timeout(client: tools.Client) -> None:
    feeds = tools.mlp_feeds()
    for priority in (0, 1, 2, 9, "high", "low"):
        client.infer("mlp", feeds, parameters={"priority": priority, "timeout": 60_000_000})
    tensor = {"name": "x", "shape": [3, 16], "datatype": "FP32", "data": feeds["x"].ravel().tolist()}
    status, _, said = client.ask("/v2/models/mlp/infer", {"inputs": [tensor], "parameters": {"timeout": 1}})
    assert status == 504
    assert "deadline" in said["error"]
    status, _, said = client.ask("/v2/models/mlp/infer", {"inputs": [tensor], "parameters": {"priority": "soon"}})
    assert status == 400


X = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0] * 16}
WRONG = {
    "no_json": (b"{", {}, 400, "not JSON"),
    "no_inputs": ({}, {}, 400, "inputs"),
    "inputs_missing": ({"inputs": []}, {}, 400, "'x'"),
    "unknown_input": ({"inputs": [{**X, "name": "z"}]}, {}, 400, "'z'"),
    "twice": ({"inputs": [X, X]}, {}, 400, "twice"),
    "shape": ({"inputs": [{**X, "shape": [2, 16]}]}, {}, 400, "32 elements"),
    "rank": ({"inputs": [{**X, "shape": [16]}]}, {}, 400, "shape"),
    "negative": ({"inputs": [{**X, "shape": [-1, 16]}]}, {}, 400, "shape"),
    "endless": ({"inputs": [{**X, "shape": [0, 1 << 47, 1 << 47], "data": []}]}, {}, 400, "too big"),
    "datatype": ({"inputs": [{**X, "datatype": "FP64"}]}, {}, 400, "FP32"),
    "no_datatype": ({"inputs": [{**X, "datatype": "float"}]}, {}, 400, "is not a datatype"),
    "text": ({"inputs": [{**X, "data": ["1"] * 16}]}, {}, 400, "datatype"),
    "ragged": ({"inputs": [{**X, "data": [[0] * 15, 0]}]}, {}, 400, "datatype"),
    "no_data": ({"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32"}]}, {}, 400, "neither"),
    "deep": (b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", {}, 400, ""),
    "deep_data": ({"inputs": [{**X, "data": json.loads("[" * 200 + "]" * 200)}]}, {}, 400, ""),
    "output": ({"inputs": [X], "outputs": [{"name": "z"}]}, {}, 400, "'z'"),
    "shared_memory": ({"inputs": [{**X, "parameters": {"shared_memory_region": "r"}}]}, {}, 400, "shared memory"),
    "classes": ({"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, {}, 400, "classification"),
    "sequence": ({"inputs": [X], "parameters": {"sequence_id": 3}}, {}, 400, "sequence"),
    "tensors": ({"inputs": [X] * 300}, {}, 400, "inputs"),
    "size_without_header": ({"inputs": [{**X, "parameters": {"binary_data_size": 64}}]}, {}, 400, "Inference-Header"),
    "header": ({"inputs": [X]}, {"Inference-Header-Content-Length": "x"}, 400, "number"),
    "header_beyond": ({"inputs": [X]}, {"Inference-Header-Content-Length": "99999"}, 400, "JSON part"),
    "too_large": ({"inputs": [X]}, {"Inference-Header-Content-Length": "999999999999"}, 413, "at most"),
    "packed": ({"inputs": [X]}, {"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests(client: tools.Client, case: str) -> None:
    body, headers, wanted_status, text = WRONG[case]
    status, _, said = client.ask("/v2/models/mlp/infer", body, headers)
    assert status == wanted_status, said
    assert text in said["error"]
    client.infer("mlp", tools.mlp_feeds())  # the same connection goes on


@pytest.mark.parametrize(
    ("path", "body", "wanted_status"),
    [
        ("/v2/models/none", None, 404),
        ("/v2/models/mlp/versions/2", None, 404),
        ("/v2/models/mlp/versions/x", None, 404),
        ("/v2/models/..%2F..%2Fetc", None, 404),
        ("/v2/models/../mlp", None, 404),
        ("/v2/models/none/infer", {}, 404),
        ("/v2/models/mlp/infer", None, 405),
        ("/v2/nothing", None, 404),
        ("/v2/repository/index", {}, 404),
        ("/v2/repository/models/mlp/unload", {}, 404),
    ],
)
def test_wrong_places(client: tools.Client, path: str, body: Any, wanted_status: int) -> None:
    status, _, said = client.ask(path, body)
    assert (status, list(said)) == (wanted_status, ["error"])


def test_binary_sizes_that_do_not_fit(client: tools.Client) -> None:
    body, headers = binary({"FP32": np.zeros((1, 16), np.float32)})
    for wrong in (body + b"!", body[:-1]):
        data = wrong.replace(b'"FP32", "shape"', b'"x", "shape"')
        shorter = {"Inference-Header-Content-Length": str(int(headers["Inference-Header-Content-Length"]) - 3)}
        status, _, said = client.ask("/v2/models/mlp/infer", data, shorter)
        assert status == 400
        assert "bytes" in said["error"]


def test_strings_that_are_none(client: tools.Client) -> None:
    given = arrays()
    for strings in (b"\xff\xff\xff\xff", b"\1\0\0\0\xff", b"\0\0\0\0" * 6 + b"!"):
        body, headers = binary(given, "in_")
        packed = pack("BYTES", given["BYTES"])
        assert body.endswith(packed)
        body = body.removesuffix(packed) + strings.ljust(len(packed), b"\1")
        status, _, said = client.ask("/v2/models/types/infer", body, headers)
        assert status == 400
        assert "in_BYTES" in said["error"]


def test_bfloat16_has_a_name() -> None:
    assert datatypes.name_of(np.dtype(ml_dtypes.bfloat16)) == "BF16"
    assert datatypes.name_of(np.dtype(np.complex64)) is None
