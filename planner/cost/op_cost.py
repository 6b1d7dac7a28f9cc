"""The costs of a kernel-level node: operations, bytes, and nanoseconds on one core.

The figures only have to be right relative to each other: they size tiles, spread the depth bins, and make `plan --explain` readable.
Results never depend on them. `rates()` are those of a kind of core, or measured; the constants are of a current x86 server at fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from aspen_mp.planner.cost.rates import BUILT_IN, Rates
from aspen_mp.planner.ir.graph import Node
from aspen_mp.planner.layout.storage import nbytes
from aspen_mp.planner.ops.convolutions import DEPTHWISE_FLOPS_PER_NS, DEPTHWISE_OUT_NS, HALF_PANEL, WIDE_NS
from aspen_mp.planner.ops.elementwise import activation_ns
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.packing.winograd import Blocks
from aspen_mp.planner.ops.table import SPECS

FLOPS_PER_NS = 100.0
"""Matrix kernels on one core, where algorithms are chosen: the same on every machine, because the choice shows in the results' bits. The
next three are of such choices, too; WINO's predicted time follows from `rates`."""
WINOGRAD_FLOPS_PER_NS = 95.0
"""Products between the transforms of WINO."""
BLOCK_IN_NS = 0.11
BLOCK_OUT_NS = 0.085
"""Transforms of WINO, for each product and axis: of a channel of input, of a channel of output with its epilogue."""
OPAQUE_NS = 200_000.0
OUTPUT_NS = 0.04
"""An element of the output of a matrix kernel besides its multiply-adds."""
PROLOGUE_NS = 0.2
"""Scale, shift and activation of an element of input, and its copy in the cache."""
NARROW_COST = 1.6
"""A multiply-add of CONV with narrow groups, in those of other products: each moves its input across the lanes first."""

_in_use = BUILT_IN
_remembered: list[Callable[[], None]] = []
R = TypeVar("R")


def rates() -> Rates:
    """Return the rates that this process counts with."""
    return _in_use


def use(chosen: Rates) -> None:
    """Count with these rates in this process from now on."""
    global _in_use  # noqa: PLW0603
    _in_use = chosen
    for forget in _remembered:
        forget()


def remembered(size: int) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`lru_cache` for functions that depend on `rates`."""

    def wrap(function: Callable[..., R]) -> Callable[..., R]:
        cached = lru_cache(maxsize=size)(function)
        _remembered.append(cached.cache_clear)
        return cached

    return wrap


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a whole node: floating-point operations, bytes read and written (each operand once), nanoseconds on one core."""

    flops: float
    bytes: float
    ns: float


def output_ns(node: Node) -> float:
    """The cost of an element of a matrix kernel's output besides its multiply-adds: writing it, the residual, the activation."""
    return OUTPUT_NS + after_ns(node)


def after_ns(node: Node) -> float:
    """The cost of residual and activation for an element of a matrix kernel's output."""
    residual = len(node.inputs) > 3 and node.inputs[3] is not None
    return (SPECS[node.op].cost.residual_ns if residual else 0.0) + activation_ns(node)


