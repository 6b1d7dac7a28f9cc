"""Prometheus metrics: their text, parsed; the endpoint, alone and beside `launch`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import small_models
from prometheus_client.parser import text_string_to_metric_families

import aspen_mp
from aspen_mp import metrics
from aspen_mp.cli import metrics as cli
from aspen_mp.errors import RequestError

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
    os.kill(runtime.workers[0]["pid"], signal.SIGKILL)
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
        (child,) = (child for child in psutil.Process().children() if "--ready-fd" in child.cmdline())
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
