"""What a kernel-level node costs: operations, bytes, and nanoseconds on one core.

The figures only have to be right relative to each other: they size tiles, spread the depth bins, and make `plan --explain` readable.
Results never depend on them. `rates()` are those of a kind of core, or measured; the constants are of a current x86 server at fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np

from aspen_mp.planner.cost.rates import BUILT_IN, Rates
from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.layout.storage import nbytes
from aspen_mp.planner.ops.convolutions import depth
from aspen_mp.planner.ops.packing import winograd
from aspen_mp.planner.ops.packing.winograd import Blocks
from aspen_mp.planner.ops.products import seven_scratch
from aspen_mp.planner.ops.sampling import FEW_SAMPLED, roi_scratch

FLOPS_PER_NS = 100.0
"""Matrix kernels on one core, where algorithms are chosen: the same on every machine, because the choice shows in the results' bits. The
next three are of such choices, too; what WINO is predicted to take follows from `rates`."""
WINOGRAD_FLOPS_PER_NS = 95.0
"""Products between the transforms of WINO."""
BLOCK_IN_NS = 0.11
BLOCK_OUT_NS = 0.085
"""Transforms of WINO, for each product and axis: of a channel of input, of a channel of output with its epilogue."""
OPAQUE_NS = 200_000.0
OUTPUT_NS = 0.04
"""An element of the output of a matrix kernel besides its multiply-adds."""
RESIDUAL_NS = {"CONV": 0.18, "GEMM": 0.18, "QNBITGEMM": 0.18, "QGEMM": 0.18, "QCONV": 0.18, "WINO": 0.06}
RESIDUAL_NS |= {"BGEMM": 0.18, "BCONV": 0.18}
"""The same, where something is added to it."""
EPILOGUE = 0.7
"""What a function takes in an epilogue, of what it takes in a kernel of its own: nothing is read and written."""
SCORE_NS = 0.5
"""A score of ATTENTION besides its multiply-adds: mask, maximum, exponential, sum."""
PACK_NS = 0.7
"""An element of K or V that ATTENTION moves to scratch memory."""
FEW_QUERIES, PACK_FEW_NS = 24, 0.1
"""Of fewer rows V is read in place, and there is hardly more to packing than moving elements of K."""
KEYS = 512
"""Keys that ATTENTION takes at a time."""
PROLOGUE_NS = 0.2
"""Scale, shift and activation of an element of input, and its copy in the cache."""
COPIED_NS = 0.02
"""An element of input that QCONV copies, each time it is read."""
ROUNDED_NS = 0.03
"""An element of input that BCONV rounds, each time it is read."""
DEPTHWISE_FLOPS_PER_NS = 90.0
"""DWCONV and the depthwise half of PWDW."""
SPREAD_NS = 0.2
"""The same of DWCONV, where a channel of input is moved to several lanes, each for one of output."""
WIDE_NS = 0.02
"""An element of the wide tensor between the halves of PWDW besides its multiply-adds."""
DEPTHWISE_OUT_NS = 0.03
"""An element of the output of PWDW or DWCONV besides its multiply-adds."""
HALF_PANEL = 16
"""Columns of a panel that PWDW computes together: it leaves out an empty half."""
PANEL = 32
"""Width of a weight panel."""
NARROW_COST = 1.6
"""A multiply-add of CONV with narrow groups, in those of other products: each moves its input across the lanes first."""

_FUNCTION_NS = {"EXP": 0.2, "LOG": 0.4, "SIGMOID": 0.3, "TANH": 0.4, "ERF": 0.6, "ELU": 0.3, "SELU": 0.3, "CELU": 0.4, "SOFTPLUS": 0.5}
_FUNCTION_NS |= {"GELU_ERF": 0.5, "GELU_TANH": 0.35, "SWISH": 0.3, "MISH": 0.4, "SIN": 1.0, "COS": 1.0, "TAN": 1.2, "ASIN": 2.1}
_FUNCTION_NS |= {"FAKE_QUANTIZE": 0.12, "ACOS": 2.1, "ATAN": 1.5, "SINH": 1.4, "COSH": 1.2, "ASINH": 1.8, "ACOSH": 1.7, "ATANH": 1.7}
"""An element of a function that takes more than a few instructions."""
_OPERATION_NS = {"POW": 3.0, "MOD": 12.0, "FMOD": 12.0}
"""The same of BINARY, _REDUCTION_NS of REDUCE, by function; _ELEMENT_NS by kernel."""
_REDUCTION_NS = {"LOG_SUM": 0.1, "LOG_SUM_EXP": 0.28}
_ELEMENT_NS = {"STRASSEN": 0.12, "SOFTMAX": 0.34, "NORM": 0.2, "LRN": 1.0, "RESIZE": 0.2, "GATHER_ELEMENTS": 1.9}
_ELEMENT_NS |= {"MOMENTS": 0.06, "STANDARDIZE": 0.05}
_ELEMENT_NS |= {"QUANTIZE": 0.07, "DEQUANTIZE": 0.03, "MINMAX": 0.03}
_ELEMENT_NS |= {"SCORES": 1.5, "LABELS": 1.0, "COUPLE": 20.0}
_ELEMENT_NS |= {"TOPK": 1.2, "INDEX": 2.0, "SCATTER": 0.4}
_ELEMENT_NS |= {"ARGREDUCE": 1.9, "REDUCE": 0.05, "POOL": 0.026, "CAST": 0.1, "COPY": 0.1, "TERNARY": 0.1}
_PLAIN_NS = 0.05
_DIVIDED_NS = 1.9
"""Whole numbers are divided one by one."""
RUNNING_NS, RUNNING_ROWS = 2.6, 8
"""A term of a running sum, and how many of them CUMSUM computes beside each other where they do not lie side by side."""
GRID_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
FEW_NS = (3.0, 0.5, 0.3)
POINT_NS, TAP_NS = 10.0, 0.7
"""A point of GRIDSAMPLE, each of its pixels; where channels are few (`FEW_NS`), and then each channel of these."""
SAMPLED_NS, SAMPLED_TAP_NS, ROI_TAP_NS = 0.15, 0.03, 0.07
"""A result that comes of several pixels, and each of them: of GRIDSAMPLE and of ROIALIGN."""
REGION = 14.0
"""Pixels along an axis of a region of ROIALIGN: detectors take them from images in which they have about so many."""
DEFORM_NS, PLACE_NS = 0.15, 20.0
"""An element that DEFORM writes, and a place where it reads."""
TREE_STEP_NS = 0.8
"""A step of a row from one node of TREES to the next."""
RBF_TERM_NS, DUEL_TERM_NS = 0.06, 1.0
"""A difference that RBF squares, and a product that DUELS adds."""
DOUBLE_TERM_NS = 0.06
"""A multiply-add of DGEMM."""
RECURRENT = {"LSTM": 2.2, "GRU": 1.4, "RNN": 0.5}
"""Kernels of recurrent layers, and what the functions of a unit take in a step."""


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
    return EPILOGUE * _FUNCTION_NS.get(act[0], 0.0) if act is not None else 0.0


def output_ns(node: Node) -> float:
    """What an element of the output of a matrix kernel costs besides its multiply-adds: writing it, the residual, the activation."""
    return OUTPUT_NS + after_ns(node)


def after_ns(node: Node) -> float:
    """What residual and activation cost for an element of the output of a matrix kernel."""
    residual = node.op != "PWDW" and len(node.inputs) > 3 and node.inputs[3] is not None
    return (RESIDUAL_NS.get(node.op, 0.0) if residual else 0.0) + _activation_ns(node)


def input_ns(node: Node) -> float:
    """What an element of the input costs a CONV or BCONV that computes a prologue on it, each time it is read."""
    return PROLOGUE_NS if node.op in ("CONV", "BCONV") and len(node.inputs) > 6 else 0.0


def element_ns(node: Node) -> float:
    """Arithmetic per element of the output (of the input for reductions, per tap for POOL) of a node that is no matrix product."""
    if node.op == "UNARY":
        return _FUNCTION_NS.get(node.attrs["opcode"], _PLAIN_NS)
    if node.op == "BINARY":
        return _binary_ns(node) + _activation_ns(node)
    found = _ELEMENT_NS.get(node.op, _PLAIN_NS)
    if node.op == "REDUCE":
        found = max(found, _REDUCTION_NS.get(node.attrs["opcode"], 0.0))
    return found + _activation_ns(node)


def _binary_ns(node: Node) -> float:
    opcode, whole = node.attrs["opcode"], node.output.dtype.kind in "iu"
    if whole and opcode in ("DIV", "MOD", "FMOD"):
        return _DIVIDED_NS
    return _OPERATION_NS.get(opcode, _PLAIN_NS)


def winograd_blocks(shape: Shape, blocks: Blocks) -> int:
    """Blocks of an output [N, C, H, W] or [N, C, D, H, W]."""
    return shape[0] * prod(shape[2:-2]) * -(-shape[-2] // blocks.sides[0]) * -(-shape[-1] // blocks.sides[1])


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


def traffic(node: Node) -> float:
    """Bytes that a node reads and writes, each operand once."""
    written = sum(nbytes(t) for t in node.outputs)
    if node.op in RECURRENT:
        _, _, rows, hidden = node.output.shape
        read = 4.0 * rows * hidden * (recurrent_steps(node) * recurrent_gates(node) + 2)  # of P the run's own steps, and states
        return written + read + weight_bytes(node)
    if node.op == "GATHER":
        return 2.0 * written
    return float(written + sum(nbytes(t) for t in node.inputs if t is not None))


def is_narrow(node: Node) -> bool:
    """Whether CONV puts several groups into a vector."""
    if node.op != "CONV" or len(node.inputs) > 6 or node.attrs["groups"] == 1 or node.inputs[0] is None:
        return False
    groups = int(node.attrs["groups"])
    return node.inputs[0].shape[1] == node.output.shape[1] and node.output.shape[1] // groups in (2, 4, 8)


def by_sevens(node: Node) -> bool:
    """Whether a product takes left factors of Strassen's."""
    return node.op in ("GEMM", "QNBITGEMM") and len(node.inputs) > 6


