"""The specs of all kernels, and their answers for a node."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Node, Shape, Tensor
from aspen_mp.planner.ops import (
    attention,
    classical,
    convolutions,
    elementwise,
    movement,
    norms,
    products,
    recurrent,
    reductions,
    sampling,
    stacks,
    views,
)
from aspen_mp.planner.ops.boxes import Boxes, Region
from aspen_mp.planner.ops.call import Call
from aspen_mp.planner.ops.spec import Kind, OpSpec, Seen
from aspen_mp.planner.ops.streams import reach, thresholds

_FAMILIES = (
    products,
    attention,
    convolutions,
    stacks,
    elementwise,
    reductions,
    norms,
    movement,
    views,
    sampling,
    recurrent,
    classical,
    reach,
    thresholds,
)
SPECS: dict[str, OpSpec] = {spec.name: spec for family in _FAMILIES for spec in family.SPECS}
"""Specs by the op of kernel-level nodes."""
ELEMENTWISE = frozenset(spec.name for spec in SPECS.values() if spec.kind is Kind.ELEMENTWISE)


def params(node: Node) -> list[int]:
    """The parameters of a kernel-level node, as many as its kernel has."""
    return [word for param in SPECS[node.op].params for word in param.of(node.attrs)]


def is_packed(node: Node, i: int) -> bool:
    """Whether input `i` is a packed weight: its panels are read as one run of memory, also where the weight is not constant."""
    given = SPECS[node.op].inputs
    return i < len(given) and given[i].is_packed(node)


def seen(node: Node, i: int, x: Tensor, strides: Shape) -> tuple[Shape, Shape]:
    """Dims and strides that a kernel sees of its input `i`, see `Seen`."""
    given = SPECS[node.op].inputs
    how = given[i].seen if i < len(given) and not given[i].is_packed(node) else Seen.AS_IS
    if how is Seen.AS_IS:
        return x.shape, strides
    want = out = node.output.shape
    if how is Seen.MATRICES:
        want = (*out[:-2], *x.shape[-2:])
    elif how is Seen.SCORES:
        keys = node.inputs[1]
        assert keys is not None
        want = (*out[:-1], keys.shape[-2])
    return want, tuple(0 if d == 1 and w != 1 else s for d, w, s in zip(x.shape, want, strides, strict=True))


def input_region(node: Node, i: int, lo: Boxes, hi: Boxes) -> Region:
    """The region of input `i` of a kernel-level `node` that is needed before boxes [lo, hi) of its first output can be computed.

    This is the one place where an op says so: tile edges, halos of fused stacks and batch slices follow from it. A region is a box in the
    logical axes (ONNX order) of the input. Where it can be computed it is the smallest box around the elements read, and it is never less
    than them. A box with hi ≤ lo on any axis is empty: nothing is read.

    `lo`, `hi`: int64 [n, rank of the output], boxes within the output and not empty. Returns the same for the input: int64 [n, rank of the
    input], within the input. An OPAQUE node reads all of every input.
    """
    tensor = node.inputs[i]
    if tensor is None:
        raise ValueError(f"{node.name} has no input {i}")
    spec = SPECS.get(node.op)
    if spec is None:
        raise KeyError(f"{node.name}: no region map for {node.op}")
    return spec.region(node, i, tensor.shape, lo, hi)


def value_region(node: Node, i: int, lo: Boxes, hi: Boxes) -> Region:
    """As `input_region`, for what the values of the boxes depend on in exact arithmetic. Their rounding errors may depend on more."""
    spec, tensor = SPECS.get(node.op), node.inputs[i]
    if spec is None or spec.values is None or tensor is None:
        return input_region(node, i, lo, hi)
    return spec.values(node, i, tensor.shape, lo, hi)


def check_call(kernel: str, call: Call) -> None:
    """Raises `Misfit` unless a call of `kernel` with these operands stays within them."""
    spec = SPECS.get(kernel)
    if spec is not None and spec.checks is not None:
        spec.checks(call)
