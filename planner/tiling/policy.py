"""Cut each node's output into tiles.

A tile should read its weights once and be worth 50–150 µs where the node is large enough. More tiles cost scheduling, fewer leave workers
idle at the end (`op_cost.wanted_tiles`). Matrix kernels weigh splitting by rows (pixels, tokens) against splitting by columns (output
channels). The former reads the weights again for every tile, the latter the activations. All other kernels are cut along the outermost axes
of their physical layout, so that a tile is a few long runs of memory. Axes that a kernel reduces are never cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.cost.tile_cost import LINE, ROWS, TileCost, cached_weights
from aspen_mp.planner.ir.graph import Node
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.layout import strides as st
from aspen_mp.planner.layout.alike import kinds
from aspen_mp.planner.layout.grids import TILE_AXES, Grid, split
from aspen_mp.planner.layout.storage import Storage, item_bytes
from aspen_mp.planner.ops.convolutions import depth
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.packing.winograd import Blocks
from aspen_mp.planner.ops.recurrent import UNITS, recurrent_steps
from aspen_mp.planner.ops.spec import OPAQUE, TileModel
from aspen_mp.planner.ops.table import ELEMENTWISE, SPECS, is_packed
from aspen_mp.shm.words import count

MAX_TILES = 4096
"""Tiles a node."""
ABOUT = 0.1
"""Numbers of tiles that are about equal differ by no more than this, as a logarithm."""

SHOWN: Final = 3
"""Other ways to cut a node that its reasons name."""
_PRODUCTS = (TileModel.PRODUCT, TileModel.CONVOLUTION, TileModel.WINOGRAD)
"""Small tiles of these read weights, or transform input, again (see `op_cost.tail`)."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The goal of cutting tiles for a number of workers. `tail`: how long a node's end keeps them waiting, in tiles of it; 0 gives the
    coarse tiles of least work, more gives finer ones. `halves`: whether rows of tokens may be cut in two halves that follow each other.
    `tiles`: about so many for every node, cut where that costs least, whatever number seems best. `longest`: nanoseconds that no tile
    takes, as far as a node can be cut so fine."""

    workers: int
    tail: float
    halves: bool = True
    tiles: int | None = None
    longest: float = math.inf


def _remembered(function: Callable[..., tuple[int, ...]]) -> Callable[..., tuple[int, ...]]:
    """Works a cut out once, but anew while reasons are recorded."""
    known = op_cost.remembered(8192)(function)

    def parts(*args: Any) -> tuple[int, ...]:
        return function(*args) if reasons.asked() else known(*args)

    return parts


def choose_grids(storage: Storage, workers: int, tiles: int | None = None, longest: float = math.inf) -> list[Grid]:
    """One grid for each of ``storage.steps``, as good as can be said of each alone. `tiles`, `longest`: see `Aim`."""
    halves = workers > 1 and tiles is None
    aims = [Aim(workers, op_cost.tail(workers, products), halves, tiles, longest) for products in (False, True)]
    known: dict[int, Grid] = {}
    told: dict[int, tuple[Reason, ...]] = {}
    for kind, node in zip(kinds(storage), storage.steps, strict=True):
        reasons.about(node.name, node.op)
        if kind in known:
            reasons.again(told[kind])
            continue
        known[kind] = grid_for(node, storage, aims[SPECS[node.op].cost.tiles in _PRODUCTS])
        told[kind] = reasons.here()
    return [known[kind] for kind in kinds(storage)]


def _granules(node: Node) -> tuple[int, ...]:
    """The multiples at which each axis of a product's output may be cut. Image rows are whole, unless there are hardly any."""
    shape = node.output.shape
    rank, evaluate = len(shape), tile_cost.of(node)
    lead = [1] * (rank - 2)
    if isinstance(evaluate, tile_cost.Product):
        pairs = 2 if evaluate.strassen else 1  # of rows, of panels
        return (*lead, pairs * ROWS, pairs * PANEL)
    if isinstance(evaluate, tile_cost.Winograd):
        lead[1] = PANEL
        return (*lead, evaluate.blocks.sides[0], _blocks_across(_images(shape), evaluate.blocks))
    lead[1] = _channels(node)
    return (*lead, 1, _width_granule(_images(shape)))


