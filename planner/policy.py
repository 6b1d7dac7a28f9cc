"""Into which tiles each node's output is cut.

A tile should read its weights once and be worth 50–150 µs where the node is large enough: more tiles cost scheduling, fewer leave workers
idle at the end (`cost.wanted_tiles`). Matrix kernels weigh splitting by rows (pixels, tokens), which reads the weights again for every
tile, against splitting by columns (output channels), which reads the activations again. All other kernels are cut along the outermost
axes of their physical layout, so that a tile is a few long runs of memory. Axes that a kernel reduces are never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from aspen_mp.planner import cost
from aspen_mp.planner import strides as st
from aspen_mp.planner.ir import Node
from aspen_mp.planner.storage import Storage, item_bytes
from aspen_mp.planner.winograd import Blocks
from aspen_mp.shm.tables import LIMITS

TILE_AXES = LIMITS["tile_axes"]
PANEL = cost.PANEL
"""Cuts of output channels are multiples of a weight panel's width."""
ROWS = 8
"""Rows that the matrix kernels take at a time, roughly; fewer use the vectors less well."""
ROWS_LOST = 0.6
"""What a block of rows costs besides its rows, in rows."""
MAX_TILES = 4096
"""Tiles a node."""

Cuts = tuple[npt.NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The tiles of a node: cut points per axis (the first `TILE_AXES` axes of output 0) and the axes from slowest to fastest varying tile
    number. ``counts``: cells per axis, ``n``: tiles, ``steps``: how far the tile number moves per cell along each axis."""

    shape: tuple[int, ...]
    cuts: Cuts
    order: tuple[int, ...]
    counts: tuple[int, ...] = field(init=False)
    n: int = field(init=False)
    steps: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        counts = tuple(len(c) - 1 for c in self.cuts)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "n", prod(counts))
        object.__setattr__(self, "steps", st.dense(counts, self.order))

    def boxes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """lo, hi [n, rank] of every tile, in the order of tile numbers; axes that cannot be cut are whole."""
        n, rank = self.n, len(self.shape)
        lo = np.zeros((n, rank), np.int64)
        hi = np.empty((n, rank), np.int64)
        hi[:] = self.shape
        number = np.arange(n)
        for axis in reversed(self.order):
            if self.counts[axis] == 1:
                lo[:, axis], hi[:, axis] = self.cuts[axis]
                continue
            k = number % self.counts[axis]
            number //= self.counts[axis]
            lo[:, axis], hi[:, axis] = self.cuts[axis][k], self.cuts[axis][k + 1]
        return lo, hi


def split(dim: int, parts: int, granule: int = 1) -> npt.NDArray[np.int64]:
    """Cut points of an axis in `parts` runs of nearly equal length, multiples of `granule` but for the last."""
    blocks = -(-dim // granule)
    parts = max(1, min(parts, blocks))
    cuts = np.arange(parts + 1, dtype=np.int64) * blocks // parts * granule
    cuts[-1] = dim
    return cuts


def choose_grids(storage: Storage, workers: int) -> list[Grid]:
    """One grid for each of ``storage.steps``; empty outputs have no tiles, OPAQUE nodes exactly one."""
    return [_choose(node, storage, workers) for node in storage.steps]


def _whole(shape: Sequence[int]) -> Grid:
    cuts = tuple(np.array([0, d], np.int64) for d in shape[:TILE_AXES])
    return Grid(tuple(shape), cuts, tuple(range(len(cuts))))


def _choose(node: Node, storage: Storage, workers: int) -> Grid:
    shape = node.output.shape
    if node.op == "OPAQUE":
        return _whole(shape)
    if 0 in shape:
        cuts = tuple(np.zeros(1, np.int64) for _ in shape[:TILE_AXES])
        return Grid(shape, cuts, tuple(range(len(cuts))))
    if node.op == "GEMM":
        return _gemm(node, workers)
    if node.op == "CONV":
        return _conv(node, workers)
    if node.op == "WINO":
        return _winograd(node, workers)
    if node.op == "PWDW":
        return _stack(node, workers)
    if node.op == "ATTENTION":
        return _attention(node, workers)
    return _by_layout(node, storage.refs[node.output].strides, workers)


def _fixed_axes(node: Node) -> frozenset[int]:
    """Axes of the output that must stay whole: a kernel that reduces along them would repeat its work in each tile."""
    rank = len(node.output.shape)
    if node.op in ("SOFTMAX", "CUMSUM"):
        return frozenset({node.attrs["axis"]})
    if node.op == "NORM":
        return frozenset(range(node.attrs["axis"], rank))
    return frozenset({1}) if node.op == "LRN" else frozenset()


def _by_layout(node: Node, strides: Sequence[int], workers: int) -> Grid:
    shape = node.output.shape
    parts = min(round(cost.wanted_tiles(cost.work(node).ns, workers)), MAX_TILES)
    line = max(1, 64 // item_bytes(node.output))
    order = [a for a in st.order_of(shape, strides) if a < TILE_AXES]
    fixed = _fixed_axes(node)
    cuts = {a: np.array([0, shape[a]], np.int64) for a in order}
    for axis in order:
        if parts <= 1:
            break
        if axis in fixed or shape[axis] == 1:
            continue
        granule = line if strides[axis] == 1 else 1
        if workers > 1 and granule == 1 and shape[axis] >= 2 * FEWEST_ROWS and shape[axis] >= ROWS * parts > ROWS:
            granule, parts = ROWS, -(-parts // 2) * 2  # no tile across the middle: see `_halved`
        if granule > 1 and shape[axis] < 2 * granule:
            continue
        cuts[axis] = split(shape[axis], parts, granule)
        parts = -(-parts // (len(cuts[axis]) - 1))
    return Grid(shape, tuple(cuts[a] for a in sorted(cuts)), tuple(order))


def _blocks(dim: int, granule: int) -> int:
    return -(-dim // granule)


def _parts(blocks: int, limit: int) -> list[int]:
    """Candidate numbers of parts of an axis of so many blocks."""
    out = {1, blocks} | {n for k in range(13) for n in (2**k, 3 * 2**k) if n < blocks}
    out |= {-(-blocks // k) for k in range(1, 9)}
    return sorted(n for n in out if n <= min(blocks, limit)) or [1]


def _best(rows: Sequence[tuple[int, int]], columns: tuple[int, int], evaluate: _Evaluate, workers: int) -> tuple[int, ...]:
    """Numbers of parts per axis, (rows …, columns), that finish soonest. `rows`, `columns`: (dimension, granule)."""
    axes = [*rows, columns]
    candidates = [np.array(_parts(_blocks(d, g), MAX_TILES), np.int64) for d, g in axes]
    mesh = [m.ravel() for m in np.meshgrid(*candidates, indexing="ij")]
    sizes = [-(-_blocks(d, g) // m) * g for (d, g), m in zip(axes, mesh, strict=True)]
    tiles = np.prod(mesh, axis=0)
    ns = evaluate([np.minimum(s, d) for s, (d, _) in zip(sizes, axes, strict=True)]) + cost.rates().tile_ns
    total = tiles * ns / workers + cost.tail(workers) * ns
    total[tiles > MAX_TILES] = np.inf
    k = int(np.argmin(total))
    return tuple(int(m[k]) for m in mesh)


class _Evaluate:
    """Nanoseconds of a tile whose sides are given per axis (rows …, columns), vectorised over candidates."""

    def __call__(self, sides: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Product(_Evaluate):
    """A matrix product: `depth` multiply-adds an element; `lead` row axes read the weights anew (batched products)."""

    depth: int
    lead: int
    element_ns: float

    def __call__(self, sides: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
        *rows, n = sides
        batches = np.prod(rows[: self.lead], axis=0) if self.lead else np.ones_like(n)
        m = np.prod(rows[self.lead :], axis=0)
        full = batches * (m + ROWS_LOST * -(-m // ROWS)) * (-(-n // PANEL) * PANEL)
        weights = batches * 4.0 * n * self.depth
        others = batches * 4.0 * m * (self.depth + n)
        ns = 2.0 * full * self.depth / cost.rates().matrix + (weights + others) / cost.rates().warm
        return np.asarray(ns + self.element_ns * batches * m * n)


@dataclass(frozen=True, slots=True)
class _Convolution(_Evaluate):
    """Sides: batch, output rows, output columns of the image, output channels."""

    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    groups: int
    group_outputs: int
    element_ns: float
    input_ns: float
    narrow: bool = False

    def __call__(self, sides: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
        batch, height, width, n = sides
        depth = self.channels * self.kernel[0] * self.kernel[1]
        pixels = batch * height * width
        read = batch * (height * self.stride[0] + self.kernel[0] - 1) * (width * self.stride[1] + self.kernel[1] - 1)
        groups = -(-n // self.group_outputs)
        padded = cost.NARROW_COST * n if self.narrow else groups * (-(-np.minimum(n, self.group_outputs) // PANEL) * PANEL)
        full = (pixels + ROWS_LOST * -(-pixels // ROWS)) * padded
        weights = 4.0 * n * depth
        others = 4.0 * (read * self.channels * groups + pixels * n)
        ns = 2.0 * full * depth / cost.rates().matrix + (weights + others) / cost.rates().warm
        return np.asarray(ns + self.element_ns * pixels * n + self.input_ns * read * self.channels * groups)


@cost.remembered(4096)
def _gemm_parts(rows: tuple[int, ...], n: int, depth: int, lead: int, element_ns: float, workers: int) -> tuple[int, ...]:
    granules = [1] * (len(rows) - 1) + [ROWS]
    return _best(list(zip(rows, granules, strict=True)), (n, PANEL), _Product(depth, lead, element_ns), workers)


FEWEST_ROWS = 48
"""Rows for which a weight may be read once more."""
MOST_ROWS = 384
"""With more rows an operator takes long beside its last tiles."""
CACHED_WEIGHTS = 24 << 20
"""Bytes of a weight that are still in the last-level cache when they are read again."""


def _halved(rows: Sequence[int], weights: int, workers: int) -> int | None:
    """Which of the row axes (batch, tokens) is cut into two halves that follow each other, each with all columns: what comes after the
    first half (a normalisation and the next product need whole rows) then runs while other workers finish the second. None: with one
    worker nobody waits, and large weights should be read once."""
    if workers < 2 or not 2 * FEWEST_ROWS <= rows[0] * rows[1] <= MOST_ROWS or 4 * weights > CACHED_WEIGHTS:
        return None
    if rows[0] > 1:
        return 0
    return 1


def _gemm(node: Node, workers: int) -> Grid:
    shape = node.output.shape
    a, b = node.inputs[0], node.inputs[1]
    assert a is not None
    assert b is not None
    rank = len(shape)
    lead = shape[: rank - 2]
    batched = not node.attrs["packed_b"] and any(d > 1 for d in b.shape[:-2])
    weights, activations = a.shape[-1] * shape[-1], a.size
    rows = [prod(lead), shape[-2]]
    halved = _halved(rows, weights, workers) if node.attrs["packed_b"] else None
    if halved is not None:
        rows[halved] = -(-rows[halved] // 2)
    parts = list(_gemm_parts((rows[0], rows[1]), shape[-1], a.shape[-1], 1 if batched else 0, cost.output_ns(node), workers))
    if halved is not None:
        parts[halved] *= 2
    cuts: list[npt.NDArray[np.int64]] = []
    left = parts[0]
    for d in lead[:TILE_AXES]:
        cuts.append(split(d, left))
        left = -(-left // (len(cuts[-1]) - 1))
    tail = [split(shape[-2], parts[1], ROWS), split(shape[-1], parts[2], PANEL)]
    for axis, cut in zip((rank - 2, rank - 1), tail, strict=True):
        if axis < TILE_AXES:
            cuts.append(cut)
    m_parts, n_parts = prod(len(c) - 1 for c in cuts[: rank - 1]), len(cuts[-1]) - 1
    axes = list(range(len(cuts)))
    if len(cuts) == rank and halved is None and not batched and weights + activations * n_parts < activations + weights * m_parts:
        axes = [rank - 1, *axes[:-1]]  # a panel of weights stays in the cache while the rows pass
    return Grid(shape, tuple(cuts), tuple(axes))


@cost.remembered(4096)
def _conv_parts(shape: tuple[int, ...], granule: int, evaluate: _Convolution, workers: int) -> tuple[int, ...]:
    batch, outputs, height, width = shape
    return _best([(batch, 1), (height, 1), (width, _width_granule(shape))], (outputs, granule), evaluate, workers)


def _width_granule(shape: Sequence[int]) -> int:
    """Image rows are whole, unless there are hardly any (1-D convolutions)."""
    return shape[3] if shape[2] >= 4 else ROWS


def _conv(node: Node, workers: int) -> Grid:
    shape = node.output.shape
    x = node.inputs[0]
    assert x is not None
    groups = node.attrs["groups"]
    group_outputs = shape[1] // groups
    if groups == 1 or group_outputs % PANEL == 0:
        granule = PANEL
    else:
        granule = group_outputs if group_outputs > PANEL else group_outputs * max(1, PANEL // group_outputs)
    kernel, strides = tuple(node.attrs["kernel"]), tuple(node.attrs["strides"])
    evaluate = _Convolution(
        x.shape[1] // groups, kernel, strides, groups, group_outputs, cost.output_ns(node), cost.input_ns(node), cost.is_narrow(node)
    )
    parts = _conv_parts(shape, granule, evaluate, workers)
    cuts = (
        split(shape[0], parts[0]),
        split(shape[1], parts[3], granule),
        split(shape[2], parts[1]),
        split(shape[3], parts[2], _width_granule(shape)),
    )
    weights, activations = evaluate.channels * prod(evaluate.kernel) * shape[1], x.size
    pixel_parts, channel_parts = parts[0] * parts[1] * parts[2], len(cuts[1]) - 1
    channels_first = weights + activations * channel_parts < activations + weights * pixel_parts
    return Grid(shape, cuts, (1, 0, 2, 3) if channels_first else (0, 2, 3, 1))


@dataclass(frozen=True, slots=True)
class _Winograd(_Evaluate):
    """Sides: batch, output rows and columns of the image, output channels."""

    channels: int
    blocks: Blocks
    element_ns: float

    def __call__(self, sides: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
        batch, height, width, n = sides
        rows, columns = (-(-d // side) for d, side in zip((height, width), self.blocks.sides, strict=True))
        blocks = batch * rows * columns
        weights = 4.0 * self.blocks.weights * self.channels * n
        steps, patch = self.blocks.steps, self.blocks.patch
        read = batch * ((rows - 1) * steps[0] + patch[0]) * ((columns - 1) * steps[1] + patch[1])
        others = 4.0 * (read * self.channels + batch * height * width * n)
        full = blocks + ROWS_LOST * -(-blocks // ROWS)
        ns = cost.winograd_ns(self.blocks, full, self.channels, n) + (weights + others) / cost.rates().warm
        return np.asarray(ns + self.element_ns * batch * height * width * n)


@cost.remembered(4096)
def _winograd_parts(shape: tuple[int, ...], evaluate: _Winograd, workers: int) -> tuple[int, ...]:
    batch, outputs, height, width = shape
    rows, columns = evaluate.blocks.sides[0], _blocks_across(shape, evaluate.blocks)
    return _best([(batch, 1), (height, rows), (width, columns)], (outputs, PANEL), evaluate, workers)


def _blocks_across(shape: Sequence[int], blocks: Blocks) -> int:
    """Image rows are whole, unless there are hardly any."""
    return max(shape[3], blocks.sides[1]) if shape[2] >= 4 * blocks.sides[0] or shape[3] < ROWS * blocks.sides[1] else blocks.sides[1]


def _winograd(node: Node, workers: int) -> Grid:
    """Rows of whole blocks. Cutting channels repeats the transform of the input, cutting rows reads all weights again."""
    shape = node.output.shape
    x, blocks = node.inputs[0], cost.blocks_of(node)
    assert x is not None
    evaluate = _Winograd(x.shape[1], blocks, cost.after_ns(node))
    parts = _winograd_parts(shape, evaluate, workers)
    cuts = (
        split(shape[0], parts[0]),
        split(shape[1], parts[3], PANEL),
        split(shape[2], parts[1], blocks.sides[0]),
        split(shape[3], parts[2], _blocks_across(shape, blocks)),
    )
    weights, activations = blocks.weights * x.shape[1] * shape[1], x.size
    pixel_parts, channel_parts = parts[0] * parts[1] * parts[2], len(cuts[1]) - 1
    channels_first = weights + activations * channel_parts < activations + weights * pixel_parts
    return Grid(shape, cuts, (1, 0, 2, 3) if channels_first else (0, 2, 3, 1))


@dataclass(frozen=True, slots=True)
class _Stack(_Evaluate):
    """PWDW. Sides: batch, output rows and columns of the image, output channels. `image`: rows and columns of the input."""

    channels: int
    image: tuple[int, int]
    span: tuple[int, int]
    stride: tuple[int, int]
    taps: int
    element_ns: float

    def __call__(self, sides: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
        batch, height, width, n = sides
        rows, columns = (
            np.minimum((side - 1) * s + r, d) for side, s, r, d in zip((height, width), self.stride, self.span, self.image, strict=True)
        )
        read, pixels = batch * rows * columns, batch * height * width
        ns = cost.stack_ns(read + ROWS_LOST * -(-read // ROWS), pixels, self.channels, n, self.taps)
        moved = 4.0 * (n * (self.channels + self.taps) + read * self.channels + pixels * n)
        return np.asarray(ns + moved / cost.rates().warm + self.element_ns * pixels * n)


@cost.remembered(4096)
def _stack_parts(shape: tuple[int, ...], evaluate: _Stack, workers: int) -> tuple[int, ...]:
    batch, outputs, height, width = shape
    return _best([(batch, 1), (height, 1), (width, _width_granule(shape))], (outputs, PANEL), evaluate, workers)


def _stack(node: Node, workers: int) -> Grid:
    """Cutting rows computes those of the wide tensor again that two tiles see, cutting channels reads all of the input again."""
    shape = node.output.shape
    x, a = node.inputs[0], node.attrs
    assert x is not None
    span = (cost.window_span(node, 0), cost.window_span(node, 1))
    evaluate = _Stack(x.shape[1], (x.shape[2], x.shape[3]), span, tuple(a["strides"]), prod(a["kernel"]), cost.after_ns(node))
    parts = _stack_parts(shape, evaluate, workers)
    cuts = (
        split(shape[0], parts[0]),
        split(shape[1], parts[3], PANEL),
        split(shape[2], parts[1]),
        split(shape[3], parts[2], _width_granule(shape)),
    )
    return Grid(shape, cuts, (1, 0, 2, 3) if parts[0] * parts[1] * parts[2] == 1 else (0, 2, 3, 1))


@dataclass(frozen=True, slots=True)
class _Attention(_Evaluate):
    """Sides: heads (all leading axes), rows of queries, columns of values (always whole). `seen`: keys that a row looks at on average."""

    keys: int
    seen: float
    depth: int

    def __call__(self, sides: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
        heads, m, n = sides
        full = m + ROWS_LOST * -(-m // ROWS)
        ns = full * self.seen * (2.0 * (self.depth + n) / cost.rates().matrix + cost.SCORE_NS) + self.keys * (self.depth + n) * cost.PACK_NS
        spills = 4.0 * m * n / cost.rates().warm * (-(-self.keys // cost.KEYS) - 1)
        return np.asarray(heads * (ns + spills))


ATTENTION_ROWS = 48
"""Cuts of rows that no kernel's groups of rows straddle."""
ATTENTION_MOST = 768
"""Most rows of a head in a tile: their sums stay in the cache."""


def _attention(node: Node, workers: int) -> Grid:
    """Whole heads first: a head's keys and values are packed once a tile."""
    shape = node.output.shape
    q, k = node.inputs[0], node.inputs[1]
    assert q is not None
    assert k is not None
    rank, rows = len(shape), shape[-2]
    evaluate = _Attention(k.shape[-2], cost.scores(node) / max(prod(shape[:-1]), 1), q.shape[-1])
    parts = _attention_parts(prod(shape[:-2]), rows, shape[-1], evaluate, workers)
    cuts: list[npt.NDArray[np.int64]] = []
    left = parts[0]
    for d in shape[: min(rank - 2, TILE_AXES)]:
        cuts.append(split(d, left))
        left = -(-left // (len(cuts[-1]) - 1))
    row_parts = max(parts[1], -(-rows // ATTENTION_MOST))
    for axis, cut in ((rank - 2, split(rows, row_parts, ATTENTION_ROWS)), (rank - 1, np.array([0, shape[-1]], np.int64))):
        if axis < TILE_AXES:
            cuts.append(cut)
    return Grid(shape, tuple(cuts), tuple(range(len(cuts))))


@cost.remembered(4096)
def _attention_parts(heads: int, rows: int, columns: int, evaluate: _Attention, workers: int) -> tuple[int, ...]:
    return _best([(heads, 1), (rows, ATTENTION_ROWS)], (columns, columns), evaluate, workers)
