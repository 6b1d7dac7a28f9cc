"""LSTM, GRU and RNN: a product with all steps' inputs, then runs of steps (kernels of the same names), each direction by itself.

A run is a node; its tiles are rows of the batch, each of which goes through the run's steps alone. `runs` states the gain and the cost of
more than one run for a layer. The runs write their parts of Y where Y lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy.typing as npt

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import F32, Builder, NoKernel, ints, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.registry import rule

Array = npt.NDArray[Any]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
ALONE_BYTES = 1 << 20
"""Recurrent weights of a direction of more bytes do not stay in a core's own cache from step to step, or not on every machine. Then a step
takes as long as reading them from further away. So each step is a node whose units cores share, and every core reads its own part alone,
again and again."""
MOST_ALONE = 256
"""Nodes of a direction whose steps are nodes: longer sequences go in runs, because planning takes as long as there are nodes."""
RUNS = 8
"""Most runs of a direction. When a layer has done one, the next layer can begin. So two layers on two cores wait for an eighth of a layer's
time at the ends, and more runs would save little."""
RUN_NS = 100_000.0
"""The least time of a run, by the next two: a tile costs some µs to schedule."""
BYTE_NS, FLOP_NS = 0.015, 0.01
"""A byte of weights that is read, two operations; built-in figures, so that layers are cut the same everywhere."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator. `attrs`: of its kernel, as far as they are those of every run."""

    op: str
    attrs: dict[str, Any]
    steps: int
    batch: int
    hidden: int

    @property
    def gates(self) -> int:
        return GATES[self.op]

    @property
    def resets_first(self) -> bool:
        """Whether a product with the hidden state waits for a gate of the same step."""
        return self.attrs.get("form") == "reset first"

    @property
    def weights(self) -> int:
        """Bytes of recurrent weights."""
        return 4 * self.gates * self.hidden**2

    @property
    def alone(self) -> bool:
        """Whether each step is a node, or two (see `runs`)."""
        return self.weights > ALONE_BYTES and self.steps * (2 if self.resets_first else 1) <= MOST_ALONE


@rule("LSTM", "GRU", "RNN")
def _recurrent(b: Builder, node: Node) -> list[Tensor]:
    x, w, r = data(node), data(node, 1), data(node, 2)
    bias, lengths, h, c, peepholes = (optional(node, i) for i in range(3, 8))
    require_f32(x, w, r, bias, h, c)
    if peepholes is not None:
        raise NoKernel("no kernel has peepholes")
    if not r.is_const or (bias is not None and not bias.is_const):
        raise NoKernel("weights are computed")
    batch_first = bool(node.attrs.get("layout", 0))
    if len(x.shape) != 3 or len(r.shape) != 3 or 0 in x.shape or 0 in r.shape:
        raise NoKernel("a tensor is empty, or there are no sequences")
    if batch_first:
        x = b.transpose(x, (1, 0, 2))
        h, c = (None if t is None else b.transpose(t, (1, 0, 2)) for t in (h, c))
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[_text(node, "direction", "forward")]
    steps, batch, size = x.shape
    directions, _, hidden = r.shape
    layer = Layer(node.op, _attributes(node, len(backwards)), steps, batch, hidden)
    wanted: list[tuple[Tensor | None, tuple[int, ...]]] = [
        (w, (directions, layer.gates * hidden, size)),
        (r, (directions, layer.gates * hidden, hidden)),
    ]
    wanted += [(bias, (directions, 2 * layer.gates * hidden)), (h, (directions, batch, hidden)), (c, (directions, batch, hidden))]
    if directions != len(backwards) or any(t is not None and t.shape != shape for t, shape in wanted):
        raise NoKernel("shapes do not fit each other")
    if lengths is not None and ints(lengths) != [steps] * batch:
        raise NoKernel("sequences differ in length")
    ends = [_direction(b, layer, k, reverse, x, (w, r, bias), (h, c)) for k, reverse in enumerate(backwards)]
    y, *states = (b.concat([end[k] for end in ends], axis) for k, axis in zip(range(len(ends[0])), (1, 0, 0), strict=False))
    if batch_first:
        return [b.transpose(y, (2, 0, 1, 3)), *(b.transpose(state, (1, 0, 2)) for state in states)]
    return [y, *states]


def _text(node: Node, name: str, default: str) -> str:
    value = node.attrs.get(name, default)
    return (value.decode() if isinstance(value, bytes) else str(value)).lower()


def _attributes(node: Node, directions: int) -> dict[str, Any]:
    """The kernel's attributes, as far as they say how a step goes."""
    if float(node.attrs.get("clip") or 0.0) > 0.0 or node.attrs.get("input_forget", 0):
        raise NoKernel("no kernel has clip or input_forget")
    given = node.attrs.get("activations") or DEFAULTS[node.op] * directions
    names = [(name.decode() if isinstance(name, bytes) else str(name)).lower() for name in given]
    if node.op == "RNN":
        if not names or set(names) not in ({"tanh"}, {"relu"}):  # its own default has two for one direction
            raise NoKernel(f"no kernel has the activations {', '.join(names)}")
        return {"relu": names[0] == "relu"}
    if tuple(names) != DEFAULTS[node.op] * directions:
        raise NoKernel(f"no kernel has the activations {', '.join(names)}")
    return {"form": "reset last" if node.attrs.get("linear_before_reset", 0) else "reset first"} if node.op == "GRU" else {}


