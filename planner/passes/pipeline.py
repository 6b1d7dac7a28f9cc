"""The order of the passes, and the verifier between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from aspen_mp.planner.cost.algorithms import MOST_STACKED
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job import progress
from aspen_mp.planner.job.options import AUTOMATIC, Experiment
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
)
from aspen_mp.planner.passes.patterns import activations, attention, images, norms, rotary
from aspen_mp.planner.passes.precision import integer_products, quantization

Pass = Callable[[Graph], None]

ONNX_LEVEL: Sequence[Pass] = (quantization.round_to_levels, batchnorm.fold_affine, parallel.merge_branches)
KERNEL_LEVEL: Sequence[Pass] = (
    identities.drop_identities,
    common.share,
    norms.fuse_norms,
    images.fuse_images,
    activations.fuse_activations,
    rotary.fuse_rotary,
    integer_products.fuse_factors,
    epilogues.fuse_scales,
    attention.fuse_attention,
    epilogues.sink_reshapes,
    epilogues.fuse_epilogues,
    pools.fuse_pools,
    merge.merge_products,
    prologues.fuse_prologues,
    stacks.fuse_depthwise,
    integer_products.fuse_levels,
    multiply_adds.fuse_multiply_adds,
    depth_first.fuse_stacks,
    common.share,
    cleanup.remove_dead,
)


def onnx_level(graph: Graph, sums_bytes: bool = True) -> None:
    """Rewrites among ONNX operators, where weights are not packed yet. `sums_bytes`: see `quantization.multiply_stored`."""
    quantization.multiply_stored(graph, convolutions=sums_bytes)
    verify.check(graph, "multiply_stored", kernel_level=False)
    for k, step in enumerate(ONNX_LEVEL):
        progress.at("rewriting operators", k, len(ONNX_LEVEL))
        step(graph)
        verify.check(graph, step.__name__, kernel_level=False)


def kernel_level(graph: Graph, pairs: bool = False, planning: Experiment = AUTOMATIC) -> None:
    """Rewrites among kernels: spelled-out functions, epilogues, views. `pairs`: convolutions may become those of pairs (`passes.pairs`),
    which are faster apart from what follows them where they have many channels. `planning`: whether layers may become stacks, and how long
    ones."""
    for k, step in enumerate(KERNEL_LEVEL):
        progress.at("rewriting kernels", k, len(KERNEL_LEVEL))
        if step is stacks.fuse_depthwise:
            if planning.stacks:
                stacks.fuse_depthwise(graph, MOST_STACKED if pairs else inf)
        elif step is depth_first.fuse_stacks:
            if planning.stacks:
                depth_first.fuse_stacks(graph, planning.stack_steps)
        else:
            step(graph)
        verify.check(graph, step.__name__, kernel_level=True)
