"""GroupQueryAttention: causal attention with a cache of keys and values, turned by their places on the way, of heads that share keys.

`total_sequence_length` is a number that shapes depend on, so it has to be known (`needs`); published models compute it from the shape of
their mask. `seqlens_k` says how many keys each text has, less one. One text whose cache grows has as many keys as the longest, so that its
new keys stand behind the old ones. Its lengths are known, and only is_causal hides any. With several texts, or one whose cache has room for
more, each one's new keys stand behind its own old ones. `total_sequence_length` says where the longest ends.

A quantised cache (`cache.py`) holds bytes, or two numbers of four bits in each: new keys and values are rounded like those in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aspen_mp.planner.frontends.contrib import cache
from aspen_mp.planner.frontends.contrib.attention import flat, heads, scaled
from aspen_mp.planner.frontends.contrib.body import Body, Rule

QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COS, SIN, PLACES, BIAS, SINK = range(12)
REFUSED: Final = {"GroupQueryAttention": {16: "padded queries"}}
_HIDDEN: Final = -1e30
_HIDDEN_OF_HALVES: Final = -3e4
"""The addend of a score of a key that a query does not see."""
NEEDS: Final = {"GroupQueryAttention": (TOTAL,)}
"""Inputs whose values have to be known."""


@dataclass(frozen=True, slots=True)
class _Lengths:
    """`batch` texts of `rows` new tokens each, behind `old` ones of `room` that the cache has place for. `window`: how many keys a token
    sees, 0: all. `ragged`: each text has its own number of old ones."""

    batch: int
    rows: int
    old: int
    room: int
    window: int
    ragged: bool

    @property
    def total(self) -> int:
        return self.old + self.rows

    @property
    def first(self) -> int:
        """How many of the oldest keys nobody sees any more."""
        return max(self.total - self.window - self.rows + 1, 0) if self.window and not self.ragged else 0

    @property
    def windowed(self) -> bool:
        """Whether a window hides keys that another token sees."""
        return 0 < self.window < self.total and (self.rows > 1 or self.ragged)


def _group_query(b: Body) -> list[str]:
    n = _lengths(b)
    held = [cache.held(b, what, b.get("kv_num_heads", 1)) for what in "kv"]
    causal = b.get("causal", 1)
    count, own = b.get("num_heads", 1), b.get("kv_num_heads", 1)
    q, k, v = _parts(b, count, own)
    q, k = (_turned(b, _normed(b, x, gain, heads_of), heads_of, n) for x, gain, heads_of in ((q, 14, count), (k, 15, own)))
    options: dict[str, Any] = {**scaled(b), **b.kept(("softcap",))}
    sinks = bool(b.name(SINK) or b.get("smooth_softmax", 0))
    if not sinks and not n.ragged and not n.first and n.room == n.old and not any(held):
        olds = [b.name(PAST_KEY), b.name(PAST_VALUE)] if n.room else []
        outs = [f"{b.node.output[0]}\0{what}" for what in ("seen", "keys", "values")]
        options |= {"q_num_heads": count, "kv_num_heads": own, "is_causal": causal, **_window(n)}
        return b.several("Attention", q, k, v, b.name(BIAS), *olds, outs=outs, **options)
    if sinks and n.windowed:
        raise b.unknown("has sinks and a window for several tokens at once, which is not known here")
    q = heads(b, q, count)
    stored = [x if h is None else cache.rounded(b, h, x) for h, x in zip(held, (k, v), strict=True)]
    pasts = [b.name(p) if h is None else cache.opened(b, h, b.name(p)) for h, p in zip(held, (PAST_KEY, PAST_VALUE), strict=True)]
    wholes = [_whole(b, n, past, new, own) for past, new in zip(pasts, stored, strict=True)]
    reals = [x if h is None else cache.real(b, h, x) for h, x in zip(held, wholes, strict=True)]
    several = n.ragged and n.rows > 1
    mask = _mask(b, n, sinks, _visible(b, n, bool(causal)) if several else b.name(BIAS))
    if n.ragged or n.rows == 1:  # keys are hidden by a text's length, or the mask, or nothing
        keys = [_behind_sink(b, _cut(b, x, n.first, n.total, n.total), sinks) for x in reals]
        inputs = [*keys, mask, "", "", _own(b, 1 + sinks) if n.ragged and not several else ""]
        options |= {} if several else _window(n)
    else:
        olds = [_behind_sink(b, b.cut(x, 2, n.first, n.old), sinks) for x in reals if n.old]
        news = [_cut(b, x, n.old, n.total, n.total) for x in reals]
        if sinks and not olds:
            olds = [_behind_sink(b, b.cut(x, 2, 0, 0), sinks) for x in news]
        inputs = [*news, mask, *olds]
        options |= {"is_causal": causal, **_window(n)}
    presents = [_longer(b, x, n.room - n.total) for x in wholes]
    presents = [x if h is None else cache.closed(b, h, x) for h, x in zip(held, presents, strict=True)]
    return [flat(b, b.emit("Attention", q, *inputs, **options)), *presents]


def _lengths(b: Body) -> _Lengths:
    batch, rows, _ = b.shape(QUERY, 3)
    if b.name(KEY) and b.shape(KEY, 3)[1] != rows:
        raise b.unknown(f"has {b.tensor(KEY).shape[1]} keys for {rows} queries")
    total = b.tensor(TOTAL).value().reshape(-1)
    room = b.shape(PAST_KEY, 4)[2] if b.name(PAST_KEY) else 0
    if total.size != 1 or not rows <= int(total[0]) <= rows + room:
        raise b.invalid(f"has {rows} new tokens and {room} in its cache, but a total_sequence_length of {total.tolist()}")
    old = int(total[0]) - rows
    ragged = (batch > 1 and (old > 0 or not b.get("causal", 1))) or 0 < old < room
    return _Lengths(batch, rows, old, room, max(b.get("local_window_size", -1), 0), ragged)


def _parts(b: Body, count: int, own: int) -> list[str]:
    """Queries, keys and values, which may lie side by side."""
    if b.name(KEY):
        return [b.name(QUERY), b.name(KEY), b.name(VALUE)]
    size = b.tensor(QUERY).shape[2] // (count + 2 * own)
    return b.split(b.name(QUERY), 2, [count * size, own * size, own * size])


def _normed(b: Body, x: str, gain: int, count: int) -> str:
    if not b.name(gain):
        return x
    name = "q_norm_epsilon" if gain == 14 else "k_norm_epsilon"
    eps = b.get(name, b.get("qk_norm_epsilon", 1e-6))
    apart = b.emit("Reshape", x, b.ints(0, 0, count, -1))
    return b.emit("Reshape", b.emit("RMSNormalization", apart, b.name(gain), axis=-1, epsilon=eps), b.ints(0, 0, -1))


# ------------------------------------------------------------------------------------------------------------------ places


def _turned(b: Body, x: str, count: int, n: _Lengths) -> str:
    if not b.get("do_rotary", 0):
        return x
    places = _places(b, n)
    angles = [b.once("Gather", b.name(k), places, axis=0) for k in (COS, SIN)]
    options = {"num_heads": count, "rotary_embedding_dim": 2 * b.shape(COS, 2)[1], "interleaved": b.get("rotary_interleaved", 0)}
    return b.emit("RotaryEmbedding", x, *angles, **options)


def _places(b: Body, n: _Lengths) -> str:
    """The places of the new tokens, [batch, tokens]. They count on from a length that the model computes: one plan may serve many."""
    if b.name(PLACES) and n.old:
        return b.name(PLACES)
    if n.ragged:
        first = b.once("Unsqueeze", _own(b, 1 - n.rows), b.ints(1))
        return first if n.rows == 1 else b.once("Add", first, _rows(b))
    row = b.counted(_start(b, n) if n.old else b.constant(np.int64(0)), _end(b))
    if b.name(PLACES):  # of the first token that there is
        first = b.once("Slice", b.once("Reshape", b.name(PLACES), b.ints(-1)), b.ints(0), b.ints(1))
        row = b.once("Add", row, first)
    return b.once("Expand", b.once("Unsqueeze", row, b.ints(0)), b.ints(n.batch, 1))


def _end(b: Body) -> str:
    """`total_sequence_length` as the model computes it."""
    return b.once("Reshape", b.once("Cast", b.name(TOTAL), to=7), b.constant(np.zeros(0, np.int64)))  # int64


def _rows(b: Body) -> str:
    """Numbers of the new tokens."""
    return b.counted(b.constant(np.int64(0)), b.length(b.name(QUERY), 1))


def _start(b: Body, n: _Lengths) -> str:
    """The place of the first new token."""
    return b.once("Sub", _end(b), b.constant(np.int64(n.rows)))


def _own(b: Body, more: int) -> str:
    """The sum of each text's entry of `seqlens_k` and `more`, [batch]."""
    lengths = b.once("Reshape", b.once("Cast", b.name(LENGTHS), to=7), b.ints(-1))  # int64
    return b.once("Add", lengths, b.ints(more))


