"""`aspen-mp bench`, the figures: what aspen-mp's choices are worth on this machine, each as JSON, picture and one line."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, Say, benchmark
from aspen_mp.planner.job.options import MOST_TILES

if TYPE_CHECKING:
    from aspen_mp.bench.figures.compare import Comparison
    from aspen_mp.bench.figures.hetero import HeteroResult
    from aspen_mp.bench.figures.lengths import LengthsResult
    from aspen_mp.bench.figures.scaling import ScalingResult
    from aspen_mp.bench.figures.sizes import SizesResult
    from aspen_mp.bench.peers.cases import Case


@benchmark()
def hetero(
    run: Run,
    networks: options.Networks = None,
    speeds: Annotated[
        str, typer.Option("--speeds", metavar="1,0.5,0.25", help="Speeds of the slowed core, as shares of its full speed.")
    ] = "1,0.5,0.25",
    cores: Annotated[str | None, typer.Option("--cores", metavar="0,1", help="CPUs to use, at least two. The last one is slowed.")] = None,
    settle: Annotated[float, typer.Option("--settle", min=0, help="How long requests run at a new speed before it is measured.")] = 30.0,
    method: Annotated[
        str | None, typer.Option("--method", help="How to slow the core: fifo, quota or nice. Default: the best that is allowed.")
    ] = None,
    engines: options.Engines = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Also run separate requests on each core at once. Shows what cores take from each other.")
    ] = False,
    rounds: options.Rounds = 5,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 2,
) -> None:
    """Slow one core by a real load, and measure requests on a fast and a slow core together.

    The result is a share: the throughput of all cores together by the sum of what the fast and the slow ones reach alone. 1 is ideal. Exit
    status 1 if an engine failed.
    """
    from aspen_mp.bench import slow
    from aspen_mp.bench.figures import hetero as bench

    (cpus,) = options.core_sets(None, cores)
    wanted = options.floats(speeds, "--speeds")
    if len(cpus) < 2:
        raise typer.BadParameter("two CPUs are needed. Give both, or run on a machine that has two", param_hint="--cores")
    if method is not None and method not in slow.METHODS:
        raise typer.BadParameter(f"{method!r} is not one of {', '.join(slow.METHODS)}", param_hint="--method")
    if not all(speed == 1 or slow.LEAST <= speed <= slow.MOST for speed in wanted):
        raise typer.BadParameter(f"give speeds from {slow.LEAST} to {slow.MOST}, or 1", param_hint="--speeds")
    chosen, absent = options.engines(engines)
    schedule = options.schedule(rounds, seconds, runs)

    def measure(case: Case, say: Say) -> HeteroResult:
        result = bench.measure(case, chosen, cpus[:-1], cpus[-1:], wanted, schedule, method, settle, say, apart=apart)
        result.absent = absent
        return result

    results = run.each(options.cases(networks), measure)
    run.draw(bench.plot, results)
    shown = [_slowed(result, bench.APART if apart else None) for result in results]
    run.end(results, shown, absent, disturbed=sum(point.disturbed for result in results for point in result.points))


def _slowed(result: HeteroResult, apart: str | None) -> findings.Shown:
    """`apart`: what requests on each core at once are called, where they were measured."""
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
    columns = ["engine", "speed wanted", "speed left", "fast ms", "slow ms", "all ms", "all / sum", "fastest runs", "all / fast"]
    columns += [*([f"{apart} / sum"] if apart else []), "ns for another core's byte"]
    slow = ", ".join(map(str, result.slow))
    how = f"slowed by {result.method}" if any(p.left for p in result.points) else "not slowed"
    title = f"{result.case}: one request at a time, CPU {slow} {how}; sum: throughput of fast and slow, each alone"
    return findings.Shown(title, columns, rows, result.verdict, failed=result.failed)


@benchmark()
def scaling(
    run: Run,
    networks: options.Networks = None,
    threads: Annotated[
        str | None, typer.Option("--threads", "-t", metavar="1,2", help="Numbers of cores to measure. Default: powers of two, and all.")
    ] = None,
    simulated: Annotated[str, typer.Option("--simulate", metavar="16,64", help="Numbers of cores to simulate, or none.")] = "4,16,64",
    in_flight: Annotated[
        str | None,
        typer.Option("--in-flight", metavar="2,8,32", help="Also simulate these numbers of requests at a time, on the simulated cores."),
    ] = None,
    cores: options.Cores = None,
    engines: options.Engines = None,
    apart: Annotated[
        bool,
        typer.Option(
            "--apart", help="Also run one request per core at once, each on its own runtime. Shows what cores take from each other."
        ),
    ] = False,
    rounds: options.Rounds = 5,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Measure one request at a time on more and more cores, beside other runtimes.

    Speedup and parallel fraction are over the fastest run on one core, of any runtime. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import scaling as bench
    from aspen_mp.bench.figures.seats import OURS

    (cpus,) = options.core_sets(None, cores)
    numbers = options.counts(threads, "--threads") if threads else sorted({2**k for k in range(9) if 2**k < len(cpus)} | {len(cpus)})
    if max(numbers) > len(cpus):
        raise typer.BadParameter(f"give numbers from 1 to {len(cpus)}, the cores of this machine", param_hint="--threads")
    chosen, absent = options.engines(engines)
    far: list[int] = []
    if simulated != "none" and OURS in chosen:
        far = [n for n in options.counts(simulated, "--simulate") if n > len(cpus)]
    at_once = options.counts(in_flight, "--in-flight") if in_flight else []
    schedule = options.schedule(rounds, seconds, runs)

    def measure(case: Case, say: Say) -> ScalingResult:
        result = bench.measure(case, chosen, cpus, numbers, far, schedule, say, apart=apart, in_flight=at_once)
        result.absent = absent
        return result

    results = run.each(options.cases(networks), measure)
    run.draw(bench.plot, results)
    shown = [_scaled(result, [*chosen, bench.APART]) for result in results]
    shown += [_at_once(result) for result in results if result.at_once]
    run.end(results, shown, absent, disturbed=sum(result.disturbed for result in results))


def _scaled(result: ScalingResult, engines: Sequence[str]) -> findings.Shown:
    """`engines`: in the order in which they are shown."""
    rows = [
        [
            p.engine + (", simulated" if p.simulated else ""),
            p.cores,
            *(f"{p.ms:.2f}", "" if p.simulated else f"{p.min_ms:.2f}"),
            *(f"{p.speedup:.2f}", "" if p.p_e is None else f"{p.p_e:.3f}"),
            "" if p.p_e_min is None or p.simulated else f"{p.p_e_min:.3f}",
        ]
        for p in sorted(result.points, key=lambda p: (engines.index(p.engine), p.cores))
    ]
    columns = ["engine", "cores", "ms", "min ms", "speedup", "p_e", "by min"]
    return findings.Shown(result.case, columns, rows, result.verdict, failed=result.failed)


def _at_once(result: ScalingResult) -> findings.Shown:
    """The throughput of cores beside as many times that of one."""
    rows = [[p.cores, p.in_flight, f"{p.latency:.3f}", f"{p.throughput:.3f}", p.team] for p in result.at_once]
    columns = ["cores", "requests at a time", "for latency", "for throughput", "cores that share a request"]
    best = max(result.at_once, key=lambda p: p.throughput)
    verdict = f"{result.case}: {best.throughput:.3f} of {best.cores} times one core with {best.in_flight} requests at a time, simulated"
    return findings.Shown(f"{result.case}, several requests at a time, simulated", columns, rows, verdict)


@benchmark()
def barriers(
    run: Run,
    networks: options.Networks = None,
    cores: options.Cores = None,
    engines: Annotated[str | None, typer.Option("--engines", metavar="A,B", help="Other engines to measure. Default: none.")] = None,
    rounds: options.Rounds = 9,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Measure the same plan with and without a barrier after every operator.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import barriers as bench

    (cpus,) = options.core_sets(None, cores)
    chosen, absent = options.engines(engines, peers=False)
    schedule = options.schedule(rounds, seconds, runs)
    results = run.each(options.cases(networks), lambda case, say: bench.measure(case, cpus, chosen, schedule, say))
    _compared(results, bench, run, absent)


@benchmark()
def order(
    run: Run,
    networks: options.Networks = None,
    cores: options.Cores = None,
    rounds: options.Rounds = 9,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Measure orders in which ready tiles are taken: oldest first, newest first, at random.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import order as bench

    (cpus,) = options.core_sets(None, cores)
    schedule = options.schedule(rounds, seconds, runs)
    results = run.each(options.cases(networks), lambda case, say: bench.measure(case, cpus, schedule, say))
    _compared(results, bench, run)


@benchmark()
def tiles(
    run: Run,
    networks: options.Networks = None,
    numbers: Annotated[
        str | None, typer.Option("--tiles", metavar="8,16,32", help="Numbers of tiles per layer. Default: a range of them.")
    ] = None,
    cores: options.Cores = None,
    rounds: options.Rounds = 5,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Measure plans with a fixed number of tiles per layer, beside the planner's own choice.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import tiles as bench

    (cpus,) = options.core_sets(None, cores)
    counts = options.counts(numbers, "--tiles") if numbers else list(bench.DEFAULT)
    if max(counts) > MOST_TILES:
        raise typer.BadParameter(f"a layer has at most {MOST_TILES} tiles. Give smaller numbers", param_hint="--tiles")
    schedule = options.schedule(rounds, seconds, runs)
    results = run.each(options.cases(networks), lambda case, say: bench.measure(case, cpus, counts, schedule, say))
    _compared(results, bench, run)


@benchmark()
def synthetic(
    run: Run,
    layers: Annotated[int, typer.Option("--layers", min=1, max=1000, help="Number of convolutions.")] = 32,
    height: Annotated[int, typer.Option("--height", min=1, help="Rows of the image.")] = 64,
    width: Annotated[int, typer.Option("--width", min=1, help="Columns of the image.")] = 64,
    channels: Annotated[int, typer.Option("--channels", min=1, help="Channels of every layer's input and output.")] = 128,
    cores: options.Cores = None,
    engines: options.Engines = None,
    rounds: options.Rounds = 5,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Measure a chain of equal convolutions with kernels of 3×3, as in the paper on ASPEN, beside other runtimes.

    Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import synthetic as bench

    (cpus,) = options.core_sets(None, cores)
    chosen, absent = options.engines(engines)
    schedule = options.schedule(rounds, seconds, runs)
    case = bench.case_of(layers, height, width, channels)
    results = run.each([case], lambda case, say: bench.measure(case, cpus, chosen, schedule, say))
    _compared(results, bench, run, absent)


@benchmark()
def sizes(
    run: Run,
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Networks of the zoo, or ONNX files, that take pictures of any size.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=2, help="Number of pictures.")] = 100,
    least: Annotated[int, typer.Option("--least", min=1, help="Pixels of the shortest side.")] = 160,
    most: Annotated[int, typer.Option("--most", min=1, help="Pixels of the longest side.")] = 640,
    multiple: Annotated[int, typer.Option("--multiple", min=1, help="Sides are multiples of this.")] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="Number of cores. Default: 2, if there are as many.")
    ] = None,
    cores: options.Cores = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of sizes and pixels.")] = 0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds, each with new processes and without plans.")] = 1,
    engines: options.Engines = None,
) -> None:
    """Measure pictures of new sizes, and the same again, beside other runtimes.

    Starts with the first request, when there is no plan yet. Figures are medians of all rounds. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import lengths as texts
    from aspen_mp.bench.figures import sizes as bench

    cpus = _two_cores(threads, cores)
    if -(-least // multiple) > most // multiple:
        raise typer.BadParameter(f"no multiple of {multiple} is from {least} to {most}", param_hint="--most")
    chosen, absent = options.engines(engines)
    if not set(chosen) <= set(texts.ENGINES):
        raise typer.BadParameter(f"only these engines take pictures of any size: {', '.join(texts.ENGINES)}", param_hint="--engines")
    wanted = networks or ["resnet50", "mobilenet_v2"]
    try:
        for network in wanted:
            bench.network(network)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="NETWORK") from None
    with run.progress(moving=False) as update:
        pictures = bench.Pictures(requests, least, most, multiple, seed)
        results = [bench.stream(one, chosen, cpus, pictures, rounds, update) for one in wanted]
    for result in results:
        result.absent = absent
    run.draw(bench.plot, results)
    run.end(results, [_new_sizes(result) for result in results], absent)


