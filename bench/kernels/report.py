"""Output of `aspen-mp bench kernels`: a JSON document and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from aspen_mp.tools.core_limits import CoreLimits

from .measure import Timing, total


def document(found: Sequence[tuple[str, CoreLimits, Sequence[Timing]]]) -> dict[str, Any]:
    """`found`: network, limits of the core, timings. Rates are GFLOP/s and GB/s, times nanoseconds."""
    rows = [{"network": name, **_row(timing, limits)} for name, limits, timings in found for timing in timings]
    seen = {limits.isa: {"gflops": limits.gflops, "read_gbs": limits.read} for _, limits, _ in found}
    return {"limits": seen, "calls": rows}


def _row(t: Timing, limits: CoreLimits) -> dict[str, Any]:
    c = t.call
    return {
        "kernel": c.kernel,
        "isa": t.isa,
        "shape": c.label,
        "name": c.name,
        "times": c.times,
        "tile": list(c.tile),
        "flops": c.flops,
        "bytes": c.bytes,
        "warm_ns": t.warm,
        "best_ns": t.best,
        "cold_ns": t.cold,
        "of_peak": c.flops / t.warm / limits.gflops,
        "of_peak_cold": None if t.cold is None else c.flops / t.cold / limits.gflops,
        "of_bandwidth": c.bytes / t.warm / limits.bandwidth(c.bytes),
    }


def show(found: Sequence[tuple[str, CoreLimits, Sequence[Timing]]], each: bool, console: Console) -> None:
    """One row for each kernel family of a network, or with `each` for every call."""
    for limits in {limits.isa: limits for _, limits, _ in found}.values():
        rates = ", ".join(f"{size >> 10} KiB {rate:.0f}" for size, rate in limits.read.items())
        console.print(f"{limits.isa}: {limits.gflops:.1f} GFLOP/s; GB/s read from buffers of {rates}", style="dim", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("network", "ISA", "kernel", *(("shape",) if each else ())):
        table.add_column(column, no_wrap=True, max_width=60)
    for column in ("calls", "µs warm", "µs cold", "GFLOP/s", "of peak", "cold", "GB/s", "of bandwidth"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, limits, timings in found:
        groups: dict[str, list[Timing]] = {}
        for k, timing in enumerate(timings):
            groups.setdefault(f"{timing.call.kernel} {k}" if each else timing.call.kernel, []).append(timing)
        for group in groups.values():
            table.add_row(name, limits.isa, group[0].call.kernel, *([group[0].call.label] if each else []), *_sums(group, limits))
        if not each:
            table.add_row(name, limits.isa, "all", *_sums(list(timings), limits), end_section=True)
    console.print(table)
    console.print("one core; cold: weights in memory only; of bandwidth: reading a buffer of as many bytes", style="dim")


def _sums(group: list[Timing], limits: CoreLimits) -> list[str]:
    warm = total(group, lambda t: t.warm)
    with_cold = any(t.cold is not None for t in group)
    cold = total(group, lambda t: t.warm if t.cold is None else t.cold)
    flops = total(group, lambda t: t.call.flops)
    ideal = total(group, lambda t: t.call.bytes / limits.bandwidth(t.call.bytes))
    return [
        str(sum(t.call.times for t in group)),
        f"{warm / 1e3:.1f}",
        f"{cold / 1e3:.1f}" if with_cold else "",
        f"{flops / warm:.1f}",
        f"{flops / warm / limits.gflops:.1%}",
        f"{flops / cold / limits.gflops:.1%}" if with_cold else "",
        f"{total(group, lambda t: t.call.bytes) / warm:.1f}",
        f"{ideal / warm:.0%}",
    ]
