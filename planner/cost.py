"""What a kernel-level node costs: operations, bytes, and nanoseconds on one core.

The figures only have to be right relative to each other: they size tiles, spread the depth bins, and make `plan --explain` readable.
Results never depend on them. `rates()` are this machine's, where it has been calibrated; the constants are of a current x86 server at fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

from aspen_mp.planner import winograd
from aspen_mp.planner.ir import Node, Shape
from aspen_mp.planner.rates import BUILT_IN, Rates
from aspen_mp.planner.storage import nbytes
from aspen_mp.planner.winograd import Blocks

FLOPS_PER_NS = BUILT_IN.matrix
"""Matrix kernels on one core, where algorithms are chosen: the same on every machine, because the choice shows in the results' bits."""
WINOGRAD_FLOPS_PER_NS = 95.0
"""Products between the transforms of WINO."""
BLOCK_IN_NS = 0.11
BLOCK_OUT_NS = 0.085
"""Transforms of WINO, for each product and axis: of a channel of input, of a channel of output with its epilogue."""
OPAQUE_NS = 200_000.0
SCORE_NS = 0.35
"""A score of ATTENTION besides its multiply-adds: mask, maximum, exponential, sum."""
PACK_NS = 0.12
"""An element of K or V that ATTENTION moves to scratch memory."""
KEYS = 512
"""Keys that ATTENTION takes at a time."""
PROLOGUE_NS = 0.06
"""Scale, shift and activation of an element of input, and its copy in the cache."""
WIDE_NS = 0.02
"""An element of the wide tensor between the halves of PWDW besides its multiply-adds."""
DEPTHWISE_OUT_NS = 0.03
"""An element of the output of PWDW or DWCONV besides its multiply-adds."""
HALF_PANEL = 16
"""Columns of a panel that PWDW computes together: it leaves out an empty half."""
CACHED_BYTES = 16 << 20
"""Activations of an op that stay in the last-level cache until they are read."""
PANEL = 32
"""Width of a weight panel."""
NARROW_COST = 1.6
"""A multiply-add of CONV with narrow groups, in those of other products: each moves its input across the lanes first."""

_SLOW_UNARY = frozenset(
    {"EXP", "LOG", "SIGMOID", "TANH", "ERF", "ELU", "SELU", "CELU", "GELU_ERF", "GELU_TANH", "SWISH", "SOFTPLUS", "MISH", "SIN", "COS"}
    | {"TAN", "ASIN", "ACOS", "ATAN", "SINH", "COSH", "ASINH", "ACOSH", "ATANH"}
)
_ELEMENT_NS = {"SOFTMAX": 0.31, "NORM": 0.25, "LRN": 2.0, "RESIZE": 0.2, "GATHER_ELEMENTS": 0.5, "CUMSUM": 0.5}
_ELEMENT_NS |= {"ARGREDUCE": 0.3, "REDUCE": 0.1, "POOL": 0.02, "CAST": 0.1, "COPY": 0.1, "TERNARY": 0.1}


_in_use = BUILT_IN
_remembered: list[Callable[[], None]] = []
R = TypeVar("R")


def rates() -> Rates:
    """The rates that plans of this process are made with."""
    return _in_use


def use(chosen: Rates) -> None:
    """Plans of this process are made with these rates from now on."""
    global _in_use  # noqa: PLW0603
    _in_use = chosen
    for forget in _remembered:
        forget()


