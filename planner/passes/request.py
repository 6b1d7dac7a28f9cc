"""The request for the passes of one static stage, and their decisions for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aspen_mp.planner.cost.accuracy import UNLIMITED, Budget
from aspen_mp.planner.frontends.onnx import OnnxModel
from aspen_mp.planner.ir.graph import Node
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.planner.lower.builder import Choices

Report = Callable[[Node, str], None]
"""Is told of each node that becomes opaque, and why."""


@dataclass(slots=True)
class Decided:
    """Decisions that later passes read. The graphs of a shape bucket share them, so that all use the same algorithms.

    `budget`: how much error the algorithms of a network may add. `choices`: of lowering, in order; an empty list is filled.
    `strassen`: whether each product is computed by Strassen's algorithm where the bucket is longest; an empty list is filled. None: the
    graph is not one of a bucket.
    """

    budget: Budget = UNLIMITED
    choices: Choices = field(default_factory=list)
    strassen: list[bool] | None = None


@dataclass(frozen=True, slots=True)
class PassRequest:
    """`asked`: how the model is to be planned. `model`: where the graph comes from. `outputs`: the names of its outputs. `report`: see
    `Report`."""

    asked: PlanRequest
    model: OnnxModel
    outputs: Sequence[str]
    report: Report | None = None
    decided: Decided = field(default_factory=Decided)
