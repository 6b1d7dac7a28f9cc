"""The Attention operator (opsets 23 and up), straight to its kernel: all limits of a query's view become a causal offset and one mask."""

from __future__ import annotations

from math import isinf, sqrt

import numpy as np

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import BOOL, F32, I64, Builder, NoKernel, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.registry import rule

_RAW, _CAPPED, _MASKED = range(3)  # qk_matmul_output_mode; 3 is behind the softmax


@rule("Attention")
def _attention(b: Builder, node: Node) -> list[Tensor]:
    q, k, v = data(node), data(node, 1), data(node, 2)
    require_f32(q, k, v)
    flat = len(q.shape) == 3
    if flat:
        heads, kv_heads = int(node.attrs["q_num_heads"]), int(node.attrs["kv_num_heads"])
        q, k, v = _heads(b, q, heads), _heads(b, k, kv_heads), _heads(b, v, kv_heads)
    past_key, past_value = optional(node, 4), optional(node, 5)
    past = past_key.shape[2] if past_key is not None else 0
    k = k if past_key is None else b.concat([past_key, k], 2)
    v = v if past_value is None else b.concat([past_value, v], 2)
    batch, heads, rows, depth = q.shape
    kv_heads, keys = k.shape[1:3]
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        raise NoKernel("a tensor is empty")
    scale, cap = float(node.attrs.get("scale", 1 / sqrt(depth))), float(node.attrs.get("softcap", 0.0))
    cap = cap if cap > 0.0 else 0.0  # so the definition: what is not positive caps nothing
    most = np.finfo(np.float32).max
    if not abs(scale) <= float(most) ** 2 or isinf(cap):  # queries and keys are multiplied by its square root in their own type
        raise NoKernel("scores are not finite")
    causal, offset, mask = _masks(b, node, rows, keys, past)
    y = attend(b, q, k, v, mask, scale=scale, causal=causal, offset=offset, softcap=cap)
    if flat:
        y = b.reshape(b.transpose(y, (0, 2, 1, 3)), (batch, rows, heads * v.shape[-1]))
    results = [y, k, v][: len(node.outputs)]
    if len(node.outputs) > 3 and node.outputs[3].name:
        mode = int(node.attrs.get("qk_matmul_output_mode", 0))
        results.append(_scores(b, q, _repeated(b, k, heads), mask, (causal, offset), scale, cap, mode))
    return results


def _heads(b: Builder, x: Tensor, heads: int) -> Tensor:
    """[batch, tokens, heads * d] → [batch, heads, tokens, d]."""
    return b.transpose(b.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads)), (0, 2, 1, 3))


def attend(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, causal: bool, offset: int, softcap: float
) -> Tensor:
    """ATTENTION of [batch, heads, rows, d]; fewer heads of k and v are shared by groups of queries. Rows that see nothing give zeros."""
    batch, heads, rows, depth = q.shape
    shape: tuple[int, ...] = (batch, heads, rows, v.shape[-1])
    kv_heads, keys = k.shape[1:3]
    if heads % kv_heads:
        raise NoKernel(f"{heads} heads of queries are not a multiple of {kv_heads} of keys")
    groups = heads // kv_heads
    mask = None if mask is None else b.align(mask, 4)
    if groups > 1:
        q = b.reshape(q, (batch, kv_heads, groups, rows, depth))
        k, v = (b.reshape(t, (batch, kv_heads, 1, keys, t.shape[-1])) for t in (k, v))
        if mask is not None:
            split = (kv_heads, groups) if mask.shape[1] > 1 else (1, 1)
            mask = b.reshape(mask, (mask.shape[0], *split, *mask.shape[2:]))
        shape = (batch, kv_heads, groups, rows, v.shape[-1])
    out = b.emit(
        "ATTENTION",
        [q, k, v, mask],
        shape,
        F32,
        scale=scale,
        causal=causal,
        offset=offset,
        fill=-np.inf,
        softcap=softcap,
        guard="unseen",
        mask_first=False,
    )
    return b.reshape(out, (batch, heads, rows, v.shape[-1]))


