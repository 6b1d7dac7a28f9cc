"""Reductions, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import BOOL, F32, I64, Builder, NoKernel, axis_of, ints, one_float, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.registry import rule

_REDUCE = {
    "ReduceSum": "SUM",
    "ReduceMean": "MEAN",
    "ReduceMax": "MAX",
    "ReduceMin": "MIN",
    "ReduceProd": "PROD",
    "ReduceL1": "L1",
    "ReduceL2": "L2",
    "ReduceSumSquare": "SUM_SQUARE",
    "ReduceLogSum": "LOG_SUM",
    "ReduceLogSumExp": "LOG_SUM_EXP",
}
_LOGARITHMS = {"ReduceLogSum", "ReduceLogSumExp"}
_REDUCED = {"float32", "float64", "int32", "int64"}
LONG = 1 << 22
"""Elements that one output may be made of in one go. A tile that folds more takes milliseconds, and no other worker can help with it."""
PART = 1 << 18
"""How many of them a part takes at most where there are more."""
_IN_PARTS = {
    "SUM": ("SUM", "SUM"),
    "MEAN": ("MEAN", "MEAN"),
    "MAX": ("MAX", "MAX"),
    "MIN": ("MIN", "MIN"),
    "PROD": ("PROD", "PROD"),
    "L1": ("L1", "SUM"),
    "L2": ("L2", "L2"),
    "SUM_SQUARE": ("SUM_SQUARE", "SUM"),
    "LOG_SUM": ("SUM", "LOG_SUM"),
    "LOG_SUM_EXP": ("LOG_SUM_EXP", "LOG_SUM_EXP"),
}
"""By function: the reduction within a part, and that of the parts' results."""


@rule(*_REDUCE)
def _reduce(b: Builder, node: Node) -> Tensor:
    x, rank = data(node), len(data(node).shape)
    given = optional(node, 1)
    if rank == 0:  # whatever its axes are
        return _of_one(b, node, x)
    axes = list(node.attrs.get("axes") or []) if given is None else ints(given)
    if not axes:
        if node.attrs.get("noop_with_empty_axes", 0):
            return _of_one(b, node, x)
        axes = list(range(rank))
    axes = sorted({axis_of(a, rank) for a in axes})
    if x.size == 0:
        raise NoKernel("a tensor is empty")
    if all(x.shape[a] == 1 for a in axes):
        return b.reshape(_of_one(b, node, x), node.output.shape)
    dtype = x.dtype
    if node.op in _LOGARITHMS and dtype.kind in "iu":
        x = b.cast(x, np.dtype(np.float64))
        return b.reshape(b.cast(_in_parts(b, _REDUCE[node.op], x, axes), dtype), node.output.shape)
    if dtype.name not in _REDUCED:
        if node.op not in {"ReduceMax", "ReduceMin"} or dtype.itemsize > 2 or dtype.kind not in "iub":
            raise NoKernel(f"no kernel computes {dtype}")
        x = b.cast(x, np.dtype(np.int32))
    out = _in_parts(b, _REDUCE[node.op], x, axes)
    return b.reshape(b.cast(out, dtype), node.output.shape)


