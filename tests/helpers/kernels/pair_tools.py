"""What tests of products of pairs of bf16 share."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from aspen_mp.workers import _isa, _kernels

SWITCH = "ASPEN_MP_BF16"
WITHOUT = os.environ.get(SWITCH) == "off"
both_ways = pytest.mark.skipif(
    WITHOUT or not any(_isa.sums_pairs(isa) for isa in _kernels.isas()),
    reason="the processor has no AVX512_BF16 (or is told so): all tests here are those without it already",
)
HALVES = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -(1 + 2.0**-8), 3.4e38, 1e30, np.inf, -np.inf, np.nan], np.float32)
"""Values between two bf16, and such as stay what they are."""


def rounded(values: np.ndarray) -> np.ndarray:
    """The nearest bf16, as f32."""
    with np.errstate(over="ignore"):
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def stored(values: np.ndarray) -> np.ndarray:
    """Values as kernels store them in bf16: rounded to nearest even, denormal ones zeros, NaNs quiet ones of the same payload."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    magnitude, high = bits & 0x7FFFFFFF, bits >> 16
    near = (bits.astype(np.uint64) + 0x7FFF + (high & 1)) >> 16
    kept = np.where(magnitude < 0x00800000, high & 0x8000, near)
    return np.where(magnitude > 0x7F800000, high | 0x40, kept).astype(np.uint16).view(ml_dtypes.bfloat16)


def pack_pairs(taps: np.ndarray) -> np.ndarray:
    """[taps, K, N] → words [ceil(N / 32), taps * ceil(K / 2), 32], as BGEMM (one tap) and BCONV have them."""
    count, depth, columns = taps.shape
    halves = np.zeros((-(-columns // 32) * 32, count, -(-depth // 2) * 2), np.uint16)
    halves[:columns, :, :depth] = taps.astype(ml_dtypes.bfloat16).view(np.uint16).transpose(2, 0, 1)
    words = halves.view(np.uint32).reshape(-1, 32, count * -(-depth // 2))
    return np.ascontiguousarray(words.transpose(0, 2, 1))
