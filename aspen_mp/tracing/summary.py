"""Summarises a trace in a few lines: who was busy, with what, and where time was lost."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aspen_mp.tracing.chrome import ended_by
from aspen_mp.tracing.recording import CAMES, Array, Recording

LONGEST: Final = 5
"""Gaps that are named."""


def of(recording: Recording) -> dict[str, Any]:
    """Plain numbers and strings: runtime, duration_s, utilisation, workers, ops, requests, gaps, events, lost_records, cut.

    A worker's `busy` is its share of time in kernels (and in Python, for opaque tiles). `idle` is time without work (`parked` of it
    asleep), `stopped` standing still for recoveries, `away` mapping segments. `scheduling` is the rest: taking tiles, counting down,
    starting and ending requests. All of the time in which it was there (`present_s`). `utilisation`: busy time of all workers by their time
    there;
    `span_utilisation`: the same between the first and the last tile.
    """
    rows = [_worker(recording, k) for k in range(len(recording.workers))]
    present = sum(row["present_s"] for row in rows)
    tiles = recording.tiles
    busy = float((tiles["end"] - tiles["begin"]).sum()) / 1e9
    return {
        "runtime": recording.name,
        "duration_s": recording.duration / 1e9,
        "utilisation": busy / present if present else 0.0,
        "span_utilisation": _span_utilisation(recording),
        "workers": rows,
        "ops": _ops(recording),
        "requests": _requests(recording),
        "gaps": _longest(recording),
        "events": [_event(recording, *instant) for instant in recording.instants],
        "lost_records": {str(row): n for row, n in recording.lost.items()},
        "cut": int(tiles["cut"].sum()),
    }


def _event(recording: Recording, at: int, k: int, what: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {"at_s": at / 1e9, "event": what, "worker": None if k < 0 else recording.workers[k].row, **facts}


def _sum(gaps: Array) -> float:
    return float((gaps["end"] - gaps["begin"]).sum()) / 1e9


def _worker(recording: Recording, k: int) -> dict[str, Any]:
    worker = recording.workers[k]
    tiles = recording.tiles[recording.tiles["worker"] == k]
    begin = worker.since
    if worker.row in recording.lost and len(tiles):  # what came before has been overwritten
        begin = max(begin, int(tiles["begin"][0]))
    end = recording.duration if worker.left is None else worker.left
    present = max(0.0, (end - begin) / 1e9)
    gaps = (recording.idle, recording.parked, recording.stopped, recording.away)
    busy, idle, parked, stopped, away = _sum(tiles), *(_sum(g[g["worker"] == k]) for g in gaps)

    def share(seconds: float) -> float:
        return seconds / present if present else 0.0

    came = np.bincount(tiles["came"][~tiles["cut"]], minlength=len(CAMES)) if len(tiles) else np.zeros(len(CAMES), np.int64)
    return {
        "worker": worker.row,
        "pid": worker.pid,
        "cpu": worker.cpu,
        "core_class": worker.core_class,
        "joined_s": None if worker.joined is None else worker.joined / 1e9,
        "left_s": None if worker.left is None else worker.left / 1e9,
        "end": worker.end,
        "present_s": present,
        "busy": share(busy),
        "scheduling": share(max(0.0, present - busy - idle - stopped - away)),
        "idle": share(idle),
        "parked": share(parked),
        "stopped": share(stopped),
        "away": share(away),
        "tiles": len(tiles),
        **{name: int(came[number]) for number, name in CAMES.items()},
        "lost_records": recording.lost.get(worker.row, 0),
    }


def _span_utilisation(recording: Recording) -> float:
    """Busy time between the first and the last tile, of the workers that were there meanwhile."""
    tiles = recording.tiles
    if not len(tiles):
        return 0.0
    first, last = int(tiles["begin"].min()), int(tiles["end"].max())
    there = 0
    for worker in recording.workers:
        begin = first if worker.joined is None else max(first, worker.joined)
        there += max(0, min(last, last if worker.left is None else worker.left) - begin)
    return float((tiles["end"] - tiles["begin"]).sum()) / there if there else 0.0


def _ops(recording: Recording) -> list[dict[str, Any]]:
    """By kind of op, most time first. `scheduling` tiles (joins, the end of a request) are not among them."""
    found: dict[str, list[float]] = {}
    for k in np.unique(recording.tiles["plan"]).tolist():
        mine = recording.tiles[recording.tiles["plan"] == k]
        time = (mine["end"] - mine["begin"]).astype(np.float64) / 1e9
        if k < 0:
            found["unknown"] = [found.get("unknown", [0.0])[0] + float(time.sum()), float(len(mine)), 0.0]
            continue
        plan = recording.plans[k]
        op = plan.tiles["op"][mine["tile"]]
        seconds, count = np.bincount(op, time, len(plan.ops)), np.bincount(op, minlength=len(plan.ops))
        for number in np.flatnonzero(count).tolist():
            about = plan.ops[number]
            if about.kernel in ("JOIN", "END"):
                continue
            row = found.setdefault(about.kind, [0.0, 0.0, 0.0])
            row[0] += float(seconds[number])
            row[1] += float(count[number])
            row[2] += about.flops * float(count[number]) / max(1, about.tiles)
    total = sum(row[0] for row in found.values())
    return [
        {"op": kind, "seconds": s, "share": s / total if total else 0.0, "tiles": int(n), "gflops": f / s / 1e9 if s else 0.0}
        for kind, (s, n, f) in sorted(found.items(), key=lambda item: -item[1][0])
    ]


def _requests(recording: Recording) -> dict[str, Any]:
    """The number of requests by model, and the times of those whose beginning and end are in the trace. They are median and most, in ms, of
    the time that they waited and that they ran."""
    models: dict[str, int] = {}
    waited, ran = [], []
    for request in recording.requests:
        model = recording.model_of(request)
        models[model] = models.get(model, 0) + 1
        if request.started is not None and request.ended is not None:
            ran.append((request.ended - request.started) / 1e6)
            waited.append((request.started - (request.submitted or request.started)) / 1e6)
    times = {}
    if ran:
        times = {
            "median_ms": float(np.median(ran)),
            "max_ms": max(ran),
            "median_waited_ms": float(np.median(waited)),
            "max_waited_ms": max(waited),
        }
    failed = sum(r.error != 0 for r in recording.requests)
    return {"count": len(recording.requests), "complete": len(ran), "failed": failed, "models": models, **times}


def _longest(recording: Recording) -> list[dict[str, Any]]:
    """The longest gaps between the first and the last tile, and what ended them."""
    tiles, idle = recording.tiles, recording.idle
    if not len(tiles) or not len(idle):
        return []
    first, last = int(tiles["begin"].min()), int(tiles["end"].max())
    begin, end = np.clip(idle["begin"], first, last), np.clip(idle["end"], first, last)
    found = []
    for k in np.argsort(begin - end, kind="stable")[:LONGEST].tolist():
        if end[k] > begin[k]:
            until = "the trace ended" if idle["open"][k] else ended_by(recording, idle[k])
            row = recording.workers[int(idle["worker"][k])].row
            found.append({"worker": row, "at_s": int(begin[k]) / 1e9, "ms": int(end[k] - begin[k]) / 1e6, "ended_by": until})
    return found


def text(found: dict[str, Any]) -> str:
    """The same for people."""
    requests = found["requests"]
    share = f"{found['span_utilisation']:.1%} of the workers' time in kernels while there was work"
    lines = [f"{found['runtime']}: {found['duration_s']:.3f} s, {share}", ""]
    columns = (("worker", 6), ("cpu", 4), ("busy", 7), ("sched.", 7), ("idle", 7), ("(parked)", 8))
    lines.append(" ".join(f"{name:>{width}}" for name, width in (*columns, ("tiles", 8), ("followed", 9), ("own", 8), ("stolen", 8))))
    for row in found["workers"]:
        note = f"  {row['end']} after {row['left_s']:.3f} s" if row["end"] else ""
        note += f"  {row['lost_records']} records lost" if row["lost_records"] else ""
        lines.append(
            f"{row['worker']:>6} {row['cpu']:>4} {row['busy']:>7.1%} {row['scheduling']:>7.2%} {row['idle']:>7.1%} {row['parked']:>8.1%} "
            f"{row['tiles']:>8} {row['followed']:>9} {row['own']:>8} {row['stolen']:>8}{note}"
        )
    if found["ops"]:
        lines += ["", f"{'op':<28} {'ms':>10} {'share':>7} {'tiles':>8} {'GFLOP/s':>8}"]
        for row in found["ops"][:12]:
            lines.append(f"{row['op']:<28} {1e3 * row['seconds']:>10.2f} {row['share']:>7.1%} {row['tiles']:>8} {row['gflops']:>8.1f}")
    models = ", ".join(f"{model}: {n}" for model, n in requests["models"].items())
    times = f"; median {requests['median_ms']:.2f} ms, at most {requests['max_ms']:.2f} ms" if requests["complete"] else ""
    lines += ["", f"{requests['count']} requests ({models or 'none'}), {requests['failed']} failed{times}"]
    for gap in found["gaps"]:
        lines.append(f"worker {gap['worker']} idle for {gap['ms']:.3f} ms at {gap['at_s']:.6f} s, until {gap['ended_by']}")
    for event in found["events"]:
        who = "" if event["worker"] is None else f" worker {event['worker']}"
        lines.append(f"{event['at_s']:.6f} s: {event['event']}{who}{': ' + str(event['why']) if event.get('why') else ''}")
    return "\n".join(lines)
