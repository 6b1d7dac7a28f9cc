"""Servers in processes of their own, from their start to their end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from aspen_mp.bench.serve.client import Done, Job
from aspen_mp.bench.serve.requests import MODEL
from aspen_mp.bench.serve.stand_in import Settings
from aspen_mp.errors import AspenError

_PYTHON: Final = (sys.executable, "-P")
_CALLED: Final = "import sys;sys.path[:]={path!r};from {module} import main;main()"


def _command(module: str, *arguments: str) -> list[str]:
    """A module of ours as this process has imported it, wherever it was started."""
    return [*_PYTHON, "-c", _CALLED.format(path=sys.path, module=module), *arguments]


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


def ours(file: Path, cores: Sequence[int], front_ends: int, grpc: bool) -> Server:
    """`aspen-mp serve`. AspenError where it does not start."""
    path = file.with_name("ours.sock")
    arguments = ["serve", str(file), "--port", "0", "--json", "--workers", str(len(cores)), "--http-workers", str(front_ends)]
    arguments += ["--unix-socket", str(path), *(["--grpc-port", "0"] if grpc else [])]
    process = _started(_command("aspen_mp.cli", *arguments), affinity=cores)
    said = ""
    for line in cast("IO[bytes]", process.stdout):
        said += line.decode()
        if line == b"}\n":
            break
    told = json.loads(said or "{}")
    if "at" not in told:
        raise AspenError(f"the server did not start: {told.get('error') or 'see above'}")
    at = {"unix": str(path)}
    for each in told["at"]:
        scheme, _, address = each.partition("://")
        at |= {"http": address, "json": address} if scheme == "http" else {"grpc": address} if scheme == "grpc" else {}
    return Server("aspen-mp", process, at, told["runtime"])


def stand_in(file: Path, cores: Sequence[int], processes: int, grpc: bool) -> Server:
    """onnxruntime behind the same code, with a session in each of `processes`."""
    path = file.with_name(f"stand-in-{processes}.sock")
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
        command = _command("aspen_mp.bench.serve.stand_in", msgspec.json.encode(settings).decode())
        process = _started(command, affinity=cores, pass_fds=sockets)
        for _ in range(processes):
            if not cast("IO[bytes]", process.stdout).readline():
                raise AspenError(f"onnxruntime did not start: its process ended with status {process.wait()}")
    return Server(f"onnxruntime, {processes} process{'es' if processes > 1 else ''}", process, at)


def _started(command: list[str], affinity: Sequence[int], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, affinity)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=tuple(pass_fds))
    finally:
        os.sched_setaffinity(0, before)


class Caller:
    """A client process for one server and one transport, which sleeps until it has a job."""

    def __init__(self, transport: str, address: str, payload: bytes) -> None:
        command = _command("aspen_mp.bench.serve.client")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell((transport, address, payload))

    def run(self, job: Job) -> Done:
        """What became of a job. AspenError where the server refuses connections or ends them."""
        self._tell(job)
        try:
            found: Done = pickle.load(cast("IO[bytes]", self._process.stdout))
        except (EOFError, pickle.UnpicklingError):
            raise AspenError(f"a client process ended with status {self._process.wait()}, see above") from None
        return found

    def _tell(self, what: Any) -> None:
        stdin = cast("IO[bytes]", self._process.stdin)
        pickle.dump(what, stdin)
        stdin.flush()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        cast("IO[bytes]", self._process.stdin).close()
        cast("IO[bytes]", self._process.stdout).close()


def model_file(folder: Path) -> Path:
    """Where a model lies that is served as `MODEL`."""
    return folder / f"{MODEL}.onnx"
