"""Layers of transformers on top of `Net`: embeddings, LayerNormalization, GELU, attention, each as exporters write it.

Linear layers of encoders are MatMul (weight as [inputs, outputs]) + Add. Shapes that depend on symbolic dimensions are read with Shape and
Gather, as PyTorch's exporter does, and are constants otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from .net import Dim, Init, Net, Weights, product

LOWEST = float(np.finfo(np.float32).min)
GELUS = ("erf", "tanh", "op")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How a transformer is written.

    `attention`: "eager" (scores divided by √d, as `BertSelfAttention` computes it) or "sdpa" (both factors scaled by d^¼, as the exporter
    writes scaled_dot_product_attention). `norm`: "fused" (LayerNormalization) or "decomposed" (ReduceMean, Sub, Pow …). `gelu`: None for
    the network's own, or "erf" | "tanh" | "op" (Gelu of opset 20).
    """

    batch: Dim = 1
    seq: Dim = 128
    attention: str = "eager"
    norm: str = "fused"
    gelu: str | None = None
    opset: int = 17

    def __post_init__(self) -> None:
        if self.attention not in ("eager", "sdpa"):
            raise ValueError(f"attention={self.attention!r}: 'eager' or 'sdpa'")
        if self.norm not in ("fused", "decomposed"):
            raise ValueError(f"norm={self.norm!r}: 'fused' or 'decomposed'")
        if self.norm == "fused" and self.opset < 17:
            raise ValueError(f"LayerNormalization came with opset 17; opset {self.opset} needs norm='decomposed'")
        if self.gelu is not None and self.gelu not in GELUS:
            raise ValueError(f"gelu={self.gelu!r}: one of {', '.join(GELUS)}")
        if self.gelu == "op" and self.opset < 20:
            raise ValueError(f"Gelu came with opset 20; opset {self.opset} needs gelu='erf' or 'tanh'")


