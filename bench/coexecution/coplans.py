"""Predicts the gain of planning several networks together: `aspen-mp bench coplans`.

Nothing runs. Rates are those built in for one kind of core, so every machine finds the same, as far as the search comes in its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from aspen_mp.bench import models
from aspen_mp.bench.peers import cases
from aspen_mp.planner import api
from aspen_mp.planner.coschedule.together import Run, together
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.rates import BUILT_IN
from aspen_mp.tools.local_plans import counting_with

if TYPE_CHECKING:
    from aspen_mp.planner.plan.plan import Plan

MIXES: Final = "vgg16+vgg16", "alexnet+alexnet", "3*gpt2@seq=1+resnet50", "gpt2@seq=1+gpt2@seq=1"
"""Networks that run together. `3*` before one: three runs, one after the other."""
CORES: Final = "2", "8P+8E", "32/32"
SPEEDS: Final = {"P": 1.0, "E": 0.5, "L": 0.35}
"""The speed of a core of each class, as a share of the fastest."""
SERIAL: Final = "serial"
"""The naive schedule that runs one network after the other."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A mix on a machine.

    `times`: how often each network runs, one run after the other. `naive_ms`: the greatest latency by naive schedule; `ms`: that of the
    plan; `bound_ms`: no schedule of the model has less; `proven`: the plan has as little.
    """

    networks: list[str]
    times: list[int]
    cores: str
    naive_ms: dict[str, float]
    ms: float
    bound_ms: float
    proven: bool

    @property
    def name(self) -> str:
        return " + ".join(f"{n} × {network}" if n > 1 else network for network, n in zip(self.networks, self.times, strict=True))

    @property
    def of_serial(self) -> float:
        """How much less the plan takes than one network after the other, as a share of that."""
        return 1 - self.ms / self.naive_ms[SERIAL]

    @property
    def of_best(self) -> float:
        """How much less the plan takes than the best naive schedule, as a share of that."""
        return 1 - self.ms / min(self.naive_ms.values())


@dataclass(slots=True)
class CoplansResult:
    """All mixes on all machines. `seconds`: how long each search had."""

    seconds: float
    gains: list[Gain] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        middle = median(gain.of_serial for gain in self.gains)
        return f"a plan takes {middle:.1%} less than one network after the other, in the median"


def predict(mixes: Sequence[str], cores: Sequence[str], seconds: float, say: Callable[[str], None]) -> CoplansResult:
    """Plan each mix, written as `MIXES` are, on each machine, written as `aspen-mp plan --cores` has it. ValueError says what is wrong."""
    parsed = [_parsed(mix) for mix in mixes]
    result = CoplansResult(seconds)
    for text in cores:
        machine = Machine.parse(text, BUILT_IN, SPEEDS)
        plans: dict[str, Plan] = {}
        for mix in parsed:
            for network, _ in mix:
                say(f"{network} on {text}")
                plans[network] = plans.get(network) or _planned(network, machine)
            result.gains.append(_gain(mix, plans, text, machine, seconds))
    return result


def _parsed(mix: str) -> list[tuple[str, int]]:
    """Networks, and how often each runs."""
    found = []
    for part in mix.split("+"):
        times, _, network = part.rpartition("*")
        if times and not (times.isdecimal() and int(times)):
            raise ValueError(f"{part!r} of {mix!r} has no number of runs. Write it like 3*{network}")
        found.append((cases.parse(network).label, int(times or 1)))
    return found


def _gain(mix: Sequence[tuple[str, int]], plans: dict[str, Plan], cores: str, machine: Machine, seconds: float) -> Gain:
    runs = [Run(network, plans[network], times) for network, times in mix]
    found = together(runs, machine, BUILT_IN, "latency", time.monotonic() + seconds)
    naive = {name: max(schedule.ends) * 1e-6 for name, schedule in found.naive.items()}
    best = found.incumbent
    return Gain([n for n, _ in mix], [n for _, n in mix], cores, naive, best.value * 1e-6, best.bound * 1e-6, best.proven)


def _planned(network: str, machine: Machine) -> Plan:
    """The plan of a network of the zoo for this machine. ValueError: it is planned in stages."""
    case = cases.parse(network)
    model = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    opened = api.load(model.SerializeToString())
    bindings = {name: api.Binding(x.dtype, x.shape, None) for name, x in models.inputs(model).items()}
    with counting_with(BUILT_IN):
        found = api.plan_stage(opened, [bindings], workers=len(machine), machine=machine)
    if found.plan is None or found.more:
        raise ValueError(f"{network} is planned in stages while it runs. Leave it out")
    return found.plan
