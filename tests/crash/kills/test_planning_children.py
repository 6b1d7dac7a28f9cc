"""A model is read and planned in a process of its own: whatever becomes of that process, its load alone fails, with a typed error."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import folders
import numpy as np
import onnx
import pytest
import small_models
from guests import Guest
from onnx import TensorProto, helper
from process_tools import WATCHDOG_S, planning_children, wait_until

import aspen_mp
from aspen_mp.control.wire import protocol
from aspen_mp.errors import AspenError, ModelInvalidError, ModelParseError, PlanError, ResourceLimitError

X = {"x": np.ones((4, 16), np.float32)}


@contextmanager
def runtime_with(folder: Path, models: str) -> Iterator[tuple[aspen_mp.Runtime, Callable[[], None]]]:
    """A runtime with these lines in section [models] of its profile, and a check that it is well."""
    profile = folder / "profile.toml"
    profile.write_text(f"[models]\n{models}\n")
    with aspen_mp.Runtime(workers=1, profile=profile) as runtime:
        good = runtime.load(small_models.mlp())
        expected = good.run(X)["y"].tobytes()

        def check() -> None:
            assert good.run(X)["y"].tobytes() == expected
            assert runtime.status()["runtime"]["ready"]

        yield runtime, check
        check()


def large(folder: Path, mib: int) -> Path:
    """y = x · w: the weight of `mib` MiB has to be rearranged when it is packed."""
    n = 512
    k = mib * (1 << 20) // (4 * n)
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[k, n], raw_data=bytes(4 * k * n))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, n])],
        [weight],
    )
    path = folder / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def many(nodes: int) -> bytes:
    """A chain of so many nodes."""
    graph = onnx.GraphProto(name="many", input=[helper.make_tensor_value_info("t0", TensorProto.FLOAT, [1])])
    for k in range(nodes):
        graph.node.add(op_type="Relu", input=[f"t{k}"], output=[f"t{k + 1}"])
    graph.output.append(helper.make_tensor_value_info(f"t{nodes}", TensorProto.FLOAT, [1]))
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def test_out_of_memory(tmp_path: Path) -> None:
    """The limit is of the child alone; the error says what it is and where it is set."""
    with runtime_with(tmp_path, "memory_mib = 24") as (runtime, check):
        for _ in range(2):
            with pytest.raises(ResourceLimitError, match=r"model 'large': .* 24.0 MiB .*memory_mib"):
                runtime.load(many(100_000), name="large")
            check()
        assert runtime.load(small_models.conv_chain(2, 16, 16)).run({"x": np.ones((1, 16, 16, 16), np.float32)})["y"].shape == (
            1,
            16,
            16,
            16,
        )


FAULTS = {
    "reads where nothing is": "ctypes.string_at(0)",
    "aborts": "os.abort()",
    "is killed": "os.kill(os.getpid(), signal.SIGSEGV)",
}
FAULTY = """
import ctypes, os, resource, signal
from aspen_mp.workers import process
process.faults_tell_scarcity(99)
fault = compile({fault!r}, "fault", "eval")
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for limit in {limits}:
    resource.setrlimit(limit, (resource.getpagesize(), resource.getrlimit(limit)[1]))
eval(fault)
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_for_want_of_memory(fault: str) -> None:
    """A library that does not look at what malloc gave it faults: then it is told from other faults."""

    def status(*limits: int) -> int:
        text = FAULTY.format(fault=FAULTS[fault], limits=limits)
        return subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=WATCHDOG_S, check=False).returncode

    assert status() == -(signal.SIGABRT if fault == "aborts" else signal.SIGSEGV)
    assert status(resource.RLIMIT_AS) == status(resource.RLIMIT_DATA) == 99


class Killer:
    """Ends the first planning child that appears, `after` seconds later."""

    def __init__(self, runtime: aspen_mp.Runtime, number: int, after: float) -> None:
        self._runtime, self._number, self._after = runtime, number, after
        self._seen = set(planning_children(runtime))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            for pid in set(planning_children(self._runtime)) - self._seen:
                self._stop.wait(self._after)
                with suppress(ProcessLookupError):
                    os.kill(pid, self._number)
                return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGBUS])
