"""How many cores share a request when several of the same network run at a time.

Tiles for few cores are larger: they read weights less often, fill their kernels, and there are fewer to schedule. Tiles for many cores end
a request sooner. With so many requests at a time that every core has enough to do anyway, only the former counts. So a network is cut as if
each request had a *team* of cores to itself. Its size comes from simulating all requests on all cores. The pool knows nothing of
teams: whoever is idle takes any ready tile, of the oldest request first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.job import progress, reasons
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.layout.storage import Storage
from aspen_mp.planner.simulation.simulate import throughput
from aspen_mp.planner.tiling import policy, search

ABOUT: Final = 0.01
"""Teams whose throughputs differ by less are as good as each other, and the larger one ends a request sooner."""
MOST_STEPS: Final = 4000
"""Networks of more steps are not simulated, which would take seconds for each team: each request gets its part of the cores."""
PAST: Final = 0.03
"""Where a team has less throughput than a smaller one by this share, larger ones have less still: there is more work in their tiles."""


@dataclass(frozen=True, slots=True)
class Team:
    """`machine`: the cores for which each request's tiles are cut. `requests_per_s`: of all cores, with `in_flight` requests at a time and
    tiles as they are before any search; by simulation, NaN where there was none."""

    machine: Machine
    in_flight: int
    requests_per_s: float


def choose(storage: Storage, machine: Machine, in_flight: int, longest: float) -> Team:
    """The team of the highest throughput. `longest`: see `policy.Aim`."""
    if len(storage.steps) > MOST_STEPS:
        return Team(next(team for team in teams(machine) if len(team) * in_flight >= len(machine)), in_flight, math.nan)
    found: list[Team] = []
    for team in teams(machine):
        progress.at("choosing how many cores share a request", len(found), len(machine).bit_length())
        with reasons.trial():
            grids = policy.choose_grids(storage, len(team), longest=longest)
        per_s = throughput(search.graph(storage, team, grids), machine, in_flight)
        found.append(Team(team, in_flight, per_s))
        if per_s < (1 - PAST) * max(other.requests_per_s for other in found):
            break
    best = max(other.requests_per_s for other in found)
    return next(team for team in reversed(found) if team.requests_per_s >= (1 - ABOUT) * best)


def searched(storage: Storage, machine: Machine, team: Machine, planning: Experiment) -> tuple[search.Found, Machine]:
    """The tiles of the highest throughput on the whole machine, and the cores that they are cut for. They are those that a search finds for
    a request on its team's cores, or those before that search. A request that ends soon on its team may have too few tiles for the cores
    that other requests leave idle. Where teams gain next to nothing, they are those of requests alone."""
    effort, longest = planning.search, planning.longest_ns
    with reasons.trial() as keep_alone:
        alone = search.search(storage, machine, effort, longest)
    with reasons.trial() as keep_found:
        found = alone if team is machine else search.search(storage, team, effort, longest)
    with reasons.trial() as keep_plain:
        plain = search.Found(policy.choose_grids(storage, len(team), longest=longest))
    ways = [(alone, machine, keep_alone), (found, team, keep_found), (plain, team, keep_plain)]
    per_s = [throughput(search.graph(storage, cores, way.grids), machine, planning.in_flight) for way, cores, _ in ways]
    best, cores, keep = ways[0] if per_s[0] >= (1 - ABOUT) * max(per_s) else ways[per_s.index(max(per_s))]
    keep()
    return best, cores


def teams(machine: Machine) -> Iterator[Machine]:
    """Parts of a machine, the smallest first: of its cores one, two, four … and all. Each has fast and slow ones as the machine has, the
    fastest always among them, and its share of the memory's bandwidth."""
    cores = sorted(machine.cores, key=lambda core: -core.speed)
    n = 1
    while n < len(cores):
        some = tuple(cores[k * len(cores) // n] for k in range(n))
        yield replace(machine, cores=some, bytes_per_ns=machine.bytes_per_ns * n / len(cores))
        n *= 2
    yield machine
