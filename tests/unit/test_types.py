"""A user's program, strictly typed: what it does right passes mypy and pyright, and what it does wrong is noticed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import folders
import pytest

TREE = folders.TESTS.parent / "build" / "tree"
"""The package as type checkers see it; the editable one is put together by an import hook."""
WATCHDOG_S = 600

PROGRAM = """
import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

import aspen_mp
from aspen_mp.errors import AspenError, QueueFull

x = np.zeros((1, 3, 224, 224), np.float32)


def images() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    yield {"x": x}


with aspen_mp.Runtime(workers=2) as runtime:
    model: aspen_mp.Model = runtime.load("model.onnx", precision="bf16")
    names: list[str] = [value.name for value in model.inputs]
    try:
        print(model.run({"x": x})["y"])
    except QueueFull as full:
        print(full)
    except AspenError as error:
        raise SystemExit(str(error)) from error
    future: Future[dict[str, Any]] = model.submit({"x": x}, timeout=1.0)
    for results in model.map(images()):
        print(results["y"].shape)
    asyncio.run(model.run_async({"x": x}))
    runtime.scale(1)
    status: dict[str, Any] = runtime.status()

with aspen_mp.connect("web") as shared:
    pid: int = shared.pid

session = aspen_mp.InferenceSession("model.onnx")
outputs = session.run(None, {"x": x})
"""
WRONG = """
runtime.load(3)
runtime.load("model.onnx", precision="f8")
model.run({"x": x}, priority=1)
model.submit({"x": x}, timeout="long")
aspen_mp.connect(name=1)
runtime.stale
"""
"""Each line is an error."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.lstrip() + WRONG.lstrip(), "utf-8")
    return path


def wrong_lines() -> list[int]:
    first = PROGRAM.lstrip().count("\n") + 1
    return list(range(first, first + WRONG.strip().count("\n") + 1))


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy(program: Path) -> None:
    cache = folders.TESTS.parent / ".mypy_cache"  # that of `make lint`
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "--no-error-summary", str(program)]
    where = {"MYPYPATH": str(TREE)} if TREE.is_dir() else {}
    done = subprocess.run(
        command, cwd=program.parent, env={**os.environ, **where}, capture_output=True, text=True, check=False, timeout=WATCHDOG_S
    )
    errors = [line for line in done.stdout.splitlines() if line.startswith("program.py:") and ": error:" in line]
    assert [int(line.split(":")[1]) for line in errors] == wrong_lines(), done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright(program: Path) -> None:
    settings = {"include": [program.name], "typeCheckingMode": "strict", "extraPaths": [str(TREE)]}
    (program.parent / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False, timeout=WATCHDOG_S)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = sorted({d["range"]["start"]["line"] + 1 for d in found if d["severity"] == "error"})
    assert errors == wrong_lines(), done.stdout
