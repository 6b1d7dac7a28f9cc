"""Records of benchmarks: what they hold, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.bench.cli import findings
from aspen_mp.bench.peers.report import PeersResult
from aspen_mp.bench.records import environment, record
from aspen_mp.bench.records.environment import Load
from aspen_mp.bench.records.record import Recorder

QUIET = Load(others=0.0, stolen=0.0, average=0.0)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Load]:
    """What the machine is said to have done."""
    load = {"load": QUIET}
    monkeypatch.setattr(environment.Watch, "load", lambda self: load["load"])
    monkeypatch.setattr(environment, "_LOOK_S", 0.0)
    return load


def test_a_record_is_read_as_it_was_written(tmp_path: Path, watched: dict[str, Load]) -> None:
    made = Recorder("peers", ["bench", "peers", "resnet50"]).finish(PeersResult(["torch"], []))
    file = record.save(made, tmp_path)
    assert file == tmp_path / environment.machine().slug / "peers.json"
    read = record.load(file, PeersResult)
    assert read.result == PeersResult(["torch"], [])
    assert (read.command, read.benchmark, read.disturbed) == ("aspen-mp bench peers resnet50", "peers", [])
    assert record.text(read) == record.text(made)
    assert read.machine.cores >= 1
    assert set(read.packages) <= set(environment.PACKAGES)


@given(st.lists(st.sampled_from(["-o", "--output", "--plot", "--json", "--keep-disturbed", "--output=x.json"]), max_size=4, unique=True))
def test_the_command_can_be_repeated(options: list[str]) -> None:
    values = {"-o": ["a.json"], "--output": ["b.json"], "--plot": ["c.png"]}
    words = [word for option in options for word in (option, *values.get(option, []))]
    assert record._repeatable(["bench", *words, "peers", *words, "x y", "-t", "1", *words]) == ["bench", "peers", "x y", "-t", "1"]


@pytest.mark.parametrize(
    ("load", "rounds", "reasons"),
    [
        (QUIET, 0, 0),
        (QUIET, 2, 1),
        (Load(others=1000.0, stolen=0.0, average=0.0), 0, 1),
        (Load(others=1000.0, stolen=0.5, average=0.0), 1, 3),
    ],
)
def test_a_disturbed_run_says_why(watched: dict[str, Load], load: Load, rounds: int, reasons: int) -> None:
    watched["load"] = load
    assert len(Recorder("peers", []).finish(None, rounds).disturbed) == reasons


@pytest.mark.parametrize("keep", [False, True])
def test_a_disturbed_run_is_recorded_only_if_told(tmp_path: Path, watched: dict[str, Load], keep: bool) -> None:
    file = tmp_path / "record.json"
    recording = findings.Recording("peers", file, False, keep)
    if keep:
        recording.write(PeersResult([], []), disturbed_rounds=1)
        assert json.loads(file.read_text())["disturbed"]
        return
    with pytest.raises(findings.typer.Exit) as end:
        recording.write(PeersResult([], []), disturbed_rounds=1)
    assert end.value.exit_code == 1
    assert not file.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 0}, "Measure again with: aspen-mp bench peers"),
        ({"result": {"absent": []}}, "cases"),
        ({"machine": None}, "machine"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, watched: dict[str, Load], change: dict[str, Any], message: str) -> None:
    file = tmp_path / "peers.json"
    record.save(Recorder("peers", ["bench", "peers"]).finish(PeersResult([], [])), file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=message) as error:
        record.load(file, PeersResult)
    assert str(file) in str(error.value)
