"""`aspen-mp bench torch`: networks are found by name, engines are measured and judged, what is missing is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", "torch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=600)


def test_networks_are_measured_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "torch.json"
    core = min(os.sched_getaffinity(0))
    options = ["--size", "small", "--cores", core, "--rounds", 1, "--seconds", 0, "--runs", 1, "--memory", "1,2", "--keep-disturbed"]
    done = cli("own/perceptron", "own/tem*", "--engines", "aspen-mp,eager", *options, "-o", file)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(file.read_text())
    assert record["benchmark"] == "torch"
    networks = record["result"]["networks"]
    assert [network["network"] for network in networks] == ["own/perceptron", "own/temporal"]
    for network in networks:
        ours, eager = network["engines"]
        assert (ours["engine"], eager["engine"]) == ("aspen-mp", "eager")
        assert not ours["wrong"]
        assert ours["error"] < 1e-4
        assert eager["ratio"] > 0
        assert set(ours["memory"]) == {"1", "2"}
        assert ours["memory"]["2"] > ours["memory"]["1"] > 0
        assert ours["floor"]["2"] > ours["floor"]["1"] > 0
        assert all(min(ours["calls_per_s"][count]) > 0 for count in ("1", "2"))


def test_a_file_written_ahead_is_loaded_by_the_second_process(tmp_path: Path) -> None:
    file = tmp_path / "torch.json"
    options = ["--size", "small", "--cores", min(os.sched_getaffinity(0)), "--rounds", 1, "--seconds", 0, "--runs", 1, "--keep-disturbed"]
    done = cli("own/perceptron", "--engines", "aspen-mp,aspen-mp-ahead", *options, "-o", file)
    assert done.returncode == 0, done.stdout + done.stderr
    (network,) = json.loads(file.read_text())["result"]["networks"]
    _, ahead = network["engines"]
    assert ahead["engine"] == "aspen-mp-ahead"
    assert not ahead["wrong"]
    assert ahead["error"] < 1e-4
    assert ahead["ratio"] is None
    assert "aspen-mp-ahead's time" not in done.stdout


def test_the_list_has_every_family() -> None:
    done = cli("--list")
    assert done.returncode == 0
    for name in ("torchvision/resnet50", "timm/mixer_s16_224", "transformers/bert-base", "own/lstm"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("no/such",), "there is no network 'no/such'"), (("own/lstm", "--engines", "tensorflow"), "'tensorflow' is not an engine")],
)
def test_what_is_unknown_is_named(arguments: tuple[str, ...], message: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
