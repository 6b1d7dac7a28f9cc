"""BCONV on every ISA, with the processor's instruction for pairs of bf16 and without it, against float64 over rounded factors; whole tiles
against drawn ones, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from byte_tools import check_without
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, run, same_bits
from pair_tools import HALVES, SWITCH, both_ways, pack_pairs, rounded
from test_conv import Geometry, cases, channels_last, convolve

from aspen_mp.shm.tables import TERNARY
from aspen_mp.workers import _isa, _kernels

BAD_ARGUMENT, SCRATCH = 2, 3


def pack(w: np.ndarray) -> np.ndarray:
    """[OC, C, KH, KW] → words of BCONV."""
    return pack_pairs(w.transpose(2, 3, 1, 0).reshape(-1, w.shape[1], w.shape[0]))


def params(
    g: Geometry, activation: str = "IDENTITY", residual_last: bool = False, before: str = "IDENTITY", amx: bool = False
) -> list[int | float]:
    return [*g.kernel, *g.stride, *g.dilation, *g.before, *ACTIVATIONS[activation], int(residual_last), *ACTIVATIONS[before], int(amx)]


def compare(
    isa, rng, case, *, plain, activation="IDENTITY", with_bias=False, with_residual=False, residual_last=False, scaled=False, amx=False
):
    batch, _, inputs, outputs, image, g = case
    x_values = rng.standard_normal((batch, inputs, *image), dtype=np.float32)
    w = rng.standard_normal((outputs, inputs, *g.kernel), dtype=np.float32)
    shape = (batch, outputs, *g.out(image))
    bias = filled(rng, rng.standard_normal(outputs, dtype=np.float32), plain) if with_bias else None
    residual = None
    if with_residual:
        dims = tuple(int(d if rng.random() < 0.8 else 1) for d in shape)
        residual = broadcast(rng, rng.standard_normal(dims, dtype=np.float32), shape)
        if plain:
            residual = channels_last(rng, residual, True)
    scale, shift = (rng.standard_normal(outputs, dtype=np.float32) if scaled else None for _ in range(2))
    out = channels_last(rng, np.empty(shape, np.float32), True) if plain else layout(rng, shape)
    p, rest = params(g, activation, residual_last, amx=amx), [pack(w), bias, residual, scale, shift]
    whole = run("BCONV", out, [channels_last(rng, x_values, plain), *rest], p, isa=isa)

    seen, weights = rounded(x_values), rounded(w)
    wanted, magnitude = convolve(seen, weights, 1, g), convolve(np.abs(seen), np.abs(weights), 1, g)
    by_channel = [None if t is None else t[:, None, None] for t in (bias, scale, shift)]
    wanted, magnitude = epilogue(wanted, magnitude, activation, by_channel[0], residual, *by_channel[1:], residual_last)
    bound = (inputs * g.kernel[0] * g.kernel[1] + 8) * 2.0**-24 * magnitude * 1.5 + 8 * 2.0**-24 * np.abs(wanted) + 1e-7
    assert (np.abs(whole - wanted) <= bound).all(), f"worst error {np.abs(whole - wanted).max():.3g}"

    tiles = boxes(rng, shape, int(rng.integers(2, 10)))
    other = layout(rng, shape)
    relaid = [channels_last(rng, x_values, not plain), rest[0], bias, None if residual is None else filled(rng, residual), scale, shift]
    assert same_bits(whole, run("BCONV", other, relaid, p, tiles, isa)), "bits depend on the tile or on the layout"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(depthwise=False),
    plain=st.booleans(),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    with_bias=st.booleans(),
    with_residual=st.booleans(),
    residual_last=st.booleans(),
    scaled=st.booleans(),
    amx=st.booleans(),
)
def test_against_float64(isa, seed, case, **options):
    compare(isa, np.random.default_rng(seed), case, **options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs", "image", "geometry"),
    [
        (64, 64, (28, 28), Geometry((1, 1))),
        (256, 70, (14, 14), Geometry((1, 1), (2, 2))),
        (1024, 40, (7, 7), Geometry((1, 1))),  # pixels compete for the same sets of L1
        (1024, 33, (4, 5), Geometry((3, 3), before=(1, 1), after=(1, 1))),
        (64, 96, (28, 28), Geometry((3, 3), before=(1, 1), after=(1, 1))),
        (127, 31, (7, 7), Geometry((3, 3), (2, 2), before=(1, 1), after=(1, 1))),
        (40, 33, (30, 30), Geometry((3, 3), (1, 1), (12, 12), (12, 12), (12, 12))),  # atrous
        (20, 16, (3, 3), Geometry((3, 3), (4, 4), (1, 1), (5, 6), (7, 5))),  # windows without any pixel
        (130, 8, (5, 150), Geometry((5, 5), (1, 1), (2, 2), (4, 4), (4, 4))),  # a copy that exceeds its budget
        (600, 32, (40, 60), Geometry((1, 1))),
        (18, 64, (1, 301), Geometry((1, 9), (1, 2), (1, 1), (0, 4), (0, 4))),
    ],
)
def test_shapes_of_networks(isa, plain, amx, inputs, outputs, image, geometry):
    case = (2, 1, inputs, outputs, image, geometry)
    compare(isa, np.random.default_rng(1), case, plain=plain, activation="RELU", with_bias=True, with_residual=True, amx=amx)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["IDENTITY", "RELU", "SWISH"])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("channels", "geometry"),
    [
        (160, Geometry((1, 1))),
        (33, Geometry((1, 1), (2, 2))),
        (1100, Geometry((1, 1), before=(0, 1))),
        (19, Geometry((3, 3), before=(1, 1))),
    ],
)
def test_normalisation_before_the_convolution(isa, activation, plain, channels, geometry):
    """The bits are those of its parts; padding stays zero."""
    rng = np.random.default_rng(channels)
    values = rng.standard_normal((2, channels, 6, 7), dtype=np.float32)
    x, w = channels_last(rng, values, plain), pack(rng.standard_normal((40, channels, *geometry.kernel), dtype=np.float32))
    scale, shift = (rng.standard_normal(channels, dtype=np.float32) for _ in range(2))
    wide = [np.broadcast_to(t[:, None, None], values.shape) for t in (scale, shift)]
    before = run("TERNARY", np.empty_like(values), [values, *wide], [TERNARY["FMA"], *ACTIVATIONS[activation]], isa=isa)
    out = np.empty((2, 40, *geometry.out(values.shape[2:])), np.float32)
    for amx in (False, True):
        apart = run("BCONV", out, [before, w], params(geometry, amx=amx), isa=isa).copy()
        inputs, p = [x, w, None, None, None, None, scale, shift], params(geometry, before=activation, amx=amx)
        whole = run("BCONV", out, inputs, p, isa=isa)
        assert same_bits(whole, apart)
        assert same_bits(whole, run("BCONV", layout(rng, out.shape), inputs, p, boxes(rng, out.shape, 5), isa))


@pytest.mark.parametrize("isa", ISAS)
def test_rounding(isa):
    """To nearest even, of factors of any size; NaN and infinities stay what they are."""
    values = HALVES
    x = np.zeros((1, 2, 1, len(values)), np.float32)
    x[0, 0, 0] = values
    w = np.zeros((1, 2, 1, 1), np.float32)
    w[0, 0] = 1.0
    x = channels_last(np.random.default_rng(0), x, True)
    out = run("BCONV", np.empty((1, 1, 1, len(values)), np.float32), [x, pack(w)], params(Geometry((1, 1))), isa=isa)
    np.testing.assert_array_equal(out[0, 0, 0], rounded(values))


@pytest.mark.parametrize("isa", ISAS)
def test_channels_of_the_same_pixels(isa):
    """What a tile has rounded the next may use: of the same pixels of the same image, and no others."""
    rng = np.random.default_rng(2)
    g = Geometry((3, 3), before=(1, 1), after=(1, 1))
    x = channels_last(rng, rng.standard_normal((2, 34, 9, 10), dtype=np.float32), True)
    w = pack(rng.standard_normal((96, 34, 3, 3), dtype=np.float32))
    out = channels_last(rng, np.empty((2, 96, 9, 10), np.float32), True)
    whole = run("BCONV", out.copy(), [x, w], params(g), isa=isa)
    tiles = [([n, c, top, 0], [n + 1, c + 32, top + 3, 10]) for top in (0, 3, 6) for n in (0, 1) for c in (0, 32, 64)]
    _kernels.time_tiles("BCONV", [out, x, w], params(g), np.array(tiles, np.int64), 1, isa)
    assert same_bits(out, whole)


@pytest.mark.parametrize("isa", ISAS)
def test_what_a_call_may_be(isa):
    x, w, out = np.zeros((1, 4, 6, 7), np.float32), np.zeros((1, 18, 32), np.uint32), np.zeros((1, 8, 4, 5), np.float32)
    good = params(Geometry((3, 3)))

    def call(args, p, room=None):
        return _kernels.call("BCONV", args, p, [0] * 4, out.shape, isa, room)

    asked = _kernels.scratch("BCONV", [out, x, w], good, [0] * 4, out.shape)
    assert call([out, x, w], good) == call([out, x, w], good, asked) == 0
    assert call([out, x, w], good, asked - 1) == SCRATCH
    for k in range(6):
        assert call([out, x, w], [*good[:k], 0, *good[k + 1 :]]) == BAD_ARGUMENT
    assert call([out, x, w.view(np.float32)], good) == BAD_ARGUMENT
    assert call([out, x.astype(np.float64), w], good) == BAD_ARGUMENT
    assert call([out, x, w.reshape(18, 32)], good) == BAD_ARGUMENT
    assert call([out, x, w, np.zeros((1, 8), np.float32)], good) == BAD_ARGUMENT
    assert call([out, x, w, None, None, np.zeros(8, np.float32)], good) == BAD_ARGUMENT
    assert call([out, x, w, None, None, np.zeros(7, np.float32), np.zeros(7, np.float32)], good) == BAD_ARGUMENT
    assert call([out, x, w, *[None] * 4, np.zeros(3, np.float32), np.zeros(3, np.float32)], good) == BAD_ARGUMENT
    assert call([out, x, w, *[None] * 4, np.zeros(4, np.float32), np.zeros(4, np.float32)], [*good[:12], 4000, 0.0, 0.0, 0]) == BAD_ARGUMENT


@both_ways
def test_without_the_instruction(tmp_path):
    check_without(tmp_path, __file__, SWITCH, has=_isa.sums_pairs)
