"""Hints for workers from a schedule of several networks (docs/protocol/hints.md).

A schedule says when each group starts and ends. Workers cannot keep to that: tiles take what they take. Hints keep the facts that hold all
the same: a group's cores, how many at a time, and whether groups of other networks go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.coschedule.evaluate import Schedule, ScheduledGroup
from aspen_mp.planner.coschedule.problem import Problem, ProfiledNetwork
from aspen_mp.planner.coschedule.profile import Group
from aspen_mp.shm.tables import LIMITS

if TYPE_CHECKING:
    from aspen_mp.planner.plan.plan import Plan

Ints = npt.NDArray[np.int64]

DEPTHS: Final = LIMITS["depths"]
MOST_DOMAINS: Final = 16
MOST_WORKERS: Final = 255
LATE: Final = 1e-3
"""A group has waited that starts later than it could by more than this part of the makespan."""


class Hint(NamedTuple):
    """The hint of a schedule for a group. `domains`: a bit for each domain whose cores it is for, 0: all. `most`: cores at a time, 0: as
    many as like. `yields`: groups of other networks go first."""

    domains: int
    most: int
    yields: bool


NONE: Final = Hint(0, 0, False)


def group_hints(problem: Problem, schedule: Schedule, network: ProfiledNetwork) -> list[Hint]:
    """The hints of a schedule for each group of a network, for all its runs together. `network`: by identity; without a run it has no
    hints."""
    runs = {k for k, job in enumerate(problem.jobs) if job.network is network}
    steps: dict[int, list[ScheduledGroup]] = {}
    for step in schedule.steps:
        if step.job in runs:
            steps.setdefault(step.group, []).append(step)
    waited = _waited(problem, schedule)
    return [_hint(problem, steps.get(k, []), waited) for k in range(len(network.groups))]


def _hint(problem: Problem, steps: Sequence[ScheduledGroup], waited: set[tuple[int, int]]) -> Hint:
    cores = [problem.sets[step.set].cores for step in steps]
    if not cores or len(problem.domains) > MOST_DOMAINS:
        return NONE
    domains = sum(1 << d for d in range(len(problem.domains)) if any(each[d] for each in cores))
    most = max(sum(each) for each in cores)
    everywhere = domains == (1 << len(problem.domains)) - 1
    everybody = most == sum(domain.cores for domain in problem.domains) or most > MOST_WORKERS
    return Hint(0 if everywhere else domains, 0 if everybody else most, all((step.job, step.group) in waited for step in steps))


def _waited(problem: Problem, schedule: Schedule) -> set[tuple[int, int]]:
    """Groups, by job and number, that start later than they could."""
    at = {(step.job, step.group): step for step in schedule.steps}
    found = set()
    for (job, group), step in at.items():
        if group:
            before = at[job, group - 1]
            ready = before.end + problem.transition(job, group, before.set, step.set)
        else:
            ready = max([problem.jobs[job].release, *(schedule.ends[other] for other in problem.jobs[job].after)])
        if step.start > ready + LATE * schedule.makespan:
            found.add((job, group))
    return found


def depth_hints(plan: Plan, groups: Sequence[Group], hints: Sequence[Hint]) -> list[Hint]:
    """Return the hint of each depth of a plan: that of the group which most of the depth's time belongs to.

    `groups`: those of the plan (`profile.layer_groups`); `hints`: of each.
    """
    group_of_op: Ints = np.zeros(len(plan.ops), np.int64)
    for k, group in enumerate(groups):
        group_of_op[group.first : group.last + 1] = k
    group_of_op[-2:] = len(groups) - 1  # JOIN and END
    of_tile = group_of_op[plan.tiles["op"].astype(np.int64)]
    ns = np.zeros((DEPTHS, len(groups)))
    np.add.at(ns, (plan.tiles["depth"].astype(np.int64), of_tile), plan.tile_costs().ns)
    return [hints[int(row.argmax())] if row.any() else NONE for row in ns]
