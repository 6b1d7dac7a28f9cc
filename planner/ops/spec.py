"""The facts about a kernel: one `OpSpec`, in the file of its family, beside the functions that it names.

`table.SPECS` collects them. Outside this folder only lowering and passes name kernels, because they make them; all others ask a kernel's
spec. Functions of a spec see kernel-level nodes (`aspen_mp.planner.ir.graph`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region
from aspen_mp.planner.ops.call import Call
from aspen_mp.planner.ops.params import Param

OPAQUE: Final = "OPAQUE"
"""The op of a node whose sub-graph runs through the fallback: one tile, no parameters."""
COPY: Final = "COPY"
"""The op that moves a tensor to another place, or into another order."""
STACKS: Final = ("PWDW", "STACK")
"""Ops that run several layers of a network depth first."""
SILENT: Final = ("JOIN", "END")
"""Ops of plans that no node stands for and no kernel runs: joins, which keep edges few, and the end of a request."""


class Kind(Enum):
    """The way in which a kernel treats elements, where other rooms treat kernels alike by that."""

    OTHER = auto()
    ELEMENTWISE = auto()
    """An element of the output comes of one element of each input, which are broadcast as numpy does."""
    PRODUCT = auto()
    """Rows of input 0 are multiplied with the columns of a matrix."""
    WINDOWED = auto()
    """A window slides over an image, and ends where the image does."""


class Seen(Enum):
    """Shape and strides of an input as a kernel sees them. Broadcast axes of one element have the length that the kernel expects and stride
    0."""

    AS_IS = auto()
    """Its own shape."""
    OUTPUT = auto()
    """The output's shape."""
    MATRICES = auto()
    """The output's leading axes, and its own last two."""
    SCORES = auto()
    """The output's axes, the last of which counts the rows of input 1."""


class Layout(Enum):
    """The order of axes in which a kernel likes to write its output."""

    ROW_MAJOR = auto()
    ANY = auto()
    """Row-major, but other strides are as good."""
    FOLLOWS = auto()
    """That of the main input."""
    SPREADS = auto()
    """That of the main input, and where a neighbour wishes for channels last, the wish goes on to the others."""
    CHANNELS_LAST = auto()
    """Channels last, for images; its main input should be so, too."""
    LINES = auto()
    """Channels last where channels are not few, because it reads whole lines of them, anywhere in the image; its output may lie in any
    order."""


class TileModel(Enum):
    """The cost of a tile by its sides, and so how an output is cut (`cost/tile_cost.py`, `tiling/policy.py`)."""

    ELEMENTS = auto()
    """Every element costs the same."""
    PRODUCT = auto()
    CONVOLUTION = auto()
    WINOGRAD = auto()
    STACK = auto()
    ROLLING = auto()
    ATTENTION = auto()
    RECURRENCE = auto()


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a kernel. `role`: the same for the same thing in all kernels; `about`: its shape and meaning, where the role does not say
    that. `packed`: a weight in panels, read as one run of memory: always, or where the attribute of that name says so. Such a weight is
    seen as it is. `halves`: its values may be stored as bf16 instead of f32."""

    role: str
    about: str = ""
    optional: bool = False
    seen: Seen = Seen.AS_IS
    packed: bool | str = False
    halves: bool = False

    def is_packed(self, node: Node) -> bool:
        """Whether this input of a node is a packed weight."""
        return bool(node.attrs[self.packed]) if isinstance(self.packed, str) else self.packed


PLAIN_NS: Final = 0.05
"""An element of a kernel that does a few instructions for each."""


def elements(node: Node) -> float:
    """One operation for each element of the output."""
    return float(node.output.size)


def inputs(node: Node) -> float:
    """One operation for each element of the main input."""
    x = node.inputs[0]
    return float(x.size) if x is not None else 0.0


def _plain(node: Node) -> float:
    return PLAIN_NS


def each(ns: float) -> Callable[[Node], float]:
    """The same figure for every node."""
    return lambda node: ns


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost model's facts about a kernel (`cost/op_cost.py`). Results never depend on it.

    `flops`: operations of a node; multiply-adds count two, transforms of Winograd's algorithm none. `element_ns`: nanoseconds of one of
    them on one core with all data at hand, without the activation. `ns(node, flops)`: the same of a node, where that is not the product of
    both. `tiles`: the model of tiles. `item`: bytes of a factor; multiply-adds are faster by as much as it is below four.
    `unpacked`: the time in which stored weights become floats first, in rows of the product. `residual_ns`: a residual's time for each
    element of a matrix kernel's output. `input_ns`: the time of an element of the input each time it is read. `hides`: weights come from
    memory behind the arithmetic; else the time of memory comes on top. `picks`: it reads of its inputs no more than it writes. `reads`:
    bytes of activations that it reads, where those are not its inputs. `scratch`: upper bound of the scratch bytes of any tile; 0 where
    there is none, or where the tile decides. `variant`: of a kernel of which calibrations know several."""

    flops: Callable[[Node], float] = elements
    element_ns: Callable[[Node], float] = _plain
    ns: Callable[[Node, float], float] | None = None
    tiles: TileModel = TileModel.ELEMENTS
    item: int = 4
    unpacked: Callable[[Node], float] | None = None
    residual_ns: float = 0.0
    input_ns: float = 0.0
    hides: bool = False
    picks: bool = False
    reads: Callable[[Node], float] | None = None
    scratch: Callable[[Node], int] = lambda node: 0
    variant: Callable[[Node], str] | None = None


