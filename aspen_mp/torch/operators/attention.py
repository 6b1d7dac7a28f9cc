"""Attention, kept whole: one ONNX node, which the planner has a kernel for."""

from __future__ import annotations

import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import Builder, Value
from aspen_mp.torch.registry import Unsupported, aten


def _attention(b: Builder, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float | None) -> Value:
    if q.rank != 4 or not k.rank == v.rank == 4:
        raise Unsupported("attention without batch and heads")
    if causal and not sizes.same(q.shape[2], k.shape[2]):
        raise Unsupported("a causal mask for unlike numbers of queries and keys")
    if mask is not None and mask.dtype != torch.bool:
        mask = b.cast(mask, q.dtype)
    if mask is not None and mask.rank < 4:
        mask = b.reshape(mask, [*[1] * (4 - mask.rank), *mask.shape])
    return b.emit("Attention", q, k, v, mask, is_causal=int(causal), scale=None if scale is None else float(scale))


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash(
    b: Builder,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, None]:
    if dropout_p or 1 in b.used:
        raise Unsupported("dropout, or sums of exponentials, of attention")
    return _attention(b, q, k, v, attn_mask, is_causal, scale), None
