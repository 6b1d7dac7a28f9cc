"""LSTM, GRU and RNN."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, whole
from aspen_mp.planner.ops.call import LIMIT, Call, Check, all_f32, in_range, need, ranked, shaped
from aspen_mp.planner.ops.params import Param, choice, integer, noted, reserved
from aspen_mp.planner.ops.spec import Cost, Input, OpSpec, TileModel, each
from aspen_mp.shm.tables import NUMBERS

GRU_FORMS = {"reset first": 0, "reset last": 1, "gates": 2, "output": 3}
"""The forms without and with linear_before_reset, and a step of the first in two halves."""


def recurrent_gates(node: Node) -> int:
    """The number of gates of LSTM, GRU or RNN."""
    w = node.inputs[1]
    assert w is not None
    return w.shape[2]


def recurrent_steps(node: Node) -> int:
    """The steps of LSTM, GRU or RNN. Half a step of GRU has two outputs in one, or multiplies with the weights of one gate alone."""
    return 1 if node.attrs.get("form") == "gates" else node.output.shape[0]


def _flops(node: Node) -> float:
    return 2.0 * recurrent_steps(node) * node.output.shape[2] * node.output.shape[3] ** 2 * recurrent_gates(node)


UNITS = NUMBERS["UNITS"]
"""Units of a panel of packed recurrent weights."""


def _recurrent_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """A run's steps up to the last one that the box needs. Only the box's units of that one are needed, if their gates read no others of
    the same step."""
    steps, _, _, hidden = node.output.shape
    reverse, first = node.attrs["reverse"], node.attrs["first"]
    form = node.attrs.get("form", "")
    if form in ("gates", "output"):
        return _half_step(i, shape, lo, hi, form == "gates", (first, 0 if reverse else shape[0] - 1))
    last = steps - 1 - lo[:, 0] if reverse else hi[:, 0] - 1
    if node.op == "LSTM":
        last = np.where(lo[:, 0] == 0, steps - 1, last)  # the tile that also writes the cell state
    alone = (last == 0) & (form != "reset first")
    units = np.where(alone, lo[:, 3], 0), np.where(alone, hi[:, 3], hidden)
    out_lo, out_hi = whole(shape, len(lo))
    if i == 0:
        out_lo[:, 0] = first + steps - 1 - last if reverse else first
        out_hi[:, 0] = first + steps if reverse else first + last + 1
        out_lo[:, 1], out_hi[:, 1] = lo[:, 2], hi[:, 2]
        out_lo[:, 2], out_hi[:, 2] = units[0], shape[2] - hidden + units[1]
    elif i == 1:
        out_lo[:, 0], out_hi[:, 0] = units[0] // UNITS, -(-units[1] // UNITS)
    elif i == 2 or node.op == "LSTM":
        step = shape[0] - 1 if i == 2 and not reverse else 0
        out_lo[:, 0], out_hi[:, 0] = step, step + 1
        out_lo[:, 2], out_hi[:, 2] = lo[:, 2], hi[:, 2]
        if i == 3:
            out_lo[:, 3], out_hi[:, 3] = units
    else:
        out_lo[:, 0], out_hi[:, 0] = units
    return out_lo, out_hi


def _half_step(i: int, shape: Shape, lo: Boxes, hi: Boxes, gates: bool, steps: tuple[int, int]) -> Region:
    """The region of half a step of a GRU that resets first. `steps`: of P, and of the state before."""
    out_lo, out_hi = whole(shape, len(lo))
    if i == 0:
        hidden = shape[2] // 3
        out_lo[:, 0], out_hi[:, 0] = steps[0], steps[0] + 1
        out_lo[:, 1], out_hi[:, 1] = lo[:, 2], hi[:, 2]
        out_lo[:, 2], out_hi[:, 2] = (0 if gates else 2 * hidden) + lo[:, 3], (hidden if gates else 2 * hidden) + hi[:, 3]
    elif i == 1:
        out_lo[:, 0], out_hi[:, 0] = lo[:, 3] // UNITS, -(-hi[:, 3] // UNITS)
    else:
        out_lo[:, 2], out_hi[:, 2] = lo[:, 2], hi[:, 2]
        if i == 2:
            out_lo[:, 0], out_hi[:, 0] = steps[1], steps[1] + 1
            if not gates:
                out_lo[:, 3], out_hi[:, 3] = lo[:, 3], hi[:, 3]
    return out_lo, out_hi


LSTM_GATES, GRU_GATES = 4, 3


def _recurrent_checks(gates: int) -> Check:
    def rule(call: Call) -> None:
        all_f32(call)
        ranked(call.out, 4, "the output")
        steps, one, rows, hidden = call.out.shape
        p, w, h, more = call.input(0), call.input(1), call.optional(2), call.optional(3)
        need(one == 1, "directions of the output", one, 1)
        ranked(p, 3, "input 0")
        shaped(p, (p.shape[0], rows, gates * hidden), "shape of input 0")
        first = in_range(call, 0, "first", 0, LIMIT)
        in_range(call, 1, "reverse", 0, 2)
        form = in_range(call, 2, "option", 0, 4 if gates == GRU_GATES else 2)
        half = form >= GRU_FORMS["gates"]
        if half:
            need(steps == (2 if form == GRU_FORMS["gates"] else 1), "shape of the output", call.out.shape, "those of half a step")
        last = first + (1 if half else steps)
        need(last <= p.shape[0], "steps of input 0", p.shape[0], f"at least {last}")
        packed = (gates - 1 if form == GRU_FORMS["gates"] else 1) if half else gates
        shaped(w, (-(-hidden // UNITS), hidden, packed, UNITS), "shape of input 1")
        need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
        if h is not None:
            ranked(h, 4, "input 2")
            need(h.shape[0] > 0, "steps of input 2", 0, "at least 1")
            shaped(h, (h.shape[0], 1, rows, hidden), "shape of input 2")
        if gates == LSTM_GATES:
            for arg, what in ((more, "input 3"), (call.more[0] if call.more else None, "the second output")):
                shaped(arg, (1, 1, rows, hidden), f"shape of {what}")
        elif form == GRU_FORMS["output"]:
            shaped(call.input(3), (2, 1, rows, hidden), "shape of input 3")
        else:
            shaped(more, (hidden,), "shape of input 3")

    return rule


def _reads(node: Node) -> float:
    """Bytes of the run's own steps in P, and of states."""
    _, _, rows, hidden = node.output.shape
    return 4.0 * rows * hidden * (recurrent_steps(node) * recurrent_gates(node) + 2)


