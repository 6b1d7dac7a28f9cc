"""The fused operators of `torch.nn.TransformerEncoderLayer` and `torch.nn.MultiheadAttention`, taken apart.

In inference these modules call one ATen operator for a whole layer, which is no core operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

_ATTENTION, _PADDING = 0, 1  # mask_type: [tokens, tokens], [batch, tokens]; else [batch, heads, tokens, tokens]


def _additive(mask: Any, mask_type: int | None, like: Any) -> Any:
    """A mask that is True where nothing may be seen, as what is added to scores."""
    if mask is None:
        return None
    hidden = mask.to(torch.bool)
    if mask_type == _ATTENTION:
        hidden = hidden.view(1, 1, *hidden.shape)
    elif mask_type == _PADDING:
        hidden = hidden.view(hidden.shape[0], 1, 1, hidden.shape[1])
    return torch.zeros(hidden.shape, dtype=like.dtype).masked_fill(hidden, float("-inf"))


def _attention(x: Any, heads: int, weights: tuple[Any, Any, Any, Any], mask: Any) -> Any:
    """Self-attention of [batch, tokens, width]. `weights`: of queries, keys and values together, then of the projection."""
    batch, tokens, width = x.shape
    together = F.linear(x, weights[0], weights[1]).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    q, k, v = together.unbind(0)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return F.linear(y.transpose(1, 2).reshape(batch, tokens, width), weights[2], weights[3])


def encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`aten._transformer_encoder_layer_fwd`."""
    added = _additive(mask, mask_type, src)
    weights = qkv_weight, qkv_bias, proj_weight, proj_bias

    def attend(x: Any) -> Any:
        return _attention(x, num_heads, weights, added)

    def feed_forward(x: Any) -> Any:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def first(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first(src))
        return x + feed_forward(second(x))
    x = first(src + attend(src))
    return second(x + feed_forward(x))


def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """`aten._native_multi_head_attention`, of one tensor with itself and without its weights; otherwise it stays whole."""
    if need_weights or query is not key or key is not value:
        return NotImplemented
    weights = qkv_weight, qkv_bias, proj_weight, proj_bias
    return _attention(query, num_head, weights, _additive(mask, mask_type, query)), query.new_empty(0)
