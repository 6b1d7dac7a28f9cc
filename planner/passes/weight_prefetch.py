"""Products whose weights come from memory at every request, because all weights of the network together are more than caches keep. Their
kernels bring them nearer further ahead than the hardware does. Where a cache has them, that only costs time."""

from __future__ import annotations

from aspen_mp.planner.cost.tile_cost import cached_weights
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.layout.storage import nbytes


def stream_weights(graph: Graph) -> None:
    """Says so of packed products; after all rewrites, which may share weights or change their size."""
    weights = {x for node in graph.nodes if node.op != "GATHER" for x in node.inputs if x is not None and x.is_const}
    if sum(nbytes(x) for x in weights) <= cached_weights():
        return
    for node in graph.nodes:
        if node.op == "GEMM" and node.attrs["packed_b"]:
            node.attrs["streamed"] = True