def _direction(
    b: Builder,
    layer: Layer,
    k: int,
    reverse: bool,
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor | None],
    states: tuple[Tensor | None, Tensor | None],
) -> list[Tensor]:
    """Y [T, 1, B, H], the hidden state and (of LSTM) the cell state [1, B, H] behind the last step."""
    w, r, bias = weights
    if x.producer is None or x.producer.op != "view.transpose":  # else its rows are scattered, and would be copied
        x = b.reshape(x, (layer.steps * layer.batch, x.shape[2]))
    p = b.gemm(x, _columns(b, w, k), None if bias is None else _outside(b, layer, bias, k))
    p = b.reshape(p, (layer.steps, layer.batch, p.shape[-1]))
    h, c = (None if t is None else _state(b, t, k) for t in states)
    inner = None
    if bias is not None and layer.attrs.get("form") == "reset last":
        n = 3 * layer.hidden
        inner = b.derived(bias, f"inner{k}", (layer.hidden,), lambda v: v[k, n + 2 * layer.hidden :], view=True)
    cuts = runs(b, layer)
    halves = layer.resets_first and layer.alone
    parts = [(0, 2), (2, 3)] if halves else [(0, layer.gates)]
    packed = [b.packed_recurrent(r, k, part, gates_first=layer.resets_first and not halves) for part in parts]
    outputs: list[Tensor] = []
    for begin, end in reversed(cuts) if reverse else cuts:
        shape = (end - begin, 1, layer.batch, layer.hidden)
        attrs = {**layer.attrs, "first": begin, "reverse": reverse, "begins": not outputs}
        if halves:
            gates = b.emit(layer.op, [p, packed[0], h], (2, *shape[1:]), F32, **attrs | {"form": "gates"})
            h = b.emit(layer.op, [p, packed[1], h, gates], shape, F32, **attrs | {"form": "output"})
        else:
            h = b.emit(layer.op, [p, packed[0], h, c if layer.op == "LSTM" else inner], shape, F32, **attrs)
        if layer.op == "LSTM":
            c = b.output(h, (1, 1, *shape[2:]))
        outputs.append(h)
    assert h is not None
    last = b.slice(h, (0 if reverse else h.shape[0] - 1, 0, 0, 0), (1, 1, 1, 1), (1, *h.shape[1:]))
    ends = [last, c] if layer.op == "LSTM" else [last]
    y = b.concat(outputs[::-1] if reverse else outputs, 0)
    return [y, *(b.reshape(end, end.shape[1:]) for end in ends if end is not None)]


def _columns(b: Builder, w: Tensor, k: int) -> Tensor:
    """[gates · H, I] of direction k, turned."""
    _, n, size = w.shape
    if w.is_const:
        return b.derived(w, f"columns{k}", (size, n), lambda v: v[k].T, view=True)
    return b.transpose(b.reshape(b.slice(w, (k, 0, 0), (1, 1, 1), (1, n, size)), (n, size)), (1, 0))


def _outside(b: Builder, layer: Layer, bias: Tensor, k: int) -> Tensor:
    """The bias that can be added before the first step: all of both biases, except the part of GRU's product that the reset gate scales."""
    n = layer.gates * layer.hidden
    whole = n - layer.hidden if layer.attrs.get("form") == "reset last" else n

    def add(v: Array) -> Array:
        out = v[k, :n].copy()
        out[:whole] += v[k, n : n + whole]
        return out

    return b.derived(bias, f"outside{k}{'' if whole == n else ' of inner'}", (n,), add)


def _state(b: Builder, state: Tensor, k: int) -> Tensor:
    """[1, 1, B, H] of direction k."""
    shape = (1, *state.shape[1:])
    return b.reshape(b.slice(state, (k, 0, 0), (1, 1, 1), shape), (1, *shape))


def runs(b: Builder, layer: Layer) -> list[tuple[int, int]]:
    """The runs of steps of a direction that are a node each, [begin, end), in the order of steps.

    A run's tiles only share rows of the batch, so one core has to read all recurrent weights for every step. Where they stay in its own
    cache that is as fast as it gets, and a run should be long. A node costs planning, scheduling a tile, and fetching a state from another
    core. Where they do not, steps are nodes (`ALONE_BYTES`). The number of nodes is bounded in either case (`RUNS`, `MOST_ALONE`).

    No run is shorter where there are more steps, so that a plan can serve sequences of any length.
    """
    if layer.alone:
        return [(k, k + 1) for k in range(layer.steps)]
    step_ns = max(layer.weights * BYTE_NS, 0.5 * layer.weights * layer.batch * FLOP_NS)
    parts = b.decide(lambda: min(RUNS, layer.steps, max(1, int(layer.steps * step_ns / RUN_NS))))
    assert isinstance(parts, int)
    return list(pairwise(accumulate(((layer.steps + k) // parts for k in range(parts)), initial=0)))
