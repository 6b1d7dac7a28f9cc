"""WINO on every ISA against float64, over drawn shapes, layouts, epilogues and tilings that cut blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, IMAGE, ISAS, boxes, broadcast, epilogue, filled, layout, run, same_bits

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.ops.packing import winograd
from aspen_mp.planner.ops.table import input_region
from aspen_mp.workers import _kernels

Pads = tuple[int, int, int, int]


class Kind(NamedTuple):
    """Rows and columns of the kernel, stride, side of a block."""

    rows: int
    columns: int
    stride: int
    m: int

    @property
    def strides(self) -> tuple[int, int]:
        return self.stride, self.stride


KINDS = [Kind(*kind, m) for kind, sides in winograd.BLOCKS.items() for m in sides]
SQUARE = Kind(3, 3, 1, 4)


def error(kind: Kind) -> float:
    """Error of a sum beside that of a direct one of as many terms, at most: it grows with the number of products along each axis."""
    factors = {1: 1.0, 4: 2.0, 5: 2.0, 6: 5.5, 7: 2.0, 8: 8.0, 9: 5.5, 10: 12.0, 12: 40.0}
    rows, columns = winograd.axes(kind[:2], kind.strides, kind.m)
    return factors[rows.side] * factors[columns.side]


def convolve(x: np.ndarray, w: np.ndarray, pads: Pads, stride: int = 1) -> np.ndarray:
    """x [N, C, H, W], w [OC, C, KH, KW] → float64 [N, OC, OH, OW]. pads: top, left, bottom, right."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    kh, kw = w.shape[2:]
    oh, ow = padded.shape[2] - kh + 1, padded.shape[3] - kw + 1
    w64 = w.astype(np.float64)
    return sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + oh : stride, j : j + ow : stride], w64[:, :, i, j], optimize=True)
        for i in range(kh)
        for j in range(kw)
    )


def transformed(w: np.ndarray, kind: Kind) -> np.ndarray:
    out = np.full(winograd.packed_shape(w.shape, kind.m, kind.strides), np.nan, np.float32)
    winograd.pack(kind.m, w, out, kind.strides)
    return out


def channels_last(rng: np.random.Generator, values: np.ndarray, plain: bool) -> np.ndarray:
    """Either any layout, or contiguous with channels last: what fast paths ask for."""
    if not plain:
        return filled(rng, values)
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def params(kind: Kind, pads: Pads, activation: str, residual_last: bool = False) -> list[int | float]:
    window = [kind.rows, kind.columns, *kind.strides, 1, 1, pads[0], pads[1]]
    return [1, *window, *ACTIVATIONS[activation], int(residual_last), 0, 0, 0, kind.m, *IMAGE]


def compare(isa, rng, kind, batch, channels, outputs, image, pads: Pads, **options):
    plain, activation, with_bias, with_residual = (options[k] for k in ("plain", "activation", "with_bias", "with_residual"))
    residual_last, scaled = options.get("residual_last", False), options.get("scaled", False)
    x_values = rng.standard_normal((batch, channels, *image), dtype=np.float32)
    w = rng.standard_normal((outputs, channels, kind.rows, kind.columns), dtype=np.float32)
    wanted, magnitude = (convolve(f(x_values), f(w), pads, kind.stride) for f in (np.asarray, np.abs))
    shape = wanted.shape
    x, u = channels_last(rng, x_values, plain), transformed(w, kind)
    bias = filled(rng, rng.standard_normal(outputs, dtype=np.float32), plain) if with_bias else None
    residual = None
    if with_residual:
        dims = tuple(int(d if rng.random() < 0.8 else 1) for d in shape)
        residual = broadcast(rng, rng.standard_normal(dims, dtype=np.float32), shape)
        if plain:
            residual = channels_last(rng, residual, True)
    scale, shift = (rng.standard_normal(outputs, dtype=np.float32) if scaled else None for _ in range(2))
    out = channels_last(rng, np.empty(shape, np.float32), True) if plain else layout(rng, shape)
    p = params(kind, pads, activation, residual_last)
    whole = run("WINO", out, [x, u, bias, residual, scale, shift], p, isa=isa)

    # Transforms mix all values of a block: its errors are bounded by what is largest in it.
    magnitude = np.full_like(magnitude, magnitude.max())
    by_channel = [None if t is None else t[:, None, None] for t in (bias, scale, shift)]
    wanted, magnitude = epilogue(wanted, magnitude, activation, by_channel[0], residual, *by_channel[1:], residual_last)
    bound = error(kind) * (kind.rows * kind.columns * channels + 8) * 2.0**-24 * magnitude + 8 * 2.0**-24 * np.abs(wanted) + 1e-7
    assert (np.abs(whole - wanted) <= bound).all(), f"worst error {np.abs(whole - wanted).max():.3g} of {magnitude.max():.3g}"

    tiles = boxes(rng, shape, int(rng.integers(2, 10)))
    assert same_bits(whole, run("WINO", out, [x, u, bias, residual, scale, shift], p, tiles, isa)), "bits depend on the tile"
    relaid = [channels_last(rng, x_values, not plain), u, bias, None if residual is None else filled(rng, residual), scale, shift]
    assert same_bits(whole, run("WINO", layout(rng, shape), relaid, p, tiles, isa)), "bits depend on the layout"
    _kernels.time_tiles("WINO", [out, x, u, bias, residual, scale, shift], p, np.array(tiles, np.int64), isa=isa)
    assert same_bits(whole, out), "bits depend on the tile before"