def remembered(size: int) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`lru_cache` for what depends on `rates`."""

    def wrap(function: Callable[..., R]) -> Callable[..., R]:
        cached = lru_cache(maxsize=size)(function)
        _remembered.append(cached.cache_clear)
        return cached

    return wrap


@dataclass(frozen=True, slots=True)
class Work:
    """Of a whole node: floating-point operations, bytes read and written (each operand once), nanoseconds on one core."""

    flops: float
    bytes: float
    ns: float


def _activation_ns(node: Node) -> float:
    act = node.attrs.get("act")
    return 0.4 if act is not None and act[0] in _SLOW_UNARY else 0.0


def output_ns(node: Node) -> float:
    """What an element of the output of a matrix kernel costs besides its multiply-adds: writing it, the residual, the activation."""
    return 0.4 + after_ns(node)


def after_ns(node: Node) -> float:
    """What residual and activation cost for an element of the output of a matrix kernel."""
    residual = node.op != "PWDW" and len(node.inputs) > 3 and node.inputs[3] is not None
    return (0.8 if residual else 0.0) + _activation_ns(node)


def input_ns(node: Node) -> float:
    """What an element of the input costs a CONV that computes a prologue on it, each time it is read."""
    return PROLOGUE_NS if node.op == "CONV" and len(node.inputs) > 6 else 0.0


def element_ns(node: Node) -> float:
    """Arithmetic per element of the output (of the input for reductions, per tap for POOL) of a node that is no matrix product."""
    if node.op == "UNARY":
        return 0.4 if node.attrs["opcode"] in _SLOW_UNARY else 0.05
    if node.op == "BINARY":
        return (2.0 if node.attrs["opcode"] in ("POW", "MOD", "FMOD") else 0.05) + _activation_ns(node)
    return rates().element_ns.get(node.op, _ELEMENT_NS.get(node.op, 0.05)) + _activation_ns(node)


def winograd_blocks(shape: Shape, blocks: Blocks) -> int:
    """Blocks of an output [N, C, H, W]."""
    return shape[0] * -(-shape[2] // blocks.sides[0]) * -(-shape[3] // blocks.sides[1])


def winograd_ns(blocks: Blocks, n: Any, channels: int, outputs: Any) -> Any:
    """Arithmetic of `n` blocks, all data at hand: transforms and products. Numbers or arrays of them."""
    padded = -(-outputs // PANEL) * PANEL
    products = 2.0 * blocks.products * channels * padded / WINOGRAD_FLOPS_PER_NS
    return n * (products + blocks.products * blocks.transforms * (channels * BLOCK_IN_NS + padded * BLOCK_OUT_NS))


def blocks_of(node: Node) -> Blocks:
    """Those of a WINO node."""
    return winograd.blocks_of(node.attrs["kernel"], node.attrs["strides"], node.attrs["block"])


def scores(node: Node) -> float:
    """How many scores an ATTENTION node computes: those that causal masking skips are not."""
    k, shape = node.inputs[1], node.output.shape
    assert k is not None
    rows, keys = shape[-2], k.shape[-2]
    if node.attrs["causal"]:
        first = node.attrs["offset"] + 1  # keys of the first row; the last row has rows - 1 more
        seen = (max(min(first, keys), 0) + max(min(first + rows - 1, keys), 0)) / 2
        return float(max(seen, 1.0) * prod(shape[:-1]))
    return float(prod(shape[:-1]) * keys)


def _traffic(node: Node) -> float:
    written = sum(nbytes(t) for t in node.outputs)
    if node.op == "GATHER":
        return 2.0 * written
    return float(written + sum(nbytes(t) for t in node.inputs if t is not None))


def _prologue_ns(node: Node) -> float:
    return input_ns(node) * node.inputs[0].size if node.inputs[0] is not None else 0.0


def _matrix_ns(node: Node, ops: float) -> float:
    """Multiply-adds count with the columns that fill the last panel of weights."""
    columns = node.output.shape[-1] if node.op == "GEMM" else node.output.shape[1] // int(node.attrs["groups"])
    padded = NARROW_COST if is_narrow(node) else -(-columns // PANEL) * PANEL / max(columns, 1)
    return ops * padded / rates().matrix + node.output.size * output_ns(node)


def is_narrow(node: Node) -> bool:
    """Whether CONV puts several groups into a vector."""
    if node.op != "CONV" or len(node.inputs) > 6 or node.attrs["groups"] == 1 or node.inputs[0] is None:
        return False
    groups = int(node.attrs["groups"])
    return node.inputs[0].shape[1] == node.output.shape[1] and node.output.shape[1] // groups in (2, 4, 8)


def _winograd_node_ns(node: Node) -> float:
    a, blocks, shape = node.inputs[0], blocks_of(node), node.output.shape
    assert a is not None
    return float(winograd_ns(blocks, winograd_blocks(shape, blocks), a.shape[1], shape[1])) + node.output.size * after_ns(node)


def _gemm_flops(node: Node) -> float:
    a = node.inputs[0]
    return 2.0 * node.output.size * a.shape[-1] if a is not None else 0.0


def _conv_flops(node: Node) -> float:
    a = node.inputs[0]
    return 2.0 * node.output.size * (a.shape[1] // node.attrs["groups"]) * int(prod(node.attrs["kernel"])) if a is not None else 0.0


def _depthwise_flops(node: Node) -> float:
    return 2.0 * node.output.size * int(prod(node.attrs["kernel"]))


def _depthwise_ns(node: Node, ops: float) -> float:
    return ops / rates().depthwise + node.output.size * (DEPTHWISE_OUT_NS + after_ns(node))


def window_span(node: Node, axis: int) -> int:
    """Rows (0) or columns (1) of input that a window spans."""
    return int((node.attrs["kernel"][axis] - 1) * node.attrs["dilations"][axis] + 1)


def stack_ns(pixels_in: Any, pixels_out: Any, channels: int, outputs: Any, taps: int) -> Any:
    """Arithmetic of PWDW: so many pixels of its wide tensor, of its output. Numbers or arrays of them."""
    padded = -(-outputs // HALF_PANEL) * HALF_PANEL
    wide = 2.0 * channels / rates().matrix + WIDE_NS
    return padded * (pixels_in * wide + pixels_out * (2.0 * taps / rates().depthwise + DEPTHWISE_OUT_NS))


def _stack_pixels(node: Node) -> int:
    a = node.inputs[0]
    return a.shape[0] * a.shape[2] * a.shape[3] if a is not None else 0


def _stack_flops(node: Node) -> float:
    a = node.inputs[0]
    pointwise = 2.0 * _stack_pixels(node) * node.output.shape[1] * a.shape[1] if a is not None else 0.0
    return pointwise + _depthwise_flops(node)


def _stack_node_ns(node: Node) -> float:
    a, shape = node.inputs[0], node.output.shape
    assert a is not None
    out = shape[0] * shape[2] * shape[3]
    return float(stack_ns(_stack_pixels(node), out, a.shape[1], shape[1], prod(node.attrs["kernel"]))) + node.output.size * after_ns(node)


def _winograd_flops(node: Node) -> float:
    a, blocks = node.inputs[0], blocks_of(node)
    products = winograd_blocks(node.output.shape, blocks) * blocks.products * node.output.shape[1]
    return 2.0 * products * a.shape[1] if a is not None else 0.0


def _attention_flops(node: Node) -> float:
    a = node.inputs[0]
    return 2.0 * scores(node) * (a.shape[-1] + node.output.shape[-1]) if a is not None else 0.0


def _pool_flops(node: Node) -> float:
    return float(node.output.size * prod(node.attrs["kernel"]))


def _reduce_flops(node: Node) -> float:
    a = node.inputs[0]
    return float(a.size) if a is not None else 0.0


def _elements(node: Node) -> float:
    return float(node.output.size)


@dataclass(frozen=True, slots=True)
class Family:
    """What the model knows of a kernel family. `flops(node)`: multiply-adds count two, those of the transforms of WINO not at all.
    `ns(node, flops)`: on one core with all data at hand. `hides`: memory traffic goes on meanwhile; else it comes on top. `passes`: no
    weights to speak of, and what is read has just been written."""

    flops: Callable[[Node], float] = _elements
    ns: Callable[[Node, float], float] = lambda node, flops: flops * element_ns(node)
    hides: bool = False
    passes: bool = False


FAMILIES = {
    "GEMM": Family(_gemm_flops, lambda node, flops: _matrix_ns(node, flops) + _prologue_ns(node), True),
    "CONV": Family(_conv_flops, lambda node, flops: _matrix_ns(node, flops) + _prologue_ns(node), True),
    "WINO": Family(_winograd_flops, lambda node, flops: _winograd_node_ns(node), True),
    "ATTENTION": Family(_attention_flops, lambda node, flops: flops / rates().matrix + scores(node) * SCORE_NS, True),
    "DWCONV": Family(_depthwise_flops, _depthwise_ns, passes=True),
    "PWDW": Family(_stack_flops, lambda node, flops: _stack_node_ns(node), True),
    "POOL": Family(_pool_flops, passes=True),
    "REDUCE": Family(_reduce_flops),
    "ARGREDUCE": Family(_reduce_flops),
    "OPAQUE": Family(ns=lambda node, flops: OPAQUE_NS),
}
"""Kernels that are not here do one operation for each element of their output, at `element_ns`. A new family is one line."""
_OTHERS = Family()


def flops(node: Node) -> float:
    """Floating-point operations of a node, as its family counts them."""
    return FAMILIES.get(node.op, _OTHERS).flops(node)


def work(node: Node) -> Work:
    """Estimate for a whole node on one core."""
    family = FAMILIES.get(node.op, _OTHERS)
    traffic, ops = _traffic(node), family.flops(node)
    arithmetic, memory = family.ns(node, ops), traffic / (rates().warm if family.passes else rates().cold)
    return Work(ops, traffic, max(arithmetic, memory) if family.hides else arithmetic + memory)


def memory_bytes(node: Node) -> float:
    """What a node reads and writes of memory behind the caches: weights, which other layers have pushed out since the last request, and
    activations where they are too many to stay."""
    weights = float(sum(nbytes(t) for t in node.inputs if t is not None and t.is_const))
    if node.op == "GATHER":
        return 2.0 * sum(nbytes(t) for t in node.outputs)
    passing = _traffic(node) - weights
    return weights + (passing if passing > CACHED_BYTES else 0.0)


def tail(workers: int) -> float:
    """How long a node's end keeps workers waiting, in tiles of it. One worker waits for nobody, but tiles small enough that readers find
    them in the cache are worth something to it, too."""
    return 0.5 if workers > 1 else 0.2


def wanted_tiles(ns: float, workers: int, tail: float) -> float:
    """How many tiles a node of `ns` should have: the overhead of more tiles, shared by all workers, against the tail of the last one.
    With n tiles a node ends about ``n * tile_ns / workers + tail * ns / n`` later than ideal."""
    return float(max(1.0, (tail * ns * workers / rates().tile_ns) ** 0.5))


def scratch_bytes(node: Node) -> int:
    """Upper bound of the scratch memory that the node's kernel asks for; workers ask the kernel itself before they run it."""
    if node.op == "GEMM" and not node.attrs["packed_b"]:
        a = node.inputs[0]
        assert a is not None
        return 128 * a.shape[-1]
    if node.op == "ATTENTION":
        q, k, v = node.inputs[:3]
        assert q is not None
        assert k is not None
        assert v is not None
        keys, values = min(k.shape[-2], KEYS), -(-v.shape[-1] // PANEL) * PANEL
        rows = node.output.size // max(node.output.shape[-1], 1)
        return 4 * (-(-keys // PANEL) * PANEL * q.shape[-1] + keys * values + 8 * (KEYS + 16) + KEYS + rows * (values + 4) + 64)
    return 0
