"""`aspen-mp bench`: networks beside other runtimes and beside predictions, kernels beside the machine's limits, errors beside float64."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.cli import output

if TYPE_CHECKING:
    from aspen_mp.bench.peers.rounds import CaseResult


@output.command
def peers(
    networks: Annotated[
        list[str],
        typer.Argument(metavar="NETWORK…", help="Of the zoo, with sizes and options: resnet50@batch=8, gpt2@precision=bf16."),
    ],
    threads: Annotated[
        str | None, typer.Option("--threads", "-t", metavar="1,2", help="Cores for each engine, one run for each number; default: all.")
    ] = None,
    cores: options.Cpus = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Batch size of networks that name none.")] = 1,
    seq: Annotated[int, typer.Option("--seq", min=1, help="Tokens of networks that read text and name no number.")] = 128,
    engines: Annotated[str | None, typer.Option("--engines", metavar="A,B", help="Which engines; default: all that are installed.")] = None,
    rounds: options.Rounds = 7,
    seconds: options.Seconds = 0.3,
    file: options.File = None,
    keep_disturbed: options.KeepDisturbed = False,
    as_json: output.Json = False,
) -> None:
    """Measure networks on aspen-mp and other runtimes, interleaved round by round on the same cores, all computing in float32, or, with
    precision=bf16, in bfloat16 where they can.

    Exit status 1 if an engine failed. Peers that are not installed are named and left out.
    """
    from aspen_mp.bench.peers import report
    from aspen_mp.bench.peers.engines import ENGINES
    from aspen_mp.bench.peers.rounds import Schedule, measure

    wanted = engines.split(",") if engines else list(ENGINES)
    unknown = [name for name in wanted if name not in ENGINES]
    if unknown:
        raise typer.BadParameter(f"no engine {', '.join(map(repr, unknown))}; there are {', '.join(ENGINES)}", param_hint="--engines")
    chosen = options.cases(networks, batch, seq)
    absent = [name for name in wanted if not ENGINES[name].installed]
    schedule = Schedule(rounds=rounds, spare=2 * rounds, seconds=seconds)
    results: list[CaseResult] = []
    recording = findings.Recording("peers", file, as_json, keep_disturbed)
    with output.progress("bench", quiet=as_json) as update:
        for case in chosen:
            for cpus in options.core_sets(threads, cores):
                there = [name for name in wanted if name not in absent]
                results.append(measure(case, there, cpus, schedule, lambda text: update(text, 0, 0)))
    if not as_json:
        report.show(results, absent, output.out)
    recording.write(report.PeersResult(absent, results), sum(result.disturbed for result in results))
    if any(result.failed for result in results):
        raise typer.Exit(1)


@output.command
def kernels(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="Shape lists to run; default: all.")] = None,
    isa: Annotated[str | None, typer.Option("--isa", metavar="A,B", help="Instruction sets, or all; default: the best.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernels", metavar="GEMM,CONV", help="Only these kernels.")] = None,
    each: Annotated[bool, typer.Option("--each", help="One row for each call, not for each kernel.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Least time for each call.")] = 0.02,
    cpu: Annotated[int | None, typer.Option("--cpu", min=0, help="CPU to run on; default: the first that may be used.")] = None,
    file: options.File = None,
    keep_disturbed: options.KeepDisturbed = False,
    as_json: output.Json = False,
) -> None:
    """Time kernels over the calls of real networks, on one core: share of the measured fp32 peak and of the memory's bandwidth."""
    from aspen_mp.bench.kernels import measure, report, shapes
    from aspen_mp.tools import core_limits
    from aspen_mp.workers import _kernels

    there, supported = shapes.names(), _kernels.isas()
    unknown = [name for name in networks or () if name not in there]
    if unknown:
        raise typer.BadParameter(f"no shape list {', '.join(unknown)}; there are {', '.join(there)}", param_hint="NETWORK")
    isas = supported if isa == "all" else isa.split(",") if isa else [_kernels.selected()]
    if not set(isas) <= set(supported):
        raise typer.BadParameter(f"this processor has {', '.join(supported)}", param_hint="--isa")
    wanted = set(kernel.split(",")) if kernel else None
    if wanted and not wanted <= set(_kernels.kernels()):
        raise typer.BadParameter(f"kernels are {', '.join(_kernels.kernels())}", param_hint="--kernels")
    recording = findings.Recording("kernels", file, as_json, keep_disturbed)
    allowed = os.sched_getaffinity(0)
    if cpu is not None and cpu not in allowed:
        raise typer.BadParameter(f"this process may use CPUs {', '.join(map(str, sorted(allowed)))}", param_hint="--cpu")
    os.sched_setaffinity(0, {min(allowed) if cpu is None else cpu})
    found = []
    try:
        evict = measure.evictor()
        with output.progress("bench", quiet=as_json, moving=False) as update:
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
    if not as_json:
        report.show(found, each, output.out)
    recording.write(report.document(found))


