"""Prometheus metrics: their text, parsed; the endpoint, alone and beside `launch`."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import small_models
from process_tools import descendants, kill_worker
from prometheus_client.parser import text_string_to_metric_families

import aspen_mp
from aspen_mp.cli import metrics as cli
from aspen_mp.errors import QueueFull, RequestError, RequestTimeout
from aspen_mp.tools import metrics

WATCHDOG_S = 60.0


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(found: dict, name: str, /, **labels: str) -> float:
    return sum(value for (sample, has), value in found.items() if sample == name and labels.items() <= dict(has).items())


def fetch(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=WATCHDOG_S) as answer:
        return samples(answer.read().decode())


def test_metrics_say_what_status_says(runtime):
    model = runtime.load(small_models.mlp("n"))
    x = np.ones((2, 16), np.float32)
    for _ in range(5):
        model.run({"x": x})
    runtime.scale(0)
    assert model.submit({"x": x}).cancel()
    runtime.scale(1)
    failing = runtime.load(small_models.gather())
    with pytest.raises(RequestError):
        failing.run({"i": np.array([0, 1, 7], np.int64)})
    status = runtime.status()
    text = metrics.text(status)
    assert "# HELP aspen_mp_worker_tiles_total Tiles executed." in text
    assert "# TYPE aspen_mp_worker_seconds_total counter" in text
    found = samples(text)
    assert total(found, "aspen_mp_worker_requests_total", outcome="failed") == sum(w["failed"] for w in status["workers"]) == 1
    ended = sum(w["ends"] for w in status["workers"])
    assert total(found, "aspen_mp_worker_requests_total") == ended
    for activity in ("kernel", "schedule", "search", "sleep"):
        seconds = sum(w[f"{activity}_ns"] for w in status["workers"]) / 1e9
        assert total(found, "aspen_mp_worker_seconds_total", activity=activity) == pytest.approx(seconds)
    for key in ("held", "lent"):
        seconds = sum(w[f"{key}_ns"] for w in status["workers"]) / 1e9
        assert total(found, f"aspen_mp_worker_{key}_seconds_total") == pytest.approx(seconds)
    for key in ("tiles", "steals"):
        assert total(found, f"aspen_mp_worker_{key}_total") == sum(w[key] for w in status["workers"])
    for role, entry in status["memory"].items():
        assert total(found, "aspen_mp_memory_bytes", role=role) == entry["bytes"]
    assert total(found, "aspen_mp_workers", state="running") == 1
    assert total(found, "aspen_mp_ready") == 1
    assert total(found, "aspen_mp_clients") == 1
    assert total(found, "aspen_mp_model_weight_bytes", model="mlp") > 0
    assert total(found, "aspen_mp_runtime_info", version=aspen_mp.__version__) == 1


def test_requests_by_outcome(runtime):
    """Those that had begun when they were cancelled are counted as such; the death of a worker is a metric too."""
    model = runtime.load(small_models.conv_chain(24, 64, 64))
    feeds = {"x": np.zeros((1, 64, 64, 64), np.float32)}
    model.run(feeds)
    while not total(samples(metrics.text(runtime.status())), "aspen_mp_worker_requests_total", outcome="cancelled"):
        future = model.submit(feeds)
        while not any(w["current"] for w in runtime.workers) and not future.done():
            pass
        future.cancel()
    kill_worker(runtime)
    model.run(feeds)
    while not total(samples(metrics.text(runtime.status())), "aspen_mp_recoveries_total"):
        pass
    found = samples(metrics.text(runtime.status()))
    assert total(found, "aspen_mp_worker_deaths_total") == 1
    assert total(found, "aspen_mp_last_recovery_seconds") > 0


def test_the_runtime_may_end_and_come_again():
    endpoint = metrics.Endpoint("test-metrics-again")
    url = f"http://127.0.0.1:{endpoint.port}/metrics"
    try:
        assert fetch(url) == {("aspen_mp_up", ()): 0.0}
        for _ in range(2):
            with aspen_mp.Runtime(workers=1, name="test-metrics-again"):
                found = fetch(url)
                assert total(found, "aspen_mp_up") == 1
                assert total(found, "aspen_mp_workers") == 1
            assert fetch(url) == {("aspen_mp_up", ()): 0.0}
        with pytest.raises(OSError, match="in use"):
            metrics.Endpoint("test-metrics-again", port=endpoint.port)
    finally:
        endpoint.close()


def test_a_planner_process_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes say so in time, several at once too; when it answers again, so do they."""
    with aspen_mp.Runtime(workers=1, name="test-metrics-stuck") as runtime:
        endpoint = metrics.Endpoint("test-metrics-stuck")
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        try:
            assert total(fetch(url), "aspen_mp_up") == 1
            monkeypatch.setattr(metrics, "ANSWER_S", 0.3)
            os.kill(runtime.pid, signal.SIGSTOP)
            with ThreadPoolExecutor(3) as pool:
                assert list(pool.map(fetch, [url] * 3)) == [{("aspen_mp_up", ()): 0.0}] * 3
            with endpoint._collector._lock:  # as a scrape that has not been answered yet
                assert fetch(url) == {("aspen_mp_up", ()): 0.0}
            os.kill(runtime.pid, signal.SIGCONT)
            monkeypatch.undo()
            assert total(fetch(url), "aspen_mp_up") == 1
            os.kill(runtime.pid, signal.SIGSTOP)
            monkeypatch.setattr(metrics, "ANSWER_S", 0.3)
            with ThreadPoolExecutor(1) as pool:
                scrape = pool.submit(endpoint._collector._status)
                endpoint.close()
                assert scrape.result(WATCHDOG_S) is None
        finally:
            os.kill(runtime.pid, signal.SIGCONT)
            endpoint.close()