def planes(node: Node) -> float:
    """Images of its input that an image of a convolution's output is summed over, on average: those outside the volume are skipped."""
    a, (kernel, stride, dilation, pad) = node.inputs[0], depth(node.attrs)
    if a is None or kernel == 1 or len(node.output.shape) != 5:
        return 1.0
    taps = np.arange(node.output.shape[2])[:, None] * stride - pad + np.arange(kernel) * dilation
    return max(float(((taps >= 0) & (taps < a.shape[2])).sum(axis=1).mean()), 1.0)


def _gemm_flops(node: Node) -> float:
    a = node.inputs[0]
    return 2.0 * (7 / 8 if by_sevens(node) else 1.0) * node.output.size * a.shape[-1] if a is not None else 0.0


def _conv_flops(node: Node) -> float:
    a = node.inputs[0]
    if a is None:
        return 0.0
    return float(2.0 * node.output.size * (a.shape[1] // node.attrs["groups"]) * planes(node) * int(prod(node.attrs["kernel"])))


def _qconv_flops(node: Node) -> float:
    a = node.inputs[0]
    return 2.0 * node.output.size * a.shape[1] * int(prod(node.attrs["kernel"])) if a is not None else 0.0


def _depthwise_flops(node: Node) -> float:
    return 2.0 * node.output.size * planes(node) * int(prod(node.attrs["kernel"]))


def _depthwise_ns(node: Node, ops: float) -> float:
    a = node.inputs[0]
    spread = SPREAD_NS if a is not None and a.shape[1] < node.output.shape[1] else 0.0
    return ops / DEPTHWISE_FLOPS_PER_NS + node.output.size * (DEPTHWISE_OUT_NS + spread + after_ns(node))


def window_span(node: Node, axis: int) -> int:
    """Rows (0) or columns (1) of input that a window spans."""
    return int((node.attrs["kernel"][axis] - 1) * node.attrs["dilations"][axis] + 1)


def stack_ns(pixels_in: Any, pixels_out: Any, channels: int, outputs: Any, taps: int) -> Any:
    """Arithmetic of PWDW: so many pixels of its wide tensor, of its output. Numbers or arrays of them."""
    padded = -(-outputs // HALF_PANEL) * HALF_PANEL
    wide = 2.0 * channels / rates().matrix + WIDE_NS
    return padded * (pixels_in * wide + pixels_out * (2.0 * taps / DEPTHWISE_FLOPS_PER_NS + DEPTHWISE_OUT_NS))


def _stack_pixels(node: Node) -> int:
    a = node.inputs[0]
    return a.shape[0] * a.shape[2] * a.shape[3] if a is not None else 0


def _stack_flops(node: Node) -> float:
    a = node.inputs[0]
    pointwise = 2.0 * _stack_pixels(node) * node.output.shape[1] * a.shape[1] if a is not None else 0.0
    return pointwise + _depthwise_flops(node)


def _winograd_flops(node: Node) -> float:
    a, blocks = node.inputs[0], blocks_of(node)
    products = winograd_blocks(node.output.shape, blocks) * blocks.products * node.output.shape[1]
    return 2.0 * products * planes(node) * a.shape[1] if a is not None else 0.0


def recurrent_gates(node: Node) -> int:
    """Of LSTM, GRU or RNN."""
    w = node.inputs[1]
    assert w is not None
    return w.shape[2]


def recurrent_steps(node: Node) -> int:
    """Of LSTM, GRU or RNN. Half a step of GRU has two outputs in one, or multiplies with the weights of one gate alone."""
    return 1 if node.attrs.get("form") == "gates" else node.output.shape[0]


def _recurrent_flops(node: Node) -> float:
    return 2.0 * recurrent_steps(node) * node.output.shape[2] * node.output.shape[3] ** 2 * recurrent_gates(node)


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
    `ns(node, flops)`: on one core with all data at hand, where every element costs the same; other kernels have a model in `tilecost`.
    `hides`: weights come from memory meanwhile; else what comes from memory comes on top."""

    flops: Callable[[Node], float] = _elements
    ns: Callable[[Node, float], float] = lambda node, flops: flops * element_ns(node)
    hides: bool = False


def _running_ns(node: Node, sums: float) -> float:
    """Sums along an axis wait for each other: a few rows are as slow as one."""
    rows = prod(node.output.shape) / max(node.output.shape[node.attrs["axis"]], 1)
    return float(sums * max(RUNNING_NS / min(max(rows, 1.0), RUNNING_ROWS), _PLAIN_NS))


def _taps(node: Node) -> int:
    """Pixels that a point of GRIDSAMPLE reads."""
    return int(GRID_TAPS[node.attrs["mode"]] ** (len(node.output.shape) - 2))


def _grid_flops(node: Node) -> float:
    return 2.0 * node.output.size * _taps(node)


def _grid_ns(node: Node, ops: float) -> float:
    """By vectors of channels, or of points where channels are few."""
    channels, taps = node.output.shape[1], _taps(node)
    points = node.output.size / max(channels, 1)
    if channels < FEW_SAMPLED:
        point, tap, gathered = FEW_NS
        return points * (point + taps * tap) + node.output.size * taps * gathered
    return points * (POINT_NS + taps * TAP_NS) + node.output.size * (SAMPLED_NS + taps * SAMPLED_TAP_NS)


def _roi_taps(node: Node) -> float:
    """Pixels that a cell of ROIALIGN reads, for regions of the usual size. A maximum has four for each point."""
    taps = 1.0
    for cells in node.output.shape[2:]:
        side = REGION / cells
        ratio = node.attrs["ratio"] or max(np.ceil(side), 1.0)
        taps *= 2.0 * ratio if node.attrs["mode"] == "max" else min(2.0 * ratio, side * (1.0 - 1.0 / ratio) + 2.0)
    return float(taps)


def _roi_flops(node: Node) -> float:
    return 2.0 * node.output.size * _roi_taps(node)


def _roi_ns(node: Node, ops: float) -> float:
    channels = max(node.output.shape[1], 1)
    return node.output.size * (SAMPLED_NS + _roi_taps(node) * (ROI_TAP_NS + TAP_NS / channels))


def _deform_flops(node: Node) -> float:
    return 8.0 * node.output.size


def _deform_ns(node: Node, ops: float) -> float:
    x = node.inputs[0]
    runs = max(node.attrs["groups"], node.attrs["parts"]) / max(x.shape[1], 1) if x is not None else 1.0
    return node.output.size * (DEFORM_NS + runs * PLACE_NS)


def _trees_ns(node: Node, steps: float) -> float:
    """A row takes each tree down to a leaf; few rows wait for the memory that nodes lie in, many find them in a cache."""
    return steps * TREE_STEP_NS + node.output.size * _PLAIN_NS


def _inputs_terms(node: Node) -> float:
    """Two operations for each element of the output and of an input's row."""
    x = node.inputs[0]
    return 2.0 * node.output.size * (x.shape[-1] if x is not None else 1)


FAMILIES = {
    "GEMM": Family(_gemm_flops, hides=True),
    "QNBITGEMM": Family(_gemm_flops, hides=True),
    "QGEMM": Family(_gemm_flops, hides=True),
    "CONV": Family(_conv_flops, hides=True),
    "QCONV": Family(_qconv_flops, hides=True),
    "BGEMM": Family(_gemm_flops, hides=True),
    "DGEMM": Family(_gemm_flops, lambda node, flops: flops * DOUBLE_TERM_NS / 2 + node.output.size * _PLAIN_NS),
    "BCONV": Family(_qconv_flops, hides=True),
    "WINO": Family(_winograd_flops, hides=True),
    "ATTENTION": Family(_attention_flops, hides=True),
    "LSTM": Family(_recurrent_flops),
    "GRU": Family(_recurrent_flops),
    "RNN": Family(_recurrent_flops),
    "DWCONV": Family(_depthwise_flops, _depthwise_ns),
    "PWDW": Family(_stack_flops, hides=True),
    "POOL": Family(_pool_flops),
    "REDUCE": Family(_reduce_flops),
    "ARGREDUCE": Family(_reduce_flops),
    "TOPK": Family(_reduce_flops),
    "MOMENTS": Family(_reduce_flops),
    "MINMAX": Family(_reduce_flops),
    "QPARAMS": Family(_reduce_flops),
    "CUMSUM": Family(_elements, _running_ns),
    "GRIDSAMPLE": Family(_grid_flops, _grid_ns),
    "ROIALIGN": Family(_roi_flops, _roi_ns),
    "DEFORM": Family(_deform_flops, _deform_ns),
    "TREES": Family(lambda node: float(node.output.shape[0] * node.attrs["steps"]), _trees_ns),
    "LABELS": Family(_reduce_flops),
    "RBF": Family(_inputs_terms, lambda node, flops: flops * RBF_TERM_NS / 2 + node.output.size * _FUNCTION_NS["EXP"]),
    "DUELS": Family(lambda node: 2.0 * _reduce_flops(node), lambda node, flops: flops / 2 * DUEL_TERM_NS),
    "COUPLE": Family(lambda node: float(node.output.size * node.output.shape[1])),
}
"""Kernels that are not here do one operation for each element of their output, at `element_ns`. A new family is one line."""
_OTHERS = Family()


def kernel(node: Node) -> str:
    """The kernel of a node as `plan --explain` and calibrations name it: WINO with the sides of its blocks."""
    return "WINO {}x{}".format(*blocks_of(node).sides) if node.op == "WINO" else node.op


def factor(node: Node) -> float:
    """How long tiles of a node take on this machine beside what their model says."""
    return rates().factors.get(kernel(node), 1.0)


def family(node: Node) -> Family:
    """That of a node."""
    return FAMILIES.get(node.op, _OTHERS)


def flops(node: Node) -> float:
    """Floating-point operations of a node, as its family counts them."""
    return family(node).flops(node)


def even_ns(node: Node) -> float:
    """Arithmetic and traffic between caches of a node whose elements all cost the same."""
    moved = traffic(node)
    weights, passing = memory_bytes(node, moved)
    return family(node).ns(node, flops(node)) + max(moved - weights - passing, 0.0) / rates().warm


def weight_bytes(node: Node) -> float:
    """Constants that a node reads."""
    return 0.0 if node.op == "GATHER" else float(sum(nbytes(t) for t in node.inputs if t is not None and t.is_const))


def activation_bytes(node: Node) -> float:
    """All else that it reads and writes."""
    return traffic(node) - weight_bytes(node)


def memory_bytes(node: Node, moved: float | None = None) -> tuple[float, float]:
    """What a node reads and writes of memory behind the caches: weights, which other layers have pushed out since the last request, unless
    another part of the batch or the steps before have just read them; and activations where they are too many to stay, those that are
    written twice: a cache reads a line before it is written. `moved`: its traffic, where that is known."""
    weights = weight_bytes(node)
    passing = (traffic(node) if moved is None else moved) - weights
    if node.op != "GATHER":
        passing = passing + sum(nbytes(t) for t in node.outputs) if passing > rates().cached else 0.0
    again = node.part[0] or (node.op in RECURRENT and not node.attrs["begins"])
    return 0.0 if again else weights, passing


def tail(workers: int, products: bool = True) -> float:
    """How long a node's end keeps workers waiting, in tiles of it. One worker waits for nobody, but tiles small enough that readers find
    them in the cache are worth something to it, too: least to `products`, whose small tiles read weights or transform input again."""
    return 0.5 if workers > 1 else 0.05 if products else 0.2


def wanted_tiles(ns: float, workers: int, tail: float) -> float:
    """How many tiles a node of `ns` should have: the overhead of more tiles, shared by all workers, against the tail of the last one.
    With n tiles a node ends about ``n * tile_ns / workers + tail * ns / n`` later than ideal."""
    return float(max(1.0, (tail * ns * workers / rates().tile_ns) ** 0.5))


def scratch_bytes(node: Node) -> int:
    """Upper bound of the scratch memory that the node's kernel asks for; workers ask the kernel itself, for the tiles that there are. Of
    kernels that are not here the tile decides (WINO, products of bytes)."""
    if node.op == "QNBITGEMM" or (node.op == "GEMM" and (by_sevens(node) or not node.attrs["packed_b"])):
        a = node.inputs[0]
        assert a is not None
        return seven_scratch(a.shape[-1], node.op == "QNBITGEMM") if by_sevens(node) else 128 * a.shape[-1]
    if node.op == "DGEMM":
        a = node.inputs[0]
        return 256 * a.shape[-1] if a is not None else 0
    if node.op == "TOPK":
        return 16 * int(node.output.shape[node.attrs["axis"]])
    if node.op in ("MOMENTS", "STANDARDIZE"):
        x = node.inputs[0]
        assert x is not None
        return 32 * (-(-x.shape[1] // 16) * 16 + 1)
    if node.op == "ROIALIGN":
        x = node.inputs[0]
        assert x is not None
        return roi_scratch(node.output.shape, x.shape, node.attrs["mode"], node.attrs["ratio"])
    if node.op == "TREES":
        x = node.inputs[0]
        assert x is not None
        return 64 * 8 * (x.shape[1] + node.output.shape[1])
    if node.op == "SCORES":
        return 8 * max(1024, node.output.shape[1])
    if node.op == "LABELS":
        table = node.inputs[1]
        return 4 * table.size if table is not None else 0
    if node.op == "COUPLE":
        return 4 * node.output.shape[1] * (node.output.shape[1] + 2)
    if node.op in RECURRENT:
        return 4 * node.output.shape[2] * (4 * -(-node.output.shape[3] // 16) * 16 + 8 * 16)
    if node.op == "ATTENTION":
        q, k, v = node.inputs[:3]
        assert q is not None
        assert k is not None
        assert v is not None
        keys, values = min(k.shape[-2], KEYS), -(-v.shape[-1] // PANEL) * PANEL
        rows = node.output.size // max(node.output.shape[-1], 1)
        return 4 * (-(-keys // PANEL) * PANEL * q.shape[-1] + keys * values + 8 * (KEYS + 16) + KEYS + rows * (values + 4) + 64)
    return 0
