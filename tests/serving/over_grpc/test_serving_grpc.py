"""The methods of gRPC: both spellings of tensors, every data type, codes of errors, streams, processes that end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models
from test_serving_protocol import arrays, every_type

grpc = pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
pytest.importorskip("google.protobuf", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")

from aspen_mp.client.signature import ValueInfo  # noqa: E402
from aspen_mp.serving.grpc import codec, schema  # noqa: E402
from aspen_mp.serving.limits import Limits  # noqa: E402
from aspen_mp.serving.memory.regions import NONE  # noqa: E402
from aspen_mp.serving.protocol import datatypes, turns  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    tools.save(folder, "types", 1, every_type())
    tools.save(folder, "chain", 1, small_models.conv_chain(24, 32, 64))
    with tools.serving(folder, folder, "--grpc-port", "0", "--max-body", "1", "--access-log") as found:
        with calling(found) as call:
            call("ServerLive")  # gRPC's own threads and descriptors, which the first channel makes, stay with the process
        yield found


class Caller:
    """A channel, and calls by the names of methods."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._methods = {method.name: method for method in schema.methods()}

    def method(self, name: str) -> Any:
        method = self._methods[name]
        kind = self.channel.stream_stream if method.client_streaming else self.channel.unary_unary
        write, read = schema.class_of(method.input_type).SerializeToString, schema.class_of(method.output_type).FromString
        return kind(f"/{schema.SERVICE}/{name}", write, read)

    def __call__(self, name: str, request: Any = None, **more: Any) -> Any:
        request = request if request is not None else schema.class_of(self._methods[name].input_type)()
        return self.method(name)(request, timeout=tools.WATCHDOG_S, **more)


@contextlib.contextmanager
def calling(server: tools.Server, **more: Any) -> Iterator[Caller]:
    with grpc.insecure_channel(server.grpc_address, **more) as channel:
        yield Caller(channel)


def infer_request(model: str, feeds: dict[str, np.ndarray], *, raw: bool = True, **more: Any) -> Any:
    request = schema.message("ModelInferRequest")(model_name=model, **more)
    for name, array in feeds.items():
        datatype = datatypes.name_of(array.dtype)
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            request.raw_input_contents.append(turns.at_once(datatypes.packed_strings(array)) if array.dtype.hasobject else array.tobytes())
        elif array.dtype.hasobject:
            tensor.contents.bytes_contents.extend(item.encode() for item in array.ravel())
        else:
            getattr(tensor.contents, codec.FIELDS[datatype]).extend(array.ravel().tolist())
    return request


def outputs(response: Any) -> dict[str, np.ndarray]:
    found = {}
    for k, tensor in enumerate(response.outputs):
        dtype = datatypes.NAMES[tensor.datatype]
        n = int(np.prod(tensor.shape))
        if response.raw_output_contents:
            data = response.raw_output_contents[k]
            strings = datatypes.unpacked_strings(memoryview(data), n, "output")
            flat = turns.at_once(strings) if dtype.hasobject else np.frombuffer(data, dtype)
        else:
            items = getattr(tensor.contents, codec.FIELDS[tensor.datatype])
            flat = np.array([str(each, "utf-8") for each in items], object) if dtype.hasobject else np.array(items, dtype)
        found[tensor.name] = flat.reshape(tuple(tensor.shape))
    return found


