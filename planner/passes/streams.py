"""Products whose weights come from memory at every request, because all weights of the network together are more than caches keep: their
kernels bring them nearer further ahead than the hardware does. Where a cache has them, that only costs time."""

from __future__ import annotations

from aspen_mp.planner.ir import Graph
from aspen_mp.planner.storage import nbytes
from aspen_mp.planner.tilecost import cached_weights


def stream_weights(graph: Graph) -> None:
    """Says so of packed products; after all rewrites, which may share weights or change their size."""
    weights = {x for node in graph.nodes if node.op != "GATHER" for x in node.inputs if x is not None and x.is_const}
    if sum(nbytes(x) for x in weights) <= cached_weights():
        return
    for node in graph.nodes:
        if node.op == "GEMM" and node.attrs["packed_b"]:
            node.attrs["streamed"] = True
