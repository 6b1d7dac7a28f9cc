"""CONV and DWCONV on every ISA against float64, over drawn shapes, layouts, epilogues and tilings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, IMAGE, ISAS, activate, boxes, broadcast, epilogue, filled, layout, pack_panels, run, same_bits

from aspen_mp.shm.tables import TERNARY


@dataclass(frozen=True)
class Geometry:
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)

    def out(self, image: tuple[int, int]) -> tuple[int, int]:
        h, w = (
            (n + b + a - (k - 1) * d - 1) // s + 1
            for n, k, s, d, b, a in zip(image, self.kernel, self.stride, self.dilation, self.before, self.after, strict=True)
        )
        return h, w

    def params(self, groups: int, activation: str, residual_last: bool = False, before: str = "IDENTITY") -> list[int | float]:
        tail = [int(residual_last), *ACTIVATIONS[before]]
        return [groups, *self.kernel, *self.stride, *self.dilation, *self.before, *ACTIVATIONS[activation], *tail, *IMAGE]


def convolve(x: np.ndarray, w: np.ndarray, groups: int, g: Geometry) -> np.ndarray:
    """x [N, C, H, W], w [OC, C / groups, KH, KW] → float64 [N, OC, OH, OW]: one product a tap."""
    oh, ow = g.out(x.shape[2:])
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *zip(g.before, g.after, strict=True)))
    n, oc, cg = x.shape[0], w.shape[0], w.shape[1]
    out = np.zeros((n, groups, oc // groups, oh, ow))
    w64 = w.astype(np.float64).reshape(groups, oc // groups, cg, *g.kernel)
    for kh in range(g.kernel[0]):
        for kw in range(g.kernel[1]):
            top, left = kh * g.dilation[0], kw * g.dilation[1]
            rows = slice(top, top + (oh - 1) * g.stride[0] + 1, g.stride[0])
            columns = slice(left, left + (ow - 1) * g.stride[1] + 1, g.stride[1])
            seen = padded[:, :, rows, columns].reshape(n, groups, cg, oh, ow)
            out += np.einsum("ngchw,goc->ngohw", seen, w64[..., kh, kw])
    return out.reshape(n, oc, oh, ow)


def pack_conv(w: np.ndarray, groups: int) -> np.ndarray:
    """[OC, Cg, KH, KW] → [G, ceil(OCg / 32), KH * KW * Cg, 32]."""
    per_group = w.reshape(groups, -1, *w.shape[1:])
    return np.stack([pack_panels(np.ascontiguousarray(v.transpose(2, 3, 1, 0)).reshape(-1, v.shape[0])) for v in per_group])


def channels_last(rng: np.random.Generator, values: np.ndarray, plain: bool) -> np.ndarray:
    """Either any layout, or contiguous with channels last: what fast paths ask for."""
    if not plain:
        return filled(rng, values)
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@st.composite
def cases(draw: st.DrawFn, depthwise: bool) -> tuple[int, int, int, int, tuple[int, int], Geometry]:
    """batch, groups, channels of a group in and out, image, geometry with at least one output pixel."""
    pair = lambda values: st.tuples(values, values)  # noqa: E731
    kernel = draw(pair(st.sampled_from([1, 1, 2, 3, 3, 4, 5, 7])))
    stride, dilation = draw(pair(st.sampled_from([1, 1, 2, 3]))), draw(pair(st.sampled_from([1, 1, 1, 2, 5])))
    before, after = draw(pair(st.sampled_from([0, 1, 1, 2, 3, 8]))), draw(pair(st.sampled_from([0, 1, 1, 2, 3, 9])))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 12, 14, 17, 20])
    image = tuple(max(draw(sizes), r - b - a) for r, b, a in zip(reach, before, after, strict=True))
    if depthwise:
        groups, cg, og = draw(st.sampled_from([1, 3, 4, 7, 8, 16, 17, 31, 33, 64, 70])), 1, draw(st.sampled_from([1, 1, 2, 3, 5]))
    else:
        groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
        cg, og = draw(st.sampled_from([1, 2, 3, 4, 8, 15, 16, 17, 33])), draw(st.sampled_from([1, 2, 5, 16, 31, 32, 33, 64, 70]))
    return draw(st.integers(1, 2)), groups, cg, og, image, Geometry(kernel, stride, dilation, before, after)  # type: ignore[arg-type]


def compare(kernel, isa, rng, case, *, plain, activation, with_bias, with_residual, residual_last=False, scaled=False, prologue=None):
    batch, groups, cg, og, image, g = case
    x_values = rng.standard_normal((batch, groups * cg, *image), dtype=np.float32)
    w = rng.standard_normal((groups * og, cg, *g.kernel), dtype=np.float32)
    shape = (batch, groups * og, *g.out(image))
    x = channels_last(rng, x_values, plain)
    packed = pack_conv(w, groups) if kernel == "CONV" else np.ascontiguousarray(w.reshape(groups * og, -1).T)
    bias = filled(rng, rng.standard_normal(groups * og, dtype=np.float32), plain) if with_bias else None
    residual = None
    if with_residual:
        dims = tuple(int(d if rng.random() < 0.8 else 1) for d in shape)
        residual = broadcast(rng, rng.standard_normal(dims, dtype=np.float32), shape)
        if plain:
            residual = channels_last(rng, residual, True)
    out = channels_last(rng, np.empty(shape, np.float32), True) if plain else layout(rng, shape)
    p = g.params(groups, activation, residual_last, prologue or "IDENTITY")
    rest = [packed, bias, residual, *(rng.standard_normal(groups * og, dtype=np.float32) if scaled else None for _ in range(2))]
    scale, shift = rest[3:]
    seen = x_values
    if prologue:
        rest += [rng.standard_normal(groups * cg, dtype=np.float32) for _ in range(2)]
        seen = activate(prologue, x_values.astype(np.float64) * rest[5][:, None, None] + rest[6][:, None, None], *ACTIVATIONS[prologue][1:])
    whole = run(kernel, out, [x, *rest], p, isa=isa)

    wanted, magnitude = convolve(seen, w, groups, g), convolve(np.abs(seen) + (prologue is not None), np.abs(w), groups, g)
    by_channel = [None if t is None else t[:, None, None] for t in (bias, scale, shift)]
    wanted, magnitude = epilogue(wanted, magnitude, activation, by_channel[0], residual, *by_channel[1:], residual_last)
    terms = cg * g.kernel[0] * g.kernel[1]
    bound = (terms + 8) * 2.0**-24 * magnitude * 1.5 + 8 * 2.0**-24 * np.abs(wanted) + 1e-7
    assert (np.abs(whole - wanted) <= bound).all(), f"worst error {np.abs(whole - wanted).max():.3g}"

    tiles = boxes(rng, shape, int(rng.integers(2, 10)))
    assert same_bits(whole, run(kernel, out, [x, *rest], p, tiles, isa)), "bits depend on the tile"
    relaid = [channels_last(rng, x_values, not plain), packed, bias, None if residual is None else filled(rng, residual), *rest[3:]]
    assert same_bits(whole, run(kernel, layout(rng, shape), relaid, p, tiles, isa)), "bits depend on the layout"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(depthwise=False),
    channels=st.sampled_from([2, 4, 8]),
    groups=st.sampled_from([2, 3, 4, 8, 12, 16, 20]),
    plain=st.booleans(),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    with_bias=st.booleans(),
    with_residual=st.booleans(),
    residual_last=st.booleans(),
    scaled=st.booleans(),
)
def test_narrow_groups(isa, seed, case, channels, groups, **options):
    """Several groups in a vector, whole vectors or not."""
    compare("CONV", isa, np.random.default_rng(seed), (case[0], groups, channels, channels, *case[4:]), **options)


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
    prologue=st.sampled_from([None, None, "IDENTITY", "RELU", "LEAKY_RELU", "SWISH"]),
)
def test_convolution_against_float64(isa, seed, case, **epilogue):
    compare("CONV", isa, np.random.default_rng(seed), case, **epilogue)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("case", "activation"),
    [
        ((1, 1, 3, 64, (57, 61), Geometry((7, 7), (2, 2), (1, 1), (3, 3), (3, 3))), "RELU"),  # the first layer of a ResNet
        ((1, 1, 64, 96, (28, 28), Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))), "RELU"),
        ((2, 1, 128, 64, (7, 7), Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))), "HARD_SWISH"),
        ((1, 1, 256, 70, (14, 14), Geometry((1, 1), (2, 2))), "IDENTITY"),
        ((3, 1, 96, 24, (1, 1), Geometry((1, 1))), "SIGMOID"),  # squeeze and excite
        ((1, 1, 40, 33, (30, 30), Geometry((3, 3), (1, 1), (12, 12), (12, 12), (12, 12))), "SWISH"),  # atrous
        ((1, 32, 4, 4, (14, 14), Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))), "RELU"),  # grouped
        ((1, 1, 8, 40, (1, 301), Geometry((1, 9), (1, 2), (1, 1), (0, 4), (0, 4))), "GELU_ERF"),  # lifted from 1-D
        ((1, 1, 20, 16, (3, 3), Geometry((3, 3), (4, 4), (1, 1), (5, 6), (7, 5))), "CLIP"),  # windows without any pixel
        ((1, 1, 130, 8, (5, 150), Geometry((5, 5), (1, 1), (2, 2), (4, 4), (4, 4))), "RELU"),  # a copy that exceeds its budget
    ],
)
def test_shapes_of_networks(isa, plain, case, activation):
    compare("CONV", isa, np.random.default_rng(1), case, plain=plain, activation=activation, with_bias=True, with_residual=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("prologue", [None, "RELU"])
@pytest.mark.parametrize(
    "case",
    [
        (1, 1, 512, 40, (14, 14), Geometry((3, 3), (2, 2), before=(1, 1), after=(1, 1))),  # the last stage of a ResNet
        (2, 2, 384, 70, (6, 9), Geometry((3, 3), before=(1, 1), after=(1, 1))),
        (1, 1, 160, 56, (5, 6), Geometry((5, 5), before=(4, 4), after=(4, 4))),  # many kernel rows outside the image
        (1, 1, 400, 48, (3, 3), Geometry((3, 3), (4, 4), before=(5, 6), after=(7, 5))),  # windows without any pixel
        (1, 1, 1100, 24, (1, 20), Geometry((1, 3), dilation=(1, 2), before=(0, 2), after=(0, 2))),  # taps that are parts
    ],
)
def test_panels_in_parts(isa, plain, prologue, case):
    """Weights of a panel that do not stay in L2: sums wait for the terms of other parts, and have the same bits."""
    options = {"plain": plain, "activation": "RELU", "with_bias": True, "prologue": prologue}
    compare("CONV", isa, np.random.default_rng(8), case, with_residual=True, **options)
    compare("CONV", isa, np.random.default_rng(9), case, with_residual=False, scaled=True, **options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_no_channels(isa, kernel):
    """Sums of nothing: the bias alone."""
    g = Geometry(kernel)
    x, weights, bias = np.zeros((1, 0, 5, 6), np.float32), np.zeros((1, 2, 0, 32), np.float32), np.arange(40, dtype=np.float32)
    out = channels_last(np.random.default_rng(0), np.empty((1, 40, *g.out((5, 6))), np.float32), True)
    found = run("CONV", out, [x, weights, bias], g.params(1, "RELU"), isa=isa)
    assert same_bits(found, np.broadcast_to(bias[:, None, None], out.shape))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 2),
    groups=st.sampled_from([1, 1, 2]),
    inputs=st.sampled_from([129, 130, 144, 256, 1024]),  # 1024: rows compete for the same sets of L1
    outputs=st.sampled_from([1, 16, 20, 32, 40, 56, 64, 70]),
    image=st.tuples(st.integers(1, 5), st.integers(1, 15)),
    pads=st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 2), (1, 1)]),
    activation=st.sampled_from(["IDENTITY", "RELU", "GELU_ERF"]),
    with_bias=st.booleans(),
    with_residual=st.booleans(),
    residual_last=st.booleans(),
    scaled=st.booleans(),
)
def test_pixels_that_lie_evenly(isa, seed, batch, groups, inputs, outputs, image, pads, **epilogue):
    """1 x 1 with many channels last: as many pixels at a time as there are registers, but for margins, whose pixels are zeros."""
    case = (batch, groups, inputs, outputs, image, Geometry((1, 1), before=pads, after=pads))
    compare("CONV", isa, np.random.default_rng(seed), case, plain=True, **epilogue)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["RELU", "CLIP", "SWISH"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("residual", [None, "early", "late"])
def test_few_terms(isa, activation, bias, residual):
    """1 x 1 with channels last, and images of few channels: micro-kernels of their own, in tiles of whole panels, and the same bits."""
    one, image = Geometry((1, 1)), Geometry((3, 3), (2, 2), before=(1, 1))
    options = {"activation": activation, "with_bias": bias, "with_residual": residual is not None, "residual_last": residual == "late"}
    for batch, groups, inputs, outputs, size, geometry in (
        (1, 1, 16, 64, (23, 55), one),
        (2, 1, 24, 144, (14, 14), one),
        (1, 1, 32, 16, (5, 112), one),
        (1, 1, 3, 33, (9, 7), one),
        (1, 1, 96, 24, (2, 4), one),
        (1, 1, 64, 70, (1, 3), one),
        (1, 1, 3, 32, (30, 47), image),
        (2, 1, 3, 70, (9, 9), Geometry((5, 5), before=(2, 2), after=(2, 2))),
        (1, 1, 1, 40, (12, 9), Geometry((7, 7), (2, 1), before=(3, 3), after=(3, 3))),
        (1, 2, 4, 64, (11, 24), Geometry((3, 3), (1, 3), (2, 1), (2, 0), (0, 2))),
        (1, 1, 12, 33, (8, 6), Geometry((1, 9), before=(0, 4), after=(0, 4))),
    ):
        case = (batch, groups, inputs, outputs, size, geometry)
        compare("CONV", isa, np.random.default_rng(6), case, plain=True, **options)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(depthwise=True),
    plain=st.booleans(),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    with_bias=st.booleans(),
    with_residual=st.booleans(),
    residual_last=st.booleans(),
    scaled=st.booleans(),
)
def test_depthwise_against_float64(isa, seed, case, **epilogue):
    compare("DWCONV", isa, np.random.default_rng(seed), case, **epilogue)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("plain", [True, False])
def test_depthwise_shapes_of_networks(isa, plain):
    for stride in (1, 2):
        for kernel, pad in ((3, 1), (5, 2)):
            case = (1, 96, 1, 1, (23, 30), Geometry((kernel, kernel), (stride, stride), (1, 1), (pad, pad), (pad, pad)))
            compare("DWCONV", isa, np.random.default_rng(2), case, plain=plain, activation="HARD_SWISH", with_bias=True, with_residual=True)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    channels=st.sampled_from([1, 5, 16, 31, 33, 48]),
    repeats=st.sampled_from([1, 1, 1, 2, 3, 16, 17]),
    kernel=st.one_of(st.tuples(*[st.integers(1, 16)] * 2), st.sampled_from([(7, 7), (9, 9), (11, 11), (1, 31), (31, 3), (15, 1)])),
    stride=st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1), (3, 3)]),
    image=st.tuples(st.sampled_from([0, 1, 2, 7, 9]), st.sampled_from([0, 1, 3, 4, 7, 8, 14, 16, 19, 30, 61, 150])),
    beside=st.tuples(*[st.sampled_from([(0, 0), (3, 3), (0, 7), (9, 2), (15, 16)])] * 2),
    plain=st.sampled_from([True, True, False]),
    activation=st.sampled_from(["IDENTITY", "RELU", "GELU_ERF"]),
    with_bias=st.booleans(),
    with_residual=st.booleans(),
    residual_last=st.booleans(),
    scaled=st.booleans(),
)
def test_depthwise_windows_of_any_size(isa, seed, channels, repeats, kernel, stride, image, beside, **epilogue):
    """Runs of taps of large kernels, whose windows reach over both margins; channels of input that are there for several of output."""
    (top, bottom), (left, right) = beside
    image = tuple(max(n, k - sum(pads)) for n, k, pads in zip(image, kernel, beside, strict=True))
    geometry = Geometry(kernel, stride, (1, 1), (top, left), (bottom, right))
    case = (1, channels, 1, repeats, image, geometry)
    compare("DWCONV", isa, np.random.default_rng(seed), case, **epilogue)


@pytest.mark.parametrize("isa", ISAS)
def test_depthwise_of_infinities(isa):
    """What lies beyond a margin is left out, not multiplied by zero: infinite weights there give no NaN, and reach no other pixel."""
    rng = np.random.default_rng(7)
    g = Geometry((7, 7), before=(3, 3), after=(3, 3))
    x = channels_last(rng, np.abs(rng.standard_normal((1, 24, 6, 20), dtype=np.float32)) + 1, True)
    w = rng.standard_normal((49, 24), dtype=np.float32)
    w[0] = np.inf
    out = channels_last(rng, np.empty(x.shape, np.float32), True)
    whole = run("DWCONV", out, [x, w], g.params(24, "IDENTITY"), isa=isa)
    assert np.isfinite(whole[:, :, :3]).all()
    assert np.isfinite(whole[..., :3]).all()
    assert np.isposinf(whole[:, :, 3:, 3:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("kernel", ["CONV", "DWCONV"])
def test_every_activation_keeps_its_bits(isa, kernel, activation):
    """Fused or behind the product, in registers or not: an activation has the same bits."""
    rng = np.random.default_rng(3)
    groups, cg = (1, 5) if kernel == "CONV" else (40, 1)
    g = Geometry((3, 3), before=(1, 1), after=(1, 1))
    x = channels_last(rng, rng.standard_normal((1, groups * cg, 9, 10), dtype=np.float32) * 3, True)
    w = rng.standard_normal((40, cg, 3, 3), dtype=np.float32)
    packed = pack_conv(w, 1) if kernel == "CONV" else np.ascontiguousarray(w.reshape(40, 9).T)
    out = channels_last(rng, np.empty((1, 40, 9, 10), np.float32), True)
    residual = channels_last(rng, rng.standard_normal(out.shape, dtype=np.float32), True)
    plain = run(kernel, out, [x, packed], g.params(groups, "IDENTITY"), isa=isa)
    flat = np.ascontiguousarray(plain)
    wanted = run("UNARY", np.empty_like(flat), [flat], list(ACTIVATIONS[activation]), isa=isa)
    assert same_bits(run(kernel, out, [x, packed], g.params(groups, activation), isa=isa), wanted)
    late = run(kernel, out, [x, packed, None, residual], g.params(groups, activation, True), isa=isa)
    assert same_bits(late, wanted + residual)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("plain", [True, False])
def test_normalisation_before_the_convolution(isa, plain):
    """As in DenseNet, and with padding, which stays zero."""
    for case in (
        (1, 1, 160, 70, (14, 14), Geometry((1, 1))),
        (2, 3, 33, 20, (9, 7), Geometry((1, 1), (2, 2))),
        (1, 2, 40, 33, (9, 10), Geometry((3, 3), before=(1, 1), after=(1, 1))),
        (1, 1, 3, 33, (20, 47), Geometry((3, 3), (2, 2), before=(1, 1), after=(1, 1))),
    ):
        rng = np.random.default_rng(4)
        compare("CONV", isa, rng, case, plain=plain, activation="RELU", with_bias=True, with_residual=False, prologue="RELU")


@pytest.mark.parametrize("isa", ISAS)
def test_prologue_has_the_bits_of_its_parts(isa):
    rng = np.random.default_rng(5)
    x = channels_last(rng, rng.standard_normal((1, 50, 6, 7), dtype=np.float32), True)
    w = pack_conv(rng.standard_normal((40, 50, 1, 1), dtype=np.float32), 1)
    scale, shift = (rng.standard_normal(50, dtype=np.float32) for _ in range(2))
    wide = [np.broadcast_to(t[:, None, None], x.shape) for t in (scale, shift)]
    before = channels_last(rng, np.empty_like(x), True)
    before[...] = run("TERNARY", before, [x, *wide], [TERNARY["FMA"], *ACTIVATIONS["RELU"]], isa=isa)
    out = channels_last(rng, np.empty((1, 40, 6, 7), np.float32), True)
    p = Geometry((1, 1)).params(1, "IDENTITY")
    apart = run("CONV", out, [before, w], p, isa=isa)
    p = Geometry((1, 1)).params(1, "IDENTITY", before="RELU")
    assert same_bits(run("CONV", out, [x, w, None, None, None, None, scale, shift], p, isa=isa), apart)