# ------------------------------------------------------------------------------------------------------------------- cache


def _whole(b: Body, n: _Lengths, past: str, new: str, count: int) -> str:
    """The old keys (or values), [batch, heads, places, d], and the new ones, [batch, tokens, heads · d], where they belong. With several
    texts, each has its new one in all places behind its old ones. Only the first of them counts; the others replace the cache's arbitrary
    content."""
    if not n.old:
        return heads(b, new, count)
    if n.ragged and n.rows > 1:
        return _among(b, n, past, new, count)
    new, old = heads(b, new, count), _cut(b, past, 0, n.old, n.room)
    if n.ragged:
        columns = b.once("Unsqueeze", b.counted(b.constant(np.int64(0)), _start(b, n)), b.ints(1))
        mine = b.once("Less", columns, b.once("Unsqueeze", _own(b, 0), b.ints(1, 2, 3)))
        old = b.emit("Where", mine, old, new)
    return b.emit("Concat", old, new, axis=2)


def _among(b: Body, n: _Lengths, past: str, new: str, count: int) -> str:
    """The new keys (or values) of each text behind its own old ones; [batch, heads, total, d]."""
    place = _places_behind(b, n)
    inside = b.once("And", b.once("GreaterOrEqual", place, b.ints(0)), b.once("Less", place, b.ints(n.rows)))
    which = b.once("Clip", place, b.constant(np.int64(0)), b.constant(np.int64(n.rows - 1)))
    spread = heads(b, b.emit("GatherND", new, b.once("Unsqueeze", which, b.ints(2)), batch_dims=1), count)
    old = _longer(b, _cut(b, past, 0, min(n.total, n.room), n.room), n.total - n.room)
    return b.emit("Where", b.once("Unsqueeze", inside, b.ints(1, 3)), spread, old)


