"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from aspen_mp.client.arguments import MOST_CPU, MOST_WORKERS
from aspen_mp.control.wire import run_directory
from aspen_mp.errors import AspenError
from aspen_mp.shm.words import count
from aspen_mp.workers import topology


def examples(*calls: str) -> str:
    """The text below the help of a command: how it is called, one example a line. `calls`: without the name of the program."""
    return "\n\n".join(f"{'Or' if k else 'Example'}: aspen-mp {call}" for k, call in enumerate(calls))


class Command(TyperCommand):
    """A command, of which some options may stand without their value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives those an empty value where another option follows, or nothing."""
        known = {name for param in self.params if str(getattr(param, "metavar", "")).startswith("[") for name in param.opts}
        full: list[str] = []
        for k, word in enumerate(args):
            bare = word in known and (k + 1 == len(args) or args[k + 1].startswith("-"))
            full.append(f"{word}=" if bare else word)
        return super().parse_args(ctx, full)


def named(name: str | None) -> str | None:
    """The value of a --name, checked."""
    if name is not None:
        try:
            run_directory.check_name(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return name


def running(name: str | None) -> str:
    """The value of a --name, checked; where it is left out, the only runtime that there is, or the one that is called "default"."""
    if name:
        return named(name) or name
    try:
        alive = [other for other, lives in run_directory.names().items() if lives]
    except (AspenError, OSError):  # whoever connects next says what is wrong
        alive = []
    if len(alive) < 2 or DEFAULT in alive:
        return alive[0] if len(alive) == 1 else DEFAULT
    raise typer.BadParameter(f"{count(len(alive), 'runtime')} run ({', '.join(alive)}): say which one with --name", param_hint="--name")


DEFAULT = "default"
Running = Annotated[str, typer.Option("--name", help="Name of the runtime. Default: the only one that runs.", callback=running)]
Name = Annotated[str, typer.Option("--name", help="Name of the runtime.", callback=named)]
GRACE_S = 30.0
Grace = Annotated[
    float, typer.Option("--grace", metavar="SECONDS", min=0, max=1e9, help="How long requests in flight may take when the runtime stops.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, max=MOST_WORKERS, help="Number of workers of a private runtime. Default: one per core."),
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
        raise typer.BadParameter(f"{text!r} is not a list of CPUs. Write it like 0,2-3", param_hint="--cores")
    return found
