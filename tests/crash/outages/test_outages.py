"""A runtime with a name is lost, or stops, and another one of that name comes: whoever has connected to it goes on, in every process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import folders
import numpy as np
import onnx
import pytest
import small_models
from process_tools import WATCHDOG_S, alive, feeds, wait_until

import aspen_mp
from aspen_mp.control.wire import run_directory
from aspen_mp.errors import AspenError, RequestError, RequestTimeout, RuntimeLost, RuntimeNotFound, RuntimeStopping

NAME = "outages"
X = {"x": np.ones((4, 16), np.float32)}
ENDLESS = {"n": np.array(10**9), "limit": np.array(1e9, np.float32)}


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run" / "aspen-mp"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(small_models.mlp(), tmp_path / "mlp.onnx")
    return tmp_path / "mlp.onnx"


class Host:
    """Runtimes of one name, one after the other."""

    def __init__(self) -> None:
        self.runtime: aspen_mp.Runtime | None = None

    def start(self) -> None:
        self.runtime = aspen_mp.Runtime(workers=1, name=NAME, log="off")

    def kill(self) -> None:
        assert self.runtime is not None
        os.kill(self.runtime.pid, signal.SIGKILL)
        self.runtime.wait()
        self.close()

    def close(self) -> None:
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None


@pytest.fixture
def host() -> Iterator[Host]:
    found = Host()
    found.start()
    yield found
    found.close()


# ------------------------------------------------------------------------------------------------------------ one process


def test_requests_wait_for_the_next_runtime(host: Host, file: Path) -> None:
    with aspen_mp.connect(NAME, wait_s=WATCHDOG_S) as runtime:
        models = [runtime.load(file), runtime.load(small_models.mlp(seed=2))]
        slow = runtime.load(small_models.loop())
        expected = [model.run(X)["y"].tobytes() for model in models]
        for _ in range(2):
            flying = slow.submit({"n": np.array(200), "limit": np.array(1e9, np.float32)})
            first = runtime.pid
            host.kill()
            results: list[bytes] = []
            threads = [threading.Thread(target=lambda r=results: r.append(models[0].run(X)["y"].tobytes())) for _ in range(3)]
            for thread in threads:
                thread.start()
            futures = [model.submit(X) for model in models]

            async def soon() -> bytes:
                return (await models[1].run_async(X))["y"].tobytes()

            host.start()
            assert asyncio.run(asyncio.wait_for(soon(), WATCHDOG_S)) == expected[1]
            assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == expected
            for thread in threads:
                thread.join(WATCHDOG_S)
            assert results == [expected[0]] * 3
            assert flying.result(WATCHDOG_S)
            assert runtime.pid != first
            assert not runtime.closed
        assert runtime.load(file).run(X)["y"].tobytes() == expected[0]
        assert runtime.status()["runtime"]["ready"]


def test_after_the_wait_requests_fail_at_once_and_go_on_when_it_is_back(host: Host, file: Path) -> None:
    with aspen_mp.connect(NAME, wait_s=0.2) as runtime:
        model = runtime.load(file)
        expected = model.run(X)["y"].tobytes()
        host.kill()
        uses: list[Callable[[], object]] = [lambda: model.run(X), lambda: model.submit(X).result(WATCHDOG_S), model.revive]
        uses += [runtime.status, lambda: runtime.load(file)]
        for use in uses:
            with pytest.raises(RuntimeLost, match=rf"wait_s=0.2.*{NAME}.*Requests go on as soon as") as lost:
                use()
            assert lost.value.wait_s == 0.2
        assert NAME in repr(runtime)  # which waits for nothing
        host.start()
        for use in uses:
            use()
        assert model.run(X)["y"].tobytes() == expected


def test_a_time_limit_is_shorter_than_the_wait(host: Host, file: Path) -> None:
    with aspen_mp.connect(NAME, wait_s=WATCHDOG_S * 10) as runtime:
        model = runtime.load(file)
        host.kill()
        with pytest.raises(RequestTimeout, match=r"did not finish within 0\.1 s"):
            model.run(X, timeout=0.1)
        later: Future[object] = model.submit(X)  # waits on a thread of the handle's
    with pytest.raises(RuntimeLost, match="closed"):  # closing it ends the wait
        later.result(WATCHDOG_S)


def test_without_retry_the_loss_is_final(host: Host, file: Path) -> None:
    with aspen_mp.connect(NAME, retry=False) as runtime:
        model = runtime.load(file)
        host.kill()
        host.start()
        for use in (lambda: model.run(X), runtime.status):
            with pytest.raises(RuntimeLost, match="is gone"):
                use()
        assert runtime.closed


def test_a_request_that_ends_runtimes_fails(host: Host) -> None:
    with aspen_mp.connect(NAME, wait_s=WATCHDOG_S) as runtime:
        future = runtime.load(small_models.loop()).submit(ENDLESS)
        for _ in range(3):
            wait_until(lambda: any(worker["current"] for worker in runtime.workers), "it to begin")
            host.kill()
            host.start()
        with pytest.raises(RuntimeLost):
            future.result(WATCHDOG_S)


def test_a_file_that_has_changed_is_not_loaded_again(host: Host, file: Path) -> None:
    with aspen_mp.connect(NAME, wait_s=WATCHDOG_S) as runtime:
        model = runtime.load(file)
        onnx.save(small_models.mlp(seed=1), file)
        host.kill()
        host.start()
        with pytest.raises(RuntimeLost, match="has changed"):
            model.run(X)


def test_the_run_directory_is_removed_meanwhile(host: Host, file: Path, own_directory: Path) -> None:
    """Whoever waits makes it anew, and waits there."""
    with aspen_mp.connect(NAME, wait_s=WATCHDOG_S) as runtime:
        model = runtime.load(file)
        host.kill()
        result: list[np.ndarray] = []
        waiter = threading.Thread(target=lambda: result.append(model.run(X)["y"]))
        waiter.start()
        for _ in range(3):
            wait_until(own_directory.exists, "the directory")
            for left in own_directory.iterdir():
                left.unlink()
            own_directory.rmdir()
        wait_until(own_directory.exists, "the directory")
        host.start()
        waiter.join(WATCHDOG_S)
        assert result


def test_no_runtime_of_that_name(own_directory: Path) -> None:
    with pytest.raises(RuntimeNotFound, match=f"'nobody' is running in {own_directory} .nothing runs there.*launch --name nobody"):
        aspen_mp.connect("nobody")
    with aspen_mp.Runtime(workers=1, name="somebody"), pytest.raises(RuntimeNotFound, match=r"running: somebody"):
        aspen_mp.connect("nobody")


# ------------------------------------------------------------------------------------------------------------ other processes


def test_forked_and_pickled_handles_find_it_too(host: Host, file: Path) -> None:
    """Used first before the loss or after it, from a file or from bytes."""
    with aspen_mp.connect(NAME, wait_s=WATCHDOG_S) as runtime:
        model, of_bytes = runtime.load(file), runtime.load(small_models.mlp(seed=2))
        expected = [m.run(X)["y"].tobytes() for m in (model, of_bytes)]
        kept = pickle.dumps((runtime, model, of_bytes))
        children = [
            _child(how, kept, model, of_bytes, expected) for how in ("forked", "forked, used late", "pickled", "pickled, used late")
        ]
        for _, _, said in children:
            assert said.readline() == "up\n"
        host.kill()
        host.start()
        for _, go, said in children:
            os.write(go, b"!")
            assert said.readline() == "True True True\n"
        for pid, go, said in children:
            os.waitpid(pid, 0)
            os.close(go)
            said.close()


def _child(how: str, kept: bytes, model: aspen_mp.Model, of_bytes: aspen_mp.Model, expected: list[bytes]):
    """A process that uses handles before the runtime is lost, or not, and after."""
    go, said = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if how.startswith("pickled"):
                runtime, model, of_bytes = pickle.loads(kept)
            if not how.endswith("late"):
                model.run(X)
            os.write(said[1], b"up\n")
            os.read(go[0], 1)
            right = [model.run(X)["y"].tobytes() == expected[0]]
            try:
                right.append(of_bytes.run(X)["y"].tobytes() == expected[1])
            except RuntimeLost as error:  # bytes do not travel in pickles
                right.append(how.startswith("pickled") and "load the model again" in str(error))
            right.append(not how.startswith("pickled") or bool(runtime.workers))
            os.write(said[1], (" ".join(map(str, right)) + "\n").encode())
        except BaseException as error:
            os.write(said[1], f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(go[0])
    os.close(said[1])
    return pid, go[1], os.fdopen(said[0])


SERVED = """
import json, sys, threading, time
sys.path.insert(0, sys.argv[1])
import folders
import numpy as np, aspen_mp, small_models
runtime = aspen_mp.connect("outages", wait_s=float(sys.argv[3]))
model = runtime.load(sys.argv[2])
x = {"x": np.ones((1, 32, 32, 32), np.float32)}
right = model.run(x)["y"].tobytes()
print("up", flush=True)
failures, served = 0, [0]  # requests served before the first outage, and behind each
stop = [False]
threading.Thread(target=lambda: (sys.stdin.read(), stop.__setitem__(0, True)), daemon=True).start()
while not (stop[0] and served[-1]):
    try:
        assert model.run(x)["y"].tobytes() == right
        served[-1] += 1
        time.sleep(0.005)
    except aspen_mp.errors.RuntimeLost as error:
        failures += 1
        if served[-1]:
            served.append(0)
        time.sleep(0.01)
