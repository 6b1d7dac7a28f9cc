"""How many tiles should a layer have? `aspen-mp bench tiles`.

Every layer is cut into about the same number of tiles (`Experiment.tiles`), for several numbers. Beside it runs the planner's own choice,
which differs from layer to layer. Few tiles leave workers idle at the end of each layer, many cost scheduling and reread weights: the curve
has a best point between.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aspen_mp.bench.figures.compare import Comparison, Entry, compare
from aspen_mp.bench.figures.seats import OURS, Say, Schedule, Variant
from aspen_mp.bench.peers.cases import Case

AUTOMATIC = "automatic"
DEFAULT = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256)


def measure(case: Case, cores: Sequence[int], numbers: Sequence[int], schedule: Schedule, say: Say) -> Comparison:
    """A network on these cores."""
    variants = [Variant(str(n), OURS, cores, {"planning": {"tiles": n}}) for n in numbers]
    return compare(case, [Variant(AUTOMATIC, OURS, cores), *variants], schedule, say)


def best(result: Comparison) -> Entry | None:
    """The fastest fixed number of tiles."""
    return min(result.others, key=lambda entry: entry.ratio, default=None)


def verdict(result: Comparison) -> str:
    """The result in one line. Below 1 the planner's choice beats every fixed number."""
    found = best(result)
    if found is None:
        return f"{result.case}: nothing was measured"
    text = f"the planner's choice takes {1 / found.ratio:.3f} of the time of the best fixed number, {found.label} tiles a layer"
    return f"{result.case}, {found.cores} workers: {text} ({1 / found.ratio_min:.3f} by minima)"


def plot(results: Sequence[Comparison], file: Path) -> None:
    """Time against tiles a layer, a curve for each network; lines across: the planner's choice. As a PNG."""
    from aspen_mp.bench.figures.picture import pyplot, save

    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for k, result in enumerate(results):
        points = [(int(entry.label), 1 / entry.ratio) for entry in result.others]
        axes.plot([n for n, _ in points], [y for _, y in points], "o-", color=f"C{k}", label=result.case)
        found = best(result)
        if found is not None:
            axes.plot(int(found.label), 1 / found.ratio, "o", color=f"C{k}", markersize=11, markerfacecolor="none")
    axes.axhline(1, color="0.3", linestyle="--", linewidth=1, label="the planner's choice")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="tiles a layer", ylabel="throughput, the planner's choice = 1", ylim=(0, None))
    axes.legend(loc="lower center")
    save(figure, file)
