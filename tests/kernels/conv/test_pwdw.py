"""PWDW on every ISA: against float64, and bit by bit against CONV and DWCONV one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, IMAGE, ISAS, activate, boxes, filled, layout, pack_panels, run, same_bits

from aspen_mp.workers import _kernels

Pair = tuple[int, int]


class Case:
    """A call: its operands in drawn or channels-last layouts, and what CONV and DWCONV make of them."""

    def __init__(
        self,
        seed: int,
        shape: tuple[int, int, int, int],
        channels: int,
        kernel: Pair,
        stride: Pair,
        dilation: Pair,
        before: Pair,
        after: Pair,
        acts: tuple[str, str] = ("CLIP", "RELU"),
        biases: Pair = (1, 1),
        plain: bool = True,
    ) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.window = [*kernel, *stride, *dilation, *before]
        self.acts, self.plain = acts, plain
        size = [
            (n + b + a - (k - 1) * d - 1) // s + 1
            for n, k, s, d, b, a in zip(shape[2:], kernel, stride, dilation, before, after, strict=True)
        ]
        self.shape = (shape[0], channels, *size)
        self.wide = (shape[0], channels, *shape[2:])
        self.after = after
        self.values = rng.standard_normal(shape, dtype=np.float32)
        self.w = rng.standard_normal((channels, shape[1]), dtype=np.float32)
        self.d = rng.standard_normal((kernel[0] * kernel[1], channels), dtype=np.float32)
        self.biases = [rng.standard_normal(channels, dtype=np.float32) if b else None for b in biases]
        self.params = [*ACTIVATIONS[acts[0]], *self.window, *ACTIVATIONS[acts[1]]]

    def array(self, values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if self.plain else filled(self.rng, values)

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.array(np.empty(shape, np.float32)) if self.plain else layout(self.rng, shape)

    def inputs(self) -> list[np.ndarray | None]:
        return [self.array(self.values), pack_panels(self.w.T)[None], self.biases[0], self.d, self.biases[1]]

    def apart(self, isa: str) -> np.ndarray:
        """By two kernels."""
        x, w, bias, d, late = self.inputs()
        one = [1, 1, 1, 1, 1, 1, 1, 0, 0]
        between = self.empty(self.wide)
        between[...] = run("CONV", between, [x, w, bias], [*one, *ACTIVATIONS[self.acts[0]], 0, *ACTIVATIONS["IDENTITY"], *IMAGE], isa=isa)
        p = [self.shape[1], *self.window, *ACTIVATIONS[self.acts[1]], 0, *ACTIVATIONS["IDENTITY"], *IMAGE]
        return run("DWCONV", self.empty(self.shape), [between, d, late], p, isa=isa)

    def float64(self) -> np.ndarray:
        y = np.einsum("nchw,oc->nohw", self.values.astype(np.float64), self.w.astype(np.float64))
        y = activate(self.acts[0], y + _column(self.biases[0]), *ACTIVATIONS[self.acts[0]][1:])
        kh, kw, sh, sw, dh, dw, top, left = self.window
        y = np.pad(y, ((0, 0), (0, 0), (top, self.after[0]), (left, self.after[1])))
        rows, columns = self.shape[2:]
        out = np.zeros(self.shape)
        for i in range(kh):
            for j in range(kw):
                seen = y[:, :, i * dh : i * dh + (rows - 1) * sh + 1 : sh, j * dw : j * dw + (columns - 1) * sw + 1 : sw]
                out += seen * _column(self.d[i * kw + j])
        return activate(self.acts[1], out + _column(self.biases[1]), *ACTIVATIONS[self.acts[1]][1:])


def _column(values: np.ndarray | None) -> np.ndarray | float:
    return 0.0 if values is None else values.astype(np.float64)[:, None, None]


def compare(case: Case, isa: str, pieces: int = 6) -> None:
    out = case.empty(case.shape)
    whole = run("PWDW", out, case.inputs(), case.params, isa=isa)
    wanted = case.float64()
    scale = np.abs(case.d).sum(0)[:, None, None] * (np.abs(case.values).max(initial=0) * np.abs(case.w).sum(1)[:, None, None] + 8) + 8
    assert (np.abs(whole - wanted) <= 3e-6 * scale).all(), f"worst error {np.abs(whole - wanted).max(initial=0):.3g}"
    np.testing.assert_array_equal(whole, case.apart(isa))
    tiles = boxes(case.rng, case.shape, pieces)
    assert same_bits(whole, run("PWDW", out, case.inputs(), case.params, tiles, isa)), "bits depend on the tile"
    case.plain = not case.plain
    assert same_bits(whole, run("PWDW", case.empty(case.shape), case.inputs(), case.params, tiles, isa)), "bits depend on the layout"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    def pair(*values: int) -> Pair:
        return draw(st.sampled_from(values)), draw(st.sampled_from(values))

    square = draw(st.booleans())
    kernel, stride = pair(1, 2, 3, 3, 5, 7), pair(1, 2, 3)
    dilation = pair(1, 1, 2, 4)
    if square:
        kernel, stride, dilation = (draw(st.sampled_from([3, 5])),) * 2, (draw(st.sampled_from([1, 2])),) * 2, (1, 1)
    before, after = pair(0, 1, 1, 2, 6), pair(0, 1, 2, 9)
    sizes = st.sampled_from([0, 1, 2, 5, 7, 8, 13, 14, 20, 33])
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    image = [max(draw(sizes), r - b - a) for r, b, a in zip(reach, before, after, strict=True)]
    shape = (draw(st.integers(1, 2)), draw(st.sampled_from([1, 3, 8, 16, 33])), *image)
    channels = draw(st.sampled_from([1, 5, 16, 24, 31, 32, 33, 64, 70]))
    acts = (draw(st.sampled_from(sorted(ACTIVATIONS))), draw(st.sampled_from(sorted(ACTIVATIONS))))
    window = (kernel, stride, dilation, before, after)
    return Case(draw(st.integers(0, 2**32)), shape, channels, *window, acts, pair(0, 1), draw(st.booleans()))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=70, deadline=None)
@given(case=cases())
def test_against_float64_and_its_parts(isa: str, case: Case) -> None:
    compare(case, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernel", "size"), [(3, 56), (3, 14), (3, 7), (5, 28), (5, 7)])
def test_shapes_of_networks(isa: str, kernel: int, stride: int, size: int) -> None:
    pad = kernel // 2
    compare(Case(1, (1, 24, size, size), 72, *[(v, v) for v in (kernel, stride, 1, pad, pad)], ("HARD_SWISH", "CLIP")), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_an_image_wider_than_a_strip(isa: str) -> None:
    compare(Case(2, (1, 4, 9, 1500), 40, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), isa, 3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 1, (90, 120)), (3, 2, (101, 97)), (5, 1, (400, 30))])
def test_images_that_several_panels_read_together(isa: str, kernel: int, stride: int, size: Pair) -> None:
    pad = kernel // 2
    compare(Case(4, (1, 24, *size), 330, *[(v, v) for v in (kernel, stride, 1, pad, pad)]), isa, 3)


def test_refuses_what_it_cannot_do() -> None:
    case = Case(3, (1, 4, 5, 5), 8, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    out, inputs = case.empty(case.shape), case.inputs()
    x = inputs[0]
    assert x is not None
    assert _kernels.call("PWDW", [out.astype(np.float64), *inputs], case.params, [0] * 4, out.shape) == 2
    assert _kernels.call("PWDW", [out, x[0], *inputs[1:]], case.params, [0] * 4, out.shape) == 2
