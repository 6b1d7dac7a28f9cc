"""The tiles of a request that ran, as a picture. Each op has a column, and its tiles stand there by their rows."""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from aspen_mp.shm.errors import RequestError
from aspen_mp.tracing.names import PlanNames
from aspen_mp.tracing.plot import check
from aspen_mp.tracing.recording import Recording

SILENT: Final = ("JOIN", "END", "Reach")
"""Kinds of ops that compute nothing of the model."""
IMAGE_RANK: Final = 4
ROWS: Final = 2
"""The axis of rows of an image, of `IMAGE_RANK` axes."""
WIDTH: Final = 12.0
"""Inches."""
Rows = dict[tuple[float, float], list[bool]]
"""Whether tiles ran, by the rows of the output that they make: from 0, the top, to 1."""


def draw(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write the picture of the last request, in the format that the name ends in (.png, .svg, .pdf). RequestError: there is no request
    whose plan is known."""
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    columns = ran_by_op(recording)
    figure = Figure(figsize=(WIDTH, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    boxes, shades = [], []
    for x, (_, rows) in enumerate(columns):
        for (top, bottom), ran in rows.items():
            boxes.append([(x + 0.06, top), (x + 0.94, top), (x + 0.94, bottom), (x + 0.06, bottom)])
            shades.append(0.92 - 0.72 * sum(ran) / len(ran))
    colours = [(shade * 0.55, shade * 0.75, 0.35 + 0.6 * shade) for shade in shades]
    axes.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="white", linewidths=0.3))
    axes.set_xlim(0, max(len(columns), 1))
    axes.set_ylim(1, 0)
    axes.set_yticks([0, 1], ["first row", "last row"])
    step = max(1, len(columns) // 24)
    shown = range(0, len(columns), step)
    axes.set_xticks([x + 0.5 for x in shown], [columns[x][0].partition(" (")[0] for x in shown], rotation=90, fontsize=7)
    tiles = [ran for _, rows in columns for found in rows.values() for ran in found]
    axes.set_title(f"{sum(tiles)} of {len(tiles)} tiles ran (dark), each column is an op", fontsize=10, loc="left")
    figure.savefig(path)


def ran_by_op(recording: Recording) -> list[tuple[str, Rows]]:
    """For each op of the last request: its name, and whether its tiles ran."""
    tiles = recording.tiles[recording.tiles["plan"] >= 0]
    if not len(tiles):
        raise RequestError("the trace holds no request of a model whose plan is known. Run one while it is recorded")
    tiles = tiles[tiles["request"] == tiles["request"].max()]
    plan = recording.plans[int(tiles["plan"][0])]
    found: list[tuple[str, Rows]] = [(op.name, {}) for op in plan.ops]
    places = [_rows_axis(plan, number) for number in range(len(plan.ops))]
    for tile, skipped in zip(tiles["tile"].tolist(), tiles["skipped"].tolist(), strict=True):
        row = plan.tiles[tile]
        number = int(row["op"])
        axis, length = places[number]
        bounds = (float(row["lo"][axis] / length), float(row["hi"][axis] / length))
        found[number][1].setdefault(bounds, []).append(not skipped)
    return [one for one, op in zip(found, plan.ops, strict=True) if op.kind not in SILENT and one[1]]


def _rows_axis(plan: PlanNames, number: int) -> tuple[int, int]:
    """The axis of an op's output that is drawn downwards, and its length: rows of images, or else the longest one."""
    upper = plan.tiles["hi"][plan.tiles["op"] == number]
    lengths = upper.max(axis=0) if len(upper) else np.ones(1, np.int64)
    rank = min(plan.ops[number].rank, len(lengths))
    axis = ROWS if rank == IMAGE_RANK else int(np.argmax(lengths[: max(rank, 1)]))
    return axis, max(int(lengths[axis]), 1)
