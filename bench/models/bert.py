"""BERT (arXiv:1810.04805) as Hugging Face's `BertModel` defines it: any size, random weights or a checkpoint's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from .net import Init, Weights
from .text import TextNet, TextOptions


@dataclass(frozen=True, slots=True)
class BertSize:
    layers: int
    hidden: int
    heads: int
    vocab: int = 30522
    positions: int = 512
    types: int = 2

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.hidden


SIZES = {"bert_base": BertSize(12, 768, 12), "bert_large": BertSize(24, 1024, 16)}


def bert(
    name: str,
    options: TextOptions,
    weights: Weights,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    vocab: int | None = None,
    pooler: bool = True,
) -> onnx.ModelProto:
    """Inputs input_ids, attention_mask, token_type_ids (int64 [batch, seq]); outputs last_hidden_state [batch, seq, hidden] and, with
    `pooler`, pooler_output [batch, hidden]. `layers`, `hidden`, `heads`, `vocab` change the published size."""
    base = SIZES[name]
    size = BertSize(layers or base.layers, hidden or base.hidden, heads or base.heads, vocab or base.vocab)
    net = BertNet(name, options, weights, size)
    state = net.encoder()
    batch, seq = options.batch, options.seq
    pooled = net.pooler(state) if pooler else None
    net.output(state, "last_hidden_state", [batch, seq, size.hidden])
    if pooled is not None:
        net.output(pooled, "pooler_output", [batch, size.hidden])
    return net.finish()


class BertNet(TextNet):
    """The encoder; parameters are named as in Hugging Face checkpoints."""

    def __init__(self, name: str, options: TextOptions, weights: Weights, size: BertSize) -> None:
        super().__init__(name, options, weights, hidden=size.hidden, heads=size.heads, eps=1e-12)
        if isinstance(options.seq, int) and options.seq > size.positions:
            raise ValueError(f"{name}: seq={options.seq}, but there are {size.positions} positions")
        self.size = size
        self.ids = self.tokens("input_ids", "tokens", size.vocab)
        self.mask = self.tokens("attention_mask", "mask", 2)
        self.types = self.tokens("token_type_ids", "segments", size.types)

    def encoder(self) -> str:
        """Embeddings and all layers: [batch, seq, hidden]."""
        x = self.embeddings()
        mask = self.padding_mask(self.mask)
        for layer in range(self.size.layers):
            x = self.layer(x, mask, f"encoder.layer.{layer}")
        return x

    def embeddings(self) -> str:
        size = self.size
        words = self.embedding(self.ids, "embeddings.word_embeddings.weight", size.vocab, 0.5)
        types = self.embedding(self.types, "embeddings.token_type_embeddings.weight", size.types, 0.5)
        places = self.embedding(self.position_ids(), "embeddings.position_embeddings.weight", size.positions, 0.5)
        return self.layer_norm(self.op("Add", self.op("Add", words, types), places), "embeddings.LayerNorm")

    def position_ids(self) -> str:
        """int64 [1, seq], cut from a table where seq is symbolic."""
        seq = self.options.seq
        if isinstance(seq, int):
            return self.const(np.arange(seq, dtype=np.int64)[None])
        table = self.const(np.arange(self.size.positions, dtype=np.int64)[None])
        return self.op("Slice", table, self.ints(0), self.dim(self.ids, 1, seq), self.ints(1), self.ints(1))

    def layer(self, x: str, mask: str, name: str) -> str:
        hidden, inner = self.hidden, self.size.inner
        query = self.heads_of(self.linear(x, f"{name}.attention.self.query", hidden, hidden), x)
        key = self.heads_of(self.linear(x, f"{name}.attention.self.key", hidden, hidden), x, keys=True)
        value = self.heads_of(self.linear(x, f"{name}.attention.self.value", hidden, hidden), x)
        context = self.merged(self.weighted(self.op("Add", self.scores(query, key), mask), value), x)
        y = self.linear(context, f"{name}.attention.output.dense", hidden, hidden)
        x = self.layer_norm(self.op("Add", y, x), f"{name}.attention.output.LayerNorm")
        y = self.gelu(self.linear(x, f"{name}.intermediate.dense", hidden, inner, gain=2.0), "erf")
        y = self.linear(y, f"{name}.output.dense", inner, hidden)
        return self.layer_norm(self.op("Add", y, x), f"{name}.output.LayerNorm")

    def pooler(self, x: str) -> str:
        """tanh of a fully connected layer on the first token: [batch, hidden]."""
        first = self.op("Gather", x, self.const(np.array(0, np.int64)), axis=1)
        weight = self.param("pooler.dense.weight", (self.hidden, self.hidden), Init(self.hidden**-0.5))
        bias = self.param("pooler.dense.bias", (self.hidden,), Init(0.05))
        batch = self.options.batch
        self.add_macs(batch * self.hidden**2 if isinstance(batch, int) else None)
        return self.op("Tanh", self.op("Gemm", first, weight, bias, name="pooler.dense/Gemm", transB=1))
