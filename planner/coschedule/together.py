"""Several planned networks on one machine: from plans to the best schedule that a search finds in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aspen_mp.planner.coschedule import units
from aspen_mp.planner.coschedule.evaluate import Placed, Schedule, evaluate
from aspen_mp.planner.coschedule.problem import Objective, Problem
from aspen_mp.planner.coschedule.profile import Profile, profile
from aspen_mp.planner.coschedule.search import Incumbent, Search
from aspen_mp.planner.coschedule.workload import Entry, Workload
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.rates import Rates

if TYPE_CHECKING:
    from aspen_mp.planner.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Run:
    """A planned network of a workload, as `Entry` has it with a profile in place of a plan."""

    name: str
    plan: Plan
    times: int = 1
    every_ns: float = 0.0
    after: tuple[int, ...] = ()
    in_order: bool = True


@dataclass(frozen=True, slots=True)
class Together:
    """The result of `together`. `profiles`: of each network; `schedule`: that of `incumbent`, with its contention intervals; `naive`: by
    name."""

    problem: Problem
    objective: Objective
    profiles: tuple[Profile, ...]
    incumbent: Incumbent
    schedule: Schedule
    naive: dict[str, Schedule]


def join(runs: Sequence[Run], machine: Machine, rates: Rates) -> tuple[Problem, tuple[Profile, ...]]:
    """Return planned networks that run together on a machine as a problem, and the profile of each run. `rates`: those of one of its cores.

    ValueError: there are more runs than a search takes, or they wait for each other in a circle.
    """
    domains, cores = units.domains(machine)
    sets = units.core_sets(domains, sum(run.times for run in runs))
    machines = [units.machine_of(machine, cores, domains, each) for each in sets]
    known: dict[tuple[int, str], Profile] = {}
    for run in runs:
        if (id(run.plan), run.name) not in known:
            known[id(run.plan), run.name] = profile(run.plan, run.name, machines, sets, rates)
    profiles = tuple(known[id(run.plan), run.name] for run in runs)
    workload = Workload(
        tuple(Entry(each.network, run.times, run.every_ns, run.after, run.in_order) for each, run in zip(profiles, runs, strict=True))
    )
    return Problem(domains, sets, units.memories(machine, domains, rates), workload.jobs()), profiles


def together(runs: Sequence[Run], machine: Machine, rates: Rates, objective: Objective, deadline: float) -> Together:
    """Plan networks that run together on a machine, until `time.monotonic` says `deadline`. `rates`: those of one of its cores.

    ValueError: as of `join`.
    """
    problem, profiles = join(runs, machine, rates)
    search = Search(problem, objective)
    incumbent = search.run(deadline)
    schedule = evaluate(problem, Placed(incumbent.schedule.steps))
    return Together(problem, objective, profiles, incumbent, schedule, search.naive)
