"""The cost of a tile on one core, by its sides: the models that tile policy, search and simulation share.

Arithmetic comes with the shapes that fill the micro-kernels badly (rows and columns are padded to blocks). A model has the traffic with a
cache that others share. `tile_costs` adds the traffic with memory behind the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.cost.scratch_reuse import Made
from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.ops.attention import FEW_QUERIES, KEYS, PACK_FEW_NS, PACK_NS, SCORE_NS, scores
from aspen_mp.planner.ops.convolutions import blocks_of, is_narrow, planes, window_span
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.packing.winograd import Blocks
from aspen_mp.planner.ops.products import by_strassen
from aspen_mp.planner.ops.recurrent import UNITS, recurrent_gates, recurrent_steps
from aspen_mp.planner.ops.spec import OPAQUE, TileModel
from aspen_mp.planner.ops.stacks import node_of, regions, step_ns
from aspen_mp.planner.ops.table import SPECS, is_packed
from aspen_mp.shm.tables import NUMBERS

ROWS = 8
"""Rows that the matrix kernels take at a time, roughly; fewer use the vectors less well."""
ROWS_LOST = 0.6
"""The cost of a block of `ROW_BLOCK` rows besides its rows, in rows."""
ROW_BLOCK = 12
SEEN = 0.5
"""The part of the traffic between caches that is not hidden behind the arithmetic of matrix kernels."""
HALF_COLUMNS = 20
"""The time of half a panel at the end of whole ones, in columns."""
BLOCKS, BLOCKS_LOST = 8, 3.0
"""Blocks that WINO multiplies at a time, and the cost of that besides them, in blocks."""
STRASSEN, STRASSEN_RIGHT = 0.9, 3.5
"""A multiply-add of GEMM in Strassen's seven products, in those of other products; the cost of right factors for a tile, in pairs of
rows."""
PRODUCTS = 1.25
"""Products between the transforms of WINO, beside those of other matrix kernels: losses are counted in blocks."""
TRANSFORM_IN_NS, TRANSFORM_OUT_NS = 0.04, 0.056
"""Transforms of WINO, for each product and axis: of a channel of input, of a channel of output."""
WEIGHTS_CACHED = 1.5
"""Weights stay in the last-level cache up to this multiple of the activations that stay there."""
LINE = 16
"""Floats of a cache line."""
FEW_WEIGHTS, CHUNK_BYTES, CHUNK_PRODUCTS, LARGE_BYTES, LARGE_MOST, CHUNK_LEAST = (
    NUMBERS[f"WINO_{name}"] for name in ("FEW_WEIGHTS", "CHUNK_BYTES", "CHUNK_PRODUCTS", "LARGE_BYTES", "LARGE_MOST", "LEAST")
)
"""How many blocks WINO transforms at a time."""

OWN_CACHE = 3 << 19
"""`OWN_CACHE`: bytes of recurrent weights that a core keeps beside a step's other data. `OWN_RATE`: their rate. `RECURRENT_PRODUCTS`:
products of LSTM, GRU and RNN beside those of other matrix kernels. `STATE_NS`: the time of a term of the state before, a row."""
OWN_RATE, RECURRENT_PRODUCTS, STATE_NS = 100.0, 0.85, 0.1

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def cached_weights() -> float:
    """Bytes of weights that are still in the last-level cache when they are read again."""
    return WEIGHTS_CACHED * op_cost.rates().cached


def _rows(m: Ints) -> Floats:
    """The time of `m` rows, in rows of whole blocks."""
    return np.asarray(m + ROWS_LOST * -(-m // ROW_BLOCK))


def _columns(n: Ints) -> Ints:
    """The time of `n` columns of CONV, in columns of whole panels."""
    full, rest = n // PANEL * PANEL, n % PANEL
    half = np.where(full > 0, HALF_COLUMNS, PANEL // 2)
    return np.asarray(full + np.where(rest == 0, 0, np.where(rest <= PANEL // 2, half, PANEL)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCost:
    """Nanoseconds of tiles of a node, vectorised. `factor`: of the model's time, see `op_cost.factor`."""

    factor: float = 1.0

    def __call__(self, sides: list[Ints]) -> Floats:
        """By the axes that the kernel sees (rows …, columns)."""
        return np.asarray(self.factor * self.modelled(sides))

    def modelled(self, sides: list[Ints]) -> Floats:
        """The same before the factor."""
        raise NotImplementedError

    def sides(self, box: Ints) -> list[Ints]:
        """Those axes, from the sides [n, rank] of boxes over the output."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Product(TileCost):
    """A matrix product. Axes: all leading ones together, rows, columns. `depth`: multiply-adds an element. `batched`: the leading axes read
    the weights anew. `strassen`: by Strassen's algorithm, pairs of rows and of panels at a time. `item`: bytes of a factor; multiply-adds
    are faster by as much as it is below four. `stored`: bytes of a stored weight that has to become a factor first. `unpacked`: the time of
    that, in rows."""

    depth: int
    batched: bool
    element_ns: float
    strassen: bool = False
    item: int = 4
    stored: float = 0.0
    unpacked: float = 0.0

    @property
    def weight_bytes(self) -> float:
        return self.stored or float(self.item)

    def modelled(self, sides: list[Ints]) -> Floats:
        lead, m, n = sides
        batches = lead if self.batched else np.ones_like(n)
        m = m if self.batched else lead * m
        full = batches * (_rows(m) + self.unpacked) * (-(-n // PANEL) * PANEL)
        if self.strassen:
            full = batches * (STRASSEN * 2 * (_rows(-(-m // 2)) + STRASSEN_RIGHT) + self.unpacked) * (-(-n // (2 * PANEL)) * 2 * PANEL)
        weights = batches * self.weight_bytes * n * self.depth
        others = batches * m * (float(self.item) * self.depth + 4.0 * n)
        ns = 2.0 * full * self.depth * self.item / (4 * op_cost.rates().matrix) + SEEN * (weights + others) / op_cost.rates().warm
        return np.asarray(ns + self.element_ns * batches * m * n)

    def sides(self, box: Ints) -> list[Ints]:
        return [box[:, :-2].prod(axis=1), box[:, -2], box[:, -1]]


class ImageCost(TileCost):
    """Axes: batch (of volumes: all their images), output rows and columns of an image, output channels."""

    def sides(self, box: Ints) -> list[Ints]:
        images = box[:, 0] * box[:, 2] if box.shape[1] == 5 else box[:, 0]
        return [images, box[:, -2], box[:, -1], box[:, 1]]


@dataclass(frozen=True, slots=True)
class Convolution(ImageCost):
    """`planes`: images of input for one of output. `item`: see `Product`."""

    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    groups: int
    group_outputs: int
    element_ns: float
    input_ns: float
    narrow: bool = False
    planes: float = 1.0
    item: int = 4

    def modelled(self, sides: list[Ints]) -> Floats:
        batch, height, width, n = sides
        depth = self.planes * self.channels * self.kernel[0] * self.kernel[1]
        pixels = batch * height * width
        read = self.planes * batch * (height * self.stride[0] + self.kernel[0] - 1) * (width * self.stride[1] + self.kernel[1] - 1)
        groups = -(-n // self.group_outputs)
        padded = op_cost.NARROW_COST * n if self.narrow else groups * _columns(np.minimum(n, self.group_outputs))
        full = _rows(pixels) * padded
        weights = float(self.item) * n * depth
        others = float(self.item) * read * self.channels * groups + 4.0 * pixels * n
        ns = 2.0 * full * depth * self.item / (4 * op_cost.rates().matrix) + SEEN * (weights + others) / op_cost.rates().warm
        ns = ns + self.element_ns * pixels * n
        return np.asarray(ns + self.input_ns * read * self.channels * groups if self.input_ns else ns)


@dataclass(frozen=True, slots=True)
class Winograd(ImageCost):
    """`channels`: of all planes. `shape`: of the output, images of volumes on the axis of the batch. `inputs`: elements. `workers`: each
    transforms the input of a tile, and has it for its next tiles of other channels."""

    channels: int
    blocks: Blocks
    element_ns: float
    shape: tuple[int, ...]
    inputs: int
    workers: int

    def channels_first(self, pixel_parts: Ints, channel_parts: Ints) -> npt.NDArray[np.bool_]:
        """Whether tiles of the same channels follow each other, rather than those of the same pixels: large weights should be read once."""
        weights = self.blocks.weights * self.channels * self.shape[1]
        again = weights * (pixel_parts - 1) - self.inputs * (channel_parts - 1)
        return np.asarray((pixel_parts > 1) & (4 * weights > cached_weights()) & (again > 0))

    @property
    def chunk(self) -> int:
        """Blocks that are transformed at a time: a tile leaves its last ones to the next."""
        block = 4 * self.blocks.products * (-(-self.channels // LINE) | 1) * LINE
        few = 4 * self.blocks.weights * self.channels * self.shape[1] <= FEW_WEIGHTS
        most = min(CHUNK_BYTES // block, CHUNK_PRODUCTS // self.blocks.products) if few else min(LARGE_BYTES // block, LARGE_MOST)
        return max(most, CHUNK_LEAST)

    def modelled(self, sides: list[Ints]) -> Floats:
        batch, height, width, n = sides
        pixel_parts = -(-self.shape[0] // batch) * -(-self.shape[2] // height) * -(-self.shape[3] // width)
        channel_parts = -(-self.shape[1] // n)
        rows, columns = (-(-d // side) for d, side in zip((height, width), self.blocks.sides, strict=True))
        blocks = batch * rows * columns
        weights = 4.0 * self.blocks.weights * self.channels * n
        steps, patch = self.blocks.steps, self.blocks.patch
        read = batch * ((rows - 1) * steps[0] + patch[0]) * ((columns - 1) * steps[1] + patch[1])
        found = np.maximum(1.0 - self.workers / channel_parts, 0.0) / -(-blocks // self.chunk)
        transformed = np.where(self.channels_first(pixel_parts, channel_parts), 1.0, 1.0 - found)
        others = 4.0 * (transformed * read * self.channels + batch * height * width * n)
        full, padded = blocks + BLOCKS_LOST * -(-blocks // BLOCKS), -(-n // PANEL) * PANEL
        products = 2.0 * self.channels * padded / (PRODUCTS * op_cost.rates().matrix)
        transformed_ns = transformed * self.channels * TRANSFORM_IN_NS * op_cost.rates().transforms
        transforms = self.blocks.transforms * (transformed_ns + padded * TRANSFORM_OUT_NS)
        ns = full * self.blocks.products * (products + transforms) + SEEN * (weights + others) / op_cost.rates().warm
        first = 4.0 * self.channels * PANEL / op_cost.rates().cold  # nobody has fetched the first weights
        return np.asarray(ns + first + self.element_ns * batch * height * width * n)


@dataclass(frozen=True, slots=True)
class Stack(ImageCost):
    """PWDW. `image`: rows and columns of the input."""

    channels: int
    image: tuple[int, int]
    span: tuple[int, int]
    stride: tuple[int, int]
    taps: int
    element_ns: float

    def modelled(self, sides: list[Ints]) -> Floats:
        batch, height, width, n = sides
        rows, columns = (
            np.minimum((side - 1) * s + r, d) for side, s, r, d in zip((height, width), self.stride, self.span, self.image, strict=True)
        )
        read, pixels = batch * rows * columns, batch * height * width
        ns = op_cost.stack_ns(_rows(read), pixels, self.channels, n, self.taps)
        moved = 4.0 * (n * (self.channels + self.taps) + read * self.channels + pixels * n)
        return np.asarray(ns + SEEN * moved / op_cost.rates().warm + self.element_ns * pixels * n)


@dataclass(frozen=True, slots=True)
class Attention(TileCost):
    """Axes: heads (all leading ones), rows of queries, columns of values (always whole). `seen`: keys that a row looks at on average.
    `few`: there are few rows, as in decoding."""

    keys: int
    seen: float
    depth: int
    few: bool = False

    def modelled(self, sides: list[Ints]) -> Floats:
        heads, m, n = sides
        full = _rows(m)
        packed = self.depth * PACK_FEW_NS if self.few else (self.depth + n) * PACK_NS
        ns = full * self.seen * (2.0 * (self.depth + n) / op_cost.rates().matrix + SCORE_NS) + self.keys * packed
        spills = 4.0 * m * n / op_cost.rates().warm * (-(-self.keys // KEYS) - 1)
        return np.asarray(heads * (ns + spills))

    def sides(self, box: Ints) -> list[Ints]:
        return [box[:, :-2].prod(axis=1), box[:, -2], box[:, -1]]


@dataclass(frozen=True, slots=True)
class Recurrence(TileCost):
    """LSTM, GRU, RNN. Axes: rows, units. In each step weights come from the core's own cache while the products are made, as far as they
    stay there between steps. `workers`: each reads its share of them, or all that its tile needs."""

    steps: int
    hidden: int
    gates: int
    unit_ns: float
    workers: int

    def modelled(self, sides: list[Ints]) -> Floats:
        m, n = sides
        panels, terms = -(-n // UNITS), UNITS * self.gates * self.hidden
        read, share = 4.0 * terms * panels, 4.0 * terms * np.maximum(panels, -(-self.hidden // UNITS) / self.workers)
        kept = np.clip((2.0 * OWN_CACHE - share) / share, 0.0, 1.0)  # every other step goes backwards
        reading = read * (kept / OWN_RATE + (1.0 - kept) / op_cost.rates().warm)
        products = 2.0 * _rows(m) * terms * panels / (RECURRENT_PRODUCTS * op_cost.rates().matrix)
        step = np.maximum(reading, products) + m * (n * self.unit_ns + self.hidden * STATE_NS)
        return np.asarray(self.steps * step)

    def sides(self, box: Ints) -> list[Ints]:
        return [box[:, 2], box[:, 3]]


@dataclass(frozen=True, slots=True)
class Even(TileCost):
    """Every element costs the same. Axis: elements."""

    element_ns: float

    def modelled(self, sides: list[Ints]) -> Floats:
        return np.asarray(sides[0] * self.element_ns)

    def sides(self, box: Ints) -> list[Ints]:
        return [box.prod(axis=1)]


@dataclass(frozen=True, slots=True)
class Rolling(TileCost):
    """A stack whose rows roll through its steps. Axes: images, channels, rows. `row_ns`: of a channel, for a row of the output;
    `begin_ns`: for the rows that steps make beside those, where a tile begins and ends."""

    row_ns: float
    begin_ns: float
    height: int

    def modelled(self, sides: list[Ints]) -> Floats:
        images, channels, rows = sides
        lanes = images * (-(-channels // LINE) * LINE)
        return np.asarray(lanes * (rows * self.row_ns + np.where(rows < self.height, self.begin_ns, 0.0)))

    def sides(self, box: Ints) -> list[Ints]:
        return [box[:, 0], box[:, 1], box[:, 2]]


def of(node: Node, workers: int = 1) -> TileCost:
    """The model of a node's tiles, which `workers` workers share."""
    a, factor = node.inputs[0] if node.inputs else None, op_cost.factor(node)
    model = _MODELS.get(SPECS[node.op].cost.tiles)
    if a is None or model is None:
        return Even(op_cost.even_ns(node) / max(node.output.size, 1), factor=factor)
    return replace(model(node, a, workers), factor=factor)


