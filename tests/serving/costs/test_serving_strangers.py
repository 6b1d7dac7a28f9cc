"""What strangers send, over HTTP and gRPC: numbers beyond all types, garbage, models of their own, more connections than descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Iterator
from itertools import product
from typing import Any

import psutil
import pytest
import serving_tools as tools
import small_models
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

grpc = pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
message = pytest.importorskip("google.protobuf.message", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")

import raw_http2  # noqa: E402

from aspen_mp.serving.access.tokens import Tokens  # noqa: E402
from aspen_mp.serving.grpc import listener, schema, service  # noqa: E402
from aspen_mp.serving.grpc.health import Health  # noqa: E402
from aspen_mp.serving.limits import Limits  # noqa: E402
from aspen_mp.serving.protocol.body import Budget  # noqa: E402

SHORTAGE = "no file descriptors left"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    with tools.serving(folder, folder, "--grpc-port", "0", "--allow-repository") as found:
        with grpc.insecure_channel(found.grpc_address) as channel:
            rpc(channel, "ServerLive", b"")  # gRPC's own threads and descriptors, which the first channel makes, stay with the process
        yield found


def rpc(channel: Any, method: str, data: bytes) -> bytes:
    return channel.unary_unary(f"/{schema.SERVICE}/{method}")(data, timeout=tools.WATCHDOG_S)  # type: ignore[no-any-return]


NUMBERS = ["1e999", "-1e999", "1e300", "300", "-1", "1.5", "1" + "0" * 30, "1" + "0" * 400, "-0", "1E400", "9223372036854775808"]
PLACES = {
    "data": '{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":[{n},{rest}]}}]}}',
    "nested": '{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":[[{n},{rest}]]}}]}}',
    "UINT8": '{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"UINT8","data":[{n},{rest}]}}]}}',
    "shape": '{{"inputs":[{{"name":"x","shape":[{n},16],"datatype":"FP32","data":[1,{rest}]}}]}}',
    "binary": '{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","parameters":{{"binary_data_size":{n}}}}}]}}',
    "offset": '{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","parameters":{{"shared_memory_region":"r",'
    '"shared_memory_offset":{n},"shared_memory_byte_size":64}}}}]}}',
    "timeout": '{{"parameters":{{"timeout":{n}}},"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":[1,{rest}]}}]}}',
    "priority": '{{"parameters":{{"priority":{n}}},"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":[1,{rest}]}}]}}',
    "token": '{{"model":"mlp","input":[{n}]}}',
    "dimensions": '{{"model":"mlp","input":"w","dimensions":{n}}}',
}


def test_numbers_beyond_all_types_are_refused(server: tools.Server) -> None:
    """Each in each place of a request: never an error of the server's own, and never an infinity in silence."""
    with tools.client(server.address) as client:
        for (place, form), number in product(PLACES.items(), NUMBERS):
            path = "/v1/embeddings" if "model" in form else "/v2/models/mlp/infer"
            status, _, said = client.ask(path, form.format(n=number, rest=",".join(["0"] * 15)).encode())
            assert status in {200, 400, 413, 504}, (place, number, status, said)
            if status == 200 and place in {"data", "nested"}:
                assert None not in said["outputs"][0]["data"], (place, number)  # what is infinite becomes null
            if number in {"1e999", "-1e999", "1E400"} or (place == "UINT8" and number in {"300", "-1"}):
                assert status == 400, (place, number)
            if number == "1e300" and place in {"data", "nested"}:
                assert status == 400
                assert "beyond what FP32 holds" in said["error"]


@pytest.mark.parametrize("name", ["config", "file:1/model.onnx"])
def test_clients_bring_no_models(server: tools.Server, name: str) -> None:
    path = "/v2/repository/models/mlp/load"
    with tools.client(server.address) as client:
        status, _, said = client.ask(path, {"parameters": {name: "{}"}})
        assert (status, "not supported" in said["error"]) == (400, True)
        for body in ({}, {"parameters": {}}, {"parameters": {"other": 1}}, b""):
            assert client.ask(path, body, method="POST")[0] == 200
        for wrong in (b"[]", b"{", b'{"parameters":3}'):
            assert client.ask(path, wrong)[0] == 400
        assert client.ask(path, b" " * (1 << 17))[0] == 413
    load = schema.message("RepositoryModelLoadRequest")(model_name="mlp")
    with grpc.insecure_channel(server.grpc_address) as channel:
        rpc(channel, "RepositoryModelLoad", load.SerializeToString())
        load.parameters[name].string_param = "{}"
        with pytest.raises(grpc.RpcError) as raised:
            rpc(channel, "RepositoryModelLoad", load.SerializeToString())
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "not supported" in raised.value.details()


