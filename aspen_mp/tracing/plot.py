"""A trace as a picture, for people without a viewer at hand: a row a worker, tiles coloured by kind of op, idleness left white."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aspen_mp.shm.errors import AspenError
from aspen_mp.tracing import summary
from aspen_mp.tracing.recording import Array, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: Final = 11
"""Kinds of op with a colour of their own; the rest share one."""
STOLEN: Final = 2
WIDTH: Final = 16.0
"""Inches, at 120 dots each."""


def check() -> None:
    """AspenError where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise AspenError("pictures of traces need matplotlib. Install it with: pip install matplotlib") from None


def draw(recording: Recording, path: str | os.PathLike[str], *, begin: float | None = None, end: float | None = None) -> None:
    """Writes the picture, in the format that the name ends in (.png, .svg, .pdf). `begin`, `end`: seconds since the trace began; None:
    those of the first and the last tile."""
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    order = sorted(range(len(recording.workers)), key=lambda k: (recording.workers[k].row, recording.workers[k].joined or 0))
    shown = [k for k in order if _took_part(recording, k)] or order
    figure = Figure(figsize=(WIDTH, 1.9 + 0.55 * max(1, len(shown))), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    first, last = _window(recording, begin, end)
    labels = _draw_tiles(axes, recording, shown, first, last)
    _draw_gaps(axes, recording, shown)
    _draw_events(axes, recording, shown, first, last)
    axes.set_xlim(first, last)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), [f"worker {recording.workers[k].row}\nCPU {recording.workers[k].cpu}" for k in shown])
    axes.set_xlabel("ms since the trace began")
    axes.set_title(_title(recording), fontsize=10, loc="left")
    _legend(figure, labels)
    figure.savefig(path)


def _took_part(recording: Recording, k: int) -> bool:
    return any((rows["worker"] == k).any() for rows in (recording.tiles, recording.idle, recording.stopped))


def _window(recording: Recording, begin: float | None, end: float | None) -> tuple[float, float]:
    """In ms, with a little room."""
    tiles = recording.tiles
    first = tiles["begin"].min() / 1e6 if len(tiles) else 0.0
    last = tiles["end"].max() / 1e6 if len(tiles) else recording.duration / 1e6
    room = 0.01 * (last - first)
    low = first - room if begin is None else 1e3 * begin
    high = last + room if end is None else 1e3 * end
    return float(low), float(max(high, low + 1e-3))


def _kinds(recording: Recording) -> tuple[Array, list[str]]:
    """The number of each tile's kind of op, and the kinds' names, those that took most time first."""
    names: list[str] = []
    number: dict[str, int] = {}
    kinds = np.zeros(len(recording.tiles), np.int64)
    for k in np.unique(recording.tiles["plan"]).tolist():
        mine = recording.tiles["plan"] == k
        ops = recording.plans[k].ops if k >= 0 else []
        table = []
        for op in ops:
            kind = "scheduling" if op.kernel in ("JOIN", "END") else op.kind
            if kind not in number:
                number[kind] = len(names)
                names.append(kind)
            table.append(number[kind])
        if k >= 0:
            kinds[mine] = np.array(table)[recording.plans[k].tiles["op"][recording.tiles["tile"][mine]]]
        else:
            kinds[mine] = number.setdefault("unknown", len(names))
            names += ["unknown"] if len(names) == number["unknown"] else []
    spent = np.bincount(kinds, recording.tiles["end"] - recording.tiles["begin"], minlength=len(names))
    order = np.argsort(-spent, kind="stable")
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names))
    ranked = [names[k] for k in order.tolist()]
    if len(names) > KINDS + 1:
        ranked = [*ranked[:KINDS], f"{len(names) - KINDS} other kinds"]
    return np.minimum(place[kinds], KINDS) if len(names) else kinds, ranked


