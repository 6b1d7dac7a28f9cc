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


def pack_pairs(taps: np.ndarray) -> np.ndarray:
    """[taps, K, N] → words [ceil(N / 32), taps * ceil(K / 2), 32], as BGEMM (one tap) and BCONV have them."""
    count, depth, columns = taps.shape
    halves = np.zeros((-(-columns // 32) * 32, count, -(-depth // 2) * 2), np.uint16)
    halves[:columns, :, :depth] = taps.astype(ml_dtypes.bfloat16).view(np.uint16).transpose(2, 0, 1)
    words = halves.view(np.uint32).reshape(-1, 32, count * -(-depth // 2))
    return np.ascontiguousarray(words.transpose(0, 2, 1))