@st.composite
def images(draw: st.DrawFn) -> tuple[Kind, tuple[int, int], Pads]:
    """A kind, an image and pads that leave at least one pixel of output."""
    kind = draw(st.sampled_from(KINDS))
    pads: Pads = draw(st.tuples(*[st.sampled_from([0, 1, 1, 2, 5])] * 4))
    sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 13, 14, 21])
    return kind, (max(draw(sizes), kind.rows - pads[0] - pads[2]), max(draw(sizes), kind.columns - pads[1] - pads[3])), pads


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 2),
    channels=st.sampled_from([1, 2, 3, 15, 16, 17, 32, 40, 64]),
    outputs=st.sampled_from([1, 2, 8, 16, 17, 32, 33, 48, 64, 70]),
    image=images(),
    plain=st.booleans(),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    with_bias=st.booleans(),
    with_residual=st.booleans(),
    residual_last=st.booleans(),
    scaled=st.booleans(),
)
def test_against_float64(isa, seed, batch, channels, outputs, image, **options):
    kind, *image = image
    compare(isa, np.random.default_rng(seed), kind, batch, channels, outputs, *image, **options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "size", "activation"),
    [(1, 64, 64, 56, "RELU"), (2, 256, 96, 14, "RELU"), (1, 512, 64, 7, "SWISH"), (1, 600, 33, 9, "CLIP")],
)
def test_shapes_of_networks(isa, kind, plain, batch, channels, outputs, size, activation):
    rng = np.random.default_rng(1)
    pads = (kind.rows // 2, kind.columns // 2) * 2
    compare(
        isa, rng, kind, batch, channels, outputs, (size, size), pads, plain=plain, activation=activation, with_bias=True, with_residual=True
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_error_of_a_layer(kind):
    """What is promised of a layer, of its largest output."""
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((1, 256, 28, 28), dtype=np.float32), 0)
    w = rng.standard_normal((64, 256, kind.rows, kind.columns), dtype=np.float32)
    pads = (kind.rows // 2, kind.columns // 2) * 2
    wanted = convolve(x, w, pads, kind.stride)
    for isa in ISAS:
        out = np.empty(wanted.shape, np.float32)
        assert _kernels.call("WINO", [out, x, transformed(w, kind)], params(kind, pads, "IDENTITY"), [0] * 4, out.shape, isa) == 0
        most = {2: 2e-6, 3: 2e-6 if kind.stride == 2 else 1e-5 if kind.rows == 4 else 4e-6, 4: 1e-5, 5: 3e-5, 6: 3e-5}[kind.m]
        assert np.abs(out - wanted).max() <= most * np.abs(wanted).max()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_transforms_are_exact(kind):
    """Small integers convolve exactly where every coefficient and every product is exact: the matrices belong together."""
    rng = np.random.default_rng(0)
    for axis in winograd.axes(kind[:2], kind.strides, kind.m):
        a, g, b = axis.matrices()
        d, w = rng.integers(-9, 9, axis.side).astype(float), rng.integers(-9, 9, axis.kernel).astype(float)
        wanted = np.correlate(d, w, "valid")[:: axis.stride]
        np.testing.assert_allclose(a.T @ ((g @ w) * (b.T @ d)), wanted, rtol=0, atol=1e-9)
        assert (b.astype(np.float32) == b).all()
        assert (g[axis.weights :] == g[axis.weights - 1]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("channels", "outputs"), [(40, 130), (300, 130), (300, 520)])
def test_tiles_of_the_same_pixels(isa, channels, outputs):
    """A tile begins with the input that the last one of the same pixels left transformed: with the last chunk of several, few weights and
    many, or after other pixels."""
    rng = np.random.default_rng(7)
    size, p = 33, params(SQUARE, (1, 1, 1, 1), "RELU")
    x = channels_last(rng, rng.standard_normal((1, channels, size, size), dtype=np.float32), True)
    u = transformed(rng.standard_normal((outputs, channels, 3, 3), dtype=np.float32), SQUARE)
    out = channels_last(rng, np.empty((1, outputs, size, size), np.float32), True)
    whole = run("WINO", out, [x, u], p, isa=isa)
    rows = [(0, 20), (20, 24), (24, size)]
    columns = [(0, 32), (32, 64), (64, 128), (128, outputs)]
    for tiles in ([(r, c) for r in rows for c in columns], [(r, c) for c in columns for r in rows], [((0, size), c) for c in columns]):
        out[...] = np.nan
        boxes_of = np.array([[[0, c[0], r[0], 0], [1, c[1], r[1], size]] for r, c in tiles], np.int64)
        _kernels.time_tiles("WINO", [out, x, u], p, boxes_of, rounds=2, isa=isa)
        assert same_bits(whole, out)


def test_parameters_that_no_block_has():
    out, x, w = np.empty((1, 32, 4, 4), np.float32), np.zeros((1, 8, 4, 4), np.float32), np.zeros((1, 36, 8, 32), np.float32)
    for place, value in [(16, 5), (16, 8), (0, 2), (1, 5), (3, 2), (6, 2)]:
        p = params(SQUARE, (1, 1, 1, 1), "RELU")
        p[place] = value
        assert _kernels.call("WINO", [out, x, w], p, [0] * 4, out.shape) == 2


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_keeps_its_bits(isa, activation):
    """Fused or behind the convolution, in registers or not: an activation has the same bits."""
    rng = np.random.default_rng(3)
    pads = (1, 1, 1, 1)
    x = channels_last(rng, rng.standard_normal((1, 16, 9, 10), dtype=np.float32) * 3, True)
    u = transformed(rng.standard_normal((40, 16, 3, 3), dtype=np.float32), SQUARE)
    out = channels_last(rng, np.empty((1, 40, 9, 10), np.float32), True)
    residual = channels_last(rng, rng.standard_normal(out.shape, dtype=np.float32), True)
    flat = np.ascontiguousarray(run("WINO", out, [x, u], params(SQUARE, pads, "IDENTITY"), isa=isa))
    wanted = run("UNARY", np.empty_like(flat), [flat], list(ACTIVATIONS[activation]), isa=isa)
    assert same_bits(run("WINO", out, [x, u], params(SQUARE, pads, activation), isa=isa), wanted)
    assert same_bits(run("WINO", out, [x, u, None, residual], params(SQUARE, pads, activation, True), isa=isa), wanted + residual)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_else_is_read(kind):
    """Input outside the region of a box may hold anything."""
    rng = np.random.default_rng(5)
    pads = (1, 0, 1, 2)
    x = rng.standard_normal((2, 16, 11, 13), dtype=np.float32)
    u = transformed(rng.standard_normal((33, 16, kind.rows, kind.columns), dtype=np.float32), kind)
    shape = (2, 33, *((d + pads[i] + pads[i + 2] - kind[i]) // kind.stride + 1 for i, d in enumerate((11, 13))))
    whole = run("WINO", np.empty(shape, np.float32), [x, u], params(kind, pads, "RELU"))
    attrs = {"groups": 1, "kernel": kind[:2], "strides": kind.strides, "dilations": (1, 1), "pads": pads[:2], "block": kind.m}
    tensors = [Tensor("x", x.shape, x.dtype), Tensor("u", u.shape, u.dtype)]
    node = Node("WINO", "n", list(tensors), [Tensor("y", whole.shape, whole.dtype)], attrs)
    for lo, hi in boxes(rng, whole.shape, 20):
        first, last = input_region(node, 0, np.array([lo]), np.array([hi]))
        holed = np.full_like(x, np.nan)
        read = tuple(slice(a, b) for a, b in zip(first[0], last[0], strict=True))
        holed[read] = x[read]
        out = np.empty_like(whole)
        assert _kernels.call("WINO", [out, holed, u], params(kind, pads, "RELU"), lo, hi) == 0
        box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
        assert same_bits(out[box], whole[box])
