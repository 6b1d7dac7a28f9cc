"""`aspen-mp top`: what a runtime's workers do, live."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp.cli import options, output
from aspen_mp.cli.interrupt import Pause

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

EVENTS = 6


@output.command
def top(
    name: options.Running = "",
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.05, help="Seconds between two updates.")] = 1.0,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Number of updates before it ends. 0: until Ctrl-C.")] = 0,
    as_json: output.Json = False,
) -> None:
    """Show live what a runtime is doing.

    For each worker: how busy it is, what it executes, and how many tiles it steals. Then requests and the latest events. With --json, each
    update is one line.
    """
    from rich.live import Live

    import aspen_mp

    with aspen_mp.connect(name, retry=False) as runtime, Pause() as pause:
        before, look = runtime.status(), 0
        began = time.monotonic()
        with Live(console=output.out, auto_refresh=False, transient=False) if not as_json else _Lines() as screen:
            while (not count or look < count) and pause.wait(interval):
                now = runtime.status()
                seconds, began = time.monotonic() - began, time.monotonic()
                found = changes(before, now, seconds)
                if isinstance(screen, _Lines):
                    screen.show(found)
                else:
                    screen.update(_screen(found, output.out.width), refresh=True)
                before, look = now, look + 1
        if look and not isinstance(screen, _Lines) and not output.out.is_terminal:
            output.out.print()  # rich ends the last line on terminals only


class _Lines:
    """One JSON document a line."""

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, found: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


_PASSED = ("kernel_ns", "schedule_ns", "tiles", "steals", "held_ns", "lent_ns")


def changes(before: dict[str, Any], now: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The changes between two looks at `Runtime.status`, a second. `busy` and `overhead`: shares of the time and of the busy time. `held`,
    `lent`: shares of the time, as of a worker's `held_ns` and `lent_ns`."""
    then = {(w["id"], w["pid"]): w for w in before["workers"]}
    workers = []
    for worker in now["workers"]:
        old = then.get((worker["id"], worker["pid"]), {})
        passed = {key: worker.get(key, 0) - old.get(key, 0) for key in _PASSED}
        busy = passed["kernel_ns"] + passed["schedule_ns"]
        workers.append(
            {
                **{
                    key: worker.get(key)
                    for key in ("id", "pid", "cpu", "shared", "core_class", "process", "idle", "current", "model", "op", "queued")
                },
                "busy": min(1.0, busy / 1e9 / seconds),
                "overhead": passed["schedule_ns"] / busy if busy else 0.0,
                "tiles_per_s": passed["tiles"] / seconds,
                "steals_per_s": passed["steals"] / seconds,
                "held": min(1.0, passed["held_ns"] / 1e9 / seconds),
                "lent": min(1.0, passed["lent_ns"] / 1e9 / seconds),
            }
        )
    scheduler = now["scheduler"]
    return {
        "runtime": now["runtime"],
        "seconds": seconds,
        "workers": workers,
        "requests_per_s": (scheduler["served"] - before["scheduler"]["served"]) / seconds,
        "requests_running": scheduler["instances"]["running"],
        "requests_waiting": scheduler["waiting"],
        "ready_rows": scheduler["ready_rows"],
        "queued": scheduler["queued"],
        "clients": len(now["clients"]),
        "models": [model["name"] for model in now["models"]],
        "of_models": _of_models(before, now, seconds),
        "machine": now["machine"],
        "recovery": now["recovery"],
        "events": now["events"][-EVENTS:],
    }


