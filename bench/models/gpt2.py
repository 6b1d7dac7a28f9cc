"""GPT-2 124M ("Language Models are Unsupervised Multitask Learners", 2019) as Hugging Face's `GPT2LMHeadModel` defines it."""

from __future__ import annotations

import numpy as np
import onnx

from .net import Init, Weights, product
from .text import LOWEST, TextNet, TextOptions

POSITIONS = 1024


def gpt2(
    name: str,
    options: TextOptions,
    weights: Weights,
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocab: int = 50257,
    head: bool = True,
) -> onnx.ModelProto:
    """Input input_ids (int64 [batch, seq]); output logits [batch, seq, vocab] or, without `head`, last_hidden_state [batch, seq,
    hidden]."""
    net = GptNet(name, options, weights, hidden=hidden, heads=heads, eps=1e-5)
    if isinstance(options.seq, int) and options.seq > POSITIONS:
        raise ValueError(f"{name}: seq={options.seq}, but there are {POSITIONS} positions")
    ids = net.tokens("input_ids", "tokens", vocab)
    words = net.embedding(ids, "transformer.wte.weight", vocab, 1 / hidden**0.5)
    places = net.embedding(net.position_ids(ids), "transformer.wpe.weight", POSITIONS, 1 / hidden**0.5)
    x = net.op("Add", words, places)
    mask = net.causal_mask(ids)
    for layer in range(layers):
        x = net.block(x, ids, mask, f"transformer.h.{layer}", 1 / (2 * layers))
    x = net.layer_norm(x, "transformer.ln_f")
    if not head:
        net.output(x, "last_hidden_state", [options.batch, options.seq, hidden])
        return net.finish()
    net.add_macs(product(options.batch, options.seq, hidden, vocab))
    logits = net.op("MatMul", x, net.op("Transpose", "transformer.wte.weight", perm=[1, 0]), name="lm_head/MatMul")  # tied to the embedding
    net.output(logits, "logits", [options.batch, options.seq, vocab])
    return net.finish()


class GptNet(TextNet):
    """Pre-norm blocks with causal attention; parameters are named as in Hugging Face checkpoints."""

    def position_ids(self, ids: str) -> str:
        seq = self.options.seq
        if isinstance(seq, int):
            return self.const(np.arange(seq, dtype=np.int64)[None])
        zero, one = self.const(np.array(0, np.int64)), self.const(np.array(1, np.int64))
        places = self.op("Range", zero, self.op("Squeeze", self.dim(ids, 1, seq), self.ints(0)), one)
        return self.op("Unsqueeze", places, self.ints(0))

    def causal_mask(self, ids: str) -> str:
        """bool [1, 1, seq, seq], true where a token may look."""
        seq = self.options.seq
        if isinstance(seq, int):
            return self.const(np.tril(np.ones((seq, seq), np.bool_))[None, None])
        table = self.const(np.tril(np.ones((POSITIONS, POSITIONS), np.bool_))[None, None])
        end = self.dim(ids, 1, seq)
        rows = self.op("Slice", table, self.ints(0), end, self.ints(2), self.ints(1))
        return self.op("Slice", rows, self.ints(0), end, self.ints(3), self.ints(1))

    def conv1d(self, x: str, ids: str, name: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """Hugging Face's Conv1D: Gemm on [batch · seq, inputs], the weight is [inputs, outputs] in checkpoints too."""
        weight = self.param(f"{name}.weight", (inputs, outputs), Init((gain / inputs) ** 0.5))
        bias = self.param(f"{name}.bias", (outputs,), Init(0.05))
        self.add_macs(product(self.options.batch, self.options.seq, inputs, outputs))
        flat = self.op("Reshape", x, self.ints(-1, inputs))
        y = self.op("Gemm", flat, weight, bias, name=f"{name}/Gemm", alpha=1.0, beta=1.0)
        return self.reshape(y, ids, (outputs,))

    def block(self, x: str, ids: str, mask: str, name: str, residual: float) -> str:
        """`residual`: variance that each of the two branches adds to the stream."""
        hidden = self.hidden
        y = self.layer_norm(x, f"{name}.ln_1")
        packed = self.conv1d(y, ids, f"{name}.attn.c_attn", hidden, 3 * hidden)
        query, key, value = self.split(packed, 2, (hidden, hidden, hidden))
        scores = self.scores(self.heads_of(query, ids), self.heads_of(key, ids, keys=True))
        scores = self.op("Where", mask, scores, self.scalar(LOWEST))
        context = self.merged(self.weighted(scores, self.heads_of(value, ids)), ids)
        x = self.op("Add", self.conv1d(context, ids, f"{name}.attn.c_proj", hidden, hidden, residual), x)
        y = self.layer_norm(x, f"{name}.ln_2")
        y = self.gelu(self.conv1d(y, ids, f"{name}.mlp.c_fc", hidden, 4 * hidden, 2.0), "tanh")
        return self.op("Add", x, self.conv1d(y, ids, f"{name}.mlp.c_proj", 4 * hidden, hidden, residual))
