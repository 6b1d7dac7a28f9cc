"""What a benchmark has found: as JSON, in a file and on the screen, and as an exit status."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from aspen_mp.cli import output

if TYPE_CHECKING:
    from aspen_mp.bench.peers.cases import Case

Say = Callable[[str], None]
Found = TypeVar("Found")


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
        raise typer.BadParameter("drawing needs matplotlib: pip install 'aspen-mp[plot]'", param_hint="--plot")


def each(cases: Iterable[Case], measure: Callable[[Case, Say], Found], quiet: bool) -> list[Found]:
    """Measures one network after the other."""
    with output.progress("bench", quiet=quiet) as update:
        return [measure(case, lambda text: update(text, 0, 0)) for case in cases]


def write(document: Any, file: Path | None, as_json: bool) -> None:
    """Writes it to the file and to standard output, where they are asked for."""
    if file is not None:
        file.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    if as_json:
        output.emit_json(document)


def write_all(documents: Sequence[dict[str, Any]], file: Path | None, as_json: bool) -> None:
    """`write` of several networks' documents as one, under one machine."""
    networks = [{key: value for key, value in document.items() if key != "machine"} for document in documents]
    write({"machine": documents[0]["machine"], "networks": networks}, file, as_json)


def show(results: Iterable[Shown], absent: Iterable[str], quiet: bool) -> None:
    """Prints results, unless `quiet`, and the engines that are not installed. Exit status 1 if an engine failed."""
    results = list(results)
    if not quiet:
        for result in results:
            output.table(result.title, result.columns, result.rows, right=range(1, len(result.columns)))
            verdict(result.verdict)
            if result.note:
                output.notice(result.note)
        for name in absent:
            output.out.print(f"{name}: not measured, it is not installed", style="yellow")
    failed = {label: text for result in results for label, text in result.failed.items()}
    for label, text in failed.items():
        output.notice(f"{label}: {text}")
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