def _two_cores(threads: int | None, cores: str | None) -> list[int]:
    """The first two cores, if nobody says which."""
    (cpus,) = options.core_sets(None if threads is None else str(threads), cores)
    return cpus[:2] if threads is None and cores is None else cpus


def _new_sizes(result: SizesResult) -> findings.Shown:
    rows = []
    rounds = result.by_engine()
    for m in result.summary():
        load_s, behind_s = (statistics.median(values) for values in zip(*((f.load_s, f.behind_s) for f in rounds[m.engine]), strict=True))
        figures = [m.first_ms, m.second_ms, m.new_ms, m.again_ms]
        sums = [f"{figure:.2f}" for figure in (m.new_s, m.again_s, m.new_by_again)]
        rows.append([m.engine, f"{load_s:.2f}", *(f"{ms:.1f}" for ms in figures), *sums, f"{behind_s:.1f}"])
    columns = ["engine", "load s", *(f"{kind} ms" for kind in ("first", "second", "new size", "again"))]
    columns += ["new sizes s", "again s", "new / again", "CPU s behind"]
    return findings.Shown(result.case, columns, rows, result.verdict, failed=result.failed)


@benchmark()
def lengths(
    run: Run,
    network: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="A network that reads text. Default: bert_base, or smollm2_135m with --decode.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=2, help="Number of texts.")] = 200,
    least: Annotated[int, typer.Option("--least", min=1, help="Tokens of the shortest text.")] = 8,
    most: Annotated[int, typer.Option("--most", min=1, help="Tokens of the longest text.")] = 256,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="Number of cores. Default: 2, if there are as many.")
    ] = None,
    cores: options.Cores = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of lengths and tokens.")] = 0,
    engines: options.Engines = None,
    decode: Annotated[
        int | None, typer.Option("--decode", min=1, metavar="N", help="Instead, decode N tokens after a prompt, with a cache.")
    ] = None,
) -> None:
    """Measure texts of new lengths, or the steps of a decoder, beside other runtimes.

    Starts with the first request, when there is no plan yet. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import lengths as bench

    cpus = _two_cores(threads, cores)
    if least > most:
        raise typer.BadParameter(f"no length is from {least} to {most}. Give --most at least the value of --least", param_hint="--most")
    chosen, absent = options.engines(engines)
    if not set(chosen) <= set(bench.ENGINES):
        raise typer.BadParameter(f"only these engines take texts of any length: {', '.join(bench.ENGINES)}", param_hint="--engines")
    (case,) = options.cases([network or ("bert_base" if decode is None else "smollm2_135m")])
    if not (bench.decodes(case) if decode else bench.reads(case)):
        lacks, other = ("has no cache", "smollm2_135m") if decode else ("reads no text", "bert_base")
        raise typer.BadParameter(f"{case.network} {lacks}. Give another network, such as {other}", param_hint="NETWORK")
    with run.progress(moving=False) as update:
        if decode is None:
            result = bench.stream(case, chosen, cpus, requests, least, most, seed, update)
        else:
            result = bench.decode(case, chosen, cpus, decode, seed, update)
    result.absent = absent
    run.draw(bench.plot, [result])
    shown = [_streamed(result)]
    run.end([result], shown, absent)


def _streamed(result: LengthsResult) -> findings.Shown:
    rows = [
        [
            *(e["engine"], f"{e['total_s']:.2f}", f"{e['median_ms']:.2f}", f"{e['min_ms']:.2f}", f"{e['longest_ms']:.1f}", e["slow"]),
            *(f"{e['behind_s']:.1f}", "" if e["prompt_ms"] is None else f"{e['prompt_ms']:.1f}"),
        ]
        for e in (found.document() for found in result.found)
    ]
    columns = ["engine", "total s", "ms", "min ms", "longest ms", "slow", "CPU s behind", "prompt ms"]
    return findings.Shown(result.case, columns, rows, result.verdict, failed=result.failed)


class _Figure(Protocol):
    """The interface of a module of `aspen_mp.bench.figures`."""

    def verdict(self, result: Comparison) -> str: ...
    def plot(self, results: Sequence[Comparison], file: Path) -> None: ...


def _compared(results: Sequence[Comparison], figure: _Figure, run: Run, absent: Sequence[str] = ()) -> None:
    """Draw, print and record."""
    for result in results:
        result.absent = list(absent)
    run.draw(figure.plot, results)
    run.end(results, [_ratios(each, figure.verdict(each)) for each in results], absent, disturbed=sum(each.disturbed for each in results))


def _ratios(result: Comparison, verdict: str) -> findings.Shown:
    rows = [[e.label, e.cores, f"{e.median_ms:.2f}", f"{e.min_ms:.2f}", f"{e.ratio:.3f}", f"{e.ratio_min:.3f}"] for e in result.entries]
    note = ""
    if result.rejected or result.disturbed:
        note = f"{result.case}: rounds left out because other processes ran: {result.rejected}; disturbed: {result.disturbed}"
    return findings.Shown(result.case, ["", "cores", "ms", "min ms", "ratio", "by min"], rows, verdict, note, result.failed)
