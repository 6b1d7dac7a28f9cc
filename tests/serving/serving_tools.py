"""A server in a child process, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
import small_models

for _extra in ("starlette", "uvicorn", "httptools", "uvloop", "simdjson", "orjson"):
    pytest.importorskip(_extra, reason="serving is an extra: pip install 'aspen-mp[serve]'")

WATCHDOG_S = 60.0
NAMES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}


class Server:
    """A running `aspen-mp serve`. `log`: the lines of its standard error so far."""

    def __init__(self, *arguments: str | Path, workers: int | None = 1, folder: Path) -> None:
        command = [sys.executable, "-m", "aspen_mp.cli", "serve", *map(str, arguments), "--port", "0", "--json"]
        command += [] if workers is None else ["--workers", str(workers)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
        self.log: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said += line
            if line == "}\n":
                break
        self.said: dict[str, Any] = json.loads(said)
        if "error" in self.said:
            self.close()
            raise AssertionError(self.said)
        self.address = self.said["at"][0].partition("://")[2]
        self.grpc_address = next((at.removeprefix("grpc://") for at in self.said["at"] if at.startswith("grpc://")), "")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.log.append(line)
                self._changed.notify_all()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until the server has said this so often."""
        with self._changed:
            there = self._changed.wait_for(lambda: sum(line.count(text) for line in self.log) >= times, WATCHDOG_S)
            assert there, (text, self.log)

    def front_ends(self) -> list[psutil.Process]:
        """The oldest first: numbers of processes begin anew now and then."""
        found = [each for each in psutil.Process(self.process.pid).children() if "aspen_mp.serving.front_end" in each.cmdline()]
        return sorted(found, key=psutil.Process.create_time)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WATCHDOG_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(WATCHDOG_S)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def serving(folder: Path, *arguments: str | Path, workers: int | None = 1) -> Iterator[Server]:
    server = Server(*arguments, workers=workers, folder=folder)
    try:
        yield server
    finally:
        server.close()


def save(root: Path, name: str, version: int, model: onnx.ModelProto, config: str = "") -> None:
    """A version of a model in a repository. It appears at once, as a deployment would have it."""
    folder = root / name / str(version)
    draft = root / f".{name}-{version}"
    draft.mkdir(parents=True)
    onnx.save(model, draft / "model.onnx")
    folder.parent.mkdir(exist_ok=True)
    if config:
        (folder.parent / "config.toml").write_text(config)
    os.rename(draft, folder)


def constant(value: float) -> onnx.ModelProto:
    """y = x + value: tells versions apart. x is f32 [n, 4]."""
    helper = onnx.helper
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    tensor = onnx.numpy_helper.from_array(np.array(value, np.float32), "v")
    graph = helper.make_graph([helper.make_node("Add", ["x", "v"], ["y"])], "constant", infos[:1], infos[1:], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WATCHDOG_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WATCHDOG_S)
        self.sock.connect(self._path)


class Client:
    """One connection, kept alive."""

    def __init__(self, address: str) -> None:
        self._connection = UnixConnection(address) if address.startswith("/") else http.client.HTTPConnection(address, timeout=WATCHDOG_S)

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = "") -> tuple[int, Any, Any]:
        """Status, headers and body of the answer; the body as bytes where it is no JSON."""
        sent = json.dumps(body).encode() if isinstance(body, dict | list) else body
        self._connection.request(method or ("GET" if body is None else "POST"), path, sent, headers or {})
        answer = self._connection.getresponse()
        data = answer.read()
        return answer.status, answer.headers, json.loads(data) if answer.headers["content-type"] == "application/json" else data

    def infer(self, model: str, feeds: dict[str, np.ndarray], **more: Any) -> dict[str, np.ndarray]:
        """The outputs of a model, over JSON. AssertionError unless the status is 200."""
        inputs = [
            {"name": name, "shape": array.shape, "datatype": NAMES[array.dtype], "data": array.ravel().tolist()}
            for name, array in feeds.items()
        ]
        status, _, said = self.ask(f"/v2/models/{model}/infer", {"inputs": inputs, **more})
        assert status == 200, said
        kinds = {name: dtype for dtype, name in NAMES.items()}
        return {out["name"]: np.array(out["data"], kinds[out["datatype"]]).reshape(out["shape"]) for out in said["outputs"]}

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def client(address: str) -> Iterator[Client]:
    found = Client(address)
    try:
        yield found
    finally:
        found.close()


class Retrying:
    """A client that connects again when its front end has died, as load balancers do. `lost`: how often that was."""

    def __init__(self, address: str, once: Callable[[Client], None]) -> None:
        self.address = address
        self.once = once
        self.client = Client(address)
        self.lost = 0

    def __call__(self) -> None:
        try:
            self.once(self.client)
        except (ConnectionError, http.client.HTTPException):
            self.lost += 1
            self.client.close()
            self.client = Client(self.address)


class Counts(list[int]):
    """How often each thread of `load` has called. `check` raises the first error of one, which calls no more then."""

    def __init__(self, n: int) -> None:
        super().__init__([0] * n)
        self.errors: list[BaseException] = []
        self.changed = threading.Condition()

    def wait(self, more: int) -> None:
        """Until each thread has called so often again."""
        goals = [count + more for count in self]
        with self.changed:
            reached = self.changed.wait_for(lambda: self.errors or all(map(int.__ge__, self, goals)), WATCHDOG_S)
        self.check()
        assert reached, (list(self), goals)

    def check(self) -> None:
        if self.errors:
            raise self.errors[0]


@contextlib.contextmanager
def load(n: int, once: Callable[[int], None]) -> Iterator[Counts]:
    """`n` threads that call `once(thread)` again and again until the end of the block; how often each has. Their errors are raised then."""
    over = threading.Event()
    counts = Counts(n)

    def work(k: int) -> None:
        try:
            while not over.is_set():
                once(k)
                with counts.changed:
                    counts[k] += 1
                    counts.changed.notify_all()
        except BaseException as error:
            with counts.changed:
                counts.errors.append(error)
                counts.changed.notify_all()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        over.set()
        for thread in threads:
            thread.join(WATCHDOG_S)
    counts.check()


def mlp_feeds(rows: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)}


def mlp_wants(feeds: dict[str, np.ndarray]) -> np.ndarray:
    return small_models.mlp_reference(small_models.mlp("n"), feeds["x"])
