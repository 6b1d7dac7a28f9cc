"""The result of `bench ray` as a picture."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np

from aspen_mp.bench.ray.result import RayResult


def plot(result: RayResult, file: Path) -> None:
    """Rows a second and memory by number of actors, as a PNG."""
    from aspen_mp.bench.figures.picture import pyplot, save

    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9, 4), layout="constrained")
    engines = list(dict.fromkeys(found.engine for found in result.found))
    for place, engine in enumerate(engines):
        found = result.of(engine)
        at = np.arange(len(found)) + 0.4 * (place - (len(engines) - 1) / 2)
        left.bar(at, [median(each.per_s) for each in found], 0.4, label=engine)
        right.bar(at, [each.pss_bytes / 2**20 for each in found], 0.4, label=engine)
    left.axhline(median(result.direct_per_s), color="black", linestyle=":", label="a client without Ray")
    left.set(title="rows/s")
    left.legend(fontsize="small")
    right.set(title="memory of all processes, MiB (PSS)")
    for axes in (left, right):
        axes.set_xticks(range(len(result.of(engines[0]))), [f"{each.actors}" for each in result.of(engines[0])])
        axes.set_xlabel("actors")
    figure.suptitle(f"{result.case}: actors of Ray, {len(result.cores)} cores")
    save(figure, file)
