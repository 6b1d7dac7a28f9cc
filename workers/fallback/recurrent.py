"""LSTM, GRU and RNN in numpy, with every attribute of opsets 7 to 22; `onnx.reference` ignores sequence lengths, clipping and activations.

Products with the input are made for all steps at once; each step then adds the product with the hidden state. A reverse direction is the
forward one over sequences that were reversed, each within its own length. Halves are computed in f32 and rounded once, at the end.

Where ONNX leaves something open, this follows onnxruntime. `clip` bounds the input of the gates' activations, not the cell state that
enters the last one of an LSTM. `input_forget` makes the forget gate 1 - input gate. Alphas and betas are consumed, in the order of
`activations`, by those functions alone that have them. A sequence of length 0 gives zeros. Defaults of alpha and beta are ONNX's;
onnxruntime's are 0 for some functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Function = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


# name → (function of x, alpha, beta; default alpha; default beta). A default is None where there is no such parameter, and not a number
# where ONNX has none.
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float | None, float | None]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), 1.0, None),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, None),
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), np.nan, np.nan),
    "sigmoid": (lambda x, a, b: _sigmoid(x), None, None),
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), None, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x >= a, x, 0), 1.0, None),
}
ACTIVATIONS = frozenset(_ACTIVATIONS)
"""Names of activations, in lower case: exporters write them in several ways."""

_DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


@dataclass(frozen=True, slots=True)
class Cell:
    """The options of a step beside the weights. `functions`: those of one direction, f, g, h in ONNX's order."""

    functions: Sequence[Function]
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False

    def apply(self, k: int, x: Array) -> Array:
        """Function `k` of what a gate has summed up."""
        return self.functions[k](x if self.clip is None else np.clip(x, -self.clip, self.clip))


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one direction. `r`: of shape [hidden, gates x hidden]. `rb`: bias of the recurrent product, for GRUs alone."""

    r: Array
    rb: Array
    peepholes: Array


def _lstm(cell: Cell, w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    i, o, f, g = np.split(x + h @ w.r, 4, axis=1)
    pi, po, pf = np.split(w.peepholes, 3)
    i = cell.apply(0, i + pi * c)
    f = 1 - i if cell.input_forget else cell.apply(0, f + pf * c)
    c = f * c + i * cell.apply(1, g)
    return cell.apply(0, o + po * c) * cell.functions[2](c), c


def _gru(cell: Cell, w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    n = h.shape[1]
    gates = cell.apply(0, x[:, : 2 * n] + h @ w.r[:, : 2 * n] + w.rb[: 2 * n])
    z, r = gates[:, :n], gates[:, n:]
    inner, bias = w.r[:, 2 * n :], w.rb[2 * n :]
    recurrent = r * (h @ inner + bias) if cell.linear_before_reset else (r * h) @ inner + bias
    return (1 - z) * cell.apply(1, x[:, 2 * n :] + recurrent) + z * h, c


def _rnn(cell: Cell, w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    return cell.apply(0, x + h @ w.r), c


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def run(
    op: str,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    **attributes: Any,
) -> tuple[Array, Array, Array]:
    """Y, Y_h and (meaningful for LSTM alone) Y_c of operator `op`. Attributes that are missing or None have ONNX's defaults."""
    given = {name: value for name, value in attributes.items() if value is not None}
    dtype, work = x.dtype, np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    batch_first = {0: False, 1: True}[given.get("layout", 0)]
    if batch_first:
        x = x.swapaxes(0, 1)
        initial_h, initial_c = (None if t is None else t.swapaxes(0, 1) for t in (initial_h, initial_c))
    steps, batch, _ = x.shape
    directions, _, hidden = r.shape
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[given.get("direction", "forward").lower()]
    if len(backwards) != directions or w.shape[:2] != (directions, _GATES[op] * hidden) or r.shape[1] != _GATES[op] * hidden:
        raise ValueError(f"weights {list(w.shape)} and {list(r.shape)} do not fit {len(backwards)} directions and {_GATES[op]} gates")
    cells = _cells(op, given, directions)
    lengths = _lengths(sequence_lens, steps, batch)
    outputs = []
    for d, (cell, backward) in enumerate(zip(cells, backwards, strict=True)):
        wb, rb = np.split(np.zeros(2 * _GATES[op] * hidden, work) if b is None else b[d].astype(work), 2)
        if op != "GRU":
            wb, rb = wb + rb, np.zeros_like(rb)
        peepholes = np.zeros(3 * hidden, work) if p is None else p[d].astype(work)
        weights = Weights(r[d].T.astype(work), rb, peepholes)
        state = [np.zeros((batch, hidden), work) if t is None else _state(t[d], batch, hidden).astype(work) for t in (initial_h, initial_c)]
        projected = x.astype(work) @ w[d].T.astype(work) + wb
        outputs.append(_direction(partial(_STEPS[op], cell, weights), projected, lengths, state, backward))
    y, h, c = (np.stack(parts, axis).astype(dtype) for parts, axis in zip(zip(*outputs, strict=True), (1, 0, 0), strict=True))
    if batch_first:
        return y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return y, h, c