def _draw_tiles(axes: Axes, recording: Recording, shown: list[int], first: float, last: float) -> list[tuple[str, Any]]:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    kinds, names = _kinds(recording)
    palette = colormaps["tab20"]
    # Strong colours first, then the pale ones of the same hues.
    colours = [palette((2 * k if k < 10 else 2 * (k - 10) + 1) / 20 + 0.01) for k in range(KINDS + 1)]
    tiles = recording.tiles
    for row, worker in enumerate(shown):
        mine = (tiles["worker"] == worker) & (tiles["end"] / 1e6 >= first) & (tiles["begin"] / 1e6 <= last)
        x0, x1, kind = tiles["begin"][mine] / 1e6, tiles["end"][mine] / 1e6, kinds[mine]
        # A box narrower than a tenth of a dot is drawn that wide: it must not vanish.
        x1 = np.maximum(x1, x0 + (last - first) / (WIDTH * 120 * 10))
        boxes = np.stack(
            [np.stack([x0, x0, x1, x1], 1), np.broadcast_to([row - 0.32, row + 0.32, row + 0.32, row - 0.32], (len(x0), 4))], 2
        )
        axes.add_collection(PolyCollection(list(boxes), facecolors=[colours[k] for k in kind], linewidths=0))
        stolen = tiles["came"][mine] == STOLEN
        axes.plot(x0[stolen], np.full(int(stolen.sum()), row - 0.38), linestyle="none", marker="v", markersize=3, color="black")
        cut = tiles["cut"][mine]
        axes.plot(x1[cut], np.full(int(cut.sum()), row), linestyle="none", marker="x", markersize=7, color="red")
    found: list[tuple[str, Any]] = [(name, colours[k]) for k, name in enumerate(names)]
    if (tiles["came"] == STOLEN).any():
        found.append(("stolen", None))
    return found


def _draw_gaps(axes: Axes, recording: Recording, shown: list[int]) -> None:
    for gaps, colour in ((recording.idle, "0.85"), (recording.stopped, "salmon")):
        for row, worker in enumerate(shown):
            mine = gaps[gaps["worker"] == worker]
            spans = list(zip(mine["begin"] / 1e6, (mine["end"] - mine["begin"]) / 1e6, strict=True))
            axes.broken_barh(spans, (row + 0.32, 0.07), facecolors=colour, linewidth=0)


def _draw_events(axes: Axes, recording: Recording, shown: list[int], first: float, last: float) -> None:
    place = {worker: row for row, worker in enumerate(shown)}
    for at, worker, what, _ in recording.instants:
        x = at / 1e6
        if not first <= x <= last:
            continue
        if worker in place:
            row = place[worker]
            axes.plot([x, x], [row - 0.42, row + 0.42], color="red" if what in ("died", "abandoned") else "black", linewidth=1)
            axes.annotate(what, (x, row - 0.42), fontsize=6, ha="left", va="bottom")
        elif what == "recovered":
            axes.axvline(x, color="red", linewidth=0.6, linestyle=":")


def _title(recording: Recording) -> str:
    found = summary.of(recording)
    requests = found["requests"]
    times = f", median {requests['median_ms']:.2f} ms" if requests["complete"] else ""
    steals = sum(row["stolen"] for row in found["workers"])
    lost = sum(recording.lost.values())
    models = ", ".join(requests["models"]) or "no model"
    return (
        f"{models}: {requests['count']} requests{times}; {len(recording.tiles)} tiles, {steals} stolen; "
        f"{found['span_utilisation']:.1%} of the workers' time in kernels" + (f"; {lost} records lost" if lost else "")
    )


def _legend(figure: Figure, labels: list[tuple[str, Any]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color="black", marker="v", linestyle="none", markersize=4, label=name)
        if colour is None
        else Patch(color=colour, label=name)
        for name, colour in labels
    ]
    handles.append(Patch(color="0.85", label="idle"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(8, len(handles)), fontsize=8, frameon=False)
