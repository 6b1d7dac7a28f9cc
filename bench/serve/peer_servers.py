"""Servers of other projects with onnxruntime inside, each started as its documentation says for production.

Each is measured where its package is installed, and at those transports that it has. A request carries the same tensors as ours, in the
densest form that the server takes.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, ClassVar, Final, cast

import numpy as np
import numpy.typing as npt

from aspen_mp.bench.agreement import error_of
from aspen_mp.bench.serve import requests
from aspen_mp.bench.serve.client import METHOD, Request
from aspen_mp.bench.serve.servers import Server, started
from aspen_mp.control.wire import python
from aspen_mp.errors import AspenError

_ANSWERS_S: Final = 60.0
"""A watchdog: workers load the model while the first request waits."""
_STARTS_S: Final = 120.0
"""Another watchdog, for logs that say something else when a server is ready."""
_AGREES: Final = 0.01
"""Largest error, as a share of the largest magnitude: an answer to other numbers is noticed, other rounding is not."""

Arrays = Mapping[str, npt.NDArray[Any]]


class PeerServer(Server):
    """A server of another project. Use as a context manager, as `Server`.

    `name`: of the project. `package`: what must be installed. `transports`: those of `requests.TRANSPORTS` that it has. `ready`: what its
    log says when it accepts requests; `workers_say_it`: each worker says so, too, before.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    transports: ClassVar[tuple[str, ...]]
    ready: ClassVar[bytes]
    workers_say_it: ClassVar[bool] = False

    def __init__(self, folder: Path, file: Path, cores: Sequence[int], workers: int) -> None:
        """Starts it, with a session of the model file in each of `workers`. `folder`: its own; it is made. AspenError where it fails."""
        folder.mkdir()
        command, environment, at = self._prepared(folder, file, list(cores), workers)
        path = os.pathsep.join(filter(None, sys.path))
        process = started(
            command, affinity=cores, cwd=folder, env=os.environ | environment | {"PYTHONPATH": path}, stderr=subprocess.STDOUT
        )
        super().__init__(f"{self.name} with onnxruntime, {workers} worker{'s' if workers > 1 else ''}", process, at)
        self._log: deque[bytes] = deque(maxlen=20)
        awaited = 1 + workers if self.workers_say_it else 1
        watchdog = threading.Timer(_STARTS_S, process.kill)
        watchdog.start()
        for line in (log := cast("IO[bytes]", process.stdout)):
            self._log.append(line)
            awaited -= self.ready in line
            if not awaited:
                break
        watchdog.cancel()
        if awaited:
            raise self._failure(f"did not start: it ended with status {process.wait()}")
        self._reader = threading.Thread(target=self._log.extend, args=(log,), daemon=True)
        self._reader.start()

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._reader.join()
        super().__exit__(*error)

    def _prepared(self, folder: Path, file: Path, cores: list[int], workers: int) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """Its command, what its environment has beside ours, and its addresses by transport."""
        raise NotImplementedError

    def check(self, transport: str, request: Request, expected: Arrays) -> None:
        """Compares its answer to a request with ours. AspenError where it has none, or another one."""
        try:
            body = _called(self.at[transport], request.sent) if transport == "grpc" else _asked(self.at[transport], request.sent)
            found = self._answer(transport, body, expected)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._failure(f"did not answer a request over {transport}: {error}") from error
        if (worst := error_of(found, list(expected.values()))) > _AGREES:
            raise self._failure(f"gave another answer than aspen-mp over {transport}: it is off by {worst:.1e} of the largest value")

    def _answer(self, transport: str, body: bytes, expected: Arrays) -> list[npt.NDArray[Any]]:
        """The arrays of an answer, in the order of those that are expected."""
        raise NotImplementedError

    def _failure(self, what: str) -> AspenError:
        log = b"".join(self._log).decode(errors="replace")
        return AspenError(f"{self.engine} {what}. Mend or uninstall {self.package}, or give --no-peers. Its log ends with:\n{log}")


