"""How does one request get faster with more cores? `aspen-mp bench scaling`.

Strong scaling: the same request on 1 … N cores, for each engine. The serial run that counts is the best of any engine on one core, so that
a slow serial run flatters nobody. p_e is the parallel fraction by Karp and Flatt: with speedup S on n cores, 1 - (1/S - 1/n) / (1 - 1/n).
No runtime can win back the time that cores take from each other in caches, memory and clock. It shows where each core runs a request of its
own (`APART`). n of those at the same time, on n runtimes that share nothing, take longer than one. Their time by n is about what a request
would take on n cores if dividing it cost nothing. Memory may be shared, too. n cores may read it hardly faster than one does, and the ratio
may change with what else a host runs. So it is read in turns with the rest (`Memory`). Simulations say what parallel fraction that leaves,
and what it would be without the limit. Machines that are not at hand are simulated (`aspen_mp.planner.simulation.simulate`), and say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aspen_mp.bench.figures.compare import Comparison, Entry, compare
from aspen_mp.bench.figures.seats import OURS, Say, Schedule, Variant
from aspen_mp.bench.figures.simulated import AtOnce, SimulatedNetwork
from aspen_mp.bench.figures.states import State
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.engines import MEMORY, MEMORY_BYTES
from aspen_mp.planner.simulation.simulate import parallel_fraction

APART = "aspen-mp, a request a core"
"""Label of n requests on n cores; times are those of a run by n."""


@dataclass(slots=True)
class Point:
    """An engine on so many cores. `speedup` against the best serial run, `p_e` from it (None on one core); `_min`: by the fastest runs.
    `simulated`: nothing was measured, and times of minima are those of medians. `rounds_ms`: the middle run of each round."""

    engine: str
    cores: int
    ms: float
    min_ms: float
    speedup: float
    p_e: float | None
    speedup_min: float
    p_e_min: float | None
    simulated: bool = False
    rounds_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Memory:
    """What cores read of memory behind the caches at the same time, GB/s, by the median of rounds and by the fastest run. `p_e`: by
    simulation with that median, `p_e_unlimited` as if each core had all that one has alone; None on one core."""

    cores: int
    gb_s: float
    best_gb_s: float
    p_e: float | None = None
    p_e_unlimited: float | None = None


@dataclass(frozen=True, slots=True)
class InState:
    """On the largest number of cores, by the turns in one state of the machine (`states.State`), in medians. `p_e`, `turns`: by engine, of
    those that had turns in it; `gb_s`: what the cores read of memory, None where that was not measured."""

    far: float
    p_e: dict[str, float]
    turns: dict[str, int]
    gb_s: float | None = None


@dataclass(slots=True)
class ScalingResult:
    """`serial`: the engine with the best serial run, by medians. `memory`: by numbers of cores, the smallest first. `far`: what a byte of
    another core's took longer meanwhile, as of `Comparison`; `states`: where the machine was in several. `at_once`: several requests at a
    time, simulated."""

    case: str
    serial: str
    serial_ms: float
    points: list[Point] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    rejected: int = 0
    disturbed: int = 0
    memory: list[Memory] = field(default_factory=list)
    far: float | None = None
    states: list[InState] = field(default_factory=list)
    at_once: list[AtOnce] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The result in one line: the largest number of cores that was measured, then the simulated ones."""
        measured = [p for p in self.points if not p.simulated]
        if not measured:
            return f"{self.case}: nothing was measured"
        most = max(p.cores for p in measured)
        parts = [f"{p.engine} {_p_e(p.p_e)} (minima {_p_e(p.p_e_min)})" for p in measured if p.cores == most]
        text = f"{self.case}: p_e on {most} cores {', '.join(parts)}; best serial run {self.serial}, {self.serial_ms:.2f} ms"
        far = [f"{p.speedup:.1f} on {p.cores}" for p in self.points if p.simulated]
        text += f"; simulated speedup {', '.join(far)}" if far else ""
        for state in self.states:
            fractions = ", ".join(f"{engine} {_p_e(p_e)} in {state.turns[engine]} turns" for engine, p_e in state.p_e.items())
            read = "" if state.gb_s is None else f" and {state.gb_s:.0f} GB/s of memory"
            text += f"; with {state.far:.3f} ns for another core's byte{read}: {fractions}" if fractions else ""
        if self.far is not None and most > 1 and not self.states:
            text += f"; another core's byte takes {self.far:.3f} ns longer"
        shared = next((m for m in self.memory if m.cores == most), None)
        if shared is None or shared.p_e is None:
            return text
        read = " and ".join(f"{m.gb_s:.0f} on {m.cores}" for m in self.memory if m.cores in {1, most})
        return text + f"; memory: {read}, GB/s, leave p_e {_p_e(shared.p_e)} by simulation, {_p_e(shared.p_e_unlimited)} without that limit"


