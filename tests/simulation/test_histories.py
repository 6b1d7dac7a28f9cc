"""Simulated histories hold what must hold; two runs of one seed are the same; planted faults are found."""

from __future__ import annotations

import os
import subprocess
import sys

import folders
import pytest

from simulation import planted, seeds
from simulation.native import build
from simulation.serving import planted as of_servers

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
MINUTES = 10
SHORT = ["part-of-a-frame", "calls-after-the-loss", "dead-are-not-replaced"]
"""Planted faults that are found within seconds."""


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


def test_histories_hold() -> None:
    done = command("--seed", "1", "--count", "1000" if LONG else "30")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert ", 0 failed" in done.stdout


def test_without_trouble_nothing_takes_long() -> None:
    done = command("--seed", "1", "--count", "300" if LONG else "8", "--calm")
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("options", [("--calm",), ()])
def test_histories_of_streams_hold(options: tuple[str, ...]) -> None:
    done = command("--streams", "--seed", "1", "--count", "400" if LONG else "10", *options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert ", 0 failed" in done.stdout


@pytest.mark.parametrize("options", [("--calm",), (), ("--users", "5", "--acts", "20")])
def test_histories_of_servers_hold(options: tuple[str, ...]) -> None:
    for each in ("uvicorn", "httptools", "uvloop", "simdjson", "orjson", "starlette"):
        pytest.importorskip(each)
    done = command("--kind", "serve", "--seed", "1", "--count", "600" if LONG else "15", *options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert ", 0 failed" in done.stdout


@pytest.mark.parametrize("options", [(), ("--streams",)])
def test_two_runs_of_a_seed_are_the_same(options: tuple[str, ...]) -> None:
    done = command("--seed", "501", "--count", "200" if LONG else "5", "--twice", *options)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "two runs differ" not in done.stdout


@pytest.mark.parametrize("kind", ["runtime", "serve"])
@pytest.mark.parametrize("python", [each for each in os.environ.get("ASPEN_MP_PYTHONS", "").split(":") if each])
def test_other_pythons_have_the_same_histories(python: str, kind: str) -> None:
    """`python`: an interpreter of another version with aspen-mp installed from this folder."""
    what = ("-m", "tests.simulation", "--kind", kind, "--seed", "701", "--count", "200" if LONG else "20", "--digests")
    found = []
    for each in (sys.executable, python):
        done = subprocess.run([each, *what], cwd=folders.ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        found.append(sorted(line for line in done.stdout.splitlines() if line[:1].isdigit()))
    assert found[0] == found[1]
    assert len(found[0]) >= 20


def test_histories_that_failed_once() -> None:
    done = command("--seeds", ",".join(str(seed) for seed in seeds.SEEDS))
    assert done.returncode == 0, f"{seeds.SEEDS}: {done.stdout[-4000:]}"


@pytest.mark.parametrize(("seed", "options"), [(seed, options) for seed, options, _ in seeds.OF_SERVERS])
def test_histories_of_servers_that_failed_once(seed: int, options: str) -> None:
    pytest.importorskip("uvicorn")
    done = command("--kind", "serve", "--seed", str(seed), *options.split())
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("name", [*planted.FAULTS, *of_servers.FAULTS] if LONG else SHORT)
def test_planted_faults_are_found(name: str) -> None:
    """From fresh seeds, where the same histories hold without the fault."""
    if name in of_servers.FAULTS:
        pytest.importorskip("uvicorn")
    how = ("--minutes", str(MINUTES), "--seed", "1000000", "--users", "5", "--acts", "20") if LONG else ("--count", "60")
    done = command("--plant", name, *how)
    assert f"{name}: found by history" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", [*planted.FAULTS, *of_servers.FAULTS])
def test_planted_faults_stand_in_the_source(name: str) -> None:
    """Each replaces something that is there once: a change of the product must not take it away unnoticed."""
    fault = {**planted.FAULTS, **of_servers.FAULTS}[name]
    *folder, file = fault.module.removeprefix("aspen_mp.").split(".")
    top = folders.ROOT / ("aspen_mp" if fault.module.startswith("aspen_mp.") else "tests")
    assert top.joinpath(*folder, f"{file}.py").read_text(encoding="utf-8").count(fault.old) == 1


def test_a_failing_history_gets_shorter() -> None:
    found = command("--plant", SHORT[0], "--count", "60").stdout
    seed = found.rpartition("(seed ")[2].partition(")")[0]
    done = command("--plant", SHORT[0], "--seed", seed, "--shrink")
    assert f"python -m tests.simulation --kind runtime --seed {seed}" in done.stdout, found + done.stdout


def test_the_page_lists_the_planted_faults() -> None:
    page = (folders.ROOT / "docs" / "protocol" / "simulation.md").read_text(encoding="utf-8")
    assert planted.printed(page) == page, "python -m tests.simulation --table writes it"
