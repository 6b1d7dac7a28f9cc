"""Simulates a network, for machines and orders that cannot be measured here; plans and rates are a runtime's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aspen_mp.bench import models
from aspen_mp.bench.peers.cases import Case

if TYPE_CHECKING:
    from aspen_mp.planner.cost.machine import Machine
    from aspen_mp.planner.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class AtOnce:
    """`in_flight` requests at a time on so many `cores`, by simulation. `latency`, `throughput`: what a plan for that objective reaches,
    1.0 being `cores` times one core. `team`: for how many cores the plan for throughput cuts a request."""

    cores: int
    in_flight: int
    latency: float
    throughput: float
    team: int


@dataclass(slots=True)
class SimulatedNetwork:
    """A network of the zoo, planned as often as is asked for."""

    case: Case

    def plan(self, machine: Machine, in_flight: int = 1) -> Plan:
        """The plan that a runtime makes for such cores, with the rates that this process uses. `in_flight`: requests at a time that it is
        for."""
        from aspen_mp.planner.job.options import Experiment
        from aspen_mp.tools.local_plans import planned

        model = models.build(self.case.network, batch=self.case.batch, seq=self.case.seq, **self.case.options)
        return planned(model, models.inputs(model), machine, Experiment(in_flight=in_flight))

    def cores(self, counts: Sequence[int]) -> dict[int, float]:
        """Milliseconds of a request on each number of cores like this machine's, each with a plan of its own."""
        from aspen_mp.planner.cost import op_cost
        from aspen_mp.planner.cost.machine import Machine
        from aspen_mp.planner.simulation.simulate import of_plan, simulate
        from aspen_mp.tools.local_plans import calibrated

        found = {}
        with calibrated():
            for n in counts:
                machine = Machine.uniform(n, op_cost.rates())
                found[n] = simulate(of_plan(self.plan(machine)), machine).latency_ns / 1e6
        return found

    def at_once(self, counts: Sequence[int], numbers: Sequence[int]) -> list[AtOnce]:
        """Simulate the throughput of cores like this machine's beside as many times one core, for each number of cores and of requests at a
        time. It is given with the plan for requests alone and with that for throughput."""
        from aspen_mp.planner.cost import op_cost
        from aspen_mp.planner.cost.machine import Machine
        from aspen_mp.planner.simulation.simulate import of_plan, throughput
        from aspen_mp.tools.local_plans import calibrated

        found = []
        with calibrated():
            one = Machine.uniform(1, op_cost.rates())
            alone = throughput(of_plan(self.plan(one)), one, 2)
            for n in counts:
                machine = Machine.uniform(n, op_cost.rates())
                before = of_plan(self.plan(machine))
                for in_flight in numbers:
                    plan = self.plan(machine, in_flight)
                    latency, most = (throughput(tiles, machine, in_flight) / (n * alone) for tiles in (before, of_plan(plan)))
                    found.append(AtOnce(n, in_flight, latency, most, plan.metadata.get("shared", {}).get("cores", n)))
        return found

    def fractions(self, memory: Mapping[int, float]) -> list[tuple[float, float]]:
        """Parallel fractions of a request on each number of cores like this machine's. `memory`: by numbers of cores, how many times as
        fast as one they read memory together. Pairs: with that limit, and as if there were none."""
        from aspen_mp.planner.cost import op_cost
        from aspen_mp.planner.cost.machine import Machine
        from aspen_mp.planner.simulation.simulate import of_plan, parallel_fraction, simulate
        from aspen_mp.tools.local_plans import calibrated

        found = []
        with calibrated():
            rates = op_cost.rates()
            alone = Machine.uniform(1, rates)
            serial = simulate(of_plan(self.plan(alone)), alone).latency_ns
            for n, times in memory.items():
                machine = Machine.uniform(n, rates)
                tiles = of_plan(self.plan(machine))
                limits = (rates.cold * max(times, 1.0), math.inf)
                latencies = [simulate(tiles, replace(machine, bytes_per_ns=limit)).latency_ns for limit in limits]
                found.append((parallel_fraction(serial, latencies[0], n), parallel_fraction(serial, latencies[1], n)))
        return found

    def share(self, fast: int, slow: int, speed: float, memory: float) -> tuple[float, float]:
        """The throughput of `fast` cores like this machine's and `slow` ones that are slower by a factor, requests one at a time. It is a
        share of the sum of the fast ones' and the slow ones' own. `memory`: how many times as fast as one fast core all read memory
        together. With that limit, and as if there were none."""
        from aspen_mp.planner.cost import op_cost
        from aspen_mp.planner.cost.machine import Machine
        from aspen_mp.planner.simulation.simulate import of_plan, simulate
        from aspen_mp.tools.local_plans import calibrated

        of_fast, of_slow = [1.0] * fast, [speed] * slow
        with calibrated():
            rates = op_cost.rates()
            limits = (rates.cold * max(memory, 1.0), math.inf)

            def per_ns(of: Sequence[float]) -> list[float]:
                machine = Machine.of_speeds(of, rates)
                tiles = of_plan(self.plan(machine))
                return [1 / simulate(tiles, replace(machine, bytes_per_ns=limit)).latency_ns for limit in limits]

            by_fast, by_slow, by_all = (per_ns(of) for of in (of_fast, of_slow, of_fast + of_slow))
        limited, unlimited = (a / (f + s) for f, s, a in zip(by_fast, by_slow, by_all, strict=True))
        return limited, unlimited

    def orders(self, cpus: Sequence[int]) -> dict[str, float]:
        """Milliseconds of a request on these CPUs with each order of the pool."""
        import numpy as np

        from aspen_mp.planner.simulation.simulate import ORDERS, Rules, of_plan, simulate
        from aspen_mp.tools.local_plans import calibrated, machine_of

        with calibrated():
            machine = machine_of(cpus)
            tiles = of_plan(self.plan(machine))
        layers = replace(tiles, rank=np.where(tiles.rank > 0, np.arange(tiles.n) + 1, 0))
        given = {order: layers if order == "layer" else tiles for order in ORDERS}
        return {order: simulate(graph, machine, rules=Rules(order=order)).latency_ns / 1e6 for order, graph in given.items()}  # type: ignore[arg-type]
