"""The problem to solve: jobs, core sets, and the time of each layer group on each of them (HaX-CoNN, sections 3.1, 3.2 and 3.4).

The paper maps each group to one of few processing units. Cores are divisible, so the decision here is a *core set*: how many cores of
which domains. Two groups run at the same time if there are enough cores for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.coschedule import _search
from aspen_mp.planner.coschedule.contention import Contention

Floats = npt.NDArray[np.float64]
Objective = Literal["latency", "throughput"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("latency", "throughput")
"""The greatest latency of all jobs is to be small. Or the sum of 1 / latency, over the jobs that no other waits for, is to be large."""
MOST_JOBS: Final = _search.JOBS
MOST_GROUPS: Final = _search.GROUPS
MOST_SETS: Final = _search.SETS


@dataclass(frozen=True, slots=True)
class Domain:
    """A number of `cores` of one class that share a last-level cache, and the number of the `memory` that they use."""

    name: str
    cores: int
    memory: int = 0


@dataclass(frozen=True, slots=True)
class CoreSet:
    """A processing unit: the number of `cores` of each domain. Cores of a domain are alike."""

    name: str
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProfiledNetwork:
    """A network in layer groups, profiled on each core set.

    `groups` [G]: names. All arrays are [G, core sets]. `ns`: a group's time alone. `demand`: bytes per ns that it then asks of the
    memories. `leave`, `enter`: ns to move its inputs out of the caches of one set, and into another's (τ OUT and τ IN of section 3.2).
    ValueError: shapes do not fit, or a number is negative or not finite.
    """

    name: str
    groups: tuple[str, ...]
    ns: Floats
    demand: Floats
    leave: Floats
    enter: Floats

    def __post_init__(self) -> None:
        for name in ("ns", "demand", "leave", "enter"):
            array = np.ascontiguousarray(getattr(self, name), np.float64)
            object.__setattr__(self, name, array)
            if array.ndim != 2 or array.shape != self.ns.shape or len(array) != len(self.groups):
                raise ValueError(f"network {self.name!r}: {name} has shape {array.shape}, for {len(self.groups)} groups")
            if not np.isfinite(array).all() or (array < 0).any():
                raise ValueError(f"network {self.name!r}: {name} must be finite and not negative")
        if not 1 <= len(self.groups) <= MOST_GROUPS or (self.ns <= 0).any():
            raise ValueError(f"network {self.name!r}: 1 to {MOST_GROUPS} groups, each of which takes some time, not {len(self.groups)}")


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a network. It may start at `release` ns, when the jobs of the numbers `after`, all below its own, have ended."""

    network: ProfiledNetwork
    release: float = 0.0
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """`jobs` that run together on `sets` of the cores of `domains`. `memories`: how those that share a memory slow each other down.

    ValueError: something is missing, does not fit, or is more than the search takes (`MOST_JOBS`, `MOST_GROUPS`, `MOST_SETS`).
    """

    domains: tuple[Domain, ...]
    sets: tuple[CoreSet, ...]
    memories: tuple[Contention, ...]
    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        limits = (("jobs", MOST_JOBS), ("sets", MOST_SETS), ("domains", _search.DOMAINS), ("memories", _search.MEMORIES))
        for name, most in limits:
            if not 1 <= len(getattr(self, name)) <= most:
                raise ValueError(f"{len(getattr(self, name))} {name}: plans for several networks are for 1 to {most}")
        if any(domain.cores < 1 or not 0 <= domain.memory < len(self.memories) for domain in self.domains):
            raise ValueError("a domain has a core at least, and one of the memories")
        for each in self.sets:
            fits = len(each.cores) == len(self.domains) and any(each.cores)
            if not fits or any(not 0 <= n <= domain.cores for n, domain in zip(each.cores, self.domains, strict=True)):
                raise ValueError(f"core set {each.name!r} of {each.cores}: some cores, and no more than {[d.cores for d in self.domains]}")
        for k, job in enumerate(self.jobs):
            if job.network.ns.shape[1] != len(self.sets):
                raise ValueError(f"network {job.network.name!r} is profiled on {job.network.ns.shape[1]} sets, not {len(self.sets)}")
            if not job.release >= 0 or any(not 0 <= other < k for other in job.after):
                raise ValueError(f"job {k}: it is released at 0 or later, after jobs of lower numbers, not {job.after}")
            if any(self.jobs[other].release > job.release for other in job.after):
                raise ValueError(f"job {k} is released before one that it waits for")

    @property
    def last(self) -> tuple[bool, ...]:
        """Whether no other job waits for it, for each job: the throughput of these counts."""
        awaited = {other for job in self.jobs for other in job.after}
        return tuple(k not in awaited for k in range(len(self.jobs)))

    def moves(self, before: int, after: int) -> bool:
        """Whether data move where a network goes from one core set to another: some of the new cores have another cache."""
        return any(new and not old for old, new in zip(self.sets[before].cores, self.sets[after].cores, strict=True))

    def transition(self, job: int, group: int, before: int, after: int) -> float:
        """Nanoseconds between a group of a job on core set `after` and the group before it, which ran on `before`."""
        if group == 0 or not self.moves(before, after):
            return 0.0
        network = self.jobs[job].network
        return float(network.leave[group, before] + network.enter[group, after])

    def share(self, set_: int) -> list[float]:
        """The part of a core set's demand that each memory serves, in proportion to the cores."""
        found = [0.0] * len(self.memories)
        cores = self.sets[set_].cores
        for n, domain in zip(cores, self.domains, strict=True):
            found[domain.memory] += n / sum(cores)
        return found

    def arrays(self) -> tuple[Any, ...]:
        """The arguments of `_search.Engine` about the problem, in the order of `cs_problem`."""
        n = len(self.sets)
        networks = [job.network for job in self.jobs]
        rows = [np.ascontiguousarray(np.vstack([getattr(x, name) for x in networks])) for name in ("ns", "demand", "leave", "enter")]
        twin = [max((m for m in range(k) if self._alike(m, k)), default=-1) for k in range(len(self.jobs))]
        return (
            np.cumsum([0, *(len(x.groups) for x in networks)], dtype=np.uint32),
            *rows,
            np.array([[self.moves(a, b) for b in range(n)] for a in range(n)], np.uint8),
            np.array([each.cores for each in self.sets], np.uint32).reshape(n, -1),
            np.array([domain.cores for domain in self.domains], np.uint32),
            np.array([self.share(k) for k in range(n)]).reshape(n, -1),
            np.array([job.release for job in self.jobs]),
            np.array([sum(1 << other for other in job.after) for job in self.jobs], np.uint32),
            np.array(twin, np.int32),
            np.array(self.last, np.uint8),
        )

    def tables(self) -> list[tuple[Floats, Floats, Floats, float]]:
        """The arguments of `_search.Engine` about the memories."""
        return [(each.own, each.others, each.factor, each.capacity) for each in self.memories]

    def value(self, ends: Sequence[float], objective: Objective) -> float:
        """The objective of jobs that end at these ns: ns, or jobs per ns."""
        latencies = [end - job.release for end, job in zip(ends, self.jobs, strict=True)]
        if objective == "latency":
            return max(latencies)
        return sum(1 / latency for latency, counts in zip(latencies, self.last, strict=True) if counts)

    def _alike(self, one: int, other: int) -> bool:
        """Whether exchanging two jobs changes nothing."""
        a, b = self.jobs[one], self.jobs[other]
        waits = any(one in job.after or other in job.after for job in self.jobs)
        return a.network is b.network and a.release == b.release and not waits and a.after == b.after


def better(one: float, other: float, objective: Objective) -> bool:
    """Whether a value of an objective is better than another by more than rounding."""
    margin = 1e-9 * abs(other)
    return one < other - margin if objective == "latency" else one > other + margin
