"""The sums of AMX as numpy makes them, in the order that `workers/kernels/gemm/amx_sums.h` describes."""

from __future__ import annotations

from typing import Any

import numpy as np
from pair_tools import rounded

Array = np.ndarray[Any, np.dtype[Any]]
SMALLEST = 2.0**-126
CHUNK = 16
"""Pairs of terms that an instruction takes, at most."""


def flushed(values: Array) -> Array:
    """f32 with zeros for denormal numbers."""
    return np.where(np.abs(values) < SMALLEST, np.copysign(np.float32(0), values), values).astype(np.float32)


def nearest(exact: Array) -> Array:
    """f64 that no second rounding changes → f32. Results that are denormal once they have 24 bits are zeros."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.abs(exact) < SMALLEST - 2.0**-151, np.copysign(0.0, exact), exact).astype(np.float32)


def pairs_of(terms: Array) -> Array:
    """[…, K] → […, ceil(K / 2), 2], rounded to bf16 as the instruction does."""
    odd = terms.shape[-1] % 2
    padded = np.concatenate([terms, np.zeros((*terms.shape[:-1], odd), np.float32)], axis=-1)
    return flushed(rounded(flushed(padded))).reshape(*terms.shape[:-1], -1, 2)


def instruction(before: Array, a: Array, b: Array) -> Array:
    """TDPBF16PS: before[M, N] and the products of a[M, k, 2] and b[N, k, 2]."""
    each = np.zeros((*before.shape, 2), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(a.shape[1]):
            product = a[:, np.newaxis, k].astype(np.float64) * b[np.newaxis, :, k]
            each = nearest(each.astype(np.float64) + product)
        more = nearest(each[..., 0].astype(np.float64) + each[..., 1])
        return nearest(flushed(before).astype(np.float64) + more)


def sums(a: Array, b: Array) -> Array:
    """[M, N] of runs of pairs, a[M, runs, groups, 2] and b[N, runs, groups, 2]: whole chunks of every run, then the rest of every run."""
    runs, groups = a.shape[1:3]
    out = np.zeros((a.shape[0], b.shape[0]), np.float32)
    count = -(-groups // CHUNK)
    depth = groups // count if groups % count == 0 else CHUNK
    whole = groups // depth * depth
    for run in range(runs):
        for at in range(0, whole, depth):
            out = instruction(out, a[:, run, at : at + depth], b[:, run, at : at + depth])
    if whole < groups:
        for run in range(runs):
            out = instruction(out, a[:, run, whole:], b[:, run, whole:])
    return out
