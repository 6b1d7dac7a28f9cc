"""Attention with as many heads of keys as of queries, of the optimizer's (Attention, MultiHeadAttention, QAttention), and RotaryEmbedding.

Masks are added to the scores, as onnxruntime does it: a query that is to see nothing but padding sees all of it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aspen_mp.planner.frontends.contrib.body import Body, Rule

_UNSEEN = -10000.0


def heads(b: Body, x: str, count: int) -> str:
    """[batch, tokens, heads · d] → [batch, heads, tokens, d]."""
    return b.emit("Transpose", b.emit("Reshape", x, b.ints(0, 0, count, -1)), perm=[0, 2, 1, 3])


def flat(b: Body, x: str) -> str:
    """The other way."""
    return b.emit("Reshape", b.emit("Transpose", x, perm=[0, 2, 1, 3]), b.ints(0, 0, -1))


def scaled(b: Body) -> dict[str, Any]:
    scale = b.get("scale", 0.0)
    return {"scale": scale} if scale else {}


# ------------------------------------------------------------------------------------------------------------------- masks


def _mask(b: Body, k: int, tokens: int, keys: str, total: int, bias: str) -> str:
    """Input k and the addend of the scores (`bias`) as one mask of floats, for a number of tokens. `keys` computes the number of keys,
    `total`."""
    mask = b.optional(k)
    if mask is None:
        return bias
    shape, name, batch = mask.shape, b.name(k), b.tensor(0).shape[0]
    if len(shape) == 1:
        seen = _between(b, name, shape[0], batch, keys)
    elif len(shape) == 2 and shape[0] in {1, batch} and shape[1] == total:
        seen = b.once("Unsqueeze", b.once("Cast", name, to=9), b.ints(1, 2))  # bool
    elif len(shape) == 3 and shape[1:] == (tokens, total):
        seen = b.once("Unsqueeze", b.once("Cast", name, to=9), b.ints(1))
    else:
        raise b.unknown(f"has a mask of shape {list(shape)} for {tokens} tokens and {total} keys")
    fill = b.constant(np.array(b.get("mask_filter_value", _UNSEEN), _float(b)))
    added = b.once("Where", seen, b.constant(np.zeros((), _float(b))), fill)
    return b.once("Add", added, bias) if bias else added


def _float(b: Body) -> np.dtype[Any]:
    """The type of the scores: input 0 may be quantised."""
    dtype = b.tensor(0).dtype
    return dtype if dtype.kind not in "iu" else np.dtype(np.float32)


def _between(b: Body, name: str, count: int, batch: int, keys: str) -> str:
    """Keys before one end for each text, or between an end and a beginning, ends first."""
    columns = b.counted(b.constant(np.int64(0)), keys)
    bounds = b.once("Cast", name, to=7)  # int64
    if count == batch:
        return b.once("Unsqueeze", b.once("Less", columns, b.once("Unsqueeze", bounds, b.ints(1))), b.ints(1, 2))
    if count != 2 * batch:
        raise b.unknown(f"has a mask of {count} numbers for {batch} texts")
    pairs = b.once("Unsqueeze", b.once("Reshape", bounds, b.ints(2, -1)), b.ints(2))
    end, start = (b.once("Gather", pairs, b.constant(np.int64(k)), axis=0) for k in (0, 1))
    inside = b.once("And", b.once("Less", columns, end), b.once("GreaterOrEqual", columns, start))
    return b.once("Unsqueeze", inside, b.ints(1, 2))


# --------------------------------------------------------------------------------------------------------------- operators


def _attention(b: Body) -> list[str]:
    projected = b.plus(b.emit("MatMul", b.name(0), b.name(1)), b.name(2))
    return attended(b, projected, b.tensor(1).shape[1], mask=3, past=4, bias=5)


def attended(b: Body, projected: str, width: int, *, mask: int, past: int, bias: int) -> list[str]:
    """Attention among projected queries, keys and values, side by side in `width` columns, and the keys and values of input `past`:
    (result, keys and values)."""
    count = b.get("num_heads", 1)
    sizes = [int(n) for n in b.get("qkv_hidden_sizes", None) or [width // 3] * 3]
    q, k, v = b.split(projected, 2, sizes)
    tokens, keys, total = b.tensor(0).shape[1], b.length(b.name(0), 1), b.tensor(0).shape[1]
    olds: list[str] = []
    if b.name(past):
        total += b.shape(past, 5)[3]
        keys = b.once("Add", keys, b.length(b.name(past), 3))
        olds = [b.emit("Gather", b.name(past), b.constant(np.int64(n)), axis=0) for n in (0, 1)]
    inputs = [q, k, v, _mask(b, mask, tokens, keys, total, b.name(bias) if bias >= 0 else ""), *olds]
    options = {"q_num_heads": count, "kv_num_heads": count, "is_causal": b.get("unidirectional", 0), **scaled(b)}
    presents = len(b.node.output) > 1 and b.node.output[1]
    outs = [f"{b.node.output[0]}\0{what}" for what in ("seen", "keys", "values")[: 3 if presents else 1]]
    y = b.several("Attention", *inputs, outs=outs, **options)
    if not presents:
        return y
    return [y[0], b.emit("Concat", *(b.emit("Unsqueeze", t, b.ints(0)) for t in y[1:]), axis=0)]


def _multi_head(b: Body) -> list[str]:
    count, query, key = b.get("num_heads", 1), b.tensor(0), b.optional(1)
    if len(query.shape) == 5:  # [batch, tokens, heads, 3, d]
        q, k, v = _unpacked(b, b.name(0), 3)
    elif key is None:
        raise b.unknown("has queries, keys and values side by side")
    elif len(key.shape) == 5:
        q, (k, v) = b.name(0), _unpacked(b, b.name(1), 2)
    else:
        q, k, v = b.name(0), b.name(1), b.name(2)
    ready = key is not None and len(key.shape) == 4  # keys and values of another text, [batch, heads, tokens, d]
    if b.name(3):
        q, k, v = _biased(b, (q, k, v), ready)
    if not ready:
        k, v = heads(b, k, count), heads(b, v, count)
    inputs, olds = [heads(b, q, count), k, v], [b.name(6), b.name(7)]
    where, axis = (b.name(1), 2 if ready else 1) if key is not None else (b.name(0), 1)
    shape = key.shape if key is not None else query.shape
    keys, total = b.length(where, axis), shape[axis]
    if olds[0]:
        total += b.shape(6, 4)[2]
        keys = b.once("Add", keys, b.length(olds[0], 2))
    mask = _mask(b, 4, query.shape[1], keys, total, b.name(5))
    outs = [f"{b.node.output[0]}\0{what}" for what in ("seen", "keys", "values")]
    y, *presents = b.several("Attention", *inputs, mask, *olds, outs=outs, is_causal=b.get("unidirectional", 0), **scaled(b))
    return [flat(b, y), *presents]


def _unpacked(b: Body, x: str, count: int) -> list[str]:
    """[batch, tokens, heads, count, d] → `count` of [batch, tokens, heads · d]."""
    parts = (b.emit("Gather", x, b.constant(np.int64(n)), axis=3) for n in range(count))
    return [b.emit("Reshape", part, b.ints(0, 0, -1)) for part in parts]


def _biased(b: Body, parts: tuple[str, str, str], ready: bool) -> tuple[str, ...]:
    """Each with its part of input 3; of keys that are `ready`, the queries alone."""
    query, width = b.tensor(0), b.shape(3, 1)[0]
    own = query.shape[2] if len(query.shape) == 3 else query.shape[2] * query.shape[4]
    if ready:
        return b.emit("Add", parts[0], b.cut(b.name(3), 0, 0, own)), *parts[1:]
    return tuple(b.emit("Add", x, bias) for x, bias in zip(parts, b.split(b.name(3), 0, [own, own, width - 2 * own]), strict=True))


# ------------------------------------------------------------------------------------------------------------------ places


def _rotary(b: Body) -> list[str]:
    """Places are those of all tokens, or the first one's."""
    x, places, width = b.tensor(0), b.name(1), 2 * b.shape(2, 2)[1]
    own, count = b.get("rotary_embedding_dim", 0), b.get("num_heads", 0)
    options: dict[str, Any] = {"interleaved": b.get("interleaved", 0)}
    tokens = 1 if len(x.shape) == 3 else 2
    if len(x.shape) == 3:
        options["num_heads"] = count or x.shape[2] // width
    if own or width < (x.shape[3] if len(x.shape) == 4 else x.shape[2] // options["num_heads"]):
        options["rotary_embedding_dim"] = own or width
    if len(b.tensor(1).shape) == 1:
        row = places
        if x.shape[tokens] > 1:
            row = b.once("Add", b.counted(b.constant(np.int64(0)), b.length(b.name(0), tokens)), places)
        places = b.once("Expand", b.once("Unsqueeze", row, b.ints(0)), b.ints(x.shape[0], 1))
    angles = [b.once("Gather", b.name(k), places, axis=0) for k in (2, 3)]
    return [b.emit("RotaryEmbedding", b.name(0), *angles, **options)]


RULES: Final[dict[str, Rule]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
}
UNKNOWN: Final = {
    "Attention": {"do_rotary", "past_present_share_buffer", "rotary_embedding_dim"},
    "RotaryEmbedding": {"is_packed_batching"},
}
REFUSED: Final = {
    "Attention": {6: "a cache that it writes into"},
    "MultiHeadAttention": {8: "a cache that it writes into", 9: "texts that share a cache"},
}
