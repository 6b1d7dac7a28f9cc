"""`aspen-mp coplan`: several networks on one machine, planned together without running them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from aspen_mp.cli import output, sources
from aspen_mp.cli.output import count
from aspen_mp.cli.plan import CoresOption, bindings_of, machines
from aspen_mp.errors import UnsupportedModelError

if TYPE_CHECKING:
    from aspen_mp.planner.coschedule.evaluate import Schedule
    from aspen_mp.planner.coschedule.problem import Objective
    from aspen_mp.planner.coschedule.together import Run, Together
    from aspen_mp.planner.cost.machine import Machine
    from aspen_mp.planner.plan.plan import Plan

NAIVE: Final = {
    "serial": "one after the other",
    "apart": "each network on cores of its own",
    "shared": "all at once, with equal shares of the cores",
}
"""Descriptions of the naive schedules."""


@output.command
def coplan(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Networks that run together: .onnx files, or zoo:NAME.")],
    objective: Annotated[
        str,
        typer.Option("--objective", metavar="latency|throughput", help="Make the greatest latency small, or the sum of 1 / latency large."),
    ] = "latency",
    times: Annotated[
        str | None,
        typer.Option("--times", metavar="N,N,...", help="How often each network runs, one run after the other. Default: once."),
    ] = None,
    chain: Annotated[
        bool, typer.Option("--chain", help="Each network waits for the one before it. Default: they run beside each other.")
    ] = False,
    cores: CoresOption = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.001, max=600, help="How long to search for a better schedule.")] = 1.5,
    file: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.svg|png", help="Draw the timeline into this file.")] = None,
    batch: sources.BatchOption = None,
    seq: sources.SeqOption = None,
    search: sources.SearchOption = "quick",
    profile: Annotated[str | None, typer.Option("--profile", help="Name of a profile (default, container, hybrid) or a TOML file.")] = None,
    as_json: output.Json = False,
) -> None:
    """Plan networks that run together, without running them.

    Prints which layer groups run on which cores, the predicted latency or throughput, and the gain over schedules without a plan.
    """
    from aspen_mp import config
    from aspen_mp.control.planning import local_rates
    from aspen_mp.planner.coschedule.together import together
    from aspen_mp.planner.cost import op_cost
    from aspen_mp.tools import schedule_plot

    wanted, counts = _objective(objective), _counts(times, len(models))
    if file is not None:
        schedule_plot.check()
    chosen = config.load(profile)
    measured = local_rates.predicting(config.cache_folder(chosen))
    op_cost.use(local_rates.planning()[0])
    machine, planned = machines(cores, chosen, measured)
    plans: dict[str, Plan] = {}
    for model in dict.fromkeys(models):
        with output.progress(f"planning {model}", quiet=as_json):
            plans[model] = _plan(model, planned, batch, seq, search)
    op_cost.use(measured)
    anew = {model: plan.predicted_anew() for model, plan in plans.items()}
    runs = _runs(models, anew, counts, chain)
    with output.progress("searching", quiet=as_json):
        try:
            found = together(runs, machine, measured, wanted, time.monotonic() + seconds)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="MODEL") from None
    report = _report(found, machine)
    if file is not None:
        schedule_plot.draw(found, file)
        report["file"] = str(file)
    if as_json:
        output.emit_json(report)
    else:
        _show(report)


def _objective(text: str) -> Objective:
    from aspen_mp.planner.coschedule.problem import OBJECTIVES

    for known in OBJECTIVES:
        if text == known:
            return known
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(OBJECTIVES)}", param_hint="--objective")


def _counts(text: str | None, models: int) -> list[int]:
    """What --times says."""
    if text is None:
        return [1] * models
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != models or min(found) < 1:
        raise typer.BadParameter(
            f"{text!r}: give a number of runs for each of the {count(models, 'model')}, like 3,1", param_hint="--times"
        )
    return found


def _plan(model: str, machine: Machine, batch: int | None, seq: int | None, search: str) -> Plan:
    from aspen_mp.control.planning import local_rates
    from aspen_mp.planner import api

    source = sources.resolve(model, batch, seq)
    opened = api.load(source.model if isinstance(source.model, str) else source.model.SerializeToString())
    request = api.PlanRequest(planning=sources.planning(search).checked(), instructions=local_rates.instructions())
    result = api.plan_stage(opened, [bindings_of(opened, {}, batch, seq)], workers=len(machine), machine=machine, request=request)
    if result.plan is None or result.more:
        raise UnsupportedModelError(
            f"{source.label} is planned in stages while it runs, and only networks of one stage are planned together. "
            "Leave it out, or give it inputs of fixed shapes"
        )
    return result.plan


def _runs(models: list[str], plans: dict[str, Plan], counts: list[int], chain: bool) -> list[Run]:
    from aspen_mp.planner.coschedule.together import Run

    after = [(k - 1,) if chain and k else () for k in range(len(models))]
    return [Run(model, plans[model], n, after=before) for model, n, before in zip(models, counts, after, strict=True)]


def _report(found: Together, machine: Machine) -> dict[str, Any]:
    from aspen_mp.planner.coschedule.profile import table

    problem, scale = found.problem, 1e-6 if found.objective == "latency" else 1e9
    value = found.incumbent.value

    def plain(schedule: Schedule) -> float:
        return problem.value(schedule.ends, found.objective) * scale

    naive = {name: plain(schedule) for name, schedule in found.naive.items()}
    best = (min if found.objective == "latency" else max)(naive, key=lambda name: naive[name])
    mine = value * scale
    gains = {name: 1 - mine / other if found.objective == "latency" else mine / other - 1 for name, other in naive.items()}
    return {
        "machine": machine.describe(),
        "objective": found.objective,
        "value": mine,
        "bound": found.incumbent.bound * scale,
        "proven": found.incumbent.proven,
        "settled": found.incumbent.settled,
        "origin": found.incumbent.origin,
        "makespan_ms": found.schedule.makespan * 1e-6,
        "naive": [{"name": name, "value": naive[name], "gain": gains[name], "best": name == best} for name in naive],
        "sets": [{"name": each.name, "cores": list(each.cores)} for each in problem.sets],
        "networks": [
            {
                "name": each.network.name,
                "latency_ms": {s.name: float(ns) * 1e-6 for s, ns in zip(problem.sets, each.latency, strict=True)},
                "groups": table(each, problem.sets),
            }
            for each in {id(each): each for each in found.profiles}.values()
        ],
        "jobs": [
            {"network": job.network.name, "after": list(job.after), "end_ms": end * 1e-6}
            for job, end in zip(problem.jobs, found.schedule.ends, strict=True)
        ],
        "steps": [
            {
                "job": step.job,
                "group": step.group,
                "set": step.set,
                "start_ms": step.start * 1e-6,
                "end_ms": step.end * 1e-6,
                "slowdown": (step.end - step.start) / float(problem.jobs[step.job].network.ns[step.group, step.set]),
            }
            for step in found.schedule.steps
        ],
    }


def _show(report: dict[str, Any]) -> None:
    rows = []
    networks = {each["name"]: each for each in report["networks"]}
    for step in sorted(report["steps"], key=lambda step: (step["start_ms"], step["job"])):
        name = report["jobs"][step["job"]]["network"]
        group = networks[name]["groups"][step["group"]]
        cores = report["sets"][step["set"]]["name"]
        asked = group["gbytes_per_s"][cores]
        times = f"{step['start_ms']:.3f}", f"{step['end_ms']:.3f}", f"{step['slowdown']:.2f}"
        rows.append([f"{step['job'] + 1} {name}", step["group"] + 1, group["name"], cores, *times, f"{asked:.1f}"])
    output.table("", ["job", "group", "layers", "cores", "start ms", "end ms", "slowdown", "GB/s alone"], rows, right=(1, 4, 5, 6, 7))
    output.out.print()
    latency = report["objective"] == "latency"
    unit = "ms" if latency else "runs/s"
    proof = (
        "proven: no schedule of this model is better" if report["proven"] else f"no schedule is better than {report['bound']:.3f} {unit}"
    )
    says = {"latency": "greatest latency", "throughput": "sum of 1 / latency"}[report["objective"]]
    origin = "" if report["origin"] == "search" else f"; nothing beats {NAIVE[report['origin']]}"
    gain = "less" if latency else "more"
    lines = [(NAIVE[x["name"]], f"{x['value']:.3f} {unit}; the plan is {abs(x['gain']):.1%} {gain}") for x in report["naive"]]
    output.facts(
        [
            ("machine", report["machine"]),
            ("predicted", f"{says} {report['value']:.3f} {unit}{origin}"),
            ("bound", proof),
            *lines,
            *([("written", report["file"])] if "file" in report else []),
        ]
    )