def _direction(
    step: Callable[[Array, Array, Array], tuple[Array, Array]], x: Array, lengths: Array, state: list[Array], backward: bool
) -> tuple[Array, Array, Array]:
    """One direction over [steps, batch, gates x hidden]: [steps, batch, hidden] and the states after each sequence's last step."""
    h, c = state
    times, rows = np.arange(len(x))[:, None], np.arange(x.shape[1])
    order = np.where(times < lengths, lengths - 1 - times, times)  # its own inverse
    x = x[order, rows] if backward else x
    y = np.zeros((*x.shape[:2], h.shape[1]), x.dtype)
    for t in range(int(lengths.max(initial=0))):
        alive = (t < lengths)[:, None]
        new_h, new_c = step(x[t], h, c)
        h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
        y[t] = np.where(alive, new_h, 0)
    some = (lengths > 0)[:, None]
    return (y[order, rows] if backward else y), np.where(some, h, 0), np.where(some, c, 0)


def _cells(op: str, given: dict[str, Any], directions: int) -> list[Cell]:
    """The cell of each direction."""
    default = _DEFAULTS[op]
    names = [str(name).lower() for name in given.get("activations") or default * directions]
    if op == "RNN" and directions == 1 and len(names) == 2 and names[0] == names[1]:
        names = names[:1]  # the operator's own default has two
    if len(names) != len(default) * directions or not set(names) <= ACTIVATIONS:
        raise ValueError(f"activations are {names}; {len(default) * directions} are expected, of {', '.join(sorted(ACTIVATIONS))}")
    alphas, betas = iter(given.get("activation_alpha", ())), iter(given.get("activation_beta", ()))
    functions: list[Function] = []
    for name in names:
        function, alpha, beta = _ACTIVATIONS[name]
        a = 0.0 if alpha is None else float(next(alphas, alpha))
        b = 0.0 if beta is None else float(next(betas, beta))
        if np.isnan(a) or np.isnan(b):
            raise ValueError(f"activation {name} needs its alpha and beta")
        functions.append(partial(_called, function, a, b))
    clip = float(given["clip"]) if given.get("clip", 0.0) > 0 else None
    shared = clip, bool(given.get("input_forget", 0)), bool(given.get("linear_before_reset", 0))
    n = len(default)
    return [Cell(functions[d * n : (d + 1) * n], *shared) for d in range(directions)]


def _called(function: Callable[[Array, float, float], Array], alpha: float, beta: float, x: Array) -> Array:
    return np.asarray(function(x, alpha, beta))


def _lengths(sequence_lens: Array | None, steps: int, batch: int) -> Array:
    if sequence_lens is None:
        return np.full(batch, steps)
    if sequence_lens.shape != (batch,) or ((sequence_lens < 0) | (sequence_lens > steps)).any():
        raise ValueError(f"sequence_lens {sequence_lens.tolist()} does not fit {batch} sequences of up to {steps} steps")
    return sequence_lens.astype(np.int64)


def _state(state: Array, batch: int, hidden: int) -> Array:
    if state.shape != (batch, hidden):
        raise ValueError(f"an initial state has shape {list(state.shape)}; {[batch, hidden]} is expected")
    return state
