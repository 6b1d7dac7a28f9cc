"""Drawing without a screen; matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aspen_mp.bench.peers.rounds import OURS

_COLOURS = {OURS: "tab:blue", "onnxruntime": "tab:orange", "openvino": "tab:green", "torch": "tab:red", "torch.compile": "tab:purple"}


def pyplot() -> Any:
    """matplotlib.pyplot, drawing into files."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    return plt


def colour(engine: str) -> str:
    """The same in every figure."""
    return _COLOURS.get(engine, "0.5")


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], what: str, file: Path, *, line: bool = True) -> None:
    """A group of bars for each row (its name, value by label) as a PNG; `line`: mark 1."""
    plt = pyplot()
    labels = list(dict.fromkeys(label for _, values in rows for label in values))
    figure, axes = plt.subplots(figsize=(max(5.0, 1.5 + 0.5 * len(rows) * (len(labels) + 1)), 4), layout="constrained")
    width = 0.8 / max(len(labels), 1)
    for i, label in enumerate(labels):
        at = [k + (i - (len(labels) - 1) / 2) * width for k, (_, values) in enumerate(rows) if label in values]
        drawn = axes.bar(at, [values[label] for _, values in rows if label in values], width * 0.95, label=label, color=_COLOURS.get(label))
        axes.bar_label(drawn, fmt="%.3g", fontsize=7)
    if line:
        axes.axhline(1, color="0.3", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
    axes.set(ylabel=what)
    axes.margins(y=0.25)
    axes.legend(fontsize=8, loc="upper left", ncols=min(len(labels), 3))
    save(figure, file)


def save(figure: Any, file: Path) -> None:
    """Write a figure in the format of the file's suffix. An SVG has the same bytes whenever it is drawn, and its text stays text."""
    plt = pyplot()
    vector = file.suffix == ".svg"
    with plt.rc_context({"svg.hashsalt": "aspen-mp", "svg.fonttype": "none"}):
        figure.savefig(file, dpi=120, metadata={"Date": None} if vector else None)
    plt.close(figure)
