"""Small problems of several networks drawn at random, and the best schedule of each by trying all of them.

The enumeration shares nothing with the search but the problem: no bounds beside the best so far, no dominance, no order of states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from aspen_mp.planner.coschedule.contention import Contention
from aspen_mp.planner.coschedule.problem import CoreSet, Domain, Job, Problem, ProfiledNetwork

CLOSE = 1e-9


def units(n: int) -> tuple[tuple[Domain, ...], tuple[CoreSet, ...]]:
    """`n` units that run one group at a time, as in the paper."""
    return tuple(Domain(f"u{k}", 1) for k in range(n)), tuple(CoreSet(f"u{k}", tuple(int(k == d) for d in range(n))) for k in range(n))


def two_classes() -> tuple[tuple[Domain, ...], tuple[CoreSet, ...]]:
    """Two fast cores and two slow ones, in halves and all together."""
    return (Domain("P", 2), Domain("E", 2)), tuple(CoreSet(f"{p}P+{e}E", (p, e)) for p, e in ((2, 2), (1, 1), (2, 0), (1, 0), (0, 2)))


def drawn(seed: int, jobs: int, groups: int, *, kind: str = "units", contention: bool = True, waits: bool = False) -> Problem:
    """A random problem. `kind`: "units" (two of them), "three" units, or "classes". `waits`: jobs have releases and wait for others."""
    rng = np.random.default_rng((seed, jobs, groups))
    domains, sets = two_classes() if kind == "classes" else units(3 if kind == "three" else 2)
    cores = np.array([sum(n * (1.0, 0.5)[d % 2] for d, n in enumerate(each.cores)) for each in sets])
    made: list[Job] = []
    for k in range(jobs):
        work = rng.uniform(1, 10, (groups, 1))
        ns = work / cores ** rng.uniform(0.4, 1.0, (groups, 1)) * rng.uniform(0.8, 1.25, (groups, len(sets)))
        demand = rng.uniform(0, 30, (groups, 1)) * np.ones(len(sets))
        move = rng.uniform(0, 0.8, (2, groups, len(sets)))
        network = ProfiledNetwork(f"n{k}", tuple(map(str, range(groups))), ns, demand, move[0], move[1])
        release = float(rng.uniform(0, 5)) if waits and rng.random() < 0.4 else 0.0
        after = (int(rng.integers(0, k)),) if waits and k and rng.random() < 0.4 else ()
        made.append(Job(network, max([release, *(made[m].release for m in after)]), after))
    memory = Contention.fair(33.0) if contention else Contention.none()
    return Problem(domains, sets, (memory,), tuple(made))


@dataclass(frozen=True)
class _Job:
    """`phase`: waits, free, held (free, and an event has passed), moves, ready, runs or done."""

    phase: str = "waits"
    group: int = 0
    set: int = 0
    left: float = 0.0
    end: float = math.inf


def best_value(problem: Problem, objective: str) -> float:
    """The objective of the best schedule whose groups start at events."""
    return _Enumeration(problem, objective).best


class _Enumeration:
    def __init__(self, problem: Problem, objective: str) -> None:
        self.problem, self.objective = problem, objective
        self.sign = 1.0 if objective == "latency" else -1.0
        self.best_signed = math.inf
        self._go(0.0, self._released(0.0, (_Job(),) * len(problem.jobs)))

    @property
    def best(self) -> float:
        return self.sign * self.best_signed

    def _released(self, now: float, jobs: tuple[_Job, ...]) -> tuple[_Job, ...]:
        out = list(jobs)
        for k, job in enumerate(self.problem.jobs):
            if out[k].phase == "waits" and job.release <= now + CLOSE and all(out[m].phase == "done" for m in job.after):
                out[k] = replace(out[k], phase="free")
        return tuple(out)

    def _go(self, now: float, jobs: tuple[_Job, ...]) -> None:
        """All that can follow."""
        if all(job.phase == "done" for job in jobs):
            ends = [job.end for job in jobs]
            self.best_signed = min(self.best_signed, self.sign * self.problem.value(ends, self.objective))  # type: ignore[arg-type]
            return
        late = max(now - self.problem.jobs[k].release for k, job in enumerate(jobs) if job.phase != "done")
        if self.objective == "latency" and late >= self.best_signed:
            return
        for decided in self._decisions(jobs, 0):
            self._on(now, decided)

    def _decisions(self, jobs: tuple[_Job, ...], k: int) -> Iterator[tuple[_Job, ...]]:
        if k == len(jobs):
            yield jobs
            return
        job = jobs[k]
        yield from self._decisions(jobs, k + 1)
        if job.phase == "ready" and self._idle(jobs, job.set):
            yield from self._decisions(self._with(jobs, k, self._started(k, job, job.set)), k + 1)
        if job.phase in ("free", "held"):
            for a in range(len(self.problem.sets)):
                move = self.problem.transition(k, job.group, job.set, a)
                if move > 0 and job.phase == "held":
                    continue  # data move as soon as a group has ended
                if move > 0:
                    yield from self._decisions(self._with(jobs, k, replace(job, phase="moves", set=a, left=move)), k + 1)
                elif self._idle(jobs, a):
                    yield from self._decisions(self._with(jobs, k, self._started(k, job, a)), k + 1)

    def _started(self, k: int, job: _Job, a: int) -> _Job:
        return replace(job, phase="runs", set=a, left=float(self.problem.jobs[k].network.ns[job.group, a]))

    @staticmethod
    def _with(jobs: tuple[_Job, ...], k: int, job: _Job) -> tuple[_Job, ...]:
        return (*jobs[:k], job, *jobs[k + 1 :])

    def _idle(self, jobs: tuple[_Job, ...], a: int) -> bool:
        for d, domain in enumerate(self.problem.domains):
            used = sum(self.problem.sets[job.set].cores[d] for job in jobs if job.phase == "runs")
            if self.problem.sets[a].cores[d] and used + self.problem.sets[a].cores[d] > domain.cores:
                return False
        return True

    def _on(self, now: float, jobs: tuple[_Job, ...]) -> None:
        """To the next event."""
        running = [k for k, job in enumerate(jobs) if job.phase == "runs"]
        wants = [float(self.problem.jobs[k].network.demand[jobs[k].group, jobs[k].set]) for k in running]
        factors = dict(zip(running, self.problem.memories[0].slowdowns(wants), strict=True))
        waits = {k: job.left * factors.get(k, 1.0) for k, job in enumerate(jobs) if job.phase in ("runs", "moves")}
        coming = [self.problem.jobs[k].release - now for k, job in enumerate(jobs) if job.phase == "waits"]
        step = min([*waits.values(), *(t for t in coming if t > CLOSE)], default=math.inf)
        if math.isinf(step):
            return
        out = [replace(job, phase="held") if job.phase == "free" else job for job in jobs]
        for k, wait in waits.items():
            job = jobs[k]
            if wait - step > CLOSE:
                out[k] = replace(job, left=job.left - step / factors.get(k, 1.0))
            elif job.phase == "moves":
                out[k] = replace(job, phase="ready", left=0.0)
            else:
                done = job.group + 1 == len(self.problem.jobs[k].network.groups)
                out[k] = _Job("done" if done else "free", job.group + 1, job.set, 0.0, now + step if done else math.inf)
        self._go(now + step, self._released(now + step, tuple(out)))