def _p_e(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _fraction(speedup: float, cores: int) -> float | None:
    """Parallel fraction; None on one core."""
    return None if cores == 1 else parallel_fraction(speedup, 1.0, cores)


def measure(
    case: Case,
    engines: Sequence[str],
    cores: Sequence[int],
    numbers: Sequence[int],
    simulated: Sequence[int],
    schedule: Schedule,
    say: Say,
    *,
    apart: bool = False,
    in_flight: Sequence[int] = (),
) -> ScalingResult:
    """Measures a network on the first n of `cores`, for each n of `numbers`; `simulated`: core counts to simulate. `apart`: n requests on n
    runtimes, too. `in_flight`: numbers of requests at a time to simulate on each of these core counts."""
    counts = sorted({1, *numbers})
    variants = [Variant(_label(engine, n), engine, cores[:n]) for engine in engines for n in counts]
    ours = OURS in engines
    if ours:  # in turns with ours, which come first
        variants[len(counts) : len(counts)] = [Variant(_label(MEMORY.name, n), MEMORY.name, cores[:n]) for n in counts]
    if apart:
        variants += [Variant(_label(APART, n), OURS, cores[:n], {"apart": True}) for n in counts if n > 1]
    found = compare(case, variants, schedule, say)
    result = of_comparison(found)
    if not result.points or not (simulated or ours):
        return result
    say(f"{case.label}: simulating")
    network = SimulatedNetwork(case)
    if simulated:
        for n, ms in network.cores(simulated).items():
            result.points.append(_point(OURS, n, ms, ms, result.serial_ms, result.serial_ms, simulated=True))
        result.at_once = network.at_once(simulated, in_flight)
    shared = [m for m in result.memory if m.cores > 1]
    if shared and result.memory[0].cores == 1:
        times = {m.cores: m.gb_s / result.memory[0].gb_s for m in shared}
        for m, (limited, unlimited) in zip(shared, network.fractions(times), strict=True):
            m.p_e, m.p_e_unlimited = limited, unlimited
    return result


def _label(engine: str, n: int) -> str:
    return f"{engine} on {n}"


def of_comparison(found: Comparison) -> ScalingResult:
    """Speedups of entries; times are the reference's times the ratios to it, so that groups measured one after the other compare."""
    result = ScalingResult(found.case, "", 0.0, [], found.failed, found.settings, found.absent, found.rejected, found.disturbed)
    if not found.entries:
        return result
    first = found.entries[0]
    result.memory = [_memory(entry) for entry in sorted(found.entries, key=lambda entry: entry.cores) if entry.engine == MEMORY.name]
    entries = [entry for entry in found.entries if entry.engine != MEMORY.name]

    def times(entry: Entry) -> tuple[float, float]:
        return first.median_ms * entry.ratio / _requests(entry), first.min_ms * entry.ratio_min / _requests(entry)

    serial = min((entry for entry in entries if entry.cores == 1), key=lambda entry: times(entry)[0])
    least = min(times(entry)[1] for entry in entries if entry.cores == 1)
    result.serial, result.serial_ms = serial.engine, times(serial)[0]
    for entry in entries:
        point = _point(_engine(entry), entry.cores, *times(entry), result.serial_ms, least)
        point.rounds_ms = entry.rounds_ms
        result.points.append(point)
    result.far = found.far
    if len(found.states) > 1:
        result.states = [_in_state(found, state) for state in found.states]
    return result


def _apart(entry: Entry) -> bool:
    return entry.label == _label(APART, entry.cores)


def _engine(entry: Entry) -> str:
    return APART if _apart(entry) else entry.engine


def _requests(entry: Entry) -> int:
    """The number of requests in a run."""
    return entry.cores if _apart(entry) else 1


def _in_state(found: Comparison, state: State) -> InState:
    """The result of turns in one state for the largest number of cores."""
    most = max(entry.cores for entry in found.entries)
    medians = found.medians_in(state)
    runs = [entry for entry in found.entries if entry.engine != MEMORY.name and entry.label in medians]
    serial = min((medians[entry.label] for entry in runs if entry.cores == 1), default=math.nan)
    many = [entry for entry in runs if entry.cores == most > 1] if serial > 0 else []
    return InState(
        state.far,
        {_engine(entry): parallel_fraction(serial, medians[entry.label] / _requests(entry), most) for entry in many},
        {_engine(entry): len(entry.ms_in(state)) for entry in many},
        next((most * MEMORY_BYTES / 1e6 / ms for label, ms in medians.items() if label == _label(MEMORY.name, most)), None),
    )


def _memory(entry: Entry) -> Memory:
    read = entry.cores * MEMORY_BYTES / 1e6  # MB, so by milliseconds it is GB/s
    return Memory(entry.cores, read / entry.median_ms, read / entry.min_ms)


def _point(engine: str, cores: int, ms: float, min_ms: float, serial_ms: float, serial_min_ms: float, *, simulated: bool = False) -> Point:
    speedup, by_min = serial_ms / ms, serial_min_ms / min_ms
    fractions = _fraction(speedup, cores), _fraction(by_min, cores)
    return Point(engine, cores, ms, min_ms, speedup, fractions[0], by_min, fractions[1], simulated)


def plot(results: Sequence[ScalingResult], file: Path) -> None:
    """Speedup against cores for each engine, simulated points hollow, as a PNG."""
    from aspen_mp.bench.figures.picture import colour, pyplot, save

    plt = pyplot()
    figure, panes = plt.subplots(1, len(results), figsize=(1 + 4 * len(results), 4), layout="constrained", squeeze=False)
    for axes, result in zip(panes[0], results, strict=True):
        most = max((p.cores for p in result.points), default=1)
        axes.plot([1, most], [1, most], color="0.6", linewidth=0.8, label="ideal")
        for engine in dict.fromkeys(p.engine for p in result.points):
            if engine == APART:
                limit = sorted((p for p in result.points if p.engine == APART), key=lambda p: p.cores)
                axes.plot([p.cores for p in limit], [p.speedup for p in limit], "k_", markersize=12, label=APART)
                continue
            own = sorted((p for p in result.points if p.engine == engine and not p.simulated), key=lambda p: p.cores)
            axes.plot([p.cores for p in own], [p.speedup for p in own], "o-", color=colour(engine), label=engine)
            far = sorted((p for p in result.points if p.engine == engine and p.simulated), key=lambda p: p.cores)
            if far:
                tag = f"{engine}, simulated"
                x, y = [p.cores for p in far], [p.speedup for p in far]
                axes.plot(x, y, "o:", color=colour(engine), markerfacecolor="none", label=tag)
        axes.set(title=result.case, xlabel="cores", ylim=(0, None))
        if most > 8:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_ylim(0.5, None)
        axes.legend(fontsize=8)
    panes[0][0].set_ylabel("speedup over the best serial run")
    save(figure, file)
