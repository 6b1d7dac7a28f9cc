"""An anytime search for the best schedule of several networks (`search.h`), with the naive schedules as its first ones."""

from __future__ import annotations

import time
from dataclasses import dataclass

from aspen_mp.planner.coschedule import _search
from aspen_mp.planner.coschedule.evaluate import Schedule, ScheduledGroup, naive
from aspen_mp.planner.coschedule.problem import OBJECTIVES, Objective, Problem, better


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best schedule so far.

    `value`: its objective, ns or jobs per ns. `bound`: no schedule of the model that starts groups at events is better. `proven`: it is the
    best of those. `settled`: a search that drops whatever is behind another in everything has found no better one. Under contention this
    does not prove it the best, but it seldom fails, and then by less than a percent. `origin`: "search", or the name of the naive schedule
    that nothing has beaten.
    """

    value: float
    bound: float
    proven: bool
    settled: bool
    schedule: Schedule
    origin: str

    @property
    def gap(self) -> float:
        """How far the bound is from the value, as a part of the value; 0 if proven."""
        return abs(self.value - self.bound) / self.value


class Search:
    """A search that can be interrupted at any time, and goes on where it stopped (D-HaX-CoNN, section 3.5).

    It is deterministic: which schedules follow each other depends on the problem alone. It never returns a schedule that is worse than the
    best naive one.
    """

    def __init__(self, problem: Problem, objective: Objective = "latency") -> None:
        """`objective`: "latency" or "throughput", see `OBJECTIVES`. ValueError: it is none of them. MemoryError: there is no room for the
        search's states."""
        if objective not in OBJECTIVES:
            raise ValueError(f"objective {objective!r}: one of {', '.join(OBJECTIVES)}")
        self.problem, self.objective = problem, objective
        self.naive: dict[str, Schedule] = naive(problem, objective)
        """Naive schedules by name."""
        values = {name: problem.value(schedule.ends, objective) for name, schedule in self.naive.items()}
        self._origin = next(iter(values))
        for name, value in values.items():
            if better(value, values[self._origin], objective):
                self._origin = name
        self._schedule, self._value = self.naive[self._origin], values[self._origin]
        self._engine = _search.Engine(problem.arrays(), problem.tables(), OBJECTIVES.index(objective), self._sign * self._value)

    @property
    def best(self) -> Incumbent:
        """The best known now."""
        bound = self._value if self._engine.proven else self._sign * self._engine.bound
        return Incumbent(self._value, bound, self._engine.proven, self._engine.settled, self._schedule, self._origin)

    @property
    def finished(self) -> bool:
        """Whether going on is of no use: the schedule is proven, or states take all the memory that a search may have."""
        return self._engine.finished

    def next_incumbent(self, deadline: float) -> Incumbent:
        """The next better schedule, or the best one known when the search settles or is finished, or when the clock
        `time.monotonic` says `deadline`."""
        if self._engine.run(deadline):
            steps = tuple(ScheduledGroup(*step) for step in self._engine.steps())
            ends = dict.fromkeys(range(len(self.problem.jobs)), 0.0) | {step.job: step.end for step in steps}
            self._schedule, self._origin = Schedule(steps, tuple(ends.values())), "search"
            self._value = self._sign * self._engine.value
        return self.best

    def run(self, deadline: float) -> Incumbent:
        """Searches until the deadline, or until it is finished."""
        while not self.finished and time.monotonic() < deadline:
            self.next_incumbent(deadline)
        return self.best

    @property
    def _sign(self) -> float:
        """The engine makes its objective small."""
        return 1.0 if self.objective == "latency" else -1.0
