"""Unlike cores: is a fast core together with a slow one worth the sum of both? `aspen-mp bench hetero`.

One request at a time, so that the cores have to share each. A core of this machine is slowed by a real load (`aspen_mp.bench.slow`). No
runtime can win back the time that cores take from each other in caches, memory and clock. It shows where each core serves requests of its
own at the same time (`APART`), on runtimes that share nothing. These need not be worth the sum of the parts, either. And all cores may read
memory hardly faster than the fast ones do. So it is read in turns with the rest (`Memory`). Simulations say what share of the sum that
leaves, and what it would be without the limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from aspen_mp.bench.figures import states
from aspen_mp.bench.figures.seats import OURS, Rounds, Say, Schedule, Seats, Variant
from aspen_mp.bench.figures.simulated import SimulatedNetwork
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.engines import MEMORY, MEMORY_BYTES
from aspen_mp.bench.slow import Method, SlowCore, slow_core

FAST, SLOW, BOTH, APART = "fast core", "slow core", "all cores", "a request on each core"
LEAST_TURNS = 3
"""Turns in one state of the machine, to be told from others."""


@dataclass(frozen=True, slots=True)
class InState:
    """`fraction` and `apart` by the turns in one state of the machine (`states.State`), in medians. `turns`: of all cores."""

    far: float
    turns: int
    fraction: float
    apart: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is read of memory behind the caches while the slow cores are slow, GB/s, medians of rounds: by one fast core, and by all at
    once. `speed`: of a slow core, by the requests that it serves. `fraction`: of the sum of the parts, simulated for cores of that
    speed with that memory; `unlimited`: as if each core had all that it has alone."""

    one_gb_s: float
    all_gb_s: float
    speed: float
    fraction: float
    unlimited: float


@dataclass(slots=True)
class Point:
    """An engine with the slow cores at one speed. `fast`, `slow`, `both`: requests a second on the fast cores alone, on the slow cores
    alone, on all; `fraction`: of the sum of both that all reach, `of_fast`: by what factor they beat the fast cores alone (medians of
    rounds, of which `fractions` has each); `fraction_min`: the same of the fastest runs. `apart`: like `fraction`, of requests of their own
    that all cores serve at the same time, None where that was not measured. Milliseconds: medians and the fastest runs, in this order.
    `far`: what a byte of another core's took longer meanwhile (`states.probe`), the median of all looks; `states`: where the machine was in
    several."""

    engine: str
    wanted: float
    left: list[float]
    taken: list[float]
    fast: float
    slow: float
    both: float
    fraction: float
    fractions: list[float]
    of_fast: float
    fraction_min: float
    median_ms: tuple[float, float, float]
    min_ms: tuple[float, float, float]
    rounds: int
    rejected: int
    disturbed: int
    apart: float | None = None
    far: float | None = None
    states: list[InState] = field(default_factory=list)
    memory: Memory | None = None


@dataclass(slots=True)
class HeteroResult:
    """`wanted`: speeds of the slow cores, 1: not slowed."""

    case: str
    fast: list[int]
    slow: list[int]
    method: str
    points: list[Point] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        engines = list(dict.fromkeys(p.engine for p in self.points))
        parts = []
        for engine in engines:
            own = [p for p in self.points if p.engine == engine]
            worse = [_at(p.wanted) for p in own if p.of_fast < 1]
            text = f"{engine} reaches " + ", ".join(f"{p.fraction:.2f} {_at(p.wanted)}{_by_state(p)}" for p in own)
            apart = [f"{p.apart:.2f} {_at(p.wanted)}" for p in own if p.apart is not None]
            text += f". With {APART} at once: {', '.join(apart)}" if apart else ""
            leave = [_memory_leaves(p.wanted, p.memory) for p in own if p.memory]
            text += f". {'. '.join(leave)}" if leave else ""
            parts.append(text + (f". The {FAST} alone is faster {', '.join(worse)}" if worse else ""))
        if not parts:
            return f"{self.case}: nothing was measured"
        what = f"One request at a time on all cores, as a share of the throughput of {FAST} and {SLOW}, each alone, added up"
        return f"{self.case}: {what}. {'. '.join(parts)}."


def _at(speed: float) -> str:
    """Where the slow core has this speed."""
    return "without a load" if speed == 1 else f"at speed {speed:g}"


