"""`aspen-mp bench`: whole networks beside other runtimes, and kernels beside the machine's limits."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp.cli import options, output

if TYPE_CHECKING:
    from aspen_mp.bench.peers.cases import Case
    from aspen_mp.bench.peers.rounds import CaseResult

app = typer.Typer(help="Measure: whole networks beside other runtimes, kernels beside the machine's limits.", no_args_is_help=True)

OutputOption = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write everything as JSON to this file.")]

PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw it against time.")]


@app.command("peers")
@output.command
def peers(
    networks: Annotated[
        list[str],
        typer.Argument(metavar="NETWORK…", help="Of the zoo, with sizes and options: resnet50@batch=8, gpt2@precision=bf16."),
    ],
    threads: Annotated[
        str | None, typer.Option("--threads", "-t", metavar="1,2", help="Cores for each engine, one run for each number; default: all.")
    ] = None,
    cores: Annotated[str | None, typer.Option("--cores", metavar="0,2-3", help="Exactly these CPUs.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Batch size of networks that name none.")] = 1,
    seq: Annotated[int, typer.Option("--seq", min=1, help="Tokens of networks that read text and name no number.")] = 128,
    engines: Annotated[str | None, typer.Option("--engines", metavar="A,B", help="Which engines; default: all that are installed.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds that must count.")] = 7,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Least length of a turn.")] = 0.3,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Measure networks on aspen-mp and other runtimes, interleaved round by round on the same cores, all computing in float32, or, with
    precision=bf16, in bfloat16 where they can.

    Exit status 1 if an engine failed. Peers that are not installed are named and left out.
    """
    from aspen_mp.bench.peers import cases, report
    from aspen_mp.bench.peers.engines import ENGINES
    from aspen_mp.bench.peers.rounds import Plan, measure

    wanted = engines.split(",") if engines else list(ENGINES)
    unknown = [name for name in wanted if name not in ENGINES]
    if unknown:
        raise typer.BadParameter(f"no engine {', '.join(map(repr, unknown))}; there are {', '.join(ENGINES)}", param_hint="--engines")
    try:
        chosen = [cases.parse(text, batch, seq) for text in networks]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NETWORK") from None
    absent = [name for name in wanted if not ENGINES[name].installed]
    plan = Plan(rounds=rounds, spare=2 * rounds, seconds=seconds)
    results: list[CaseResult] = []
    with output.progress("bench", quiet=as_json) as update:
        for case in chosen:
            for cpus in _core_sets(threads, cores):
                there = [name for name in wanted if name not in absent]
                results.append(measure(case, there, cpus, plan, lambda text: update(text, 0, 0)))
    document = report.document(results, absent)
    _write(document, file, as_json)
    if not as_json:
        report.show(results, absent, output.out)
    if any(result.failed for result in results):
        raise typer.Exit(1)


def _core_sets(threads: str | None, cores: str | None) -> list[list[int]]:
    """The CPUs of each run: from --threads the first so many of --cores, or of those that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    cpus = options.cpus(cores) or allowed
    try:
        numbers = [len(cpus)] if threads is None else [int(n) for n in threads.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{threads!r} is no list of numbers such as 1,2", param_hint="--threads") from None
    if not set(cpus) <= set(allowed):
        raise typer.BadParameter(f"this process may use CPUs {', '.join(map(str, allowed))}", param_hint="--cores")
    if min(numbers) < 1 or max(numbers) > len(cpus):
        raise typer.BadParameter(f"from 1 to {len(cpus)} threads can have a core each", param_hint="--threads")
    return [cpus[:n] for n in numbers]


def _write(document: dict[str, Any], file: Path | None, as_json: bool) -> None:
    if file is not None:
        file.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    if as_json:
        output.emit_json(document)


@app.command("kernels")
@output.command
def kernels(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="Shape lists to run; default: all.")] = None,
    isa: Annotated[str | None, typer.Option("--isa", metavar="A,B", help="Instruction sets, or all; default: the best.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernels", metavar="GEMM,CONV", help="Only these kernels.")] = None,
    each: Annotated[bool, typer.Option("--each", help="One row for each call, not for each kernel.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Least time for each call.")] = 0.02,
    cpu: Annotated[int | None, typer.Option("--cpu", min=0, help="CPU to run on; default: the first that may be used.")] = None,
    file: OutputOption = None,
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
    _write(report.document(found), file, as_json)
    if not as_json:
        report.show(found, each, output.out)


@app.command("prediction")
@output.command
def prediction(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="As for peers; default: the whole zoo.")] = None,
    workers: Annotated[str | None, typer.Option("--workers", metavar="1,2", help="Numbers of workers; default: one, and all.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns that count.")] = 5,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Least length of a turn.")] = 0.1,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Set the planner's predictions beside what is measured: latency, time in kernels and in scheduling."""
    from aspen_mp.bench import models
    from aspen_mp.bench import prediction as bench

    numbers = sorted({len(cpus) for cpus in _core_sets(workers, None)} | ({1} if workers is None else set()))
    with output.progress("bench", quiet=as_json) as update:
        rows = list(bench.run(_cases(networks or models.names()), numbers, rounds, seconds, lambda text: update(text, 0, 0)))
    _write(bench.document(rows), file, as_json)
    if not as_json:
        output.table("", bench.HEADINGS, [bench.cells(row) for row in rows], right=range(1, len(bench.HEADINGS)))
        output.out.print(bench.verdict(rows), highlight=False, soft_wrap=True)


