"""QCONV on every ISA, with the processor's instruction for sums of bytes and without it: integers are numpy's, floats near float64, bytes
what QUANTIZE makes of the floats."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from byte_tools import (
    BYTES,
    EDGES,
    SCRATCH,
    TWIN,
    WITHOUT,
    check_digests,
    check_refused,
    check_without,
    drawn,
    quantised,
    scale_of,
    stored,
    wrapped,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, run, same_bits
from test_conv import Geometry, convolve

from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.ops.convolutions import image_scratch
from aspen_mp.planner.ops.products import packed_bytes
from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _isa, _kernels

EXAMPLES = 100 if WITHOUT else 300
CHANNELS = st.one_of(st.integers(1, 100), st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 33, 64, 65, 100]))
LAYOUTS = ["first", "last", "last", "apart", "reversed", "any"]
"""Of X: contiguous; contiguous with channels last; those with something between pixels and rows; those from the last pixel to the first;
anything."""
Case = tuple[int, int, int, tuple[int, int], Geometry]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Batch, channels in and out, image, geometry with at least one pixel of output. Half of them are windows of one pixel."""
    pair = lambda values: st.tuples(values, values)  # noqa: E731
    single = draw(st.integers(0, 2)) == 0
    kernel = (1, 1) if single else draw(pair(st.integers(1, 7)))
    stride, dilation = draw(pair(st.sampled_from([1, 1, 2, 3]))), draw(pair(st.sampled_from([1, 1, 1, 2, 5])))
    none = single and draw(st.booleans())
    before, after = ((0, 0) if none else draw(pair(st.sampled_from([0, 1, 1, 2, 3, 9]))) for _ in range(2))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 12, 14, 17])
    image = tuple(max(draw(sizes), r - b - a) for r, b, a in zip(reach, before, after, strict=True))
    return draw(st.integers(1, 2)), draw(CHANNELS), draw(CHANNELS), image, Geometry(kernel, stride, dilation, before, after)  # type: ignore[arg-type]


def params(
    g: Geometry,
    zeros: bool | int,
    activation: str = "IDENTITY",
    residual_last: int = 0,
    scale: float = 1.0,
    zero: int = 0,
    residual: tuple[float, int] = (1.0, 0),
) -> list[int | float]:
    window = [*g.kernel, *g.stride, *g.dilation, *g.before]
    return [int(zeros), *window, *ACTIVATIONS[activation], residual_last, scale, zero, *residual]


def packed(w: np.ndarray, zero: np.ndarray | None, constant: np.ndarray | None = None) -> tuple[np.ndarray, bool]:
    """By the planner's own function: what it writes to a plan's weights."""
    point, more = (None if v is None else Tensor(n, v.shape, v.dtype, data=v) for n, v in (("zero", zero), ("constant", constant)))
    tensor, zeros = Builder().packed_bytes(Tensor("w", w.shape, w.dtype, data=w), point, more)
    return tensor.value(), zeros


def laid_out(rng: np.random.Generator, values: np.ndarray, kind: str) -> np.ndarray:
    if kind in {"first", "any"}:
        return filled(rng, values, kind == "first")
    n, c, h, w = values.shape
    more = rng.integers(0, 6, 3) if kind == "apart" else np.zeros(3, int)
    memory = np.full((n, h + more[0], w + more[1], c + more[2]), 99, values.dtype)
    view = memory[:, :h, :w, :c].transpose(0, 3, 1, 2)
    if kind == "reversed":
        view = view[:, :, ::-1, ::-1]
    view[...] = values
    return view


def sums(x: np.ndarray, x_zero: np.ndarray | None, w: np.ndarray, w_zero: np.ndarray | None, g: Geometry) -> np.ndarray:
    """Exact: float64 holds every partial sum."""
    left = x.astype(np.float64) - (0.0 if x_zero is None else float(x_zero[0]))
    right = w.astype(np.float64) - (0.0 if w_zero is None else w_zero.astype(np.float64).reshape(-1, 1, 1, 1))
    return convolve(left, right, 1, g).astype(np.int64)


def out_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: type, kind: str) -> np.ndarray:
    """Memory for the output: contiguous, with channels first or last, or anything."""
    if kind in {"first", "last"}:
        return laid_out(rng, np.empty(shape, dtype), kind)
    return layout(rng, shape, dtype)


