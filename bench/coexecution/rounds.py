"""Crews that take turns: in a round each of them carries out all orders that it is given. Rounds in which other processes used the cores do
not count, as in `bench.peers.rounds`."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from aspen_mp.bench.coexecution.crew import CREWS
from aspen_mp.bench.coexecution.seat import CrewSeat, Performance
from aspen_mp.bench.coexecution.traffic import Order
from aspen_mp.bench.figures.seats import Say, Schedule, Variant
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.engines import ENGINES
from aspen_mp.bench.peers.process import SeatError
from aspen_mp.bench.peers.rounds import FOREIGN_LIMIT, FOREIGN_SHARE, prepared

__all__ = ["Crews", "Orders", "Performance", "Rounds", "Say", "Schedule", "Variant"]

Orders = Mapping[str, Mapping[str, Order]]
"""By label of a crew: what it is asked for in a round, each order by its name, in this order."""


@dataclass(slots=True)
class Rounds:
    """The result of a number of rounds. `turns`: of each round that counts, by label and by the order's name. `rejected`, `disturbed`: as
    of `bench.peers.rounds.take_turns`; `failed`: what is missing, and why."""

    turns: list[dict[str, dict[str, Performance]]]
    rejected: int = 0
    disturbed: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def __contains__(self, label: str) -> bool:
        return bool(self.turns) and label in self.turns[0]

    def of(self, label: str, name: str) -> list[Performance]:
        """An order of a crew, in each round."""
        return [turn[label][name] for turn in self.turns]

    def spans_ms(self, label: str, name: str) -> list[float]:
        """The middle run of each round."""
        return [statistics.median(performance.spans_ms) for performance in self.of(label, name)]

    def ms(self, label: str, name: str, network: int) -> list[float]:
        """How long requests to a network took, in all rounds."""
        return [ms for performance in self.of(label, name) for ms in performance.ms(network)]


class Crews:
    """Crews that have loaded all `cases` and wait for their turns, as a context manager. Those that fail are in `failed`."""

    def __init__(self, cases: Sequence[Case], variants: Sequence[Variant], say: Say) -> None:
        self.cases = list(cases)
        self.failed: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.models: list[Path] = []
        self._variants, self._say = variants, say
        self._seats: list[CrewSeat] = []
        self._stack = ExitStack()

    def __enter__(self) -> Crews:
        try:
            folders = [self._stack.enter_context(prepared(case))[0] for case in self.cases]
            self.models = [folder / "model.onnx" for folder in folders]
            files = [(folder / "model.onnx", folder / "feeds.npz") for folder in folders]
            for variant in self._variants:
                self._say(f"loading {len(files)} networks into {variant.label}")
                try:
                    seat = CrewSeat.start(variant.engine, files, variant.cores, variant.options, variant.label)
                except SeatError as error:
                    self.failed[variant.label] = str(error)
                    continue
                self._seats.append(seat)
                self._stack.callback(seat.close)
                version = ENGINES[CREWS[variant.engine].engine].version
                self.settings.setdefault(variant.engine, f"{version}: {seat.info['settings']}")
            os.sync()  # what loading wrote would go to disk during the first rounds, by threads of the kernel's
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def rounds(self, orders: Orders, schedule: Schedule, what: str) -> Rounds:
        """Give every crew its orders, in rotating order of crews. `schedule`: how many rounds count, and how many may be lost; the rest of
        it is in the orders. `what`: of them for people."""
        counted: list[dict[str, dict[str, Performance]]] = []
        noisy: list[tuple[float, dict[str, dict[str, Performance]]]] = []
        failed = dict(self.failed)
        alive = [seat for seat in self._seats if seat.label in orders and seat.label not in failed]
        while alive and len(counted) < schedule.rounds and len(noisy) < schedule.spare:
            shift = (len(counted) + len(noisy)) % len(alive)
            turns: dict[str, dict[str, Performance]] = {}
            for seat in alive[shift:] + alive[:shift]:
                try:
                    turns[seat.label] = {name: seat.perform(order) for name, order in orders[seat.label].items()}
                except SeatError as error:
                    self.failed[seat.label] = failed[seat.label] = str(error)
            if len(turns) < len(alive):  # rounds are compared crew by crew: all must have the same
                alive = [seat for seat in alive if seat.label in turns]
                counted, noisy = [], []
                continue
            foreign = max(performance.foreign for performances in turns.values() for performance in performances.values())
            if foreign > max(FOREIGN_LIMIT, FOREIGN_SHARE * max(len(seat.cores) for seat in alive)):
                noisy.append((foreign, turns))
            else:
                counted.append(turns)
            self._say(f"{what}: round {len(counted)} of {schedule.rounds}" + (f", {len(noisy)} disturbed" if noisy else ""))
        disturbed = 0
        if len(counted) < schedule.rounds and noisy:  # a busy machine: the least disturbed rounds, and the record says so
            noisy.sort(key=lambda item: item[0])
            disturbed = min(len(noisy), schedule.rounds - len(counted))
            counted += [turns for _, turns in noisy[:disturbed]]
        return Rounds(counted, len(noisy) - disturbed, disturbed, failed)
