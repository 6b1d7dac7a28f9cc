"""The findings of a benchmark: as a record, on the screen, and as an exit status."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from aspen_mp.bench.records.record import Recorder, save
from aspen_mp.bench.records.record import text as as_text
from aspen_mp.cli import output


@dataclass(slots=True)
class Shown:
    """A network's result for people: a table of `columns`, all but the first aligned to the right, then `verdict`, then `note` on
    standard error. `failed`: why an engine failed, by its label."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    verdict: str
    note: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)


def need_matplotlib(plot: Path | None) -> None:
    """Wrong use, before anything is measured, where a picture is wanted that cannot be drawn."""
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("drawing needs matplotlib. Install it with: pip install matplotlib", param_hint="--plot")


class Recording:
    """Where a result goes: a file, standard output as JSON, or neither. Create it before the benchmark starts, which it watches.

    `benchmark`: the command's name. `timed`: False where the result does not depend on what else runs."""

    def __init__(self, benchmark: str, file: Path | None, as_json: bool, keep_disturbed: bool, *, timed: bool = True) -> None:
        self._file, self._as_json, self._keep = file, as_json, keep_disturbed
        self._recorder = Recorder(benchmark, sys.argv[1:], timed=timed) if file or as_json else None

    def write(self, result: Any, disturbed_rounds: int = 0) -> None:
        """Write the result as a record. A disturbed run is not recorded in a file unless `keep_disturbed`: exit status 1."""
        if self._recorder is None:
            return
        record = self._recorder.finish(result, disturbed_rounds)
        if self._as_json:
            output.out.file.write(as_text(record) + "\n")
        for reason in record.disturbed:
            output.notice(f"The run was disturbed. {reason}")
        if self._file is None:
            return
        if record.disturbed and not self._keep:
            output.notice(f"Nothing is recorded in {self._file}. Measure again on a quiet machine, or add --keep-disturbed.")
            raise typer.Exit(1)
        output.notice(f"The result is recorded in {save(record, self._file)}.")


def show(results: Sequence[Shown], absent: Iterable[str], quiet: bool) -> None:
    """Print results, unless `quiet`, and the engines that are not installed."""
    if quiet:
        return
    for result in results:
        output.table(result.title, result.columns, result.rows, right=range(1, len(result.columns)))
        verdict(result.verdict)
        if result.note:
            output.notice(result.note)
    for name in absent:
        output.out.print(f"{name}: not measured, it is not installed", style="yellow")


def fail(results: Iterable[Shown]) -> None:
    """Exit status 1 if an engine failed; say why."""
    failed = {label: why for result in results for label, why in result.failed.items()}
    for label, why in failed.items():
        output.notice(f"{label}: {why}")
    if failed:
        raise typer.Exit(1)


def verdict(text: str) -> None:
    """Prints a line however long it is."""
    output.out.print(text, highlight=False, soft_wrap=True)


def ends(lost: int, wrong: int, why: Iterable[str] = ()) -> None:
    """Exit status 1 if a request was lost or its result differs; says why."""
    for text in why:
        output.notice(f"lost: {text}")
    if lost + wrong:
        raise typer.Exit(1)
