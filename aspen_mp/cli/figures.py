"""`aspen-mp bench`, the figures: what aspen-mp's choices are worth on this machine, each as JSON, picture and one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp.cli import output
from aspen_mp.cli.bench import OutputOption, PlotOption, _cases, _core_sets, _need_matplotlib, _write, app
from aspen_mp.planner.job.options import MOST_TILES

__all__ = ["app"]

if TYPE_CHECKING:
    from pathlib import Path

    from aspen_mp.bench.figures.compare import Comparison
    from aspen_mp.bench.figures.seats import Plan
    from aspen_mp.bench.peers.cases import Case

Networks = Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="As for peers; default: resnet50 bert_base.")]
Cores = Annotated[str | None, typer.Option("--cores", metavar="0,2-3", help="Exactly these CPUs; default: all.")]
Engines = Annotated[
    str | None, typer.Option("--engines", metavar="A,B", help="Which engines; default: aspen-mp, onnxruntime and openvino, if installed.")
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Rounds that must count.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.0, help="Least length of a turn.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Least runs of a turn.")]


def _plan(rounds: int, seconds: float, runs: int) -> Plan:
    from aspen_mp.bench.figures.seats import Plan

    return Plan(rounds=rounds, spare=2 * rounds, seconds=seconds, runs=runs)


def _engines(text: str | None, peers: bool = True) -> tuple[list[str], list[str]]:
    """Those to measure, and those that are not installed."""
    from aspen_mp.bench.figures.seats import wanted_engines

    try:
        return wanted_engines(text.split(",") if text else None, peers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--engines") from None


def _absent(names: Sequence[str]) -> None:
    for name in names:
        output.out.print(f"{name}: not measured, it is not installed", style="yellow")


def _ends(failed: dict[str, str]) -> None:
    """Says what failed, and fails."""
    for label, message in failed.items():
        output.notice(f"{label}: {message}")
    if failed:
        raise typer.Exit(1)


def _floats(text: str, hint: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers", param_hint=hint) from None


@app.command("hetero")
@output.command
def hetero(
    networks: Networks = None,
    speeds: Annotated[str, typer.Option("--speeds", metavar="1,0.5,0.25", help="Of the slowed core, as shares of its own.")] = "1,0.5,0.25",
    cores: Annotated[str | None, typer.Option("--cores", metavar="0,1", help="Two CPUs or more; the last is slowed.")] = None,
    settle: Annotated[float, typer.Option("--settle", min=0, help="Seconds of requests at a new speed before it is measured.")] = 30.0,
    method: Annotated[str | None, typer.Option("--method", help="fifo, quota or nice; default: the best that is allowed.")] = None,
    engines: Engines = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Also requests of its own on each core at once: what cores take from each other.")
    ] = False,
    rounds: RoundsOption = 5,
    seconds: Seconds = 0.3,
    runs: Runs = 2,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Slow one core by a real load: what are a fast and a slow core together worth, as a share of the sum, one request at a time?

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench import slow
    from aspen_mp.bench.figures import hetero as bench

    _need_matplotlib(plot)
    (cpus,) = _core_sets(None, cores)
    wanted = _floats(speeds, "--speeds")
    if len(cpus) < 2:
        raise typer.BadParameter("two CPUs are needed", param_hint="--cores")
    if method is not None and method not in slow.METHODS:
        raise typer.BadParameter(f"methods are {', '.join(slow.METHODS)}", param_hint="--method")
    if not all(speed == 1 or slow.LEAST <= speed <= slow.MOST for speed in wanted):
        raise typer.BadParameter(f"from {slow.LEAST} to {slow.MOST}, or 1", param_hint="--speeds")
    chosen, absent = _engines(engines)
    results = []
    with output.progress("bench", quiet=as_json) as update:
        for case in _cases(networks):
            results.append(
                bench.measure(
                    *(case, chosen, cpus[:-1], cpus[-1:], wanted, _plan(rounds, seconds, runs)),
                    *(method, settle, lambda text: update(text, 0, 0)),
                    apart=apart,
                )
            )
            results[-1].absent = absent
    if plot is not None:
        bench.plot(results, plot)
    _write(_document([result.document() for result in results]), file, as_json)
    if not as_json:
        for result in results:
            rows = [
                [
                    p.engine,
                    f"{p.wanted:g}",
                    "–" if not p.left else f"{p.left[0]:.2f}",
                    *(f"{ms:.1f}" for ms in p.median_ms),
                    f"{p.fraction:.3f}",
                    f"{p.fraction_min:.3f}",
                    f"{p.of_fast:.2f}",
                    *(["" if p.apart is None else f"{p.apart:.3f}"] if apart else []),
                    "" if p.far is None else f"{p.far:.3f}",
                ]
                for p in result.points
            ]
            columns = ["engine", "speed", "measured", "fast ms", "slow ms", "both ms", "of the sum", "by min", "× fast alone"]
            columns += [*([bench.APART] if apart else []), "another core's byte ns"]
            output.table(f"{result.case}, slowed by {result.method}", columns, rows, right=range(1, len(columns)))
            output.out.print(result.verdict, highlight=False, soft_wrap=True)
        _absent(absent)
    _ends({label: text for result in results for label, text in result.failed.items()})


def _document(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of several networks, under one machine."""
    return {"machine": documents[0]["machine"], "networks": [{k: v for k, v in d.items() if k != "machine"} for d in documents]}


