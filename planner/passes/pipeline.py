"""The order of the passes, and the verifier between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aspen_mp.planner import verify
from aspen_mp.planner.ir import Graph
from aspen_mp.planner.passes import cleanup

Pass = Callable[[Graph], None]

ONNX_LEVEL: Sequence[Pass] = ()
KERNEL_LEVEL: Sequence[Pass] = (cleanup.remove_dead,)


def onnx_level(graph: Graph) -> None:
    """Rewrites among ONNX operators: patterns that exporters spell out."""
    for step in ONNX_LEVEL:
        step(graph)
        verify.check(graph, step.__name__, kernel_level=False)


def kernel_level(graph: Graph) -> None:
    """Rewrites among kernels: epilogues, views."""
    for step in KERNEL_LEVEL:
        step(graph)
        verify.check(graph, step.__name__, kernel_level=True)
