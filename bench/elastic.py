"""Throughput against time while workers are added and removed under load: `aspen-mp bench elastic`.

A fixed number of requests is always in flight. At each step the runtime is told how many workers it is to have. The time to have an effect
ends when a worker that has joined has executed a tile, or when those that leave have ended. Plans follow the workers as they do for
everybody: some seconds into a step another plan is measured than before (docs/decisions/0010-plans-follow-the-cores.md).
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import aspen_mp
from aspen_mp.bench.load import Load, resize, subject
from aspen_mp.bench.peers.cases import Case

WINDOW_S = 0.25
"""Width of the running mean in the plot."""


@dataclass(slots=True)
class Step:
    """`asked_s`: when the call was made, from the beginning of the load. `effect_ms`: from then until it had its effect, None for the first
    step. `requests_per_s`: from the effect to the next step; `latency_ms`: median of the requests that began and ended there."""

    workers: int
    asked_s: float
    effect_ms: float | None
    effect_s: float
    requests_per_s: float = 0.0
    latency_ms: float = 0.0


@dataclass(slots=True)
class Run:
    """`done_s`: when each request ended. `wrong`: those whose bits differ from the first, `lost`: those that failed."""

    case: str
    in_flight: int
    steps: list[Step]
    began_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    wrong: int = 0
    lost: int = 0

    @property
    def effects(self) -> list[float]:
        """Milliseconds until each change had its effect."""
        return [step.effect_ms for step in self.steps if step.effect_ms is not None]

    @property
    def verdict(self) -> str:
        """The result in one line."""
        levels = ", ".join(f"{s.workers}: {s.requests_per_s:.1f}" for s in self.steps)
        whole = "none lost, none wrong" if not self.lost + self.wrong else f"{self.lost} LOST, {self.wrong} WRONG"
        effect = f"; effect after {statistics.median(self.effects):.0f} ms, at most {max(self.effects):.0f}" if self.effects else ""
        return f"{self.case}: requests/s by workers {levels}{effect}; {len(self.done_s)} requests, {whole}"


def measure(case: Case, steps: Sequence[int], seconds: float, in_flight: int, say: Callable[[str], None]) -> Run:
    """Goes through `steps` (numbers of workers), `seconds` each, on a runtime of its own."""
    with aspen_mp.Runtime(workers=max(steps), max_workers=2 * max(steps)) as runtime:
        it = subject(runtime, case, min(max(2, in_flight), 8))
        resize(runtime, steps[0])
        load = Load([it], in_flight)
        run = Run(case.label, in_flight, [])
        try:
            for workers in steps:
                say(f"{case.label}: {workers} workers")
                asked = time.monotonic()
                effect = resize(runtime, workers) if run.steps else None
                now = time.monotonic()
                run.steps.append(Step(workers, asked - load.since, None if effect is None else effect * 1e3, now - load.since))
                load.sleep(seconds)
        finally:
            answers = load.stop()
        end = time.monotonic() - load.since
    order = [(a.done - load.since, a.began - load.since) for a in answers if not a.lost]
    run.done_s, run.began_s = [d for d, _ in order], [b for _, b in order]
    run.wrong, run.lost = sum(a.wrong for a in answers), sum(bool(a.lost) for a in answers)
    for step, until in zip(run.steps, [*(s.asked_s for s in run.steps[1:]), end], strict=True):
        first, last = bisect.bisect(run.done_s, step.effect_s), bisect.bisect(run.done_s, until)
        step.requests_per_s = (last - first) / (until - step.effect_s)
        times = [d - b for d, b in order[first:last] if b >= step.effect_s]
        step.latency_ms = statistics.median(times) * 1e3 if times else 0.0
    return run


def plot(run: Run, file: Path) -> None:
    """Throughput, as a running mean over `WINDOW_S`, and the number of workers against time, as a PNG."""
    from matplotlib.ticker import MaxNLocator

    from aspen_mp.bench.figures.picture import pyplot, save

    end = max(run.done_s)
    at = np.arange(0.0, end, WINDOW_S / 5)
    done = np.array(run.done_s)
    low, high = np.maximum(at - WINDOW_S / 2, 0.0), np.minimum(at + WINDOW_S / 2, end)
    rate = (np.searchsorted(done, high) - np.searchsorted(done, low)) / (high - low)
    figure, axes = pyplot().subplots(figsize=(9, 4.5), layout="constrained")
    axes.plot(at, rate, color="tab:blue", label="requests/s")
    for i, step in enumerate(run.steps):
        until = run.steps[i + 1].asked_s if i + 1 < len(run.steps) else end
        axes.hlines(step.requests_per_s, step.effect_s, until, color="tab:blue", alpha=0.5, linestyle="--")
        if i:
            axes.axvline(step.asked_s, color="0.7", linewidth=0.8)
    axes.set(xlabel="seconds", ylabel="requests/s", ylim=(0, None), xlim=(0, end), title=f"{run.case}, {run.in_flight} requests in flight")
    workers = axes.twinx()
    times, counts = [s.asked_s for s in run.steps], [s.workers for s in run.steps]
    workers.step([*times, end], [*counts, counts[-1]], where="post", color="tab:orange", label="workers asked for")
    workers.set(ylabel="workers asked for", ylim=(0, max(s.workers for s in run.steps) + 1))
    lines = [*axes.get_legend_handles_labels()[0], *workers.get_legend_handles_labels()[0]]
    axes.legend(handles=lines, loc="upper left", fontsize="small")
    workers.yaxis.set_major_locator(MaxNLocator(integer=True))
    save(figure, file)
