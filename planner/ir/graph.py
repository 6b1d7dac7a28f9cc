"""The planner's intermediate representation: a graph of nodes over tensors of known shape.

Two levels share these classes. *ONNX level*: ``Node.op`` is an ONNX operator name, attributes are the ONNX ones. *Kernel level*, after
`aspen_mp.planner.lower`: ``Node.op`` is a kernel's name (``"GEMM"``, see `aspen_mp.shm.tables`), a view (``"view.…"``), ``"concat"`` or
``"OPAQUE"``. ``Node.attrs`` holds exactly the attributes that the kernel's parameters need. Views move no data:

- ``view.reshape``: the same elements in row-major order, another shape
- ``view.transpose``, ``perm``: ``out.shape[i] = in.shape[perm[i]]``
- ``view.slice``, ``starts``, ``steps`` (per axis, steps ≠ 0): ``out[i] = in[starts + i * steps]``
- ``view.expand``: numpy broadcasting to ``out.shape``
- ``concat``, ``axis``: inputs side by side; placed without copies where it can be

Some inputs have the rank of the output, and on each axis either its dimension or 1 (broadcast). They are those of element-wise nodes
(UNARY, BINARY, TERNARY, CAST, COPY), and the residual of convolutions. The others are scale and bias of NORM, bias and residual of GEMM,
and the leading axes of GEMM's A and B. A kernel's `OpSpec` lists its attributes (`aspen_mp.planner.ops.table`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]
VIEW_OPS = frozenset({"view.reshape", "view.transpose", "view.slice", "view.expand"})


@dataclass(frozen=True, slots=True)
class Stored:
    """How a constant is stored where it is quantised: (``values`` - ``zero``) * ``scale``, constants too. There is one scale and zero
    point, or one for each index of ``axis``. With ``block`` there is one for each other index and each block of that length along ``axis``.
    Without ``scale``: the constant has been widened from ``values``, which are of half precision."""

    values: Tensor
    scale: Tensor | None
    zero: Tensor | None
    axis: int = 0
    block: int = 0


@dataclass(eq=False, slots=True)
class Tensor:
    """A value of known shape and dtype. ``data`` is set for constants. ``dtype`` is ``object`` for values that are not plain tensors
    (strings, sequences): only OPAQUE nodes touch those.

    ``weight_key`` names a constant that comes from the model's weights (an initializer, or one folded or repacked from such). It is the
    same for every input shape. Such constants go to the model's weight segment, all others into the plan.

    ``stored``: of a constant that DequantizeLinear makes of others, or that has been widened. ``placed``: of integers that count on from a
    length that the model leaves open: nothing else is made of them once and for all.

    A constant has ``data``, or ``pack``: a function that writes the value into an array of this shape and dtype (C-contiguous). So weights
    are converted and packed once, straight into shared memory.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    data: npt.NDArray[Any] | None = None
    producer: Node | None = None
    weight_key: str | None = None
    pack: Callable[[npt.NDArray[Any]], None] | None = None
    stored: Stored | None = None
    placed: bool = False

    @property
    def is_const(self) -> bool:
        return self.data is not None or self.pack is not None

    def value(self) -> npt.NDArray[Any]:
        """The constant's value: a view where there is data, else computed afresh."""
        if self.data is not None:
            return self.data
        if self.pack is None:
            raise ValueError(f"{self.name} is not a constant")
        out = np.empty(self.shape, self.dtype)
        self.write(out)
        return out

    def write(self, out: npt.NDArray[Any]) -> None:
        """Writes the constant into `out`, of this shape and dtype."""
        if self.data is not None or self.pack is None:
            out[...] = self.value()
            return
        with np.errstate(all="ignore"):  # infinities and NaN are values like others; nobody reads numpy's warnings about them
            self.pack(out)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(eq=False, slots=True)
class Origin:
    """Where an ONNX-level node comes from: its NodeProto, the opset versions in force, and the names that its inputs have there. Values
    that sub-graphs capture follow the declared inputs, in ``names`` as in ``Node.inputs``."""

    proto: Any
    opsets: dict[str, int]
    names: tuple[str, ...]

    @property
    def version(self) -> int:
        return self.opsets.get(self.proto.domain if self.proto.domain != "ai.onnx" else "", 1)


@dataclass(eq=False, slots=True)
class Node:
    """One operation. ``inputs`` may hold ``None`` for missing optional inputs; ``name`` and ``onnx_op`` are shown in messages.
    ``batch_slice``: which slice of the batch it computes, of how many (`planner/tiling/batch_splitting.py`). Tiles are boxes of the first
    output. Other outputs have its rank. A tile writes the part of them in its box, or the first tile along an axis where they have one
    element."""

    op: str
    name: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    attrs: dict[str, Any] = field(default_factory=dict)
    onnx_op: str = ""
    source: Origin | None = None
    batch_slice: tuple[int, int] = (0, 1)

    @property
    def output(self) -> Tensor:
        return self.outputs[0]


@dataclass(eq=False, slots=True)
class Graph:
    """Nodes in topological order. Inputs and outputs keep the model's order and names. ``rounding``: the relative error that constants
    have because the model stores them in half precision."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    nodes: list[Node]
    rounding: float = 0.0

    def has(self, *ops: str) -> bool:
        """Whether any node is one of these."""
        return any(node.op in ops for node in self.nodes)

    def consumers(self) -> dict[Tensor, list[tuple[Node, int]]]:
        """For every tensor, the (node, input number) pairs that read it."""
        table: dict[Tensor, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for i, tensor in enumerate(node.inputs):
                if tensor is not None:
                    table.setdefault(tensor, []).append((node, i))
        return table

    def uses(self) -> dict[Tensor, int]:
        """How often each tensor is read, as an output of the graph once more."""
        counts = dict.fromkeys(self.outputs, 1)
        for node in self.nodes:
            for tensor in node.inputs:
                if tensor is not None:
                    counts[tensor] = counts.get(tensor, 0) + 1
        return counts

    def read_nodes(self) -> list[Node]:
        """The nodes of which anything is read, in their order."""
        read, found = set(self.outputs), []
        for node in reversed(self.nodes):
            if not node.outputs or any(t in read for t in node.outputs):
                found.append(node)
                read.update(t for t in node.inputs if t is not None)
        return found[::-1]

    def producers(self) -> dict[Tensor, Node]:
        """For every result, the node that gives it."""
        return {tensor: node for node in self.nodes for tensor in node.outputs}
