"""Operators that ONNX has by another name or with other inputs, and small functions of its operators."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aspen_mp.planner.frontends.contrib.body import Body, Rule

_GRID_MODES: Final = {b"bilinear": "linear", b"nearest": "nearest", b"bicubic": "cubic"}


def _trilu(b: Body) -> list[str]:
    return [b.emit("Trilu", b.name(0), b.name(1), upper=b.get("upper", 1))]


def _range(b: Body) -> list[str]:
    return [b.emit("Range", b.name(0), b.name(1), b.name(2) or b.number(1))]


def _expand_dims(b: Body) -> list[str]:
    axis = b.emit("Reshape", b.cast(b.name(1), np.int64), b.ints(-1))
    return [b.emit("Unsqueeze", b.name(0), axis)]


def _gather_nd(b: Body) -> list[str]:
    return [b.emit("GatherND", b.name(0), b.cast(b.name(1), np.int64))]


def _unique(b: Body) -> list[str]:
    """(x) → in order of first occurrence, which of them each is, how many there are."""
    outs = [f"{b.node.output[0]}\0{what}" for what in ("values", "first", "which", "counts")]
    values, _, which, counts = b.several("Unique", b.name(0), outs=outs, sorted=0)
    return [values, which, counts]


def _pad(b: Body) -> list[str]:
    """The pads may be a row of a matrix."""
    value = b.emit("Reshape", b.name(2), b.constant(np.zeros(0, np.int64))) if b.name(2) else ""
    return [b.emit("Pad", b.name(0), b.emit("Reshape", b.name(1), b.ints(-1)), value, mode=b.get("mode", b"constant").decode())]


def _grid_sample(b: Body) -> list[str]:
    mode = _GRID_MODES.get(b.get("mode", b"bilinear"))
    if mode is None:
        raise b.unknown(f"has the mode {b.get('mode', b'').decode(errors='replace')!r}")
    return [b.emit("GridSample", b.name(0), b.name(1), mode=mode, **b.kept(("align_corners", "padding_mode")))]


def _unfold(b: Body) -> list[str]:
    """Windows of an axis, which become the last one."""
    shape, size, step = b.tensor(0).shape, b.get("size", 1), b.get("step", 1)
    rank = len(shape)
    axis = b.get("dim", -1) % rank
    if not 0 < size <= shape[axis] or step < 1:
        raise b.invalid(f"cannot take windows of {size} in steps of {step} from an axis of {shape[axis]}")
    places = np.arange(0, shape[axis] - size + 1, step)[:, None] + np.arange(size)
    windows = b.emit("Gather", b.name(0), b.constant(places.astype(np.int64)), axis=axis)
    return [b.emit("Transpose", windows, perm=[*(k for k in range(rank + 1) if k != axis + 1), axis + 1])]


def _dynamic_transpose(b: Body) -> list[str]:
    """ConvTranspose whose pads are an input: they have to be known."""
    attributes = b.kept(("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides"))
    if b.name(2):
        attributes["pads"] = b.tensor(2).value().reshape(-1).tolist()
    return [b.emit("ConvTranspose", b.name(0), b.name(1), b.name(3), **attributes)]


def channels_last(b: Body, x: str, op: str, *others: str, **attributes: Any) -> str:
    """A node that reads x, of as many axes as input 0, and gives its result with channels last, by one that has them first."""
    rank = len(b.tensor(0).shape)
    first = b.emit("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])
    y = b.emit(op, first, *others, **attributes)
    return b.emit("Transpose", y, perm=[0, *range(2, rank), 1])


def _max_pool_nhwc(b: Body) -> list[str]:
    attributes = b.kept(("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"))
    return [channels_last(b, b.name(0), "MaxPool", **attributes)]


def _identity(b: Body) -> list[str]:
    return [b.emit("Identity", b.name(0))]


def _scaled_silu(b: Body) -> list[str]:
    scale = b.cast(b.name(1), b.tensor(0).dtype) if b.name(1) else b.number(b.get("alpha", 1.0))
    x = b.emit("Mul", b.name(0), scale)
    return [b.emit("Mul", x, b.emit("Sigmoid", x))]


def _gated_add(b: Body) -> list[str]:
    return [b.emit("Add", b.name(0), b.emit("Mul", b.name(1), b.name(2)))]


def _gated_norm(b: Body) -> list[str]:
    """Each run of channels that `scale` has is normalised by itself."""
    width, kind = b.tensor(1).size, b.get("activation", b"silu").decode()
    if kind not in {"silu", "swish", "sigmoid"}:
        raise b.unknown(f"has the activation {kind!r}")
    apart = b.emit("Reshape", b.name(0), b.ints(*(0 for _ in b.tensor(0).shape[:-1]), -1, width))
    y = b.emit("RMSNormalization", apart, b.name(1), axis=-1, epsilon=b.get("epsilon", 1e-6))
    y = b.emit("Reshape", y, b.ints(*(0 for _ in b.tensor(0).shape[:-1]), -1))
    gate = b.emit("Sigmoid", b.name(2))
    return [b.emit("Mul", y, gate if kind == "sigmoid" else b.emit("Mul", b.name(2), gate))]


def _wide_product(b: Body) -> list[str]:
    """A product of integers of 16 bits, in 32."""
    wide = np.uint32 if b.tensor(0).dtype == b.tensor(1).dtype == np.uint16 else np.int32
    return [b.emit("MatMul", b.cast(b.name(0), wide), b.cast(b.name(1), wide))]


RULES: Final[dict[str, Rule]] = {
    "ConvTransposeWithDynamicPads": _dynamic_transpose,
    "ExpandDims": _expand_dims,
    "GatedAdd": _gated_add,
    "GatedRMSNorm": _gated_norm,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "MatMulInteger16": _wide_product,
    "NhwcMaxPool": _max_pool_nhwc,
    "Pad": _pad,
    "Range": _range,
    "SampleOp": _identity,
    "ScaledSiLU": _scaled_silu,
    "Trilu": _trilu,
    "UnfoldTensor": _unfold,
    "Unique": _unique,
}
NEEDS: Final = {"ConvTransposeWithDynamicPads": (2,)}
REFUSED: Final = {"GatedAdd": {3: "a gate that is projected"}}
