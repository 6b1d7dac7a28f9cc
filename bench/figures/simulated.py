"""What the simulator says of a network, for machines and orders that cannot be measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aspen_mp.bench import models
from aspen_mp.bench.peers.cases import Case

if TYPE_CHECKING:
    from aspen_mp.planner.plan import Plan


@dataclass(slots=True)
class Network:
    """A network of the zoo, opened once, planned as often as is asked for."""

    case: Case

    def plan(self, workers: int) -> Plan:
        """The plan for so many workers, with built-in rates unless this process uses others."""
        from aspen_mp.planner.api import Binding, plan_stage

        model = models.build(self.case.network, batch=self.case.batch, seq=self.case.seq, **self.case.options)
        bindings = [{name: Binding(value.dtype, value.shape, None) for name, value in models.inputs(model).items()}]
        plan = plan_stage(model.SerializeToString(), bindings, workers=workers).plan
        if plan is None:
            raise ValueError(f"{self.case.label} is planned stage by stage while it runs")
        return plan

    def cores(self, counts: Sequence[int]) -> dict[int, float]:
        """Milliseconds of a request on so many cores like this machine's, each with a plan of its own."""
        from aspen_mp.planner import cost
        from aspen_mp.planner.machine import Machine
        from aspen_mp.planner.simulate import of_plan, simulate

        return {n: simulate(of_plan(self.plan(n)), Machine.uniform(n, cost.rates())).latency_ns / 1e6 for n in counts}

    def orders(self, cores: int) -> dict[str, float]:
        """Milliseconds of a request on so many cores with each order of the pool."""
        from aspen_mp.planner import cost
        from aspen_mp.planner.machine import Machine
        from aspen_mp.planner.simulate import ORDERS, Rules, of_plan, simulate

        tiles, machine = of_plan(self.plan(cores)), Machine.uniform(cores, cost.rates())
        return {order: simulate(tiles, machine, rules=Rules(order=order)).latency_ns / 1e6 for order in ORDERS}  # type: ignore[arg-type]