def _product(node: Node, a: Tensor, workers: int) -> TileCost:
    cost, b, ns = SPECS[node.op].cost, node.inputs[1], op_cost.output_ns(node)
    assert b is not None
    if cost.unpacked is not None:
        stored = b.size / max(node.output.shape[-1] * a.shape[-1], 1)
        return Product(a.shape[-1], False, ns, by_strassen(node), stored=stored, unpacked=cost.unpacked(node))
    return Product(
        a.shape[-1], not is_packed(node, 1) and any(d > 1 for d in b.shape[: len(node.output.shape) - 2]), ns, by_strassen(node), cost.item
    )


def _convolution(node: Node, a: Tensor, workers: int) -> TileCost:
    attrs, cost = node.attrs, SPECS[node.op].cost
    groups = attrs.get("groups", 1)
    channels = -(-a.shape[1] // groups * cost.item // 4) * 4 // cost.item  # whole words
    input_ns = cost.input_ns + (op_cost.PROLOGUE_NS if len(node.inputs) > 6 else 0.0)
    last = op_cost.output_ns(node), input_ns, is_narrow(node), planes(node), cost.item
    kernel, stride = (attrs["kernel"][0], attrs["kernel"][1]), tuple(attrs["strides"])
    return Convolution(channels, kernel, stride, groups, node.output.shape[1] // groups, *last)


def _winograd(node: Node, a: Tensor, workers: int) -> TileCost:
    shape = node.output.shape
    images = (shape[0] * prod(shape[2:-2]), shape[1], *shape[-2:])
    return Winograd(round(a.shape[1] * planes(node)), blocks_of(node), op_cost.after_ns(node), images, a.size, workers)


def _stack(node: Node, a: Tensor, workers: int) -> TileCost:
    span, image = (window_span(node, 0), window_span(node, 1)), (a.shape[2], a.shape[3])
    return Stack(a.shape[1], image, span, tuple(node.attrs["strides"]), prod(node.attrs["kernel"]), op_cost.after_ns(node))


def _rolling(node: Node, a: Tensor, workers: int) -> TileCost:
    program, out = node.attrs["program"], node.output.shape
    middle = np.array([[0, 0, out[2] // 2, 0]]), np.array([[1, 1, out[2] // 2 + 1, out[3]]])
    made, _ = regions(program, *middle)
    row_ns = begin_ns = 0.0
    for step, (lo, hi) in zip(program, made, strict=True):
        lanes, rows = step.shape[0] * step.shape[1], max(step.shape[2], 1)
        each = op_cost.factor(node_of(step)) * step_ns(step) / (lanes * rows)
        row_ns += each * rows / out[2]
        begin_ns += each * max(float(hi[0, 2] - lo[0, 2]) - rows / out[2], 0.0)
    row_ns += op_cost.outside_ns(node) / node.output.size * out[3]
    return Rolling(row_ns, begin_ns, out[2])


def _attention(node: Node, a: Tensor, workers: int) -> TileCost:
    k, shape = node.inputs[1], node.output.shape
    assert k is not None
    return Attention(k.shape[-2], scores(node) / max(prod(shape[:-1]), 1), a.shape[-1], shape[-2] < FEW_QUERIES)


def _recurrence(node: Node, a: Tensor, workers: int) -> TileCost:
    unit_ns = SPECS[node.op].cost.element_ns(node)
    return Recurrence(recurrent_steps(node), node.output.shape[3], recurrent_gates(node), unit_ns, workers)


_MODELS: Final[Mapping[TileModel, Callable[[Node, Tensor, int], TileCost]]] = {
    TileModel.PRODUCT: _product,
    TileModel.CONVOLUTION: _convolution,
    TileModel.WINOGRAD: _winograd,
    TileModel.STACK: _stack,
    TileModel.ROLLING: _rolling,
    TileModel.ATTENTION: _attention,
    TileModel.RECURRENCE: _recurrence,
}
"""(node, its main input, workers) → the model. All other nodes count by elements."""


NOTHING_FOUND: Final = 1 << 30
"""With this many workers none executes two tiles of a node, so that every tile makes its input, …"""
ALL_FOUND: Final = 0
"""… and with this many none has to: each finds it."""


def tile_costs(node: Node, lo: Ints, hi: Ints, workers: int = 1) -> tuple[Floats, Floats]:
    """Return the costs of all tiles of a node, boxes [n, rank] from `lo` to `hi`, for `workers`. They are nanoseconds alone on one core,
    and bytes to memory behind the caches. A tile has its share of the output's bytes. Matrix kernels fetch the next weights while they
    multiply with the last."""
    if node.op == OPAQUE:
        return np.full(len(lo), op_cost.OPAQUE_NS), np.zeros(len(lo))
    if not len(lo):
        return np.zeros(0), np.zeros(0)
    model = of(node, workers)
    box = hi - lo
    ns = model(model.sides(box))
    size = box.prod(axis=1, dtype=np.float64)
    weights, passing = (share * size / max(float(size.sum()), 1.0) for share in op_cost.memory_bytes(node))
    cold = op_cost.rates().cold
    ns = np.maximum(ns, weights / cold) if SPECS[node.op].cost.hides else ns + weights / cold
    return ns + passing / cold, weights + passing


def scratch_reuse(node: Node, lo: Ints, hi: Ints, workers: int = 1) -> Made:
    """The scratch that the tiles of `tile_costs` find: tiles of the same pixels share it, as the average has it."""
    if SPECS[node.op].cost.tiles is not TileModel.WINOGRAD or not len(lo):
        return Made.none(len(lo))
    mean, first, again = (tile_costs(node, lo, hi, many)[0] for many in (workers, NOTHING_FOUND, ALL_FOUND))
    pixels = np.ravel_multi_index(tuple(np.delete(lo, 1, axis=1).T), (*node.output.shape[:1], *node.output.shape[2:]))
    group = np.unique(pixels, return_inverse=True)[1].astype(np.uint32) + np.uint32(1)
    return Made(group, first / mean, again / mean)


def whole_ns(node: Node) -> float:
    """Nanoseconds of a node in one tile."""
    if node.op == OPAQUE:
        return op_cost.OPAQUE_NS
    if not node.output.size:
        return 0.0
    model = of(node)
    if isinstance(model, Even):  # as most are: no arrays are needed for one tile
        ns = model.factor * (node.output.size * model.element_ns)
        weights, passing = (moved / op_cost.rates().cold for moved in op_cost.memory_bytes(node))
        return (max(ns, weights) if SPECS[node.op].cost.hides else ns + weights) + passing
    box = np.array([node.output.shape], np.int64)
    return float(tile_costs(node, np.zeros_like(box), box)[0][0])
