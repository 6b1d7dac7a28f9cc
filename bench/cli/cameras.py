"""`aspen-mp bench cameras`: a detector on noisy pictures with one moving object, from one camera and from several."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark
from aspen_mp.cli import output

if TYPE_CHECKING:
    from aspen_mp.bench.streams.cameras import CamerasResult


@benchmark(picture=False)
def cameras(
    run: Run,
    network: Annotated[
        str, typer.Argument(metavar="NETWORK", help="A detector of the zoo with decoded boxes.")
    ] = "yolov3@image=1280,decode=1",
    count: Annotated[int, typer.Option("--cameras", min=0, max=64, help="Number of cameras, each a process.")] = 4,
    share: Annotated[float, typer.Option("--share", min=0.0, max=1.0, help="Share of the picture that the object covers.")] = 0.005,
    noise: Annotated[float, typer.Option("--noise", min=0.0, help="Standard deviation of a pixel's noise. Pixels are in [0, 1].")] = 0.01,
    multiple: Annotated[float, typer.Option("--multiple", min=0.0, help="The streams' tolerance, as a multiple of the noise.")] = 8.0,
    layer_tol: Annotated[
        float,
        typer.Option("--layer-tol", min=0.0, help="The tolerance of layers, of streams that have one: a share of an activation's range."),
    ] = 0.001,
    frames: Annotated[int, typer.Option("--frames", min=1, help="Frames of one camera that are measured.")] = 20,
    cores: options.Cpus = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each engine in each round.")] = 10.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds of several cameras.")] = 3,
) -> None:
    """Measure a detector on pictures of cameras: streams with a tolerance beside whole frames.

    Several cameras share one runtime, beside as many processes with a session of onnxruntime each.
    """
    from aspen_mp.bench.streams import cameras as bench

    scene = bench.Scene(share, noise, multiple, layer_tol)
    (case,) = options.cases([network])
    (cpus,) = options.core_sets(None, cores)
    try:
        found = run.each([case], lambda one, say: bench.measure(one, cpus, scene, frames, count, seconds, rounds, say))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NETWORK") from None
    if not run.as_json:
        for result in found:
            output.table(result.case, ["", "frames/s", "p50 ms", "p99 ms"], _rows(result), right=(1, 2, 3))
            findings.verdict(result.verdict)
    run.record(found)


def _rows(result: CamerasResult) -> list[list[str]]:
    rows = []
    for what, times in result.alone:
        rows.append([f"one camera, {what}", f"{1e3 / median(times):.2f}", f"{median(times):.1f}", ""])
    for fleet in result.fleets:
        spread = fleet.spread
        rows.append(
            [f"{result.cameras} cameras, {fleet.engine}", f"{median(fleet.per_s):.2f}", f"{spread.p50_ms:.1f}", f"{spread.p99_ms:.1f}"]
        )
    return rows
