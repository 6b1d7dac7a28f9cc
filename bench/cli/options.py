"""Options that several benchmarks have, and what their values mean."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.cli import options

if TYPE_CHECKING:
    from aspen_mp.bench.figures.seats import Schedule
    from aspen_mp.bench.peers.cases import Case

Network = Annotated[
    str, typer.Argument(metavar="NETWORK", help="A network of the zoo, with sizes and options if wanted: resnet50@batch=8.")
]
Networks = Annotated[
    list[str] | None,
    typer.Argument(metavar="NETWORK…", help="Networks of the zoo, such as resnet50@batch=8. Default: resnet50 and bert_base."),
]
Cpus = Annotated[str | None, typer.Option("--cores", metavar="0,2-3", help="CPUs to use. Default: all that this process may use.")]
Cores = Annotated[str | None, typer.Option("--cores", metavar="0,2-3", help="CPUs to use. Default: all that this process may use.")]
Engines = Annotated[
    str | None,
    typer.Option("--engines", metavar="A,B", help="Engines to measure. Default: aspen-mp, onnxruntime and openvino, if installed."),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds without disturbance.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.0, help="Each engine runs at least this long in a round.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Each engine runs at least this number of requests in a round.")]


def cases(networks: list[str] | None, batch: int = 1, seq: int = 128) -> list[Case]:
    """The networks of the command line, with their sizes and options; ResNet-50 and BERT where it names none. `batch`, `seq`: sizes of
    those that name none."""
    from aspen_mp.bench.peers import cases

    try:
        return [cases.parse(text, batch, seq) for text in networks or ("resnet50", "bert_base")]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NETWORK") from None


def core_sets(threads: str | None, cores: str | None) -> list[list[int]]:
    """The CPUs of each run: from --threads the first so many of --cores, or of those that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    cpus = options.cpus(cores) or allowed
    counts = [len(cpus)] if threads is None else integers(threads, "--threads", "1,2")
    if not set(cpus) <= set(allowed):
        raise typer.BadParameter(f"this process may use only CPUs {', '.join(map(str, allowed))}", param_hint="--cores")
    if min(counts) < 1 or max(counts) > len(cpus):
        raise typer.BadParameter(f"give numbers from 1 to {len(cpus)}, so that each thread has a core", param_hint="--threads")
    return [cpus[:n] for n in counts]


def integers(text: str, hint: str, example: str) -> list[int]:
    """Numbers between commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers. Write it like {example}", param_hint=hint) from None


def counts(text: str, hint: str, least: int = 1) -> list[int]:
    """Numbers from `least` on, between commas."""
    found = integers(text, hint, f"{least},{least + 1}")
    if min(found) < least:
        raise typer.BadParameter(f"{text!r} has a number below {least}. Give numbers from {least} on", param_hint=hint)
    return found


def floats(text: str, hint: str) -> list[float]:
    """Numbers between commas, which need not be whole."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers. Write it like 1,0.5", param_hint=hint) from None


def engines(text: str | None, peers: bool = True) -> tuple[list[str], list[str]]:
    """Those to measure, and those that are not installed. `peers`: whether others than aspen-mp are measured where none is named."""
    from aspen_mp.bench.figures.seats import wanted_engines

    try:
        return wanted_engines(text.split(",") if text else None, peers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--engines") from None


def schedule(rounds: int, seconds: float, runs: int) -> Schedule:
    """How much is measured: twice as many rounds are there to replace those that other processes disturbed."""
    from aspen_mp.bench.figures.seats import Schedule

    return Schedule(rounds=rounds, spare=2 * rounds, seconds=seconds, runs=runs)
