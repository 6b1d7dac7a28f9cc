"""`aspen-mp run --stream`: frames of a folder, their outputs, what of them ran, and options that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import frame_models
import msgspec
import numpy as np
import onnx
import pytest

import aspen_mp
from aspen_mp.cli.app import app
from aspen_mp.cli.documents import DOCUMENTS


def told(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        app(["run", *map(str, arguments)])
    printed = capsys.readouterr()
    assert (ended.value.code or 0) == status, printed.out + printed.err
    return printed.out if status == 0 else " ".join((printed.out + printed.err).replace("│", " ").split())


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    text = told(capsys, *arguments, "--workers", 1, "--repeat", 2, "--json")
    msgspec.json.decode(text, type=DOCUMENTS["run"])
    return json.loads(text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(frame_models.pictures(), tmp_path / "pictures.onnx")
    return tmp_path / "pictures.onnx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "frames"
    found.mkdir()
    for k, frame in enumerate(frame_models.frames(5)):
        np.save(found / f"{k:02d}.npy", frame)
    (found / "notes.txt").write_text("not a frame")
    return found


def test_frames_have_the_outputs_of_whole_runs(
    capsys: pytest.CaptureFixture[str], shared_runtime: aspen_mp.Runtime, model: Path, folder: Path, tmp_path: Path
) -> None:
    report = document(capsys, model, "--stream", folder, "--output", tmp_path / "out")
    rows = report["stream"]["frames"]
    assert [row["frame"] for row in rows] == [f"{k:02d}" for k in range(5)]
    assert rows[0]["work"] == 1
    assert all(row["work"] < 1 and row["error"] is None for row in rows[1:])
    assert report["latency_ms"]["runs"] == 2
    assert report["stream"]["bytes"] > 0
    assert report["files"] == [str(tmp_path / "out" / f"{k:02d}" / "y.npy") for k in range(5)]
    loaded = shared_runtime.load(model)
    for file, frame in zip(report["files"], frame_models.frames(5), strict=True):
        np.testing.assert_allclose(np.load(file), loaded.run(frame)["y"], rtol=1e-4, atol=1e-4)
    loaded.unload()


def test_text_has_a_line_for_each_frame(capsys: pytest.CaptureFixture[str], model: Path, folder: Path) -> None:
    text = told(capsys, model, "--stream", folder, "--workers", 1, "--repeat", 2, "--refresh", 2)
    assert all(f"\n{k:02d} " in text for k in range(5))
    assert "error" in text
    assert "by Model.run: median" in text
    assert "(2 runs before the stream)" in text


def test_tolerance_and_errors_reach_the_stream(capsys: pytest.CaptureFixture[str], model: Path, folder: Path) -> None:
    rows = document(capsys, model, "--stream", folder, "--tol", "x=1e6", "--refresh", 3)["stream"]["frames"]
    assert [row["work"] for row in rows] == [1, 0, 0, 1, 0]
    assert rows[2]["error"] is None
    assert rows[3]["error"] > 0
    rows = document(capsys, model, "--stream", folder, "--tol", "1e6")["stream"]["frames"]
    assert [row["work"] for row in rows] == [1, 0, 0, 0, 0]


def test_a_file_with_all_frames_and_an_input_that_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    onnx.save(frame_models.pictures(gain=True), tmp_path / "pictures.onnx")
    np.save(tmp_path / "clip.npy", np.concatenate(frame_models.frames(3)))
    np.save(tmp_path / "gain.npy", np.full(1, 2, np.float32))
    arguments = (tmp_path / "pictures.onnx", "--stream", tmp_path / "clip.npy", "--input", f"gain={tmp_path / 'gain.npy'}")
    report = document(capsys, *arguments)
    assert len({row["frame"] for row in report["stream"]["frames"]}) == 3
    assert {row["name"] for row in report["inputs"]} == {"x", "gain"}


def test_one_frame_has_no_later_ones(capsys: pytest.CaptureFixture[str], model: Path, folder: Path) -> None:
    for k in range(1, 5):
        (folder / f"{k:02d}.npy").unlink()
    assert document(capsys, model, "--stream", folder)["stream"]["later_ms"] is None
    assert "1 frame through a stream" in told(capsys, model, "--stream", folder, "--workers", 1, "--repeat", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stream", "nosuch"], "no folder 'nosuch'"),
        (["--stream", "FRAMES", "--random"], "--random"),
        (["--stream", "FRAMES", "--check"], "--check"),
        (["--stream", "FRAMES", "--tol", "much"], "'much' is not a number"),
        (["--stream", "FRAMES", "--tol", "-1"], "tol"),
        (["--stream", "FRAMES", "--tol", "nan"], "tol"),
        (["--stream", "FRAMES", "--noise", "nan"], "noise"),
        (["--stream", "FRAMES", "--tol", "1", "--tol", "2"], "names no input"),
        (["--stream", "FRAMES", "--input", "z=x.npy"], "no input 'z'"),
        (["--random", "--tol", "1"], "Give --stream DIR"),
        (["--random", "--noise", "1"], "Give --stream DIR"),
        (["--stream", "FRAMES", "--layer-tol", "0.1", "--same-bits"], "does not go with same_bits"),
        (["--random", "--layer-tol", "0.1"], "Give --stream DIR"),
        (["--random", "--refresh", "1"], "Give --stream DIR"),
        (["--random", "--no-same-bits"], "Give --stream DIR"),
        (["--random", "--stream-memory", "8"], "Give --stream DIR"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    capsys: pytest.CaptureFixture[str], model: Path, folder: Path, arguments: list[str], message: str
) -> None:
    given = [str(folder) if word == "FRAMES" else word for word in arguments]
    assert message in told(capsys, model, *given, "--workers", 1, status=2)


def test_a_folder_without_frames_and_frames_that_do_not_fit(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no samples" in told(capsys, model, "--stream", empty, "--workers", 1, status=1)
    np.save(empty / "a.npy", np.zeros((1, 3, 5, 5), np.float32))
    assert "must have shape" in told(capsys, model, "--stream", empty, "--workers", 1, status=1)
