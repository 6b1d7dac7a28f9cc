"""Counts layers of a network that can run depth first, and those that do (BrainSlug, Weber et al., 2018, section 5.3 and table 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aspen_mp.bench import models
from aspen_mp.bench.peers.cases import Case

if TYPE_CHECKING:
    from aspen_mp.planner.plan.plan import OpInfo

NETWORKS = (
    *("alexnet", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"),
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "squeezenet1_0", "squeezenet1_1"),
    *("densenet121", "densenet161", "densenet169", "densenet201", "inception_v3"),
)
"""The paper's: those of torchvision at the time."""
_OF_CHANNELS = {"MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "BatchNormalization"}
"""ONNX operators that keep channels apart, besides those of single elements."""


@dataclass(slots=True)
class Layers:
    """Layers of a network: nodes of its ONNX graph. `optimisable`: pooling, normalisation, activation and other element-wise ones; `share`:
    of the time of a plan in which every layer runs by itself, as predicted for one core. `stacks`: of layers that run depth first in the
    plan of a runtime, whatever the number of their sequences; `stacked`: their share of its time, as predicted for one core."""

    case: str
    layers: int
    optimisable: int
    share: float
    stacks: int
    stacked: float


def measure(case: Case, cores: Sequence[int]) -> Layers:
    """Plans a network twice: for a runtime on these CPUs, and layer by layer. Nothing runs."""
    from aspen_mp.planner.job.options import Experiment
    from aspen_mp.tools.local_plans import calibrated, machine_of, planned

    model = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    feeds = models.inputs(model)
    with calibrated():
        machine = machine_of(cores)
        apart = planned(model, feeds, machine, Experiment(search="none", fuse=False)).info
        together = planned(model, feeds, machine).info
    nodes = {node.name for node in model.graph.node}  # other rows change a layout
    nodes -= {row.name for row in apart if not _is_optimisable(row)}  # a Gemm adds its bias by an element-wise kernel, too
    optimisable = [row for row in apart if row.name in nodes]
    stacks = [row for row in together if row.stack is not None]
    return Layers(
        case=case.label,
        layers=len(model.graph.node),
        optimisable=_nodes(optimisable),
        share=_ms(optimisable) / _ms(apart),
        stacks=len({row.stack.number for row in together if row.stack is not None}),
        stacked=_ms(stacks) / _ms(together),
    )


def _is_optimisable(row: OpInfo) -> bool:
    from aspen_mp.planner.ops.table import ELEMENTWISE

    return row.op in _OF_CHANNELS or row.kernel.partition(" ")[0] in ELEMENTWISE


def _nodes(rows: Iterable[OpInfo]) -> int:
    """Nodes that rows stand for: a node may be several kernels, and each of them several slices of the batch."""
    return len({row.name for row in rows})


def _ms(rows: Iterable[OpInfo]) -> float:
    return sum(row.predicted_ms for row in rows)
