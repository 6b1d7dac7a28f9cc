"""Requests for plans, as tests of the planner make them."""

from __future__ import annotations

import msgspec

from aspen_mp.planner.job.options import UNSEARCHED, Accuracy, Experiment, Vectors
from aspen_mp.planner.job.request import Instructions, PlanRequest


def plan_request(
    *,
    fuse: bool = True,
    winograd: bool = True,
    accuracy: Accuracy = "default",
    strassen: Vectors = "halved",
    sums_bytes: bool = True,
    bf16: bool = False,
    amx: bool = False,
    planning: Experiment = UNSEARCHED,
) -> PlanRequest:
    """A request whose tiles are not searched, for a processor of which each instruction is known."""
    planning = planning if fuse else msgspec.structs.replace(planning, fuse=False)
    return PlanRequest("bf16" if bf16 else "f32", winograd, accuracy, planning, instructions=Instructions(strassen, sums_bytes, bf16, amx))
