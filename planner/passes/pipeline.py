"""Every pass of the planner, in order, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, Literal

from aspen_mp.planner.cost import accuracy
from aspen_mp.planner.cost.algorithms import MOST_STACKED
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job import progress, reasons
from aspen_mp.planner.job.reasons import NETWORK, Decision, Reason, Tried
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.planner.lower import lower
from aspen_mp.planner.lower.registry import RULES
from aspen_mp.planner.ops import verify
from aspen_mp.planner.passes import (
    batchnorm,
    cleanup,
    common,
    depth_first,
    epilogues,
    identities,
    merge,
    multiply_adds,
    parallel,
    pools,
    prologues,
    stacks,
    strassen,
    weight_prefetch,
)
from aspen_mp.planner.passes.patterns import activations, attention, images, norms, rotary
from aspen_mp.planner.passes.precision import (
    bf16,
    bf16_storage,
    byte_arithmetic,
    byte_epilogues,
    byte_moves,
    byte_tables,
    half_precision,
    integer_products,
    quantization,
    round_trips,
)
from aspen_mp.planner.passes.request import PassRequest

Level = Literal["operators", "kernels"]
"""The level of the graph that a pass leaves: ONNX operators, or kernels."""


@dataclass(frozen=True, slots=True)
class When:
    """The condition of a pass. `without`: the note for a pass whose condition does not hold."""

    holds: Callable[[PlanRequest], bool]
    without: str


ALWAYS: Final = When(lambda asked: True, "")
FUSING: Final = When(lambda asked: asked.planning.fuse, "operators are not rewritten")
STACKING: Final = When(lambda asked: asked.planning.fuse and asked.planning.stacks, "layers are not run depth first")
ROUNDING: Final = When(lambda asked: asked.bf16, "the precision is f32, or this machine has no instruction for bf16")
FEWER_PRODUCTS: Final = When(lambda asked: asked.planning.fuse and bool(asked.strassen), "products are computed directly")


@dataclass(frozen=True, slots=True)
class Pass:
    """`run` changes the graph in place, or returns another in its stead. `decides`: the kind of its decisions in the reasons for a plan;
    None: none is recorded where the pass is left out."""

    name: str
    level: Level
    run: Callable[[Graph, PassRequest], Graph | None]
    when: When = ALWAYS
    decides: Decision | None = None


def _rewrite(run: Callable[[Graph], None], level: Level = "kernels") -> Pass:
    """A rewrite that needs no option but `fuse`, named as its function."""
    return Pass(run.__name__.replace("_", " "), level, lambda graph, request: run(graph), FUSING)


def _lower(graph: Graph, request: PassRequest) -> Graph:
    asked, decided = request.asked, request.decided
    how = {"winograd": asked.winograd, "bf16": asked.bf16, "by_rows": asked.planning.by_rows}
    return lower(
        graph, request.model, request.report, **how, budget=decided.budget, choices=decided.choices, any_size=decided.strassen is not None
    )


def _budget(graph: Graph, request: PassRequest) -> None:
    request.decided.budget = accuracy.budget_of(graph, request.asked.accuracy)


def _stored_products(graph: Graph, request: PassRequest) -> None:
    quantization.multiply_stored(graph, sums_bytes=request.asked.instructions.sums_bytes)


def _averages_of_bytes(graph: Graph, request: PassRequest) -> None:
    byte_arithmetic.average_bytes(graph, request.asked.instructions.sums_bytes)


def _own_outputs(graph: Graph, request: PassRequest) -> None:
    cleanup.own_outputs(graph, request.outputs)


def _depthwise(graph: Graph, request: PassRequest) -> None:
    """Convolutions of many channels are faster apart from the nodes behind them where they multiply bf16."""
    stacks.fuse_depthwise(graph, MOST_STACKED if request.asked.bf16 else inf)


def _depth_first(graph: Graph, request: PassRequest) -> None:
    depth_first.fuse_stacks(graph, request.asked.planning.stack_steps)


def _strassen(graph: Graph, request: PassRequest) -> None:
    decided = request.decided
    if not decided.budget.allows_strassen:
        rule = "its rounding error is beyond the accuracy asked for"
        reasons.tell(lambda: Reason("algorithm", "direct sums", rule, tried=(Tried("Strassen's algorithm", rule),), node=NETWORK))
        return
    found = strassen.use_strassen(graph, request.asked.strassen, decided.strassen)
    if decided.strassen is not None and not decided.strassen:
        decided.strassen.extend(found)


PASSES: Final[Sequence[Pass]] = (
    Pass("half precision", "operators", lambda graph, request: half_precision.compute_in_f32(graph, RULES)),
    Pass("products of stored bytes", "operators", _stored_products, FUSING, "precision"),
    _rewrite(byte_moves.move_bytes, "operators"),
    _rewrite(byte_tables.look_up, "operators"),
    _rewrite(quantization.round_to_levels, "operators"),
    _rewrite(batchnorm.fold_affine, "operators"),
    _rewrite(parallel.merge_branches, "operators"),
    Pass("accuracy budget", "operators", _budget),
    Pass("lowering", "kernels", _lower),
    Pass("own outputs", "kernels", _own_outputs),
    Pass("remove dead", "kernels", lambda graph, request: cleanup.remove_dead(graph)),
    _rewrite(identities.drop_identities),
    _rewrite(common.share),
    _rewrite(norms.fuse_norms),
    _rewrite(images.fuse_images),
    _rewrite(activations.fuse_activations),
    _rewrite(rotary.fuse_rotary),
    _rewrite(integer_products.fuse_factors),
    _rewrite(epilogues.fuse_scales),
    _rewrite(attention.fuse_attention),
    _rewrite(epilogues.sink_reshapes),
    _rewrite(epilogues.fuse_epilogues),
    _rewrite(pools.fuse_pools),
    _rewrite(merge.merge_products),
    _rewrite(prologues.fuse_prologues),
    Pass("pointwise and depthwise", "kernels", _depthwise, STACKING, "stack"),
    Pass("averages of bytes", "kernels", _averages_of_bytes, FUSING),
    _rewrite(byte_epilogues.drop_limits),
    _rewrite(integer_products.fuse_levels),
    _rewrite(byte_epilogues.join_bytes),
    _rewrite(byte_arithmetic.combine_bytes),
    _rewrite(byte_epilogues.count_in_levels),
    _rewrite(multiply_adds.fuse_multiply_adds),
    Pass("depth first", "kernels", _depth_first, STACKING, "stack"),
    _rewrite(common.share),
    _rewrite(cleanup.remove_dead),
    Pass("bf16", "kernels", lambda graph, request: bf16.use_bf16(graph, request.asked.amx), ROUNDING, "precision"),
    Pass("bf16 activations", "kernels", lambda graph, request: bf16_storage.store_as_bf16(graph), ROUNDING),
    Pass("Strassen's algorithm", "kernels", _strassen, FEWER_PRODUCTS, "algorithm"),
    Pass("weight prefetch", "kernels", lambda graph, request: weight_prefetch.stream_weights(graph)),
    Pass("round trips", "kernels", lambda graph, request: round_trips.name_round_trips(graph)),
)


def _left_out(step: Pass) -> Reason:
    assert step.decides is not None
    tried = (Tried(step.name, step.when.without),)
    return Reason(step.decides, f"without the pass {step.name!r}", step.when.without, tried=tried, node=NETWORK)


def run(graph: Graph, request: PassRequest, passes: Sequence[Pass] = PASSES) -> Graph:
    """The graph behind all passes that are asked for. It has been verified after each, where checks are on."""
    for k, step in enumerate(passes):
        progress.at(f"rewriting {step.level}", k, len(passes))
        reasons.by(step.name)
        if step.when.holds(request.asked):
            graph = step.run(graph, request) or graph
            verify.check(graph, step.name, kernel_level=step.level == "kernels")
        elif step.decides is not None:
            reasons.tell(partial(_left_out, step))
    return graph
