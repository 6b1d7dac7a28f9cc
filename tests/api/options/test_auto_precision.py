"""`precision="auto"`: the fastest precision whose error on samples is within the bound, and what is said of the choice."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import small_models

import aspen_mp
from aspen_mp.cli.app import app
from aspen_mp.client.trials import precisions, turns
from aspen_mp.client.trials.choice import Choice, Trial
from aspen_mp.errors import RequestError
from aspen_mp.planner.job.options import PRECISIONS
from aspen_mp.workers._isa import sums_pairs

OTHERS = [each for each in PRECISIONS if each != "f32"]
rounds = pytest.mark.skipif(not sums_pairs(), reason="this processor computes bf16 in f32")


@pytest.fixture(scope="module")
def product() -> onnx.ModelProto:
    return small_models.projection(rows=70, terms=768, columns=800)


def samples(model: onnx.ModelProto, count: int = 3) -> list[dict[str, np.ndarray]]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal(shape, dtype=np.float32)} for _ in range(count)]


def taking(monkeypatch: pytest.MonkeyPatch, times: list[float]) -> None:
    """Has requests take these milliseconds, f32 first."""

    def medians(calls: Any) -> list[float]:
        for call in calls:
            call()
        return times[: len(calls)]

    monkeypatch.setattr(turns, "medians", medians)


@rounds
@pytest.mark.parametrize(
    ("within", "rounded_ms", "chosen"), [(0.1, 5.0, "bf16"), (0.1, 9.9, "f32"), (0.1, 20.0, "f32"), (1e-7, 5.0, "f32"), (0.0, 5.0, "f32")]
)
def test_the_fastest_within_the_bound_is_chosen(
    product: onnx.ModelProto,
    shared_runtime: aspen_mp.Runtime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    within: float,
    rounded_ms: float,
    chosen: str,
) -> None:
    taking(monkeypatch, [10.0, rounded_ms] + [99.0] * len(OTHERS))
    tried = samples(product)
    with caplog.at_level(logging.INFO, "aspen_mp.precision"):
        model = shared_runtime.load(product, precision="auto", samples=tried, within=within)
    choice = model.precision_choice
    assert choice is not None
    assert (choice.precision, choice.within, choice.samples) == (chosen, within, 3)
    assert [trial.precision for trial in choice.trials] == list(PRECISIONS)
    exact = shared_runtime.load(product, precision="f32")
    for trial in choice.trials[1:]:
        rounded = shared_runtime.load(product, precision=trial.precision)
        pairs = [(rounded.run(each)["y"], exact.run(each)["y"]) for each in tried]
        assert trial.error == pytest.approx(max(abs(got - want).max() / abs(want).max() for got, want in pairs))
        assert (trial.ms is None) == (trial.error > within)
        rounded.unload()
    like = shared_runtime.load(product, precision=chosen)  # type: ignore[arg-type]
    assert model.run(tried[0])["y"].tobytes() == like.run(tried[0])["y"].tobytes()
    assert f"{chosen} (chosen)" in caplog.text
    assert str(choice) in caplog.text
    (state,) = [each for each in shared_runtime.status()["models"] if each["id"] == model.number]
    assert state["precision"] == chosen
    for each in (exact, like, model):
        each.unload()
    assert not shared_runtime.status()["models"], "those that were not chosen are unloaded"


def test_a_processor_without_the_instruction_has_no_choice(
    product: onnx.ModelProto, shared_runtime: aspen_mp.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precisions, "_error", lambda *_: 0.0)
    model = shared_runtime.load(product, precision="auto", samples=samples(product))
    assert model.precision_choice == Choice("f32", 0.01, 3, (Trial("f32", 0.0),))
    model.unload()


def test_samples_from_files(product: onnx.ModelProto, shared_runtime: aspen_mp.Runtime, tmp_path: Path) -> None:
    for k, each in enumerate(samples(product)):
        np.save(tmp_path / f"{k}.npy", each["x"])
    model = shared_runtime.load(product, precision="auto", samples=tmp_path, within=0.05)
    assert model.precision_choice is not None
    assert model.precision_choice.samples == 3
    model.unload()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"precision": "auto"}, ValueError, "need each other"),
        ({"samples": [np.zeros((70, 768), np.float32)]}, ValueError, "need each other"),
        ({"precision": "bf16", "samples": [np.zeros((70, 768), np.float32)]}, ValueError, "need each other"),
        ({"precision": "auto", "samples": []}, RequestError, "there are no samples"),
        ({"precision": "auto", "samples": [np.zeros((7, 7), np.float32)]}, RequestError, "must have shape 70x768, not 7x7"),
        ({"precision": "auto", "samples": [np.zeros((70, 768), np.float32)], "within": -1}, ValueError, "within must be a number from 0"),
        ({"precision": "auto", "samples": [np.zeros((70, 768), np.float32)], "within": "x"}, TypeError, "within must be a number"),
    ],
)
def test_wrong_arguments_leave_nothing(
    product: onnx.ModelProto, shared_runtime: aspen_mp.Runtime, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        shared_runtime.load(product, **arguments)
    assert not shared_runtime.status()["models"]


def test_the_command(product: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(product, tmp_path / "m.onnx")
    (tmp_path / "samples").mkdir()
    np.save(tmp_path / "samples" / "0.npy", samples(product)[0]["x"])
    run = ["run", str(tmp_path / "m.onnx"), "--random", "-w", "1", "-r", "1", "--precision", "auto"]
    with pytest.raises(SystemExit) as ended:
        app([*run, "--samples", str(tmp_path / "samples"), "--within", "0.05"])
    assert ended.value.code == 0
    assert "(chosen)" in capsys.readouterr().err
    for more, message in (([], "need each other"), (["--samples", str(tmp_path / "none")], "there is no folder")):
        with pytest.raises(SystemExit) as ended:
            app([*run, *more])
        assert ended.value.code == 2
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
