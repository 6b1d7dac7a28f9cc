"""What is it worth that there are no operator barriers? `aspen-mp bench barriers`.

The same plan runs twice, tile for tile, on the same cores. One has the edges of the data, the other a barrier after every operator
(`Experiment.barriers`). ASPEN calls the difference opportunistic parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aspen_mp.bench.figures.compare import Comparison, compare
from aspen_mp.bench.figures.seats import OURS, Say, Schedule, Variant
from aspen_mp.bench.peers.cases import Case

FREE, BARRED = "no barriers", "barriers"


def measure(case: Case, cores: Sequence[int], engines: Sequence[str], schedule: Schedule, say: Say) -> Comparison:
    """A network on these cores; `engines`: others to set beside."""
    variants = [Variant(FREE, OURS, cores), Variant(BARRED, OURS, cores, {"planning": {"barriers": True}})]
    return compare(case, [*variants, *(Variant(name, name, cores) for name in engines if name != OURS)], schedule, say)


def verdict(result: Comparison) -> str:
    """The result in one line."""
    if BARRED not in result:
        return f"{result.case}: nothing was measured"
    barred = result[BARRED]
    text = f"{(barred.ratio - 1) * 100:+.1f}% by medians, {(barred.ratio_min - 1) * 100:+.1f}% by minima"
    return f"{result.case}, {barred.cores} workers, the same tiles: operator barriers change the time by {text} ({barred.median_ms:.2f} ms)"


def plot(results: Sequence[Comparison], file: Path) -> None:
    """Time with barriers by time without, a bar for each network, as a PNG."""
    from aspen_mp.bench.figures.picture import bars

    rows = [(result.case, {entry.label: entry.ratio for entry in result.entries}) for result in results]
    bars(rows, "time, no barriers = 1", file)