@output.command
def prediction(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="As for peers; default: the whole zoo.")] = None,
    workers: Annotated[str | None, typer.Option("--workers", metavar="1,2", help="Numbers of workers; default: one, and all.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns that count.")] = 5,
    seconds: options.Seconds = 0.1,
    file: options.File = None,
    keep_disturbed: options.KeepDisturbed = False,
    as_json: output.Json = False,
) -> None:
    """Set the planner's predictions beside what is measured: latency, time in kernels and in scheduling."""
    from aspen_mp.bench import models
    from aspen_mp.bench import prediction as bench

    numbers = sorted({len(cpus) for cpus in options.core_sets(workers, None)} | ({1} if workers is None else set()))
    cases = options.cases(networks or models.names())
    recording = findings.Recording("prediction", file, as_json, keep_disturbed)
    with output.progress("bench", quiet=as_json) as update:
        rows = list(bench.run(cases, numbers, rounds, seconds, lambda text: update(text, 0, 0)))
    if not as_json:
        output.table("", bench.HEADINGS, [bench.cells(row) for row in rows], right=range(1, len(bench.HEADINGS)))
        findings.verdict(bench.verdict(rows))
    recording.write(rows)


@output.command
def shapes(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="As for peers; default: all that have a list.")] = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to write; default: where `bench kernels` reads.")] = None,
    as_json: output.Json = False,
) -> None:
    """Write the lists of kernel calls that `bench kernels` runs, from the plans of networks of the zoo."""
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


@output.command
def agreement(
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Of the zoo; default: all that have convolutions.")
    ] = None,
    weights: Annotated[str, typer.Option("--weights", metavar="zoo,pytorch", help="Whose weights.")] = "zoo,pytorch",
    file: options.File = None,
    as_json: output.Json = False,
) -> None:
    """Compare networks with their evaluation in float64, by level of accuracy, beside direct sums and onnxruntime.

    Errors are shares of the largest output. Needs onnxruntime. Takes some seconds a network, more for large ones.
    """
    import aspen_mp
    from aspen_mp.bench import errors
    from aspen_mp.planner.job.options import ACCURACIES

    names = networks or errors.networks()
    unknown = [name for name in names if name not in errors.networks()]
    if unknown:
        raise typer.BadParameter(f"no convolutional network {', '.join(map(repr, unknown))} in the zoo", param_hint="NETWORK")
    kinds = [kind for kind in errors.WEIGHTS if kind in weights.split(",")]
    if not kinds or any(part not in errors.WEIGHTS for part in weights.split(",")):
        raise typer.BadParameter(f"{weights!r}: one or both of {', '.join(errors.WEIGHTS)}", param_hint="--weights")
    found = []
    recording = findings.Recording("agreement", file, as_json, keep_disturbed=True)  # errors do not depend on what else runs
    with aspen_mp.Runtime() as runtime, output.progress("comparing", quiet=as_json) as update:
        total = len(names) * len(kinds)
        for row in errors.rows(names, runtime, kinds):
            found.append(row)
            update(f"{row.network}, {row.weights}", len(found), total)
    recording.write(found)
    if as_json:
        return
    columns = ["network", "weights", "onnxruntime", "direct", *ACCURACIES]
    table = [
        [row.network, row.weights, f"{row.onnxruntime:.1e}", f"{row.direct:.1e}"]
        + [f"{row.levels[level]:.1e} ×{row.factor(level):.1f}" for level in ACCURACIES]
        for row in found
    ]
    output.table("largest error against float64, and times that of direct sums", columns, table, right=range(2, len(columns)))