class TextNet(Net):
    """A `Net` for token sequences, [batch, seq, hidden] float32 inside."""

    def __init__(self, name: str, options: TextOptions, weights: Weights, *, hidden: int, heads: int, eps: float) -> None:
        super().__init__(name, opset=options.opset, weights=weights)
        if hidden % heads:
            raise ValueError(f"{name}: hidden={hidden} is not a multiple of heads={heads}")
        self.options = options
        self.hidden = hidden
        self.heads = heads
        self.eps = eps
        self._dims: dict[tuple[str, int], str] = {}

    def tokens(self, name: str, kind: str, high: int) -> str:
        return self.input(name, TensorProto.INT64, [self.options.batch, self.options.seq], kind=kind, high=str(high))

    # ---- shapes

    def dim(self, tensor: str, axis: int, value: Dim) -> str:
        """A dimension as int64[1]: a constant where it is known, else read from `tensor`."""
        if isinstance(value, int):
            return self.ints(value)
        key = (tensor, axis)
        if key not in self._dims:
            size = self.op("Gather", self.op("Shape", tensor), self.const(np.array(axis, np.int64)), axis=0)
            self._dims[key] = self.op("Unsqueeze", size, self.ints(0))
        return self._dims[key]

    def reshape(self, x: str, source: str, tail: Sequence[int]) -> str:
        """`x` as [batch, seq, *tail]; `source` is a tensor of shape [batch, seq, …]."""
        batch, seq = self.options.batch, self.options.seq
        if isinstance(batch, int) and isinstance(seq, int):
            return self.op("Reshape", x, self.ints(batch, seq, *tail))
        shape = self.op("Concat", self.dim(source, 0, batch), self.dim(source, 1, seq), self.ints(*tail), axis=0)
        return self.op("Reshape", x, shape)

    # ---- layers

    def embedding(self, ids: str, name: str, rows: int, std: float) -> str:
        return self.op("Gather", self.param(name, (rows, self.hidden), Init(std)), ids, name=f"{name}/Gather", axis=0)

    def linear(self, x: str, name: str, inputs: int, outputs: int, *, gain: float = 1.0) -> str:
        """MatMul + Add; the checkpoint holds the weight as [outputs, inputs]."""
        weight = self.param(f"{name}.weight", (inputs, outputs), Init(math.sqrt(gain / inputs)), transposed=True)
        bias = self.param(f"{name}.bias", (outputs,), Init(0.05))
        self.add_macs(product(self.options.batch, self.options.seq, inputs, outputs))
        return self.op("Add", bias, self.op("MatMul", x, weight, name=f"{name}/MatMul"), name=f"{name}/Add")

    def layer_norm(self, x: str, name: str) -> str:
        scale = self.param(f"{name}.weight", (self.hidden,), Init(0.1, 1.0))
        bias = self.param(f"{name}.bias", (self.hidden,), Init(0.1))
        if self.options.norm == "fused":
            return self.op("LayerNormalization", x, scale, bias, name=f"{name}/LayerNormalization", axis=-1, epsilon=self.eps)
        centred = self.op("Sub", x, self.reduce_mean(x, [-1]))
        variance = self.reduce_mean(self.op("Pow", centred, self.scalar(2.0)), [-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.scalar(self.eps)))
        return self.op("Add", self.op("Mul", self.op("Div", centred, deviation), scale), bias)

    def gelu(self, x: str, default: str) -> str:
        kind = self.options.gelu or default
        if kind == "op":
            return self.op("Gelu", x, approximate="tanh" if default == "tanh" else "none")
        if kind == "erf":
            erf = self.op("Erf", self.op("Div", x, self.scalar(math.sqrt(2.0))))
            return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.scalar(1.0))), self.scalar(0.5))
        cubic = self.op("Add", x, self.op("Mul", self.op("Pow", x, self.scalar(3.0)), self.scalar(0.044715)))
        tanh = self.op("Tanh", self.op("Mul", cubic, self.scalar(math.sqrt(2.0 / math.pi))))
        return self.op("Mul", self.op("Mul", x, self.scalar(0.5)), self.op("Add", tanh, self.scalar(1.0)))

    # ---- attention

    def heads_of(self, x: str, source: str, *, keys: bool = False) -> str:
        """[batch, seq, hidden] → [batch, heads, seq, head] or, for `keys`, [batch, heads, head, seq]."""
        y = self.reshape(x, source, (self.heads, self.hidden // self.heads))
        return self.op("Transpose", y, perm=[0, 2, 3, 1] if keys else [0, 2, 1, 3])

    def merged(self, x: str, source: str) -> str:
        """[batch, heads, seq, head] → [batch, seq, hidden]."""
        return self.reshape(self.op("Transpose", x, perm=[0, 2, 1, 3]), source, (self.hidden,))

    def scores(self, query: str, key: str, total: Dim | None = None) -> str:
        """Scaled dot products [batch, heads, seq, total] of [batch, heads, seq, head] and [batch, heads, head, total]; `total`: seq, unless
        it is said."""
        head = self.hidden // self.heads
        batch, seq = self.options.batch, self.options.seq
        macs = product(batch, seq, seq if total is None else total, self.hidden)
        self.add_macs(None if macs is None else 2 * macs)  # this product and the one with the values
        if self.options.attention == "sdpa":
            root = self.scalar(head**-0.25)
            return self.op("MatMul", self.op("Mul", query, root), self.op("Mul", key, root))
        return self.op("Div", self.op("MatMul", query, key), self.scalar(math.sqrt(head)))

    def weighted(self, scores: str, value: str) -> str:
        probability = self.op("Softmax", scores, axis=-1)
        if self.options.attention == "sdpa":  # a row that is masked everywhere gives NaN: PyTorch's exporter turns it into zeros
            probability = self.op("Where", self.op("IsNaN", probability), self.scalar(0.0), probability)
        return self.op("MatMul", probability, value)

    def padding_mask(self, mask: str) -> str:
        """int64 [batch, seq] of ones and zeros → float [batch, 1, 1, seq] to add to scores: 0 or the lowest float."""
        wide = self.op("Cast", self.op("Unsqueeze", mask, self.ints(1, 2)), to=TensorProto.FLOAT)
        return self.op("Mul", self.op("Sub", self.scalar(1.0), wide), self.scalar(LOWEST))
