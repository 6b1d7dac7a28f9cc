"""Workers that join and leave all the time while requests run: `aspen-mp bench churn`.

Change after change the number of workers becomes another, at random, down to none as well. Every answer is compared bit for bit with
that of an undisturbed run. A change has had its effect when those that join have executed a tile and those that leave have ended.
Plans follow the workers as they do for everybody, as far as the changes let them: no figure here compares plans.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aspen_mp
from aspen_mp.bench.load import Answer, Load, Spread, Subject, resize, subjects
from aspen_mp.bench.peers.cases import Case

NONE = 0.05
"""Share of the changes that leave no worker."""


@dataclass(frozen=True, slots=True)
class ChurnSchedule:
    """`changes` one after the other, up to `workers` workers, `rest_s` from an effect to the next change; `threads` client threads."""

    changes: int = 1000
    workers: int = 4
    threads: int = 4
    rest_s: float = 0.02
    seed: int = 0


@dataclass(slots=True)
class Change:
    """One call of `scale`, `at_s` after the load began: from so many workers to so many, and milliseconds until it had its effect."""

    at_s: float
    before: int
    after: int
    effect_ms: float


@dataclass(slots=True)
class Churn:
    cases: list[str]
    plan: ChurnSchedule
    changes: list[Change] = field(default_factory=list)
    seconds: float = 0.0
    requests: int = 0
    lost: int = 0
    wrong: int = 0
    why: list[str] = field(default_factory=list)
    joins: Spread = field(default_factory=lambda: Spread.of([]))
    leaves: Spread = field(default_factory=lambda: Spread.of([]))

    @property
    def verdict(self) -> str:
        """The result in one line."""
        whole = "none lost, none wrong" if not self.lost + self.wrong else f"{self.lost} LOST, {self.wrong} WRONG"
        return (
            f"{' + '.join(self.cases)}: {len(self.changes)} changes in {self.seconds:.0f} s, {self.requests} requests, {whole}; "
            f"to the first tile of the joining {self.joins} ({self.joins.number}), "
            f"to the end of the leaving {self.leaves} ({self.leaves.number})"
        )


def measure(cases: Sequence[Case], schedule: ChurnSchedule, say: Callable[[str], None] = lambda _: None) -> Churn:
    """Does it on a runtime of its own."""
    say("starting")
    with aspen_mp.Runtime(workers=schedule.workers, max_workers=2 * schedule.workers, log="off") as runtime:
        return stir(runtime, subjects(runtime, cases, say), schedule, say)


def stir(
    runtime: aspen_mp.Runtime, loaded: Sequence[Subject], schedule: ChurnSchedule, say: Callable[[str], None] = lambda _: None
) -> Churn:
    """Does it on a runtime that has been started with `schedule.workers` workers and holds what is `loaded`; leaves it with as many."""
    churn = Churn([it.label for it in loaded], schedule)
    rng = random.Random(schedule.seed)
    load = Load(loaded, schedule.threads)
    answers: list[Answer] = []
    try:
        now = schedule.workers
        for k in range(schedule.changes):
            last = k == schedule.changes - 1
            then = schedule.workers if last and now != schedule.workers else _another(rng, now, schedule.workers)
            asked = time.monotonic()
            churn.changes.append(Change(asked - load.since, now, then, resize(runtime, then) * 1e3))
            now = then
            say(f"{k + 1} of {schedule.changes} changes: {now} workers")
            load.sleep(schedule.rest_s * rng.uniform(0.5, 1.5))
        if now != schedule.workers:
            resize(runtime, schedule.workers)
    finally:
        answers = load.stop()
    churn.seconds = time.monotonic() - load.since
    churn.lost, churn.wrong = sum(bool(a.lost) for a in answers), sum(a.wrong for a in answers)
    churn.why = sorted({a.lost for a in answers if a.lost})[:8]
    churn.requests = len(answers) - churn.lost
    churn.joins = Spread.of([c.effect_ms / 1e3 for c in churn.changes if c.after > c.before])
    churn.leaves = Spread.of([c.effect_ms / 1e3 for c in churn.changes if c.after < c.before])
    return churn


def _another(rng: random.Random, now: int, most: int) -> int:
    """How many workers there are to be next: not as many as now."""
    if now and rng.random() < NONE:
        return 0
    return rng.choice([n for n in range(1, most + 1) if n != now])