@app.command("scaling")
@output.command
def scaling(
    networks: Networks = None,
    threads: Annotated[
        str | None, typer.Option("--threads", "-t", metavar="1,2", help="Numbers of cores; default: powers of two up to all.")
    ] = None,
    simulated: Annotated[str, typer.Option("--simulate", metavar="16,64", help="Numbers of cores to simulate; none: nothing.")] = "4,16,64",
    cores: Cores = None,
    engines: Engines = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Also n requests at once on n runtimes of one core each: what cores take from each other.")
    ] = False,
    rounds: RoundsOption = 5,
    seconds: Seconds = 0.3,
    runs: Runs = 3,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """One request on more and more cores, beside other runtimes: speedup and parallel fraction over the best serial run of any.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import scaling as bench
    from aspen_mp.bench.figures.seats import OURS

    _need_matplotlib(plot)
    (cpus,) = _core_sets(None, cores)
    numbers = _numbers(threads, "--threads") if threads else sorted({2**k for k in range(9) if 2**k < len(cpus)} | {len(cpus)})
    if max(numbers) > len(cpus):
        raise typer.BadParameter(f"from 1 to {len(cpus)} cores are at hand", param_hint="--threads")
    chosen, absent = _engines(engines)
    far: list[int] = []
    if simulated != "none" and OURS in chosen:
        far = [n for n in _numbers(simulated, "--simulate") if n > len(cpus)]
    results = []
    with output.progress("bench", quiet=as_json) as update:
        for case in _cases(networks):
            plan = _plan(rounds, seconds, runs)
            results.append(bench.measure(case, chosen, cpus, numbers, far, plan, lambda text: update(text, 0, 0), apart=apart))
            results[-1].absent = absent
    if plot is not None:
        bench.plot(results, plot)
    _write(_document([result.document() for result in results]), file, as_json)
    if not as_json:
        for result in results:
            rows = [
                [
                    p.engine + (", simulated" if p.simulated else ""),
                    p.cores,
                    *(f"{p.ms:.2f}", "" if p.simulated else f"{p.min_ms:.2f}"),
                    *(f"{p.speedup:.2f}", "" if p.p_e is None else f"{p.p_e:.3f}"),
                    "" if p.p_e_min is None or p.simulated else f"{p.p_e_min:.3f}",
                ]
                for p in sorted(result.points, key=lambda p: ([*chosen, bench.APART].index(p.engine), p.cores))
            ]
            output.table(result.case, ["engine", "cores", "ms", "min ms", "speedup", "p_e", "by min"], rows, right=range(1, 7))
            output.out.print(result.verdict, highlight=False, soft_wrap=True)
        _absent(absent)
    _ends({label: text for result in results for label, text in result.failed.items()})


def _numbers(text: str, hint: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,2", param_hint=hint) from None
    if min(numbers) < 1:
        raise typer.BadParameter("numbers from 1 on", param_hint=hint)
    return numbers


@app.command("barriers")
@output.command
def barriers(
    networks: Networks = None,
    cores: Cores = None,
    engines: Annotated[str | None, typer.Option("--engines", metavar="A,B", help="Others to set beside; default: none.")] = None,
    rounds: RoundsOption = 9,
    seconds: Seconds = 0.3,
    runs: Runs = 3,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Switch operator barriers on, everything else equal: what it is worth that there are none.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import barriers as bench

    _need_matplotlib(plot)
    (cpus,) = _core_sets(None, cores)
    chosen, absent = _engines(engines, peers=False)
    _compare(
        _cases(networks),
        lambda case, say: bench.measure(case, cpus, chosen, _plan(rounds, seconds, runs), say),
        bench.verdict,
        None if plot is None else lambda results: bench.plot(results, plot),
        *(file, as_json, absent),
    )


@app.command("order")
@output.command
def order(
    networks: Networks = None,
    cores: Cores = None,
    rounds: RoundsOption = 9,
    seconds: Seconds = 0.3,
    runs: Runs = 3,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Take ready tiles first come first served, latest first, or at random: what the order is worth.

    Exit status 1 if it failed.
    """
    from aspen_mp.bench.figures import order as bench

    _need_matplotlib(plot)
    (cpus,) = _core_sets(None, cores)
    _compare(
        _cases(networks),
        lambda case, say: bench.measure(case, cpus, _plan(rounds, seconds, runs), say),
        bench.verdict,
        None if plot is None else lambda results: bench.plot(results, plot),
        *(file, as_json, []),
    )