def _scratch(node: Node) -> int:
    return 4 * node.output.shape[2] * (4 * -(-node.output.shape[3] // UNITS) * UNITS + 8 * UNITS)


def _spec(name: str, gates: int, unit_ns: float, last: Param, *states: Input) -> OpSpec:
    """A recurrent layer's run of steps in one direction. The functions of a unit take `unit_ns` in a step."""
    return OpSpec(
        name=name,
        inputs=(
            Input("p", "[T, B, gates H]: what comes of the layer's input, biases included"),
            Input("weights", "[panels of 16, H, gates, 16]", packed=True),
            Input("state", "[steps, 1, B, H]: the one before is that of the last step, in reverse of the first", True),
            *states,
        ),
        params=(
            integer("first", "step of P at which the run begins"),
            integer("reverse", "whether it goes from the last step to the first"),
            last,
            noted("begins", "whether no run of the same layer came before, so that weights come from memory"),
        ),
        outputs=2 if gates == LSTM_GATES else 1,
        region=_recurrent_region,
        checks=_recurrent_checks(gates),
        cost=Cost(_flops, each(unit_ns), tiles=TileModel.RECURRENCE, reads=_reads, scratch=_scratch),
    )


SPECS = (
    _spec("LSTM", LSTM_GATES, 2.2, reserved(1), Input("cell", "[1, 1, B, H]; the second output is the one behind the run", True)),
    _spec(
        "GRU",
        GRU_GATES,
        1.4,
        choice("form", GRU_FORMS, "see `GRU_FORMS`"),
        Input("more", '[H], the recurrent bias inside the gate ("reset last"), or what the form "gates" gives ("output")', True),
    ),
    _spec("RNN", 1, 0.5, integer("relu", "whether that is the function, not tanh")),
)
