"""LSTM, GRU and RNN."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, whole

UNITS = 16
"""Of a panel of packed recurrent weights."""


def _recurrent(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """A run's steps up to the last one that the box needs: of that one the box's units, if their gates need no others of the same step."""
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
    """Of a GRU that resets first. `steps`: of P, and of the state before."""
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


RULES: dict[str, Rule] = {
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
