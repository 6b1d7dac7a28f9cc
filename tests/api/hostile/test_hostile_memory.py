"""Clients write what they like into the memory that they share with workers (I11): it costs nobody else anything.

`scribbler.py` is such a client. Beside it one that behaves has to get its right answers, and no worker may die, fault, stop or hang.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scribbler
import small_models
from guests import Guest

import aspen_mp
from aspen_mp.control.wire import protocol

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
NAME = "scribbled"
SECONDS = 60 if LONG else 3
WATCHDOG_S = 120.0


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[aspen_mp.Runtime]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with aspen_mp.Runtime(workers=2, name=NAME) as own:
        yield own


def others_memory(status: dict[str, Any]) -> dict[str, int]:
    """Bytes of each kind, but for what this process has for its requests: how many of them it holds at a time is chance."""
    (own,) = (client["data_bytes"] for client in status["clients"] if client["pid"] == os.getpid())
    return {kind: used["bytes"] - (own if kind == "data" else 0) for kind, used in status["memory"].items()}


@pytest.mark.parametrize("seed", range(20 if LONG else 2))
def test_a_good_client_beside_one_that_scribbles(runtime: aspen_mp.Runtime, seed: int) -> None:
    # Shapes that are given are searched at once: no plan is made again meanwhile.
    chain = runtime.load(small_models.conv_chain(6, 32, 32), input_shapes={"x": (1, 32, 32, 32)})
    gather = runtime.load(small_models.gather())
    x, i = {"x": np.ones((1, 32, 32, 32), np.float32)}, {"i": np.array([1, -1, 2])}
    expected = chain.run(x)["y"].tobytes(), gather.run(i)["y"].tobytes()
    pids, memory = {w["pid"] for w in runtime.workers}, others_memory(runtime.status())
    code = [sys.executable, str(scribbler.__file__), NAME, str(seed), str(SECONDS)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as bad:
        assert bad.stdout is not None
        try:
            assert bad.stdout.readline() == "ready\n"
            rounds = 0
            while bad.poll() is None:
                futures = [chain.submit(x) for _ in range(4)]
                got = chain.run(x, timeout=WATCHDOG_S)["y"].tobytes(), gather.run(i, timeout=WATCHDOG_S)["y"].tobytes()
                assert got == expected, f"seed {seed}"
                assert all(f.result(WATCHDOG_S)["y"].tobytes() == expected[0] for f in futures), f"seed {seed}"
                rounds += 1
            published = int(bad.stdout.readline())
        finally:
            bad.kill()
    assert rounds > 0
    assert published > 20
    status = runtime.status()
    assert {w["pid"] for w in runtime.workers} == pids, f"seed {seed}: a worker was replaced: {status['events']}"
    assert status["recovery"]["worker_deaths"] == 0, f"seed {seed}"
    deadline = time.monotonic() + WATCHDOG_S
    while others_memory(status := runtime.status()) != memory or len(status["clients"]) > 1 or len(status["models"]) > 2:
        assert time.monotonic() < deadline, f"seed {seed}: {status['memory']}, {memory} before, but for this client's data"
        time.sleep(0.01)
    assert chain.run(x)["y"].tobytes() == expected[0]


def test_first_lines_are_written_over(runtime: aspen_mp.Runtime) -> None:
    """Of all that a client has mapped: workers and clients that come later do not rely on them."""
    model = runtime.load(small_models.mlp())
    x = {"x": np.ones((4, 16), np.float32)}
    expected = model.run(x)["y"].tobytes()
    with Guest(NAME) as guest:
        assert isinstance(guest.ask("Data", 1, 1 << 16), protocol.DataReady)
        assert isinstance(guest.ask("TraceBegin", 2, 1 << 10), protocol.TraceReady)
        assert len(guest.fds) == 5
        for fd in guest.fds:
            with mmap.mmap(fd, os.fstat(fd).st_size) as memory:
                memory[:32] = b"\xff" * 32
        pids = {worker["pid"] for worker in runtime.workers}
        runtime.scale(4)
        deadline = time.monotonic() + WATCHDOG_S
        while sum(worker["process"] == "running" for worker in runtime.workers) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert model.run(x)["y"].tobytes() == expected
        with aspen_mp.connect(NAME) as other:
            assert other.load(small_models.mlp()).run(x)["y"].tobytes() == expected
        assert isinstance(guest.ask("TraceDrop", 3), protocol.Done)
    status = runtime.status()
    assert len(status["workers"]) == 4
    assert pids < {worker["pid"] for worker in status["workers"]}
    assert status["recovery"]["worker_deaths"] == 0, status["events"]


def test_nobody_seals_what_all_write_to(runtime: aspen_mp.Runtime) -> None:
    """No worker and no client could map the doorbell page any more."""
    future_write = 0x10
    with Guest(NAME) as guest:
        assert isinstance(guest.ask("Data", 1, 1 << 16), protocol.DataReady)
        for fd in guest.fds:
            with pytest.raises(PermissionError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, future_write)
