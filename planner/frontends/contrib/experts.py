"""MoE and QMoE: each token goes through the few experts that its router scores highest, and gets the sum of their results.

All experts' weights are one factor. So two products compute every expert for every token, and the second adds up the experts. The results
of a token's other experts are multiplied by 0. That is more work than needed, by kernels that need no sorting of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from aspen_mp.planner.frontends.contrib.blocks import packed_numbers
from aspen_mp.planner.frontends.contrib.body import Array, Body, Rule
from aspen_mp.planner.ir.graph import Shape

_FUNCTIONS: Final = {"relu", "gelu", "silu", "identity"}


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of all experts, [experts, rows, width], by name, and their biases [experts, rows], empty where there are none."""

    weights: str
    count: int
    rows: int
    width: int
    bias: str


def _real(b: Body, weights: int, bias: int) -> _Layer:
    count, rows, width = b.shape(weights, 3)
    return _Layer(b.name(weights), count, rows, width, b.name(bias))


def _experts(b: Body) -> list[str]:
    third = _real(b, 6, 7) if b.name(6) else None
    return _mixed(b, _real(b, 2, 3), _real(b, 4, 5), third, "")


def _mixed(b: Body, first: _Layer, second: _Layer, third: _Layer | None, chances: str) -> list[str]:
    """`chances`: the weights of a token's experts, where those are not the scores that choose them."""
    kind, fusion = b.get("activation_type", b"relu").decode(), b.get("swiglu_fusion", 0)
    if kind not in _FUNCTIONS | {"swiglu"} or (kind != "swiglu" and fusion):
        raise b.unknown(f"has the activation {kind!r} with swiglu_fusion = {fusion}")
    tokens = b.emit("Reshape", b.name(0), b.ints(-1, first.width))
    if kind == "swiglu":
        hidden = _gated(b, tokens, first, third, fusion)
    else:
        (x,) = _product(b, tokens, first, 1, 0)
        hidden = _function(b, kind, x)
        hidden = hidden if third is None else b.emit("Mul", hidden, *_product(b, tokens, third, 1, 0))
    chosen = _chances(b, first.count, chances)
    apart = b.emit("Reshape", hidden, b.ints(-1, second.count, second.width))
    weighted = b.emit("Mul", apart, b.emit("Unsqueeze", chosen, b.ints(2)))
    columns = second.count * second.width
    factor = b.emit("Reshape", b.emit("Transpose", second.weights, perm=[0, 2, 1]), b.ints(columns, -1))
    y = b.emit("MatMul", b.emit("Reshape", weighted, b.ints(-1, columns)), factor)
    if second.bias:
        y = b.emit("Add", y, b.emit("MatMul", chosen, second.bias))
    return [b.emit("Reshape", y, b.emit("Shape", b.name(0)))]


def _chances(b: Body, count: int, others: str) -> str:
    """The weight of each expert for a token, [tokens, experts]: 0 but for those of the highest scores. Their weights are in `others`, where
    that is given. QMoE always makes shares of one of the router's own scores, as onnxruntime does."""
    most = min(max(int(b.get("k", 1)), 1), count)
    normalized = b.get("normalize_routing_weights", 0) or (b.node.op_type == "QMoE" and not others)
    outs = [f"{b.node.output[0]}\0{what}" for what in ("scores", "places")]
    scores = b.name(1) if normalized or others else b.emit("Softmax", b.name(1), axis=1)
    best, places = b.several("TopK", scores, b.ints(most), outs=outs, axis=1)
    if others:
        best = b.emit("GatherElements", others, places, axis=1)
        best = b.emit("Div", best, b.emit("ReduceSum", best, b.ints(1), keepdims=1)) if normalized else best
    elif normalized:
        best = b.emit("Softmax", best, axis=1)
    none = b.emit("Expand", b.number(0.0), b.emit("Shape", b.name(1)))
    return b.emit("ScatterElements", none, places, best, axis=1)


def _product(b: Body, tokens: str, layer: _Layer, parts: int, fusion: int) -> list[str]:
    """The tokens times all experts' weights, as `parts` parts [tokens, experts · inner]. Rows of the parts lie in turn (`fusion` 1), or one
    part behind the other."""
    count, inner = layer.count, layer.rows // parts
    split, perm = ((inner, parts), (2, 0, 1)) if fusion == 1 else ((parts, inner), (1, 0, 2))
    factor = b.emit("Transpose", b.emit("Reshape", layer.weights, b.ints(count, *split, layer.width)), perm=[*perm, 3])
    factor = b.emit("Reshape", factor, b.ints(-1, layer.width))
    added = ""
    if layer.bias:
        added = b.emit("Transpose", b.emit("Reshape", layer.bias, b.ints(count, *split)), perm=list(perm))
        added = b.emit("Reshape", added, b.ints(-1))
    y = b.emit("Gemm", tokens, factor, added, transB=1)
    return [y] if parts == 1 else b.split(y, 1, [count * inner] * parts)


