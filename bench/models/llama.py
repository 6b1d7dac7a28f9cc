"""Llama-style decoders (arXiv:2302.13971) as Hugging Face's `LlamaForCausalLM` defines them; by default the sizes of SmolLM2-135M."""

from __future__ import annotations

import numpy as np
import onnx

from .net import PAST, TOTAL, Dim, Init, Weights, product
from .text import LOWEST, TextNet, TextOptions

THETA = 100_000.0
SPELLINGS = ("spelled", "op")


def llama(
    name: str,
    options: TextOptions,
    weights: Weights,
    *,
    layers: int = 30,
    hidden: int = 576,
    heads: int = 9,
    kv_heads: int = 3,
    inner: int = 1536,
    vocab: int = 49152,
    ops: str = "spelled",
    cache: bool = False,
    past: int = 0,
) -> onnx.ModelProto:
    """Input input_ids (int64 [batch, seq]); output logits [batch, seq, vocab].

    `cache`: a step of decoding. Further inputs are attention_mask (int64 [batch, total], 0 for tokens that nobody looks at) and, for each
    layer i, past_key_values.i.key and .value (f32 [batch, kv_heads, past, head]). Further outputs are present.i.key and .value (f32 [batch,
    kv_heads, total, head]), the same with the new tokens behind them: total = past + seq. `past`: how many tokens have gone before, left
    open where seq is.
    `ops`: "spelled" or "op". With "spelled", RMSNorm, rotary embedding, repeated key heads and attention are as the PyTorch exporter writes
    them out. With "op" they are RMSNormalization, RotaryEmbedding and Attention of opset 23, which `opset` then has to be.
    """
    if ops not in SPELLINGS:
        raise ValueError(f"ops={ops!r}: one of {', '.join(SPELLINGS)}")
    if ops == "op" and options.opset < 23:
        raise ValueError(f"{name}: opset {options.opset} has no RMSNormalization, RotaryEmbedding and Attention; they need 23")
    if cache and ops == "op":
        raise ValueError(f"{name}: a cache needs ops='spelled'")
    if past < 0 or (past and not cache):
        raise ValueError(f"{name}: past={past}: must be 0" + (" or more" if cache else " without cache=True"))
    if heads % kv_heads:
        raise ValueError(f"{name}: heads={heads} is not a multiple of kv_heads={kv_heads}")
    net = LlamaNet(name, options, weights, hidden=hidden, heads=heads, eps=1e-5)
    net.kv_heads, net.fused = kv_heads, ops == "op"
    ids = net.tokens("input_ids", "tokens", vocab)
    caches = net.caches(layers, past if isinstance(options.seq, int) else PAST) if cache else []
    x = net.embedding(ids, "model.embed_tokens.weight", vocab, 1 / hidden**0.5)
    cos, sin = net.angles(ids)
    mask = "" if net.fused else net.causal_mask(ids)
    for layer in range(layers):
        before = caches[layer] if cache else None
        x = net.block(x, ids, (cos, sin), mask, before, f"model.layers.{layer}", inner, 1 / (2 * layers))
    x = net.rms_norm(x, "model.norm")
    net.add_macs(product(options.batch, options.seq, hidden, vocab))
    logits = net.op("MatMul", x, net.op("Transpose", "model.embed_tokens.weight", perm=[1, 0]), name="lm_head/MatMul")
    net.output(logits, "logits", [options.batch, options.seq, vocab])
    for layer, tensors in enumerate(net.present):
        for tensor, what in zip(tensors, ("key", "value"), strict=True):
            net.output(tensor, f"present.{layer}.{what}", [options.batch, kv_heads, net.total, net.head])
    return net.finish()


