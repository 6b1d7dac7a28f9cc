"""After each test no runtime of a node may be left: it ends when its last user has gone."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import pytest

from aspen_mp.control.wire import run_directory

SETTLE_S = 30.0


def files() -> set[str]:
    """What is in the run directory."""
    try:
        return set(os.listdir(run_directory.path()))
    except FileNotFoundError:
        return set()


def _wait_until_empty(before: set[str]) -> None:
    gc.collect()  # Ray's handles of actors of a job that failed are in cycles of references
    deadline = time.monotonic() + SETTLE_S
    while files() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind in the run directory: {sorted(files() - before)}")
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_runtime_is_left() -> Iterator[None]:
    before = files()
    yield
    _wait_until_empty(before)
