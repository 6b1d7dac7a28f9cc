"""Simulated histories hold what must hold; two runs of one seed are the same; planted faults are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import folders
import pytest

from simulation import planted, seeds
from simulation.native import build

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
MINUTES = 10


def command(*arguments: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which loads other modules than this one."""
    given = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(given, cwd=folders.ROOT, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """The native modules, which need the ordinary build beside them."""
    pytest.importorskip("greenlet")
    try:
        build.build()
    except build.NotBuiltError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("first", [1, 301])
def test_histories_hold(first: int) -> None:
    done = command("--seed", str(first), "--count", "1000" if LONG else "40")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert ", 0 failed" in done.stdout


def test_without_trouble_nothing_takes_long() -> None:
    done = command("--seed", "1", "--count", "20", "--calm")
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("options", [("--calm",), (), ("--users", "5", "--acts", "20")])
def test_histories_of_servers_hold(options: tuple[str, ...]) -> None:
    for each in ("uvicorn", "httptools", "uvloop", "simdjson", "orjson", "starlette"):
        pytest.importorskip(each)
    done = command("--kind", "serve", "--seed", "1", "--count", "600" if LONG else "15", *options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert ", 0 failed" in done.stdout


def test_two_runs_of_a_seed_are_the_same() -> None:
    done = command("--seed", "501", "--count", "100" if LONG else "12", "--twice")
    assert done.returncode == 0, done.stdout[-4000:]
    assert "two runs differ" not in done.stdout


def test_histories_that_failed_once() -> None:
    for seed, options, what in seeds.SEEDS:
        if "serve" in options:
            pytest.importorskip("uvicorn")
        done = command("--seed", str(seed), *options.split())
        assert done.returncode == 0, f"seed {seed} ({what}): {done.stdout[-4000:]}"


@pytest.mark.parametrize("name", planted.FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    """In the quick tiers at the seed where it was found last, in the long tier from fresh seeds."""
    known = json.loads((Path(__file__).parent / "found.json").read_text())
    if LONG:
        done = command("--plant", name, "--minutes", str(MINUTES), "--seed", "1000000")
    else:
        done = command("--plant", name, "--seed", str(known[name]["seed"]), "--count", "2", "--jobs", "1")
    assert f"{name}: found by history" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_page_lists_the_planted_faults() -> None:
    page = (folders.ROOT / "docs" / "protocol" / "simulation.md").read_text(encoding="utf-8")
    assert planted.printed(page) == page, "python -m tests.simulation --table writes it"
