"""A model behind Ray Serve: by handle and by HTTP, on the node's runtime."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ray_cluster import cluster
from small_models import mlp, mlp_reference

from aspen_mp.control.wire import run_directory
from aspen_mp.ray import deployment

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[data,serve]'")
serve = pytest.importorskip("ray.serve", reason="needs Ray: pip install 'ray[data,serve]'")

X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with cluster(1):
        with socket.create_server(("127.0.0.1", 0)) as free:
            number = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": number})
        yield number
        serve.shutdown()


def _post(port: int, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def handle(port: int, model: Path) -> Iterator[Any]:
    yield serve.run(deployment(str(model), num_replicas=2))
    serve.delete("default")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(mlp(batch="batch"), tmp_path / "mlp.onnx")
    return tmp_path / "mlp.onnx"


def test_a_deployment_answers(handle: Any, port: int, model: Path) -> None:
    expected = mlp_reference(onnx.load(model), X)
    np.testing.assert_allclose(handle.remote({"x": X}).result()["y"], expected, rtol=1e-4, atol=1e-4)
    status, answer = _post(port, {"inputs": {"x": X.tolist()}})
    assert status == 200
    np.testing.assert_allclose(answer["outputs"]["y"], expected, rtol=1e-4, atol=1e-4)

    (name,) = run_directory.names()
    pid = run_directory.holder(name)
    assert pid is not None
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([ended], [], [], 60)  # before, its workers would answer
    os.close(ended)
    status, answer = _post(port, {"inputs": {"x": X.tolist()}})
    assert status == 200
    np.testing.assert_allclose(answer["outputs"]["y"], expected, rtol=1e-4, atol=1e-4)

    for body, says in (
        (b"{", "Expecting"),
        ([1], "the body must be JSON of the form"),
        ({"inputs": {"y": [1]}}, "has no input 'y'"),
        ({"inputs": {"x": [[1.0]]}}, "input 'x' must have shape"),
        ({"inputs": {"x": "text"}}, "cannot be converted"),
    ):
        status, answer = _post(port, body)
        assert (status, list(answer)) == (400, ["error"])
        assert says in answer["error"]
