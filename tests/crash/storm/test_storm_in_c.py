"""The scheduler's own headers in a storm of deaths (storm.c): worker processes die at any atomic operation, in the middle of kernels,
and by signals from outside at any moment. Every request has to be answered once, with the right bits, and everything has to come to rest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import cbuild
import pytest

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
SECONDS = float(os.environ.get("ASPEN_MP_STORM_SECONDS", "240"))
"""Of the long tier, all storms together."""
WATCHDOG = 900.0
# Workers, and deaths in the short tier.
STORMS = {1: 3_000, 2: 9_000, 3: 12_000, 4: 14_000, 6: 8_000, 8: 6_000}


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cbuild.build_storm(cbuild.sources(tmp_path_factory.mktemp("storm"), small=False), "storm")


def run(program: Path, *arguments: object, watchdog: float = WATCHDOG) -> tuple[int, str]:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=watchdog)
    print(done.stdout, done.stderr, sep="", end="", file=sys.stderr)
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", STORMS)
def test_nothing_is_lost(storm: Path, workers: int) -> None:
    share = SECONDS / len(STORMS)
    deaths, seconds = (10**9, share) if LONG else (STORMS[workers], WATCHDOG)
    seed = int(os.environ.get("ASPEN_MP_STORM_SEED", "1")) * 100 + workers
    code, output = run(storm, seed, workers, deaths, seconds, watchdog=seconds + 120)
    assert code == 0, f"seed {seed}: {output}"
    assert "fine: " in output
    if not LONG:
        died = re.search(r"^(\d+) deaths", output)
        assert died is not None
        assert int(died[1]) >= deaths
    # A worker that waits for a lock gives up when the world is to stop (I8): nobody has to be ended because it did not park.
    assert "ended because they did not park: 0\n" in output, output
