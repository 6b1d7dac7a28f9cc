"""Variants on one network, each as a ratio to a reference that took turns with it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from aspen_mp.bench.figures import states
from aspen_mp.bench.figures.seats import Say, Schedule, Seats, Variant
from aspen_mp.bench.figures.states import State
from aspen_mp.bench.peers.cases import Case


@dataclass(slots=True)
class Entry:
    """A variant. Milliseconds: `median_ms` over rounds of each round's middle run, `min_ms` of all. `ratio`: its time by the reference's in
    the same rounds, the middle of them; `ratio_min`: the same of the fastest runs; `rounds_ms`, `reference_ms`: the middle runs of each;
    `probes`: what `states.probe` measured before and after this variant's turn in each."""

    label: str
    engine: str
    cores: int
    median_ms: float
    min_ms: float
    ratio: float
    ratio_min: float
    rounds_ms: list[float] = field(default_factory=list)
    reference_ms: list[float] = field(default_factory=list)
    probes: list[tuple[float, ...]] = field(default_factory=list)

    def ms_in(self, state: State) -> list[float]:
        """Those of `rounds_ms` that were measured in one state of the machine."""
        return [ms for ms, probes in zip(self.rounds_ms, self.probes, strict=True) if state.holds(probes)]


@dataclass(slots=True)
class Comparison:
    """`entries`: in the order of the variants, the reference first. `rejected`, `disturbed`: rounds, as in `CaseResult`.
    `simulated`: milliseconds by label, of what was not measured."""

    case: str
    macs: int | None
    entries: list[Entry] = field(default_factory=list)
    rejected: int = 0
    disturbed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    simulated: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, label: str) -> Entry:
        return next(entry for entry in self.entries if entry.label == label)

    def __contains__(self, label: str) -> bool:
        return any(entry.label == label for entry in self.entries)

    @property
    def others(self) -> list[Entry]:
        """All but the reference."""
        return self.entries[1:]

    @property
    def states(self) -> list[State]:
        """States of the machine meanwhile."""
        return states.states(probes for entry in self.entries for probes in entry.probes)

    @property
    def far(self) -> float | None:
        """The extra time of a byte of another core's meanwhile, nanoseconds: the median of all looks (`states.probe`)."""
        return states.middle(probes for entry in self.entries for probes in entry.probes)

    def medians_in(self, state: State) -> dict[str, float]:
        """By label: `median_ms` by the turns in one state."""
        return {entry.label: statistics.median(ms) for entry in self.entries if (ms := entry.ms_in(state))}


def compare(case: Case, variants: Sequence[Variant], schedule: Schedule, say: Say, at_once: int = 6) -> Comparison:
    """Measures variants beside the first of them. Not more than `at_once` are loaded at the same time, which bounds the memory: then the
    reference takes turns with each group."""
    reference, *others = variants
    result = Comparison(case.label, None)
    size = max(at_once - 1, 1)
    groups = [others[k : k + size] for k in range(0, len(others), size)] or [[]]
    own: list[float] = []
    probes: list[tuple[float, ...]] = []
    least = float("inf")
    cores = sorted({core for variant in variants for core in variant.cores})
    for number, group in enumerate(groups):
        with Seats(case, [reference, *group], say) as seats:
            what = f"group {number + 1} of {len(groups)}" if len(groups) > 1 else ""
            rounds = seats.rounds(schedule, what, probe=lambda: states.probe(cores))
            result.macs = seats.macs
            result.settings.update(seats.settings)
        result.failed.update(rounds.failed)
        result.rejected += rounds.rejected
        result.disturbed += rounds.disturbed
        if reference.label not in rounds:
            continue
        there = rounds.medians(reference.label)
        own += there
        probes += rounds.probes(reference.label)
        least = min(least, rounds.least(reference.label))
        for variant in group:
            if variant.label in rounds:
                result.entries.append(
                    Entry(
                        *(variant.label, variant.engine, len(variant.cores)),
                        *(rounds.median(variant.label), rounds.least(variant.label)),
                        rounds.ratio(variant.label, reference.label),
                        rounds.least(variant.label) / rounds.least(reference.label),
                        *(rounds.medians(variant.label), there),
                        rounds.probes(variant.label),
                    )
                )
    if own:
        result.entries.insert(
            0, Entry(reference.label, reference.engine, len(reference.cores), statistics.median(own), least, 1.0, 1.0, own, own, probes)
        )
    return result
