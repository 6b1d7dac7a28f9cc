"""`aspen-mp bench`: several networks at once, beside other runtimes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aspen_mp.bench.coexecution.deadlines import DeadlinesResult
    from aspen_mp.bench.coexecution.priority import SceneResult
    from aspen_mp.bench.coexecution.together import Group
    from aspen_mp.bench.figures.seats import Schedule
    from aspen_mp.bench.peers.cases import Case

Crews = Annotated[
    str | None,
    typer.Option("--engines", metavar="A,B", help="Engines to measure. Default: aspen-mp, and those of onnxruntime and openvino."),
]


class _Counted(Protocol):
    """Fields of all results: rounds that do not count, and those that count although other processes ran."""

    rejected: int
    disturbed: int


def _left_out(result: _Counted) -> str:
    """A note about rounds that do not count, or should not."""
    if not result.rejected and not result.disturbed:
        return ""
    return f"rounds left out because other processes ran: {result.rejected}; disturbed: {result.disturbed}"


def _schedule(rounds: int, seconds: float, runs: int = 1) -> Schedule:
    """How much is measured: as many rounds again are there to replace those that other processes disturbed, which are long here."""
    from aspen_mp.bench.figures.seats import Schedule

    return Schedule(rounds=rounds, spare=rounds, seconds=seconds, runs=runs)


def _engines(text: str | None, scheduled: bool = False) -> tuple[list[str], list[str]]:
    """Those to measure, and those that are not installed."""
    from aspen_mp.bench.coexecution import crew

    try:
        return crew.wanted(text.split(",") if text else None, scheduled)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--engines") from None


@benchmark()
def together(
    run: Run,
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Networks of the zoo that run at once. Default: two pairs.")
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option("--ratio", metavar="3,1", help="Requests of each network in a run. Default: balanced by their times alone."),
    ] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Measure every pair of the networks.")] = False,
    cores: options.Cores = None,
    engines: Crews = None,
    rounds: options.Rounds = 5,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Run several networks at once, one after the other, and each alone, beside other runtimes.

    Each network has a client that runs its requests one after the other. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.coexecution import together as bench

    (cpus,) = options.core_sets(None, cores)
    groups = _groups(networks, pairs, options.counts(ratio, "--ratio") if ratio else None)
    chosen, absent = _engines(engines)
    schedule = _schedule(rounds, seconds, runs)
    with run.saying() as say:
        result = bench.measure(groups, chosen, cpus, schedule, say)
    result.absent = absent
    run.draw(bench.plot, result)
    shown = [_group(group) for group in result.groups]
    run.end(result, shown, absent, disturbed=sum(group.disturbed for group in result.groups))


def _groups(networks: Sequence[str] | None, pairs: bool, counts: list[int] | None) -> list[tuple[list[Case], Sequence[int] | None]]:
    """The networks that run at once, and how many requests of each."""
    import itertools

    from aspen_mp.bench.coexecution.together import GROUPS

    if networks:
        cases = options.cases([*networks])
        if len(cases) < 2 or len({case.label for case in cases}) < len(cases):
            raise typer.BadParameter("give at least two networks, each once", param_hint="NETWORK")
        members = [[*pair] for pair in itertools.combinations(cases, 2)] if pairs else [cases]
        groups: list[tuple[list[Case], Sequence[int] | None]] = [(group, counts) for group in members]
    else:
        groups = [(options.cases([*group]), counts or own) for group, own in GROUPS]
    if counts and len(counts) != len(groups[0][0]):
        raise typer.BadParameter(f"give a number for each of the {len(groups[0][0])} networks", param_hint="--ratio")
    return groups


def _group(group: Group) -> findings.Shown:
    columns = ["engine", "at once ms", "in turn ms", "ratio", "its / ours", *(f"{network} slower by" for network in group.networks)]
    rows = [
        [
            *(entry.label, f"{entry.ms:.2f}", f"{entry.turns_ms:.2f}", f"{entry.ratio:.3f}"),
            "" if entry.of_ours is None else f"{entry.of_ours:.3f}",
            *(f"{share.slowdown:.2f}" for share in entry.shares),
        ]
        for entry in group.entries
    ]
    return findings.Shown(group.name, columns, rows, group.verdict, _left_out(group), group.failed)


@benchmark()
def priority(
    run: Run,
    urgent: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="Network of the urgent requests. Default: two scenes, with --load's networks.")
    ] = None,
    load: Annotated[str, typer.Option("--load", metavar="NETWORK", help="Network that saturates the machine.")] = "vgg16",
    every: Annotated[float, typer.Option("--every", min=0.1, help="Milliseconds from one urgent request to the next.")] = 30.0,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, max=32, help="Requests of the load in flight.")] = 3,
    cores: options.Cores = None,
    engines: Crews = None,
    rounds: options.Rounds = 2,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each part of a round, in seconds.")] = 1.5,
) -> None:
    """Measure urgent requests on a fixed schedule beside a load that saturates the machine, beside other runtimes.

    Urgent requests have the priority "high", the load has "low". Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.coexecution import priority as bench

    (cpus,) = options.core_sets(None, cores)
    scenes = [*bench.SCENES]
    if urgent:
        urgent, load = (case.label for case in options.cases([urgent, load]))
        scenes = [bench.Scene(urgent, every, load, in_flight)]
    chosen, absent = _engines(engines)
    schedule = _schedule(rounds, seconds)
    result = bench.PriorityResult(cpus, absent=absent)
    with run.saying() as say:
        for scene in scenes:
            found, settings = bench.measure(scene, chosen, cpus, schedule, say)
            result.scenes.append(found)
            result.settings |= settings
    run.draw(bench.plot, result)
    shown = [_scene(scene) for scene in result.scenes]
    run.end(result, shown, absent, disturbed=sum(scene.disturbed for scene in result.scenes))


