"""What people read when something is wrong or small: numbers and articles, near misses, places, narrow terminals, scarce machines."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import small_models
import typer
from rich.console import Console

import aspen_mp
from aspen_mp.cli import options, top
from aspen_mp.control.wire import run_directory
from aspen_mp.errors import AspenError, RequestError, ResourceLimitError
from aspen_mp.shm.scarcity import start_thread
from aspen_mp.shm.words import a, count, nearest
from aspen_mp.system import descriptors, filesystem

WATCHDOG_S = 120.0


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run" / "aspen-mp"


def test_words() -> None:
    assert [count(n, "worker") for n in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
    assert [a(noun) for noun in ("int", "list", "ndarray", "Object")] == ["an int", "a list", "an ndarray", "an Object"]
    assert nearest("imput_ids", ["input_ids", "attention_mask"]) == "input_ids"
    assert nearest("INPUT_IDS", ["input_ids", "attention_mask"]) == "input_ids"
    assert nearest("zzz", ["input_ids"]) is None


def test_misspelt_names(shared_runtime: aspen_mp.Runtime) -> None:
    """Both names are in the message, whichever way the wrong one is given."""
    model = shared_runtime.load(small_models.two_inputs())
    good = {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    for wrong in ({"A": good["a"], "b": good["b"]}, {**good, "A": good["a"]}):
        for use in (model.run, model.submit, lambda feeds: next(model.map([feeds]))):
            with pytest.raises(RequestError, match=r"no input 'A' \(is 'a' meant\?\)\. It has a, b"):
                use(wrong)
    with pytest.raises(RequestError, match=r"input 'b' is missing\. The model needs a, b"):
        model.run({"a": good["a"]})
    with pytest.raises(RequestError, match=r"no output 'scalled' \(is 'scaled' meant\?\)"):
        model.run(good, ["scalled"])
    with pytest.raises(RequestError, match=r"no input 'A' \(is 'a' meant\?\)"):
        shared_runtime.load(small_models.two_inputs(), input_shapes={"A": (2, 3)})
    with pytest.raises(RequestError, match=r"no input 'A' \(is 'a' meant\?\)"):
        model.prepare({"A": (2, 3), "b": (3,)})
    with pytest.raises(RequestError, match="3 workers to remove, but there are 2"):
        shared_runtime.remove_workers(3)


def test_a_command_without_a_name_takes_the_only_runtime() -> None:
    assert options.running(None) == "default"
    with aspen_mp.Runtime(workers=1, name="alpha", log="off"):
        assert options.running(None) == options.running("") == "alpha"
        assert options.running("beta") == "beta"
        with aspen_mp.Runtime(workers=1, name="beta", log="off"):
            with pytest.raises(typer.BadParameter, match=r"2 runtimes run \(alpha, beta\): say which"):
                options.running(None)
            with aspen_mp.Runtime(workers=1, name="default", log="off"):
                assert options.running(None) == "default"
    with pytest.raises(typer.BadParameter, match="not a runtime name"):
        options.running("a b")


@pytest.mark.parametrize("width", [80, 100, 160])
def test_top_fits_the_terminal(shared_runtime: aspen_mp.Runtime, width: int) -> None:
    before = shared_runtime.status()
    found = top.changes(before, shared_runtime.status(), 1.0)
    for worker in found["workers"]:
        worker.update(current=(12, 34567), op="a_layer_with_quite_a_long_name", tiles_per_s=123456.0, steals_per_s=12345.0, queued=1234)
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.capture() as said:
        console.print(top._screen(found, width))
    console.file.close()
    lines = said.get().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "a_layer_with" in line]
    assert len(rows) == len(found["workers"])
    for row in rows:
        assert all(value in row for value in ("123456", "12345", "1234", "running"))
    assert any("tile [request:tile]" in line and "steals/s" in line for line in lines)


def test_a_run_directory_that_cannot_be_written(own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only /tmp, with the directory there and without it."""
    real = descriptors.open

    def read_only(path, flags, *rest, **more):
        if flags & os.O_CREAT and str(path).endswith(".lock"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **more)

    def no_folder(path, *rest, **more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "mkdir", no_folder)
        with pytest.raises(AspenError, match=f"{own_directory}.*Read-only file system.*XDG_RUNTIME_DIR"):
            run_directory.Claim("x")
    monkeypatch.setattr(descriptors, "open", read_only)
    with pytest.raises(AspenError, match=f"{own_directory}.*Read-only file system.*XDG_RUNTIME_DIR"):
        run_directory.Claim("x")


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(ResourceLimitError, match=r"ulimit -u"):
            start_thread(threading.Thread())
        with pytest.raises(ResourceLimitError, match=r"ulimit -u"):
            aspen_mp.Runtime(workers=1)


FEW_PROCESSES = """
import os, resource, sys
import aspen_mp, aspen_mp.errors
aspen_mp.Runtime(workers=1).close()  # imports what it takes, which the other user may not be able to read
uid = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if uid:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
try:
    aspen_mp.Runtime(workers=1).close()
    print("started")
except aspen_mp.errors.AspenError as error:
    print(type(error).__name__, error)
"""


def test_few_processes(tmp_path: Path) -> None:
    """`ulimit -u` counts a user's processes and does not bind root, who becomes a user with one process here."""
    code = [sys.executable, "-c", FEW_PROCESSES, "0" if os.getuid() else "64321"]
    done = subprocess.run(code, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.stdout.startswith("ResourceLimitError"), (done.stdout, done.stderr)
    assert "ulimit -u" in done.stdout
