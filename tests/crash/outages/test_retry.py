"""`Runtime(retry=True)`: the planner process may be killed at any moment, and those who wait for results notice nothing but the time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from process_tools import WATCHDOG_S, alive, chain, feeds, wait_until

import aspen_mp
from aspen_mp.errors import RequestCancelled, RequestTimeout, RuntimeLost


def kill(runtime: aspen_mp.Runtime) -> int:
    """Ends the planner process, and with it the workers; returns what its pid was."""
    pid = runtime.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid


def test_killed_again_and_again(tmp_path: Path) -> None:
    """Futures, threads and asyncio; one model twice, with other options, from a file; one of several stages, one of strings."""
    file = tmp_path / "chain.onnx"
    onnx.save(small_models.conv_chain(24, 64, 64), file)
    with aspen_mp.Runtime(workers=1, max_workers=3, retry=True, log="off") as runtime:
        runtime.add_workers(1)
        models = [chain(runtime), runtime.load(file, name="again", instances=1, winograd=True)]
        staged, words = runtime.load(small_models.nonzero()), runtime.load(small_models.strings())
        expected = [model.run(feeds())["y"].tobytes() for model in models]
        x = {"x": np.array([0, 3, 0, 4], np.float32)}
        text = {"a": np.array(["a", "b"], object), "b": np.array(["c", "d"], object)}
        assert staged.run(x)["y"].tolist() == [6, 8]
        stop = threading.Event()
        wrong: list[object] = []

        def work(model: aspen_mp.Model, right: bytes) -> None:
            try:
                while not stop.is_set():
                    if model.run(feeds())["y"].tobytes() != right:
                        wrong.append("wrong bits")
            except BaseException as error:
                wrong.append(error)

        async def together() -> list[bytes]:
            results = await asyncio.gather(*(models[0].run_async(feeds()) for _ in range(4)))
            return [result["y"].tobytes() for result in results]

        threads = [threading.Thread(target=work, args=(model, right)) for model, right in zip(models, expected, strict=True)]
        for thread in threads:
            thread.start()
        for round_ in range(3):
            futures = [model.submit(feeds()) for _ in range(6) for model in models]
            several = [staged.submit(x) for _ in range(5)] + [words.submit(text)]
            futures[round_].result(WATCHDOG_S)
            pid = kill(runtime)
            assert asyncio.run(asyncio.wait_for(together(), WATCHDOG_S)) == expected[:1] * 4
            assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == expected * 6
            assert [f.result(WATCHDOG_S)["y"].tolist() for f in several] == [[6, 8]] * 5 + [["ac", "bd"]]
            assert runtime.pid != pid
        stop.set()
        for thread in threads:
            thread.join(WATCHDOG_S)
        assert not wrong
        status = runtime.status()
        assert status["runtime"]["restarts"] == 3
        assert "runtime-restarted" in [event["event"] for event in status["events"]]
        assert len(status["workers"]) == 2
        assert models[1].name == "again"
        models[0].unload()
        assert not runtime.closed
        pids = [runtime.pid, *[w["pid"] for w in status["workers"]]]
    assert runtime.closed
    wait_until(lambda: not any(map(alive, pids)), "processes of a closed runtime")


def test_a_request_that_ends_runtimes_fails() -> None:
    """Three times workers had begun it when the runtime was lost: it may well be the reason. Others go on."""
    with aspen_mp.Runtime(workers=1, retry=True, log="off") as runtime:
        deadly, other = runtime.load(small_models.loop()), runtime.load(small_models.mlp())
        x = {"x": np.ones((4, 16), np.float32)}
        expected = other.run(x)["y"].tobytes()
        future = deadly.submit({"n": np.array(10**9), "limit": np.array(1e9, np.float32)})
        waiting = [other.submit(x) for _ in range(3)]
        for _ in range(3):
            wait_until(lambda: any(w.get("opaque") is not None and w["current"] is not None for w in runtime.workers), "it to begin")
            kill(runtime)
            wait_until(lambda: runtime.status()["scheduler"]["served"] >= 0, "a runtime")
        with pytest.raises(RuntimeLost, match="is gone"):
            future.result(WATCHDOG_S)
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in waiting] == [expected] * 3
        assert other.run(x)["y"].tobytes() == expected


def test_a_question_asked_before_the_loss_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be sent any more, and nobody else knows of the loss yet."""
    with aspen_mp.Runtime(workers=1, retry=True, log="off") as runtime:
        planner = runtime.pid

        def send(*_: object) -> None:
            os.kill(planner, signal.SIGKILL)
            raise BrokenPipeError

        monkeypatch.setattr(runtime._session.control, "_send", send)
        assert runtime.status()["runtime"]["ready"]
        assert runtime.status()["runtime"]["restarts"] == 1