@app.command("tiles")
@output.command
def tiles(
    networks: Networks = None,
    numbers: Annotated[str | None, typer.Option("--tiles", metavar="8,16,32", help="Tiles a layer.")] = None,
    cores: Cores = None,
    rounds: RoundsOption = 5,
    seconds: Seconds = 0.3,
    runs: Runs = 3,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Cut every layer into so many tiles, for several numbers, beside the planner's own choice.

    Exit status 1 if it failed.
    """
    from aspen_mp.bench.figures import tiles as bench

    _need_matplotlib(plot)
    (cpus,) = _core_sets(None, cores)
    counts = _numbers(numbers, "--tiles") if numbers else list(bench.DEFAULT)
    if max(counts) > MOST_TILES:
        raise typer.BadParameter(f"a layer has {MOST_TILES} tiles at most", param_hint="--tiles")
    _compare(
        _cases(networks),
        lambda case, say: bench.measure(case, cpus, counts, _plan(rounds, seconds, runs), say),
        bench.verdict,
        None if plot is None else lambda results: bench.plot(results, plot),
        *(file, as_json, []),
    )


@app.command("synthetic")
@output.command
def synthetic(
    layers: Annotated[int, typer.Option("--layers", min=1, max=1000, help="Convolutions.")] = 32,
    height: Annotated[int, typer.Option("--height", min=1, help="Rows of the image.")] = 64,
    width: Annotated[int, typer.Option("--width", min=1, help="Columns of the image.")] = 64,
    channels: Annotated[int, typer.Option("--channels", min=1, help="Of every layer's input and output.")] = 128,
    cores: Cores = None,
    engines: Engines = None,
    rounds: RoundsOption = 5,
    seconds: Seconds = 0.3,
    runs: Runs = 3,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """ASPEN's synthetic network: a chain of equal 3×3 convolutions, beside other runtimes.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import synthetic as bench

    _need_matplotlib(plot)
    (cpus,) = _core_sets(None, cores)
    chosen, absent = _engines(engines)
    _compare(
        [bench.case_of(layers, height, width, channels)],
        lambda case, say: bench.measure(case, cpus, chosen, _plan(rounds, seconds, runs), say),
        bench.verdict,
        None if plot is None else lambda results: bench.plot(results, plot),
        *(file, as_json, absent),
    )


@app.command("lengths")
@output.command
def lengths(
    network: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="One that reads text; default: bert_base, and smollm2_135m to decode.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=2, help="Texts.")] = 200,
    least: Annotated[int, typer.Option("--least", min=1, help="Tokens of the shortest text.")] = 8,
    most: Annotated[int, typer.Option("--most", min=1, help="Tokens of the longest text.")] = 256,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Cores; default: 2, if there are.")] = None,
    cores: Cores = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of lengths and tokens.")] = 0,
    engines: Engines = None,
    decode: Annotated[
        int | None, typer.Option("--decode", min=1, metavar="N", help="N tokens after a prompt, with a cache, instead.")
    ] = None,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Texts of ever new lengths, or the steps of a decoder, from the first request on, when there is no plan yet, beside other runtimes.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import lengths as bench

    _need_matplotlib(plot)
    (cpus,) = _core_sets(None if threads is None else str(threads), cores)
    if threads is None and cores is None:
        cpus = cpus[:2]
    if least > most:
        raise typer.BadParameter(f"there is nothing from {least} to {most}", param_hint="--most")
    chosen, absent = _engines(engines)
    if not set(chosen) <= set(bench.ENGINES):
        raise typer.BadParameter(f"those that take any length: {', '.join(bench.ENGINES)}", param_hint="--engines")
    (case,) = _cases([network or ("bert_base" if decode is None else "smollm2_135m")])
    if not (bench.decodes(case) if decode else bench.reads(case)):
        raise typer.BadParameter(f"{case.network} {'has no cache' if decode else 'reads no text'}", param_hint="NETWORK")
    with output.progress("bench", quiet=as_json, moving=False) as update:
        if decode is None:
            result = bench.stream(case, chosen, cpus, requests, least, most, seed, update)
        else:
            result = bench.decode(case, chosen, cpus, decode, seed, update)
    result.absent = absent
    if plot is not None:
        bench.plot([result], plot)
    _write(_document([result.document()]), file, as_json)
    if not as_json:
        rows = [
            [
                *(e["engine"], f"{e['total_s']:.2f}", f"{e['median_ms']:.2f}", f"{e['min_ms']:.2f}", f"{e['longest_ms']:.1f}", e["slow"]),
                *(f"{e['behind_s']:.1f}", "" if e["prompt_ms"] is None else f"{e['prompt_ms']:.1f}"),
            ]
            for e in (found.document() for found in result.found)
        ]
        columns = ["engine", "total s", "ms", "min ms", "longest ms", "slow", "CPU s behind", "prompt ms"]
        output.table(result.case, columns, rows, right=range(1, 8))
        output.out.print(result.verdict, highlight=False, soft_wrap=True)
        _absent(absent)
    _ends(result.failed)


def _compare(
    cases: Sequence[Case],
    measure: Callable[[Case, Callable[[str], None]], Comparison],
    verdict: Callable[[Comparison], str],
    plot: Callable[[Sequence[Comparison]], None] | None,
    file: Path | None,
    as_json: bool,
    absent: list[str],
) -> None:
    """Measures, draws, writes and prints."""
    results = []
    with output.progress("bench", quiet=as_json) as update:
        for case in cases:
            results.append(measure(case, lambda text: update(text, 0, 0)))
            results[-1].absent = absent
    if plot is not None:
        plot(results)
    _write(_document([result.document(verdict(result)) for result in results]), file, as_json)
    if not as_json:
        for result in results:
            rows = [
                [e.label, e.cores, f"{e.median_ms:.2f}", f"{e.min_ms:.2f}", f"{e.ratio:.3f}", f"{e.ratio_min:.3f}"] for e in result.entries
            ]
            output.table(result.case, ["", "cores", "ms", "min ms", "ratio", "by min"], rows, right=range(1, 6))
            output.out.print(verdict(result), highlight=False, soft_wrap=True)
            if result.rejected or result.disturbed:
                output.notice(
                    f"{result.case}: rounds left out because other processes ran: {result.rejected}; disturbed: {result.disturbed}"
                )
        _absent(absent)
    _ends({label: text for result in results for label, text in result.failed.items()})
