"""Invariants of a graph after every pass. Off by default for speed; tests switch it on (`ENABLED`, or ASPEN_MP_VERIFY=1)."""

from __future__ import annotations

import os
from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.ops.call import Arg, Call, Misfit
from aspen_mp.planner.ops.spec import Kind
from aspen_mp.planner.ops.table import ELEMENTWISE, SPECS, check_call, input_region, params, seen
from aspen_mp.shm.tables import CODE_BY_NUMPY, KERNELS, NUMBERS

ENABLED = os.environ.get("ASPEN_MP_VERIFY", "") not in {"", "0"}


_BROADCAST = ELEMENTWISE | {"view.expand"}
_COMPARED = _BROADCAST | {"concat"} | {spec.name for spec in SPECS.values() if spec.kind is Kind.WINDOWED}
"""Ops whose operands' shapes `_kernel` has compared, so that no region can leave them; windows end where images do."""


class GraphError(AssertionError):
    """A pass has broken the graph: a defect of the planner, never of the model."""


def check(graph: Graph, after: str, *, kernel_level: bool) -> None:
    """Verifies `graph` when checks are on. `after` names the pass in messages."""
    if ENABLED:
        verify(graph, after, kernel_level=kernel_level)


def fits(node: Node) -> None:
    """Whether a kernel-level node's operands fit each other and its attributes, whoever made it; raises GraphError. Always on: lowering
    takes a model's word for shapes that nobody has compared."""
    _kernel(node, f"{node.op} {node.name!r}")


class Fitting:
    """`fits` for the nodes of a graph, whose layers repeat each other: of nodes that are alike in all that is looked at, one is."""

    def __init__(self) -> None:
        self._known: set[tuple[object, ...]] = set()

    def check(self, node: Node) -> None:
        given = tuple([None if t is None else (t.shape, t.dtype) for t in node.inputs])
        key = (node.op, tuple(node.attrs.items()), given, tuple([(t.shape, t.dtype) for t in node.outputs]))
        try:
            if key in self._known:
                return
        except TypeError:  # an attribute that is an array, say
            fits(node)
            return
        fits(node)
        if not SPECS[node.op].by_value or all(t is None or t.data is None for t in node.inputs):
            self._known.add(key)


def verify(graph: Graph, after: str, *, kernel_level: bool) -> None:
    """Topological order, one producer a tensor, consistent shapes and dtypes. Raises GraphError."""
    known: set[Tensor] = set(graph.inputs)
    for node in graph.nodes:
        where = f"after {after}: {node.op} {node.name!r}"
        for tensor in node.inputs:
            if tensor is not None and tensor not in known and not tensor.is_const:
                raise GraphError(f"{where} reads {tensor.name!r}, which nothing before it computes")
        for tensor in node.outputs:
            if tensor in known:
                raise GraphError(f"{where} computes {tensor.name!r} again")
            if tensor.producer is not node:
                raise GraphError(f"{where}: {tensor.name!r} names another producer")
            if tensor.is_const:
                raise GraphError(f"{where}: result {tensor.name!r} is a constant")
            known.add(tensor)
        for tensor in (*node.inputs, *node.outputs):
            if tensor is not None and tensor.data is not None and (tensor.data.shape != tensor.shape or tensor.data.dtype != tensor.dtype):
                raise GraphError(
                    f"{where}: constant {tensor.name!r} is {tensor.data.shape} {tensor.data.dtype}, not {tensor.shape} {tensor.dtype}"
                )
        if kernel_level:
            _kernel(node, where)
    for tensor in graph.outputs:
        if tensor not in known and not tensor.is_const:
            raise GraphError(f"after {after}: nothing computes output {tensor.name!r}")


