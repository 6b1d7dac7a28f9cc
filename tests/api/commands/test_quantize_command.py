"""`aspen-mp quantize` and `aspen_mp.quantize`: models in 8 bits, their reports, and what is said where it cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import quantised_models
import small_models
from onnx import TensorProto

pytest.importorskip("onnxruntime")

import aspen_mp
from aspen_mp.cli.app import app
from aspen_mp.client.trials import difference
from aspen_mp.errors import AspenError, RequestError
from aspen_mp.quantization import quantizer
from aspen_mp.quantization.report import Report

WATCHDOG_S = 120


def saved(folder: Path, network: str = "conv_net", count: int = 6) -> tuple[Path, Path]:
    """A network's file, and a folder with samples."""
    model = quantised_models.NETWORKS[network]()
    onnx.save(model, folder / "model.onnx")
    (folder / "samples").mkdir()
    for k, sample in enumerate(quantised_models.samples(model, count)):
        np.savez(folder / "samples" / f"{k}.npz", **sample)
    return folder / "model.onnx", folder / "samples"


def told(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        app(["quantize", *map(str, arguments)])
    printed = capsys.readouterr()
    assert ended.value.code == status, printed.out + printed.err
    return " ".join((printed.out + printed.err).replace("│", " ").split())


def in_bytes(path: Path) -> set[int]:
    return {t.data_type for t in onnx.load(path).graph.initializer if t.data_type in {TensorProto.INT8, TensorProto.UINT8}}


@pytest.mark.parametrize("network", quantised_models.NETWORKS)
def test_errors_are_those_of_the_written_model(tmp_path: Path, network: str, shared_runtime: aspen_mp.Runtime) -> None:
    model = quantised_models.NETWORKS[network]()
    samples = quantised_models.samples(model, 10)
    report = aspen_mp.quantize(model, samples, tmp_path / "q.onnx", workers=2, measure_times=False)
    assert report.files == [str(tmp_path / "q.onnx")]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["q.onnx"]
    assert report.bytes.after == (tmp_path / "q.onnx").stat().st_size
    assert report.samples == msgspec.convert({"calibrated": 8, "judged": 2, "apart": True}, type(report.samples))
    floats, rounded = shared_runtime.load(model), shared_runtime.load(tmp_path / "q.onnx")
    pairs = [(rounded.run(sample)["y"], floats.run(sample)["y"]) for sample in (samples[4], samples[9])]
    assert report.error == pytest.approx(max(abs(got - want).max() / abs(want).max() for got, want in pairs))
    assert report.met is None
    assert (report.error > 0.1) == (network == "masked_attention")
    top1 = np.mean([(got.argmax(-1) == want.argmax(-1)).mean() for got, want in pairs])
    assert report.outputs[0].top1 == (None if network == "masked_attention" else pytest.approx(top1))


def test_auto_keeps_what_the_bound_needs(tmp_path: Path) -> None:
    model = quantised_models.masked_attention()
    report = aspen_mp.quantize(
        model, quantised_models.samples(model, 10), tmp_path / "q.onnx", keep="auto", within=0.08, workers=2, measure_times=False
    )
    assert report.met is True
    assert report.error is not None
    assert report.error <= 0.08
    assert report.attempts > 1
    kept = {layer.name for layer in report.layers if layer.kept}
    assert {"softmax", "mask"} <= kept
    assert len(kept) < len(report.layers) / 2
    assert "mask" not in quantised_models.rounded(onnx.load(tmp_path / "q.onnx"))


def test_a_bound_that_8_bits_do_not_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = saved(tmp_path)
    out = tmp_path / "q.onnx"
    common = (model, "--calibrate", samples, "-o", out, "--no-times", "-w", "1", "--within", "1e-9")
    said = told(capsys, *common, status=1)
    assert "is above 1e-09" in said
    assert "--keep auto --within 1e-09" in said
    assert out.exists()
    assert "6 models" in told(capsys, *common, "--keep", "auto"), "with all layers in floats"
    monkeypatch.setattr(difference, "worst", lambda found: 1.0)
    assert "the bound is not met. Allow a larger one" in told(capsys, *common, "--keep", "auto", status=1)


def test_the_command_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, samples = saved(tmp_path)
    said = told(capsys, model, "--calibrate", samples, "-o", tmp_path / "q.onnx", "-w", "1")
    for words in (
        "same class",
        "own error",
        "5 for ranges; errors on 1 sample",
        "ms before",
        "on 1 worker",
        f"wrote {tmp_path / 'q.onnx'}",
    ):
        assert words in said
    assert in_bytes(tmp_path / "q.onnx") == {TensorProto.INT8, TensorProto.UINT8}


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (["--activations", "s8", "--per-tensor"], {"activations": "s8", "per_channel": False}),
        (["--method", "entropy"], {"method": "entropy"}),
        (["--method", "percentile", "--no-layers"], {"method": "percentile"}),
        (["--keep", "Gemm", "--keep", "conv0"], {"keep": ["Gemm", "conv0"]}),
        (["--no-prepare"], {"prepared": False}),
        (["--within", "0.5"], {"within": 0.5}),
    ],
)
def test_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], seen: dict[str, Any]) -> None:
    model, samples = saved(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app(
            [
                "quantize",
                str(model),
                "--calibrate",
                str(samples),
                "-o",
                str(tmp_path / "q.onnx"),
                "--json",
                "-w",
                "1",
                "--no-times",
                *options,
            ]
        )
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.out + printed.err
    report = msgspec.json.decode(printed.out, type=Report)
    choices = json.loads(printed.out)["choices"]
    assert seen.items() <= choices.items()
    assert report.met == (True if "--within" in options else None)
    assert bool(report.layers) == ("--no-layers" not in options)
    assert report.speed is None
    written = onnx.load(tmp_path / "q.onnx")
    scales = [t for t in written.graph.initializer if t.name.endswith("_scale") and len(t.dims) == 1 and t.dims[0] == 8]
    assert bool(scales) == ("--per-tensor" not in options)
    zeros = {t.data_type for t in written.graph.initializer if t.name.endswith("_zero_point") and t.data_type != TensorProto.INT32}
    assert (TensorProto.UINT8 in zeros) == ("s8" not in options)
    assert ({"head", "conv0"} <= quantised_models.rounded(written)) == ("--keep" not in options)
    assert any(node.op_type == "BatchNormalization" for node in written.graph.node) == ("--no-prepare" in options)
    kept = {layer.name for layer in report.layers if layer.kept}
    assert kept == ({"head", "conv0"} if "--keep" in options else set())


@pytest.mark.parametrize("external", [False, True])
def test_large_models_have_their_weights_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_runtime: aspen_mp.Runtime, external: bool
) -> None:
    """With a limit that a small model exceeds."""
    monkeypatch.setattr(quantizer, "MOST_IN_ONE_FILE", 64)
    model = small_models.mlp(2, width=512)
    samples = quantised_models.samples(model)
    (tmp_path / "in").mkdir()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, tmp_path / "in" / "m.onnx", save_as_external_data=external, location="w.bin", size_threshold=0)
    out = tmp_path / "q.onnx"
    report = aspen_mp.quantize(tmp_path / "in" / "m.onnx", samples, out, workers=1, measure_times=False, keep=["second"])
    assert report.files == [str(out), str(tmp_path / "q.onnx.data")]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "q.onnx", "q.onnx.data"]
    assert report.bytes.after == sum(Path(file).stat().st_size for file in report.files)
    assert report.layers
    got, want = shared_runtime.load(out).run(samples[-1])["y"], shared_runtime.load(model).run(samples[-1])["y"]
    assert report.error == pytest.approx(abs(got - want).max() / abs(want).max())


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantised_models.mlp()
    (tmp_path / "q.onnx").write_bytes(b"before")

    def fails(*_: Any, **__: Any) -> None:
        raise KeyError("no such scale")

    monkeypatch.setattr(quantizer.tools(), "quantize_static", fails)
    with pytest.raises(AspenError, match=r"quantiser cannot quantise the model: KeyError.*Keep the layer that it names"):
        aspen_mp.quantize(model, quantised_models.samples(model), tmp_path / "q.onnx", workers=1)
    assert (tmp_path / "q.onnx").read_bytes() == b"before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["q.onnx"]


