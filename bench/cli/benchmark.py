"""Shared by the commands of `aspen-mp bench`: common options, progress, picture, tables, record, exit status."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from aspen_mp.bench.cli import findings
from aspen_mp.cli import output

if TYPE_CHECKING:
    from aspen_mp.bench.peers.cases import Case

Say = Callable[[str], None]
P = ParamSpec("P")
Found = TypeVar("Found")

PICTURE = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the result in this file. Needs matplotlib.")]
FILE = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="Record the result in this JSON file. If it is a folder: in MACHINE/BENCHMARK.json there."
    ),
]
KEEP = Annotated[bool, typer.Option("--keep-disturbed", help="Record the result even if other programs disturbed the run.")]
COMMON: dict[str, tuple[Any, Any]] = {
    "plot": (PICTURE, None),
    "file": (FILE, None),
    "keep_disturbed": (KEEP, False),
    "as_json": (output.Json, False),
}
"""Options that benchmarks have in common, with their defaults."""


class Run:
    """A command's run of its benchmark, named `benchmark`. It begins before anything is measured."""

    def __init__(self, benchmark: str, plot: Path | None, file: Path | None, as_json: bool, keep_disturbed: bool, timed: bool) -> None:
        findings.need_matplotlib(plot)
        self.plot, self.as_json = plot, as_json
        self._recording = findings.Recording(benchmark, file, as_json, keep_disturbed, timed=timed)

    @contextmanager
    def progress(self, *, moving: bool = True) -> Iterator[Callable[[str, int, int], None]]:
        """Show what is being done (step, done, of how many), for people. `moving`: as `output.progress` has it."""
        with output.progress("bench", quiet=self.as_json, moving=moving) as update:
            yield update

    @contextmanager
    def saying(self) -> Iterator[Say]:
        """Show what is being done, where nobody knows how much is left."""
        with self.progress() as update:
            yield lambda text: update(text, 0, 0)

    def each(self, cases: Iterable[Case], measure: Callable[[Case, Say], Found]) -> list[Found]:
        """Measure one network after the other."""
        with self.saying() as say:
            return [measure(case, say) for case in cases]

    def draw(self, draw: Callable[[Found, Path], None], result: Found) -> None:
        """Draw the result where a picture is wanted."""
        if self.plot is not None:
            draw(result, self.plot)

    def record(self, result: object, disturbed: int = 0) -> None:
        """Write the record. `disturbed`: rounds that count although other processes ran."""
        self._recording.write(result, disturbed)

    def end(self, result: object, shown: Sequence[findings.Shown], absent: Iterable[str] = (), *, disturbed: int = 0) -> None:
        """Print tables, write the record, and say what failed: exit status 1."""
        findings.show(shown, absent, self.as_json)
        self.record(result, disturbed)
        findings.fail(shown)


def benchmark(*, picture: bool = True, timed: bool = True) -> Callable[[Callable[Concatenate[Run, P], None]], Callable[..., None]]:
    """Make a command of `aspen-mp bench` of a function whose first parameter is its `Run`.

    The command has the function's other parameters, and the common options after them. `picture`: whether it has `--plot`. `timed`: False
    where the result does not depend on what else the machine does, so that every run is recorded.
    """
    lacking = {"plot"} if not picture else set()
    lacking |= {"keep_disturbed"} if not timed else set()

    def made(function: Callable[Concatenate[Run, P], None]) -> Callable[..., None]:
        @output.command
        @functools.wraps(function)
        def command(**given: Any) -> None:
            common = {name: given.pop(name, default) for name, (_, default) in COMMON.items()}
            function(Run(function.__name__, **common, timed=timed), **given)  # type: ignore[call-arg]

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=keyword) for each in [*inspect.signature(function, eval_str=True).parameters.values()][1:]]
        for name, (kind, default) in COMMON.items():
            if name not in lacking:
                parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return made
