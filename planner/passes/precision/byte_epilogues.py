"""Fewer steps behind products of bytes. Functions that bytes limit anyway go. Residuals stay bytes, too. Where bytes are written, the
output's scale goes into the factor and the bias, which are constants: a quotient less for each element. Where sums are rounded to levels
before a residual comes, the step between these levels goes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.passes.precision.integer_products import FACTOR, PRODUCTS
from aspen_mp.planner.passes.rewrite import Rewriter, scalar_of

Stored = tuple[Tensor, float, int]
"""Bytes, their scale and their zero point."""
_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_BIAS, _RESIDUAL = 2, 3
_LEAST = 1e-30
"""Smallest factor: products of sums with it are not denormal."""


def drop_limits(graph: Graph) -> None:
    """Functions that only limit what is quantised at once, to no less than the bytes do, are left out."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or node.op != "QUANTIZE" or node.output.dtype not in _BYTES or node.attrs["times"]:
            continue
        limit = rewriter.made_by(node.inputs[0], "UNARY")
        if limit is None or limit.attrs["opcode"] not in {"RELU", "CLIP"} or not rewriter.only_use(limit.output):
            continue
        found = parameters(node)
        if found is None or not 0.0 < found[0] < np.inf:
            continue
        scale, zero = found
        info = np.iinfo(node.output.dtype)
        low, high = (0.0, np.inf) if limit.attrs["opcode"] == "RELU" else (limit.attrs["a"], limit.attrs["b"])
        if (
            np.rint(np.float32(low) / np.float32(scale)) + zero <= info.min
            and np.rint(np.float32(high) / np.float32(scale)) + zero >= info.max
        ):
            rewriter.replace(node, "QUANTIZE", [limit.inputs[0], *node.inputs[1:]], node.attrs)
    rewriter.finish()


def join_bytes(graph: Graph) -> None:
    """Residuals that are bytes in other terms are read as bytes."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or node.op not in PRODUCTS or len(node.inputs) <= _RESIDUAL:
            continue
        found = stored(rewriter, node.inputs[_RESIDUAL]) or _levelled(rewriter, node)
        if found is None:
            continue
        residual, scale, zero = found
        inputs = [*node.inputs[:_RESIDUAL], residual, *node.inputs[_RESIDUAL + 1 :]]
        rewriter.replace(node, node.op, inputs, {**node.attrs, "residual_scale": scale, "residual_zero": zero})
    rewriter.finish()


def stored(rewriter: Rewriter, x: Tensor | None) -> Stored | None:
    """Return the bytes that DEQUANTIZE makes x of."""
    back = rewriter.made_by(x, "DEQUANTIZE")
    if back is None or back.inputs[0] is None or back.inputs[0].dtype not in _BYTES:
        return None
    return None if (found := parameters(back)) is None else (back.inputs[0], *found)


def parameters(node: Node) -> tuple[float, int] | None:
    """Scale and zero point of QUANTIZE or DEQUANTIZE, where both are known and one for all."""
    scale, zero = scalar_of(node.inputs[1]), scalar_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else 0.0
    return None if scale is None or zero is None else (scale, int(zero))


def _levelled(rewriter: Rewriter, node: Node) -> Stored | None:
    """The same of a residual that another product rounds to levels, for this node alone: that product writes the levels instead."""
    value = node.inputs[_RESIDUAL]
    before = rewriter.made_by(value, *PRODUCTS)
    if value is None or before is None or not rewriter.only_use(value) or before.attrs.get("residual_last", False):
        return None
    name, step, lowest = before.attrs["act"]
    x = before.inputs[0]
    if name != "FAKE_QUANTIZE" or x is None:
        return None
    zero = int(np.iinfo(x.dtype).min - lowest)
    attrs = {**before.attrs, "act": NO_ACT, "scale": step, "zero": zero}
    written = rewriter.insert(node, before.op, before.inputs, value.shape, attrs)  # of the bytes that the product reads
    maker = rewriter.made_by(written)
    assert maker is not None
    maker.name, maker.onnx_op = before.name, before.onnx_op
    return written, step, zero


def count_in_levels(graph: Graph) -> None:
    """Products that write bytes find them in units of a level."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if node.op in PRODUCTS and node.output.dtype in _BYTES:
            _count(rewriter, node)
    rewriter.finish()


def _count(rewriter: Rewriter, node: Node) -> None:
    inputs: list[Tensor | None] = [*node.inputs, *[None] * (6 - len(node.inputs))]
    (name, a, b), scale, residual = node.attrs["act"], node.attrs["scale"], inputs[_RESIDUAL]
    if node.attrs.get("gated", False) or (residual is not None and residual.dtype not in _BYTES) or not 0.0 < scale < np.inf:
        return
    if name == "FAKE_QUANTIZE" and residual is not None and node.attrs.get("residual_last", False):
        unit, changed = a, {"act": (name, 1.0, b), "scale": scale / a}
    elif name in {"IDENTITY", "RELU", "CLIP"}:
        unit, changed = scale, {"act": (name, a / scale, b / scale), "scale": 1.0}
    else:
        return
    if unit == 1.0 or not 0.0 < unit < np.inf:
        return
    one = Tensor(
        f"{node.output.name}|1",
        (1,) * len(node.output.shape),
        np.dtype(np.float32),
        data=np.ones((1,) * len(node.output.shape), np.float32),
    )
    for place, given in ((FACTOR, inputs[FACTOR] or one), (_BIAS, inputs[_BIAS])):
        if given is not None and (counted := _by(given, unit)) is None:
            return
        inputs[place] = None if given is None else counted
    if residual is not None:
        changed["residual_scale"] = node.attrs["residual_scale"] / unit
    rewriter.replace(node, node.op, inputs, {**node.attrs, **changed})


def _by(tensor: Tensor, unit: float) -> Tensor | None:
    """A constant in other units; None where its numbers do not allow that."""
    if not tensor.is_const:
        return None
    with np.errstate(over="ignore", under="ignore"):
        value: npt.NDArray[Any] = (tensor.value().astype(np.float64) / unit).astype(np.float32)
    if not np.all((value == 0.0) | (np.isfinite(value) & (np.abs(value) >= _LEAST))):
        return None
    key = None if tensor.weight_key is None else f"{tensor.weight_key}|by{unit!r}"
    return Tensor(f"{tensor.name}|by {unit:g}", tensor.shape, tensor.dtype, data=value, weight_key=key)
