"""LSTM, GRU and RNN."""

from __future__ import annotations

from aspen_mp.planner.ops.checks.call import LIMIT, Call, Rule, all_f32, in_range, need, ranked, shaped
from aspen_mp.planner.ops.params import GRU_FORMS

UNITS = 16
"""Of a panel of recurrent weights."""
LSTM_GATES, GRU_GATES = 4, 3


def _recurrent(gates: int) -> Rule:
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


RULES: dict[str, Rule] = {
    "LSTM": _recurrent(LSTM_GATES),
    "GRU": _recurrent(GRU_GATES),
    "RNN": _recurrent(1),
}