def _scene(scene: SceneResult) -> findings.Shown:
    columns = ["engine", "alone ms", "p99", "beside ms", "p99", "p50 by alone", "p99 by alone", "load/s alone", "beside", "keeps"]
    rows = [
        [
            *(e.label, f"{e.alone.at(0.5):.2f}", f"{e.alone.at(0.99):.2f}", f"{e.beside.at(0.5):.2f}", f"{e.beside.at(0.99):.2f}"),
            *(f"{e.p50:.2f}", f"{e.p99:.2f}", f"{median(e.load_alone_per_s):.2f}", f"{median(e.load_beside_per_s):.2f}", f"{e.kept:.2f}"),
        ]
        for e in scene.entries
    ]
    return findings.Shown(scene.name, columns, rows, scene.verdict, _left_out(scene), scene.failed)


@benchmark()
def deadlines(
    run: Run,
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Networks of the mix. Default: mobilenet_v2, resnet50, bert_base@seq=32.")
    ] = None,
    loads: Annotated[
        str, typer.Option("--loads", metavar="0.5,0.9", help="Loads; 1 is what aspen-mp can just serve.")
    ] = "0.5,0.7,0.9,1.1,1.5",
    slack: Annotated[float, typer.Option("--slack", min=1.0, help="A deadline is this multiple of the network's time alone.")] = 5.0,
    cores: options.Cores = None,
    engines: Crews = None,
    rounds: options.Rounds = 1,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each load in each round, in seconds.")] = 4.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the times at which requests come.")] = 0,
) -> None:
    """Measure how many requests meet their deadlines under more and more load, beside other runtimes.

    Requests come at random times. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.coexecution import deadlines as bench

    (cpus,) = options.core_sets(None, cores)
    wanted = options.floats(loads, "--loads")
    if min(wanted) <= 0:
        raise typer.BadParameter(f"{loads!r} has a load that is not above 0. Write it like 0.5,0.9", param_hint="--loads")
    cases = options.cases(networks or [*bench.NETWORKS])
    chosen, absent = _engines(engines)
    schedule = _schedule(rounds, seconds)
    with run.saying() as say:
        result = bench.measure(cases, wanted, slack, seed, chosen, cpus, schedule, say)
    result.absent = absent
    run.draw(bench.plot, result)
    shown = [_curves(result)]
    run.end(result, shown, absent, disturbed=result.disturbed)


def _curves(result: DeadlinesResult) -> findings.Shown:
    rows = [
        [
            *(curve.label, f"{p.load:g}", p.requests, p.refused, f"{p.share:.1%}", f"{p.kept:.1%}"),
            *(f"{p.latency.p50_ms:.1f}", f"{p.latency.p99_ms:.1f}", f"{p.refusal.p99_ms:.2f}" if p.refused else ""),
        ]
        for curve in result.curves
        for p in curve.points
    ]
    columns = ["engine", "load", "requests", "refused", "in time", "of those taken", "p50 ms", "p99 ms", "refused in, p99 ms"]
    return findings.Shown(result.name, columns, rows, result.verdict, _left_out(result), result.failed)


@benchmark()
def dynamic(
    run: Run,
    phases: Annotated[
        list[str] | None, typer.Argument(metavar="A+B…", help="The networks of each phase. Default: five phases of four networks.")
    ] = None,
    cores: options.Cores = None,
    engines: Crews = None,
    rounds: options.Rounds = 1,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Length of each phase, in seconds.")] = 10.0,
) -> None:
    """Measure latencies while networks come and go, beside other runtimes.

    Each network at work has a client that runs one request after the other. The engine aspen-mp-scheduled follows schedules of the networks
    at work. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.coexecution import dynamic as bench

    (cpus,) = options.core_sets(None, cores)
    stages = [options.cases(phase.split("+")) for phase in phases or bench.PHASES]
    chosen, absent = _engines(engines, scheduled=True)
    with run.saying() as say:
        result = bench.measure(stages, chosen, cpus, _schedule(rounds, seconds), say)
    result.absent = absent
    run.draw(bench.plot, result)
    rows = [
        [course.label, line.phase + 1, line.network, f"{line.per_s:.1f}", f"{line.latency.p50_ms:.1f}", f"{line.latency.p99_ms:.1f}"]
        for course in result.courses
        for line in course.lines
    ]
    columns = ["engine", "phase", "network", "requests/s", "p50 ms", "p99 ms"]
    shown = [findings.Shown("networks that come and go", columns, rows, result.verdict, _left_out(result), result.failed)]
    run.end(result, shown, absent, disturbed=result.disturbed)


