"""`aspen-mp bench`: networks beside other runtimes and beside predictions, kernels beside the machine's limits, errors beside float64."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark
from aspen_mp.cli import output

if TYPE_CHECKING:
    from aspen_mp.bench.peers.rounds import CaseResult


Threads = Annotated[
    str | None, typer.Option("--threads", "-t", metavar="1,2", help="Cores for each engine, one run for each number. Default: all.")
]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Batch size, if NETWORK does not say it.")]
Seq = Annotated[int, typer.Option("--seq", min=1, help="Number of tokens, if NETWORK reads text and does not say it.")]
Chosen = Annotated[str | None, typer.Option("--engines", metavar="A,B", help="Engines to measure. Default: all that are installed.")]


@benchmark(picture=False)
def peers(
    run: Run,
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK…", help="Networks of the zoo, with sizes and options if wanted: resnet50@batch=8, gpt2@precision=bf16."
        ),
    ],
    threads: Threads = None,
    cores: options.Cpus = None,
    batch: Batch = 1,
    seq: Seq = 128,
    engines: Chosen = None,
    rounds: options.Rounds = 7,
    seconds: options.Seconds = 0.3,
    inputs: Annotated[
        int | None,
        typer.Option(
            "--inputs",
            min=0,
            help="Measure errors against float64, and how often the class is the same, on this number of inputs. Default: 8 for networks "
            "in int8, f16 or bf16, none for others.",
        ),
    ] = None,
) -> None:
    """Measure networks on aspen-mp and on other runtimes, in turns on the same cores.

    All compute in float32, or in bfloat16 where a network says precision=bf16 and the runtime can. Runtimes that are not installed are
    named and left out. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.peers.accuracy import INPUTS, is_rounded
    from aspen_mp.bench.peers.rounds import Schedule, alike, measure

    wanted, absent = _engines(engines)
    schedule = Schedule(rounds=rounds, spare=2 * rounds, seconds=seconds)
    results: list[CaseResult] = []
    with run.saying() as say:
        for case in options.cases(networks, batch, seq):
            for cpus in options.core_sets(threads, cores):
                judged = (INPUTS if is_rounded(case) else 0) if inputs is None else inputs
                results.append(measure(case, alike(case, wanted), cpus, schedule, say, judged))
    _report(run, results, absent)


@benchmark(picture=False)
def defaults(
    run: Run,
    networks: Annotated[
        list[str], typer.Argument(metavar="NETWORK…", help="Networks of the zoo, with sizes and options if wanted: resnet50@batch=8.")
    ],
    threads: Threads = None,
    cores: options.Cpus = None,
    batch: Batch = 1,
    seq: Seq = 128,
    engines: Chosen = None,
    rounds: options.Rounds = 7,
    seconds: options.Seconds = 0.3,
    inputs: Annotated[int, typer.Option("--inputs", min=0, help="Measure errors on this number of inputs.")] = 8,
) -> None:
    """Measure networks on aspen-mp and on other runtimes as they come: each with its own defaults, on the same cores.

    OpenVINO then computes in bfloat16 where the processor has it. aspen-mp computes in float32, and in a second row with products in bf16.
    Errors are against float64. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.peers.rounds import Schedule, as_they_come, measure

    wanted, absent = _engines(engines)
    schedule = Schedule(rounds=rounds, spare=2 * rounds, seconds=seconds)
    cases = options.cases(networks, batch, seq)
    for case in cases:
        if case.precision != "f32":
            raise typer.BadParameter(f"{case.label} says a precision. Leave it out: each runtime chooses its own", param_hint="NETWORK")
    sets = options.core_sets(threads, cores)
    with run.saying() as say:
        results = [measure(case, as_they_come(wanted), cpus, schedule, say, inputs) for case in cases for cpus in sets]
    _report(run, results, absent)


def _engines(text: str | None) -> tuple[list[str], list[str]]:
    """The engines of --engines that are installed, and those that are not."""
    from aspen_mp.bench.peers.engines import ENGINES

    wanted = text.split(",") if text else list(ENGINES)
    unknown = [name for name in wanted if name not in ENGINES]
    if unknown:
        raise typer.BadParameter(
            f"there is no engine {', '.join(map(repr, unknown))}. Give some of {', '.join(ENGINES)}", param_hint="--engines"
        )
    return [name for name in wanted if ENGINES[name].installed], [name for name in wanted if not ENGINES[name].installed]


def _report(run: Run, results: list[CaseResult], absent: list[str]) -> None:
    """Print and record a comparison. Exit status 1 if an engine failed."""
    from aspen_mp.bench.peers import report

    if not run.as_json:
        report.show(results, absent, output.out)
    run.record(report.PeersResult(absent, results), sum(result.disturbed for result in results))
    if any(result.failed for result in results):
        raise typer.Exit(1)


@benchmark(picture=False)
def kernels(
    run: Run,
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Networks whose kernel calls are timed. Default: all that have a list.")
    ] = None,
    isa: Annotated[str | None, typer.Option("--isa", metavar="A,B", help="Instruction sets, or all. Default: the best one here.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernels", metavar="GEMM,CONV", help="Time only these kernels.")] = None,
    each: Annotated[bool, typer.Option("--each", help="Print a row for each call instead of each kernel.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Time each call for at least this time, in seconds.")] = 0.02,
    cpu: Annotated[int | None, typer.Option("--cpu", min=0, help="CPU to run on. Default: the first that this process may use.")] = None,
) -> None:
    """Time the kernel calls of real networks on one core.

    Results are shares of the core's float32 peak and of its memory bandwidth, both measured here.
    """
    from aspen_mp.bench.kernels import measure, report, shapes
    from aspen_mp.tools import core_limits
    from aspen_mp.workers import _kernels

    there, supported = shapes.names(), _kernels.isas()
    unknown = [name for name in networks or () if name not in there]
    if unknown:
        raise typer.BadParameter(
            f"there is no list of kernel calls for {', '.join(unknown)}. Give some of {', '.join(there)}", param_hint="NETWORK"
        )
    isas = supported if isa == "all" else isa.split(",") if isa else [_kernels.selected()]
    if not set(isas) <= set(supported):
        raise typer.BadParameter(f"{isa!r} is not supported by this processor. Give some of {', '.join(supported)}", param_hint="--isa")
    wanted = set(kernel.split(",")) if kernel else None
    if wanted and not wanted <= set(_kernels.kernels()):
        raise typer.BadParameter(
            f"{kernel!r} is not a list of kernels. Give some of {', '.join(_kernels.kernels())}", param_hint="--kernels"
        )
    allowed = os.sched_getaffinity(0)
    if cpu is not None and cpu not in allowed:
        raise typer.BadParameter(f"this process may use only CPUs {', '.join(map(str, sorted(allowed)))}", param_hint="--cpu")
    os.sched_setaffinity(0, {min(allowed) if cpu is None else cpu})
    found = []
    try:
        evict = measure.evictor()
        with run.progress(moving=False) as update:
            for name in isas:
                limits = core_limits.limits(name)
                for network in networks or there:
                    listed = [call for call in shapes.read(network) if not wanted or call.kernel in wanted]
                    timings = []
                    for k, call in enumerate(listed):
                        update(f"{network}, {name}", k, len(listed))
                        timings.append(measure.measure(call, name, seconds, evict))
                    if timings:
                        found.append((network, limits, timings))
    finally:
        os.sched_setaffinity(0, allowed)
    if not run.as_json:
        report.show(found, each, output.out)
    run.record(report.document(found))


@benchmark(picture=False)
def prediction(
    run: Run,
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Networks of the zoo, such as resnet50@batch=8. Default: the whole zoo.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", metavar="1,2", help="Numbers of workers. Default: one, and one per core.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds without disturbance.")] = 5,
    seconds: options.Seconds = 0.1,
) -> None:
    """Compare the planner's predictions with measurements: latency, time in kernels and in scheduling."""
    from aspen_mp.bench import models
    from aspen_mp.bench import prediction as bench

    numbers = sorted({len(cpus) for cpus in options.core_sets(workers, None)} | ({1} if workers is None else set()))
    cases = options.cases(networks or models.names())
    with run.saying() as say:
        rows = list(bench.run(cases, numbers, rounds, seconds, say))
    if not run.as_json:
        output.table("", bench.HEADINGS, [bench.cells(row) for row in rows], right=range(1, len(bench.HEADINGS)))
        findings.verdict(bench.verdict(rows))
    run.record(rows)


