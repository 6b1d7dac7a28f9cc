"""What is the order worth in which ready tiles are taken? `aspen-mp bench order`.

A worker goes on with the best child of what it has finished. The tiles that it leaves to the pool are ordered by depth (shallow tiles
first), and among equals by arrival. The orders are `fifo` (that of runtimes), `lifo`, and `random`, which forgets depth too and follows no
child half of the time. Layer order (nothing is followed, the tile of the lowest rank comes first) would need a sorted queue, which the pool
has no use for
otherwise: it is simulated, like the others beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aspen_mp.bench.figures.compare import Comparison, compare
from aspen_mp.bench.figures.seats import OURS, Say, Schedule, Variant
from aspen_mp.bench.figures.simulated import SimulatedNetwork
from aspen_mp.bench.peers.cases import Case

ORDERS = ("fifo", "lifo", "random")


def measure(case: Case, cores: Sequence[int], schedule: Schedule, say: Say) -> Comparison:
    """A network on these cores. `Comparison.simulated`: milliseconds by order, by simulation."""
    result = compare(case, [Variant(order, OURS, cores, {"order": order}) for order in ORDERS], schedule, say)
    say(f"{case.label}: simulating")
    result.simulated = SimulatedNetwork(case).orders(cores)
    return result


def verdict(result: Comparison) -> str:
    """The result in one line."""
    if not result.others:
        return f"{result.case}: nothing was measured"
    parts = [f"{entry.label} {(entry.ratio - 1) * 100:+.1f}% ({(entry.ratio_min - 1) * 100:+.1f}% by minima)" for entry in result.others]
    return (
        f"{result.case}, {result.entries[0].cores} workers: time against first come, first served: {', '.join(parts)}{_simulated(result)}"
    )


def _simulated(result: Comparison) -> str:
    times = {order: ms / result.simulated["fifo"] - 1 for order, ms in result.simulated.items() if order != "fifo"}
    return f"; simulated {', '.join(f'{order} {share * 100:+.1f}%' for order, share in times.items())}" if times else ""


def plot(results: Sequence[Comparison], file: Path) -> None:
    """Time of each order by that of `fifo`, as a PNG."""
    from aspen_mp.bench.figures.picture import bars

    rows = [(result.case, {entry.label: entry.ratio for entry in result.entries}) for result in results]
    for (_, values), result in zip(rows, results, strict=True):
        values.update({f"{order}, simulated": ms / result.simulated["fifo"] for order, ms in result.simulated.items() if order != "fifo"})
    bars(rows, "time, fifo = 1", file)