def winograd_ns(blocks: Blocks, n: Any, channels: int, outputs: Any) -> Any:
    """Arithmetic of `n` blocks, all data at hand: transforms and products. Numbers or arrays of them."""
    padded = -(-outputs // PANEL) * PANEL
    products = 2.0 * blocks.products * channels * padded / WINOGRAD_FLOPS_PER_NS
    return n * (products + blocks.products * blocks.transforms * (channels * BLOCK_IN_NS + padded * BLOCK_OUT_NS))


def traffic(node: Node) -> float:
    """Bytes that a node reads and writes, each operand once."""
    written, cost = sum(nbytes(t) for t in node.outputs), SPECS[node.op].cost
    if cost.picks:
        return 2.0 * written
    if cost.reads is not None:
        return written + cost.reads(node) + weight_bytes(node)
    return float(written + sum(nbytes(t) for t in node.inputs if t is not None))


def stack_ns(pixels_in: Any, pixels_out: Any, channels: int, outputs: Any, taps: int) -> Any:
    """Arithmetic of PWDW over `pixels_in` pixels of its wide tensor and `pixels_out` of its output. Numbers or arrays of them."""
    padded = -(-outputs // HALF_PANEL) * HALF_PANEL
    wide = 2.0 * channels / rates().matrix + WIDE_NS
    return padded * (pixels_in * wide + pixels_out * (2.0 * taps / DEPTHWISE_FLOPS_PER_NS + DEPTHWISE_OUT_NS))


def kernel(node: Node) -> str:
    """The kernel of a node as `plan --explain` and calibrations name it: with the variant, where it has several."""
    variant = SPECS[node.op].cost.variant
    return node.op if variant is None else f"{node.op} {variant(node)}"


def factor(node: Node) -> float:
    """The ratio of the times of a node's tiles on this machine to their model's."""
    return rates().factors.get(kernel(node), 1.0)


def flops(node: Node) -> float:
    """Floating-point operations of a node, as its spec counts them."""
    return SPECS[node.op].cost.flops(node)


def even_ns(node: Node) -> float:
    """Arithmetic and traffic between caches of a node whose elements all cost the same."""
    cost, moved = SPECS[node.op].cost, traffic(node)
    work = flops(node)
    ns = work * (cost.element_ns(node) + activation_ns(node)) if cost.ns is None else cost.ns(node, work)
    return ns + outside_ns(node, moved)


def outside_ns(node: Node, moved: float | None = None) -> float:
    """The time of a node's traffic with other cores' caches. `moved`: its traffic, where that is known."""
    moved = traffic(node) if moved is None else moved
    weights, passing = memory_bytes(node, moved)
    return max(moved - weights - passing, 0.0) / rates().warm


def weight_bytes(node: Node) -> float:
    """Constants that a node reads."""
    return 0.0 if SPECS[node.op].cost.picks else float(sum(nbytes(t) for t in node.inputs if t is not None and t.is_const))


def activation_bytes(node: Node) -> float:
    """All else that it reads and writes."""
    return traffic(node) - weight_bytes(node)


def memory_bytes(node: Node, moved: float | None = None) -> tuple[float, float]:
    """A node's traffic with memory behind the caches: (weights, activations). Weights come from memory, since other layers have pushed them
    out, unless another slice of the batch or the steps before have just read them. Activations count where they are too many to stay.
    Written ones count twice: a cache reads a line before it is written. `moved`: its traffic, where that is known."""
    weights = weight_bytes(node)
    passing = (traffic(node) if moved is None else moved) - weights
    if not SPECS[node.op].cost.picks:
        passing = passing + sum(nbytes(t) for t in node.outputs) if passing > rates().cached else 0.0
    again = node.batch_slice[0] or not node.attrs.get("begins", True)
    return 0.0 if again else weights, passing


def tail(workers: int, products: bool = True) -> float:
    """How long a node's end keeps workers waiting, in tiles of it. One worker waits for nobody. But small tiles, which readers find in the
    cache, are worth something to it, too. They are worth least to `products`, whose small tiles read weights or transform input again."""
    return 0.5 if workers > 1 else 0.05 if products else 0.2


def wanted_tiles(ns: float, workers: int, tail: float) -> float:
    """How many tiles a node of `ns` should have: the overhead of more tiles, shared by all workers, against the tail of the last one.
    With n tiles a node ends about ``n * tile_ns / workers + tail * ns / n`` later than ideal."""
    return float(max(1.0, (tail * ns * workers / rates().tile_ns) ** 0.5))


def scratch_bytes(node: Node) -> int:
    """Upper bound of the scratch memory that the node's kernel asks for; workers ask the kernel itself, for the tiles that there are."""
    return SPECS[node.op].cost.scratch(node)