def check(call: Caller) -> None:
    feeds = tools.mlp_feeds()
    found = outputs(call("ModelInfer", infer_request("mlp", feeds)))
    np.testing.assert_allclose(found["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)


def test_server_and_models_are_described(server: tools.Server) -> None:
    with calling(server) as call:
        assert call("ServerLive").live
        assert call("ServerReady").ready
        assert call("ServerMetadata").name == "aspen-mp"
        assert call("ModelReady", schema.message("ModelReadyRequest")(name="mlp", version="1")).ready
        said = call("ModelMetadata", schema.message("ModelMetadataRequest")(name="mlp"))
        assert (said.name, list(said.versions), said.inputs[0].datatype, list(said.inputs[0].shape)) == ("mlp", ["1"], "FP32", [-1, 16])


def test_every_type(server: tools.Server) -> None:
    given = arrays()
    with calling(server) as call:
        response = call("ModelInfer", infer_request("types", {f"in_{name}": array for name, array in given.items()}, id="7"))
    assert (response.id, response.model_name, response.model_version) == ("7", "types", "1")
    found = outputs(response)
    for name, array in given.items():
        np.testing.assert_array_equal(found[f"out_{name}"], array.reshape(3, 2) if name == "BYTES" else array.T)


def test_halves_have_no_contents(server: tools.Server) -> None:
    request = schema.message("ModelInferRequest")(model_name="types")
    tensor = request.inputs.add(name="in_FP16", datatype="FP16", shape=[2, 3])
    tensor.contents.fp32_contents.extend([0.0] * 6)
    with calling(server) as call, pytest.raises(grpc.RpcError, match="has no field of contents"):
        call("ModelInfer", request)


def read(request: Any, remaining_s: float | None = None, dtype: Any = np.float32) -> Any:
    """The call that a model with an input x makes of a request."""
    known = [ValueInfo("x", None, np.dtype(dtype))]
    return asyncio.run(codec.read(request, known, remaining_s, NONE, Limits(), lambda nbytes: None))


@pytest.mark.parametrize("name", sorted(codec.FIELDS))
def test_contents_are_read_and_written(name: str) -> None:
    array = arrays()[name]
    request = infer_request("m", {"x": array}, raw=False)
    call = read(request, dtype=array.dtype)
    np.testing.assert_array_equal(call.feeds["x"], array)
    assert call.feeds["x"].dtype == array.dtype
    response = turns.at_once(codec.answer(call, "m", "1", {"y": array}))
    assert not response.raw_output_contents
    np.testing.assert_array_equal(outputs(response)["y"], array)


def test_the_nearer_deadline_counts() -> None:
    def deadline(remaining_s: float | None, **parameters: int) -> float | None:
        request = schema.message("ModelInferRequest")(parameters={key: {"int64_param": value} for key, value in parameters.items()})
        return read(request, remaining_s).deadline_ms

    assert deadline(None) is None
    assert deadline(2.0) == 2000
    assert deadline(2.0, timeout=1_500_000) == 1500
    assert deadline(1.0, timeout=1_500_000) == 1000
    assert deadline(None, timeout=0) is None


def test_priorities_are_words_and_numbers() -> None:
    def priority(**value: Any) -> str | None:
        return read(schema.message("ModelInferRequest")(parameters={"priority": value})).priority

    assert [priority(uint64_param=number) for number in range(4)] == [None, "high", "normal", "low"]
    assert priority(string_param="high") == "high"


def bad_requests() -> dict[str, tuple[Any, Any, str]]:
    """By name: request, code, part of the details."""
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    feeds = tools.mlp_feeds()
    found: dict[str, tuple[Any, Any, str]] = {}

    def add(name: str, text: str, code: Any = invalid, model: str = "mlp", **more: Any) -> Any:
        request = infer_request(model, feeds, **more)
        found[name] = request, code, text
        return request

    add("no model", "no model 'none'", grpc.StatusCode.NOT_FOUND, "none")
    add("no version", "no version '9'", grpc.StatusCode.NOT_FOUND).model_version = "9"
    add("bytes are missing", "needs 192 bytes").raw_input_contents[0] = b"123"
    add("an entry too many", "2 entries for 1 inputs").raw_input_contents.append(b"")
    add("both", "Give one of them").inputs[0].contents.fp32_contents.append(1.0)
    add("another field", "belong into fp32_contents", raw=False).inputs[0].contents.int_contents.append(1)
    add("too few elements", "fp32_contents has 47", raw=False).inputs[0].contents.fp32_contents.pop()
    add("no datatype", "is not a datatype").inputs[0].datatype = "FP31"
    add("another datatype", "must be FP32").inputs[0].datatype = "INT32"
    add("below zero", "extent below 0").inputs[0].shape[0] = -1
    add("another input", "'z'").inputs[0].name = "z"
    add("another output", "'z'").outputs.add(name="z")
    add("no such sequence", "not open").parameters["sequence_id"].int64_param = 3
    add("a sequence below zero", "sequence_id must be").parameters["sequence_id"].int64_param = -3
    add("a sequence of no such type", "sequence_id must be").parameters["sequence_id"].bool_param = True
    add("a long sequence", "more than 128").parameters["sequence_id"].string_param = "x" * 129
    add("the start of nothing", "need a sequence_id").parameters["sequence_start"].bool_param = True
    add("a start that is a number", "sequence_start must be").parameters["sequence_start"].int64_param = 1
    add("a region", "without shared_memory_byte_size").inputs[0].parameters["shared_memory_region"].string_param = "r"
    add("a bad priority", "priority must be").parameters["priority"].double_param = 1.5
    add("no such class", "priority").parameters["priority"].string_param = "urgent"
    add("a bad timeout", "timeout must be").parameters["timeout"].int64_param = -1
    add("twice", "given twice").inputs.append(found["twice"][0].inputs[0])
    found["twice"][0].raw_input_contents.append(b"")
    late = add("no time", "", grpc.StatusCode.DEADLINE_EXCEEDED)
    late.parameters["timeout"].int64_param = 1
    return found


@pytest.mark.parametrize("name", sorted(bad_requests()))
def test_errors_have_codes(server: tools.Server, name: str) -> None:
    request, code, text = bad_requests()[name]
    with calling(server) as call:
        with pytest.raises(grpc.RpcError) as raised:
            call("ModelInfer", request)
        assert raised.value.code() == code, raised.value
        assert text in raised.value.details()
        check(call)


def test_large_compressed_and_unknown_calls_are_refused(server: tools.Server) -> None:
    with calling(server) as call:
        large = infer_request("mlp", {"x": np.zeros((20_000, 16), np.float32)})
        with pytest.raises(grpc.RpcError) as raised:
            call("ModelInfer", large)
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as raised:
            call("ModelInfer", infer_request("mlp", tools.mlp_feeds()), compression=grpc.Compression.Gzip)
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as raised:
            call("RepositoryIndex")
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "--allow-repository" in raised.value.details()
        with pytest.raises(grpc.RpcError) as raised:
            call.channel.unary_unary(f"/{schema.SERVICE}/Nothing")(b"", timeout=tools.WATCHDOG_S)
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
        check(call)


def test_a_stream_answers_in_order_and_goes_on_after_errors(server: tools.Server) -> None:
    many = [tools.mlp_feeds(rows=1 + k % 3, seed=k) for k in range(100)]
    requests = [infer_request("mlp" if k != 7 else "none", feeds, id=str(k)) for k, feeds in enumerate(many)]
    with calling(server) as call:
        answers = list(call("ModelStreamInfer", iter(requests)))
    assert [each.infer_response.id for each in answers] == [str(k) for k in range(100)]
    for k, (feeds, each) in enumerate(zip(many, answers, strict=True)):
        if k == 7:
            assert "no model 'none'" in each.error_message
        else:
            assert not each.error_message
            np.testing.assert_allclose(outputs(each.infer_response)["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)


def test_a_stream_runs_the_requests_of_a_sequence_in_order(server: tools.Server) -> None:
    """Large tensors, whose reading takes turns, come before small ones."""
    rng, sizes = np.random.default_rng(0), [700, 1, 700, 3, 5]
    requests = []
    for round_ in range(4):
        for k, rows in enumerate(sizes):
            for number in ("left", "right"):
                x = rng.standard_normal((9 * rows, 16)).astype(np.float32)
                request = infer_request("mlp", {"x": x}, raw=False, id=f"{round_} {k} {number}")
                request.parameters["sequence_id"].string_param = number
                request.parameters["sequence_start"].bool_param = k == 0
                request.parameters["sequence_end"].bool_param = k == len(sizes) - 1
                requests.append(request)
    with calling(server) as call:
        answers = list(call("ModelStreamInfer", iter(requests)))
        assert [each.error_message for each in answers] == [""] * len(requests)
        assert [each.infer_response.id for each in answers] == [each.id for each in requests]
        for request, each in zip(requests, answers, strict=True):
            feeds = {"x": np.array(request.inputs[0].contents.fp32_contents, np.float32).reshape(-1, 16)}
            np.testing.assert_allclose(outputs(each.infer_response)["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)
        late = requests[2]
        assert "not open" in next(iter(call("ModelStreamInfer", iter([late])))).error_message


def test_cancelled_calls_and_streams_cancel_their_requests(server: tools.Server) -> None:
    x = np.random.default_rng(0).standard_normal((1, 32, 64, 64)).astype(np.float32)
    request = infer_request("chain", {"x": x})
    with calling(server) as call:
        call.method("ModelInfer").future(request).cancel()  # the server may not even have seen it
        running = call.method("ModelStreamInfer")(iter([request] * 50))
        assert not next(running).error_message  # so the server is at work on the others
        running.cancel()
        server.wait_for('"CANCELLED"')
        check(call)


def test_sigterm_ends_after_what_is_in_flight(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    with tools.serving(tmp_path, tmp_path, "--grpc-port", "0", "--drain", "1") as server, calling(server) as call:
        check(call)
        server.process.terminate()
        while call("ServerReady").ready:
            pass
        check(call)  # still answered
        assert server.process.wait(tools.WATCHDOG_S) == 0


def test_a_front_end_is_killed_and_its_clients_connect_again(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    with tools.serving(tmp_path, tmp_path, "--grpc-port", "0", "--http-workers", "2") as server, calling(server) as call:
        for kill in range(1, 5):
            server.front_ends()[0].kill()
            server.wait_for("is replaced", kill)
            feeds = tools.mlp_feeds(seed=kill)
            try:
                answer = call("ModelInfer", infer_request("mlp", feeds), wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:  # gRPC's thread had not seen yet that the connection is gone
                    raise
                answer = call("ModelInfer", infer_request("mlp", feeds), wait_for_ready=True)
            np.testing.assert_allclose(outputs(answer)["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)
        assert server.stop() == 0


def test_a_port_is_shared_with_no_other_server(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    with tools.serving(tmp_path, tmp_path, "--grpc-port", "0") as server:
        port = server.grpc_address.rpartition(":")[2]
        with pytest.raises(AssertionError, match="Choose another --grpc-port"):
            tools.Server(tmp_path, "--grpc-port", port, folder=tmp_path)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(port)))
        with calling(server) as call:
            check(call)
