"""A process that constructs a `Predictor` of the model at a path and answers: the planner process it uses, and a digest of its results."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import numpy as np


def rows(count: int = 7) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 16)).astype(np.float32)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


class NodeProcess:
    """Begins at once, and says something when it has constructed its class."""

    def __init__(self, model: Path) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; import node_process; node_process.main({str(model)!r})"
        self.process = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def hear(self) -> Any:
        return pickle.load(cast("IO[bytes]", self.process.stdout))

    def run(self) -> str:
        """The digest of its results for `rows`."""
        stdin = cast("IO[bytes]", self.process.stdin)
        stdin.write(b"run\n")
        stdin.flush()
        return str(self.hear())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()
        cast("IO[bytes]", self.process.stdin).close()
        cast("IO[bytes]", self.process.stdout).close()


def main(model: str) -> None:
    from aspen_mp.ray import Predictor

    predictor = Predictor(model, workers=1)
    _say(predictor._runtime.pid)
    for _ in sys.stdin.buffer:
        _say(digest(predictor({"x": rows()})["y"]))


def _say(what: object) -> None:
    pickle.dump(what, sys.stdout.buffer)
    sys.stdout.buffer.flush()