class LlamaNet(TextNet):
    """RMSNorm, rotary embedding, grouped-query attention and SwiGLU; parameters are named as in Hugging Face checkpoints."""

    kv_heads: int
    fused: bool
    past: Dim | None = None  # no cache

    def __init__(self, name: str, options: TextOptions, weights: Weights, *, hidden: int, heads: int, eps: float) -> None:
        super().__init__(name, options, weights, hidden=hidden, heads=heads, eps=eps)
        self.present: list[tuple[str, str]] = []

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def total(self) -> Dim:
        """Tokens with keys: old and new ones."""
        if self.past is None:
            return self.options.seq
        return self.past + self.options.seq if isinstance(self.past, int) and isinstance(self.options.seq, int) else TOTAL

    def caches(self, layers: int, past: Dim) -> list[tuple[str, str]]:
        """The further inputs of a step; keys and values of each layer."""
        self.past = past
        batch = self.options.batch
        self.input("attention_mask", onnx.TensorProto.INT64, [batch, self.total], kind="left_mask")
        names = [(f"past_key_values.{layer}.key", f"past_key_values.{layer}.value") for layer in range(layers)]
        for name in (name for pair in names for name in pair):
            self.input(name, onnx.TensorProto.FLOAT, [batch, self.kv_heads, past, self.head])
        return names

    def keys(self, ids: str) -> str:
        """`total` as int64[1]"""
        return self.dim(ids, 1, self.total) if self.past is None else self.dim("attention_mask", 1, self.total)

    def projection(self, x: str, name: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """A linear layer without bias; the checkpoint holds the weight as [outputs, inputs]."""
        weight = self.param(f"{name}.weight", (inputs, outputs), Init((gain / inputs) ** 0.5), transposed=True)
        self.add_macs(product(self.options.batch, self.options.seq, inputs, outputs))
        return self.op("MatMul", x, weight, name=f"{name}/MatMul")

    def rms_norm(self, x: str, name: str) -> str:
        scale = self.param(f"{name}.weight", (self.hidden,), Init(0.1, 1.0))
        if self.fused:
            return self.op("RMSNormalization", x, scale, axis=-1, epsilon=self.eps)
        wide = self.op("Cast", x, to=onnx.TensorProto.FLOAT)
        mean = self.reduce_mean(self.op("Pow", wide, self.scalar(2.0)), [-1])
        inverse = self.op("Reciprocal", self.op("Sqrt", self.op("Add", mean, self.scalar(self.eps))))
        return self.op("Mul", scale, self.op("Cast", self.op("Mul", wide, inverse), to=onnx.TensorProto.FLOAT))

    def positions(self, ids: str) -> str:
        """int64 [1, seq]"""
        seq, past = self.options.seq, self.past or 0
        if isinstance(seq, int) and isinstance(past, int):
            return self.const(np.arange(past, past + seq, dtype=np.int64)[None])
        start, one = self.const(np.array(0, np.int64)), self.const(np.array(1, np.int64))
        if self.past is not None:
            start = self.op("Squeeze", self.dim("past_key_values.0.key", 2, past), self.ints(0))
        return self.op("Unsqueeze", self.op("Range", start, self.op("Squeeze", self.keys(ids), self.ints(0)), one), self.ints(0))

    def angles(self, ids: str) -> tuple[str, str]:
        """cos and sin: [1, 1, seq, head], or [batch, seq, head / 2] for the operator."""
        rates = (1.0 / THETA ** (np.arange(0, self.head, 2) / self.head)).astype(np.float32)
        places = self.op("Cast", self.op("Unsqueeze", self.positions(ids), self.ints(1)), to=onnx.TensorProto.FLOAT)
        angle = self.op("Transpose", self.op("MatMul", self.const(rates[None, :, None]), places), perm=[0, 2, 1])
        if self.fused:
            tables = [self.op("Cos", angle), self.op("Sin", angle)]
            if self.options.batch != 1:
                shape = self.op("Concat", self.dim(ids, 0, self.options.batch), self.ints(1, 1), axis=0)
                tables = [self.op("Expand", table, shape) for table in tables]
            return tables[0], tables[1]
        both = self.op("Concat", angle, angle, axis=-1)
        cos, sin = (self.op("Mul", self.op(f, both), self.scalar(1.0)) for f in ("Cos", "Sin"))
        return self.op("Unsqueeze", cos, self.ints(1)), self.op("Unsqueeze", sin, self.ints(1))

    def causal_mask(self, ids: str) -> str:
        """float32 [1, 1, seq, seq], or [batch, 1, seq, total] with a cache: 0 where a token may look, the lowest float elsewhere."""
        if self.past is not None:
            return self.step_mask(ids)
        seq = self.options.seq
        lowest = np.finfo(np.float32).min
        if isinstance(seq, int):
            return self.const(np.triu(np.full((seq, seq), lowest, np.float32), 1)[None, None])
        size = self.op("Concat", self.dim(ids, 1, seq), self.dim(ids, 1, seq), axis=0)
        full = self.op("Expand", self.scalar(float(lowest)), size)
        return self.op("Unsqueeze", self.op("Trilu", full, self.const(np.array(1, np.int64)), upper=1), self.ints(0, 1))

    def step_mask(self, ids: str) -> str:
        """The causal mask of a step with a cache, and the lowest float where attention_mask is 0 too."""
        seq, total = self.options.seq, self.total
        if isinstance(seq, int) and isinstance(total, int):
            causal = self.const(np.triu(np.full((seq, total), LOWEST, np.float32), 1 + total - seq)[None, None])
        else:
            zero, one = self.const(np.array(0, np.int64)), self.const(np.array(1, np.int64))
            every = self.op("Range", zero, self.op("Squeeze", self.keys(ids), self.ints(0)), one)
            later = self.op("Greater", every, self.op("Unsqueeze", self.positions(ids), self.ints(1, 3)))
            causal = self.op("Mul", self.op("Cast", later, to=onnx.TensorProto.FLOAT), self.scalar(LOWEST))
        looked = self.op("Cast", self.op("Unsqueeze", "attention_mask", self.ints(1, 2)), to=onnx.TensorProto.FLOAT)
        padded = self.op("Equal", self.op("Add", causal, looked), self.scalar(0.0))
        return self.op("Where", padded, self.scalar(LOWEST), causal)

    def split_heads(self, x: str, ids: str, count: int) -> str:
        """[batch, seq, count · head] → [batch, count, seq, head]"""
        return self.op("Transpose", self.reshape(x, ids, (count, self.head)), perm=[0, 2, 1, 3])

    def rotated(self, x: str, angles: tuple[str, str]) -> str:
        """Rotary embedding (arXiv:2104.09864) of [batch, heads, seq, head], halves of a head being the two coordinates."""
        if self.fused:
            return self.op("RotaryEmbedding", x, *angles)
        half = self.head // 2
        first = self.op("Slice", x, self.ints(0), self.ints(half), self.ints(3), self.ints(1))
        second = self.op("Slice", x, self.ints(half), self.ints(np.iinfo(np.int64).max), self.ints(3), self.ints(1))
        turned = self.op("Concat", self.op("Neg", second), first, axis=-1)
        return self.op("Add", self.op("Mul", x, angles[0]), self.op("Mul", turned, angles[1]))

    def repeated(self, x: str, ids: str) -> str:
        """[batch, kv_heads, total, head] → [batch, heads, total, head], each head as often as queries share it."""
        groups = self.heads // self.kv_heads
        if groups == 1:
            return x
        batch, total = self.dim(ids, 0, self.options.batch), self.keys(ids)
        shapes = [
            self.op("Concat", batch, self.ints(*count), total, self.ints(self.head), axis=0)
            for count in ((self.kv_heads, groups), (self.heads,))
        ]
        return self.op("Reshape", self.op("Expand", self.op("Unsqueeze", x, self.ints(2)), shapes[0]), shapes[1])

    def attended(self, q: str, k: str, v: str, ids: str, mask: str) -> str:
        """[batch, heads, seq, head]"""
        if self.fused:
            batch, seq = self.options.batch, self.options.seq
            macs = product(batch, seq, seq, self.hidden)
            self.add_macs(None if macs is None else 2 * macs)
            return self.op("Attention", q, k, v, is_causal=1, scale=self.head**-0.5)
        keys = self.op("Transpose", self.repeated(k, ids), perm=[0, 1, 3, 2])
        return self.weighted(self.op("Add", self.scores(q, keys, self.total), mask), self.repeated(v, ids))

    def block(
        self,
        x: str,
        ids: str,
        angles: tuple[str, str],
        mask: str,
        before: tuple[str, str] | None,
        name: str,
        inner: int,
        residual: float,
    ) -> str:
        """`before`: keys and values of the cache; `residual`: variance that each of the two branches adds to the stream."""
        hidden, few = self.hidden, self.kv_heads * self.head
        y = self.rms_norm(x, f"{name}.input_layernorm")
        q = self.rotated(self.split_heads(self.projection(y, f"{name}.self_attn.q_proj", hidden, hidden), ids, self.heads), angles)
        k = self.rotated(self.split_heads(self.projection(y, f"{name}.self_attn.k_proj", hidden, few), ids, self.kv_heads), angles)
        v = self.split_heads(self.projection(y, f"{name}.self_attn.v_proj", hidden, few), ids, self.kv_heads)
        if before is not None:
            k, v = (self.op("Concat", old, new, axis=2) for old, new in zip(before, (k, v), strict=True))
            self.present.append((k, v))
        context = self.merged(self.attended(q, k, v, ids, mask), ids)
        x = self.op("Add", x, self.projection(context, f"{name}.self_attn.o_proj", hidden, hidden, residual))
        y = self.rms_norm(x, f"{name}.post_attention_layernorm")
        gate = self.projection(y, f"{name}.mlp.gate_proj", hidden, inner)
        gate = self.op("Mul", gate, self.op("Sigmoid", gate))
        y = self.op("Mul", gate, self.projection(y, f"{name}.mlp.up_proj", hidden, inner))
        return self.op("Add", x, self.projection(y, f"{name}.mlp.down_proj", inner, hidden, 4 * residual))
