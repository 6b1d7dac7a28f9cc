"""Servers in processes of their own, from their start to their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy.typing as npt

from aspen_mp.bench.child import Child
from aspen_mp.bench.serve import requests
from aspen_mp.bench.serve.client import PREFIX, Done, Job, Request
from aspen_mp.bench.serve.requests import MODEL
from aspen_mp.bench.serve.stand_in import Settings
from aspen_mp.control.wire import python
from aspen_mp.errors import AspenError


class Server:
    """One that answers. Use as a context manager.

    Attributes:
        engine: Its label.
        at: {transport: address}.
        pid: Of the process that all its processes descend from.
        runtime: The name of its runtime; empty without one.
    """

    def __init__(self, engine: str, process: subprocess.Popen[bytes], at: dict[str, str], runtime: str = "") -> None:
        self.engine = engine
        self.at = at
        self.pid = process.pid
        self.runtime = runtime
        self._process = process

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        cast("IO[bytes]", self._process.stdout).close()

    def request(self, transport: str, feeds: Mapping[str, npt.NDArray[Any]], results: Mapping[str, npt.NDArray[Any]]) -> Request:
        """A client's request to it. As `requests.request`."""
        return requests.request(transport, feeds, results)


def ours(repository: Path, cores: Sequence[int], front_ends: int, grpc: bool, runtime: str | None) -> Server:
    """`aspen-mp serve`, on the runtime of this name or on one of its own. AspenError where it does not start."""
    path = repository.with_name("ours.sock")
    arguments = ["serve", str(repository), "--port", "0", "--json", "--http-workers", str(front_ends)]
    arguments += ["--workers", str(len(cores))] if runtime is None else ["--name", runtime]
    arguments += ["--unix-socket", str(path), "--allow-named-shm", PREFIX, *(["--grpc-port", "0"] if grpc else [])]
    process = started(python.command("aspen_mp.cli", *arguments), affinity=cores)
    said = ""
    for line in cast("IO[bytes]", process.stdout):
        said += line.decode()
        if line == b"}\n":
            break
    told = json.loads(said or "{}")
    if "at" not in told:
        raise AspenError(f"the server did not start: {told.get('error') or 'see above'}")
    at = dict.fromkeys(("unix", "memory"), str(path))
    for each in told["at"]:
        scheme, _, address = each.partition("://")
        at |= {"http": address, "json": address} if scheme == "http" else {"grpc": address} if scheme == "grpc" else {}
    return Server("aspen-mp", process, at, told["runtime"])


def stand_in(repository: Path, file: Path, cores: Sequence[int], processes: int, grpc: bool) -> Server:
    """onnxruntime behind the same code, with a session of the model file in each of `processes`."""
    from aspen_mp.serving.front_end import ENVIRONMENT

    path = repository.with_name(f"stand-in-{processes}.sock")
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(path))
        unix.listen(2048)
        at = {"unix": str(path)} | dict.fromkeys(("http", "json"), f"127.0.0.1:{tcp.getsockname()[1]}")
        if grpc:
            from aspen_mp.serving.grpc.listener import reserved

            at["grpc"] = stack.enter_context(reserved("127.0.0.1", 0))
        sockets = [tcp.fileno(), unix.fileno()]
        settings = Settings(
            model=str(file), processes=processes, cores=list(cores), sockets=sockets, grpc=at.get("grpc"), parent=os.getpid()
        )
        command = python.command("aspen_mp.bench.serve.stand_in", msgspec.json.encode(settings).decode())
        process = started(command, affinity=cores, pass_fds=sockets, env={**ENVIRONMENT, **os.environ})
        for _ in range(processes):
            if not cast("IO[bytes]", process.stdout).readline():
                raise AspenError(f"onnxruntime did not start: its process ended with status {process.wait()}")
    return Server(f"onnxruntime, {processes} process{'es' if processes > 1 else ''}", process, at)


def started(command: list[str], affinity: Sequence[int], **more: Any) -> subprocess.Popen[bytes]:
    """A process that may use these CPUs; its standard output is a pipe. `more`: as of `subprocess.Popen`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, affinity)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, **more)
    finally:
        os.sched_setaffinity(0, before)


class Caller(Child):
    """A client process for one server and one transport, which sleeps until it has a job."""

    def __init__(self, transport: str, address: str, request: Request) -> None:
        super().__init__(python.command("aspen_mp.bench.serve.client"))
        self.tell((transport, address, request))

    def run(self, job: Job) -> Done:
        """The outcome of a job. AspenError where the server refuses connections or ends them."""
        self.tell(job)
        found: Done = self.hear()
        return found


def write(repository: Path, model: bytes, objective: str) -> Path:
    """Puts a model into a new repository, to be served as `MODEL`. Returns its file."""
    file = repository / MODEL / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(model)
    (repository / MODEL / "config.toml").write_text(f'objective = "{objective}"\n')
    return file