def _kernel(node: Node, where: str) -> None:
    if node.op == "OPAQUE":
        if not isinstance(node.attrs.get("model"), bytes) or any(t is None for t in node.inputs):
            raise GraphError(f"{where}: incomplete")
        return
    shape = node.output.shape
    if len(node.outputs) != (SPECS[node.op].outputs or max(len(node.outputs), 1)):
        raise GraphError(f"{where}: {len(node.outputs)} outputs")
    for tensor in (*node.inputs, *node.outputs):
        if tensor is not None and (tensor.dtype not in CODE_BY_NUMPY or len(tensor.shape) > 8):
            raise GraphError(f"{where}: {tensor.name!r} is {list(tensor.shape)} {tensor.dtype}")
    numbers: list[int] = []
    if node.op in KERNELS:
        kernel, numbers = KERNELS[node.op], params(node)
        if kernel.n_params not in {len(numbers), NUMBERS["ANY_PARAMS"]} or not kernel.min_inputs <= len(node.inputs) <= kernel.max_inputs:
            raise GraphError(f"{where}: {len(numbers)} parameters, {len(node.inputs)} inputs")
    if node.op in _BROADCAST:
        for tensor in node.inputs:
            if (
                tensor is not None
                and tensor.shape != shape
                and (len(tensor.shape) != len(shape) or any(a not in (1, b) for a, b in zip(tensor.shape, shape, strict=True)))
            ):
                raise GraphError(f"{where}: {list(tensor.shape)} does not broadcast to {list(shape)}")
    elif node.op == "view.reshape":
        source = node.inputs[0]
        if source is None or prod(source.shape) != prod(shape):
            raise GraphError(f"{where}: changes the number of elements")
    elif node.op == "concat":
        parts, axis = [() if t is None else t.shape for t in node.inputs], node.attrs["axis"]
        if any(len(p) != len(shape) or p[:axis] != shape[:axis] or p[axis + 1 :] != shape[axis + 1 :] for p in parts):
            raise GraphError(f"{where}: {[list(p) for p in parts]} do not lie side by side along axis {axis} of {list(shape)}")
        if sum(p[axis] for p in parts) != shape[axis]:
            raise GraphError(f"{where}: its parts are not as long as {list(shape)}")
    elif node.op == "GATHER":
        x, index, axis = *(() if t is None else t.shape for t in node.inputs[:2]), node.attrs["axis"]
        if (*x[:axis], *index, *x[axis + 1 :]) != shape:
            raise GraphError(f"{where}: {list(shape)} does not come of taking {list(index)} from axis {axis} of {list(x)}")
    elif node.op == "ATTENTION":
        q, k, v = (() if t is None else t.shape for t in node.inputs[:3])
        if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
            raise GraphError(f"{where}: queries {list(q)}, keys {list(k)} and values {list(v)} do not fit each other")
    if node.op in KERNELS:
        _call(node, numbers, where)
    if prod(shape) and node.op not in _COMPARED:
        _regions(node, where)


def _call(node: Node, numbers: list[int], where: str) -> None:
    """The checks of the validator of plans for an op, before there is a plan: every operand contiguous, as storage makes those that must
    be."""
    args: list[Arg | None] = []
    for i, tensor in enumerate(node.inputs):
        if tensor is None:
            args.append(None)
            continue
        try:
            shape, _ = seen(node, i, tensor, tensor.shape)
        except ValueError:
            raise GraphError(f"{where}: input {i} of shape {list(tensor.shape)} has another rank than its kernel reads") from None
        args.append(Arg(CODE_BY_NUMPY[tensor.dtype], shape, True))
    try:
        out, *more = (Arg(CODE_BY_NUMPY[t.dtype], t.shape, True) for t in node.outputs)
        check_call(node.op, Call(out, args, numbers, more))
    except Misfit as misfit:
        what, value, bound = misfit.args
        raise GraphError(f"{where}: {what} is {value}, but must be {bound}") from None


def _regions(node: Node, where: str) -> None:
    """The whole output's region of every input lies within the input, which is how wrong attributes show."""
    hi = np.array([node.output.shape], np.int64)
    for i, tensor in enumerate(node.inputs):
        if tensor is not None:
            low, high = input_region(node, i, np.zeros_like(hi), hi)
            if (low < 0).any() or (high > np.array(tensor.shape, np.int64)).any():
                raise GraphError(f"{where}: region of input {i} leaves {list(tensor.shape)}: {low[0]}..{high[0]}")
