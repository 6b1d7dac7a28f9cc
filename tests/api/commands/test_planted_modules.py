"""Folders whose files are called like modules: nothing that is started there runs one of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import onnx
import pytest
import small_models

WATCHDOG_S = 120
CALLED = [sys.executable, "-P", "-m", "aspen_mp.cli"]
"""As the console script does, the parent itself does not look into the working directory."""
PROGRAM = """
import sys
import numpy as np
import aspen_mp
if __name__ == "__main__":
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load("mlp.onnx")
        print(model.run({"x": np.zeros((3, 16), np.float32)})["y"].shape)
"""


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model, and a file for every module there is, except for those of aspen_mp itself. None of these may be run."""
    folder = tmp_path / "planted"
    folder.mkdir()
    marker = tmp_path / "executed"
    names = {*sys.stdlib_module_names, *packages_distributions(), "tokenizers", "prometheus_client", "uvicorn", "sitecustomize"}
    for name in names - {"aspen_mp"}:
        if "/" not in name:
            (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write('{name} ')\nraise SystemExit('{name}.py was run')\n")
    onnx.save(small_models.mlp("n"), folder / "mlp.onnx")
    yield folder
    assert not marker.exists(), marker.read_text()


def ran(folder: Path, *arguments: str | Path) -> str:
    done = subprocess.run([*map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def until_ready(folder: Path, *arguments: str) -> Iterator[dict[str, object]]:
    """A command that says in JSON that it is ready, and ends on SIGTERM with status 0."""
    process = subprocess.Popen([*CALLED, *arguments, "--json"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line == "}\n":
                break
        yield json.loads(said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WATCHDOG_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_runtime(planted: Path, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    assert ran(planted, sys.executable, script).startswith("(3, ")


def test_a_detached_runtime(planted: Path) -> None:
    name = f"planted-{os.getpid()}"
    ran(planted, *CALLED, "launch", "--detach", "--name", name, "--workers", "1", "mlp.onnx")
    ran(planted, *CALLED, "stop", "--name", name)


def test_a_runtime_with_metrics(planted: Path) -> None:
    pytest.importorskip("prometheus_client")
    with until_ready(planted, "launch", "--name", f"planted-{os.getpid()}", "--workers", "1", "--metrics", "0") as said:
        assert "metrics" in said


def test_a_server(planted: Path) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("grpc")
    ports = ("--port", "0", "--grpc-port", "0", "--metrics-port", "0")
    with until_ready(planted, "serve", "mlp.onnx", "--workers", "1", "--http-workers", "2", *ports) as said:
        assert said["models"] == ["mlp"]