def test_a_lone_sample_serves_for_both(tmp_path: Path) -> None:
    model = quantised_models.conv_net()
    report = aspen_mp.quantize(
        model, quantised_models.samples(model, 1), tmp_path / "q.onnx", workers=1, measure_layers=False, measure_times=False
    )
    assert not report.samples.apart
    assert "Give more of them" in report.advice[-1]
    assert report.layers == []


def test_models_without_a_layer_to_quantise(tmp_path: Path) -> None:
    model = small_models.two_inputs()
    for k, node in enumerate(model.graph.node):
        node.op_type, node.name = "Sub", f"sub{k}"
    rng = np.random.default_rng(0)
    samples = [{"a": rng.standard_normal((2, 3)).astype(np.float32), "b": rng.standard_normal(3).astype(np.float32)} for _ in range(3)]
    report = aspen_mp.quantize(model, samples, tmp_path / "q.onnx", workers=1, measure_times=False)
    assert report.error == 0
    assert report.layers == []
    assert "No layer is in 8 bits" in report.advice[0]


def test_what_is_quantised_already_is_refused(tmp_path: Path) -> None:
    model = quantised_models.conv_net()
    samples = quantised_models.samples(model)
    aspen_mp.quantize(model, samples, tmp_path / "q.onnx", workers=1, measure_layers=False, measure_times=False)
    with pytest.raises(RequestError, match=r"q\.onnx is quantised already"):
        aspen_mp.quantize(tmp_path / "q.onnx", samples, tmp_path / "again.onnx", workers=1)
    assert not (tmp_path / "again.onnx").exists()


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    model = quantised_models.mlp()
    with pytest.raises(AspenError, match=r"pip install 'aspen-mp\[quantize\]'"):
        aspen_mp.quantize(model, quantised_models.samples(model), tmp_path / "q.onnx")


