"""Normalisations, with the sums before them, and embeddings, which end in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aspen_mp.planner.frontends.contrib.body import Body, Rule


def _norm(b: Body, x: str, scale: str, bias: str | None, eps: float) -> str:
    """Normalises by root mean square alone where there is no `bias` (None); one that is missing is empty."""
    if bias is None:
        return b.emit("RMSNormalization", x, scale, axis=b.get("axis", -1), epsilon=eps)
    return b.emit("LayerNormalization", x, scale, bias, axis=b.get("axis", -1), epsilon=eps)


def _layer_norm(b: Body) -> list[str]:
    return [_norm(b, b.name(0), b.name(1), b.name(2), b.get("epsilon", 1e-5))]


def _simple_norm(b: Body) -> list[str]:
    return [_norm(b, b.name(0), b.name(1), None, b.get("epsilon", 1e-5))]


def _skip_norm(b: Body) -> list[str]:
    whole = b.plus(b.emit("Add", b.name(0), b.name(1)), b.name(4))
    return [_norm(b, whole, b.name(2), b.name(3), b.get("epsilon", 1e-12)), "", "", whole]


def _skip_simple_norm(b: Body) -> list[str]:
    whole = b.plus(b.emit("Add", b.name(0), b.name(1)), b.name(3))
    return [_norm(b, whole, b.name(2), None, b.get("epsilon", 1e-12)), "", "", whole]


def _embedded(b: Body, rows: Callable[[int, str], str], gain: str, bias: str, places: str) -> list[str]:
    """The normalised sum of three embeddings: of each token, of its place, and of its text. `rows(k, indices)`: of the table that is input
    k."""
    ids = b.name(0)
    whole = b.emit("Add", rows(2, ids), rows(3, places or b.counted(b.constant(np.int64(0)), b.length(ids, 1))))
    if b.name(1):
        whole = b.emit("Add", whole, rows(4, b.name(1)))
    y = b.emit("LayerNormalization", whole, gain, bias, axis=-1, epsilon=b.get("epsilon", 1e-12))
    if b.name(7):
        counts = b.emit("ReduceSum", b.cast(b.name(7), np.int32), b.ints(1), keepdims=0)
    else:
        counts = b.emit("Mul", b.emit("ReduceSum", b.cast(ids, np.int32), b.ints(1), keepdims=0), b.constant(np.int32(0)))
    return [y, counts, whole]


def _embed_norm(b: Body) -> list[str]:
    return _embedded(b, lambda k, indices: b.emit("Gather", b.name(k), indices, axis=0), b.name(5), b.name(6), b.name(8))


def _quantised_embed_norm(b: Body) -> list[str]:
    """(ids, texts, three tables, gain, bias, mask, then scales and zero points of the quantised ones)."""

    def real(k: int, x: str) -> str:
        return b.emit("DequantizeLinear", x, b.name(k + 6), b.name(k + 11))

    def rows(k: int, indices: str) -> str:
        return real(k, b.emit("Gather", b.name(k), indices, axis=0))

    return _embedded(b, rows, real(5, b.name(5)), real(6, b.name(6)), "")[:2]


def _group_norm(b: Body) -> list[str]:
    return [_by_groups(b, b.name(0))]


def _skip_group_norm(b: Body) -> list[str]:
    """The skipped input may belong to a whole image."""
    skip = b.name(3)
    if len(b.tensor(3).shape) == 2:
        skip = b.emit("Unsqueeze", skip, b.ints(1, 2) if b.get("channels_last", 1) else b.ints(2, 3))
    bias = b.name(4)
    if bias and not b.get("channels_last", 1):
        bias = b.emit("Unsqueeze", bias, b.ints(1, 2))
    whole = b.plus(b.emit("Add", b.name(0), skip), bias)
    return [_by_groups(b, whole), whole]


def _by_groups(b: Body, x: str) -> str:
    last = b.get("channels_last", 1)
    x = b.emit("Transpose", x, perm=[0, 3, 1, 2]) if last else x
    groups, eps = b.get("groups", 1), b.get("epsilon", 1e-5)
    y = b.emit("GroupNormalization", x, b.name(1), b.name(2), num_groups=groups, epsilon=eps)
    if b.get("activation", 0):
        y = b.emit("Mul", y, b.emit("Sigmoid", y))
    return b.emit("Transpose", y, perm=[0, 2, 3, 1]) if last else y


RULES: Final[dict[str, Rule]] = {
    "EmbedLayerNormalization": _embed_norm,
    "GroupNorm": _group_norm,
    "LayerNormalization": _layer_norm,
    "QEmbedLayerNormalization": _quantised_embed_norm,
    "SimplifiedLayerNormalization": _simple_norm,
    "SkipGroupNorm": _skip_group_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_simple_norm,
}
