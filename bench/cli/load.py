"""`aspen-mp bench`: a runtime under load, while workers come and go, die, or serve several clients."""

from __future__ import annotations

import os
from statistics import median
from typing import Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark
from aspen_mp.cli import output


@benchmark()
def elastic(
    run: Run,
    network: options.Network = "resnet50",
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="1,2,1", help="Numbers of workers, one after the other. Default: up to all cores and back."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Length of each step in seconds.")] = 4.0,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, max=32, help="Number of requests in flight at any time.")] = 4,
) -> None:
    """Add and remove workers under load: throughput over time, and how soon each change has its effect.

    Exit status 1 if a request was lost or its result differs.
    """
    from aspen_mp.bench import elastic as bench

    (case,) = options.cases([network])
    with run.saying() as say:
        found = bench.measure(case, _steps(steps), seconds, in_flight, say)
    run.draw(bench.plot, found)
    if not run.as_json:
        rows = [
            [
                s.workers,
                f"{s.asked_s:.2f}",
                "" if s.effect_ms is None else f"{s.effect_ms:.0f}",
                f"{s.requests_per_s:.1f}",
                f"{s.latency_ms:.1f}",
            ]
            for s in found.steps
        ]
        output.table(found.case, ["workers", "asked at s", "effect after ms", "requests/s", "median ms"], rows, right=(0, 1, 2, 3, 4))
        findings.verdict(found.verdict)
    run.record(found)
    findings.ends(found.lost, found.wrong)


def _steps(text: str | None) -> list[int]:
    """Numbers of workers; the first and the last must let requests end."""
    cores = len(os.sched_getaffinity(0))
    steps = options.integers(text, "--steps", "1,2,1") if text else sorted({1, max(1, cores // 2), cores})
    if text is None:
        steps += steps[-2::-1]
    if min(steps) < 0 or not steps[0] or not steps[-1] or max(steps) > 128:
        raise typer.BadParameter("give numbers from 0 to 128. The first and the last must be at least 1", param_hint="--steps")
    return steps


@benchmark()
def storm(
    run: Run,
    networks: options.Networks = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="Length of the storm in seconds.")] = 180.0,
    per_minute: Annotated[float, typer.Option("--per-minute", min=1.0, max=6000.0, help="Number of workers killed per minute.")] = 75.0,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=128, help="Number of workers. If there are more than cores, they share them.")
    ] = 4,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Number of client threads in each client process.")] = 4,
    processes: Annotated[int, typer.Option("--processes", min=0, max=16, help="Number of client processes beside this one.")] = 1,
    mix: Annotated[
        str | None,
        typer.Option("--mix", metavar="KILL=7,STOP=1", help="Signals and their shares. Default: `KILL=7,SEGV=1,ABRT=1,STOP=1`."),
    ] = None,
    at_once: Annotated[
        float, typer.Option("--at-once", min=0.0, max=1.0, help="Share of the signals that are sent to all workers at once.")
    ] = 0.1,
    calm: Annotated[
        float, typer.Option("--calm", min=0.0, help="Seconds of the same load without signals, half before and half after.")
    ] = 20.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random choices.")] = 0,
) -> None:
    """Kill workers at random under load: requests lost or wrong, throughput, and the delay after each death.

    Exit status 1 if a request was lost or its result differs.
    """
    from aspen_mp.bench import storm as bench

    weather = bench.Weather(seconds, per_minute, workers, threads, processes, _mix(mix) or bench.MIX, at_once, calm, seed)
    with run.saying() as say:
        found = bench.measure(options.cases(networks), weather, say)
    run.draw(bench.plot, found)
    if not run.as_json:
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
        findings.verdict(found.verdict)
    run.record(found)
    findings.ends(found.lost, found.wrong, found.why)


def _mix(text: str | None) -> dict[str, float]:
    """Signals and their weights; empty without any."""
    try:
        mix = {name: float(share) for name, share in (part.split("=") for part in text.split(","))} if text else {}
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of weights. Write it like KILL=7,STOP=1", param_hint="--mix") from None
    known = {"KILL", "TERM", "STOP", "SEGV", "BUS", "ILL", "FPE", "ABRT"}
    if mix and (not set(mix) <= known or min(mix.values()) < 0 or not sum(mix.values())):
        raise typer.BadParameter(f"give signals of {', '.join(sorted(known))}, with weights from 0 on", param_hint="--mix")
    return mix


@benchmark(picture=False)
def churn(
    run: Run,
    networks: options.Networks = None,
    changes: Annotated[int, typer.Option("--changes", min=1, help="How often the number of workers changes.")] = 1000,
    workers: Annotated[int, typer.Option("--workers", min=2, max=128, help="Largest number of workers.")] = 4,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Number of client threads, each with a request in flight.")] = 4,
    rest: Annotated[
        float, typer.Option("--rest", min=0.0, help="Seconds between the effect of a change and the next change, on average.")
    ] = 0.02,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random choices.")] = 0,
) -> None:
    """Let workers join and leave under load: requests lost or wrong, and how soon each change has its effect.

    Exit status 1 if a request was lost or its result differs.
    """
    from aspen_mp.bench import churn as bench

    schedule = bench.ChurnSchedule(changes, workers, threads, rest, seed)
    with run.saying() as say:
        found = bench.measure(options.cases(networks), schedule, say)
    if not run.as_json:
        findings.verdict(found.verdict)
    run.record(found)
    findings.ends(found.lost, found.wrong, found.why)


@benchmark()
def clients(
    run: Run,
    network: options.Network = "resnet50",
    processes: Annotated[
        int, typer.Option("--processes", min=2, max=64, help="Number of client processes. One process alone is measured, too.")
    ] = 4,
    cores: options.Cpus = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each setting in each round, in seconds.")] = 2.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds.")] = 5,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also measure onnxruntime, if it is installed.")] = True,
) -> None:
    """Measure several client processes on one runtime: throughput, latency, and memory of all processes together.

    Beside them, one client process, and as many processes with an onnxruntime each.
    """
    from aspen_mp.bench import clients as bench

    (case,) = options.cases([network])
    (cpus,) = options.core_sets(None, cores)
    with run.progress(moving=False) as update:
        found = bench.measure(case, cpus, processes, seconds, rounds, peers, lambda text: update(text, 0, 0))
    run.draw(bench.plot, found)
    if not run.as_json:
        rows = []
        for row in found.found:
            setting, latency = row.setting, row.spread
            rows.append(
                [
                    *(setting.engine, setting.processes, setting.in_flight, f"{median(row.per_s):.2f}", f"{max(row.per_s):.2f}"),
                    *(f"{latency.p50_ms:.0f}", f"{latency.p99_ms:.0f}", output.mebibytes(row.pss_bytes)),
                ]
            )
        columns = ["engine", "clients", "in flight each", "images/s", "best", "p50 ms", "p99 ms", "memory"]
        output.table(found.case, columns, rows, right=(1, 2, 3, 4, 5, 6, 7))
        findings.verdict(found.verdict)
    run.record(found)
