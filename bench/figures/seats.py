"""Variants of an engine, or several engines, that take turns on one network: what all figures are made of.

Each variant lives in a process of its own on its own cores (`aspen_mp.bench.peers.seat`). Rounds interleave them, and rounds in which
other processes used the cores do not count (`aspen_mp.bench.peers.rounds`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.engines import ENGINES, REQUESTS
from aspen_mp.bench.peers.rounds import OURS, Schedule, prepared, take_turns
from aspen_mp.bench.peers.seat import Seat, SeatError, Turn

__all__ = ["OURS", "PEERS", "Rounds", "Say", "Schedule", "Seats", "Variant", "wanted_engines"]

PEERS = ("onnxruntime", "openvino")
"""Runtimes that figures set beside ours unless told otherwise."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Variant:
    """Something that is measured. `options`: for the engine's loader, see `aspen_mp.bench.peers.engines`."""

    label: str
    engine: str
    cores: Sequence[int]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Rounds:
    """The result of a number of rounds. `turns`: by label, one for each round that counts, the same rounds for all. `rejected`,
    `disturbed`: as in `CaseResult`; `failed`: what is missing, and why."""

    turns: list[dict[str, Turn]]
    rejected: int
    disturbed: int
    failed: dict[str, str]

    def __contains__(self, label: str) -> bool:
        return bool(self.turns) and label in self.turns[0]

    def medians(self, label: str) -> list[float]:
        """The middle run of each round, in milliseconds."""
        return [1e3 * statistics.median(turn[label].seconds) for turn in self.turns]

    def median(self, label: str) -> float:
        """Milliseconds."""
        return statistics.median(self.medians(label))

    def least(self, label: str) -> float:
        """The fastest run, in milliseconds."""
        return 1e3 * min(min(turn[label].seconds) for turn in self.turns)

    def rates(self, label: str) -> list[float]:
        """Requests a second in each round: one a run, or as many as the engine has counted."""
        turns = [round_[label] for round_ in self.turns]
        return [turn.counters.get(REQUESTS, len(turn.seconds)) / sum(turn.seconds) for turn in turns]

    def ratio(self, label: str, reference: str) -> float:
        """Time of one by that of another: the middle of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.medians(label), self.medians(reference), strict=True))

    def probes(self, label: str) -> list[tuple[float, ...]]:
        """The probes of the machine before and after each turn."""
        return [turn[label].probes for turn in self.turns]

    def document(self, label: str) -> dict[str, Any]:
        """The measurements of one variant, as plain values."""
        rates = self.rates(label)
        return {
            "median_ms": self.median(label),
            "min_ms": self.least(label),
            "per_second": statistics.median(rates),
            "rounds_ms": self.medians(label),
            "runs": sum(len(turn[label].seconds) for turn in self.turns),
        }


class Seats:
    """Variants that are loaded and wait for their turns, as a context manager. Those that fail are in `failed`."""

    def __init__(self, case: Case, variants: Sequence[Variant], say: Say) -> None:
        self.case = case
        self.failed: dict[str, str] = {}
        self._variants, self._say = variants, say
        self._seats: list[Seat] = []
        self._stack = ExitStack()
        self.macs: int | None = None

    def __enter__(self) -> Seats:
        try:
            here, self.macs = self._stack.enter_context(prepared(self.case))
            for variant in self._variants:
                self._say(f"{self.case.label}: loading {variant.label}")
                try:
                    self._seats.append(self._start(variant, here))
                except SeatError as error:
                    self.failed[variant.label] = str(error)
                    continue
                self._stack.callback(self._seats[-1].close)
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self, variant: Variant, here: Path) -> Seat:
        outputs = here / f"{len(self._seats)}.npz"
        model, feeds = here / "model.onnx", here / "feeds.npz"
        return Seat.start(variant.engine, model, feeds, outputs, list(variant.cores), variant.options, variant.label)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def settings(self) -> dict[str, str]:
        """Settings of each engine: its version and how it was set in its first variant."""
        return {seat.engine: f"{seat.info['version']}: {seat.info['settings']}" for seat in reversed(self._seats)}

    def settle(self, label: str, seconds: float, what: str) -> None:
        """Requests to one of the variants, if it is there, which are not measured."""
        for seat in self._seats:
            if seat.label == label and label not in self.failed:
                self._say(f"{self.case.label}: {seconds:g} s for {label} to settle, {what}")
                try:
                    seat.turn(seconds, 1)
                except SeatError as error:
                    self.failed[label] = str(error)

    def rounds(
        self, schedule: Schedule, what: str = "", beside: Callable[[], float] = float, probe: Callable[[], float] | None = None
    ) -> Rounds:
        """Measures all; `what` says so to people. `beside`: CPU time so far of what loads the cores on purpose; `probe`: as of
        `take_turns`."""

        def say(text: str) -> None:
            self._say(f"{text}{', ' * bool(what)}{what}")

        failed = dict(self.failed)
        turns, rejected, disturbed = take_turns(self.case, self._seats, failed, schedule, say, beside, probe)
        return Rounds(turns, rejected, disturbed, failed)


def wanted_engines(names: Sequence[str] | None, peers: bool = True) -> tuple[list[str], list[str]]:
    """Engines to measure, ours first, and those that were wanted but are not installed. ValueError for names that nobody has."""
    wanted = list(names) if names else [OURS, *(PEERS if peers else ())]
    unknown = [name for name in wanted if name not in ENGINES]
    if unknown:
        raise ValueError(f"there is no engine {', '.join(map(repr, unknown))}. Give some of {', '.join(ENGINES)}")
    wanted.sort(key=lambda name: name != OURS)
    return [name for name in wanted if ENGINES[name].installed], [name for name in wanted if not ENGINES[name].installed]
