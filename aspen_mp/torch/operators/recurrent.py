"""LSTM, GRU and RNN: the whole layers that `aspen_mp.torch.layers.recurrent` keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from aspen_mp.torch.builder import Builder, Value, static
from aspen_mp.torch.registry import Unsupported, aten

_GATES: Final = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The gates in ONNX's order, each with its place in PyTorch's."""


@aten("aspen_mp.lstm.default")
def _lstm(b: Builder, x: Value, hx: Sequence[Value], *options: Any) -> tuple[Value, ...]:
    return _layers(b, "LSTM", x, hx, *options)


@aten("aspen_mp.gru.default")
def _gru(b: Builder, x: Value, hx: Value, *options: Any) -> tuple[Value, ...]:
    return _layers(b, "GRU", x, [hx], *options, linear_before_reset=1)


@aten("aspen_mp.rnn_tanh.default", "aspen_mp.rnn_relu.default")
def _rnn(b: Builder, x: Value, hx: Value, *options: Any) -> tuple[Value, ...]:
    directions = 2 if options[5] else 1
    return _layers(b, "RNN", x, [hx], *options, activations=["Relu" if b.made_for("aspen_mp.rnn_relu") else "Tanh"] * directions)


def _layers(
    b: Builder,
    op: str,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    **attrs: Any,
) -> tuple[Value, ...]:
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    _check(b, [x, *states], params)
    if len(params) != each * directions * num_layers:
        raise Unsupported("projections of a recurrent layer")
    (hidden,) = static([states[0].shape[2]], "the size of a hidden state")
    attrs |= {"hidden_size": hidden, "direction": "bidirectional" if bidirectional else "forward"}
    y = b.transpose(x, [1, 0, 2]) if batch_first else x
    length, batch, _ = y.shape
    ends: list[list[Value]] = []
    for layer in range(num_layers):
        shape = (directions, batch, hidden)
        begins = [None if _is_zero(b, k) else _part(b, state, layer, directions, shape) for k, state in enumerate(states)]
        starts = range(layer * directions * each, (layer + 1) * directions * each, each)
        weights = _weights(b, op, [params[start : start + each] for start in starts])
        shapes = [(length, *shape), *[shape] * len(states)]
        y, *end = b.emit_all(op, [y, *weights, None, *begins], [torch.float32] * len(shapes), shapes, **attrs)
        y = b.reshape(b.transpose(y, [0, 2, 1, 3]), (length, batch, directions * hidden))
        ends.append(end)
    last = [_joined(b, [end[k] for end in ends]) for k in range(len(states))]
    return (b.transpose(y, [1, 0, 2]) if batch_first else y, *last)


def _check(b: Builder, values: Sequence[Value], params: Sequence[Value]) -> None:
    for value in [*values, *params]:
        if value.dtype != torch.float32:
            raise Unsupported(f"recurrent layers of {value.dtype}")
        if 0 in [n for n in value.shape if isinstance(n, int)]:
            raise Unsupported("recurrent layers without steps or sequences")
    if not {value.name for value in params} <= b.fixed:
        raise Unsupported("recurrent layers whose weights are no constants")


def _is_zero(b: Builder, place: int) -> bool:
    """Whether the state at this place is zero in the beginning, as ONNX takes it to be."""
    given = b.node.args[1]
    node = given[place] if isinstance(given, list | tuple) else given
    return str(node.target) == "aten.full.default" and node.args[1] == 0


def _part(b: Builder, state: Value, layer: int, directions: int, shape: Sequence[Any]) -> Value:
    """The states of one layer among those of all."""
    if state.shape[0] == directions:
        return state
    begin, end = b.ints([layer * directions]), b.ints([(layer + 1) * directions])
    return b.emit("Slice", state, begin, end, b.ints([0]), shape=shape)


def _weights(b: Builder, op: str, directions: Sequence[Sequence[Value]]) -> list[Value | None]:
    """Weights for the input and for the hidden state, and biases, each with the directions along its first axis."""
    order = _GATES[op]
    found = [[_reordered(b, value, order) for value in direction] for direction in directions]
    weights = [_joined(b, [_stacked(b, direction[k]) for direction in found]) for k in range(2)]
    if len(found[0]) == 2:
        return [*weights, None]
    return [*weights, _joined(b, [_stacked(b, _joined(b, direction[2:])) for direction in found])]


def _reordered(b: Builder, value: Value, order: Sequence[int]) -> Value:
    if len(order) == 1:
        return value
    rows, *rest = value.shape
    shape = (rows // len(order), *rest)
    gates = b.emit_all("Split", [value], [value.dtype] * len(order), [shape] * len(order), axis=0, num_outputs=len(order))
    return _joined(b, [gates[k] for k in order])


def _stacked(b: Builder, value: Value) -> Value:
    return b.emit("Unsqueeze", value, b.ints([0]), shape=(1, *value.shape))


def _joined(b: Builder, values: Sequence[Value]) -> Value:
    if len(values) == 1:
        return values[0]
    return b.emit("Concat", *values, shape=(sum(value.shape[0] for value in values), *values[0].shape[1:]), axis=0)
