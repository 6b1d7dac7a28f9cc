"""`aspen-mp quantize`: a model in 8 bits, what that costs and what it gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from aspen_mp.cli import options, output, sources
from aspen_mp.quantization.quantizer import ACTIVATIONS, METHODS

if TYPE_CHECKING:
    from aspen_mp.quantization.report import Report

MOST_LAYERS: Final = 10
"""Layers in the table, unless --all asks for more."""


@output.command
def quantize(
    model: sources.ModelArgument,
    calibrate: Annotated[
        Path,
        typer.Option(
            "--calibrate",
            metavar="DIR",
            help="Folder of samples: an .npz file for each with an array for each input, or folders with NAME.npy files. A model of one "
            "input also takes .npy and .pb files.",
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="File to write the quantised model to.")],
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="Give weights a scale for each output channel, or one for all.")
    ] = True,
    activations: Annotated[
        str, typer.Option("--activations", metavar="|".join(ACTIVATIONS), help="Type of values between layers. Weights are s8.")
    ] = ACTIVATIONS[0],
    method: Annotated[
        str, typer.Option("--method", metavar="|".join(METHODS), help="How the ranges of values follow from the samples.")
    ] = METHODS[0],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="NAME|OPERATOR|auto",
            help="A node or an operator type that stays in floats. auto: the fewest layers that bring the error within --within. May be "
            "given several times.",
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            "--within", metavar="BOUND", min=0.0, help="Largest error of an output, relative to its largest magnitude. Exit status 1 above."
        ),
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option("--held-out", min=0, help="How many samples, the last ones, are for measuring errors alone. Default: every fifth."),
    ] = None,
    prepare: Annotated[
        bool,
        typer.Option("--prepare/--no-prepare", help="Infer shapes, fold constants and merge BatchNormalizations first, or not."),
    ] = True,
    layers: Annotated[bool, typer.Option("--layers/--no-layers", help="Measure the error of each layer, or not.")] = True,
    times: Annotated[bool, typer.Option("--times/--no-times", help="Measure times before and after, or not.")] = True,
    every: Annotated[bool, typer.Option("--all", help=f"Print all layers instead of the {MOST_LAYERS} worst.")] = False,
    workers: options.Workers = None,
    batch: sources.BatchOption = None,
    seq: sources.SeqOption = None,
    as_json: output.Json = False,
) -> None:
    """Quantise MODEL to 8 bits, and report size, errors and speed. Needs the packages of aspen-mp\\[quantize]."""
    from aspen_mp.quantization import quantizer, quantizing

    source = sources.resolve(model, batch, seq)
    if source.joins:
        raise typer.BadParameter(f"{source.label} joins networks. Quantise each of them by itself", param_hint="MODEL")
    if not calibrate.exists():
        raise typer.BadParameter(f"there is no folder {str(calibrate)!r}. Give a folder of samples", param_hint="--calibrate")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(out.parent)!r}. Make it first", param_hint="--output")
    if "auto" in (keep or ()) and within is None:
        raise typer.BadParameter("auto needs a bound. Give --within, such as --within 0.02", param_hint="--keep")
    if isinstance(source.model, str) and out.exists() and out.samefile(source.model):
        raise typer.BadParameter(f"{str(out)!r} is the model itself. Give another file", param_hint="--output")
    chosen = sources.one_of(activations, quantizer.ACTIVATIONS, "--activations"), sources.one_of(method, quantizer.METHODS, "--method")
    with output.progress(f"quantising {source.label}", quiet=as_json) as update:
        report = quantizing.quantize(
            source.model,
            calibrate,
            out,
            per_channel=per_channel,
            activations=chosen[0] or quantizer.ACTIVATIONS[0],
            method=chosen[1] or quantizer.METHODS[0],
            keep=keep or (),
            within=within,
            held_out=held_out,
            prepare=prepare,
            measure_layers=layers,
            measure_times=times,
            workers=workers,
            progress=update,
        )
    if as_json:
        output.emit_json(msgspec.to_builtins(report))
    else:
        _show(report, every)
    if report.met is False:
        raise typer.Exit(1)


def _show(report: Report, every: bool) -> None:
    rows = [[o.name, _scientific(o.error), _scientific(o.rms), "" if o.top1 is None else f"{o.top1:.1%}"] for o in report.outputs]
    output.table("", ["output", "error", "rms error", "same class"], rows, right=(1, 2, 3))
    shown = report.layers if every else report.layers[:MOST_LAYERS]
    if shown:
        output.out.print()
        cells = [[layer.name, layer.op, _scientific(layer.error), "floats" if layer.kept else ""] for layer in shown]
        output.table("", ["layer", "operator", "own error", ""], cells, right=(2,))
        if len(report.layers) > len(shown):
            output.notice(f"{output.count(len(report.layers) - len(shown), 'layer')} not shown; --all prints them")
    counts, size = report.samples, report.bytes
    judged = output.count(counts.judged, "sample")
    facts = [
        ("size", f"{output.mebibytes(size.before)} before, {output.mebibytes(size.after)} after"),
        ("samples", f"{counts.calibrated} for ranges; errors on {judged}{'' if counts.apart else ' of the same'}"),
    ]
    if report.speed is not None:
        speed = report.speed
        on = output.count(speed.workers, "worker")
        facts.insert(1, ("speed", f"{speed.before_ms:.2f} ms before, {speed.after_ms:.2f} ms after ({speed.ratio:.2f}) on {on}"))
    if report.choices.within is not None:
        met = "within" if report.met else "above"
        tried = output.count(report.attempts, "model")
        facts.append(("bound", f"{_scientific(report.error)} is {met} {report.choices.within:g}, after {tried}"))
    output.out.print()
    output.facts(facts)
    for line in report.advice:
        output.out.print(line, style="yellow", markup=False)
    for file in report.files:
        output.out.print(f"wrote {file}", markup=False)


def _scientific(value: float | None) -> str:
    return "–" if value is None else f"{value:.2e}"