print(json.dumps({"failures": failures, "served": served}), flush=True)
"""


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_kill_and_relaunch_with_four_client_processes(tmp_path: Path, wait_s: float) -> None:
    """As a web server's workers would be. With patience none of their requests fails; without it none after the runtime is back."""
    onnx.save(small_models.conv_chain(4, 32, 32), tmp_path / "chain.onnx")
    command = [sys.executable, "-m", "aspen_mp.cli", "launch", "--name", NAME, "--workers", "2", "--log", "off", "--json", "--supervise"]
    launcher = subprocess.Popen([*command, str(tmp_path / "chain.onnx")], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    clients: list[subprocess.Popen[str]] = []
    try:
        assert launcher.stdout is not None
        said = ""
        while not said.endswith("\n}\n"):
            line = launcher.stdout.readline()
            assert line, said
            said += line
        arguments = [sys.executable, "-c", SERVED, folders.TESTS, str(tmp_path / "chain.onnx"), str(wait_s)]
        clients = [subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "up\n"
        with aspen_mp.connect(NAME, wait_s=WATCHDOG_S) as runtime:
            os.kill(runtime.pid, signal.SIGKILL)
            wait_until(lambda: runtime.status()["runtime"]["restarts"] == 1, "the next runtime")
            wait_until(lambda: len(runtime.status()["clients"]) == 6, "all clients to be back")  # with us and the launcher
            served = runtime.status()["scheduler"]["served"]
            wait_until(lambda: runtime.status()["scheduler"]["served"] > served + 20, "requests")
        reports = []
        for client in clients:
            out, _ = client.communicate("", timeout=WATCHDOG_S)
            reports.append(json.loads(out))
        for report in reports:
            assert len(report["served"]) <= 2, "one outage at most, and none after the runtime is back"
            assert all(report["served"]), report
            assert wait_s == 0.0 or not report["failures"]
    finally:
        for client in clients:
            client.kill()
            client.communicate()
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=WATCHDOG_S)
    assert launcher.returncode == 0


# ------------------------------------------------------------------------------------------------------------ stopping in good order


def test_forty_in_flight_when_sigterm_comes(host: Host, tmp_path: Path) -> None:
    """None is lost: those in flight end, however they were begun. What is new is refused with a typed error, and the runtime ends."""
    assert host.runtime is not None
    pid = host.runtime.pid
    with aspen_mp.connect(NAME, retry=False) as other, aspen_mp.connect(NAME, retry=False) as idle:
        model, staged = other.load(small_models.conv_chain(12, 64, 64)), other.load(small_models.nonzero())
        own = host.runtime.load(small_models.conv_chain(12, 64, 64))
        expected = model.run(feeds())["y"].tobytes()
        x = {"x": np.array([0, 3, 0, 4], np.float32)}
        blocking: list[bytes] = []
        thread = threading.Thread(target=lambda: blocking.append(model.run(feeds())["y"].tobytes()))
        futures = [m.submit(feeds()) for _ in range(20) for m in (model, own)]
        several = [staged.submit(x) for _ in range(4)]
        thread.start()
        wait_until(lambda: thread.is_alive() and model.in_flight > sum(not f.done() for f in futures[::2]), "the thread's request")
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: idle._link.stopping is not None and other._link.stopping is not None, "word of it")
        for use in (
            lambda: model.run(feeds()),
            lambda: model.submit(feeds()),
            lambda: next(model.map([feeds()])),
        ):
            with pytest.raises(RuntimeStopping, match="is stopping"):
                use()
        for use in (lambda: idle.load(small_models.mlp()), lambda: aspen_mp.connect(NAME)):
            with pytest.raises((RuntimeLost, RuntimeNotFound)):
                use()
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 40
        assert [f.result(WATCHDOG_S)["y"].tolist() for f in several] == [[6, 8]] * 4
        thread.join(WATCHDOG_S)
        assert blocking == [expected]
        wait_until(lambda: not alive(pid), "the end")
        assert host.runtime.own_pid == pid
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status == 0