def test_a_serving_process_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed: whoever launched the runtime does not wait for it."""
    monkeypatch.setattr(cli, "END_S", 0.2)
    with cli.beside("nobody", "0") as url:
        assert fetch(url) == {("aspen_mp_up", ()): 0.0}
        (child,) = descendants(os.getpid(), lambda process: "--ready-fd" in process.cmdline())
        child.suspend()


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "aspen_mp.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_launch_serves_them(tmp_path: Path):
    launched = command("launch", "--workers", "1", "--name", "test-metrics", "--metrics", "0", "--log", "off", "--json")
    try:
        assert launched.stdout is not None
        lines = ""
        while True:
            lines += launched.stdout.readline()
            try:
                report = json.loads(lines)
                break
            except ValueError:
                assert launched.poll() is None
        assert total(fetch(report["metrics"]), "aspen_mp_runtime_info", name="test-metrics") == 1
        once = subprocess.run(
            [sys.executable, "-m", "aspen_mp.cli", "metrics", "--name", "test-metrics", "--once"],
            capture_output=True, text=True, check=True, timeout=WATCHDOG_S,
        )  # fmt: skip
        assert total(samples(once.stdout), "aspen_mp_max_workers") >= 1
        port = report["metrics"].rpartition(":")[2].partition("/")[0]
        taken = command("launch", "--workers", "1", "--name", "test-metrics-2", "--metrics", port, "--json")
        answer, _ = taken.communicate(timeout=WATCHDOG_S)
        assert taken.returncode == 1
        assert "cannot be served" in json.loads(answer)["error"]["message"]
    finally:
        launched.send_signal(signal.SIGINT)
        launched.communicate(timeout=WATCHDOG_S)
    assert launched.returncode == 0
    with pytest.raises(OSError, match="refused"):
        fetch(report["metrics"])


def test_wrong_addresses():
    for text in ("nowhere", "host:", "127.0.0.1:99999", ":x"):
        refused = command("metrics", "--listen", text)
        refused.communicate(timeout=WATCHDOG_S)
        assert refused.returncode == 2


# ------------------------------------------------------------------------------------------------------------ what clients count


def bucket_counts(found: dict, name: str, **labels: str) -> list[float]:
    """A histogram's cumulative counts in the order of their bounds."""
    at = [
        (float(dict(has)["le"]), value)
        for (sample, has), value in found.items()
        if sample == f"{name}_bucket" and labels.items() <= dict(has).items()
    ]
    return [value for _, value in sorted(at)]


def scrape(runtime: aspen_mp.Runtime) -> dict:
    return samples(metrics.text(runtime.status()))


