"""What a kernel-level node costs: operations, bytes, and nanoseconds on one core.

The figures are of one core of a current x86 server at fp32 and only have to be right relative to each other: they size tiles, spread the
depth bins, and make `plan --explain` readable. Results never depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from aspen_mp.planner.ir import Node, Shape
from aspen_mp.planner.storage import nbytes

FLOPS_PER_NS = 100.0
"""Matrix kernels, one core."""
DEPTHWISE_FLOPS_PER_NS = 45.0
WINOGRAD_FLOPS_PER_NS = 95.0
"""Products between the transforms of WINO."""
BLOCK_IN_NS = {2: 3.5, 4: 8.0}
BLOCK_OUT_NS = {2: 2.5, 4: 6.0}
"""Transforms of WINO for a block of so many rows: of a channel of input, of a channel of output with its epilogue."""
COLD_BYTES_PER_NS = 20.0
"""Memory traffic that misses the caches: weights, and activations of large layers."""
WARM_BYTES_PER_NS = 60.0
"""Activations that another tile left in a shared cache."""
TILE_NS = 2000.0
"""What a tile costs besides its arithmetic: scheduling, cold start of a kernel, uneven ends."""
OPAQUE_NS = 200_000.0
SCORE_NS = 0.35
"""A score of ATTENTION besides its multiply-adds: mask, maximum, exponential, sum."""
PACK_NS = 0.12
"""An element of K or V that ATTENTION moves to scratch memory."""
KEYS = 512
"""Keys that ATTENTION takes at a time."""
PROLOGUE_NS = 0.06
"""Scale, shift and activation of an element of input, and its copy in the cache."""
PANEL = 32
"""Width of a weight panel."""

_SLOW_UNARY = frozenset(
    {"EXP", "LOG", "SIGMOID", "TANH", "ERF", "ELU", "SELU", "CELU", "GELU_ERF", "GELU_TANH", "SWISH", "SOFTPLUS", "MISH", "SIN", "COS"}
    | {"TAN", "ASIN", "ACOS", "ATAN", "SINH", "COSH", "ASINH", "ACOSH", "ATANH"}
)
_ELEMENT_NS = {"SOFTMAX": 0.31, "NORM": 0.25, "LRN": 2.0, "RESIZE": 0.2, "GATHER_ELEMENTS": 0.5, "CUMSUM": 0.5}
_ELEMENT_NS |= {"ARGREDUCE": 0.3, "REDUCE": 0.1, "POOL": 0.1, "CAST": 0.1, "COPY": 0.1, "TERNARY": 0.1}


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
    residual = len(node.inputs) > 3 and node.inputs[3] is not None
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
    return _ELEMENT_NS.get(node.op, 0.05) + _activation_ns(node)


def winograd_blocks(shape: Shape, block: int) -> int:
    """Blocks of an output [N, C, H, W]."""
    return shape[0] * -(-shape[2] // block) * -(-shape[3] // block)


def winograd_ns(block: int, blocks: Any, channels: int, outputs: Any) -> Any:
    """Arithmetic of so many blocks, all data at hand: transforms and products. Numbers or arrays of them."""
    padded = -(-outputs // PANEL) * PANEL
    products = 2.0 * (block + 2) ** 2 * channels * padded / WINOGRAD_FLOPS_PER_NS
    return blocks * (products + channels * BLOCK_IN_NS[block] + padded * BLOCK_OUT_NS[block])


def flops(node: Node) -> float:
    """Multiply-adds count two, those of the transforms of WINO not at all."""
    out = node.output.size
    a = node.inputs[0] if node.inputs else None
    if node.op == "GEMM":
        assert a is not None
        return 2.0 * out * a.shape[-1]
    if node.op == "WINO":
        assert a is not None
        block = int(node.attrs["block"])
        return 2.0 * winograd_blocks(node.output.shape, block) * (block + 2) ** 2 * a.shape[1] * node.output.shape[1]
    if node.op in ("CONV", "DWCONV"):
        assert a is not None
        per_group = 1 if node.op == "DWCONV" else a.shape[1] // node.attrs["groups"]
        return 2.0 * out * per_group * int(prod(node.attrs["kernel"]))
    if node.op == "ATTENTION":
        return 2.0 * scores(node) * (a.shape[-1] + node.output.shape[-1]) if a is not None else 0.0
    if node.op == "POOL":
        return float(out * prod(node.attrs["kernel"]))
    if node.op in ("REDUCE", "ARGREDUCE"):
        assert a is not None
        return float(a.size)
    return float(out)


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
    padded = -(-columns // PANEL) * PANEL / max(columns, 1)
    return ops * padded / FLOPS_PER_NS + node.output.size * output_ns(node)


def _winograd_node_ns(node: Node) -> float:
    a, block, shape = node.inputs[0], int(node.attrs["block"]), node.output.shape
    assert a is not None
    return float(winograd_ns(block, winograd_blocks(shape, block), a.shape[1], shape[1])) + node.output.size * after_ns(node)


def work(node: Node) -> Work:
    """Estimate for a whole node on one core."""
    traffic, ops, out = _traffic(node), flops(node), node.output.size
    memory_ns = traffic / COLD_BYTES_PER_NS
    if node.op in ("GEMM", "CONV"):
        ns = max(_matrix_ns(node, ops) + _prologue_ns(node), memory_ns)
    elif node.op == "WINO":
        ns = max(_winograd_node_ns(node), memory_ns)
    elif node.op == "ATTENTION":
        ns = max(ops / FLOPS_PER_NS + scores(node) * SCORE_NS, memory_ns)
    elif node.op == "DWCONV":
        ns = max(ops / DEPTHWISE_FLOPS_PER_NS + out * output_ns(node), memory_ns)
    elif node.op == "OPAQUE":
        ns = OPAQUE_NS + memory_ns
    elif node.op in ("REDUCE", "ARGREDUCE", "POOL"):
        ns = ops * element_ns(node) + memory_ns
    else:
        ns = out * element_ns(node) + memory_ns
    return Work(ops, traffic, ns)


@lru_cache(maxsize=1024)
def wanted_tiles(ns: float, workers: int) -> float:
    """How many tiles a node of `ns` should have: the overhead of more tiles, shared by all workers, against the tail of the last one.
    With n tiles a node ends about ``n * TILE_NS / workers + ns / (2 n)`` later than ideal."""
    return float(max(1.0, (0.5 * ns * workers / TILE_NS) ** 0.5)) if workers > 0 else 1.0


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