def test_stopping_and_the_next_one_with_retry(host: Host, file: Path) -> None:
    """A rolling restart: what is new meanwhile waits for the next runtime, what is in flight ends in the old one."""
    with aspen_mp.connect(NAME, wait_s=WATCHDOG_S) as runtime:
        slow, model = runtime.load(small_models.conv_chain(12, 64, 64)), runtime.load(file)
        expected = slow.run(feeds())["y"].tobytes(), model.run(X)["y"].tobytes()
        flying = [slow.submit(feeds()) for _ in range(10)]
        assert host.runtime is not None
        old = host.runtime.pid
        os.kill(old, signal.SIGTERM)
        wait_until(lambda: runtime._link.stopping is not None or not alive(old), "word of it")
        late = [model.submit(X) for _ in range(3)]
        results: list[bytes] = []
        thread = threading.Thread(target=lambda: results.append(model.run(X)["y"].tobytes()))
        thread.start()
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in flying] == [expected[0]] * 10
        host.runtime.wait()
        host.close()
        host.start()
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in late] == [expected[1]] * 3
        thread.join(WATCHDOG_S)
        assert results == [expected[1]]


@pytest.mark.parametrize("again", [False, True])
def test_what_does_not_end_is_cut_short(host: Host, again: bool) -> None:
    """At the end of the grace period, or when somebody asks twice."""
    assert host.runtime is not None
    with aspen_mp.connect(NAME, retry=False) as runtime:
        future = runtime.load(small_models.loop()).submit(ENDLESS)
        wait_until(lambda: any(worker["current"] for worker in runtime.workers), "it to begin")
        runtime.drain(WATCHDOG_S * 10 if again else 0.05)
        if again:
            os.kill(host.runtime.own_pid, signal.SIGTERM)
        host.runtime.wait(timeout=WATCHDOG_S)
        with pytest.raises(RuntimeLost):
            future.result(WATCHDOG_S)


