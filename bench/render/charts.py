"""Charts as SVG. Each ends with the digest of the records that it shows, so that a check need not draw it again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from aspen_mp.bench import clients, elastic, storm
from aspen_mp.bench.coexecution import contention, deadlines, dynamic, priority, together
from aspen_mp.bench.figures import hetero, scaling, stacks
from aspen_mp.bench.figures.picture import colour, pyplot, save
from aspen_mp.bench.peers.report import PeersResult
from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.render import networks
from aspen_mp.bench.render.published import Published, digest
from aspen_mp.bench.torch import picture as torch

Draw = Callable[[Path], None]


def times(result: PeersResult, file: Path) -> None:
    """How many times as long as ours each engine takes, network by network."""
    plt = pyplot()
    others = networks.peers(result)
    cases = [case for case in result.cases if networks.ours(case) is not None]
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.42 * len(cases)), layout="constrained")
    height = 0.8 / len(others)
    for i, other in enumerate(others):
        bars = [
            (k + (i - (len(others) - 1) / 2) * height, 1 / engine.ratio_median)
            for k, case in enumerate(cases)
            for engine in case.engines
            if engine.engine == other and engine.ratio_median
        ]
        drawn = axes.barh(
            [at for at, _ in bars], [value for _, value in bars], height * 0.9, color=colour(other), label=networks.ENGINES[other]
        )
        axes.bar_label(drawn, fmt="%.2f", fontsize=8, padding=3)
    axes.axvline(1, color=colour(OURS), linewidth=2, label=f"{OURS} = 1")
    axes.set_yticks(range(len(cases)), [networks.name(case.case) for case in cases])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel=f"time of a request, in units of {OURS}'s (longer bars: {OURS} is faster)")
    axes.legend(loc="lower right", fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save(figure, file)


def draw(item: Published) -> Draw | None:
    """The picture of a record; None where a table says more."""
    result = item.record.result
    drawers: dict[str, Draw] = {
        "peers": lambda file: times(result, file),
        "scaling": lambda file: scaling.plot(result, file),
        "hetero": lambda file: hetero.plot(result, file),
        "stacks": lambda file: stacks.plot(result, file),
        "together": lambda file: together.plot(result, file),
        "priority": lambda file: priority.plot(result, file),
        "deadlines": lambda file: deadlines.plot(result, file),
        "dynamic": lambda file: dynamic.plot(result, file),
        "contention": lambda file: contention.plot(result, file),
        "torch": lambda file: torch.plot(result, file),
        "elastic": lambda file: elastic.plot(result, file),
        "storm": lambda file: storm.plot(result, file),
        "clients": lambda file: clients.plot(result, file),
    }
    if item.record.benchmark == "stacks" and not result.chains:
        return None
    return drawers.get(item.record.benchmark)


def name(item: Published) -> str:
    """The chart's file, beside the pages."""
    return f"{item.folder}-{item.file.stem}.svg"


def stale(file: Path, shown: Sequence[Published]) -> bool:
    """Whether a chart is not made from these records."""
    return not file.exists() or digest(shown) not in file.read_text("utf-8")


def write(file: Path, item: Published, drawer: Draw) -> None:
    """Draw a chart and sign it with the digest of its record."""
    with tempfile.TemporaryDirectory(prefix="aspen-mp-render-") as folder:
        drawn = Path(folder) / "chart.svg"
        drawer(drawn)
        lines = [line.rstrip() for line in drawn.read_text("utf-8").splitlines()]
    file.write_text("\n".join([*lines, f"<!-- {digest([item])} -->"]) + "\n", "utf-8")