def _places_behind(b: Body, n: _Lengths) -> str:
    """How far each place of a text is behind its last old key, [batch, total]."""
    columns = b.once("Unsqueeze", b.counted(b.constant(np.int64(0)), _end(b)), b.ints(0))
    return b.once("Sub", columns, b.once("Unsqueeze", _own(b, 1 - n.rows), b.ints(1)))


def _longer(b: Body, x: str, more: int) -> str:
    return b.emit("Pad", x, b.ints(0, 0, 0, 0, 0, 0, more, 0)) if more > 0 else x


def _cut(b: Body, x: str, start: int, stop: int, length: int) -> str:
    return x if (start, stop) == (0, length) else b.cut(x, 2, start, stop)


def _behind_sink(b: Body, x: str, sinks: bool) -> str:
    """A key of zeros in front, whose score is 0 whatever the query is, and whose value adds nothing. The share of a sink is lost."""
    return b.emit("Pad", x, b.ints(0, 0, 1, 0, 0, 0, 0, 0)) if sinks else x


# -------------------------------------------------------------------------------------------------------------------- masks


def _window(n: _Lengths) -> dict[str, int]:
    """The window's attribute for keys in which nothing is left out but the oldest."""
    return {"left_window_size": n.window - 1} if n.windowed else {}


def _visible(b: Body, n: _Lengths, causal: bool) -> str:
    """The addend of scores of several new tokens of each text, [batch, 1, tokens, total]. It is the model's own bias, and the mask of keys
    that a token does not see."""
    places = b.once("Unsqueeze", _places_behind(b, n), b.ints(1, 2))
    ends = b.once("Unsqueeze", _rows(b) if causal else b.ints(n.rows - 1), b.ints(0, 1, 3))
    seen = b.once("LessOrEqual", places, ends)
    if n.windowed:
        seen = b.once("And", seen, b.once("Greater", places, b.once("Sub", ends, b.ints(n.window))))
    dtype = b.tensor(QUERY).dtype
    hidden = np.array(_HIDDEN_OF_HALVES if dtype == np.float16 else _HIDDEN).astype(dtype)
    added = b.once("Where", seen, b.constant(np.zeros((), dtype)), b.constant(hidden))
    return b.emit("Add", added, b.name(BIAS)) if b.name(BIAS) else added


def _mask(b: Body, n: _Lengths, sinks: bool, bias: str) -> str:
    """The addend of scores: `bias`, and the score of each head's sink, in a column in front."""
    if bias and n.first:
        bias = b.cut(bias, 3, n.first, n.total)
    if not sinks:
        return bias
    if bias:
        bias = b.emit("Pad", bias, b.ints(0, 0, 0, 1, 0, 0, 0, 0))
    if not b.name(SINK):
        return bias
    column = b.emit("Reshape", b.name(SINK), b.ints(1, -1, 1, 1))
    column = b.emit("Pad", column, b.ints(0, 0, 0, 0, 0, 0, 0, n.total - n.first))
    return b.emit("Add", bias, column) if bias else column


RULES: Final[dict[str, Rule]] = {"GroupQueryAttention": _group_query}
UNKNOWN: Final = {"GroupQueryAttention": {"sliding_window_cache", "qk_output"}}
