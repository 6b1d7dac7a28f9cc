"""A plan: what workers need to run one model on one set of input shapes, or on those of a shape bucket, as the arrays of a plan segment
(``shm/protocol/layout.h``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost.cross_core_traffic import Flow
from aspen_mp.planner.cost.scratch_reuse import Made
from aspen_mp.planner.plan.shape_bucket import Extents
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import KERNEL_BY_CODE, LAYOUT_HASH, LIMITS, NUMBER, OP, OPERAND, PLAN_HEADER, ROLES, SPACES, TILE, VALUE

VERSION = 1
MAGIC = int.from_bytes(b"ASPENMP\0", "little")
ALIGN = 64
SEGMENT_FIRST = 64
"""First free byte of weight and arena segments: their magic lies before it."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a plan: where it lies in a request's region, contiguous and row-major. ``dtype`` is numpy's name, or "object"
    for a serialised value; then ``shape`` is (capacity,) in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightItem:
    """A constant of the model's weights as the kernels want it; ``write`` fills a buffer of ``nbytes`` bytes."""

    key: str
    nbytes: int
    write: Callable[[memoryview], None]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A layer of a stack. `shape`: of what it makes."""

    kernel: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StackInfo:
    """Layers that an op runs depth first, in BrainSlug's terms a sequence of a stack. `number`: of the stack; sequences that read each
    other have the same. `saved_bytes`: of activations that are not written to memory. `apart_ms`: what the layers take one after the
    other by the cost model, `together_ms`: this way; each in one tile on one core."""

    number: int
    steps: tuple[StepInfo, ...]
    saved_bytes: float
    apart_ms: float
    together_ms: float


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What `plan --explain` says about an op."""

    name: str
    op: str
    kernel: str
    tiles: int
    tile_shape: tuple[int, ...]
    flops: float
    bytes: float
    predicted_ms: float
    opaque: bool
    batch_slice: tuple[int, int] = (0, 1)
    """Of the batch, and how many there are."""
    stack: StackInfo | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Of the tiles [n], f64: `ns` alone on one core, `bytes` that go to memory behind the caches, `far`: ns more for each byte that they
    read of each other and another core has written. What only simulations ask for: `flow()`, what they read of each other, and `made()`,
    what they find in scratch. `again()`: the same with the rates that are in use then."""

    ns: Array
    bytes: Array
    far: float
    flow: Callable[[], Flow]
    made: Callable[[], Made]
    again: Callable[[], Costs] | None = None


@dataclass(slots=True)
class Plan:
    """The arrays of a plan segment, and what surrounds them.

    Usage: `place_weights` once (a directory from weight key to (weight segment number, offset)), then `segment` or `write`.
    `weight_uses`: rows (operand, item of `weights`, bytes into the item). The plan of a shape bucket serves all extents from `least` to
    `most`: its arrays are those of `most`, and `values` and `numbers` say how they follow from the extents (`extents.at`); all four are
    empty in any other. `parts`: tiles of which a request may run a part. `kept_at`: the place of the word
    in its region that says whether activations are trusted. Both are 0 in a plan whose requests run whole (`tiling.reach`).
    `costs` stay in this process: see `tile_costs`.
    """

    name: str
    ops: Array
    operands: Array
    params: Array
    tiles: Array
    children: Array
    parent_counts: Array
    parent_begin: Array
    parents: Array
    initial: Array
    consts: bytes
    blobs: bytes
    activation_bytes: int
    request_bytes: int
    scratch_bytes: int
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    weights: list[WeightItem] = field(default_factory=list)
    weight_uses: Array = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    weight_segments: list[int] = field(default_factory=list)
    info: list[OpInfo] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    values: Array = field(default_factory=lambda: np.zeros(0, VALUE))
    numbers: Array = field(default_factory=lambda: np.zeros(0, NUMBER))
    least: Extents = ()
    most: Extents = ()
    memory: int = 0
    memory_cores: int = 0
    parts: int = 0
    kept_at: int = 0
    costs: Costs | None = None

    def tile_costs(self) -> Costs:
        """As the cost model sees the tiles where the plan has just been made (`costs`); a plan from a file or a segment has averages
        over its ops, and no flow."""
        if self.costs is not None:
            return self.costs
        ns, moved = (self.ops[name][self.tiles["op"]].astype(np.float64) for name in ("cost_ns", "cold_bytes"))
        return Costs(ns, moved, 0.0, Flow.none, Made.none)

    def predicted_anew(self) -> Plan:
        """Return the same plan with what it is expected to take (`costs`, `OpInfo.predicted_ms`) by the rates in use now; a plan from a
        file as it is."""
        if self.costs is None or self.costs.again is None:
            return self
        costs = self.costs.again()
        ns = np.bincount(self.tiles["op"], costs.ns, len(self.ops))
        info = [replace(row, predicted_ms=float(ns[k]) * 1e-6) for k, row in enumerate(self.info)]
        return replace(self, costs=costs, info=info)

    @property
    def n_tiles(self) -> int:
        return len(self.tiles)

    @property
    def end_tile(self) -> int:
        return len(self.tiles) - 1

    @property
    def weights_bytes(self) -> int:
        return sum(aligned(w.nbytes) for w in self.weights)

    def default_directory(self) -> tuple[dict[str, tuple[int, int]], int]:
        """All weights in one segment, in the order in which layers use them: (directory, bytes of the segment)."""
        directory, at = {}, SEGMENT_FIRST
        for item in self.weights:
            directory[item.key] = (0, at)
            at += aligned(item.nbytes)
        return directory, at

    def place_weights(self, directory: Mapping[str, tuple[int, int]]) -> None:
        """Points every operand that reads a weight to (weight segment of this plan, byte offset). PlanError: a key is missing or a number
        is too large."""
        ends = [0] * LIMITS["weights"]
        places = np.zeros((max(len(self.weights), 1), 2), np.int64)
        for k, item in enumerate(self.weights):
            if item.key not in directory:
                raise PlanError(f"weights: no place for {item.key!r}")
            segment, offset = directory[item.key]
            if not 0 <= segment < LIMITS["weights"]:
                raise PlanError(f"weights[{item.key!r}]: segment {segment}, at most {LIMITS['weights'] - 1}")
            places[k] = segment, offset
            ends[segment] = max(ends[segment], offset + item.nbytes)
        operand, item_number, within = self.weight_uses.T
        self.operands["space"][operand] = SPACES["WEIGHTS"] + places[item_number, 0]
        self.operands["offset"][operand] = places[item_number, 1] + within
        while ends and ends[-1] == 0:
            ends.pop()
        self.weight_segments = ends

    def arena_layout(self) -> dict[str, int]:
        """Offsets of an arena segment's parts and its size."""
        return arena_layout(self.n_tiles, self.activation_bytes)

    def header(self) -> Array:
        """The header, with the offsets of all arrays."""
        h = np.zeros((), PLAN_HEADER)
        h["magic"], h["layout"], h["role"], h["version"] = MAGIC, LAYOUT_HASH, ROLES["plan"], VERSION
        h["n_ops"], h["n_operands"], h["n_params"], h["n_tiles"] = len(self.ops), len(self.operands), len(self.params), self.n_tiles
        h["n_children"], h["n_initial"], h["n_weights"] = len(self.children), len(self.initial), len(self.weight_segments)
        h["end_tile"] = self.end_tile
        at = PLAN_HEADER.itemsize
        for name, array in self._arrays():
            at = aligned(at)
            h[name] = at
            at += len(array) if isinstance(array, bytes) else array.nbytes
        h["consts_bytes"], h["blobs_bytes"] = len(self.consts), len(self.blobs)
        h["n_values"], h["n_numbers"], h["n_extents"] = len(self.values), len(self.numbers), len(self.most)
        h["least"][: len(self.least)], h["most"][: len(self.most)] = self.least, self.most
        h["bytes"] = aligned(at)
        for name, value in self.arena_layout().items():
            h[name] = value
        h["request_bytes"], h["scratch_bytes"] = self.request_bytes, self.scratch_bytes
        h["memory"], h["memory_cores"] = self.memory, self.memory_cores
        h["n_parts"], h["request_kept"] = self.parts, self.kept_at
        h["arena_parts"] = int(self.operands["offset"][0]) if self.parts else 0
        h["weights_bytes"][: len(self.weight_segments)] = self.weight_segments
        return h

    def _arrays(self) -> Sequence[tuple[str, Array | bytes]]:
        return (
            ("ops", self.ops),
            ("operands", self.operands),
            ("params", self.params),
            ("tiles", self.tiles),
            ("children", self.children),
            ("parent_counts", self.parent_counts),
            ("parent_begin", self.parent_begin),
            ("parents", self.parents),
            ("initial", self.initial),
            ("consts", self.consts),
            ("blobs", self.blobs),
            ("values", self.values),
            ("numbers", self.numbers),
        )

    @property
    def nbytes(self) -> int:
        """Size of the plan segment."""
        return int(self.header()["bytes"])

    def write(self, out: memoryview) -> None:
        """Writes the plan segment into `out` (at least `nbytes` bytes)."""
        header = self.header()
        view = out.cast("B")
        view[: PLAN_HEADER.itemsize] = header.tobytes()
        for name, array in self._arrays():
            raw = array if isinstance(array, bytes) else array.tobytes()
            begin = int(header[name])
            view[begin : begin + len(raw)] = raw

    def segment(self) -> bytearray:
        """The plan segment as bytes."""
        out = bytearray(self.nbytes)
        self.write(memoryview(out))
        return out


def aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def arena_layout(n_tiles: int, activation_bytes: int) -> dict[str, int]:
    """As `Plan.arena_layout`."""
    counters = SEGMENT_FIRST
    executed = aligned(counters + 4 * n_tiles)
    nexts = aligned(executed + 4 * n_tiles)
    data = aligned(nexts + 8 * n_tiles)
    return {
        "arena_counters": counters,
        "arena_executed": executed,
        "arena_next": nexts,
        "arena_data": data,
        "arena_bytes": data + aligned(activation_bytes),
    }


def kernel_name(code: int) -> str:
    return KERNEL_BY_CODE[code].name


__all__ = ["NUMBER", "OP", "OPERAND", "TILE", "VALUE", "OpInfo", "Plan", "TensorInfo", "WeightItem"]