class Drawn:
    """A case with its operands."""

    def __init__(
        self, seed: int, case: Case, kind: str, types: tuple[type, type], zeros: tuple[bool, str | None], small: bool = False
    ) -> None:
        self.rng = rng = np.random.default_rng(seed)
        batch, channels, outputs, image, self.g = case
        self.shape = (batch, outputs, *self.g.out(image))
        of_x, of_w = types
        self.x, self.w = drawn(rng, (batch, channels, *image), of_x), drawn(rng, (outputs, channels, *self.g.kernel), of_w)
        if small:
            self.x, self.w = (rng.integers(0, 4, v.shape).astype(v.dtype) for v in (self.x, self.w))
        self.x_zero = drawn(rng, (1,), of_x) if zeros[0] else None
        dims = {None: None, "one": (1,) * int(rng.integers(2)), "columns": (outputs,)}[zeros[1]]
        self.w_zero = None if dims is None else drawn(rng, dims, of_w)
        self.kind = kind

    def given(self, panels: np.ndarray, *operands: np.ndarray | None, again: bool = False) -> list[np.ndarray | None]:
        kind = str(self.rng.choice(LAYOUTS)) if again else self.kind
        more = [*operands, *[None] * (3 - len(operands))]
        return [laid_out(self.rng, self.x, kind), panels, *more, self.x_zero]

    def sums(self) -> np.ndarray:
        return sums(self.x, self.x_zero, self.w, self.w_zero, self.g)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(),
    kind=st.sampled_from(LAYOUTS),
    types=st.tuples(*[st.sampled_from(BYTES)] * 2),
    zeros=st.tuples(st.booleans(), st.sampled_from([None, "one", "columns"])),
    constant=st.sampled_from([None, "one", "columns"]),
)
def test_integers_are_exact(isa, seed, case, kind, types, zeros, constant):
    d = Drawn(seed, case, kind, types, zeros)
    rng, shape = d.rng, d.shape
    more = None if constant is None else rng.integers(-(2**31), 2**31, shape[1] if constant == "columns" else ()).astype(np.int32)
    panels, points = packed(d.w, d.w_zero, more)
    whole = run("QCONV", out_of(rng, shape, np.int32, kind), d.given(panels), params(d.g, points), isa=isa)
    total = d.sums() + (0 if more is None else more.astype(np.int64).reshape(-1, 1, 1))
    np.testing.assert_array_equal(whole, wrapped(total))
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    again = run("QCONV", layout(rng, shape, np.int32), d.given(panels, again=True), params(d.g, True), tiles, isa)
    assert same_bits(whole, again), "bits depend on tile or layout"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(),
    kind=st.sampled_from(LAYOUTS),
    types=st.tuples(*[st.sampled_from(BYTES)] * 2),
    zeros=st.tuples(st.booleans(), st.sampled_from([None, "one", "columns"])),
    factor=st.sampled_from([None, "one", "channels", "channels", "all", "pixels"]),
    bias=st.booleans(),
    residual=st.sampled_from([None, None, "all", "channels", "pixels"]),
    residual_last=st.integers(0, 1),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
)
def test_floats(isa, seed, case, kind, types, zeros, factor, bias, residual, residual_last, activation):
    d = Drawn(seed, case, kind, types, zeros)
    rng, shape = d.rng, d.shape

    def operand(of: str | None, scale: float = 1.0) -> np.ndarray | None:
        dims = {None: None, "one": (1,) * 4, "channels": (1, shape[1], 1, 1), "pixels": (shape[0], 1, *shape[2:]), "all": shape}[of]
        if dims is None:
            return None
        values = (rng.standard_normal(dims) * scale).astype(np.float32)
        return np.broadcast_to(laid_out(rng, values, kind), shape)

    panels, points = packed(d.w, d.w_zero)
    terms = d.w[0].size
    factors, residuals = operand(factor, 1e-4 / terms**0.5), operand(residual)
    biases = filled(rng, rng.standard_normal(shape[1], dtype=np.float32), kind != "any") if bias else None
    p = params(d.g, points, activation, residual_last)
    inputs = d.given(panels, biases, residuals, factors)
    whole = run("QCONV", out_of(rng, shape, np.float32, kind), inputs, p, isa=isa)

    total, column = d.sums(), None if biases is None else biases[:, None, None]
    scaled = total * (1.0 if factors is None else factors.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted, size = epilogue(scaled, np.abs(scaled), activation, column, residuals, None, None, residual_last)
        error = np.abs(whole - wanted)
    bound = 16 * 2.0**-24 * (size + np.abs(wanted)) + 1e-7
    assert (error <= bound).all(), f"worst error {error.max():.3g}, bound there {bound.reshape(-1)[error.argmax()]:.3g}"
    if activation == "IDENTITY":  # each step rounds by itself
        exact = total.astype(np.float32) * (np.float32(1) if factors is None else factors)
        for extra in (column, residuals):
            exact = exact if extra is None else exact + extra
        np.testing.assert_array_equal(whole, exact)

    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    operands = (None if v is None else filled(rng, v) for v in (biases, residuals, factors))
    again = run("QCONV", layout(rng, shape), d.given(panels, *operands, again=True), p, tiles, isa)
    assert same_bits(whole, again), "bits depend on tile or layout"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(),
    kind=st.sampled_from(LAYOUTS),
    types=st.tuples(*[st.sampled_from(BYTES)] * 3),
    zeros=st.tuples(st.booleans(), st.sampled_from([None, "one", "columns"])),
    of_scale=st.sampled_from(["fit", "fit", "ties", "odd"]),
    operands=st.tuples(*[st.booleans()] * 3),
    edges=st.booleans(),
    residual_last=st.integers(0, 1),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
)
def test_bytes_are_what_quantize_makes_of_floats(isa, seed, case, kind, types, zeros, of_scale, operands, edges, residual_last, activation):
    ties, (of_x, of_w, to) = of_scale == "ties", types
    d = Drawn(seed, case, kind, (of_x, of_w), (False, None) if ties else zeros, small=ties)
    rng, shape = d.rng, d.shape
    panels, points = packed(d.w, d.w_zero)
    given_operands: list[np.ndarray | None] = [None] * 3
    for i, size in enumerate((1.0, 1.0, 1e-4 / d.w[0].size ** 0.5)):
        if operands[i] and not ties:
            dims = shape[1:2] if i == 0 else tuple(1 if rng.random() < 0.3 else n for n in shape)
            values = rng.standard_normal(dims) * size
            values = np.where(edges & (rng.random(dims) < 0.1), rng.choice(EDGES, dims), values).astype(np.float32)
            given_operands[i] = filled(rng, values) if i == 0 else broadcast(rng, values, shape)
    act = "IDENTITY" if ties else activation
    inputs = d.given(panels, *given_operands)
    floats = run("QCONV", layout(rng, shape), inputs, params(d.g, points, act, residual_last), isa=isa)
    info = np.iinfo(to)
    scale, zero = scale_of(rng, floats, of_scale), int(rng.integers(info.min, info.max + 1))
    p = params(d.g, points, act, residual_last, scale, zero)
    whole = run("QCONV", out_of(rng, shape, to, kind), inputs, p, isa=isa)
    np.testing.assert_array_equal(whole, quantised(floats, scale, zero, to, isa), f"scale {scale}, zero {zero}")
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    again = run("QCONV", layout(rng, shape, to), d.given(panels, *given_operands, again=True), p, tiles, isa)
    assert same_bits(whole, again), "bits depend on tile or layout"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(),
    kind=st.sampled_from(LAYOUTS),
    of=st.sampled_from(BYTES),
    to=st.sampled_from([np.float32, *BYTES, *BYTES]),
    size=st.sampled_from([1e-4, 0.2, 10.0]),
    residual_last=st.integers(0, 1),
    activation=st.sampled_from(["levels", "levels", "IDENTITY", "IDENTITY", *sorted(ACTIVATIONS)]),
)
def test_residuals_of_bytes(isa, seed, case, kind, of, to, size, residual_last, activation):
    """They are what they stand for; "levels": the sums are rounded to whole levels first."""
    d = Drawn(seed, case, kind, (np.uint8, np.int8), (True, None))
    rng, shape = d.rng, d.shape
    panels, points = packed(d.w, d.w_zero)
    levels, terms, values = stored(rng, shape, of)
    levels, values = laid_out(rng, levels, kind), laid_out(rng, values, kind)
    factor = (rng.standard_normal((1, shape[1], 1, 1)) * size).astype(np.float32)
    bias = rng.standard_normal(shape[1]).astype(np.float32)
    scale, zero = float(np.float32(rng.choice([1.0, 1.0, 0.37]))), int(rng.integers(-128, 256))

    lowest = int(rng.integers(-255, 1))

    def given_as(residual: np.ndarray, of_residual: tuple[float, int], shape_of: str) -> np.ndarray:
        p = params(d.g, points, "IDENTITY" if activation == "levels" else activation, residual_last, scale, zero, of_residual)
        if activation == "levels":
            p[9:12] = [UNARY["FAKE_QUANTIZE"], 1.0, float(lowest)]
        return run("QCONV", out_of(rng, shape, to, shape_of), d.given(panels, bias, residual, np.broadcast_to(factor, shape)), p, isa=isa)

    wanted = given_as(values, (1.0, 0), "any")
    assert same_bits(wanted, given_as(levels, terms, kind))
    assert same_bits(wanted, given_as(levels, terms, "last"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("to", BYTES)
@pytest.mark.parametrize("distance", [None, 0, 1, 15, 16, 17, 2**14])
def test_levels_next_to_the_middle_between_two(isa, to, distance):
    """Values a few units in the last place from the halves of odd numbers of scales. `distance`: of the last 15 bits of a scale's mantissa
    from zero, on either side."""
    rng, info, columns, g = np.random.default_rng(12), np.iinfo(to), 32, Geometry((1, 1))
    halves = np.arange(-515, 515) + np.float64(0.5)
    x = np.zeros((1, 1, 1, len(halves) * 9), np.uint8)
    panels, _ = packed(np.zeros((columns, 1, 1, 1), np.int8), None)
    for exponent in rng.integers(-40, 20, 12):
        mantissa = rng.integers(2**23, 2**24)
        if distance is not None:
            mantissa = (mantissa >> 15 << 15) + rng.choice([-1, 1]) * distance
        scale = np.float32(np.ldexp(np.float64(mantissa), exponent - 24))
        near = np.abs(halves * np.float64(scale)).astype(np.float32).view(np.int32)[:, None] + np.arange(-4, 5, dtype=np.int32)
        values = np.copysign(near.view(np.float32), halves[:, None]).astype(np.float32).reshape(-1, 1)
        residual = laid_out(rng, np.broadcast_to(values, (1, 1, values.size, columns)).transpose(0, 3, 1, 2), "last")
        zero = int(rng.integers(info.min, info.max + 1))
        p = params(g, 0, scale=float(scale), zero=zero)
        out = laid_out(rng, np.empty(residual.shape, to), "last")
        found = run("QCONV", out, [x, panels, None, residual], p, isa=isa)
        wanted = np.clip(np.rint(residual / scale) + zero, info.min, info.max).astype(to)
        np.testing.assert_array_equal(found, wanted, f"scale {scale}, zero {zero}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["last", "first", "apart"])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "image", "g"),
    [
        (1, 3, 64, (57, 61), Geometry((7, 7), (2, 2), (1, 1), (3, 3), (3, 3))),  # the first layer of a ResNet
        (2, 64, 96, (28, 28), Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),
        (1, 256, 70, (14, 14), Geometry((1, 1), (2, 2))),
        (1, 512, 40, (14, 14), Geometry((1, 1))),
        (3, 96, 24, (1, 1), Geometry((1, 1))),  # squeeze and excite
        (1, 40, 33, (30, 30), Geometry((3, 3), (1, 1), (12, 12), (12, 12), (12, 12))),  # atrous
        (1, 8, 40, (1, 301), Geometry((1, 9), (1, 2), (1, 1), (0, 4), (0, 4))),  # lifted from 1-D
        (1, 20, 16, (3, 3), Geometry((3, 3), (4, 4), (1, 1), (5, 6), (7, 5))),  # windows without any pixel
        (2, 5, 9, (4, 4), Geometry((2, 2), (3, 3), (1, 1), (9, 9), (9, 9))),  # padding beyond the window
    ],
)
def test_shapes_of_networks(isa, kind, batch, channels, outputs, image, g):
    d = Drawn(1, (batch, channels, outputs, image, g), kind, (np.uint8, np.int8), (True, None))
    panels, points = packed(d.w, None)
    assert not points
    whole = run("QCONV", out_of(d.rng, d.shape, np.int32, kind), d.given(panels), params(g, points), isa=isa)
    np.testing.assert_array_equal(whole, d.sums())


@pytest.mark.parametrize("isa", ISAS)
def test_every_number_of_pixels_and_channels(isa):
    """Each micro-kernel, with sums shared out and not, in place and copied; and boxes that begin and end inside a panel."""
    rng = np.random.default_rng(3)
    for width in range(1, 31):
        for channels in (1, 3, 4, 7, 8, 20, 64):
            for g in (Geometry((1, 1)), Geometry((1, 3), before=(0, 1), after=(0, 1)), Geometry((2, 2), dilation=(1, 2), before=(1, 2))):
                x = drawn(rng, (1, channels, 3, width), np.uint8)
                w = drawn(rng, (75, channels, *g.kernel), np.int8)
                panels, _ = packed(w, None)
                wanted = sums(x, None, w, None, g)
                n, _, h, wide = wanted.shape
                out = np.empty(wanted.shape, np.int32)
                parts = [([0, a, 0, 0], [n, b, h, wide]) for a, b in ((0, 15), (15, 47), (47, 48), (48, 75))]
                result = run("QCONV", out, [laid_out(rng, x, "last"), panels], params(g, 0), parts, isa)
                np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("isa", ISAS)
def test_sums_wrap(isa):
    """So many of the largest products that 32 bits do not hold the sum, and constants that do the rest."""
    g = Geometry((7, 7), before=(3, 3), after=(3, 3))
    for channels, constant in ((1400, None), (40, np.array([-(2**31), 2**31 - 1, 5], np.int32))):
        x, w = np.full((1, channels, 7, 7), 255, np.uint8), np.full((3, channels, 7, 7), -128, np.int8)
        w[1] = 127
        zero, points = np.zeros(1, np.uint8), np.array([127, -128, 5], np.int8)
        for of_x, of_w in ((None, None), (zero, None), (None, points), (zero, points)):
            panels, zeros = packed(w, of_w, constant)
            total = sums(x, of_x, w, of_w, g) + (0 if constant is None else constant.astype(np.int64)[:, None, None])
            inputs = [x, panels, None, None, None, of_x]
            np.testing.assert_array_equal(run("QCONV", np.empty(total.shape, np.int32), inputs, params(g, zeros), isa=isa), wrapped(total))
            floats = run("QCONV", np.empty(total.shape, np.float32), inputs, params(g, zeros), isa=isa)
            np.testing.assert_array_equal(floats, wrapped(total).astype(np.float32))
        assert (np.abs(total) >= 2**31).any()


@pytest.mark.parametrize("of_w", BYTES)
@pytest.mark.parametrize("zero", [None, "one", "columns"])
def test_packing(of_w, zero):
    """As kernel.h says it, an element at a time."""
    rng = np.random.default_rng(8)
    shift = 128 if of_w == np.uint8 else 0
    for outputs, channels, kernel in ((1, 1, (1, 1)), (33, 7, (3, 2)), (32, 8, (1, 3)), (70, 21, (2, 2))):
        w = drawn(rng, (outputs, channels, *kernel), of_w)
        point = None if zero is None else drawn(rng, (outputs,) if zero == "columns" else (), of_w)
        constant = rng.integers(-(2**31), 2**31, outputs).astype(np.int32)
        found, zeros = packed(w, point, constant)
        wanted, groups = np.zeros(packed_bytes(channels, outputs, kernel[0] * kernel[1]), np.int8), -(-channels // 4)
        y = np.broadcast_to(0 if point is None else point.astype(int), outputs) - shift
        for j in range(outputs):
            panel, column = wanted[j // 32], j % 32
            for tap, (kh, kw) in enumerate(np.ndindex(*kernel)):
                for c in range(channels):
                    panel[3 + tap * groups + c // 4, column, c % 4] = int(w[j, c, kh, kw]) - shift
            for row, value in enumerate((w[j].astype(int).sum() - shift * w[j].size, y[j], constant[j])):
                panel[row, column] = np.frombuffer(np.int32(value).tobytes(), np.int8)
        assert same_bits(found, wanted)
        assert zeros == bool(y.any())


@pytest.mark.parametrize("isa", ISAS)
def test_infinity_and_nan_of_operands_stay_where_they_are(isa):
    rng, g = np.random.default_rng(4), Geometry((3, 3), before=(1, 1), after=(1, 1))
    x, (panels, _) = drawn(rng, (1, 5, 6, 7), np.uint8), packed(drawn(rng, (70, 5, 3, 3), np.int8), None)
    factor, bias, shape = np.ones((1, 70, 6, 7), np.float32), np.zeros(70, np.float32), (1, 70, 6, 7)
    plain = run("QCONV", np.empty(shape, np.float32), [x, panels], params(g, 0), isa=isa)
    factor[0, 5, 2, 3], bias[37] = np.nan, -np.inf
    result = run("QCONV", np.empty(shape, np.float32), [x, panels, bias, None, factor], params(g, 0), isa=isa)
    touched = np.zeros(shape, bool)
    touched[0, 5, 2, 3] = touched[:, 37] = True
    assert np.isnan(result[0, 5, 2, 3])
    assert (result[:, 37] == -np.inf).all()
    assert same_bits(result[~touched], plain[~touched])


def test_nothing_to_do():
    g, x, (panels, _) = Geometry((1, 1)), np.ones((1, 8, 3, 4), np.uint8), packed(np.ones((40, 8, 1, 1), np.int8), None)
    out = np.full((1, 40, 3, 4), 5, np.int32)
    for lo, hi in (([0, 0, 1, 0], [1, 40, 1, 4]), ([0, 33, 0, 0], [1, 33, 3, 4]), ([1, 0, 0, 0], [1, 40, 3, 4])):
        assert _kernels.call("QCONV", [out, x, panels], params(g, 0), lo, hi) == 0
    assert (out == 5).all()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), case=cases(), types=st.tuples(*[st.sampled_from(BYTES)] * 2))
def test_the_planner_knows_the_scratch(seed, case, types):
    """The kernel asks for no more than the planner sets aside, and takes no more than it asks for."""
    d = Drawn(seed, case, "any", types, (True, "columns"))
    g, (panels, zeros) = d.g, packed(d.w, d.w_zero)
    lo, hi = boxes(d.rng, d.shape, int(d.rng.integers(1, 4)))[0]
    inputs, out = d.given(panels), np.full(d.shape, 7, np.int32)
    asked = _kernels.scratch("QCONV", [out, *inputs], params(g, zeros), lo, hi)
    assert asked <= image_scratch(d.x.shape[1], (hi[2] - lo[2], hi[3] - lo[3]), g.kernel, g.stride, g.dilation)
    box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
    for isa in ISAS:
        assert _kernels.call("QCONV", [out, *inputs], params(g, zeros), lo, hi, isa, asked - 1) == SCRATCH
        assert (out == 7).all()
        assert _kernels.call("QCONV", [out, *inputs], params(g, zeros), lo, hi, isa, asked) == 0
        np.testing.assert_array_equal(out[box], d.sums()[box])
        out[...] = 7


@pytest.mark.parametrize("isa", ISAS)
def test_bad_arguments_are_refused(isa):
    g, x, (panels, _) = Geometry((1, 1)), np.ones((2, 3, 4, 5), np.uint8), packed(np.ones((6, 3, 1, 1), np.int8), None)

    def qconv(*args: np.ndarray | None, p: list[int | float] | None = None) -> int:
        return _kernels.call("QCONV", list(args), p or params(g, 0), [0] * args[0].ndim, args[0].shape, isa)

    check_refused(qconv, x, panels, params(g, 0))


# ------------------------------------------------------------------------------------------------------ without the instruction


def digests() -> str:
    """Of results over many shapes, a line for each ISA."""
    lines = []
    for isa in ISAS:
        state = hashlib.sha256()
        for i, activation in enumerate(sorted(ACTIVATIONS)):
            for j, g in enumerate((Geometry((1, 1)), Geometry((3, 3), (2, 1), (1, 2), (1, 2), (2, 1)), Geometry((2, 5), before=(4, 0)))):
                d = Drawn(
                    10 * i + j, (2, (3, 8, 33)[j], (70, 33, 5)[j], (9, 11), g), "last", (BYTES[i % 2], BYTES[j % 2]), (True, "columns")
                )
                panels, zeros = packed(d.w, d.w_zero)
                bias = d.rng.standard_normal(d.shape[1], dtype=np.float32)
                factor, residual = (d.rng.standard_normal(d.shape, dtype=np.float32) for _ in range(2))
                state.update(run("QCONV", np.empty(d.shape, np.int32), d.given(panels), params(g, zeros), isa=isa))
                inputs = d.given(panels, bias, residual, factor * np.float32(1e-4))
                for to in (np.float32, np.int8, np.uint8):
                    state.update(run("QCONV", np.empty(d.shape, to), inputs, params(g, zeros, activation, i % 2, 0.03, 7), isa=isa))
        lines.append(f"{isa} {_isa.sums_bytes(isa)} {state.hexdigest()}")
    return "\n".join(lines)


def test_without_the_instruction_bits_are_the_same(tmp_path):
    check_digests(tmp_path, "test_qconv", digests())


def test_all_of_this_without_the_instruction(tmp_path):
    check_without(tmp_path, __file__, has=_isa.sums_bytes)


def test_twin_of_amx_has_the_same_bits(tmp_path):
    check_digests(tmp_path, "test_qconv", digests(), *TWIN)


def test_all_of_this_by_the_twin_of_amx(tmp_path):
    check_without(tmp_path, __file__, *TWIN)
