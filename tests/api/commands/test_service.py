"""A launch as a service manager sees it: readiness, watchdog, stopping in good order, health over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models

import aspen_mp
from aspen_mp.cli.notify import Notifier

WATCHDOG_S = 60.0
FEEDS = {"x": np.ones((1, 64, 64, 64), np.float32)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    onnx.save(small_models.conv_chain(24, 64, 64), tmp_path / "chain.onnx")
    return tmp_path


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What a service manager listens at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(WATCHDOG_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def launch(place: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "aspen_mp.cli", "launch", "--name", "service", "--workers", "1", "--json", "--log", "off", *options]
    return subprocess.Popen([*command, str(place / "chain.onnx")], stdout=subprocess.PIPE, text=True, cwd=place)


def report(process: subprocess.Popen[str]) -> dict:
    assert process.stdout is not None
    said = ""
    while not said.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, said
        said += line
    return json.loads(said)


def test_what_a_service_manager_is_told(place: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    process = launch(place)
    try:
        assert manager.recv(100) == b"READY=1"
        assert report(process)["name"] == "service"
        assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        with aspen_mp.connect("service", retry=False) as runtime:
            model = runtime.load(place / "chain.onnx")
            futures = [model.submit(FEEDS) for _ in range(10)]
            process.send_signal(signal.SIGTERM)
            assert all(future.result(WATCHDOG_S) for future in futures)
        said = manager.recv(100)
        while said == b"WATCHDOG=1":
            said = manager.recv(100)
        assert said == b"STOPPING=1"
        assert process.wait(WATCHDOG_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_planner_process_that_hangs_is_no_longer_said_to_be_alive(place: Path, manager: socket.socket, monkeypatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    process = launch(place)
    try:
        pid = report(process)["pid"]
        assert manager.recv(100) == b"READY=1"
        os.kill(pid, signal.SIGSTOP)
        manager.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while True:
                assert manager.recv(100) == b"WATCHDOG=1"
        os.kill(pid, signal.SIGCONT)
        manager.settimeout(WATCHDOG_S)
        assert manager.recv(100) == b"WATCHDOG=1"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WATCHDOG_S)


def test_who_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody without the variable; an abstract socket; a watchdog only where it is meant for this process. Children are told nothing."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    Notifier().ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0aspen-test-{os.getpid()}")
        sock.settimeout(WATCHDOG_S)
        for pid, beats in ((os.getpid(), 1.5), (os.getpid() + 1, None)):
            monkeypatch.setenv("NOTIFY_SOCKET", f"@aspen-test-{os.getpid()}")
            monkeypatch.setenv("WATCHDOG_USEC", "3000000")
            monkeypatch.setenv("WATCHDOG_PID", str(pid))
            notifier = Notifier()
            assert notifier.beat_s == beats
            notifier.ready()
            assert sock.recv(100) == b"READY=1"
            assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=WATCHDOG_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_health_and_readiness(place: Path) -> None:
    from aspen_mp.tools.metrics import Endpoint

    endpoint = Endpoint("service")
    at = f"http://127.0.0.1:{endpoint.port}"
    try:
        assert [status_of(f"{at}/{path}") for path in ("healthz", "readyz", "metrics", "else")] == [503, 503, 200, 404]
        with aspen_mp.Runtime(workers=1, name="service", log="off") as runtime:
            assert [status_of(f"{at}/{path}") for path in ("healthz", "readyz")] == [200, 200]
            runtime.scale(0)
            assert [status_of(f"{at}/{path}") for path in ("healthz", "readyz")] == [200, 503]
            runtime.scale(1)
            model = runtime.load(place / "chain.onnx")
            futures = [model.submit(FEEDS) for _ in range(20)]
            runtime.drain()
            wait = threading.Event()
            threading.Thread(target=lambda: ([f.result(WATCHDOG_S) for f in futures], wait.set())).start()
            assert status_of(f"{at}/readyz") == 503
            assert wait.wait(WATCHDOG_S)
        assert [status_of(f"{at}/{path}") for path in ("healthz", "readyz")] == [503, 503]
    finally:
        endpoint.close()
