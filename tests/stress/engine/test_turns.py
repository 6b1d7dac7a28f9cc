"""Deadlines and shares by the protocol's own functions on tables made by hand (`turns.c`), and the fluid simulation beside an exact one."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import cbuild
import pytest

NONE = Fraction(1, 1000)
"""Less work counts as none, as in ``shm/protocol/fluid.h``."""


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


def exact(cores: float, requests: list[Request]) -> list[float]:
    """When each request ends, from end to end, in fractions: ends at the same time are the same."""
    left = [Fraction(request.work) for request in requests]
    holds = [request.holds for request in requests]
    ends = [Fraction(0)] * len(requests)
    now = Fraction(0)
    turn = sorted(range(len(requests)), key=lambda k: requests[k].order)
    while any(left):
        free, running = Fraction(cores), Counter(request.plan for k, request in enumerate(requests) if holds[k] and left[k])
        rates: dict[int, Fraction] = {}
        for k in turn:
            if not left[k] or not free:
                continue
            if not holds[k]:
                if running[requests[k].plan] >= requests[k].limit:
                    continue
                holds[k] = True
                running[requests[k].plan] += 1
            rates[k] = min(Fraction(requests[k].most), free)
            free -= rates[k]
        step = min(left[k] / rate for k, rate in rates.items())
        now += step
        for k, rate in rates.items():
            left[k] -= rate * step
            if left[k] < NONE:
                left[k], ends[k] = Fraction(0), now
    return [float(end) for end in ends]


def test_the_fluid_simulation_agrees_with_an_exact_one(program: Path) -> None:
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
        for request, fast, other in zip(requests, ends, exact(cores, requests), strict=True):
            assert abs(fast - other) <= 1e-6, f"seed {seed}: {request} of {requests} ends at {fast}, not {other}"