def _gated(b: Body, tokens: str, first: _Layer, third: _Layer | None, fusion: int) -> str:
    """gate * sigmoid(alpha * gate) * (linear + beta), both limited."""
    if fusion in {1, 2}:
        gate, linear = _product(b, tokens, first, 2, fusion)
    elif third is not None:
        (gate,), (linear,) = _product(b, tokens, first, 1, 0), _product(b, tokens, third, 1, 0)
    else:
        raise b.invalid("has the activation swiglu, but neither fused weights nor a third product")
    limit, alpha, beta = b.get("swiglu_limit", None), b.get("activation_alpha", 1.0), b.get("activation_beta", 0.0)
    if limit is not None and np.isfinite(limit):
        gate = b.emit("Min", gate, b.number(limit))
        linear = b.emit("Clip", linear, b.number(-limit), b.number(limit))
    steep = gate if alpha == 1.0 else b.emit("Mul", gate, b.number(alpha))
    linear = linear if beta == 0.0 else b.emit("Add", linear, b.number(beta))
    return b.emit("Mul", b.emit("Mul", gate, b.emit("Sigmoid", steep)), linear)


def _function(b: Body, kind: str, x: str) -> str:
    if kind == "relu":
        return b.emit("Relu", x)
    if kind == "gelu":
        return b.emit("Gelu", x, approximate="tanh")
    return b.emit("Mul", x, b.emit("Sigmoid", x)) if kind == "silu" else x


# -------------------------------------------------------------------------------------------------------- quantised weights


def _quantised_experts(b: Body) -> list[str]:
    """(x, router, then weights, scales and biases of up to three products, their zero points, experts' weights)."""
    if b.get("weights_prepacked", 0) == 1:
        raise b.unknown("has weights in the layout of another device")
    if b.get("quant_type", b"int") != b"int":
        raise b.unknown(f"has weights of the type {b.get('quant_type', b'').decode(errors='replace')!r}")
    layers = [_dequantised(b, k, 2 + 3 * k) for k in range(3) if b.name(2 + 3 * k)]
    if len(layers) < 2:
        raise b.invalid("lacks weights")
    return _mixed(b, layers[0], layers[1], layers[2] if len(layers) > 2 else None, b.name(14))


def _dequantised(b: Body, number: int, at: int) -> _Layer:
    """The weights that are input `at`, with their scales and zero points. They become real: [experts, rows, width]."""
    bits = int(b.get(f"fc{number + 1}_expert_weight_bits", 0) or b.get("expert_weight_bits", 4))
    if bits not in {2, 4, 8}:
        raise b.unknown(f"has weights of {bits} bits")
    count, rows, stored = b.shape(at, 3)
    width, zeros = stored * 8 // bits, 11 + number
    shape = (count, rows, width)
    sources = [at, at + 1, *([zeros] if b.name(zeros) else [])]
    make = partial(_unpacked, bits=bits, shape=shape)
    weights = b.derived(f"experts of {bits} bits, {shape}", sources, shape, b.tensor(0).dtype, make)
    return _Layer(weights, count, rows, width, b.name(at + 2))


def _unpacked(stored: Array, scales: Array, zeros: Array | None = None, *, bits: int, shape: Shape) -> Array:
    """(number - zero) * scale, by blocks of the last axis; the first number of a byte is in its lowest bits."""
    count, rows, width = shape
    numbers = packed_numbers(stored, bits).reshape(count, rows, width).astype(np.float32)
    blocks = scales.size // (count * rows)
    middle = np.float32(1 << (bits - 1))
    offset = np.full((count, rows, blocks), middle)
    if zeros is not None:
        columns = blocks if zeros.ndim == 3 else rows  # of each row, or of each expert
        offset = packed_numbers(zeros, bits)[..., :columns].reshape(count, rows, blocks).astype(np.float32)
    apart = numbers.reshape(count, rows, blocks, -1) - offset[..., None]
    return (apart * scales.astype(np.float32).reshape(count, rows, blocks, 1)).reshape(shape)


RULES: Final[dict[str, Rule]] = {"MoE": _experts, "QMoE": _quantised_experts}
UNKNOWN: Final = {op: {"swiglu_limit_after_activation", "use_sparse_mixer"} for op in RULES}