def _of_models(before: dict[str, Any], now: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """The requests of each model meanwhile; times are means, in ms."""
    then = {model["id"]: model for model in before["models"]}
    found = []
    for model in now["models"]:
        old = then.get(model["id"], {})
        counts = _passed(old.get("scheduled", {}), model["scheduled"])
        plans = _passed(old.get("made", {}), model["made"])
        waits = _passed(before["requests"].get(model["name"], {}), now["requests"].get(model["name"], {}), _WAITS)
        found.append(
            {
                **{"id": model["id"], "name": model["name"], "share": model["share"], "requests_per_s": counts["requests"] / seconds},
                **{f"{part}_ms": 1e3 * counts[f"{part}_s"] / max(1, counts["requests"]) for part in ("queue", "run")},
                **{key: counts[key] for key in ("missed", "refused", "expired")},
                **{"plans": plans["one_shape"] + plans["range"] + plans["cached"], "replaced": plans["replaced"]},
                **waits,
            }
        )
    return found


_WAITS = ("derived", "waited", "waited_s")


def _passed(before: dict[str, Any], now: dict[str, Any], keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return by how much counts have risen. `keys`: the counts; none: all of `now`."""
    return {key: now.get(key, 0) - before.get(key, 0) for key in keys or now}


_PLANNING = {"plans": "plans", "replaced": "replaced", "derived": "new shapes", "waited": "waits", "waited_s": "wait s"}
"""Columns about a model's plans, which wide terminals show: keys and titles."""


def _models_table(models: list[dict[str, Any]], *, wide: bool) -> Table:
    """A row for each model. `wide`: also what concerns its plans."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    planning = _PLANNING if wide else {}
    for column in ("model", "share", "requests/s", "queue ms", "run ms", "missed", "refused", "expired", *planning.values()):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for model in models:
        numbers = (f"{model['share']:g}", f"{model['requests_per_s']:.1f}", f"{model['queue_ms']:.2f}", f"{model['run_ms']:.2f}")
        counts = [model[key] for key in ("missed", "refused", "expired", *planning)]
        table.add_row(model["name"], *numbers, *(f"{count:.2f}" if isinstance(count, float) else str(count or "") for count in counts))
    return table


def _losses(recovery: dict[str, Any]) -> str:
    """The losses and repairs since the runtime started; nothing where there were none."""
    named = {
        **{"worker_deaths": "died", "hung": "of them hung", "abandoned": "killed but not ended"},
        **{"respawned": "replaced", "lacking": "lacking", "given_up": "given up"},
    }
    said = [f"{recovery[key]} {word}" for key, word in named.items() if recovery[key]]
    return f"; workers: {', '.join(said)}" if said else ""


WIDE = 120
"""Columns of a terminal from which on all is shown; narrower ones leave out what is told elsewhere (`status`)."""


def _screen(found: dict[str, Any], width: int = WIDE) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    about = found["runtime"]
    state = "ready" if about["ready"] else "NO WORKER RUNS"
    where = f"CPUs {found['machine']['cpus']}" + (" (* shared)" if any(w["shared"] for w in found["workers"]) else "")
    head = (
        f"{about['name'] or 'private'} (process {about['pid']}): {state}, {found['requests_per_s']:.1f} requests/s, "
        f"{found['requests_running']} running, {found['requests_waiting']} waiting, {output.count(found['clients'], 'client')}; {where}; "
        f"models: {', '.join(found['models']) or 'none'}{_losses(found['recovery'])}"
    )
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = {"worker": "right", "cpu": "right", "class": "left", "state": "left", "busy": "right", "": "left", "overhead": "right"}
    columns |= {"tiles/s": "right", "steals/s": "right", "held": "right", "lent": "right", "queued": "right", "tile [request:tile]": "left"}
    several = any(worker["held"] or worker["lent"] for worker in found["workers"])  # classes met
    shown = [several if column in ("held", "lent") else wide or column not in ("class", "", "overhead") for column in columns]
    for (column, side), show in zip(columns.items(), shown, strict=True):
        if show:
            last = column.startswith("tile [")  # what is cut where there is too little room
            table.add_column(Text(column, no_wrap=True), justify=side, no_wrap=not last, min_width=20 if not column else None)  # type: ignore[arg-type]
    for worker in found["workers"]:
        cpu = f"{worker['cpu']}{'*' * worker['shared']}"
        bar = "█" * round(20 * worker["busy"])
        at = worker["idle"] or ""
        if worker["current"]:
            request, tile = worker["current"]
            at = f"{worker['op'] or '?'} [{request}:{tile}]"
        cells = (
            *(str(worker["id"]), cpu, worker["core_class"], worker["process"], f"{worker['busy']:.0%}", bar),
            *(f"{worker['overhead']:.1%}", f"{worker['tiles_per_s']:.0f}", f"{worker['steals_per_s']:.0f}"),
            *(f"{worker['held']:.1%}", f"{worker['lent']:.1%}"),
            *(str(worker["queued"] or ""), Text(at, no_wrap=True, overflow="ellipsis")),
        )
        table.add_row(*(cell for cell, show in zip(cells, shown, strict=True) if show))
    lines = []
    for event in found["events"]:
        facts = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("time", "level", "event"))
        lines.append(Text(f"{time.strftime('%H:%M:%S', time.localtime(event['time']))} {event['event']} {facts}", style="dim"))
    models = [_models_table(found["of_models"], wide=wide)] if found["of_models"] else []
    return Group(Text(head, style="bold"), table, *models, *lines)