def _masks(b: Builder, node: Node, rows: int, keys: int, past: int) -> tuple[bool, int, Tensor | None]:
    """(causal, its offset, one mask): is_causal, windows, the given mask and the numbers of keys that are not padding."""
    given, lengths = optional(node, 3), optional(node, 6)
    causal = bool(node.attrs.get("is_causal", 0))
    left, right = int(node.attrs.get("left_window_size", -1)), int(node.attrs.get("right_window_size", -1))
    keep: Tensor | None = None

    def also(condition: Tensor) -> None:
        nonlocal keep
        keep = condition if keep is None else b.binary("AND", keep, condition, BOOL)

    columns = b.constant(np.arange(keys).reshape(1, 1, 1, keys), I64)
    places = b.constant(np.arange(rows).reshape(1, 1, rows, 1) + past, I64)  # of the queries among the keys
    if lengths is not None:
        lengths = b.reshape(b.cast(lengths, I64), (lengths.size, 1, 1, 1))
        also(b.binary("LESS", columns, lengths, BOOL))
        if causal or left >= 0 or right >= 0:
            first = b.binary("SUB", lengths, b.constant(rows, I64))
            places = b.binary("ADD", b.constant(np.arange(rows).reshape(1, 1, rows, 1), I64), first)
    if causal and lengths is not None:
        also(b.binary("LESS_EQUAL", columns, places, BOOL))
        causal = False
    if left >= 0:
        also(b.binary("GREATER_EQUAL", columns, _minus(b, places, left), BOOL))
    if right >= 0:
        also(b.binary("LESS_EQUAL", columns, _minus(b, places, -right), BOOL))
    if given is None:
        return causal, past, keep
    if given.shape[-1] < keys:  # keys missing at the end may not be seen
        value = b.constant(False if given.dtype == BOOL else -np.inf, given.dtype)
        shape = (*given.shape[:-1], keys)
        given = b.emit("PAD", [given, value], shape, given.dtype, mode="CONSTANT", begin=(0,) * len(shape))
    if given.dtype == BOOL:
        also(given)
        return causal, past, keep
    require_f32(given)
    return causal, past, given if keep is None else b.ternary("WHERE", keep, given, b.constant(-np.inf, F32))


def _minus(b: Builder, x: Tensor, n: int) -> Tensor:
    return b.binary("SUB", x, b.constant(n, I64))


def _repeated(b: Builder, x: Tensor, heads: int) -> Tensor:
    batch, own, keys, depth = x.shape
    if own == heads:
        return x
    wide = b.expand(b.reshape(x, (batch, own, 1, keys, depth)), (batch, own, heads // own, keys, depth))
    return b.reshape(wide, (batch, heads, keys, depth))


def _scores(b: Builder, q: Tensor, k: Tensor, mask: Tensor | None, causal: tuple[bool, int], scale: float, cap: float, mode: int) -> Tensor:
    """The scores themselves, for those who ask: as they are, capped, masked, or as probabilities."""
    s = b.gemm(q, b.transpose(k, (0, 1, 3, 2)), alpha=scale)
    if mode == _RAW:
        return s
    if cap > 0.0:
        c = b.constant(cap, F32)
        s = b.binary("MUL", b.unary("TANH", b.binary("DIV", s, c)), c)
    if mode == _CAPPED:
        return s
    rows, keys = s.shape[2:]
    below = b.constant(-np.inf, F32)
    if causal[0]:
        see = np.arange(keys) <= np.arange(rows)[:, None] + causal[1]
        s = b.ternary("WHERE", b.constant(see[None, None]), s, below)
    if mask is not None:
        s = b.ternary("WHERE", mask, s, below) if mask.dtype == BOOL else b.binary("ADD", s, b.align(mask, 4))
    if mode == _MASKED:
        return s
    top = b.reduce("MAX", s, [3])
    return b.ternary("WHERE", b.binary("EQUAL", top, below, BOOL), b.constant(0.0, F32), b.softmax(s, 3))
