"""Shapes of results where ONNX's inference is wrong, or refuses models that ONNX's text or every runtime takes. Examples are Einsum with
axes of length 1, transposed convolutions whose padding follows from their output, lengths counted in single precision, and reductions of
scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from onnx import NodeProto

from aspen_mp.planner.frontends import equations
from aspen_mp.planner.ir.graph import Shape, Tensor
from aspen_mp.shm.errors import ModelInvalidError
from aspen_mp.workers.fallback.numpy_operators import range_length, resized

Inputs = Sequence[Tensor | None]
Attrs = Mapping[str, Any]
_SAME: Final = {"SAME_UPPER", "SAME_LOWER"}
_REDUCTIONS: Final = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
_MODERN_RESIZE: Final = 11
"""Opset from which on Resize has sizes, and a region of its input."""


class Misfit(ValueError):
    """Why inputs do not fit a node; the message goes behind its name."""


def shape(node: NodeProto, inputs: Inputs, attrs: Attrs, version: int) -> Shape | None:
    """The shape of a default-domain node's only result; None where ONNX's inference may find it. Raises ModelInvalidError where the inputs
    do not fit."""
    rule = _RULES.get(node.op_type)
    if rule is None:
        return None
    try:
        return rule(inputs, attrs, version)
    except Misfit as error:
        given = ", ".join(f"{n!r} {list(t.shape)}" for n, t in zip(node.input, inputs, strict=False) if t is not None)
        who = f"node {node.name!r} ({node.op_type})" if node.name else f"node {node.op_type} → {node.output[0]!r}"
        raise ModelInvalidError(f"{who} does not take inputs {given}: {error}") from None


def _einsum(inputs: Inputs, attrs: Attrs, version: int) -> Shape | None:
    operands = [t for t in inputs if t is not None]
    try:
        terms, result = equations.parse(attrs["equation"], [len(t.shape) for t in operands])
        sizes = equations.sizes(terms, [t.shape for t in operands])
    except ValueError as error:
        raise Misfit(str(error)) from None
    return tuple(sizes[c] for c in result)


def _transposed_convolution(inputs: Inputs, attrs: Attrs, version: int) -> Shape | None:
    """The output that is given, or that `auto_pad` asks for: the paddings, `output_padding` among them, follow from it."""
    x, weights, wanted = inputs[0], inputs[1], attrs.get("output_shape")
    if x is None or weights is None or not (wanted or attrs.get("auto_pad", "NOTSET") in _SAME):
        return None
    n = len(x.shape) - 2
    strides = attrs.get("strides") or [1] * n
    if n < 1 or len(weights.shape) != n + 2 or len(strides) != n or (wanted and len(wanted) not in {n, n + 2}):
        return None
    spatial = wanted[-n:] if wanted else [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
    return (x.shape[0], weights.shape[1] * int(attrs.get("group", 1)), *spatial)


def _range(inputs: Inputs, attrs: Attrs, version: int) -> Shape | None:
    values = [t.value() for t in inputs if t is not None and t.is_const and t.size == 1]
    return (range_length(*values),) if len(values) == len(inputs) == 3 else None


def _reduction(inputs: Inputs, attrs: Attrs, version: int) -> Shape | None:
    """The shape of a scalar's reduction: its axes are none, or the last one, which a scalar lacks."""
    axes = inputs[1] if len(inputs) > 1 else None
    if inputs[0] is None or inputs[0].shape or axes is None:
        return None
    if axes.is_const and not set(axes.value().reshape(-1).tolist()) <= {0, -1}:
        raise Misfit(f"a scalar has no axis {axes.value().reshape(-1).tolist()}")
    return ()


def _resize(inputs: Inputs, attrs: Attrs, version: int) -> Shape | None:
    """The shape by scales of all axes; lengths that are whole numbers are told by ONNX's inference."""
    k = 2 if version >= _MODERN_RESIZE else 1
    scales, x = inputs[k] if len(inputs) > k else None, inputs[0]
    if len(inputs) > 3 and inputs[3] is not None and inputs[3].size:
        return None
    return _scaled(x, _known(scales), attrs)


def _upsample(inputs: Inputs, attrs: Attrs, version: int) -> Shape | None:
    """The shape by scales that are an attribute in older opsets."""
    return _scaled(inputs[0], attrs.get("scales") or _known(inputs[1] if len(inputs) > 1 else None), attrs)


def _known(scales: Tensor | None) -> list[float]:
    return scales.value().reshape(-1).tolist() if scales is not None and scales.is_const else []


def _scaled(x: Tensor | None, factors: Sequence[float], attrs: Attrs) -> Shape | None:
    if x is None or not factors:
        return None
    rank = len(x.shape)
    axes = [a % rank for a in attrs.get("axes") or range(rank)]
    if len(axes) != len(factors) or not all(np.isfinite(f) and f > 0 for f in factors):
        return None  # which inference refuses
    found = list(x.shape)
    for axis, factor in zip(axes, factors, strict=True):
        found[axis] = resized(found[axis], factor)
    return tuple(found)


_RULES: Final[dict[str, Callable[[Inputs, Attrs, int], Shape | None]]] = {
    "ConvTranspose": _transposed_convolution,
    "Einsum": _einsum,
    "Range": _range,
    "Resize": _resize,
    "Upsample": _upsample,
    **{f"Reduce{kind}": _reduction for kind in _REDUCTIONS},
}
NAMES: Final = frozenset(_RULES)
"""Operators of the default domain whose shapes are, or may be, found here."""