@benchmark()
def contention(
    run: Run,
    size: Annotated[int, typer.Option("--size", min=64, help="Side of the networks' products, a multiple of 64.")] = 512,
    cores: options.Cores = None,
    rounds: options.Rounds = 5,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each pair in each round, in seconds.")] = 0.4,
    runs: options.Runs = 3,
) -> None:
    """Measure what phases of arithmetic and of memory take from each other, on two cores.

    Exit status 1 if it failed.
    """
    from aspen_mp.bench.coexecution import contention as bench
    from aspen_mp.bench.models.synthetic.phases import KINDS

    (cpus,) = options.core_sets(None, cores)
    if size % 64:
        raise typer.BadParameter("give a multiple of 64", param_hint="--size")
    if len(cpus) < 2:
        raise typer.BadParameter("two CPUs are needed", param_hint="--cores")
    with run.saying() as say:
        result = bench.measure(cpus, size, _schedule(rounds, seconds, runs), say)
    run.draw(bench.plot, result)
    kinds = [kind.kind for kind in result.kinds]
    rows = [
        [
            f"{k.kind}: {KINDS[k.kind]}",
            f"{k.ms:.2f}",
            f"{k.gb_s:.1f}",
            *(f"{result.slowdown(k.kind, beside):.2f}" for beside in kinds),
        ]
        for k in result.kinds
    ]
    shown = [
        findings.Shown("phases", ["", "ms", "GB/s", *(f"beside {kind}" for kind in kinds)], rows, "", "", result.failed),
        findings.Shown("networks", ["", "ms"], [[m.way, f"{m.ms:.2f}"] for m in result.meetings], result.verdict, _left_out(result)),
    ]
    run.end(result, shown, disturbed=result.disturbed)


@benchmark(picture=False, timed=False)
def coplans(
    run: Run,
    mixes: Annotated[
        list[str] | None,
        typer.Argument(metavar="A+B…", help="Networks that run together; 3*A runs A three times in a row. Default: four mixes."),
    ] = None,
    cores: Annotated[
        list[str] | None, typer.Option("--cores", metavar="8P+8E", help="A machine, as aspen-mp plan has it. Default: three machines.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="How long to search for the plan of each mix.")] = 1.5,
) -> None:
    """Predict what planning several networks together gains, on machines that need not be here.

    Nothing is measured: rates are those of a built-in kind of core.
    """
    from aspen_mp.bench.coexecution import coplans as bench

    try:
        with run.saying() as say:
            result = bench.predict(mixes or bench.MIXES, cores or bench.CORES, seconds, say)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    columns = ["networks", "cores", "one after the other ms", "plan ms", "bound ms", "less than that", "less than the best naive one"]
    rows = [
        [
            *(gain.name, gain.cores, f"{gain.naive_ms[bench.SERIAL]:.2f}", f"{gain.ms:.2f}", f"{gain.bound_ms:.2f}"),
            *(f"{gain.of_serial:.1%}", f"{gain.of_best:.1%}"),
        ]
        for gain in result.gains
    ]
    run.end(result, [findings.Shown("predicted", columns, rows, result.verdict)])