def test_killed_at_any_moment(tmp_path: Path, number: int) -> None:
    """While it reads, while it plans: those who wait for it hear of it, whatever it was at."""
    rng = np.random.default_rng(number)
    with runtime_with(tmp_path, "") as (runtime, check):
        model = small_models.conv_chain(20, 32, 16).SerializeToString()
        outcomes: list[AspenError | None] = []
        for k in range(6):
            killer = Killer(runtime, number, float(rng.random() * 0.15))
            with killer:
                try:
                    runtime.load(model, name=f"m{k}").unload()
                    outcomes.append(None)
                except AspenError as error:
                    outcomes.append(error)
            check()
        assert len(runtime.status()["models"]) == 1
    errors = [error for error in outcomes if error is not None]
    assert {type(error) for error in errors} <= {ResourceLimitError if number == signal.SIGKILL else PlanError}
    assert all(signal.Signals(number).name in str(error) for error in errors)


@pytest.mark.parametrize("name", ["split_into_more_than_its_sizes", "slice_of_negative_dimension"])
def test_models_that_onnx_does_not_survive(tmp_path: Path, name: str) -> None:
    """ONNX's own C++ library dies of some models (1.23 of these, by SIGABRT): the load fails, and nothing else does."""
    data = (folders.TESTS / "stress/fuzz/corpus/models" / f"{name}.onnx").read_bytes()
    with runtime_with(tmp_path, "") as (runtime, check):
        for _ in range(3):
            with pytest.raises((PlanError, ModelInvalidError)) as caught:
                runtime.load(data)
            assert "model" in str(caught.value)
            check()
        assert len(runtime.status()["models"]) == 1


def test_stuck_before_it_has_read_its_job(tmp_path: Path) -> None:
    """A child that reads nothing keeps nobody waiting, although the job does not fit into its socket."""
    with runtime_with(tmp_path, "patience_s = 2") as (runtime, check), Guest(runtime._session.welcome.address) as guest:
        memory = os.memfd_create("model")
        os.write(memory, small_models.two_inputs().SerializeToString())
        loaded = guest.ask("Load", 1, "", "mine", {"instances": 1}, fds=[memory])
        os.close(memory)
        assert isinstance(loaded, protocol.Loaded)
        for pid in planning_children(runtime):
            os.kill(pid, signal.SIGSTOP)
        large_value = np.zeros((70_000, 3), np.float32).tobytes()
        stages = [[["a", "float32", [70_000, 3], large_value], ["b", "float32", [3], None]]]
        thread = threading.Thread(target=check)  # the planner process answers meanwhile
        guest.send(b"".join(_frames("MakePlan", 2, loaded.model, stages, [])))
        thread.start()
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        answer = guest.answer()
        assert isinstance(answer, protocol.Failed)
        assert answer.error == "PlanError"
        assert "stuck for 2 s" in answer.text


def _frames(*fields: object) -> list[bytes]:
    from guests import packed

    return [packed(list(fields))]


def test_the_file_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    """Reading a mapped file beyond its end is SIGBUS: the child's alone."""
    path = large(tmp_path, 32)
    with runtime_with(tmp_path, "") as (runtime, check):
        seen = set(planning_children(runtime))
        errors: list[BaseException] = []

        def load() -> None:
            try:
                runtime.load(path).unload()
            except AspenError as error:
                errors.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        wait_until(lambda: bool(set(planning_children(runtime)) - seen), "the planning child")
        (child,) = set(planning_children(runtime)) - seen
        os.kill(child, signal.SIGSTOP)
        os.truncate(path, 5000)
        os.kill(child, signal.SIGCONT)
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        assert len(errors) == 1
        assert isinstance(errors[0], (PlanError, ModelParseError)), errors
        check()
