"""The plan that a runtime makes here, made in this process: what predictions, simulations and profiles are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aspen_mp import config
from aspen_mp.control.planning import local_rates
from aspen_mp.planner import api
from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.job.options import AUTOMATIC, Experiment
from aspen_mp.workers import topology

if TYPE_CHECKING:
    from onnx import ModelProto

    from aspen_mp.planner.cost.rates import Rates
    from aspen_mp.planner.plan.plan import Plan


@contextmanager
def calibrated() -> Iterator[None]:
    """Count with the rates of this machine for a while, measured ones where there are some: what predictions are made with."""
    with counting_with(local_rates.predicting(config.cache_folder(config.load(None)))):
        yield


@contextmanager
def counting_with(rates: Rates) -> Iterator[None]:
    """Count with these rates for a while."""
    before = op_cost.rates()
    op_cost.use(rates)
    try:
        yield
    finally:
        op_cost.use(before)


def cpus_for(workers: int) -> list[int]:
    """The CPUs that a runtime of `workers` workers takes where no other is."""
    return topology.read().select(workers)


def machine_of(cpus: Sequence[int]) -> Machine:
    """Return what a runtime with workers on these CPUs plans for, with the memory of the rates in use."""
    return Machine.of_speeds(topology.read().speeds(cpus), op_cost.rates())


def planned(model: ModelProto, feeds: Mapping[str, Any], machine: Machine, planning: Experiment = AUTOMATIC) -> Plan:
    """Return the searched plan of a runtime for inputs such as these arrays and cores of these speeds, predicted with the rates in use.
    ValueError: it takes values that are known at run time."""
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in feeds.items()}]
    request = api.PlanRequest(planning=planning, instructions=local_rates.instructions())
    rates = local_rates.planning()[0]
    with counting_with(rates):
        machine = Machine.of_speeds([core.speed for core in machine.cores], rates)
        plan = api.plan_stage(model, bindings, workers=len(machine), machine=machine, request=request).plan
    if plan is None:
        raise ValueError(f"{model.graph.name} is planned in stages, with values that are known at run time")
    return plan.predicted_anew()