def _by_state(point: Point) -> str:
    found = [f"{state.fraction:.2f} in {state.turns} turns with {state.far:.3f} ns for another core's byte" for state in point.states]
    return f" ({', '.join(found)})" if found else ""


def _memory_leaves(speed: float, memory: Memory) -> str:
    read = f"one core reads {memory.one_gb_s:.0f} GB/s of memory and all cores {memory.all_gb_s:.0f}"
    return f"By simulation {memory.fraction:.2f} {_at(speed)}, because {read}; {memory.unlimited:.2f} without that limit"


def measure(
    case: Case,
    engines: Sequence[str],
    fast: Sequence[int],
    slow: Sequence[int],
    speeds: Sequence[float],
    schedule: Schedule,
    method: Method | None,
    settle: float,
    say: Say,
    *,
    apart: bool = False,
) -> HeteroResult:
    """Measures a network. `apart`: ours also with requests of its own on each core. `settle`: how many seconds all cores are busy with
    requests before they are measured at another speed. Ours makes its plan again for the cores as they are. That takes some seconds to
    notice and, behind the requests, ten to fifteen to do. Engines follow one another; for each, the sets of cores take turns, at each speed
    in its turn."""
    result = HeteroResult(case.label, list(fast), list(slow), method or "auto")
    for engine in engines:
        cores = {FAST: [*fast], SLOW: [*slow], BOTH: [*fast, *slow]}
        options = {"replan": True} if engine == OURS else {}
        variants = [Variant(f"{engine}, {label}", engine, cpus, options) for label, cpus in cores.items()]
        if apart and engine == OURS:
            variants.append(Variant(f"{engine}, {APART}", engine, cores[BOTH], {"apart": True, "ongoing": True}))
        if engine == OURS:
            variants += [Variant(_read_by(label), MEMORY.name, cpus) for label, cpus in ((FAST, cores[FAST][:1]), (BOTH, cores[BOTH]))]
        read: dict[float, tuple[float, float]] = {}
        with Seats(case, variants, say) as seats:
            before = 1.0
            for speed in speeds:
                with ExitStack() as stack:
                    loads: list[SlowCore] = []
                    if speed < 1:
                        loads = [stack.enter_context(slow_core(cpu, speed, method, say=say)) for cpu in slow]
                        result.method = loads[0].method
                    if settle and speed != before:
                        seats.settle(f"{engine}, {BOTH}", settle, f"slow cores at {speed:g}")
                    before = speed
                    took = _Taken(loads)
                    rounds = seats.rounds(
                        schedule,
                        f"slow cores at {speed:g}",
                        beside=lambda: sum(load.load_seconds() for load in loads),  # noqa: B023
                        probe=lambda: states.probe(cores[BOTH]),  # noqa: B023
                    )
                    result.failed.update(rounds.failed)
                    if all(f"{engine}, {label}" in rounds for label in cores):
                        result.points.append(_point(engine, speed, loads, took.shares(), rounds))
                    if _read_by(FAST) in rounds and _read_by(BOTH) in rounds:
                        read[speed] = _gb_s(rounds, FAST, 1), _gb_s(rounds, BOTH, len(cores[BOTH]))
            result.settings.update(seats.settings)
        if read:
            say(f"{case.label}: simulating")
            network = SimulatedNetwork(case)
            for point in result.points:
                if point.engine == engine and point.wanted in read:
                    point.memory = _memory(network, point, *read[point.wanted], len(fast), len(slow))
    return result


class _Taken:
    """The shares that loads really took of their cores since this object was made."""

    def __init__(self, loads: Sequence[SlowCore]) -> None:
        import time

        self._clock = time.monotonic
        self._began = self._clock()
        self._loads = [(load, load.load_seconds()) for load in loads]

    def shares(self) -> list[float]:
        seconds = self._clock() - self._began
        return [(load.load_seconds() - before) / seconds for load, before in self._loads]


