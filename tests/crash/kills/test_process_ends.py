"""Whatever process is ended, and however: nothing hangs, nothing is left, and who can go on goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait

import folders
import numpy as np
import onnx
import pytest
import small_models
from process_tools import WATCHDOG_S, alive, chain, feeds, planning_children, wait_until

import aspen_mp
from aspen_mp.client.requests import stage
from aspen_mp.errors import AspenError, PlanError, ResourceLimitError, RuntimeLost


def run_until_interrupted(model: aspen_mp.Model, delay: float) -> None:
    timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    while True:
        model.run(feeds())


def interrupted_load(runtime: aspen_mp.Runtime, model: onnx.ModelProto, timer: threading.Timer) -> None:
    timer.start()
    while True:
        runtime.load(model).unload()


def load_again_and_again(runtime: aspen_mp.Runtime, times: int, model: onnx.ModelProto) -> None:
    for _ in range(times):
        runtime.load(model).unload()


CLIENT = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import folders
import numpy as np, aspen_mp, small_models
rt = aspen_mp.Runtime(workers=2)
model = rt.load(small_models.conv_chain(24, 64, 64))
x = {"x": np.ones((1, 64, 64, 64), np.float32)}
model.run(x)
print(os.getpid(), rt.pid, *[w["pid"] for w in rt.workers], flush=True)
"""


