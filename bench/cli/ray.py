"""`aspen-mp bench ray`: actors of Ray on one runtime, beside as many with onnxruntime."""

from __future__ import annotations

import importlib.util
from statistics import median
from typing import Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark
from aspen_mp.cli import output


@benchmark()
def ray(
    run: Run,
    network: options.Network = "mobilenet_v2@batch=16",
    actors: Annotated[str, typer.Option("--actors", metavar="1,4,16", help="Numbers of actors.")] = "1,4,16",
    cores: options.Cpus = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each setting in each round, in seconds.")] = 3.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds.")] = 5,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also measure onnxruntime, if it is installed.")] = True,
) -> None:
    """Measure actors of Ray on one node: rows per second, and memory of all processes together.

    Beside them, a client without Ray, and as many actors with an onnxruntime each.
    """
    if importlib.util.find_spec("ray") is None:
        raise typer.BadParameter("Ray is not installed. Install it with: pip install 'aspen-mp[ray]'", param_hint="bench ray")
    from aspen_mp.bench.ray import measure, picture

    (case,) = options.cases([network])
    (cpus,) = options.core_sets(None, cores)
    counts = options.counts(actors, "--actors")
    with run.saying() as say:
        found = measure.measure(case, cpus, counts, seconds, rounds, peers, say)
    run.draw(picture.plot, found)
    rows = [
        [
            *(each.engine, each.actors, f"{median(each.per_s):.1f}", f"{max(each.per_s):.1f}", f"{found.ratio(each):.3f}"),
            f"{median(each.cpu_ms_per_row):.2f}",
            *(output.mebibytes(each.pss_bytes), output.mebibytes(each.weights_pss_bytes) if each.weights_pss_bytes else ""),
        ]
        for each in found.found
    ]
    columns = ["engine", "actors", "rows/s", "best", "of the direct client's", "CPU ms/row", "memory", "packed weights"]
    run.end(found, [findings.Shown(found.case, columns, rows, found.verdict)])
