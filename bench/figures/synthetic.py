"""ASPEN's synthetic network, a chain of equal convolutions, beside other runtimes: `aspen-mp bench synthetic`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aspen_mp.bench.figures.compare import Comparison, compare
from aspen_mp.bench.figures.seats import OURS, Say, Schedule, Variant
from aspen_mp.bench.peers.cases import Case

ONE = f"{OURS}, 1 core"


def case_of(layers: int, height: int, width: int, channels: int) -> Case:
    """The network: `layers` 3×3 convolutions of `channels` to `channels` on an image of `height` × `width` pixels."""
    return Case("aspen32", options={"layers": layers, "image": (height, width), "channels": channels})


def measure(case: Case, cores: Sequence[int], engines: Sequence[str], schedule: Schedule, say: Say) -> Comparison:
    """On all cores, and ours on one of them, too."""
    variants = [Variant(name, name, cores) for name in engines]
    if OURS in engines and len(cores) > 1:
        variants.append(Variant(ONE, OURS, cores[:1]))
    return compare(case, variants, schedule, say)


def verdict(result: Comparison) -> str:
    """The result in one line."""
    if not result.entries:
        return f"{result.case}: nothing was measured"
    first = result.entries[0]
    text = f"{first.label} {first.median_ms:.2f} ms on {first.cores} cores"
    if ONE in result and first.engine == OURS:
        text += f", {result[ONE].ratio:.2f} times as fast as on one"
    peers = [f"{e.label} takes {e.ratio:.2f} times as long ({e.ratio_min:.2f} by minima)" for e in result.others if e.label != ONE]
    return f"{result.case}: {'; '.join([text, *peers])}"


def plot(results: Sequence[Comparison], file: Path) -> None:
    """Multiply-adds a second, a bar for each engine, as a PNG."""
    from aspen_mp.bench.figures.picture import bars

    rows = [(r.case.partition("@")[2] or r.case, {e.label: (r.macs or 0) / e.median_ms / 1e6 for e in r.entries}) for r in results]
    bars(rows, "10⁹ multiply-adds a second", file, line=False)