def _in_parts(b: Builder, opcode: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """A reduction that keeps its axes; in two steps where an output is made of more than LONG elements.

    Parts follow from the shape alone, so the order of sums, and with it the bits, do not depend on tiles."""
    axes = [a for a in axes if x.shape[a] > 1]
    long = prod(x.shape[a] for a in axes) > LONG
    if not long or (x.dtype.kind in "iu" and opcode in {"MEAN", "L2"}):  # whose steps would each round
        return b.reduce(opcode, x, axes)
    within, between = _IN_PARTS[opcode]
    axis = axes[0]
    if len(axes) > 1:
        return _in_parts(b, between, _in_parts(b, within, x, axes[1:]), [axis])
    n = x.shape[axis]
    whole = n // PART * PART
    parts = b.reshape(_piece(b, x, axis, 0, whole), (*x.shape[:axis], whole // PART, PART, *x.shape[axis + 1 :]))
    kept = (*x.shape[:axis], whole // PART, *x.shape[axis + 1 :])
    found = b.reshape(b.reduce(within, parts, [axis + 1]), kept)
    if whole == n:
        return _in_parts(b, between, found, [axis])
    if opcode == "MEAN":  # the last part is a shorter one: its mean counts for less
        scaled = b.binary("MUL", _in_parts(b, "SUM", found, [axis]), b.constant(PART / n, x.dtype))
        rest = b.reduce("SUM", _piece(b, x, axis, whole, n), [axis])
        return b.binary("ADD", scaled, b.binary("MUL", rest, b.constant(1.0 / n, x.dtype)))
    rest = b.reduce(within, _piece(b, x, axis, whole, n), [axis])
    return _in_parts(b, between, b.concat([found, rest], axis), [axis])


def _piece(b: Builder, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    starts = [start if a == axis else 0 for a in range(len(x.shape))]
    return b.slice(x, starts, [1] * len(x.shape), [stop - start if a == axis else d for a, d in enumerate(x.shape)])


def _of_one(b: Builder, node: Node, x: Tensor) -> Tensor:
    """The reduction of single elements: its work besides adding."""
    if node.op in {"ReduceL1", "ReduceL2"}:
        return b.unary("ABS", x)
    if node.op == "ReduceSumSquare":
        return b.binary("MUL", x, x)
    if node.op == "ReduceLogSum":
        if x.dtype.kind in "iu":
            return b.cast(b.unary("LOG", b.cast(x, np.dtype(np.float64))), x.dtype)
        return b.unary("LOG", x)
    return x


@rule("ArgMax", "ArgMin")
def _arg(b: Builder, node: Node) -> Tensor:
    x = data(node)
    axis = axis_of(node.attrs.get("axis", 0), len(x.shape))
    if x.dtype.name not in {"float32", "float64", "int32", "int64", "int8", "uint8"}:
        raise NoKernel(f"no kernel computes {x.dtype}")
    kept = tuple(1 if k == axis else d for k, d in enumerate(x.shape))
    mode = "max" if node.op == "ArgMax" else "min"
    out = b.emit("ARGREDUCE", [x], kept, I64, mode=mode, axis=axis, select_last=bool(node.attrs.get("select_last_index", 0)))
    return b.reshape(out, node.output.shape)


@rule("Softmax", "LogSoftmax")
def _softmax(b: Builder, node: Node) -> Tensor:
    x, log = data(node), node.op == "LogSoftmax"
    one_float(x)
    rank = len(x.shape)
    if rank == 0 or x.size == 0:
        raise NoKernel("the input is a scalar or empty")
    if node.source is not None and node.source.version < 13:  # over all axes from `axis` on
        axis = node.attrs.get("axis", 1)
        axis = axis + rank if axis < 0 else axis
        if prod(x.shape[axis + 1 :]) == 1 and axis < rank:
            return b.softmax(x, axis, log)
        flat = b.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
        return b.reshape(b.softmax(flat, 1, log), x.shape)
    return b.softmax(x, axis_of(node.attrs.get("axis", -1), rank), log)


def _norm(b: Builder, x: Tensor, scale: Tensor | None, bias: Tensor | None, axis: int, mode: str, eps: float) -> Tensor:
    require_f32(x, scale, bias)
    if x.size == 0:
        raise NoKernel("a tensor is empty")
    rank = len(x.shape)
    scale = None if scale is None else b.align(scale, rank)
    bias = None if bias is None else b.align(bias, rank)
    return b.emit("NORM", [x, scale, bias], x.shape, F32, axis=axis, mode=mode, eps=eps)


@rule("LayerNormalization", "RMSNormalization")
def _layer_norm(b: Builder, node: Node) -> list[Tensor]:
    x = data(node)
    axis = axis_of(node.attrs.get("axis", -1), len(x.shape))
    mode = "layer" if node.op == "LayerNormalization" else "rms"
    eps = float(node.attrs.get("epsilon", 1e-5))
    out = _norm(b, x, optional(node, 1), optional(node, 2), axis, mode, eps)
    if not any(t.name for t in node.outputs[1:]):
        return [out]
    axes = range(axis, len(x.shape))
    mean = b.reduce("MEAN", x, axes)
    variance = b.reduce("MEAN", b.unary("SQUARE", b.binary("SUB", x, mean)), axes)
    return [out, mean, b.unary("RECIPROCAL", b.unary("SQRT", b.binary("ADD", variance, b.constant(eps, F32))))]


@rule("InstanceNormalization")
def _instance_norm(b: Builder, node: Node) -> Tensor:
    x, rank = data(node), len(data(node).shape)
    if rank < 3:
        raise NoKernel("there are no axes to normalise")
    scale, bias = (b.insert_axes(data(node, k), [1], rank) for k in (1, 2))
    return _norm(b, x, scale, bias, 2, "layer", float(node.attrs.get("epsilon", 1e-5)))


@rule("GroupNormalization")
def _group_norm(b: Builder, node: Node) -> Tensor:
    x, rank = data(node), len(data(node).shape)
    scale, bias = data(node, 1), data(node, 2)
    groups, channels = int(node.attrs["num_groups"]), x.shape[1]
    if channels % groups:
        raise NoKernel("the groups do not divide the channels")
    grouped = b.reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    eps = float(node.attrs.get("epsilon", 1e-5))
    if scale.shape == (groups,) and groups != channels:  # up to opset 20
        scale, bias = (b.insert_axes(t, [1], rank + 1) for t in (scale, bias))
        return b.reshape(_norm(b, grouped, scale, bias, 2, "layer", eps), x.shape)
    scale, bias = (b.insert_axes(b.reshape(t, (groups, channels // groups)), [1, 2], rank + 1) for t in (scale, bias))
    return b.reshape(_norm(b, grouped, scale, bias, 2, "layer", eps), x.shape)


@rule("BatchNormalization")
def _batch_norm(b: Builder, node: Node) -> Tensor | list[Tensor]:
    """y = x * (scale / sqrt(var + eps)) + (bias - mean * scale / sqrt(var + eps)), per channel. In training the statistics are
    the batch's own: so TensorFlow writes LayerNorm."""
    training = bool(node.attrs.get("training_mode", 0))
    if any(t.name for t in node.outputs[1:]) and not training:
        raise NoKernel("statistics are outputs")
    x = data(node)
    rank = len(x.shape)
    axes = [1] if rank > 1 else [0]
    scale, bias, mean, var = (data(node, k) for k in range(1, 5))
    require_f32(x, scale, bias, mean, var)
    eps = float(node.attrs.get("epsilon", 1e-5))
    if training:
        return _batch_norm_in_training(b, x, scale, bias, (mean, var), eps, float(node.attrs.get("momentum", 0.9)))[: len(node.outputs)]
    if all(t.is_const for t in (scale, bias, mean, var)):
        factor, offset = batch_norm_constants(b, scale, bias, mean, var, eps)
        factor, offset = (b.insert_axes(t, axes, rank) for t in (factor, offset))
    else:
        scale, bias, mean, var = (b.insert_axes(t, axes, rank) for t in (scale, bias, mean, var))
        deviation = b.unary("SQRT", b.binary("ADD", var, b.constant(eps, F32)))
        factor = b.binary("DIV", scale, deviation)
        offset = b.binary("SUB", bias, b.binary("MUL", mean, factor))
    return b.ternary("FMA", x, factor, offset)


def _batch_norm_in_training(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, running: tuple[Tensor, Tensor], eps: float, momentum: float
) -> list[Tensor]:
    """y and the next running mean and variance [C], which as a rule nobody reads."""
    rank, channels = len(x.shape), scale.shape
    if rank < 2 or x.size == 0:
        raise NoKernel("there are no channels")
    front = (1, 0, *range(2, rank))  # channels first, so that the other axes are the last ones
    x = b.transpose(x, front)
    y = _norm(b, x, b.insert_axes(scale, [0], rank), b.insert_axes(bias, [0], rank), 1, "layer", eps)
    axes = range(1, rank)
    mean = b.reduce("MEAN", x, axes)
    variance = b.reduce("MEAN", b.unary("SQUARE", b.binary("SUB", x, mean)), axes)
    old, new = b.constant(momentum, F32), b.constant(1.0 - momentum, F32)
    following = [
        b.binary("ADD", b.binary("MUL", before, old), b.binary("MUL", b.reshape(now, channels), new))
        for before, now in zip(running, (mean, variance), strict=True)
    ]
    return [b.transpose(y, front), *following]


def batch_norm_constants(b: Builder, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Per-channel factor and offset, computed in double precision."""
    s, o, m, v = (t.value().astype(np.float64) for t in (scale, bias, mean, var))
    factor = s / np.sqrt(v + eps)
    keys = [t.weight_key for t in (scale, bias, mean, var)]
    key = None if None in keys else f"batchnorm:{keys}:{eps}"
    parts = (("factor", factor), ("offset", o - m * factor))
    first, second = (
        Tensor(f"{b.name}|{tag}", value.shape, F32, data=value.astype(np.float32), weight_key=None if key is None else f"{key}|{tag}")
        for tag, value in parts
    )
    return first, second


@rule("LRN")
def _lrn(b: Builder, node: Node) -> Tensor:
    x, a = data(node), node.attrs
    require_f32(x)
    return b.emit(
        "LRN",
        [x],
        x.shape,
        F32,
        size=int(a["size"]),
        alpha=float(a.get("alpha", 1e-4)),
        beta=float(a.get("beta", 0.75)),
        bias=float(a.get("bias", 1.0)),
    )


@rule("LpNormalization")
def _lp_norm(b: Builder, node: Node) -> Tensor:
    """x / norm, and 0 where the norm is 0."""
    x = data(node)
    dtype = one_float(x)
    axis = axis_of(node.attrs.get("axis", -1), len(x.shape))
    norm = b.reduce("L1" if node.attrs.get("p", 2) == 1 else "L2", x, [axis])
    zero = b.constant(0.0, dtype)
    return b.ternary("WHERE", b.binary("EQUAL", norm, zero, BOOL), zero, b.binary("DIV", x, norm))


@rule("CumSum")
def _cumsum(b: Builder, node: Node) -> Tensor:
    x = data(node)
    if x.dtype.name not in _REDUCED:
        raise NoKernel(f"no kernel computes {x.dtype}")
    axis = axis_of(ints(node.inputs[1])[0], len(x.shape))
    exclusive, reverse = bool(node.attrs.get("exclusive", 0)), bool(node.attrs.get("reverse", 0))
    return b.emit("CUMSUM", [x], x.shape, x.dtype, axis=axis, exclusive=exclusive, reverse=reverse)