def start_client(body: str) -> tuple[subprocess.Popen, list[int]]:
    code = CLIENT + body
    child = subprocess.Popen([sys.executable, "-c", code, folders.TESTS], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, [int(pid) for pid in child.stdout.readline().split()]


@contextlib.contextmanager
def ended(child: subprocess.Popen) -> Iterator[None]:
    """Leaves no client behind, whatever the test has found."""
    with child:
        try:
            yield
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_client_is_killed(number):
    child, pids = start_client("while True:\n    futures = [model.submit(x) for _ in range(20)]\n    futures[-1].result()\n")
    with ended(child):
        assert len(pids) == 4
        child.send_signal(number)
        child.wait(WATCHDOG_S)
    wait_until(lambda: not any(map(alive, pids)), f"processes {pids} of a killed client")


def test_client_leaves_without_closing():
    child, pids = start_client("sys.exit(3)\n")
    with ended(child):
        assert child.wait(WATCHDOG_S) == 3
    wait_until(lambda: not any(map(alive, pids)), "processes of a client that left")


def test_forked_child_does_not_keep_the_runtime_alive():
    """A child that outlives its parent has copies of the parent's descriptors unless it closed them."""
    child, pids = start_client("if os.fork() == 0:\n    import time\n    time.sleep(60)\nos.kill(os.getpid(), 9)\n")
    with ended(child):
        child.wait(WATCHDOG_S)
        wait_until(lambda: not any(map(alive, pids)), "the runtime of a dead parent")


def test_interrupt_of_a_foreground_program():
    """Ctrl-C reaches the client alone; it ends its runtime in good order."""
    child, pids = start_client("while True:\n    model.run(x)\n")
    with ended(child):
        child.send_signal(signal.SIGINT)
        assert child.wait(WATCHDOG_S) == -signal.SIGINT
    wait_until(lambda: not any(map(alive, pids)), "processes after Ctrl-C")


def test_interrupt_of_a_request():
    """KeyboardInterrupt comes out of run(), and the runtime is as good as before."""
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        for delay in (0.0, 0.001, 0.003, 0.01):
            with pytest.raises(KeyboardInterrupt):
                run_until_interrupted(model, delay)
            assert model.run(feeds())["y"].tobytes() == expected


def test_planner_process_is_killed():
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        model.run(feeds())
        pids = [runtime.pid, *[w["pid"] for w in runtime.workers]]
        futures = [model.submit(feeds()) for _ in range(50)]
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while True:
                    model.run(feeds())
            except AspenError as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        futures[0].result(WATCHDOG_S)
        os.kill(runtime.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(WATCHDOG_S)
            assert not thread.is_alive()
        assert [type(e) for e in errors] == [RuntimeLost] * 3
        done, pending = wait(futures, WATCHDOG_S)
        assert not pending
        assert any(isinstance(f.exception(), RuntimeLost) for f in done)
        with pytest.raises(RuntimeLost, match="is gone"):
            model.run(feeds())
        with pytest.raises(RuntimeLost, match="is gone"):
            runtime.status()
        with pytest.raises(RuntimeLost, match="is gone"):
            runtime.load(small_models.mlp())
        assert runtime.closed
        wait_until(lambda: not any(map(alive, pids)), "workers of a killed planner process")


def test_planner_process_is_killed_while_loading():
    with aspen_mp.Runtime(workers=1) as runtime:
        threading.Timer(0.05, lambda: os.kill(runtime.pid, signal.SIGKILL)).start()
        with pytest.raises(RuntimeLost):
            load_again_and_again(runtime, 10_000, small_models.conv_chain(4, 16, 16))


@pytest.mark.parametrize(("number", "error"), [(signal.SIGKILL, ResourceLimitError), (signal.SIGSEGV, PlanError)])
def test_a_planning_child_is_killed(number, error):
    """Its load fails with a typed error; everything else goes on."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp("n"))
        x = np.ones((3, 16), np.float32)
        expected = model.run({"x": x})["y"]
        stop = threading.Event()

        def kill() -> None:
            seen: set[int] = set(planning_children(runtime))
            while not stop.is_set():
                for pid in set(planning_children(runtime)) - seen:
                    os.kill(pid, number)
                    return

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            with pytest.raises(error, match=signal.Signals(number).name):
                load_again_and_again(runtime, 50, small_models.conv_chain(30, 64, 32))
        finally:
            stop.set()
            thread.join()
        np.testing.assert_array_equal(model.run({"x": x})["y"], expected)
        runtime.load(small_models.conv_chain(2, 16, 16)).run({"x": np.ones((1, 16, 16, 16), np.float32)})


def test_handles_in_a_forked_child():
    """They connect anew; what the child does with them, and its end, is nothing to the parent."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        x = np.ones((4, 16), np.float32)
        expected = model.run({"x": x})["y"]
        model.submit({"x": x}).result(WATCHDOG_S)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = []
            try:
                said += [model.run({"x": x})["y"].tobytes() == expected.tobytes() for _ in range(3)]
                said.append(model.submit({"x": x}).result(WATCHDOG_S)["y"].tobytes() == expected.tobytes())
                said.append(len(runtime.status()["clients"]) == 2)
                another = runtime.load(small_models.conv_chain(2, 16, 16))
                said.append(another.run({"x": np.ones((1, 16, 16, 16), np.float32)})["y"].shape == (1, 16, 16, 16))
                model.unload()
                runtime.close()
            except BaseException as error:
                said.append(error)
            os.write(write, repr(said).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(pid, 0)
        with os.fdopen(read) as pipe:
            assert pipe.read() == repr([True] * 6)
        np.testing.assert_array_equal(model.run({"x": x})["y"], expected)
        wait_until(lambda: len(runtime.status()["clients"]) == 1, "the child's end to be seen")
        assert runtime.status()["runtime"]["pid"] == runtime.pid


def test_a_closed_runtime_is_no_obstacle_to_a_forked_child():
    """Handles of a runtime that was closed before the fork are still there; those of the other one work."""
    with aspen_mp.Runtime(workers=1) as runtime:
        closed = [aspen_mp.Runtime(workers=1), aspen_mp.Runtime(workers=1)]
        others = [each.load(small_models.mlp()) for each in closed]
        for each in closed:
            each.close()
        model = runtime.load(small_models.mlp())
        x = np.ones((4, 16), np.float32)
        expected = model.run({"x": x})["y"].tobytes()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert model.submit({"x": x}).result(WATCHDOG_S)["y"].tobytes() == expected
                with pytest.raises(RuntimeLost):
                    others[0].run({"x": x})
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert model.run({"x": x})["y"].tobytes() == expected


def test_lent_outputs_in_a_forked_child():
    """What the parent runs later does not change what the child has."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp("n", width=16))
        rows = stage.LEND_BYTES // 32
        feeds = [{"x": np.random.default_rng(k).standard_normal((rows, 16)).astype(np.float32)} for k in range(3)]
        expected = model.run(feeds[0])["y"].tobytes()
        y = model.run(feeds[0])["y"]
        assert isinstance(y.base, stage._Lent)
        go, child_go = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(go[0], 1)
            same = y.tobytes() == expected
            del y
            os.write(child_go[1], b"+" if same and model.run(feeds[0])["y"].tobytes() == expected else b"-")
            os._exit(0)
        del y
        others = [model.run(f)["y"].tobytes() for f in (*feeds[1:], *feeds[1:])]
        os.write(go[1], b"!")
        assert os.read(child_go[0], 1) == b"+"
        os.waitpid(pid, 0)
        for fd in (*go, *child_go):
            os.close(fd)
        assert others[:2] == others[2:]


def test_a_forked_child_is_killed_while_it_uses_the_parent_s_handles():
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(small_models.conv_chain(12, 48, 48))
        x = np.ones((1, 48, 48, 48), np.float32)
        expected = model.run({"x": x})["y"].tobytes()
        for _ in range(3):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                model.run({"x": x})
                os.write(write, b"!")
                while True:
                    model.run({"x": x})
            assert os.read(read, 1) == b"!"
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(read)
            os.close(write)
            assert model.run({"x": x})["y"].tobytes() == expected
        wait_until(lambda: len(runtime.status()["clients"]) == 1, "the children's ends to be seen")


def _own_runtime(queue) -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        queue.put(model.run({"x": np.ones((4, 16), np.float32)})["y"])


def test_forked_child_makes_its_own_runtime():
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        expected = model.run({"x": np.ones((4, 16), np.float32)})["y"]
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=_own_runtime, args=(queue,))
        child.start()
        child.join(WATCHDOG_S)
        assert child.exitcode == 0
        np.testing.assert_array_equal(queue.get(), expected)
        queue.close()
        child.close()
        model.run({"x": np.ones((4, 16), np.float32)})


def test_interrupt_of_loading():
    """What was being loaded when Ctrl-C came is given back when it is there; the runtime goes on."""
    with aspen_mp.Runtime(workers=1) as runtime:
        big = small_models.conv_chain(60, 96, 16)
        for delay in (0.02, 0.1, 0.3):
            timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                interrupted_load(runtime, big, timer)
        wait_until(lambda: not runtime.status()["models"], "interrupted models to be gone")
        runtime.load(small_models.mlp()).run({"x": np.ones((4, 16), np.float32)})
