"""`aspen-mp status`, `add`, `remove`, `scale`, `stop`: what one does with a running runtime."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp.cli import options, output
from aspen_mp.client.arguments import MOST_WORKERS

if TYPE_CHECKING:
    from aspen_mp import Runtime

MOST_EVENTS = 12
Count = Annotated[int, typer.Argument(metavar="N", min=0, max=MOST_WORKERS, help="Number of workers.")]


@contextmanager
def _runtime(name: str) -> Iterator[Runtime]:
    import aspen_mp

    with aspen_mp.connect(name, retry=False) as runtime:
        yield runtime


@output.command
def status(name: options.Running = "", as_json: output.Json = False) -> None:
    """Show what a runtime is doing: its workers, models, memory and requests."""
    with _runtime(name) as runtime:
        report = runtime.status()
    if as_json:
        output.emit_json(report)
        return
    _show_status(report)


@output.command
def add(
    n: Count,
    name: options.Running = "",
    cores: Annotated[
        str | None, typer.Option("--cores", metavar="0,2-3", help="CPUs for the new workers. Default: chosen by the profile.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Add N workers to a runtime. Requests go on meanwhile."""
    cpus = options.cpus(cores)
    with _runtime(name) as runtime:
        runtime.add_workers(n, cores=cpus)
        _workers(runtime, as_json)


@output.command
def remove(
    n: Count,
    name: options.Running = "",
    cores: Annotated[
        str | None, typer.Option("--cores", metavar="0,2-3", help="CPUs whose workers leave. Default: the newest workers leave.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Remove N workers from a runtime.

    Requests go on meanwhile. If no worker is left, they wait until one joins.
    """
    cpus = options.cpus(cores)
    with _runtime(name) as runtime:
        runtime.remove_workers(n, cores=cpus)
        _workers(runtime, as_json)


@output.command
def scale(
    n: Annotated[str, typer.Argument(metavar="N|auto", help="Number of workers, or auto: as many as the machine has cores for.")],
    name: options.Running = "",
    as_json: output.Json = False,
) -> None:
    """Add or remove workers until a runtime has N of them.

    Requests go on meanwhile. With 0 workers they wait. With "auto" the number follows the CPUs that the machine allows.
    """
    if n != "auto" and not (n.isdecimal() and len(n) < 10 and int(n) <= MOST_WORKERS):
        raise typer.BadParameter(f"{n!r} is not a number of workers. Give a number from 0 to {MOST_WORKERS}, or 'auto'", param_hint="N")
    with _runtime(name) as runtime:
        runtime.scale(None if n == "auto" else int(n))
        _workers(runtime, as_json)


@output.command
def stop(
    name: options.Running = "",
    drain: Annotated[
        bool, typer.Option("--drain", help="Finish the requests in flight first, for at most --grace seconds. New requests are refused.")
    ] = False,
    grace: options.Grace = options.GRACE_S,
    as_json: output.Json = False,
) -> None:
    """End a runtime: its workers, its planner process and its shared memory."""
    with _runtime(name) as runtime:
        runtime.stop(drain=drain, grace_s=grace)
    if as_json:
        output.emit_json({"name": name, "stopped": True})
    else:
        output.notice(f"runtime {name!r} has ended")


def _workers(runtime: Runtime, as_json: bool) -> None:
    workers = [w for w in runtime.workers if w["process"] != "leaving"]
    if as_json:
        output.emit_json(workers)
    else:
        _show_workers(workers)


def _show_workers(workers: list[dict[str, Any]]) -> None:
    keys = ["id", "pid", "cpu", "core_class", "state", "tiles", "steals", "busy_s", "overhead"]
    if any(w.get("held_ns") or w.get("lent_ns") for w in workers):  # requests of several classes have met
        keys += ["held_s", "lent_s"]
        workers = [{**w, "held_s": w.get("held_ns", 0) / 1e9, "lent_s": w.get("lent_ns", 0) / 1e9} for w in workers]
    written = {"busy_s": "{:.2f}", "overhead": "{:.2%}", "held_s": "{:.3f}", "lent_s": "{:.3f}"}
    rows = [[written.get(k, "{}").format(w[k]) if k in w else "" for k in keys] for w in workers]
    for row, worker in zip(rows, workers, strict=True):
        row[2] += " (shared)" * worker.get("shared", False)
    output.table("Workers", keys, rows, right=(0, 1, 2, *range(5, len(keys))))


def _show_status(report: dict[str, Any]) -> None:
    """Facts for a dict of plain values, a table for a list of dicts or a dict of dicts; workers first."""
    output.facts(_plain_items(report.get("runtime", {})), title="Runtime")
    output.out.print()
    _show_workers(report.get("workers", []))
    for key, value in report.items():
        if key in ("runtime", "workers", "events") or not value:
            continue
        if key == "models":
            rows = [_with_means(model) for model in value]
        else:
            rows = value if isinstance(value, list) else [{key: name, **row} for name, row in value.items() if isinstance(row, dict)]
        output.out.print()
        if isinstance(value, dict) and len(rows) < len(value):
            output.facts(_plain_items(value), title=key.capitalize())
            continue
        columns = [name for name, cell in rows[0].items() if not isinstance(cell, (dict, list))]
        output.table(key.capitalize(), columns, ([_cell(name, row.get(name, "")) for name in columns] for row in rows))
        if key == "models":
            output.out.print()
            output.table("Plans made", ("model", "in use", *value[0]["made"]), map(_plans_made, value), right=range(1, 6))
    events = report.get("events", [])
    if events:
        output.out.print()
        output.table("Events", ("time", "event", ""), (_event(event) for event in events[-MOST_EVENTS:]))


def _with_means(model: dict[str, Any]) -> dict[str, Any]:
    """A model with what has become of its requests, beside its other facts."""
    counts = model["scheduled"]
    means = {f"{part}_ms": 1e3 * counts[f"{part}_s"] / max(1, counts["requests"]) for part in ("queue", "run")}
    return {**model, "requests": counts["requests"], **means, **{key: counts[key] for key in ("missed", "refused", "expired")}}


def _plans_made(model: dict[str, Any]) -> list[object]:
    """A row about a model's plans."""
    return [model["name"], len(model["plans"]), *model["made"].values()]


def _event(event: dict[str, Any]) -> list[str]:
    facts = {key: value for key, value in event.items() if key not in ("time", "level", "event")}
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
    return [when, event["event"], ", ".join(f"{key} {_cell(key, value)}" for key, value in facts.items())]


def _plain_items(table: dict[str, Any]) -> list[tuple[str, object]]:
    return [(key, _cell(key, value)) for key, value in table.items() if not isinstance(value, (dict, list)) and value != ""]


def _cell(name: str, value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.endswith("bytes"):
            return output.mebibytes(value)
        if name in ("started", "since"):
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return f"{value:.2f}" if isinstance(value, float) else value
