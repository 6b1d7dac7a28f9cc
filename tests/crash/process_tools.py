"""What tests that end processes have in common."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import aspen_mp

sys.path.insert(0, str(Path(__file__).parent.parent / "api"))
import small_models

WATCHDOG_S = 60.0


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 64, 64, 64)).astype(np.float32)}


def chain(runtime: aspen_mp.Runtime) -> aspen_mp.Model:
    return runtime.load(small_models.conv_chain(24, 64, 64))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WATCHDOG_S
    while not condition():
        assert time.monotonic() < deadline, f"watchdog: {what}"
        time.sleep(0.005)
