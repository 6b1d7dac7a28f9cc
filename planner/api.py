"""The planner's face: what a model takes and gives, and plans for its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from aspen_mp.planner.ir.likeness import form
from aspen_mp.planner.job.bucket_policy import POLICY
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
from aspen_mp.shm.errors import AspenError, ModelInvalidError
from aspen_mp.shm.extents import MOST_EXTENTS, room

__all__ = ["Binding", "Demand", "NoBucket", "OnnxModel", "PlanRequest", "ShapeBucket", "Signature", "StageResult", "Value", "ValueInfo"]
__all__ += ["inspect", "load", "lowered", "plan_bucket", "plan_stage"]

Demand = Literal["none", "even", "busy"]
"""What a plan for a shape bucket has to be: see `plan_bucket`."""


_IDLE_FACTORS: Final = (16, 4, 1)
"""By how many times the range of a length is widened at each end that a stage does not depend on."""
PLAIN: Final = PlanRequest(planning=UNSEARCHED, instructions=Instructions("halved"))
"""What is asked for where nobody says: tiles without a search."""


@dataclass(slots=True)
class StageResult:
    """A stage of a model.

    `kind`: "static" (tiles) or "dynamic" (one opaque tile; its results are serialised values, see `aspen_mp.shm.values`).
    `needs`: names of stage inputs whose values must be bound before the stage can be planned; then there is no plan yet.
    `inputs`: what the plan reads (values that were bound by value, or are not read, are missing). `outputs`: what it gives;
    `Value.final` marks outputs of the model, the others feed later stages. `more`: stages follow.
    `opaque`: nodes that run through onnx.reference, and why. `bucketed`: where the plan is for a shape bucket, what it is made of; None
    also where the plan is the same at all lengths. `lengths`: numbers of those lengths of the bucket that are extents of the plan. `idle`:
    of the others, by their numbers, from what to what the plan is the same.
    """

    kind: str
    inputs: list[Value]
    outputs: list[Value]
    needs: list[str]
    more: bool
    plan: Plan | None
    opaque: list[tuple[str, str, str]] = field(default_factory=list)
    bucketed: BucketedGraph | None = None
    lengths: tuple[int, ...] = ()
    idle: Mapping[int, tuple[int, int]] = field(default_factory=dict)


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
    bindings: Sequence[Mapping[str, Binding]],
    bucket: ShapeBucket,
    *,
    workers: int,
    machine: Machine | None = None,
    request: PlanRequest = PLAIN,
    capacities: Mapping[str, int] | None = None,
    build: PlanOptions | None = None,
    folder: str | None = None,
    derived: stages.Derived | None = None,
    demand: Demand = "none",
) -> StageResult:
    """Plans stage ``len(bindings) - 1`` of a model for a shape bucket. `bindings`: as of `plan_stage`, where the bucket is largest.
    `capacities`, `derived`: as of `plan_stage`. The bucket may have more lengths than a plan has extents, if the stage depends on few.
    `demand`: what else the plan has to be, or there is none: "even", with hardly anything that has the length in it where it is shortest;
    and not much more memory where it is longest; "busy", with tiles for all workers where it is shortest, and little memory.

    Raises NoBucket where there is no such plan, and what `plan_stage` raises.
    """
    opened = _open(model, folder)
    alike = _Alike(opened, bindings, bucket, request, stages.Derived() if derived is None else derived, capacities or {})
    lengths, idle = alike.choose_lengths()
    bucket = bucket.of(lengths)
    stage, graph = alike.at(bucket.most)
    result = StageResult(stage.kind, _inputs(graph), stage.outputs, [], stage.more, None, lengths=lengths, idle=idle)
    if not lengths:
        return replace(result, plan=_built(graph, workers, machine, request, build))
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
    return replace(result, plan=plan, bucketed=bucketed)


@np.errstate(all="ignore")  # as above
def plan_within(
    model: ModelLike | OnnxModel,
    bindings: Sequence[Mapping[str, Binding]],
    bucket: ShapeBucket,
    extents: Extents,
    *,
    workers: int,
    machine: Machine | None = None,
    request: PlanRequest = PLAIN,
    capacities: Mapping[str, int] | None = None,
    build: PlanOptions | None = None,
    folder: str | None = None,
    derived: stages.Derived | None = None,
) -> StageResult:
    """Plans one request of a shape bucket by itself. Its results have the bits that they have in the plan for the bucket. Arguments as of
    `plan_bucket`; raises the same."""
    derived = stages.Derived() if derived is None else derived
    alike = _Alike(_open(model, folder), bindings, bucket, request, derived, capacities or {})
    alike.at(bucket.most)
    stage, graph = alike.at(extents)
    return StageResult(stage.kind, _inputs(graph), stage.outputs, [], stage.more, _built(graph, workers, machine, request, build))


class _Alike:
    """The graphs of a stage at the extents of a shape bucket, which are alike: what is folded, which algorithms compute products and how
    much room serialised results have is decided once. The longest comes first. `bindings`: there, of all stages up to this one."""

    def __init__(
        self,
        model: OnnxModel,
        bindings: Sequence[Mapping[str, Binding]],
        bucket: ShapeBucket,
        request: PlanRequest,
        derived: stages.Derived,
        capacities: Mapping[str, int],
    ) -> None:
        self._model, self._bindings, self._bucket = model, bindings, bucket
        self._request, self._derived, self._capacities = request, derived, dict(capacities)
        self._folding = BucketFolding()
        self._decided = Decided(strassen=[])

    def choose_lengths(self) -> tuple[tuple[int, ...], dict[int, tuple[int, int]]]:
        """Numbers of the lengths that the stage depends on, to which the bucket is confined, and the ranges of the others. NoBucket where
        it depends on too many.

        All lengths of a first stage count: its inputs have them. Others may be of stages in front only, such as a number of boxes before
        some are suppressed. The stage does not depend on a length if it is the same wherever that is looked at.
        """
        bucket, idle = self._bucket, {}
        numbers = tuple(range(len(bucket.most)))
        if len(self._bindings) > 1:
            at_most = self._form(bucket.most)
            alone = [k for k in numbers if all(self._has_form(at_most, _with(bucket.most, {k: e})) for e in _looked_at(bucket, k))]
            idle = next((ends for ends in _wider(bucket, alone) if self._are_idle(ends)), {})
        chosen = tuple(k for k in numbers if k not in idle)
        if len(chosen) > MOST_EXTENTS or any(bucket.most[k] > most for k, most in zip(chosen, room(len(chosen)), strict=True)):
            raise NoBucket(f"depends on {len(chosen)} lengths, up to {[bucket.most[k] for k in chosen]}")
        self._bucket = bucket.of(chosen)
        return chosen, idle

    def _are_idle(self, idle: Mapping[int, tuple[int, int]]) -> bool:
        """Whether the stage stays the same where these lengths are at the ends of these ranges, alone and together."""
        bucket, corners = self._bucket, [dict(zip(idle, ends, strict=True)) for ends in zip(*idle.values(), strict=True)]
        corners += [{k: end} for k, ends in idle.items() for end in ends]
        for there in (bucket.least, tuple((a + b) // 2 for a, b in zip(bucket.least, bucket.most, strict=True))):
            wanted = self._form(there)
            if not all(self._has_form(wanted, _with(there, corner)) for corner in corners):
                return False
        return True

    def _has_form(self, wanted: object, extents: Extents) -> bool:
        try:
            return self._form(extents) == wanted
        except (AspenError, NoBucket):
            return False

    def _form(self, extents: Extents) -> object:
        stage = self._stage(extents)
        return stage.kind, stage.more, [(v.name, v.dtype, v.shape, v.final) for v in stage.outputs], form(stage.graph)

    def at(self, extents: Extents) -> tuple[stages.StageGraph, Graph]:
        """The stage and its graph of kernels. NoBucket where shapes depend on values."""
        stage = self._stage(extents)
        if stage.kind != "static":
            return stage, stage.graph
        names = [v.name for v in stage.outputs]
        if extents == self._bucket.most and any("Conv" in node.op for node in stage.graph.nodes):
            typical = self._stage(self._bucket.typical)
            lowered(typical.graph, self._model, names, self._request, decided=Decided(choices=self._decided.choices, strassen=[]))
        return stage, lowered(stage.graph, self._model, names, self._request, decided=self._decided)

    def _stage(self, extents: Extents) -> stages.StageGraph:
        bucket = self._bucket
        bound = [
            {name: b if b.value is not None else replace(b, shape=self._shape(name, b, extents)) for name, b in known.items()}
            for known in self._bindings
        ]
        stage = stages.derive(self._model, bound, self._capacities, self._derived, bucket=self._folding)
        if stage.needs:
            raise NoBucket(f"shapes depend on values: {', '.join(stage.needs)}", elsewhere=False)
        if self._folding.longest:
            assert extents == bucket.most
            self._capacities |= {t.name: t.shape[0] for t in stage.graph.outputs if t.dtype == object}
        self._folding.longest = False
        return stage

    def _shape(self, name: str, bound: Binding, extents: Extents) -> tuple[int, ...] | None:
        return bound.shape if bound.shape is None else self._bucket.shape(name, bound.shape, self._bucket.most, extents)


def _with(extents: Extents, other: Mapping[int, int]) -> Extents:
    return tuple(other.get(k, extent) for k, extent in enumerate(extents))


def _wider(bucket: ShapeBucket, lengths: Sequence[int]) -> Iterator[dict[int, tuple[int, int]]]:
    """Yield ranges of lengths that a stage may not depend on, the widest first: they cost nothing. The last are those of the bucket."""
    for factor in _IDLE_FACTORS if lengths else ():
        ends = {k: (bucket.least[k] // factor, bucket.most[k] * factor) for k in lengths}
        yield {
            k: (max(least, min(bucket.least[k], POLICY.least_extent)), min(most, POLICY.most_extent)) for k, (least, most) in ends.items()
        }


def _looked_at(bucket: ShapeBucket, k: int) -> list[int]:
    """Values of a length that tell whether a stage depends on it: the smallest, one between, the largest but one."""
    least, most = bucket.least[k], bucket.most[k]
    return sorted({least, (least + most) // 2, max(most - 1, least)})


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
