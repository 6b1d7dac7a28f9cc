"""The comparison's result and a table of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .rounds import OURS, CaseResult, EngineResult


@dataclass(slots=True)
class PeersResult:
    """What `aspen-mp bench peers` has found. `absent`: engines that are not installed."""

    absent: list[str]
    cases: list[CaseResult]


def show(results: Sequence[CaseResult], absent: Sequence[str], console: Console) -> None:
    """Prints the table, the settings of each engine, and what went wrong."""
    table = Table(title="milliseconds", title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("network", "engine"):
        table.add_column(column, no_wrap=True)
    rounded = any(engine.error is not None for case in results for engine in case.engines)
    judged = any(engine.accuracy is not None for case in results for engine in case.engines)
    more = [*["error"] * rounded, *["float64", "top-1", "as ORT"] * judged]
    for column in ("threads", "median", "min", "GMAC/s", "ratio", "by min", "differs", *more):
        table.add_column(column, justify="right", no_wrap=True)
    for case in results:
        for index, engine in enumerate(case.engines):
            table.add_row(*_row(case, engine, rounded, judged, first=index == 0), end_section=index == len(case.engines) - 1)
    console.print(table)
    console.print(
        f"ratio: {OURS}'s time by the other's, median over rounds; bold: of the fastest. differs: outputs, by the largest value"
        + ("; error: the same beside float32" if rounded else "")
        + ("; float64: error of the worst input, beside the network in float64; top-1: rows that name its class" if judged else "")
        + ("; as ORT: rows that name onnxruntime's class" if judged else ""),
        style="dim",
        soft_wrap=True,
    )
    for case in results:
        for engine in case.engines:
            if engine.counters is not None:
                line = f"{case.case}, {case.threads} {engine.engine}: {_spent(engine.counters)}"
                console.print(line, style="dim", highlight=False, soft_wrap=True)
    for settings in sorted({f"{e.engine} {e.version}: {e.settings}" for case in results for e in case.engines}):
        console.print(settings, style="dim", highlight=False, soft_wrap=True)
    for name in absent:
        console.print(f"{name}: not measured, it is not installed", style="yellow")
    for case in results:
        label = f"{case.case}, {case.threads} {'thread' if case.threads == 1 else 'threads'}"
        if case.rejected or case.disturbed:
            note = f"rounds left out because other processes ran: {case.rejected}"
            note += f", {case.disturbed} of the {case.rounds} counted were disturbed too" if case.disturbed else ""
            console.print(f"{label}: {note}", style="yellow", soft_wrap=True)
        for message in case.failed.values():
            console.print(f"{label}: {message}", style="red", highlight=False, markup=False, soft_wrap=True)


def _row(case: CaseResult, engine: EngineResult, rounded: bool, judged: bool, *, first: bool) -> list[str]:
    ratio = "" if engine.ratio_median is None else f"{engine.ratio_median:.3f}"
    return [
        case.case if first else "",
        engine.engine,
        str(case.threads),
        f"{engine.median:.2f}",
        f"{engine.min:.2f}",
        "–" if case.macs is None else f"{case.macs / engine.min / 1e6:.1f}",
        f"[bold]{ratio}[/bold]" if engine is case.best_peer else ratio,
        "" if engine.ratio_min is None else f"{engine.ratio_min:.3f}",
        "" if engine.difference is None else f"{engine.difference:.1e}",
        *["" if engine.error is None else f"{engine.error:.1e}"] * rounded,
        *_accuracy(engine) * judged,
    ]


def _accuracy(engine: EngineResult) -> list[str]:
    found = engine.accuracy
    if found is None:
        return ["", "", ""]
    shares = ["" if share is None else f"{share:.0%}" for share in (found.top1, found.same)]
    return ["" if found.error is None else f"{found.error:.1e}", *shares]


def _spent(c: dict[str, float]) -> str:
    shares = f"kernels {c['kernels']:.1%}, scheduling {c['scheduling']:.2%}, idle {c['idle']:.1%} of the cores' time"
    return f"{shares}; {c['tiles']:.0f} tiles a run, {c['steals']:.0f} stolen"
