"""Runtimes that the processes of a node share: one for all of them, whoever comes, goes, or is killed."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import onnx
import psutil
import pytest
from node_process import NodeProcess, digest, rows
from small_models import mlp

import aspen_mp
from aspen_mp.control.wire import run_directory
from aspen_mp.errors import RuntimeLost
from aspen_mp.ray import Predictor, locks
from aspen_mp.ray.node import OUTSIDE
from aspen_mp.tools import doctor

MANY = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "mlp.onnx"
    onnx.save(mlp(batch=4), file)
    return file


@pytest.fixture
def predictor(model: Path) -> Iterator[Predictor]:
    made = Predictor(model, workers=1)
    yield made
    made.close()


def _await_end(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([fd], [], [], 60)[0]
    os.close(fd)


def _keeper(planner: int) -> psutil.Process:
    parent = psutil.Process(planner).parent()
    assert parent is not None
    return parent


def test_many_processes_at_once_start_one_runtime(model: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(NodeProcess(model)) for _ in range(MANY)]
        (pid,) = {process.hear() for process in processes}
        assert len({process.run() for process in processes}) == 1
        (loaded,) = aspen_mp.connect(OUTSIDE).status()["models"]
        assert loaded["name"] == "mlp"
        for process in processes:
            process.process.send_signal(signal.SIGKILL)
    _await_end(pid)


def test_a_runtime_lasts_while_one_process_uses_it(model: Path) -> None:
    with NodeProcess(model) as first, NodeProcess(model) as second:
        starter, other = sorted([first, second], key=lambda process: process.hear() and process.process.pid)
        expected = starter.run()
        pid = run_directory.holder(OUTSIDE)
        starter.kill()
        assert other.run() == expected
        assert run_directory.holder(OUTSIDE) == pid


def test_the_keeper_is_no_child_of_a_user(predictor: Predictor) -> None:
    parent = _keeper(predictor._runtime.pid)
    assert parent.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert os.getsid(parent.pid) != os.getsid(0)


@pytest.mark.parametrize("who", ["keeper", "planner"])
def test_what_is_killed_is_started_again(predictor: Predictor, who: str) -> None:
    before = digest(predictor({"x": rows()})["y"])
    planner = predictor._runtime.pid
    os.kill(planner if who == "planner" else _keeper(planner).pid, signal.SIGKILL)
    _await_end(planner)
    assert digest(predictor({"x": rows()})["y"]) == before
    assert predictor._runtime.pid != planner


def test_a_file_that_a_killed_keeper_leaves(model: Path) -> None:
    made = Predictor(model, workers=1)
    planner = made._runtime.pid
    assert locks.clean() == []  # somebody uses it
    os.kill(_keeper(planner).pid, signal.SIGKILL)
    _await_end(planner)
    assert locks.clean() == []
    made.close()
    assert locks.left() == [OUTSIDE]
    assert doctor.clean()["runtimes"] == [OUTSIDE]
    assert locks.left() == []


def test_a_runtime_that_was_stopped_is_started_again(predictor: Predictor) -> None:
    before = digest(predictor({"x": rows()})["y"])
    aspen_mp.connect(OUTSIDE).stop()
    assert digest(predictor({"x": rows()})["y"]) == before


def test_who_comes_while_a_runtime_ends_gets_it_or_the_next(model: Path) -> None:
    results = set()
    for _ in range(8):
        made = Predictor(model, workers=1)
        results.add(digest(made({"x": rows()})["y"]))
        made.close()  # the keeper ends the runtime while the next one asks for it, or the next one is quicker
    assert len(results) == 1


def test_a_runtime_that_somebody_else_runs(model: Path) -> None:
    with aspen_mp.Runtime(1, name="web") as runtime:
        made = Predictor(model, runtime="web")
        assert made._runtime.pid == runtime.pid
        made.close()
        assert runtime.status()["models"] == []


def test_a_runtime_that_cannot_start_says_why(model: Path) -> None:
    with pytest.raises(RuntimeLost, match="'batch' of this node did not start: workers must be"):
        Predictor(model, workers=0)
    with pytest.raises(RuntimeLost, match="sizes"):
        Predictor(model, workers=1, runtime_options={"sizes": 3})


def test_a_constructor_that_fails_lets_the_runtime_end(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Predictor(tmp_path / "none.onnx", workers=1)