@app.command("elastic")
@output.command
def elastic(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="As for peers.")] = "resnet50",
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="1,2,1", help="Numbers of workers, one after the other; default: up to all cores and back."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Length of each step.")] = 4.0,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, max=32, help="Requests that are in flight at any time.")] = 4,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Add and remove workers under load: throughput against time, and how soon each change has its effect.

    Exit status 1 if a request was lost or its result differs.
    """
    _need_matplotlib(plot)
    from aspen_mp.bench import elastic as bench

    (case,) = _cases([network])
    with output.progress("bench", quiet=as_json) as update:
        run = bench.measure(case, _steps(steps), seconds, in_flight, lambda text: update(text, 0, 0))
    if plot is not None:
        bench.plot(run, plot)
    _write(run.document(), file, as_json)
    if not as_json:
        rows = [
            [
                s.workers,
                f"{s.asked_s:.2f}",
                "" if s.effect_ms is None else f"{s.effect_ms:.0f}",
                f"{s.requests_per_s:.1f}",
                f"{s.latency_ms:.1f}",
            ]
            for s in run.steps
        ]
        output.table(run.case, ["workers", "asked at s", "effect after ms", "requests/s", "median ms"], rows, right=(0, 1, 2, 3, 4))
        output.out.print(run.verdict, highlight=False, soft_wrap=True)
    if run.lost + run.wrong:
        raise typer.Exit(1)


@app.command("storm")
@output.command
def storm(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="As for peers; default: resnet50 bert_base.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="Length of the storm.")] = 180.0,
    per_minute: Annotated[float, typer.Option("--per-minute", min=1.0, max=6000.0, help="Workers killed a minute.")] = 75.0,
    workers: Annotated[int, typer.Option("--workers", min=1, max=128, help="Workers; more than cores share them.")] = 4,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Client threads in each client process.")] = 4,
    processes: Annotated[int, typer.Option("--processes", min=0, max=16, help="Client processes beside this one.")] = 1,
    mix: Annotated[
        str | None,
        typer.Option("--mix", metavar="KILL=7,STOP=1", help="Signals and their shares; default: KILL=7,SEGV=1,ABRT=1,STOP=1."),
    ] = None,
    at_once: Annotated[float, typer.Option("--at-once", min=0.0, max=1.0, help="Share of the strokes that hit all workers.")] = 0.1,
    calm: Annotated[float, typer.Option("--calm", min=0.0, help="Seconds of the same load undisturbed, half before, half after.")] = 20.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the storm's choices.")] = 0,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Kill workers at random under load: requests lost or wrong, throughput, and how long each death holds things up.

    Exit status 1 if a request was lost or its result differs.
    """
    _need_matplotlib(plot)
    from aspen_mp.bench import storm as bench

    weather = bench.Weather(seconds, per_minute, workers, threads, processes, _mix(mix) or bench.MIX, at_once, calm, seed)
    with output.progress("bench", quiet=as_json) as update:
        found = bench.measure(_cases(networks), weather, lambda text: update(text, 0, 0))
    if plot is not None:
        bench.plot(found, plot)
    _write(found.document(), file, as_json)
    if not as_json:
        rows = [
            [what, spread.number, f"{spread.p50_ms:.1f}", f"{spread.p99_ms:.1f}", f"{spread.worst_ms:.1f}"]
            for what, spread in (
                ("from the signal until work goes on, others running", found.with_survivors),
                ("from the signal until a worker runs, none left", found.with_none),
                ("from noticing a death until work may go on", found.own_ms),
                ("from starting a new worker until it runs", found.joins),
            )
        ]
        output.table("milliseconds", ["", "times", "median", "p99", "worst"], rows, right=(1, 2, 3, 4))
        output.out.print(found.verdict, highlight=False, soft_wrap=True)
    _whole(found.lost, found.wrong, found.why)


