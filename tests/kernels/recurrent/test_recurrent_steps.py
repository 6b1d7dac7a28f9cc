"""LSTM, GRU and RNN on every ISA: against float64, in any layout, and the same bits for any tiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, SENTINEL, base, boxes, filled, layout, same_bits

from aspen_mp.planner.lower.builder import pack_recurrent
from aspen_mp.workers import _kernels

Array = np.ndarray[Any, np.dtype[Any]]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def sigmoid(x: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))


class Case:
    """A call of `steps` steps from step `first` of P on, `behind` it as many that nobody may look at."""

    def __init__(
        self,
        op: str,
        seed: int,
        steps: int,
        batch: int,
        hidden: int,
        option: int,
        reverse: int,
        given: set[str],
        plain: bool,
        big: float = 1.0,
    ) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.op, self.option, self.reverse, self.plain = op, option, reverse, plain
        gates, first, behind = GATES[op], int(rng.integers(0, 3)), int(rng.integers(0, 2))
        self.p = np.full((first + steps + behind, batch, gates * hidden), np.nan, np.float32)
        self.p[first : first + steps] = big * rng.standard_normal((steps, batch, gates * hidden), dtype=np.float32)
        self.r = (rng.standard_normal((gates * hidden, hidden)) / np.sqrt(hidden)).astype(np.float32)
        before = int(rng.integers(1, 3))
        self.h = np.full((before, 1, batch, hidden), np.nan, np.float32)
        self.h[0 if reverse else -1] = rng.standard_normal((1, batch, hidden), dtype=np.float32)
        self.c = rng.standard_normal((1, 1, batch, hidden), dtype=np.float32)
        self.rb = rng.standard_normal(hidden, dtype=np.float32)
        self.given = given
        self.shape = (steps, 1, batch, hidden)
        self.params = [first, reverse, option]

    def run(self, isa: str, tiles: list[tuple[list[int], list[int]]]) -> list[Array]:
        """All outputs; what lies around them is as it was."""
        hidden, gates = self.shape[3], GATES[self.op]
        packed = np.empty((-(-hidden // 16), hidden, gates, 16), np.float32)
        pack_recurrent(0, (0, gates), self.op == "GRU" and not self.option, self.r[None], packed)
        inputs: list[Array | None] = [filled(self.rng, self.p, self.plain), packed]
        inputs.append(filled(self.rng, self.h, self.plain) if "h" in self.given else None)
        more = {"LSTM": ("c", self.c), "GRU": ("rb", self.rb)}.get(self.op)
        if more is not None and more[0] in self.given and (self.op == "LSTM" or self.option):
            inputs.append(filled(self.rng, more[1], self.plain))
        shapes = [self.shape, (1, 1, *self.shape[2:])] if self.op == "LSTM" else [self.shape]
        outs = [layout(self.rng, shape, plain=self.plain) for shape in shapes]
        for out in outs:
            base(out)[:] = SENTINEL["f"]
        saved = [None if x is None else x.tobytes() for x in inputs]
        for lo, hi in tiles:
            assert _kernels.call(self.op, [*outs, *inputs], self.params, lo, hi, isa) == 0
        results = [out.copy() for out in outs]
        for out in outs:
            out[...] = SENTINEL["f"]
            assert (base(out) == np.float32(SENTINEL["f"])).all(), "the kernel wrote outside its outputs"
        assert [None if x is None else x.tobytes() for x in inputs] == saved, "the kernel wrote to an input"
        return results

    def float64(self) -> list[Array]:
        steps, _, batch, hidden = self.shape
        r = self.r.astype(np.float64)
        h = self.h[0 if self.reverse else -1, 0].astype(np.float64) if "h" in self.given else np.zeros((batch, hidden))
        c = self.c[0, 0].astype(np.float64) if "c" in self.given else np.zeros((batch, hidden))
        rb = self.rb.astype(np.float64) if "rb" in self.given else np.zeros(hidden)
        y = np.zeros(self.shape)
        for k in reversed(range(steps)) if self.reverse else range(steps):
            p = self.p[self.params[0] + k].astype(np.float64)
            if self.op == "LSTM":
                i, o, f, g = np.split(p + h @ r.T, 4, 1)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            elif self.op == "RNN":
                h = p + h @ r.T
                h = np.maximum(h, 0) if self.option else np.tanh(h)
            else:
                z, reset = (sigmoid(p[:, part] + h @ r[part].T) for part in (slice(hidden), slice(hidden, 2 * hidden)))
                inner = r[2 * hidden :].T
                n = np.tanh(p[:, 2 * hidden :] + (reset * (h @ inner + rb) if self.option else (reset * h) @ inner))
                h = (1 - z) * n + z * h
            y[k, 0] = h
        return [y, c[None, None]] if self.op == "LSTM" else [y]


def compare(case: Case, isa: str, pieces: int = 6) -> None:
    whole = [([0] * 4, list(case.shape))]
    results = case.run(isa, whole)
    for got, want in zip(results, case.float64(), strict=True):
        assert (np.abs(got - want) <= 4e-6 * np.maximum(np.abs(want).max(), 1)).all(), f"worst error {np.abs(got - want).max():.3g}"
    tiles = boxes(case.rng, case.shape, pieces)
    assert all(map(same_bits, results, case.run(isa, tiles))), f"bits depend on the tiles {tiles}"
    case.plain = not case.plain
    assert all(map(same_bits, results, case.run(isa, tiles))), "bits depend on the layout"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    op = draw(st.sampled_from(sorted(GATES)))
    sizes = st.one_of(st.integers(1, 20), st.sampled_from([16, 31, 32, 33, 64, 100]))
    shape = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 3, 4, 5, 6, 7, 8, 13, 20])), draw(sizes)
    given = draw(st.sets(st.sampled_from(["h", "c", "rb"])))
    return Case(op, draw(st.integers(0, 2**32)), *shape, draw(st.integers(0, 1)), draw(st.integers(0, 1)), given, draw(st.booleans()))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_against_float64(isa: str, case: Case) -> None:
    compare(case, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("option", [0, 1])
@pytest.mark.parametrize(
    ("op", "hidden", "batch"), [("LSTM", 256, 1), ("LSTM", 128, 32), ("GRU", 512, 1), ("GRU", 200, 9), ("RNN", 300, 2)]
)
def test_shapes_of_networks(isa: str, option: int, op: str, hidden: int, batch: int) -> None:
    compare(Case(op, 1, 3, batch, hidden, option, 0, {"h", "c", "rb"}, plain=True), isa, 4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("batch", "hidden"), [(1, 40), (5, 16), (9, 33)])
def test_half_steps_have_the_bits_of_a_whole_one(isa: str, batch: int, hidden: int) -> None:
    case = Case("GRU", 5, 1, batch, hidden, 0, 0, {"h"}, plain=True)
    (whole,) = case.run(isa, [([0] * 4, list(case.shape))])
    panels = [np.empty((-(-hidden // 16), hidden, n, 16), np.float32) for n in (2, 1)]
    for gates, packed in zip([(0, 2), (2, 3)], panels, strict=True):
        pack_recurrent(0, gates, False, case.r[None], packed)
    first = case.params[0]
    halves, out = layout(case.rng, (2, *case.shape[1:])), layout(case.rng, case.shape)
    for lo, hi in boxes(case.rng, halves.shape, 5):
        assert _kernels.call("GRU", [halves, case.p, panels[0], case.h], [first, 0, 2], lo, hi, isa) == 0
    for lo, hi in boxes(case.rng, out.shape, 5):
        assert _kernels.call("GRU", [out, case.p, panels[1], case.h, halves], [first, 0, 3], lo, hi, isa) == 0
    assert same_bits(out, whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", GATES)
def test_gates_that_are_wide_open_or_shut(isa: str, op: str) -> None:
    """Sums so large that exponentials of them overflow."""
    compare(Case(op, 2, 3, 4, 24, 0, 0, {"h", "c", "rb"}, plain=True, big=500.0), isa, 3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", GATES)
def test_what_is_no_number_stays_in_its_row(isa: str, op: str) -> None:
    case = Case(op, 3, 2, 3, 20, 1, 0, {"h"}, plain=True)
    case.p[:, 1] = np.nan
    for out in case.run(isa, [([0] * 4, list(case.shape))]):
        assert np.isnan(out[:, :, 1]).all()
        assert np.isfinite(out[:, :, [0, 2]]).all()


def test_refuses_what_it_cannot_do() -> None:
    case = Case("GRU", 4, 2, 2, 16, 1, 0, {"h"}, plain=True)
    out, packed = np.zeros(case.shape, np.float32), np.zeros((1, 16, 3, 16), np.float32)
    assert _kernels.call("GRU", [out.astype(np.float64), case.p, packed], case.params, [0] * 4, out.shape) == 2
    assert _kernels.call("GRU", [out, case.p, packed, case.h[0]], case.params, [0] * 4, out.shape) == 2
    with pytest.raises(ValueError, match="1 inputs"):
        _kernels.call("LSTM", [out, out, case.p], case.params, [0] * 4, out.shape)
