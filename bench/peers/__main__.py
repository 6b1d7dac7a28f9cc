"""`python -m aspen_mp.bench.peers NETWORK… --threads N`: aspen-mp beside other runtimes, interleaved round by round on the same cores."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from aspen_mp.bench import models

from .engines import ENGINES
from .rounds import OURS, Case, CaseResult, Plan, measure


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m aspen_mp.bench.peers", description=__doc__)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help=f"of the zoo: {', '.join(models.names())}")
    parser.add_argument("--threads", type=int, default=0, help="cores for each engine (default: all that may be used)")
    parser.add_argument("--cores", help="exactly these cores, such as 0,2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=128, help="tokens, for networks that read text")
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"default: {','.join(ENGINES)}, as far as installed")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that must count (default: 7)")
    parser.add_argument("--seconds", type=float, default=0.3, help="least length of a turn (default: 0.3)")
    parser.add_argument("--json", metavar="FILE", help="write the results there as JSON; - for standard output, instead of the table")
    args = parser.parse_args(argv)
    unknown = [n for n in args.networks if n not in models.names(extra=True)] + [e for e in args.engines.split(",") if e not in ENGINES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    allowed = sorted(os.sched_getaffinity(0))
    if args.cores:
        try:
            args.cores = [int(core) for core in args.cores.split(",")]
        except ValueError:
            parser.error(f"--cores {args.cores}: numbers separated by commas")
    else:
        args.cores = allowed[: args.threads or len(allowed)]
    if (args.threads and args.threads != len(args.cores)) or not set(args.cores) <= set(allowed):
        parser.error(f"{args.threads or len(args.cores)} threads on cores {args.cores}, but this process may use cores {allowed}")
    if args.rounds < 1:
        parser.error("--rounds: at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    wanted = args.engines.split(",")
    engines = [name for name in wanted if ENGINES[name].installed]
    absent = [name for name in wanted if name not in engines]
    plan = Plan(rounds=args.rounds, spare=2 * args.rounds, seconds=args.seconds)
    results: list[CaseResult] = []
    log = Console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=log, transient=True) as progress:
        task = progress.add_task("", total=None)
        for network in args.networks:
            case = Case(network, args.batch, args.seq)
            results.append(measure(case, engines, args.cores, plan, lambda text: progress.update(task, description=text)))
    report = {"machine": machine(), "absent": absent, "cases": [asdict(r) for r in results]}
    if args.json and args.json != "-":
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    if args.json == "-":
        print(json.dumps(report, indent=2))
    else:
        show(results, absent, Console())
    return 1 if any(r.failed for r in results) else 0


def machine() -> dict[str, Any]:
    name = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ""
    )
    return {"processor": name, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}


def show(results: list[CaseResult], absent: list[str], console: Console) -> None:
    threads = results[0].threads
    table = Table(title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.title = f"milliseconds, {threads} {'thread' if threads == 1 else 'threads'}"
    for column in ("network", "engine"):
        table.add_column(column, no_wrap=True)
    for column in ("median", "min", "GMAC/s", "ratio", "by min", "differs"):
        table.add_column(column, justify="right", no_wrap=True)
    for case in results:
        for index, engine in enumerate(case.engines):
            table.add_row(
                case.case if index == 0 else "",
                engine.engine,
                f"{engine.median:.2f}",
                f"{engine.min:.2f}",
                "–" if case.macs is None else f"{case.macs / engine.min / 1e6:.1f}",
                "" if engine.ratio_median is None else f"{engine.ratio_median:.3f}",
                "" if engine.ratio_min is None else f"{engine.ratio_min:.3f}",
                "" if engine.difference is None else f"{engine.difference:.1e}",
                end_section=index == len(case.engines) - 1,
            )
    console.print(table)
    console.print(f"ratio: {OURS}'s time by the other's, median over rounds. differs: outputs, by the largest value", style="dim")
    for settings in sorted({f"{e.engine} {e.version}: {e.settings}" for case in results for e in case.engines}):
        console.print(settings, style="dim")
    for name in absent:
        console.print(f"{name}: not measured, it is not installed", style="yellow")
    for case in results:
        if case.rejected or case.disturbed:
            note = f"rounds left out because other processes ran: {case.rejected}"
            note += f", {case.disturbed} of the {case.rounds} counted were disturbed too" if case.disturbed else ""
            console.print(f"{case.case}: {note}", style="yellow")
        for message in case.failed.values():
            console.print(f"{case.case}: {message}", style="red", highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(main())