def test_a_client_that_leaves_and_one_that_dies_are_not_waited_for(host: Host) -> None:
    assert host.runtime is not None
    runtimes = [aspen_mp.connect(NAME, retry=False) for _ in range(2)]
    futures = [runtime.load(small_models.loop()).submit(ENDLESS) for runtime in runtimes]
    host.runtime.drain(WATCHDOG_S * 10)
    futures[0].cancel()
    runtimes[1].close()
    host.runtime.wait(timeout=WATCHDOG_S)
    wait_until(lambda: not run_directory.names(), "the end")
    for runtime in runtimes:
        runtime.close()
    with contextlib.suppress(AspenError):
        futures[1].result(WATCHDOG_S)


def test_stop_with_drain(host: Host) -> None:
    assert host.runtime is not None
    with aspen_mp.connect(NAME, retry=False) as runtime:
        model = runtime.load(small_models.conv_chain(24, 64, 64))
        futures = [model.submit(feeds()) for _ in range(8)]
        stopper = threading.Thread(target=lambda: aspen_mp.connect(NAME, retry=False).stop(drain=True))
        stopper.start()
        assert all(future.result(WATCHDOG_S) for future in futures)
        stopper.join(WATCHDOG_S)
        assert not alive(host.runtime.own_pid)
        with pytest.raises((RuntimeLost, RequestError)):
            model.run(feeds())


def test_a_runtime_of_ones_own_that_is_stopped_is_started_again() -> None:
    """What is in flight ends first; what is new waits for the next one. Closing the handle ends that wait."""
    with aspen_mp.Runtime(workers=1, retry=True, log="off") as runtime:
        model, slow = runtime.load(small_models.mlp()), runtime.load(small_models.conv_chain(12, 64, 64))
        expected = model.run(X)["y"].tobytes()
        flying = [slow.submit(feeds()) for _ in range(5)]
        os.kill(runtime.own_pid, signal.SIGTERM)
        wait_until(lambda: runtime._link.stopping is not None, "word of it")
        assert model.submit(X).result(WATCHDOG_S)["y"].tobytes() == expected
        assert all(future.result(WATCHDOG_S) for future in flying)
        assert model.run(X)["y"].tobytes() == expected
        assert runtime.status()["runtime"]["restarts"] == 1
        endless = runtime.load(small_models.loop()).submit(ENDLESS)
        wait_until(lambda: any(worker["current"] for worker in runtime.workers), "it to begin")
        os.kill(runtime.own_pid, signal.SIGTERM)
        wait_until(lambda: runtime._link.stopping is not None, "word of it")
        later = model.submit(X)
    for future in (endless, later):
        with pytest.raises(RuntimeLost):
            future.result(WATCHDOG_S)
