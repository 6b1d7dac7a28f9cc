"""The benchmarks of several networks at once: each command end to end on something tiny."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aspen_mp.bench.coexecution import contention, coplans, deadlines, priority
from aspen_mp.bench.models.synthetic.phases import KINDS
from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.records import record
from aspen_mp.bench.render import published

A = "aspen32@layers=3,image=16x16,channels=32"
B = "sppf@channels=16,image=9"
ENGINES = ("--engines", "aspen-mp,onnxruntime-quiet")
CORES = len(os.sched_getaffinity(0))


def recorded(tmp_path: Path, *arguments: str) -> Any:
    """The result that a command records, as its benchmark's own type; its picture is there."""
    document, picture = tmp_path / "found.json", tmp_path / "found.svg"
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", *arguments, "-o", str(document), "--plot", str(picture), "--keep-disturbed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 0, done.stderr
    assert "<svg" in picture.read_text("utf-8")
    found = record.load(document, published.RESULTS[arguments[0]])
    assert found.benchmark == arguments[0]
    return found.result


def test_together(tmp_path: Path) -> None:
    found = recorded(tmp_path, "together", A, B, "--ratio", "3,1", "--rounds", "2", "--seconds", "0", "--runs", "2", *ENGINES)
    (group,) = found.groups
    assert (group.networks, group.counts) == ([A, B], [3, 1])
    assert group.name == f"3 × {A} + {B}"
    assert [entry.label for entry in group.entries] == [OURS, "onnxruntime-quiet"]
    for entry in group.entries:
        assert len(entry.at_once_ms) == len(entry.in_turn_ms) == 2
        assert [share.together.number for share in entry.shares] == [3 * 2 * 2, 2 * 2]
    assert group.entries[0].of_ours is None
    assert group.bound.ms == max(group.bound.cores, group.bound.memory, group.bound.longest) > 0
    assert group.bound.memory == 0, "caches hold all weights"
    assert "time at once by one after the other" in group.verdict


def test_pairs_are_balanced(tmp_path: Path) -> None:
    quick = ("--rounds", "1", "--seconds", "0", "--runs", "1", "--engines", "onnxruntime-shared")
    found = recorded(tmp_path, "together", A, B, "poolformer@channels=8,layers=1,image=7", "--pairs", *quick)
    assert [len(group.networks) for group in found.groups] == [2, 2, 2]
    assert all(min(group.counts) == 1 and group.bound is None for group in found.groups)


def test_priority(tmp_path: Path) -> None:
    options = ("--load", B, "--every", "20", "--in-flight", "2", "--rounds", "1", "--seconds", "0.1")
    (scene,) = recorded(tmp_path, "priority", A, *options, *ENGINES).scenes
    assert scene.scene == priority.Scene(A, 20, B, 2)
    assert [entry.label for entry in scene.entries] == [OURS, priority.ONE_CLASS, "onnxruntime-quiet"]
    for entry in scene.entries:
        assert (entry.alone.number, entry.beside.number) == (5, 10)
        assert len(entry.beside.ms) == len(priority.SHARES)
        assert min(entry.load_alone_per_s + entry.load_beside_per_s) > 0


def test_deadlines(tmp_path: Path) -> None:
    found = recorded(tmp_path, "deadlines", A, B, "--loads", "0.2,2", "--seconds", "0.1", *ENGINES)
    assert found.networks == [A, B]
    assert found.deadlines_ms == pytest.approx([5 * ms for ms in found.alone_ms], rel=1e-4)
    assert [curve.label for curve in found.curves] == [OURS, deadlines.FIFO, "onnxruntime-quiet"]
    for curve in found.curves:
        assert [point.load for point in curve.points] == [0.2, 2]
        assert all(point.met + point.refused <= point.requests for point in curve.points)
    assert len({point.requests for curve in found.curves for point in curve.points if point.load == 2}) == 1, "the same for all"


def test_dynamic(tmp_path: Path) -> None:
    engines = ("--engines", "aspen-mp,aspen-mp-scheduled,onnxruntime-quiet")
    found = recorded(tmp_path, "dynamic", A, f"{A}+{B}", B, "--seconds", "0.3", *engines)
    assert found.phases == [[A], [A, B], [B]]
    assert [course.label for course in found.courses] == engines[1].split(",")
    for course in found.courses:
        assert [(line.phase, line.network) for line in course.lines] == [(0, A), (1, A), (1, B), (2, B)]
        assert all(line.latency.number and line.times_s for line in course.lines)
        assert len(course.progress) == 3


@pytest.mark.skipif(CORES < 2, reason="two CPUs are needed")
def test_contention(tmp_path: Path) -> None:
    found = recorded(tmp_path, "contention", "--size", "64", "--rounds", "1", "--seconds", "0.05", "--runs", "1")
    assert [kind.kind for kind in found.kinds] == list(KINDS)
    assert {(pair.kind, pair.beside) for pair in found.pairs} == {(a, b) for a in KINDS for b in KINDS}
    assert all(pair.slowdown > 0 and pair.predicted is None for pair in found.pairs)
    assert len(found.meetings) == 5
    assert contention.BOTH not in found.failed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["together", A], "give at least two networks"),
        (["together", A, A], "each once"),
        (["together", A, B, "--ratio", "1,2,3"], "give a number for each of the 2 networks"),
        (["together", "--engines", "abacus"], "there is no engine"),
        (["deadlines", "--loads", "0"], "a load that is not above 0"),
        (["contention", "--size", "100"], "give a multiple of 64"),
    ],
)
def test_wrong_use(arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 2
    assert says in done.stderr


def test_coplans(tmp_path: Path) -> None:
    document = tmp_path / "found.json"
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", "coplans", f"2*{B}+{A}", "--cores", "2", "--cores", "2P+2E"]
    command += ["--seconds", "0.05", "-o", str(document)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 0, done.stderr
    found = record.load(document, published.RESULTS["coplans"]).result
    assert [gain.cores for gain in found.gains] == ["2", "2P+2E"]
    for gain in found.gains:
        assert (gain.networks, gain.times) == ([B, A], [2, 1])
        assert coplans.SERIAL in gain.naive_ms
        assert gain.bound_ms <= gain.ms <= min(gain.naive_ms.values()), "never worse than naive"
        assert gain.of_best <= gain.of_serial
    assert "less than one network after the other" in found.verdict


def test_coplans_names_what_the_zoo_lacks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", "coplans", "nothing+resnet50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.returncode == 2
    assert "the zoo has no 'nothing'" in done.stderr