class BentoML(PeerServer):
    """Its arrays are JSON over HTTP. Bytes that the service unpacks are denser: files of numpy."""

    name = "BentoML"
    package = "bentoml"
    transports = ("http",)
    ready = b"Starting production HTTP BentoServer"

    def _prepared(self, folder: Path, file: Path, cores: list[int], workers: int) -> tuple[list[str], dict[str, str], dict[str, str]]:
        (port,) = _free_ports(1)
        service = "aspen_mp.bench.serve.bentoml_service:OnnxRuntime"
        command = python.command("bentoml_cli.cli", "serve", service, "--host", "127.0.0.1", "--port", str(port), function="cli")
        settings = json.dumps({"model": str(file), "cores": cores, "workers": workers})
        environment = {requests.SETTINGS: settings, "BENTOML_HOME": str(folder), "BENTOML_DO_NOT_TRACK": "True"}
        return command, environment, {"http": f"127.0.0.1:{port}"}

    def request(self, transport: str, feeds: Arrays, results: Arrays) -> Request:
        """Makes the request of `Server.request`."""
        return Request(requests.post("/infer", "Content-Type: application/octet-stream", requests.packed(feeds.values())))

    def _answer(self, transport: str, body: bytes, expected: Arrays) -> list[npt.NDArray[Any]]:
        return requests.unpacked(body)


class MLServer(PeerServer):
    """It speaks the Open Inference Protocol without the extension for binary tensors. Over HTTP, base64 is the densest that it takes."""

    name = "MLServer"
    package = "mlserver"
    transports = ("http", "json", "grpc")
    ready = f"Loaded model '{requests.MODEL}' successfully".encode()
    workers_say_it = True

    def _prepared(self, folder: Path, file: Path, cores: list[int], workers: int) -> tuple[list[str], dict[str, str], dict[str, str]]:
        web, grpc = _free_ports(2)
        settings = {"debug": False, "host": "127.0.0.1", "http_port": web, "grpc_port": grpc, "parallel_workers": workers}
        settings |= {"metrics_endpoint": None, "grpc_max_message_length": -1}
        (folder / "settings.json").write_text(json.dumps(settings))
        model = {"name": requests.MODEL, "implementation": "aspen_mp.bench.serve.mlserver_runtime.OnnxRuntime"}
        (folder / "model-settings.json").write_text(json.dumps(model | {"parameters": {"uri": str(file), "extra": {"cores": cores}}}))
        at = dict.fromkeys(("http", "json"), f"127.0.0.1:{web}") | {"grpc": f"127.0.0.1:{grpc}"}
        return python.command("mlserver.cli", "start", str(folder)), {}, at

    def request(self, transport: str, feeds: Arrays, results: Arrays) -> Request:
        """Makes the request of `Server.request`."""
        if transport != "http":
            return super().request(transport, feeds, results)
        tensors = [
            {
                "name": name,
                "shape": array.shape,
                "datatype": "BYTES",
                "parameters": {"content_type": "base64", "dtype": array.dtype.name},
                "data": [base64.b64encode(array.tobytes()).decode()],
            }
            for name, array in feeds.items()
        ]
        return Request(requests.post(requests.INFER, requests.JSON, json.dumps({"inputs": tensors}).encode()))

    def _answer(self, transport: str, body: bytes, expected: Arrays) -> list[npt.NDArray[Any]]:
        if transport == "grpc":
            from aspen_mp.serving.grpc import schema

            message = schema.message("ModelInferResponse").FromString(body)
            data: dict[str, Any] = {each.name: raw for each, raw in zip(message.outputs, message.raw_output_contents, strict=True)}
        else:
            data = {each["name"]: each["data"] for each in json.loads(body)["outputs"]}
            data = {name: base64.b64decode(value[0]) for name, value in data.items()} if transport == "http" else data
        read = np.array if transport == "json" else np.frombuffer
        return [read(data[name], array.dtype).reshape(array.shape) for name, array in expected.items()]


PEERS: Final[tuple[type[PeerServer], ...]] = (BentoML, MLServer)


def installed(transports: Sequence[str]) -> list[type[PeerServer]]:
    """Those that can be measured at some of the transports."""
    return [peer for peer in PEERS if importlib.util.find_spec(peer.package) is not None and set(peer.transports) & set(transports)]


def _free_ports(count: int) -> Iterator[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return iter([each.getsockname()[1] for each in held])


def _asked(address: str, sent: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _ANSWERS_S) as connection:
        connection.sendall(sent)
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read()
    if response.status != http.HTTPStatus.OK:
        raise ValueError(f"status {response.status}: {body[:300].decode(errors='replace')}")
    return body


def _called(address: str, sent: bytes) -> bytes:
    import grpc

    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        try:
            found: bytes = channel.unary_unary(METHOD)(sent, timeout=_ANSWERS_S, wait_for_ready=True)
        except grpc.RpcError as error:
            raise ValueError(f"{error.code().name}: {error.details()}") from error
    return found