@app.command("churn")
@output.command
def churn(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="As for peers; default: resnet50 bert_base.")] = None,
    changes: Annotated[int, typer.Option("--changes", min=1, help="Changes of the number of workers.")] = 1000,
    workers: Annotated[int, typer.Option("--workers", min=2, max=128, help="The most workers.")] = 4,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Client threads, each with a request in flight.")] = 4,
    rest: Annotated[float, typer.Option("--rest", min=0.0, help="Seconds from a change's effect to the next change, on average.")] = 0.02,
    seed: Annotated[int, typer.Option("--seed", help="Of the choices.")] = 0,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Let workers join and leave under load, change after change: requests lost or wrong, and how soon each change has its effect.

    Exit status 1 if a request was lost or its result differs.
    """
    from aspen_mp.bench import churn as bench

    plan = bench.Plan(changes, workers, threads, rest, seed)
    with output.progress("bench", quiet=as_json) as update:
        found = bench.measure(_cases(networks), plan, lambda text: update(text, 0, 0))
    _write(found.document(), file, as_json)
    if not as_json:
        output.out.print(found.verdict, highlight=False, soft_wrap=True)
    _whole(found.lost, found.wrong, found.why)


def _cases(networks: list[str] | None) -> list[Case]:
    from aspen_mp.bench.peers import cases

    try:
        return [cases.parse(text) for text in networks or ("resnet50", "bert_base")]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NETWORK") from None


def _mix(text: str | None) -> dict[str, float]:
    """Signals and their weights; empty without any."""
    try:
        mix = {name: float(share) for name, share in (part.split("=") for part in text.split(","))} if text else {}
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of weights such as KILL=7,STOP=1", param_hint="--mix") from None
    known = {"KILL", "TERM", "STOP", "SEGV", "BUS", "ILL", "FPE", "ABRT"}
    if mix and (not set(mix) <= known or min(mix.values()) < 0 or not sum(mix.values())):
        raise typer.BadParameter(f"signals are {', '.join(sorted(known))}, with weights from 0 on", param_hint="--mix")
    return mix


def _need_matplotlib(plot: Path | None) -> None:
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("drawing needs matplotlib: pip install 'aspen-mp[plot]'", param_hint="--plot")


def _whole(lost: int, wrong: int, why: list[str]) -> None:
    for text in why:
        output.notice(f"lost: {text}")
    if lost + wrong:
        raise typer.Exit(1)


def _steps(text: str | None) -> list[int]:
    """Numbers of workers; the first and the last must let requests end."""
    cores = len(os.sched_getaffinity(0))
    try:
        steps = [int(n) for n in text.split(",")] if text else sorted({1, max(1, cores // 2), cores})
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,2,1", param_hint="--steps") from None
    if text is None:
        steps += steps[-2::-1]
    if min(steps) < 0 or not steps[0] or not steps[-1] or max(steps) > 128:
        raise typer.BadParameter("from 0 to 128 workers, at least one at the beginning and at the end", param_hint="--steps")
    return steps


@app.command("shapes")
@output.command
def shapes(
    networks: Annotated[list[str] | None, typer.Argument(metavar="NETWORK…", help="As for peers; default: all that have a list.")] = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to write; default: where `bench kernels` reads.")] = None,
    as_json: output.Json = False,
) -> None:
    """Write the lists of kernel calls that `bench kernels` runs, from the plans of networks of the zoo."""
    from aspen_mp.bench.kernels import shapes as lists
    from aspen_mp.bench.peers import cases

    try:
        chosen = [cases.parse(text) for text in networks or lists.names()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NETWORK") from None
    written = []
    for case in chosen:
        with output.progress(f"planning {case.label}", quiet=as_json):
            path = lists.write(case, folder or lists.FOLDER)
        written.append({"network": case.label, "file": str(path), "calls": len(lists.read(case.network, folder or lists.FOLDER))})
    if as_json:
        output.emit_json(written)
    else:
        output.table("", ["network", "calls", "file"], [[row["network"], row["calls"], row["file"]] for row in written], right=(1,))


@app.command("clients")
@output.command
def clients(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="As for peers.")] = "resnet50",
    processes: Annotated[int, typer.Option("--processes", min=2, max=64, help="Client processes; one is measured beside.")] = 4,
    cores: Annotated[str | None, typer.Option("--cores", metavar="0,2-3", help="Exactly these CPUs.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each setting in each round.")] = 2.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds.")] = 5,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Measure onnxruntime beside it, where it is installed.")] = True,
    plot: PlotOption = None,
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Measure several client processes on one runtime against one, and as many processes with an onnxruntime each: throughput, latency,
    memory of all processes together."""
    _need_matplotlib(plot)
    from aspen_mp.bench import clients as bench

    (case,) = _cases([network])
    (cpus,) = _core_sets(None, cores)
    with output.progress("bench", quiet=as_json, moving=False) as update:
        found = bench.measure(case, cpus, processes, seconds, rounds, peers, lambda text: update(text, 0, 0))
    if plot is not None:
        bench.plot(found, plot)
    _write(found.document(), file, as_json)
    if not as_json:
        rows = []
        for row in found.document()["settings"]:
            latency = row["latency"]
            rows.append(
                [
                    *(row["engine"], row["processes"], row["in_flight"], f"{row['median_per_s']:.2f}", f"{row['best_per_s']:.2f}"),
                    *(f"{latency['p50_ms']:.0f}", f"{latency['p99_ms']:.0f}", output.mebibytes(row["pss_bytes"])),
                ]
            )
        columns = ["engine", "clients", "in flight each", "images/s", "best", "p50 ms", "p99 ms", "memory"]
        output.table(found.case, columns, rows, right=(1, 2, 3, 4, 5, 6, 7))
        output.out.print(found.verdict, highlight=False, soft_wrap=True)
