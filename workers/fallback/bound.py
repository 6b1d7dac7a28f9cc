"""Nodes of small bodies by the kernels that their operators have in plans, where numpy takes longer to begin than to compute. Each is bound
to the shapes, types and strides of the operands that it met first. Others, in later rounds, are numpy's."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aspen_mp.shm.tables import BINARY, UNARY
from aspen_mp.workers._kernels import Bound
from aspen_mp.workers.fallback.numpy_operators import Array, Call

F32: Final = np.dtype(np.float32)
MOST: Final = 1 << 16
"""Elements of a result. For larger ones numpy's beginning is not what takes long, and its products use more of a cache."""
_ONE: Final = struct.unpack("<q", struct.pack("<d", 1.0))[0]
_NO_ACT: Final = (UNARY["IDENTITY"], 0, 0)
_UNARY: Final = {"Tanh": "TANH", "Sigmoid": "SIGMOID", "Exp": "EXP", "Log": "LOG", "Sin": "SIN", "Cos": "COS", "Sqrt": "SQRT"} | {
    "Relu": "RELU",
    "Neg": "NEG",
    "Abs": "ABS",
    "Reciprocal": "RECIPROCAL",
}
_BINARY: Final = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV", "Max": "MAX", "Min": "MIN"}
_COMPARED: Final = {"Less": "LESS", "LessOrEqual": "LESS_EQUAL", "Greater": "GREATER", "GreaterOrEqual": "GREATER_EQUAL", "Equal": "EQUAL"}


def bound(op: str, inputs: Sequence[Any], rest: Call) -> Call:
    """Return a call of an operator of the default domain on operands like these, plain ones that fit each other. `rest` computes others,
    and operators without a kernel."""
    if not inputs or any(x is None or x.dtype != F32 for x in inputs):
        return rest
    if op in _UNARY and len(inputs) == 1:
        return _bound("UNARY", inputs[0].shape, F32, inputs, [UNARY[_UNARY[op]], 0, 0], rest)
    if len(inputs) != 2:
        return rest
    x, y = inputs
    if op == "MatMul" and x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0] > 0:
        return _bound("GEMM", (x.shape[0], y.shape[1]), F32, inputs, [0, _ONE, *_NO_ACT, 0, 0, 0], rest, spread=False)
    code = _BINARY.get(op) or _COMPARED.get(op)
    if code is None:
        return rest
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return rest
    return _bound("BINARY", shape, F32 if op in _BINARY else np.dtype(bool), inputs, [BINARY[code], *_NO_ACT], rest)


def _bound(
    kernel: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: Sequence[Array],
    params: Sequence[int],
    rest: Call,
    *,
    spread: bool = True,
) -> Call:
    out = np.empty(shape, dtype)
    if not 0 < out.size <= MOST or out.ndim > 8 or any(step % x.itemsize for x in inputs for step in x.strides):
        return rest
    seen = [np.broadcast_to(x, shape or (1,)) if spread else x for x in inputs]
    return Bound(kernel, out, inputs, seen, params, rest)
