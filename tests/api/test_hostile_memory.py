"""Clients write what they like into the memory that they share with workers (I11): it costs nobody else anything.

`scribbler.py` is such a client. Beside it one that behaves has to get its right answers, and no worker may die, fault, stop or hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import small_models

import aspen_mp

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
NAME = "scribbled"
SECONDS = 60 if LONG else 3
WATCHDOG_S = 120.0


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[aspen_mp.Runtime]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with aspen_mp.Runtime(workers=2, name=NAME) as own:
        yield own


@pytest.mark.parametrize("seed", range(20 if LONG else 2))
def test_a_good_client_beside_one_that_scribbles(runtime: aspen_mp.Runtime, seed: int) -> None:
    chain, gather = runtime.load(small_models.conv_chain(6, 32, 32)), runtime.load(small_models.gather())
    x, i = {"x": np.ones((1, 32, 32, 32), np.float32)}, {"i": np.array([1, -1, 2])}
    expected = chain.run(x)["y"].tobytes(), gather.run(i)["y"].tobytes()
    assert all(
        f.result(WATCHDOG_S)["y"].tobytes() == expected[0] for f in [chain.submit(x) for _ in range(5)]
    )  # takes what memory it takes
    pids, memory = {w["pid"] for w in runtime.workers}, runtime.status()["memory"]
    code = [sys.executable, str(Path(__file__).with_name("scribbler.py")), NAME, str(seed), str(SECONDS)]
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
    while (status := runtime.status())["memory"] != memory or len(status["clients"]) > 1 or len(status["models"]) > 2:
        assert time.monotonic() < deadline, f"seed {seed}: {status['memory']}, {memory} before"
        time.sleep(0.01)
    assert chain.run(x)["y"].tobytes() == expected[0]
