"""Weights of products as pairs of bf16, which BGEMM and BCONV read (``workers/kernels/gemm/bf16.h``). They take half the bytes. Processors
with an instruction for pairs do twice as many multiply-adds in it."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Shape, Tensor

PANEL = 32
U32 = np.dtype(np.uint32)


def packed_shape(depth: int, columns: int, taps: int = 1) -> Shape:
    """The shape of the words of [taps, depth, columns]: each two successive terms of a column, behind the last of an odd number a zero."""
    return -(-columns // PANEL), taps * -(-depth // 2), PANEL


def packed(panels: Tensor, taps: int = 1) -> Tensor:
    """Constant panels of GEMM [panels, K, 32] or of CONV without groups [1, panels, taps * C, 32], f32 → words, rounded to nearest even."""
    count, terms = panels.shape[-3], panels.shape[-2]
    key = None if panels.weight_key is None else f"{panels.weight_key}|pairs{taps}"
    shape = packed_shape(terms // taps, count * PANEL, taps)
    return Tensor(f"{panels.name}|pairs", shape, U32, weight_key=key, pack=partial(_pack, panels, taps))


def of_halves(panels: Tensor, depth: int, bf16: bool) -> Tensor:
    """Constant panels of QNBITGEMM of 16 bits (`low_bit.packed_shape`), which are pairs already, of bf16 or else of f16 → words."""
    key = None if panels.weight_key is None else f"{panels.weight_key}|pairs"
    shape = packed_shape(depth, panels.shape[0] * PANEL)
    return Tensor(f"{panels.name}|pairs", shape, U32, weight_key=key, pack=partial(_pack_halves, panels, bf16))


def _pack_halves(source: Tensor, bf16: bool, out: npt.NDArray[Any]) -> None:
    for panel, words in zip(source.value(), out, strict=True):
        halves = panel.view(np.uint16)
        rounded = halves if bf16 else halves.view(np.float16).astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
        words[...] = rounded.view(np.uint32).reshape(words.shape)


def _pack(source: Tensor, taps: int, out: npt.NDArray[Any]) -> None:
    values = source.value()
    panels = values.reshape(out.shape[0], taps, -1, PANEL)
    depth = panels.shape[2]
    for panel, words in zip(panels, out, strict=True):
        halves = np.zeros((taps, -(-depth // 2), 2, PANEL), np.uint16)
        halves.reshape(taps, -1, PANEL)[:, :depth] = panel.astype(ml_dtypes.bfloat16).view(np.uint16)
        words[...] = (halves[:, :, 0] | halves[:, :, 1].astype(np.uint32) << 16).reshape(-1, PANEL)