def test_requests_by_model_and_outcome(runtime):
    """Every way to make a request, and every way in which one ends, of clients in this process and in one that is killed."""
    good, failing, slow = (
        runtime.load(small_models.mlp("n")),
        runtime.load(small_models.gather(), name="gather"),
        runtime.load(small_models.loop(), name="loop"),
    )
    x = {"x": np.ones((2, 16), np.float32)}
    good.run(x)
    good.submit(x).result(WATCHDOG_S)
    asyncio.run(good.run_async(x))
    assert len(list(good.map([x] * 5))) == 5
    for use in (failing.run, lambda feeds: failing.submit(feeds).result(WATCHDOG_S)):
        with pytest.raises(RequestError):
            use({"i": np.array([0, 1, 7], np.int64)})
    runtime.scale(0)
    with pytest.raises(RequestTimeout):
        good.run(x, timeout=0.01)
    future = good.submit(x)
    assert scrape(runtime)["aspen_mp_requests_in_flight", (("model", "mlp"),)] == 1
    assert total(scrape(runtime), "aspen_mp_queue_depth") >= 1
    assert future.cancel()
    runtime.scale(2)
    wait_for(lambda: total(scrape(runtime), "aspen_mp_requests_in_flight") == 0)
    found = scrape(runtime)
    for model, outcomes in (("mlp", {"completed": 8, "timed_out": 1, "cancelled": 1}), ("gather", {"failed": 2}), ("loop", {})):
        for outcome in ("completed", "failed", "timed_out", "cancelled", "lost", "refused"):
            assert total(found, "aspen_mp_requests_total", model=model, outcome=outcome) == outcomes.get(outcome, 0), (model, outcome)
        counts = bucket_counts(found, "aspen_mp_request_seconds", model=model)
        assert counts == sorted(counts)
        ended = sum(outcomes.values())
        assert counts[-1:] == ([ended] if ended else counts[-1:])
        assert total(found, "aspen_mp_request_seconds_count", model=model) == ended
    assert total(found, "aspen_mp_request_seconds_sum", model="mlp") >= 0.01  # one waited for so long
    waited = bucket_counts(found, "aspen_mp_queue_seconds")
    assert waited[-1] >= 10
    code = (
        "import os, pickle, sys; import numpy as np; m = pickle.load(sys.stdin.buffer)\n"
        "for _ in range(3): m.run({'x': np.ones((2, 16), np.float32)})\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(good), check=False, timeout=WATCHDOG_S)
    wait_for(lambda: len(runtime.status()["clients"]) == 1)
    assert total(scrape(runtime), "aspen_mp_requests_total", model="mlp", outcome="completed") == 11
    good.unload()
    slow.unload()
    assert total(scrape(runtime), "aspen_mp_requests_total", model="mlp", outcome="completed") == 11


def test_new_shapes_and_plans(runtime):
    model = runtime.load(small_models.mlp("n"), name="shapes")
    for rows in (2, 40, 41, 42, 41, 43):
        model.run({"x": np.ones((rows, 16), np.float32)})
    status = runtime.status()
    counts, made = status["requests"]["shapes"], status["models"][0]["made"]
    assert (counts["derived"], counts["waited"]) == (3, 2)
    found = samples(metrics.text(status))
    for key, name in (("derived", "derived_shapes"), ("waited", "plan_waits"), ("waited_s", "plan_wait_seconds")):
        assert total(found, f"aspen_mp_{name}_total", model="shapes") == pytest.approx(counts[key])
    for kind in ("one_shape", "range", "cached"):
        assert total(found, "aspen_mp_model_plans_made_total", model="shapes", kind=kind) == made[kind]
    assert total(found, "aspen_mp_model_plans_made_total", model="shapes") == 2
    assert total(found, "aspen_mp_model_plans_replaced_total", model="shapes") == made["replaced"] == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WATCHDOG_S
    while not condition():
        assert time.monotonic() < deadline


def without_workers(runtime: aspen_mp.Runtime) -> None:
    """Ends all workers: one that is asked to leave may take requests until it has."""
    leaving = [psutil.Process(worker["pid"]) for worker in runtime.workers]
    runtime.scale(0)
    _, left = psutil.wait_procs(leaving, WATCHDOG_S)
    assert not left


@pytest.mark.parametrize("whose", ["client", "runtime", "both"])
def test_bounded_queues(whose: str) -> None:
    """What waits is limited, not what runs; once some have ended there is room again. The lower limit counts."""
    own = {"client": 3, "runtime": None, "both": 3}[whose]
    common = {"client": None, "runtime": 3, "both": 50}[whose]
    with (
        aspen_mp.Runtime(workers=1, name=f"test-queue-{whose}", max_queued=common, log="off"),
        aspen_mp.connect(f"test-queue-{whose}", max_queued=own) as runtime,
    ):
        model, other = runtime.load(small_models.mlp(), name="bounded"), runtime.load(small_models.mlp(seed=1), name="beside")
        x = {"x": np.ones((4, 16), np.float32)}
        without_workers(runtime)
        waiting = [model.submit(x), other.submit(x), model.submit(x)]
        for use in (model.run, model.submit, other.submit, lambda feeds: next(other.map([feeds]))):
            with pytest.raises(QueueFull, match="3 requests of this process wait for workers, and max_queued allows only 3"):
                use(x)
        assert waiting[0].cancel()
        waiting.append(model.submit(x))
        runtime.scale(1)
        assert all(future.result(WATCHDOG_S) for future in waiting[1:])
        for _ in range(10):
            model.run(x)
        assert total(scrape(runtime), "aspen_mp_requests_total", outcome="refused", model="bounded") == 2
        assert total(scrape(runtime), "aspen_mp_requests_total", outcome="refused", model="beside") == 2


def test_threads_cannot_outrun_the_limit() -> None:
    with aspen_mp.Runtime(workers=1, max_queued=5, log="off") as runtime:
        model = runtime.load(small_models.mlp())
        x = {"x": np.ones((4, 16), np.float32)}
        without_workers(runtime)
        with ThreadPoolExecutor(8) as pool:
            tried = [pool.submit(model.submit, x) for _ in range(40)]
        kept = [attempt.result() for attempt in tried if attempt.exception() is None]
        assert len(kept) == 5
        assert {type(attempt.exception()) for attempt in tried} == {QueueFull, type(None)}
        runtime.scale(1)
        assert all(future.result(WATCHDOG_S) for future in kept)


def test_a_client_that_writes_nonsense_into_its_counts(runtime) -> None:
    """They are its own; the planner process shows what it reads, and goes on."""
    model = runtime.load(small_models.mlp())
    x = {"x": np.ones((4, 16), np.float32)}
    model.run(x)
    view = memoryview(runtime._session._counts.mapping).cast("B")
    view[:] = np.random.default_rng(0).bytes(len(view))
    view.release()
    for _ in range(2):
        assert scrape(runtime)
        model.run(x)
