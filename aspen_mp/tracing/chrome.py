"""Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process is the runtime, with a thread for each worker. It has a slice for each tile, and slices of idleness (with its sleeping inside)
and of standing still for a recovery. Joins, leaves and deaths are instants. Another process holds the requests, as asynchronous events.
Flow arrows lead from a request's first tile to its first on each other worker and to its last. Events are written one by one: a trace may
be larger than memory would like.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO, cast

import numpy as np

from aspen_mp.shm.bindings import _control
from aspen_mp.tracing.recording import CAMES, Array, Recording, Request

RUNTIME: Final = 1
"""Process number of the workers in the trace: a viewer shows names, not this."""
REQUESTS: Final = 2


def write(recording: Recording, path: str | os.PathLike[str]) -> int:
    """Writes the trace to `path`, compressed where that ends in ".gz". Returns how many events."""
    path = Path(path)
    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=4) as packed, io.TextIOWrapper(cast("Any", packed), encoding="utf-8") as file:
            return _write(recording, file)
    with open(path, "w", encoding="utf-8") as file:
        return _write(recording, file)


def _write(recording: Recording, file: TextIO) -> int:
    about = recording.about
    other = {
        "runtime": recording.name,
        "pid": about["pid"],
        "started": about["unix_time"],
        "duration_s": recording.duration / 1e9,
        "lost_records": {f"worker {row}": n for row, n in recording.lost.items()},
    }
    file.write(f'{{"displayTimeUnit":"ms","otherData":{_json(other)},"traceEvents":[\n')
    count = 0
    for event in events(recording):
        file.write(",\n" if count else "")
        file.write(event)
        count += 1
    file.write("\n]}\n")
    return count


def events(recording: Recording) -> Iterator[str]:
    """Each event as JSON."""
    yield from _names(recording)
    yield from _tiles(recording)
    yield from _gaps(recording)
    yield from _instants(recording)
    for k, request in enumerate(recording.requests):
        yield from _request(recording, k, request)
    yield from _flows(recording)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _us(ns: int) -> str:
    return f"{max(0, ns) / 1000:.3f}"


def _event(phase: str, name: str, ts: int, tid: int, *, pid: int = RUNTIME, **more: Any) -> str:
    rest = "".join(f",{_json(key)}:{_json(value)}" for key, value in more.items())
    return f'{{"ph":"{phase}","name":{_json(name)},"pid":{pid},"tid":{tid},"ts":{_us(ts)}{rest}}}'


def _names(recording: Recording) -> Iterator[str]:
    for pid, name in ((RUNTIME, f"aspen-mp {recording.name}: workers"), (REQUESTS, f"aspen-mp {recording.name}: requests")):
        yield _event("M", "process_name", 0, 0, pid=pid, args={"name": name})
        yield _event("M", "process_sort_index", 0, 0, pid=pid, args={"sort_index": pid})
    order = sorted(range(len(recording.workers)), key=lambda k: (recording.workers[k].row, recording.workers[k].joined or 0))
    for place, k in enumerate(order):
        yield _event("M", "thread_name", 0, k + 1, args={"name": recording.workers[k].label})
        yield _event("M", "thread_sort_index", 0, k + 1, args={"sort_index": place})


def _tiles(recording: Recording) -> Iterator[str]:
    heads: dict[tuple[int, int], tuple[str, str]] = {}
    columns = ("worker", "begin", "end", "came", "skipped", "cut", "plan", "tile", "request", "came_from")
    rows = zip(*(recording.tiles[name].tolist() for name in columns), strict=True)
    for worker, begin, end, came, skipped, cut, plan, tile, request, came_from in rows:
        op = int(recording.plans[plan].tiles["op"][tile]) if plan >= 0 else -1
        head = heads.get((plan, op)) or heads.setdefault((plan, op), _head(recording, plan, op))
        how = CAMES.get(came, "?")
        args = f'{head[1]},"request":{request},"came":"{how}"'
        if plan >= 0:
            names = recording.plans[plan]
            args += f',"tile":{int(names.number[tile])},"box":"{names.box(tile)}"'
        if how == "stolen":
            args += f',"from":"worker {came_from}"'
        if skipped:
            args += ',"skipped":true'
        if cut:
            args += ',"cut":true'
        yield (
            f'{{"ph":"X","name":{head[0]},"cat":"tile,{how}","pid":{RUNTIME},"tid":{worker + 1},'
            f'"ts":{_us(begin)},"dur":{_us(end - begin)},"args":{{{args}}}}}'
        )


def _head(recording: Recording, plan: int, op: int) -> tuple[str, str]:
    """Name of an op's slices, and those of their arguments that all have in common."""
    if plan < 0:
        return _json("tile of a forgotten plan"), '"model":"?"'
    about = recording.plans[plan].ops[op]
    same = {
        "op": about.kind,
        "kernel": about.kernel,
        "layer": about.layer,
        "tiles": about.tiles,
        "model": recording.plans[plan].model,
        "plan": recording.about["plans"][plan]["plan"],
    }
    return _json(about.name), _json(same)[1:-1]


