"""`aspen-mp bench stream`: frames of which a part has changed, beside whole frames."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark
from aspen_mp.cli import output

if TYPE_CHECKING:
    from aspen_mp.bench.streams.frames import Part


@benchmark(picture=False)
def stream(
    run: Run,
    networks: Annotated[
        list[str] | None,
        typer.Argument(metavar="NETWORK…", help="Networks of pictures, such as unet@image=512. Default: four large ones."),
    ] = None,
    percent: Annotated[
        str, typer.Option("--percent", metavar="0,1,5", help="Shares of the frame's area that change, in percent.")
    ] = "0,0.25,1,5,20,100",
    workers: Annotated[int, typer.Option("--workers", min=1, max=128, help="Number of workers.")] = 2,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds, after one to warm up.")] = 7,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of places and pixels.")] = 0,
) -> None:
    """Measure frames of a stream of which one square has changed, beside whole frames.

    Exit status 1 if a result differs from that of a new stream.
    """
    from aspen_mp.bench.streams import frames as bench

    shares = options.floats(percent, "--percent")
    if min(shares) < 0 or max(shares) > 100:
        raise typer.BadParameter("give numbers from 0 to 100", param_hint="--percent")
    cases = options.cases(networks or list(bench.CASES))
    try:
        found = run.each(cases, lambda case, say: bench.measure(case, workers, shares, rounds, seed, say))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NETWORK") from None
    if not run.as_json:
        for result in found:
            output.table(result.case, _COLUMNS, [_row(part) for part in result.parts], right=tuple(range(len(_COLUMNS))))
            findings.verdict(result.verdict)
    run.record(found)
    findings.ends(0, sum(result.wrong for result in found))


_COLUMNS = ["changed %", "whole ms", "same bits ms", "speedup", "bound", "rounding differs ms", "speedup", "bound"]


def _row(part: Part) -> list[str]:
    cells = [f"{part.percent:g}", f"{median(part.whole_ms):.2f}"]
    for kind, times in part.stream_ms.items():
        bound = part.bound(kind)
        cells += [f"{median(times):.2f}", f"{part.speedup(kind):.2f}", "" if bound is None else f"{bound:.2f}"]
    return cells
