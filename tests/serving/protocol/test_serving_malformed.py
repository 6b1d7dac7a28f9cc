"""Drawn malformed requests: each gets a typed error or a right answer, and other clients' results stay right meanwhile."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
EXAMPLES = 5000 if LONG else 150
ALLOWED = {200, 400, 404, 405, 408, 413, 415, 429, 431, 503, 504}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    with tools.serving(folder, folder, "--max-body", "1") as found:
        yield found


@pytest.fixture(scope="module")
def others(server: tools.Server) -> Iterator[None]:
    """A client that behaves, for as long as the tests of the module run."""
    feeds = tools.mlp_feeds()
    with tools.client(server.address) as client:

        def once(k: int) -> None:
            np.testing.assert_allclose(client.infer("mlp", feeds)["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)

        once(0)  # its connection is there before the descriptors of a test are counted
        with tools.load(1, once) as counts:
            yield
        assert counts[0]


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3))
TENSOR = {
    "name": st.sampled_from(["x", "x", "x", "y", ""]) | VALUES,
    "shape": st.sampled_from([[1, 16], [0, 16], [1 << 40, 16], [16]]) | VALUES,
    "datatype": st.sampled_from(["FP32", "FP32", "INT8", "BYTES", "fp32"]) | VALUES,
    "data": st.just([0.5] * 16) | VALUES,
    "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.sampled_from([0, 63, 64, 65, 1 << 47]) | VALUES}) | VALUES,
}
PARAMETERS = ["timeout", "priority", "binary_data_output", "sequence_id", "sequence_start", "sequence_end"]
REQUEST = {
    "id": VALUES,
    "inputs": st.lists(st.fixed_dictionaries({}, optional=TENSOR) | VALUES, max_size=3) | VALUES,
    "outputs": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["y", "z"])}) | VALUES, max_size=2) | VALUES,
    "parameters": st.dictionaries(st.sampled_from(PARAMETERS), VALUES | st.sampled_from([True, 1, 2])) | VALUES,
}
HEADERS = st.dictionaries(
    st.sampled_from(["Inference-Header-Content-Length", "Content-Type", "Content-Encoding", "Expect"]),
    st.sampled_from(["0", "-1", "64", "100", "99999999999999999999", "gzip", "100-continue", "x"]),
    max_size=2,
)


@given(document=st.fixed_dictionaries({}, optional=REQUEST), headers=HEADERS, tail=st.binary(max_size=80), exact=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_documents(server: tools.Server, others: None, document: Any, headers: dict[str, str], tail: bytes, exact: bool) -> None:
    text = json.dumps(document).encode()
    if exact:
        headers = {**headers, "Inference-Header-Content-Length": str(len(text))}
    with tools.client(server.address) as client:
        status, _, said = client.ask("/v2/models/mlp/infer", text + tail, headers)
    assert status in ALLOWED, (status, said)
    assert status == 200 or list(said) == ["error"]
    assert server.process.poll() is None


LINES = st.sampled_from(
    [
        b"POST /v2/models/mlp/infer HTTP/1.1\r\n",
        b"GET /v2 HTTP/1.1\r\n",
        b"GET * HTTP/1.1\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: close\r\n",
        b"\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"hello",
        b"X: " + b"y" * 40000 + b"\r\n",
    ]
)


@given(parts=st.lists(LINES | st.binary(max_size=40), max_size=8))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_bytes_that_are_no_http(server: tools.Server, others: None, parts: list[bytes]) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), tools.WATCHDOG_S) as sock:
        said = b""
        try:
            sock.sendall(b"".join(parts))
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(1 << 16):
                said += data
        except TimeoutError:
            raise
        except OSError:  # ENOTCONN, where the server was faster, is no ConnectionError
            pass
    for answer in said.split(b"HTTP/1.1 ")[1:]:
        if not answer.startswith(b"100"):
            assert int(answer[:3]) in ALLOWED, said


def test_headers_have_a_limit(server: tools.Server) -> None:
    with tools.client(server.address) as client:
        assert client.ask("/v2", headers={"X": "y" * 40000})[0] == 431
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), tools.WATCHDOG_S) as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nX: " + b"y" * 40000)  # never ends
        assert sock.recv(100).startswith(b"HTTP/1.1 431")


def test_bodies_have_a_limit(server: tools.Server) -> None:
    with tools.client(server.address) as client:
        assert client.ask("/v2/models/mlp/infer", b"x" * (1 << 20) + b"x")[0] == 413
    with tools.client(server.address) as client:
        assert client.ask("/v2/models/mlp/infer", iter([b"x" * (1 << 19)] * 3))[0] == 413  # in chunks, of no known length
