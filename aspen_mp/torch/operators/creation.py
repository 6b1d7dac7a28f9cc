"""Tensors from nothing, and random ones, which stay with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import INT64, NUMPY_TYPES, Builder, Scalar, Value, static
from aspen_mp.torch.registry import Unsupported, aten, refuse

refuse("it keeps bits and changes what they mean", "view.dtype")
refuse("ONNX has no word for it, and a composition loses digits", "erfc.default", "atan2.default", "lgamma.default", "digamma.default")
refuse("it adds up windows that overlap, which ONNX has no word for", "unfold_backward.default")
refuse("complex numbers have no kernels", "complex.default", "view_as_complex.default", "view_as_real.default", "_fft_r2c.default")

_MOST_BAKED = 1 << 14
"""Elements of a constant that is written down whole."""

refuse(
    "it draws random numbers; PyTorch's generator decides which",
    *("bernoulli.default", "bernoulli.p", "rand.default", "randn.default", "rand_like.default", "randn_like.default"),
    *("randint.default", "randint.low", "randperm.default", "multinomial.default", "native_dropout.default", "normal_functional.default"),
    *("uniform.default", "exponential.default", "normal.Tensor_Tensor", "poisson.default", "rrelu_with_noise_functional.default"),
)
refuse(
    "the shape of its result depends on data",
    *(
        "nonzero.default",
        "masked_select.default",
        "_unique2.default",
        "unique_dim.default",
        "unique_consecutive.default",
        "bincount.default",
    ),
    *("repeat_interleave.Tensor", "_local_scalar_dense.default", "item.default"),
)


def filled(b: Builder, shape: Sequence[Any], value: Scalar, dtype: Any) -> Value:
    """A tensor of one number."""
    known, value = [sizes.plain(n) for n in shape], sizes.plain(value)
    fixed = all(isinstance(n, int) for n in known) and isinstance(value, int | float)
    if fixed and int(np.prod(known)) <= _MOST_BAKED:
        return b.constant(np.full(known, value, NUMPY_TYPES[dtype]), dtype)
    return b.expand(b.number(value, dtype), shape)


@aten("full.default", "new_full.default", "full_like.default")
def _full(b: Builder, size: Any, *arguments: Any, fill_value: Any = None, **_: Any) -> Value:
    value = arguments[-1] if arguments else fill_value
    if not sizes.is_number(value):
        raise Unsupported("a fill that is no number")
    return filled(b, b.shape, value, b.dtype)


@aten("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default", "new_empty.default")
def _zeros(b: Builder, *_: Any, **__: Any) -> Value:
    """What an empty tensor holds nobody may rely on."""
    return filled(b, b.shape, 0, b.dtype)


@aten("empty_permuted.default", "new_empty_strided.default", "empty_strided.default")
def _empty(b: Builder, *_: Any, **__: Any) -> Value:
    return filled(b, b.shape, 0, b.dtype)


@aten("ones.default", "ones_like.default", "new_ones.default")
def _ones(b: Builder, *_: Any, **__: Any) -> Value:
    return filled(b, b.shape, 1, b.dtype)


@aten("scalar_tensor.default")
def _scalar_tensor(b: Builder, value: Any, **_: Any) -> Value:
    return b.number(value, b.dtype)


@aten("fill.Scalar", "fill.Tensor")
def _fill(b: Builder, x: Value, value: Any) -> Value:
    return b.expand(b.operand(value, b.dtype), b.shape)


@aten("arange.start_step", "arange.start", "arange.default", "prims.iota.default")
def _arange(b: Builder, *arguments: Any, start: Any = 0, step: Any = 1, **_: Any) -> Value:
    if b.made_for("prims.iota"):
        begin, every, end = start, step, start + arguments[0] * step
    else:
        begin, end = (0, arguments[0]) if len(arguments) == 1 else arguments[:2]
        every = arguments[2] if len(arguments) > 2 else step
    known = [sizes.plain(value) for value in (begin, end, every)]
    if all(isinstance(value, int | float) for value in known):
        (count,) = static(b.shape, "the length of a range")
        if count > _MOST_BAKED * 16:
            raise Unsupported("a range too long to be written down")
        first, gap = (known[0], known[2]) if b.dtype.is_floating_point else (int(known[0]), int(known[2]))
        return b.constant(first + np.arange(count) * gap, b.dtype)
    if not all(sizes.is_size(value) for value in known):
        raise Unsupported("a range between fractions with sizes that are not fixed")
    start, stop, step = (b.number(value, INT64) for value in known)
    return b.cast(b.emit("Range", start, stop, step, dtype=INT64), b.dtype)


@aten("linspace.default")
def _linspace(b: Builder, start: Any, end: Any, steps: Any, **_: Any) -> Value:
    if any(isinstance(value, Value) for value in (start, end)) or not isinstance(sizes.plain(steps), int):
        raise Unsupported("a range that is not fixed")
    if b.dtype.is_floating_point:
        return b.constant(np.linspace(start, end, sizes.plain(steps)), b.dtype)
    first, last = int(start), int(end)
    info = torch.iinfo(b.dtype)
    if not all(info.min <= end <= info.max for end in (first, last)):
        raise Unsupported("a range between numbers that the type cannot hold")
    return b.constant(_whole_range(first, last, sizes.plain(steps)), b.dtype)


def _whole_range(first: int, last: int, count: int) -> np.ndarray[Any, Any]:
    """Whole numbers as PyTorch rounds them: towards 0, counted from the nearer end."""
    gap, places = (last - first) / max(count - 1, 1), np.arange(count)
    return np.trunc(np.where(places < count // 2, first + gap * places, last - gap * (count - 1 - places)))


@aten("eye.default", "eye.m")
def _eye(b: Builder, *arguments: Any, **_: Any) -> Value:
    shape = [sizes.plain(n) for n in b.shape]
    if not all(isinstance(n, int) for n in shape):
        raise Unsupported("a unit matrix of a size that is not fixed")
    return b.constant(np.eye(*shape), b.dtype)