def _channels(node: Node) -> int:
    """A convolution's outputs that are computed together: whole groups, or panels."""
    groups = node.attrs.get("groups", 1)
    outputs: int = node.output.shape[1] // groups
    if groups == 1 or outputs % PANEL == 0:
        return PANEL
    return outputs if outputs > PANEL else outputs * max(1, PANEL // outputs)


def _whole(shape: Sequence[int]) -> Grid:
    cuts = tuple(np.array([0, d], np.int64) for d in shape[:TILE_AXES])
    return Grid(tuple(shape), cuts, tuple(range(len(cuts))))


def grid_for(node: Node, storage: Storage, aim: Aim) -> Grid:
    """The grid of a node; empty outputs have no tiles, OPAQUE nodes exactly one."""
    shape = node.output.shape
    if node.op == OPAQUE:
        reasons.tell(lambda: Reason("tiles", "1 tile", "no kernel computes it, and an opaque node is not cut"))
        return _whole(shape)
    if 0 in shape:
        reasons.tell(lambda: Reason("tiles", "no tiles", "the output is empty"))
        cuts = tuple(np.zeros(1, np.int64) for _ in shape[:TILE_AXES])
        return Grid(shape, cuts, tuple(range(len(cuts))))
    cut = _BY_MODEL.get(SPECS[node.op].cost.tiles)
    if cut is not None:
        return cut(node, aim)
    return _by_layout(node, storage.refs[node.output].strides, _runs_of_inputs(node, storage), aim)


def _runs_of_inputs(node: Node, storage: Storage) -> frozenset[int]:
    """Axes of an element-wise node's output along which an input is contiguous: its cache lines, too, belong to one tile."""
    if node.op not in ELEMENTWISE:
        return frozenset()
    shape = node.output.shape
    same = [t for t in node.inputs if t is not None and not t.is_const and t.shape == shape]
    return frozenset(a for t in same for a, stride in enumerate(storage.refs[t].strides) if stride == 1 and shape[a] > 1)


def _by_layout(node: Node, strides: Sequence[int], runs: frozenset[int], aim: Aim) -> Grid:
    shape = node.output.shape
    whole_ns = tile_cost.whole_ns(node)
    parts = min(aim.tiles or round(max(op_cost.wanted_tiles(whole_ns, aim.workers, aim.tail), whole_ns / aim.longest)), MAX_TILES)
    line = max(1, 64 // item_bytes(node.output))
    order = [a for a in st.order_of(shape, strides) if a < TILE_AXES]
    spec = SPECS[node.op]
    fixed = spec.whole_axes(node)
    cuts = {a: np.array([0, shape[a]], np.int64) for a in order}
    for axis in order:
        if parts <= 1:
            break
        if axis in fixed or shape[axis] == 1:
            continue
        granule = line if strides[axis] == 1 or axis in runs else 1
        if granule > 1:
            granule *= spec.run_lines
        if aim.halves and granule == 1 and shape[axis] >= 2 * FEWEST_ROWS and shape[axis] >= ROWS * parts > ROWS:
            granule, parts = ROWS, -(-parts // 2) * 2  # no tile across the middle: see `_halved`
        if granule > 1 and shape[axis] < 2 * granule:
            continue
        cuts[axis] = split(shape[axis], parts, granule)
        parts = -(-parts // (len(cuts[axis]) - 1))
    grid = Grid(shape, tuple(cuts[a] for a in sorted(cuts)), tuple(order))
    reasons.tell(lambda: _by_length(grid, whole_ns * 1e-6, aim.workers))
    return grid


def _by_length(grid: Grid, whole_ms: float, workers: int) -> Reason:
    """Why a node that is cut by its layout has these tiles."""
    if grid.n > 1:
        ms = whole_ms * -(-grid.n // workers) / grid.n
        tried = (Tried("1 tile", "other workers would wait for it", whole_ms),)
        return Reason("tiles", described(grid), "long runs of memory, cut along the outermost axes", ms, "all cores", tried)
    rule = "it is too short to be cut, or its kernel needs whole axes"
    return Reason("tiles", described(grid), rule, whole_ms, "all cores", (Tried("several tiles", rule),))


def described(grid: Grid) -> str:
    """The number of tiles, and the sides of the largest."""
    return _described(grid.n, [int(np.diff(cuts).max(initial=0)) for cuts in grid.cuts])


def _described(n: int, sides: Sequence[int]) -> str:
    return f"{count(n, 'tile')} of {'×'.join(map(str, sides))}"


def _in_order(sides: Sequence[int]) -> list[int]:
    """Sides of batch, rows, columns, channels in the order of axes; others have it."""
    return [sides[0], sides[3], *sides[1:3]] if len(sides) == 4 else [*sides]


def _blocks(dim: int, granule: int) -> int:
    return -(-dim // granule)


@lru_cache(maxsize=4096)
def _parts(blocks: int) -> npt.NDArray[np.int64]:
    """Candidate numbers of parts of an axis of `blocks` blocks."""
    out = {1, blocks} | {n for k in range(13) for n in (2**k, 3 * 2**k) if n < blocks}
    out |= {-(-blocks // k) for k in range(1, 9)}
    return np.array(sorted(n for n in out if n <= min(blocks, MAX_TILES)) or [1], np.int64)


@lru_cache(maxsize=1024)
def _mesh(blocks: tuple[int, ...]) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
    """All combinations of parts of axes of `blocks` blocks, a vector an axis, and the numbers of tiles."""
    mesh = [m.ravel() for m in np.meshgrid(*map(_parts, blocks), indexing="ij")]
    return mesh, np.prod(mesh, axis=0)


def _best(rows: Sequence[tuple[int, int]], columns: tuple[int, int], evaluate: TileCost, aim: Aim) -> tuple[int, ...]:
    """Numbers of parts per axis, (rows …, columns), that finish soonest, or make `aim.tiles`, of those whose tiles are short enough.
    `rows`, `columns`: (dimension, granule)."""
    axes = [*rows, columns]
    blocks = tuple([_blocks(d, g) for d, g in axes])
    mesh, tiles = _mesh(blocks)
    sizes = [np.minimum(-(-n // m) * g, d) for n, m, (d, g) in zip(blocks, mesh, axes, strict=True)]
    ns = evaluate(sizes) + op_cost.rates().tile_ns
    total = tiles * ns / aim.workers + aim.tail * ns
    total[tiles > MAX_TILES] = np.inf
    least = ns[tiles <= MAX_TILES].min()
    total[ns > max(aim.longest, least)] = np.inf
    if aim.tiles is not None:
        off = np.abs(np.log(tiles / aim.tiles))
        total[off > off.min() + ABOUT] = np.inf
    k = int(np.argmin(total))
    reasons.tell(lambda: _least(k, total, [_described(n, _in_order(sides)) for n, *sides in zip(tiles.tolist(), *sizes, strict=True)]))
    return tuple(int(m[k]) for m in mesh)


def _least(k: int, total: npt.NDArray[np.float64], ways: Sequence[str]) -> Reason:
    """Why the k-th way to cut a node was taken, not those that are next. `total`: nanoseconds, infinite for what no limit allows."""
    order = [int(i) for i in np.argsort(total, kind="stable") if i != k]
    tried = [Tried(ways[i], f"ends {total[i] / total[k] - 1:.1%} later", total[i] * 1e-6) for i in order[:SHOWN] if np.isfinite(total[i])]
    if order and not np.isfinite(total[order[-1]]):
        tried.append(Tried(ways[order[-1]], "its tiles are too many, or take too long"))
    return Reason("tiles", ways[k], "least time" if order else "it cannot be cut", total[k] * 1e-6, "all cores", tuple(tried))


@_remembered
def _gemm_parts(rows: tuple[int, int], n: int, evaluate: tile_cost.Product, aim: Aim) -> tuple[int, ...]:
    granule = 2 if evaluate.strassen else 1  # pairs of rows, pairs of panels
    return _best([(rows[0], 1), (rows[1], granule * ROWS)], (n, granule * PANEL), evaluate, aim)


FEWEST_ROWS = 48
"""Rows for which a weight may be read once more."""
MOST_ROWS = 384
"""With more rows an operator takes long beside its last tiles."""


def _halved(rows: Sequence[int], weights: int) -> int | None:
    """The row axis (batch or tokens) that is cut into two halves that follow each other, each with all columns. The nodes after the first
    half (a normalisation and the next product need whole rows) then run while other workers finish the second. None: large weights should
    be read once."""
    if not 2 * FEWEST_ROWS <= rows[0] * rows[1] <= MOST_ROWS or 4 * weights > cached_weights():
        return None
    if rows[0] > 1:
        return 0
    return 1


def _gemm(node: Node, aim: Aim) -> Grid:
    shape = node.output.shape
    a, evaluate = node.inputs[0], tile_cost.of(node)
    assert a is not None
    assert isinstance(evaluate, tile_cost.Product)
    rank = len(shape)
    lead = shape[: rank - 2]
    weights, activations = a.shape[-1] * shape[-1], a.size
    packed = is_packed(node, 1)
    rows = [prod(lead), shape[-2]]
    halved = _halved(rows, int(weights * evaluate.weight_bytes) // 4) if packed and aim.halves else None
    if halved is not None:
        rows[halved] = -(-rows[halved] // 2)
    parts = list(_gemm_parts((rows[0], rows[1]), shape[-1], evaluate, aim))
    if halved is not None:
        parts[halved] *= 2
    cuts: list[npt.NDArray[np.int64]] = []
    left = parts[0]
    for d in lead[:TILE_AXES]:
        cuts.append(split(d, left))
        left = -(-left // (len(cuts[-1]) - 1))
    granules = _granules(node)
    for axis, n in ((rank - 2, parts[1]), (rank - 1, parts[2])):
        if axis < TILE_AXES:
            cuts.append(split(shape[axis], n, granules[axis]))
    m_parts, n_parts = prod(len(c) - 1 for c in cuts[: rank - 1]), len(cuts[-1]) - 1
    axes = list(range(len(cuts)))
    if len(cuts) == rank and halved is None and not evaluate.batched and weights + activations * n_parts < activations + weights * m_parts:
        axes = [rank - 1, *axes[:-1]]  # a panel of weights stays in the cache while the rows pass
    grid = Grid(shape, tuple(cuts), tuple(axes))
    if halved is not None:
        tried = (Tried("both halves of rows together", "what comes next would wait for all rows"),)
        reasons.tell(lambda: Reason("tiles", described(grid), "one half of the rows after the other, each cut like this", tried=tried))
    return grid


@_remembered
def _conv_parts(shape: tuple[int, ...], granule: int, evaluate: tile_cost.Convolution, aim: Aim, whole: bool) -> tuple[int, ...]:
    """`whole`: image rows always are."""
    batch, outputs, height, width = shape
    return _best([(batch, 1), (height, 1), (width, width if whole else _width_granule(shape))], (outputs, granule), evaluate, aim)


def _width_granule(shape: Sequence[int]) -> int:
    """Image rows are whole, unless there are hardly any (1-D convolutions)."""
    return shape[3] if shape[2] >= 4 else ROWS


def _images(shape: Sequence[int]) -> tuple[int, ...]:
    """A volume is a batch of images to those that choose parts."""
    return shape[0] * prod(shape[2:-2]), shape[1], shape[-2], shape[-1]


def _image_grid(shape: Sequence[int], parts: Sequence[int], granules: tuple[int, int, int], channels_first: bool) -> Grid:
    """The grid of `parts` parts of (batch, rows, columns, channels), the latter three cut at multiples of `granules`. The columns of a
    volume are one axis too many to be cut."""
    rows, columns, channels = granules
    cuts = [split(shape[0], parts[0]), split(shape[1], parts[3], channels), split(shape[-2], parts[1], rows)]
    if len(shape) == 5:
        cuts.insert(2, split(shape[2], -(-parts[0] // (len(cuts[0]) - 1))))
    else:
        cuts.append(split(shape[3], parts[2], columns))
    return Grid(tuple(shape), tuple(cuts), (1, 0, 2, 3) if channels_first else (0, 2, 3, 1))


def _conv(node: Node, aim: Aim) -> Grid:
    shape = node.output.shape
    x = node.inputs[0]
    assert x is not None
    granule = _channels(node)
    evaluate = tile_cost.of(node)
    assert isinstance(evaluate, tile_cost.Convolution)
    images = _images(shape)
    whole = len(shape) == 5
    parts = _conv_parts(images, granule, evaluate, aim, whole)
    weights, activations = depth(node.attrs)[0] * evaluate.channels * prod(evaluate.kernel) * shape[1], x.size
    pixel_parts, channel_parts = parts[0] * parts[1] * parts[2], len(split(shape[1], parts[3], granule)) - 1
    channels_first = weights + activations * channel_parts < activations + weights * pixel_parts
    return _image_grid(shape, parts, (1, _width_granule(images), granule), channels_first)


@_remembered
def _winograd_parts(shape: tuple[int, ...], evaluate: tile_cost.Winograd, aim: Aim, whole: bool = False) -> tuple[int, ...]:
    """`whole`: image rows always are."""
    batch, outputs, height, width = shape
    rows, columns = evaluate.blocks.sides[0], max(width, evaluate.blocks.sides[1]) if whole else _blocks_across(shape, evaluate.blocks)
    return _best([(batch, 1), (height, rows), (width, columns)], (outputs, PANEL), evaluate, aim)


def _blocks_across(shape: Sequence[int], blocks: Blocks) -> int:
    """Image rows are whole, unless there are hardly any."""
    return max(shape[3], blocks.sides[1]) if shape[2] >= 4 * blocks.sides[0] or shape[3] < ROWS * blocks.sides[1] else blocks.sides[1]


def _winograd(node: Node, aim: Aim) -> Grid:
    """Rows of whole blocks. Cutting channels repeats the transform of the input on each worker, cutting rows reads all weights again."""
    shape = node.output.shape
    evaluate = tile_cost.of(node, aim.workers)
    assert isinstance(evaluate, tile_cost.Winograd)
    blocks = evaluate.blocks
    images = _images(shape)
    parts = _winograd_parts(images, evaluate, aim, len(shape) == 5)
    channel_parts = len(split(shape[1], parts[3], PANEL)) - 1
    channels_first = evaluate.channels_first(np.array([parts[0] * parts[1] * parts[2]]), np.array([channel_parts]))
    return _image_grid(shape, parts, (blocks.sides[0], _blocks_across(images, blocks), PANEL), bool(channels_first[0]))


@_remembered
def _stack_parts(shape: tuple[int, ...], evaluate: tile_cost.Stack, aim: Aim) -> tuple[int, ...]:
    batch, outputs, height, width = shape
    return _best([(batch, 1), (height, 1), (width, _width_granule(shape))], (outputs, PANEL), evaluate, aim)


def _stack(node: Node, aim: Aim) -> Grid:
    """Cutting rows computes those of the wide tensor again that two tiles see, cutting channels reads all of the input again."""
    shape = node.output.shape
    evaluate = tile_cost.of(node)
    assert isinstance(evaluate, tile_cost.Stack)
    parts = _stack_parts(shape, evaluate, aim)
    return _image_grid(shape, parts, (1, _width_granule(shape), PANEL), parts[0] * parts[1] * parts[2] == 1)


def _rolling(node: Node, aim: Aim) -> Grid:
    """Images and groups of channels first: cutting rows computes those again that the windows of two tiles see."""
    batch, channels, height, width = shape = node.output.shape
    evaluate = tile_cost.of(node)
    assert isinstance(evaluate, tile_cost.Rolling)
    parts = _rolling_parts((batch, channels, height), evaluate, aim)
    cuts = (split(batch, parts[0]), split(channels, parts[1], LINE), split(height, parts[2]), np.array([0, width], np.int64))
    return Grid(shape, cuts, (0, 1, 2, 3))


@_remembered
def _rolling_parts(sides: tuple[int, int, int], evaluate: tile_cost.Rolling, aim: Aim) -> tuple[int, ...]:
    batch, channels, height = sides
    return _best([(batch, 1), (channels, LINE)], (height, 1), evaluate, aim)


ATTENTION_ROWS = 48
"""Cuts of rows that no kernel's groups of rows straddle."""
ATTENTION_MOST = 768
"""Most rows of a head in a tile: their sums stay in the cache."""


def _attention(node: Node, aim: Aim) -> Grid:
    """Whole heads first: a head's keys and values are packed once a tile."""
    shape = node.output.shape
    rank, rows, evaluate = len(shape), shape[-2], tile_cost.of(node)
    assert isinstance(evaluate, tile_cost.Attention)
    parts = _attention_parts(prod(shape[:-2]), rows, shape[-1], evaluate, aim)
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


@_remembered
def _attention_parts(heads: int, rows: int, columns: int, evaluate: tile_cost.Attention, aim: Aim) -> tuple[int, ...]:
    return _best([(heads, 1), (rows, ATTENTION_ROWS)], (columns, columns), evaluate, aim)


def _recurrent(node: Node, aim: Aim) -> Grid:
    """Rows of the batch; of a single step, units too, if their gates need no others of the same step. Steps follow each other in a tile."""
    _, _, batch, hidden = shape = node.output.shape
    evaluate = tile_cost.of(node, aim.workers)
    assert isinstance(evaluate, tile_cost.Recurrence)
    apart = recurrent_steps(node) == 1 and node.attrs.get("form") != "reset first"
    parts = _recurrent_parts(batch, (hidden, UNITS if apart else hidden), evaluate, aim)
    whole = [np.array([0, d], np.int64) for d in shape[:2]]
    cuts = (*whole, split(batch, parts[0]), split(hidden, parts[1], UNITS))
    return Grid(shape, cuts, (0, 1, 2, 3))


@_remembered
def _recurrent_parts(batch: int, units: tuple[int, int], evaluate: tile_cost.Recurrence, aim: Aim) -> tuple[int, ...]:
    return _best([(batch, 1)], units, evaluate, aim)


_BY_MODEL: Final[Mapping[TileModel, Callable[[Node, Aim], Grid]]] = {
    TileModel.PRODUCT: _gemm,
    TileModel.CONVOLUTION: _conv,
    TileModel.WINOGRAD: _winograd,
    TileModel.STACK: _stack,
    TileModel.ROLLING: _rolling,
    TileModel.ATTENTION: _attention,
    TileModel.RECURRENCE: _recurrent,
}
"""All others are cut by the layout of their output."""
