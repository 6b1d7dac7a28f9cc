"""Shapes of the results of common operators where they are plain to see: the same as ONNX's inference, in a tenth of the time. A picture of
a new size has each layer's shapes inferred anew.

Whatever is unusual (types that differ, shapes that do not fit, paddings that follow from shapes) is left to ONNX's inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from aspen_mp.planner.ir.graph import Shape, Tensor

Inputs = Sequence[Tensor | None]
Attrs = Mapping[str, Any]
_FLOATS: Final = frozenset({np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)})
_OF_ONE: Final = ("Clip", "Elu", "Erf", "Exp", "HardSigmoid", "LeakyRelu", "Log", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh")


def typed(op: str, inputs: Inputs, attrs: Attrs) -> tuple[np.dtype[Any], Shape] | None:
    """Type and shape of the only result of one of `NAMES`; None where ONNX's inference is to say."""
    x = inputs[0] if inputs else None
    if x is None or x.dtype not in _FLOATS:
        return None
    given = []
    for t in inputs:
        if t is not None:
            if t.dtype is not x.dtype and t.dtype != x.dtype:
                return None
            given.append(t.shape)
    found = _RULES[op](given, attrs)
    return None if found is None else (x.dtype, found)


def _as_first(given: Sequence[Shape], attrs: Attrs) -> Shape | None:
    return given[0]


def _broadcast(given: Sequence[Shape], attrs: Attrs) -> Shape | None:
    if len(given) != 2:
        return None
    one, two = given
    if one == two:
        return one
    rank = max(len(one), len(two))
    one, two = (1,) * (rank - len(one)) + one, (1,) * (rank - len(two)) + two
    if any(a not in (b, 1) and b != 1 for a, b in zip(one, two, strict=True)):
        return None
    return tuple([b if a == 1 else a for a, b in zip(one, two, strict=True)])


def _normalised(given: Sequence[Shape], attrs: Attrs) -> Shape | None:
    x, *channels = given
    return x if len(x) > 1 and len(channels) == 4 and all(c == x[1:2] for c in channels) else None


def _convolved(given: Sequence[Shape], attrs: Attrs) -> Shape | None:
    x, w = given[:2] if len(given) > 1 else ((), ())
    n = len(x) - 2
    kernel = w[2:]
    if n < 1 or len(w) != n + 2 or attrs.get("auto_pad", "NOTSET") != "NOTSET" or tuple(attrs.get("kernel_shape", kernel)) != kernel:
        return None
    strides, dilations, pads = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n), attrs.get("pads", [0] * 2 * n)
    if len(strides) != n or len(dilations) != n or len(pads) != 2 * n or min(*strides, *dilations, *kernel) < 1 or min(pads) < 0:
        return None
    free = [x[2 + k] + pads[k] + pads[n + k] - (kernel[k] - 1) * dilations[k] - 1 for k in range(n)]
    return None if min(free) < 0 else (x[0], w[0], *[left // step + 1 for left, step in zip(free, strides, strict=True)])


def _pooled(given: Sequence[Shape], attrs: Attrs) -> Shape | None:
    x = given[0]
    return (*x[:2], *[1] * (len(x) - 2)) if len(x) > 2 else None


def _side_by_side(given: Sequence[Shape], attrs: Attrs) -> Shape | None:
    first, axis = given[0], attrs.get("axis")
    if not isinstance(axis, int) or not -len(first) <= axis < len(first):
        return None
    axis %= len(first)
    if any(len(s) != len(first) or s[:axis] != first[:axis] or s[axis + 1 :] != first[axis + 1 :] for s in given):
        return None
    return (*first[:axis], sum([s[axis] for s in given]), *first[axis + 1 :])


_RULES: Final[dict[str, Callable[[Sequence[Shape], Attrs], Shape | None]]] = {
    **dict.fromkeys(_OF_ONE, _as_first),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _broadcast),
    "BatchNormalization": _normalised,
    "Concat": _side_by_side,
    "Conv": _convolved,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _pooled),
}
NAMES: Final = frozenset(_RULES)
