"""The result of `bench serve` as a picture."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from aspen_mp.bench.serve.result import ServeResult


def plot(result: ServeResult, file: Path) -> None:
    """Throughput and 99th percentile by requests in flight, a column for each transport, as a PNG."""
    from aspen_mp.bench.figures.picture import pyplot, save

    closed = [each for each in result.served if each.setting.rate is None]
    transports = list(dict.fromkeys(each.setting.transport for each in closed))
    figure, axes = pyplot().subplots(2, len(transports), figsize=(4 * len(transports), 6), layout="constrained", squeeze=False)
    for column, transport in enumerate(transports):
        above, below = axes[0][column], axes[1][column]
        for engine in dict.fromkeys(each.setting.engine for each in closed):
            own = sorted(
                (each for each in closed if (each.setting.engine, each.setting.transport) == (engine, transport)),
                key=lambda each: each.setting.connections,
            )
            at = [each.setting.connections for each in own]
            above.plot(at, [median(each.per_s) for each in own], marker="o", label=engine)
            below.plot(at, [median(each.p99_ms) for each in own], marker="o", label=engine)
        above.set(title=transport, xscale="log", ylim=(0, None))
        below.set(xscale="log", yscale="log", xlabel="requests in flight")
    axes[0][0].set_ylabel("answers/s")
    axes[1][0].set_ylabel("p99, ms")
    axes[0][0].legend(fontsize="small")
    figure.suptitle(f"{result.case} behind a server, {len(result.cores)} cores")
    save(figure, file)