def _point(engine: str, speed: float, loads: Sequence[SlowCore], taken: list[float], rounds: Rounds) -> Point:
    labels = [f"{engine}, {label}" for label in (FAST, SLOW, BOTH)]
    fast, slow, both = (rounds.rates(label) for label in labels)
    apart = _apart(rounds, engine)
    fractions = [b / (f + s) for f, s, b in zip(fast, slow, both, strict=True)]
    least = tuple(rounds.least(label) for label in labels)
    return Point(
        engine=engine,
        wanted=speed,
        left=[load.speed for load in loads],
        taken=taken,
        fast=statistics.median(fast),
        slow=statistics.median(slow),
        both=statistics.median(both),
        fraction=statistics.median(fractions),
        fractions=fractions,
        of_fast=statistics.median(b / f for f, b in zip(fast, both, strict=True)),
        fraction_min=1 / least[2] / (1 / least[0] + 1 / least[1]),
        median_ms=tuple(rounds.median(label) for label in labels),  # type: ignore[arg-type]
        min_ms=least,  # type: ignore[arg-type]
        rounds=len(rounds.turns),
        rejected=rounds.rejected,
        disturbed=rounds.disturbed,
        apart=statistics.median(a / (f + s) for f, s, a in zip(fast, slow, rounds.rates(apart[0]), strict=True)) if apart else None,
        far=states.middle(probes for label in (*labels, *apart) for probes in rounds.probes(label)),
        states=_states(rounds, [*labels, *apart]),
    )


def _apart(rounds: Rounds, engine: str) -> list[str]:
    """Its label, if it was measured."""
    return [label for label in (f"{engine}, {APART}",) if label in rounds]


def _read_by(label: str) -> str:
    """Label of the cores that read memory."""
    return f"{MEMORY.name}, {label}"


def _gb_s(rounds: Rounds, label: str, cores: int) -> float:
    return cores * MEMORY_BYTES / 1e6 / rounds.median(_read_by(label))  # MB, so by milliseconds it is GB/s


def _memory(network: SimulatedNetwork, point: Point, one: float, all_: float, fast: int, slow: int) -> Memory:
    speed = point.slow / slow / (point.fast / fast)
    return Memory(one, all_, speed, *network.share(fast, slow, speed, all_ / one))


def _states(rounds: Rounds, labels: Sequence[str]) -> list[InState]:
    """States of the fast cores alone, the slow ones and all, and of requests apart, if there are any; none where there was but one. A look
    at the machine may be wrong beside a load, so that a state needs several turns of each."""
    found = []
    for state in states.states(probes for label in labels for probes in rounds.probes(label)):
        rates = [[rate for rate, probes in zip(rounds.rates(x), rounds.probes(x), strict=True) if state.holds(probes)] for x in labels]
        if all(len(turns) >= LEAST_TURNS for turns in rates):
            fast, slow, both, *apart = map(statistics.median, rates)
            found.append(InState(state.far, len(rates[2]), both / (fast + slow), apart[0] / (fast + slow) if apart else None))
    return found if len(found) > 1 else []


def plot(results: Sequence[HeteroResult], file: Path) -> None:
    """For each network and speed, draw a bar for each engine, on a line for the sum of the parts, as a PNG."""
    from aspen_mp.bench.figures.picture import colour, pyplot, save

    plt = pyplot()
    figure, panes = plt.subplots(1, len(results), figsize=(1 + 4 * len(results), 4), layout="constrained", squeeze=False, sharey=True)
    for axes, result in zip(panes[0], results, strict=True):
        engines = list(dict.fromkeys(p.engine for p in result.points))
        speeds = list(dict.fromkeys(p.wanted for p in result.points))
        width = 0.8 / max(len(engines), 1)
        for i, engine in enumerate(engines):
            own = {p.wanted: p for p in result.points if p.engine == engine}
            at = [k + (i - (len(engines) - 1) / 2) * width for k, s in enumerate(speeds) if s in own]
            axes.bar(at, [own[s].fraction for s in speeds if s in own], width * 0.95, label=engine, color=colour(engine))
        for k, speed in enumerate(speeds):
            ours = [p for p in result.points if p.wanted == speed and p.engine == OURS]
            for p in ours:
                axes.hlines(p.fast / (p.fast + p.slow), k - 0.45, k + 0.45, color="0.3", linestyle=":")
                if p.apart is not None:
                    axes.hlines(p.apart, k - 0.45, k + 0.45, color="0.3", linestyle="--")
        axes.axhline(1, color="0.3", linewidth=0.8)
        axes.set(title=result.case, xlabel="speed of the slow core", ylim=(0, 1.15))
        axes.set_xticks(range(len(speeds)), [f"{s:g}" for s in speeds])
    panes[0][0].set_ylabel("throughput of all cores / sum of each alone\n(dotted: the fast core alone, dashed: a request on each core)")
    panes[0][0].legend(loc="lower left")
    save(figure, file)
