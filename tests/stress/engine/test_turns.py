"""Deadlines and shares by the protocol's own functions on tables made by hand (`turns.c`), and the fluid simulation beside a slow one."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

import cbuild
import pytest

STEP = 1 / 256
"""Of the slow simulation."""


@dataclass(slots=True)
class Request:
    order: int
    work: float
    most: float
    plan: int
    limit: int
    holds: bool


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cbuild.build(cbuild.sources(tmp_path_factory.mktemp("turns"), small=False), "turns")


def test_turns_and_admission(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n")


def drawn(draw: random.Random) -> tuple[float, list[Request]]:
    """Cores and requests; of each plan no more hold an instance than it has."""
    limits = [draw.randint(1, 3) for _ in range(3)]
    held = [0] * len(limits)
    found = []
    for order in draw.sample(range(1, 100), draw.randint(1, 12)):
        plan = draw.randrange(len(limits))
        holds = held[plan] < limits[plan] and draw.random() < 0.3
        held[plan] += holds
        found.append(Request(order, draw.randint(1, 40) / 4, draw.randint(1, 16) / 4, plan, limits[plan], holds))
    return draw.randint(1, 16) / 2, found


def slow(cores: float, requests: list[Request]) -> list[float]:
    """When each request ends, by small steps of time."""
    left = [request.work for request in requests]
    holds = [request.holds for request in requests]
    ends = [0.0] * len(requests)
    now = 0.0
    turn = sorted(range(len(requests)), key=lambda k: requests[k].order)
    while any(work > 0 for work in left):
        now += STEP
        free = cores
        running = [0] * 8
        for k in turn:
            running[requests[k].plan] += holds[k] and left[k] > 0
        for k in turn:
            if left[k] <= 0 or free <= 0:
                continue
            if not holds[k]:
                if running[requests[k].plan] >= requests[k].limit:
                    continue
                holds[k] = True
                running[requests[k].plan] += 1
            rate = min(requests[k].most, free)
            free -= rate
            left[k] -= rate * STEP
            if left[k] <= 1e-9:
                left[k], ends[k] = 0.0, now
    return ends


def test_the_fluid_simulation_agrees_with_a_slow_one(program: Path) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    cases = [drawn(draw) for _ in range(200)]
    lines = []
    for cores, requests in cases:
        lines.append(f"{cores} {len(requests)}")
        lines += [f"{r.order} {r.work} {r.most} {r.plan} {r.limit} {int(r.holds)}" for r in requests]
    done = subprocess.run([program, "fluid"], input="\n".join(lines), capture_output=True, text=True, timeout=60, check=True)
    for (cores, requests), line in zip(cases, done.stdout.splitlines(), strict=True):
        ends = [float(number) for number in line.split()]
        for request, fast, other in zip(requests, ends, slow(cores, requests), strict=True):
            # An end within a step gives its cores away at the end of the step only, so each end before may delay the others.
            assert abs(fast - other) <= 2 * STEP * len(requests), f"seed {seed}: {request} of {requests} ends at {fast}, not {other}"
