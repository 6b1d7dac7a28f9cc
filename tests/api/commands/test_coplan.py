"""`aspen-mp coplan`: several networks planned together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aspen_mp.cli.documents import Coplan

WATCHDOG_S = 120


def call(*arguments: object) -> tuple[int, str]:
    """In a process of its own: matplotlib leaves fonts open."""
    command = [sys.executable, "-m", "aspen_mp.cli", "coplan", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=WATCHDOG_S)
    return done.returncode, done.stdout + done.stderr


PAIR = ("zoo:squeezenet1_1", "zoo:mobilenet_v2", "--search", "none", "--seconds", "0.2")


def test_a_plan_and_its_picture(tmp_path: Path) -> None:
    status, text = call(*PAIR, "--cores", "2P+2E", "--json", "-o", tmp_path / "timeline.svg")
    assert status == 0, text
    report = msgspec.json.decode(text[text.index("{") :], type=Coplan)
    assert (tmp_path / "timeline.svg").read_text().lstrip().startswith("<?xml")
    assert report.bound <= report.value * (1 + 1e-9)
    assert {each.name for each in report.naive} == {"serial", "apart", "shared"}
    assert all(each.gain >= -1e-9 for each in report.naive)
    assert len(report.steps) == sum(len(each.groups) for each in report.networks)
    assert [job.network for job in report.jobs] == list(PAIR[:2])


def test_several_runs_for_throughput() -> None:
    status, text = call(*PAIR, "--cores", 2, "--times", "2,1", "--objective", "throughput", "--json")
    assert status == 0, text
    report = json.loads(text[text.index("{") :])
    assert [job["after"] for job in report["jobs"]] == [[], [0], []]
    assert report["bound"] >= report["value"] * (1 - 1e-9)


def test_one_after_the_other_in_words() -> None:
    status, text = call("zoo:squeezenet1_1", "zoo:squeezenet1_1", "--chain", "--cores", 2, "--search", "none", "--seconds", "0.1")
    assert status == 0
    assert "one after the other" in text
    assert "greatest latency" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--objective", "energy"), "'energy' is not one of latency, throughput"),
        (("--times", "1"), "a number of runs for each of the 2 models"),
        (("--times", "8,1"), "9 runs"),
        (("--cores", "8P+X"), "not a group of cores"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], message: str) -> None:
    status, text = call(*PAIR, *arguments)
    assert status == 2
    assert message in " ".join(text.replace("│", " ").split())
