"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from aspen_mp.arguments import MOST_CPU, MOST_WORKERS
from aspen_mp.control import rundir
from aspen_mp.workers import topology


def named(name: str | None) -> str | None:
    """The value of a --name, checked."""
    if name is not None:
        try:
            rundir.check_name(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return name


Name = Annotated[str, typer.Option("--name", help="Name of the runtime.", callback=named)]
GRACE_S = 30.0
Grace = Annotated[float, typer.Option("--grace", metavar="SECONDS", min=0, max=1e9, help="Seconds for what is in flight when it stops.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, max=MOST_WORKERS, help="Workers of a private runtime; default: one for each core."),
]


def cpus(text: str | None) -> list[int] | None:
    """The value of a --cores, checked."""
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            found += topology.parse_cpus(part)
    except ValueError:
        found = []
    if not 1 <= len(found) <= MOST_WORKERS or max(found) > MOST_CPU:
        raise typer.BadParameter(f"{text!r} is no list of CPUs such as 0,2-3", param_hint="--cores")
    return found
