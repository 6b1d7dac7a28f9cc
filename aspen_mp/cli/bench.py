"""`aspen-mp bench`: whole networks beside other runtimes, and kernels beside the machine's limits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp.cli import output
from aspen_mp.cli.launch import _cpus

if TYPE_CHECKING:
    from aspen_mp.bench.peers.rounds import CaseResult

app = typer.Typer(help="Measure: whole networks beside other runtimes, kernels beside the machine's limits.", no_args_is_help=True)

OutputOption = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write everything as JSON to this file.")]


@app.command("peers")
@output.command
def peers(
    networks: Annotated[
        list[str], typer.Argument(metavar="NETWORK…", help="Of the zoo, with sizes and options: resnet50@batch=8, bert_base@seq=480.")
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
    """Measure networks on aspen-mp and other runtimes, interleaved round by round on the same cores, all in float32.

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
    cpus = _cpus(cores) or allowed
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
