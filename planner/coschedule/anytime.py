"""Schedules of networks that run already: better and better ones, as hints for workers (D-HaX-CoNN, section 3.5)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aspen_mp.planner.coschedule.evaluate import Schedule
from aspen_mp.planner.coschedule.hints import Hint, depth_hints, group_hints
from aspen_mp.planner.coschedule.problem import Objective, Problem, better
from aspen_mp.planner.coschedule.profile import Profile
from aspen_mp.planner.coschedule.search import Incumbent, Search
from aspen_mp.planner.coschedule.together import Run, join

if TYPE_CHECKING:
    from aspen_mp.planner.cost.machine import Machine
    from aspen_mp.planner.cost.rates import Rates

LOOKS_S: Final = (0.025, 0.1, 0.25, 0.5, 1.5)
"""When a search that goes on is asked for its best schedule, in seconds from its beginning."""


@dataclass(frozen=True, slots=True)
class Step:
    """A schedule that is better than those before. `hints`: of each run, its plan's depths. `naive`: the best value of a naive schedule.
    `makespan`: ns until the last run has ended. `seconds`: how long the search took to find it, at most."""

    incumbent: Incumbent
    naive: float
    makespan: float
    hints: tuple[list[Hint], ...]
    seconds: float


def improve(runs: Sequence[Run], machine: Machine, rates: Rates, objective: Objective) -> Iterator[Step]:
    """Yield the best schedule at each of `LOOKS_S`, if it is better than the one before, until the search is finished.

    The first one may be naive. ValueError: as of `together.join`.
    """
    problem, profiles = join(runs, machine, rates)
    search = Search(problem, objective)
    naive = search.best.value
    begun, known = time.monotonic(), 0.0
    for look in LOOKS_S:
        found = search.run(begun + look)
        if not known or better(found.value, known, objective):
            known = found.value
            hints = _hints(runs, problem, profiles, found.schedule)
            yield Step(found, naive, max(found.schedule.ends), hints, time.monotonic() - begun)
        if search.finished:
            return


def _hints(runs: Sequence[Run], problem: Problem, profiles: Sequence[Profile], schedule: Schedule) -> tuple[list[Hint], ...]:
    return tuple(
        depth_hints(run.plan, each.groups, group_hints(problem, schedule, each.network)) for run, each in zip(runs, profiles, strict=True)
    )