def _gaps(recording: Recording) -> Iterator[str]:
    for k, gap in enumerate(recording.idle.tolist()):
        worker, begin, end, still = gap
        args: dict[str, Any] = {"until": "the trace ended" if still else ended_by(recording, recording.idle[k])}
        yield _event("X", "idle", begin, worker + 1, cat="idle", dur=_number(end - begin), args=args)
    for gaps, name in ((recording.parked, "parked"), (recording.stopped, "stopped for a recovery"), (recording.away, "mapping segments")):
        for worker, begin, end, _ in gaps.tolist():
            yield _event("X", name, begin, worker + 1, cat="idle", dur=_number(end - begin))


def _number(ns: int) -> float:
    return round(max(0, ns) / 1000, 3)


def ended_by(recording: Recording, gap: Array) -> str:
    """The next step of the worker after a gap."""
    first = int(np.searchsorted(recording.tiles["worker"], gap["worker"]))
    last = int(np.searchsorted(recording.tiles["worker"], gap["worker"], side="right"))
    at = first + int(np.searchsorted(recording.tiles["begin"][first:last], gap["end"]))
    worker = recording.workers[int(gap["worker"])]
    if at >= last:
        return {"left": "it left", "died": "it died", "abandoned": "it was abandoned"}.get(worker.end, "nothing came")
    tile = recording.tiles[at]
    how = CAMES.get(int(tile["came"]), "?")
    if tile["plan"] < 0:
        return f"a tile ({how})"
    names = recording.plans[int(tile["plan"])]
    op = int(names.tiles["op"][tile["tile"]])
    return f"{names.ops[op].name} tile {int(names.number[tile['tile']])} ({how})"


def _instants(recording: Recording) -> Iterator[str]:
    for at, worker, what, facts in recording.instants:
        scope = "t" if worker >= 0 else "g"
        yield _event("i", what, at, worker + 1, cat="event", s=scope, args=facts)


def _request(recording: Recording, k: int, request: Request) -> Iterator[str]:
    """A request's time from its submission on, with its waiting inside."""
    begin = next((t for t in (request.submitted, request.started) if t is not None), 0)
    until = recording.duration if request.ended is None else request.ended
    same: dict[str, Any] = {"pid": REQUESTS, "cat": "request", "id": k}
    args: dict[str, Any] = {"request": k, "model": recording.model_of(request)}
    if request.client is not None:
        args["client"] = request.client
    if request.ended is None:
        args["unfinished"] = True
    if request.error:
        args["error"] = _control.ERROR_NAMES.get(request.error, request.error)
    name, tid = f"{recording.model_of(request)} #{k}", request.client or 0
    yield _event("b", name, begin, tid, **same, args=args)
    if request.started is not None and request.started > begin:
        yield _event("b", "waiting", begin, tid, **same)
        yield _event("e", "waiting", request.started, tid, **same)
    yield _event("e", name, max(begin, until), tid, **same)


def _flows(recording: Recording) -> Iterator[str]:
    tiles = recording.tiles
    if not len(tiles):
        return
    order = np.lexsort((tiles["begin"], tiles["request"]))
    ordered = tiles[order]
    cuts = np.flatnonzero(np.diff(ordered["request"])) + 1
    for part in np.split(ordered, cuts):
        request = int(part["request"][0])
        _, first = np.unique(part["worker"], return_index=True)
        points = sorted({0, len(part) - 1, *first.tolist()})
        if len(points) < 2:
            continue
        for place, at in enumerate(points):
            phase = "s" if place == 0 else "f" if place == len(points) - 1 else "t"
            more: dict[str, Any] = {"bp": "e"} if phase == "f" else {}
            row = part[at]
            yield _event(phase, "request", int(row["begin"]), int(row["worker"]) + 1, cat="flow", id=request, **more)
