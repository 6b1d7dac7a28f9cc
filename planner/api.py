"""The planner's face: what a model takes and gives, and plans for its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from aspen_mp.planner import stages
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.frontends.binding.bind import Binding
from aspen_mp.planner.frontends.binding.folding import BucketFolding
from aspen_mp.planner.frontends.networks import load
from aspen_mp.planner.frontends.onnx import ModelLike, OnnxModel, Signature, ValueInfo
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import UNSEARCHED
from aspen_mp.planner.job.request import Instructions, PlanRequest
from aspen_mp.planner.layout.storage import assign_storage
from aspen_mp.planner.ops.spec import OPAQUE
from aspen_mp.planner.passes import pipeline
from aspen_mp.planner.passes.request import Decided, PassRequest, Report
from aspen_mp.planner.plan.bucketed_graph import BucketedGraph
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.shape_bucket import Extents, NoBucket, ShapeBucket
from aspen_mp.planner.stages import Value
from aspen_mp.shm.errors import ModelInvalidError

__all__ = ["Binding", "Demand", "NoBucket", "OnnxModel", "PlanRequest", "ShapeBucket", "Signature", "StageResult", "Value", "ValueInfo"]
__all__ += ["inspect", "load", "lowered", "plan_bucket", "plan_stage"]

Demand = Literal["none", "even", "busy"]
"""What a plan for a shape bucket has to be: see `plan_bucket`."""


PLAIN: Final = PlanRequest(planning=UNSEARCHED, instructions=Instructions("halved"))
"""What is asked for where nobody says: tiles without a search."""


@dataclass(slots=True)
class StageResult:
    """A stage of a model.

    `kind`: "static" (tiles) or "dynamic" (one opaque tile; its results are serialised values, see `aspen_mp.shm.values`).
    `needs`: names of stage inputs whose values must be bound before the stage can be planned; then there is no plan yet.
    `inputs`: what the plan reads (values that were bound by value, or are not read, are missing). `outputs`: what it gives;
    `Value.final` marks outputs of the model, the others feed later stages. `more`: stages follow.
    `opaque`: nodes that run through onnx.reference, and why. `bucketed`: where the plan is for a shape bucket, what it is made of.
    """

    kind: str
    inputs: list[Value]
    outputs: list[Value]
    needs: list[str]
    more: bool
    plan: Plan | None
    opaque: list[tuple[str, str, str]] = field(default_factory=list)
    bucketed: BucketedGraph | None = None


def inspect(model: ModelLike | OnnxModel, *, folder: str | None = None) -> Signature:
    """Checks a model (path, bytes, ModelProto, or an opened one) and returns its inputs and outputs.

    Raises ModelParseError, ModelInvalidError, UnsupportedModelError, ExternalDataError, ResourceLimitError.
    """
    return _open(model, folder).signature


@np.errstate(all="ignore")  # constants are folded on the way: infinities and NaN are values like others
def plan_stage(
    model: ModelLike | OnnxModel,
    bindings: Sequence[Mapping[str, Binding]],
    *,
    workers: int,
    machine: Machine | None = None,
    request: PlanRequest = PLAIN,
    capacities: Mapping[str, int] | None = None,
    build: PlanOptions | None = None,
    folder: str | None = None,
    derived: stages.Derived | None = None,
) -> StageResult:
    """Plans stage ``len(bindings) - 1`` of a model.

    `bindings[k]` binds the inputs of stage k by name: `bindings[0]` every input of the model, later ones the results of the stages before
    (shapes of results of static stages are known and may be left out). A Binding with a value makes that input a constant of the plan.
    `capacities`: bytes for serialised results of dynamic stages, by name, where a worker reported that the guess was too small. `build`:
    see `aspen_mp.planner.build`. `derived`: as of `stages.derive`. Raises what `inspect` raises, and RequestError where bindings do not
    fit.
    """
    opened = _open(model, folder)
    stage = stages.derive(opened, bindings, capacities or {}, derived)
    if stage.needs:
        return StageResult(stage.kind, [], [], stage.needs, True, None)
    opaque: list[tuple[str, str, str]] = []
    graph = stage.graph
    if stage.kind == "static":
        graph = lowered(graph, opened, [v.name for v in stage.outputs], request, lambda n, why: opaque.append((n.name, n.onnx_op, why)))
    opaque += [(n.name, n.onnx_op, "results depend on data") for n in stage.graph.nodes if n.op == OPAQUE]
    plan = _built(graph, workers, machine, request, build)
    return StageResult(stage.kind, _inputs(graph), stage.outputs, [], stage.more, plan, opaque)


@np.errstate(all="ignore")  # as above
def plan_bucket(
    model: ModelLike | OnnxModel,
    bindings: Mapping[str, Binding],
    bucket: ShapeBucket,
    *,
    workers: int,
    machine: Machine | None = None,
    request: PlanRequest = PLAIN,
    build: PlanOptions | None = None,
    folder: str | None = None,
    derived: stages.Derived | None = None,
    demand: Demand = "none",
) -> StageResult:
    """Plans a model of one stage for a shape bucket. `bindings`: of its inputs where it is largest. `derived`: as of `plan_stage`.
    `demand`: what else the plan has to be, or there is none: "even", with hardly anything that has the length in it where it is shortest;
    and not much more memory where it is longest; "busy", with tiles for all workers where it is shortest, and little memory.

    Raises NoBucket where there is no such plan, and what `plan_stage` raises.
    """
    opened = _open(model, folder)
    alike = _Alike(opened, bindings, bucket, request, stages.Derived() if derived is None else derived)
    stage, graph = alike.at(bucket.most)
    bucketed = BucketedGraph(bucket, assign_storage(graph))
    for number, extents in enumerate(bucket.samples()):
        try:
            bucketed.add(extents, bucketed.most if number == 0 else assign_storage(alike.at(extents)[1]))
        except NoBucket as reason:
            raise NoBucket(str(reason), elsewhere=reason.elsewhere and number != 1) from None
        if extents != bucket.least:
            continue
        if demand == "even":
            bucketed.mostly_the_same()
        if demand == "busy":
            bucketed.small_enough()
        if build is not None and build.sized is not None:  # where neighbours differ, there is no plan
            build.sized(bucketed.arena_bytes())
            build = replace(build, sized=None)
    while more := bucketed.missing():
        for extents in more:
            bucketed.add(extents, assign_storage(alike.at(extents)[1]))
    plan = _built(graph, workers, machine, request, build, bucketed)
    if demand == "busy":
        bucketed.keeps_busy(plan, workers)
    return StageResult(stage.kind, _inputs(graph), stage.outputs, [], False, plan, bucketed=bucketed)


@np.errstate(all="ignore")  # as above
def plan_within(
    model: ModelLike | OnnxModel,
    bindings: Mapping[str, Binding],
    bucket: ShapeBucket,
    extents: Extents,
    *,
    workers: int,
    machine: Machine | None = None,
    request: PlanRequest = PLAIN,
    build: PlanOptions | None = None,
    folder: str | None = None,
    derived: stages.Derived | None = None,
) -> StageResult:
    """Plans one request of a shape bucket by itself. Its results have the bits that they have in the plan for the bucket. Arguments as of
    `plan_bucket`; raises the same."""
    alike = _Alike(_open(model, folder), bindings, bucket, request, stages.Derived() if derived is None else derived)
    alike.at(bucket.most)
    stage, graph = alike.at(extents)
    return StageResult(stage.kind, _inputs(graph), stage.outputs, [], False, _built(graph, workers, machine, request, build))


class _Alike:
    """The graphs of a model at the extents of a shape bucket, which are alike: what is folded and which algorithms compute products is
    decided once. The longest comes first. `bindings`: of the inputs there."""

    def __init__(
        self, model: OnnxModel, bindings: Mapping[str, Binding], bucket: ShapeBucket, request: PlanRequest, derived: stages.Derived
    ) -> None:
        self._model, self._bindings, self._bucket = model, bindings, bucket
        self._request, self._derived = request, derived
        self._folding = BucketFolding()
        self._decided = Decided(strassen=[])

    def at(self, extents: Extents) -> tuple[stages.StageGraph, Graph]:
        """The stage and its graph of kernels. NoBucket where shapes depend on values."""
        stage = self._stage(extents)
        names = [v.name for v in stage.outputs]
        if extents == self._bucket.most and any("Conv" in node.op for node in stage.graph.nodes):
            typical = self._stage(self._bucket.typical)
            lowered(typical.graph, self._model, names, self._request, decided=Decided(choices=self._decided.choices, strassen=[]))
        return stage, lowered(stage.graph, self._model, names, self._request, decided=self._decided)

    def _stage(self, extents: Extents) -> stages.StageGraph:
        bucket = self._bucket
        bound = {name: replace(b, shape=bucket.shape(name, b.shape or (), bucket.most, extents)) for name, b in self._bindings.items()}
        stage = stages.derive(self._model, [bound], {}, self._derived, bucket=self._folding)
        if stage.kind != "static" or stage.more or stage.needs:
            raise NoBucket("shapes depend on values", elsewhere=False)
        self._folding.longest = False
        return stage


def _inputs(graph: Graph) -> list[Value]:
    return [Value(t.name, t.dtype, t.shape, "tensor" if t.dtype != object else "other") for t in graph.inputs]


def _built(
    graph: Graph,
    workers: int,
    machine: Machine | None,
    request: PlanRequest,
    build: PlanOptions | None,
    bucketed: BucketedGraph | None = None,
) -> Plan:
    try:
        return build_plan(graph, workers=workers, machine=machine, options=build, planning=request.planning, bucketed=bucketed)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Operands that do not fit each other in a way that no check knows, or our own mistake: the text leaves both open.
        raise ModelInvalidError(
            f"graph {graph.name!r} cannot be planned: {type(error).__name__}: {error}. If other runtimes run this model, please report it"
        ) from error


def lowered(
    graph: Graph,
    model: OnnxModel,
    names: list[str],
    request: PlanRequest,
    report: Report | None = None,
    decided: Decided | None = None,
) -> Graph:
    """The kernel-level graph of a static stage, all passes applied. `names`: of its outputs. `decided`: by another graph of the same shape
    bucket."""
    return pipeline.run(graph, PassRequest(request, model, names, report, decided or Decided()))


def _open(model: ModelLike | OnnxModel, folder: str | None) -> OnnxModel:
    return model if isinstance(model, OnnxModel) else load(model, folder=folder)