@output.command
def shapes(
    networks: Annotated[
        list[str] | None,
        typer.Argument(metavar="NETWORK…", help="Networks of the zoo, such as resnet50@batch=8. Default: all that have a list."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder to write to. Default: the one that `bench kernels` reads.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Plan networks of the zoo, and write the lists of kernel calls that `bench kernels` times."""
    from aspen_mp.bench.kernels import shapes as lists

    written = []
    for case in options.cases(networks or lists.names()):
        with output.progress(f"planning {case.label}", quiet=as_json):
            path = lists.write(case, folder or lists.FOLDER)
        written.append({"network": case.label, "file": str(path), "calls": len(lists.read(case.network, folder or lists.FOLDER))})
    if as_json:
        output.emit_json(written)
    else:
        output.table("", ["network", "calls", "file"], [[row["network"], row["calls"], row["file"]] for row in written], right=(1,))


@benchmark(picture=False, timed=False)
def agreement(
    run: Run,
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Networks of the zoo. Default: all that have convolutions.")
    ] = None,
    weights: Annotated[
        str, typer.Option("--weights", metavar="zoo,pytorch", help="How random weights are drawn: as in the zoo, as in PyTorch, or both.")
    ] = "zoo,pytorch",
) -> None:
    """Compare networks with their evaluation in float64, for each level of accuracy.

    Direct sums and onnxruntime are compared, too. Errors are relative to the largest output. Needs onnxruntime. Takes some seconds per
    network, more for large ones.
    """
    import aspen_mp
    from aspen_mp.bench import errors
    from aspen_mp.planner.job.options import ACCURACIES

    names = networks or errors.networks()
    unknown = [name for name in names if name not in errors.networks()]
    if unknown:
        raise typer.BadParameter(
            f"the zoo has no convolutional network {', '.join(map(repr, unknown))}. Give some of {', '.join(errors.networks())}",
            param_hint="NETWORK",
        )
    kinds = [kind for kind in errors.WEIGHTS if kind in weights.split(",")]
    if not kinds or any(part not in errors.WEIGHTS for part in weights.split(",")):
        raise typer.BadParameter(f"{weights!r} is unknown. Give one or both of {', '.join(errors.WEIGHTS)}", param_hint="--weights")
    found = []
    with aspen_mp.Runtime() as runtime, output.progress("comparing", quiet=run.as_json) as update:
        total = len(names) * len(kinds)
        for row in errors.rows(names, runtime, kinds):
            found.append(row)
            update(f"{row.network}, {row.weights}", len(found), total)
    run.record(found)
    if run.as_json:
        return
    columns = ["network", "weights", "onnxruntime", "direct", *ACCURACIES]
    table = [
        [row.network, row.weights, f"{row.onnxruntime:.1e}", f"{row.direct:.1e}"]
        + [f"{row.levels[level]:.1e} ×{row.factor(level):.1f}" for level in ACCURACIES]
        for row in found
    ]
    output.table("largest error against float64, and times that of direct sums", columns, table, right=range(2, len(columns)))
