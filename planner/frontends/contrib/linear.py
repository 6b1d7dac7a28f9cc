"""Layers that carry a state from token to token: LinearAttention, CausalConvWithState and their gates, which ONNX has too, and LSTM with
quantised weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aspen_mp.planner.frontends.contrib.body import Body, Rule

_DECAYING: Final = {"gated", "gated_delta"}
_PLAIN: Final = {"channels_last": 0, "dilation": 1, "input_channels": 0, "ndim": 1, "state_length": 0, "state_window": 0}
"""Attributes of CausalConvWithState that have no other values here."""
_CORRECTING: Final = {"delta", "gated_delta"}


def _linear_attention(b: Body) -> list[str]:
    """Where there are more heads of keys than of queries, each query is one of several heads."""
    count, own = b.get("q_num_heads", 1), b.get("kv_num_heads", 1)
    rule, query = b.get("update_rule", b"gated_delta").decode(), b.name(0)
    width = b.shape(0, 3)[2] // count
    attributes: dict[str, Any] = {"update_rule": rule, "kv_num_heads": own, "q_num_heads": max(count, own)}
    attributes["scale"] = b.get("scale", 0.0) or 1 / float(np.sqrt(width))
    if own > count:
        query = b.emit("Reshape", query, b.ints(0, 0, count, 1, width))
        query = b.emit("Expand", query, b.ints(1, 1, 1, own // count, 1))
        query = b.emit("Reshape", query, b.ints(0, 0, own * width))
    decay = b.name(4) if rule in _DECAYING else ""
    beta = b.name(5) if rule in _CORRECTING else ""
    dtype = b.tensor(0).dtype
    past = b.optional(3)
    state = b.name(3) if past is None or past.dtype == dtype else b.cast(b.name(3), dtype)
    outs = [f"{b.node.output[0]}\0{what}" for what in ("seen", "state")]
    y, after = b.several("LinearAttention", query, b.name(1), b.name(2), state, decay, beta, outs=outs, **attributes)
    return [y, after if past is None or past.dtype == dtype else b.cast(after, past.dtype)]


def _causal_convolution(b: Body) -> list[str]:
    for name, default in _PLAIN.items():
        if b.get(name, default) != default:
            raise b.unknown(f"has the attribute {name} = {b.get(name, default)}")
    kind = b.get("activation", b"none").decode()
    outs = [f"{b.node.output[0]}\0{what}" for what in ("result", "state")]
    return b.several("CausalConvWithState", *map(b.name, range(4)), outs=outs, activation=kind)


def _gate(b: Body) -> list[str]:
    """decay_scale * softplus(a + dt_bias), and sigmoid(b), in single precision."""
    dtype = b.tensor(0).dtype
    wide = b.emit("Softplus", b.emit("Add", b.cast(b.name(0), np.float32), b.name(1)))
    results = [b.cast(b.emit("Mul", wide, b.name(2)), dtype)]
    return [*results, b.emit("Sigmoid", b.name(3))] if b.name(3) else results


def _quantised_lstm(b: Body) -> list[str]:
    """(x, w, r, bias, lengths, hidden, cell, peepholes, scale and zero point of w, of r): weights [directions, terms, gates], by tensors or
    by columns. They become real; the input and the hidden state, which onnxruntime rounds, too, stay as they are."""
    weights = []
    for k, scale in ((1, 8), (2, 10)):
        directions, _, gates = b.shape(k, 3)
        by_columns = b.tensor(scale).size == directions * gates and gates > 1

        def parameter(at: int, columns: bool = by_columns, shape: tuple[int, int] = (directions, gates)) -> str:
            target = b.ints(shape[0], 1, shape[1]) if columns else b.ints(-1, 1, 1)
            return b.emit("Reshape", b.name(at), target)

        wide = b.emit("Sub", b.cast(b.name(k), np.float32), b.cast(parameter(scale + 1), np.float32))
        weights.append(b.emit("Transpose", b.emit("Mul", wide, parameter(scale)), perm=[0, 2, 1]))
    names = ("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget")
    outs = [f"{b.node.output[0]}\0{what}" for what in ("all", "hidden", "cell")]
    return b.several("LSTM", b.name(0), *weights, *map(b.name, range(3, 8)), outs=outs, **b.kept(names))


RULES: Final[dict[str, Rule]] = {
    "CausalConvWithState": _causal_convolution,
    "DynamicQuantizeLSTM": _quantised_lstm,
    "LinearAttention": _linear_attention,
    "LinearAttentionGate": _gate,
}
UNKNOWN: Final = {"LinearAttention": {"state_window"}}