RegionMap = Callable[[Node, int, Shape, Boxes, Boxes], Region]
"""(node, number of an input, its shape, boxes of the output) → the input's region for the boxes, see `table.input_region`."""
Axes = frozenset[int]
NO_AXES: Axes = frozenset()


def along(node: Node) -> Axes:
    """The axis that the attribute says."""
    return frozenset({node.attrs["axis"]})


def last_of(*axes: int) -> Callable[[Node], Axes]:
    """The same axes for every node."""
    return lambda node: frozenset(axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """All that the planner knows of a kernel. `inputs`, `params`: in the kernel's order, see `workers/kernels/kernel.h`. `outputs`: how
    many; 0: any number. `partial`: a part of a tile gives all outputs that a request needs which runs parts only.

    `region`: which part of an input a part of the output needs. `values`: the same for what exact arithmetic would need, where rounding
    errors depend on more; None: as `region`. `checks`: raises `Misfit` unless a call stays within its operands; None
    where there is no kernel. `layout`: of its output. `planar`: whether an image is as good to it where the pixels of a row lie side by
    side: then it SPREADS, whatever `layout` says. `gathers`: with fewer channels of input a group, the kernel copies its input anyway,
    whatever the strides. `read_again`: an image is copied for its channels to lie side by side where it has fewer elements than this
    multiple of the output. A copy costs as much as that many results then save. `whole_axes`: axes of the output that no tile cuts, because
    tiles would repeat work. `run_lines`: cache lines that a tile is wide at least along the axis of unit stride. `batch_rank`: fewest axes
    of an output of which the first may be cut into slices of the batch; 0: never. `by_value`: regions depend on the values of constant
    inputs. `halves`: values of the output may be stored as bf16 instead of f32."""

    name: str
    region: RegionMap
    values: RegionMap | None = None
    inputs: tuple[Input, ...] = ()
    params: tuple[Param, ...] = ()
    outputs: int = 1
    partial: bool = False
    checks: Callable[[Call], None] | None = None
    kind: Kind = Kind.OTHER
    layout: Layout = Layout.ROW_MAJOR
    planar: Callable[[Node], bool] = lambda node: False
    gathers: int = 0
    read_again: int = 0
    whole_axes: Callable[[Node], Axes] = lambda node: NO_AXES
    run_lines: int = 1
    batch_rank: int = 0
    by_value: bool = False
    halves: bool = False
    cost: Cost = field(default_factory=Cost)