def test_cancelled_timed_out_unloaded_and_closed_meanwhile() -> None:
    x = {"n": np.array(10**9), "limit": np.array(1e9, np.float32)}
    with aspen_mp.Runtime(workers=1, retry=True, log="off") as runtime:
        model = runtime.load(small_models.loop())
        cancelled, closed = model.submit(x), model.submit(x)
        kill(runtime)
        assert cancelled.cancel()
        with pytest.raises(RequestTimeout):
            model.run(x, timeout=0.3)
        other = runtime.load(small_models.mlp())
        kill(runtime)
        other.unload()
    assert wait([cancelled, closed], WATCHDOG_S).not_done == set()
    assert isinstance(closed.exception(), (RuntimeLost, RequestCancelled))
    with pytest.raises(RuntimeLost):
        model.run(x)


def test_a_model_file_that_has_changed_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(small_models.mlp(), file)
    x = {"x": np.ones((4, 16), np.float32)}
    with aspen_mp.Runtime(workers=1, retry=True, log="off") as runtime:
        model = runtime.load(file)
        model.run(x)
        onnx.save(small_models.mlp(seed=1), file)
        kill(runtime)
        assert runtime.status()["runtime"]["restarts"] == 1  # or the workers, who live on for a moment, would still answer
        with pytest.raises(RuntimeLost, match="has changed"):
            model.run(x)
        with pytest.raises(RuntimeLost, match="has changed"):
            model.submit(x).result(WATCHDOG_S)
        assert runtime.load(file).run(x)["y"].shape == (4, 8)


def test_only_who_started_it_starts_it_again() -> None:
    x = {"x": np.ones((4, 16), np.float32)}
    with aspen_mp.Runtime(workers=1, retry=True, log="off") as runtime:
        model = runtime.load(small_models.mlp())
        expected = model.run(x)["y"].tobytes()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = []
            try:
                said.append(model.run(x)["y"].tobytes() == expected)
                kill(runtime)
                for _ in range(1000):
                    model.run(x)
            except RuntimeLost:
                said.append(True)
            except BaseException as error:
                said.append(error)
            os.write(write, repr(said).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            assert pipe.read() == "[True, True]"
        os.waitpid(pid, 0)
        assert model.run(x)["y"].tobytes() == expected
        assert runtime.status()["runtime"]["restarts"] == 1


def test_a_workload_is_scheduled_again() -> None:
    with aspen_mp.Runtime(workers=2, retry=True, log="off") as runtime, runtime.workload(schedule=True) as workload:
        for name in ("one", "other"):
            workload.add(small_models.conv_chain(24, 64, 64), name=name, feeds=feeds)
        workload.start()

        def scheduled() -> bool:
            found = workload.status()[0]["schedule"]
            return found is not None and len(found["models"]) == 2

        wait_until(scheduled, "a schedule")
        kill(runtime)
        wait_until(scheduled, "a schedule of the next runtime")
        assert [each["error"] for each in workload.status()] == [None, None]
