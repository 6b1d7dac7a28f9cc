"""`aspen-mp bench render`: documents from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aspen_mp.bench.cli import findings
from aspen_mp.cli import output


@output.command
def render(
    check: Annotated[bool, typer.Option("--check", help="Change nothing. Exit status 1 if a file is out of date.")] = False,
    root: Annotated[Path, typer.Option("--root", metavar="FOLDER", help="The repository. Default: the working directory.")] = Path(),
    as_json: output.Json = False,
) -> None:
    """Make the tables and charts of docs/benchmarks and README.md from the records in bench/results.

    `aspen-mp bench peers resnet50 --output bench/results` writes such a record. Needs matplotlib.
    """
    findings.need_matplotlib(Path("docs"))
    from aspen_mp.bench.render import render as renderer

    if not (root / renderer.RESULTS).is_dir():
        raise typer.BadParameter(f"{root.resolve()} has no {renderer.RESULTS}. Give the folder of the repository", param_hint="--root")
    files = renderer.stale(root) if check else renderer.write(root)
    if as_json:
        output.emit_json({"stale" if check else "changed": [str(file) for file in files]})
    else:
        for file in files:
            output.out.print(f"{file} {'is out of date' if check else 'was made anew'}")
        if not files:
            output.out.print("Every page and chart is up to date.")
    if check and files:
        raise typer.Exit(1)
