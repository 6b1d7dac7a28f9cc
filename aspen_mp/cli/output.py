"""How commands speak: tables and panels for people, one JSON document for programs, errors without tracebacks.

Results go to standard output, everything else (progress, errors, notices) to standard error, so that a pipe sees results alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from aspen_mp import errors
from aspen_mp.errors import AspenError
from aspen_mp.shm.words import count

__all__ = ["Json", "command", "count", "emit_json", "err", "facts", "fail", "mebibytes", "notice", "out", "progress", "table"]

_REDRAW_S = 0.5
_NO_NUMBERS = re.compile(r"\b(NaN|Infinity)\b")

P = ParamSpec("P")
R = TypeVar("R")

# The width of a terminal that cannot be asked (a pipe, a log) must not cut tables.
out = Console(soft_wrap=False, width=None if sys.stdout and sys.stdout.isatty() else 160, highlight=False)
err = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def emit_json(document: object) -> None:
    """One JSON document on standard output."""
    text = json.dumps(document, indent=2, ensure_ascii=False, default=_plain)
    if _NO_NUMBERS.search(text):  # JSON has no numbers for what is infinite or none
        text = json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    item = getattr(value, "tolist", None)  # numpy scalars and arrays
    return item() if callable(item) else str(value)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> None:
    """A table on standard output; `right` are the numbers of right-aligned columns."""
    view = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    aligned = set(right)
    for i, column in enumerate(columns):
        view.add_column(column, justify="right" if i in aligned else "left", overflow="fold")
    for row in rows:
        view.add_row(*(escape(str(cell)) for cell in row))
    out.print(view)


def facts(pairs: Iterable[tuple[str, object]], title: str = "") -> None:
    """Name and value, line by line."""
    view = Table(title=title or None, title_justify="left", show_header=False, box=None, pad_edge=False)
    view.add_column(style="bold")
    view.add_column(overflow="fold")
    for name, value in pairs:
        view.add_row(escape(name), escape(str(value)))
    out.print(view)


def notice(text: str) -> None:
    """One line on standard error."""
    err.print(escape(text))


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Makes errors of a command one clear panel (or, with --json, one JSON document) and exit status 1.

    Wrong use is typer's: `typer.BadParameter` gives exit status 2. ASPEN_MP_DEBUG=1 shows tracebacks.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, KeyboardInterrupt):
            raise
        except BrokenPipeError:
            # The reader of our output has gone (`aspen-mp … | head`): that is not a failure. Python must not flush to it at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if os.environ.get("ASPEN_MP_DEBUG"):
                raise
            fail(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(1) from None

    return wrapped


def fail(error: Exception, *, as_json: bool = False) -> None:
    """Shows an error. One that is not ours is named with its type, since that is what a report needs."""
    ours = isinstance(error, (AspenError, OSError))
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in errors.__all__), type(error).__name__)
    text = str(error) or kind
    if as_json:
        with contextlib.suppress(OSError):  # standard output may be what has failed
            emit_json({"error": {"type": kind, "message": text}})
            return
    body = escape(text)
    if not ours:
        body += "\n\n[dim]This is an error inside aspen-mp. ASPEN_MP_DEBUG=1 shows where it comes from.[/dim]"
    err.print(Panel(body, title=escape(kind), title_align="left", border_style="red"))


def wrong_use(message: str) -> None:
    """Says with --json what cannot be understood in a command line; typer says it otherwise."""
    with contextlib.suppress(OSError):
        emit_json({"error": {"type": "WrongUse", "message": message}})


class _Count(MofNCompleteColumn):
    """How many of how many; nothing where nobody knows of how many."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total is not None else Text("")


@contextlib.contextmanager
def progress(label: str, quiet: bool = False, *, moving: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error while something long runs; yields ``update(step, done, total)``. Nothing where nobody watches.

    `moving=False` draws only inside `update`, seldom: a bar that moves by itself would take time from what is being measured.
    """
    if quiet or not err.is_terminal:
        yield lambda step, done, total: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), _Count(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, auto_refresh=moving) as bar:
        task = bar.add_task(escape(label), total=None)
        drawn = time.monotonic()

        def update(step: str, done: int, total: int) -> None:
            nonlocal drawn
            bar.update(task, description=escape(f"{label}: {step}" if step else label), completed=done, total=total or None)
            if not moving and time.monotonic() - drawn > _REDRAW_S:
                bar.refresh()
                drawn = time.monotonic()

        yield update


def mebibytes(n: float | None) -> str:
    """Bytes for people."""
    if n is None:
        return "no limit"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            break
        n /= 1024
    return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