METHODS = {each.name: schema.class_of(each.input_type) for each in schema.methods() if not each.client_streaming}


@given(method=st.sampled_from(sorted(METHODS)), data=st.binary(max_size=40))
@example(method="ModelInfer", data=b"\xff\xff\xff")
@example(method="ModelInfer", data=b"\xff" * (300 << 10))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_that_are_no_message(server: tools.Server, method: str, data: bytes) -> None:
    with contextlib.suppress(message.DecodeError):
        METHODS[method].FromString(data)
        return
    with grpc.insecure_channel(server.grpc_address) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            rpc(channel, method, data)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.stream_stream(f"/{schema.SERVICE}/ModelStreamInfer")
        with contextlib.suppress(message.DecodeError):
            schema.ModelInferRequest.FromString(data)
            return
        (answer,) = stream(iter([data]), timeout=tools.WATCHDOG_S)
        assert schema.ModelStreamInferResponse.FromString(answer).error_message


@contextlib.contextmanager
def connections(address: str, n: int) -> Iterator[list[socket.socket]]:
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((host, int(port)), tools.WATCHDOG_S)) for _ in range(n)]


def lives(sock: socket.socket) -> bool:
    try:
        sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        return sock.recv(1 << 12).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def test_a_shortage_of_descriptors_passes(tmp_path: Any) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    with tools.serving(tmp_path, tmp_path) as server:
        (front_end,) = server.front_ends()
        most = front_end.num_fds() + 40
        front_end.rlimit(psutil.RLIMIT_NOFILE, (most, most))
        with connections(server.address, 100) as socks:
            server.wait_for(SHORTAGE)
            alive = [lives(sock) for sock in socks]
            assert 10 < sum(alive) <= 40
            assert not any(alive[40:])
        again = tools.Retrying(server.address, lambda client: client.infer("mlp", tools.mlp_feeds()))
        lost = -1
        while lost < again.lost:  # the connections before may still have to end
            lost = again.lost
            again()
        again.client.close()
        assert sum(SHORTAGE in line for line in server.log) == 1


class NoShelf:
    absent = "nothing is here"
    closing = False
    all: tuple[()] = ()
    unserved: tuple[()] = ()

    def tell(self) -> None:
        """Nobody watches it."""


def against_grpc(limits: Limits, client: Any) -> None:
    """Runs `client(address)` against the service, without models."""

    async def work() -> None:
        shelf: Any = NoShelf()
        served = service.Service(shelf, limits, Budget(limits.pending), Tokens([]), None, None, None)
        with listener.reserved("127.0.0.1", 0) as address:
            listening = listener.Listener(served, Health(shelf, Tokens([])), address, limits, None)
            await listening.start()
            try:
                await asyncio.to_thread(client, address)
            finally:
                await listening.stop(0)

    asyncio.run(work())


def test_a_message_that_does_not_end() -> None:
    def client(address: str) -> None:
        raw = raw_http2.Raw(address)
        raw.begin(1, "ModelInfer")
        raw.message(1, b"abc", said=1000, last=False)
        *_, (kind, _, _, _) = raw.until(raw_http2.RESET, 1)
        assert kind == raw_http2.RESET
        raw.begin(3, "ServerLive")  # the connection goes on
        raw.message(3, b"")
        assert raw.until(raw_http2.DATA, 3)[-1][0] == raw_http2.DATA
        raw.close()

    against_grpc(Limits(body_s=0.2), client)


def test_a_client_that_does_not_read_its_socket() -> None:
    """It answers no pings, so that gRPC ends the connection."""

    def client(address: str) -> None:
        raw = raw_http2.Raw(address, window=0)
        raw.begin(1, "ServerMetadata")
        raw.message(1, b"")
        poll = select.poll()
        poll.register(raw.sock, select.POLLRDHUP)  # errors and the end of the connection only
        assert poll.poll(tools.WATCHDOG_S * 1000)
        raw.close()

    against_grpc(Limits(unread_s=1.0), client)