def test_without_sympy_shapes_are_inferred_by_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("onnxruntime.tools.symbolic_shape_infer")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sympy", None)
    model = quantised_models.conv_net()
    aspen_mp.quantize(model, quantised_models.samples(model), tmp_path / "q.onnx", workers=1, measure_layers=False, measure_times=False)
    assert not any(node.op_type == "BatchNormalization" for node in onnx.load(tmp_path / "q.onnx").graph.node)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--calibrate", "nowhere"], 2, "there is no folder 'nowhere'. Give a folder of samples"),
        (["--calibrate", "empty"], 1, "there are no samples in empty. Save each sample as an .npz file"),
        (["--calibrate", "strange"], 1, "the model has no input 'image'. Its inputs are x"),
        (["--calibrate", "narrow"], 1, "input 'x' must have shape 1x3x16x16, not 1x3x8x8"),
        (["--keep", "auto"], 2, "auto needs a bound. Give --within"),
        (["--keep", "conv9"], 1, "neither a node nor an operator 'conv9'"),
        (["--activations", "u4"], 2, "'u4' is not one of u8, s8"),
        (["--method", "best"], 2, "'best' is not one of minmax, entropy, percentile"),
        (["-o", "nowhere/q.onnx"], 2, "there is no folder 'nowhere'. Make it first"),
        (["-o", "model.onnx"], 2, "is the model itself. Give another file"),
        (["--held-out", "9"], 1, "9 samples cannot be held out of 6"),
    ],
)
def test_errors_name_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, sample in (("empty", {}), ("strange", {"image": np.zeros(3)}), ("narrow", {"x": np.zeros((1, 3, 8, 8), np.float32)})):
        (tmp_path / name).mkdir()
        if sample:
            np.savez(tmp_path / name / "a.npz", **sample)
    before = (tmp_path / "model.onnx").read_bytes()
    said = told(capsys, "model.onnx", "--calibrate", "samples", "-o", "q.onnx", "-w", "1", "--no-times", *arguments, status=status)
    assert message in said
    assert (tmp_path / "model.onnx").read_bytes() == before
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"keep": "auto"}, ValueError),
        ({"within": -1.0}, ValueError),
        ({"activations": "u16"}, ValueError),
        ({"method": "mean"}, ValueError),
        ({"per_channel": 1}, TypeError),
        ({"held_out": 99}, RequestError),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    model = quantised_models.mlp()
    with pytest.raises(error):
        aspen_mp.quantize(model, quantised_models.samples(model), tmp_path / "q.onnx", workers=1, **arguments)
    assert not list(tmp_path.iterdir())


def test_nothing_heavy_is_imported_before_a_model_is_quantised() -> None:
    code = "import aspen_mp, sys; aspen_mp.quantize; assert 'onnxruntime' not in sys.modules and 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WATCHDOG_S)
