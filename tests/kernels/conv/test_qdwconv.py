"""QDWCONV on every ISA, with the processor's instruction for sums of bytes and without it. Integers are numpy's, each step behind them is
rounded by itself, and bytes are what QUANTIZE makes of the floats."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from byte_tools import (
    BAD_ARGUMENT,
    BYTES,
    EDGES,
    SCRATCH,
    WITHOUT,
    check_digests,
    check_refused,
    check_without,
    drawn,
    quantised,
    scale_of,
    wrapped,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, filled, layout, run, same_bits
from test_conv import Geometry, convolve
from test_qconv import LAYOUTS, laid_out, out_of, params

from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.planner.ops.convolutions import strip_scratch
from aspen_mp.planner.ops.packing import byte_taps
from aspen_mp.workers import _isa, _kernels

EXAMPLES = 60 if WITHOUT else 250
CHANNELS = st.one_of(st.integers(1, 100), st.sampled_from([1, 3, 16, 31, 32, 33, 48, 64, 65, 96, 144]))
Case = tuple[int, int, int, tuple[int, int], Geometry]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Batch, channels in, channels of output for each, image, geometry with at least one pixel of output."""
    pair = lambda values: st.tuples(values, values)  # noqa: E731
    kernel = draw(st.one_of(st.sampled_from([(3, 3), (5, 5), (7, 7), (1, 9)]), pair(st.integers(1, 9))))
    stride, dilation = draw(pair(st.sampled_from([1, 1, 2, 3, 11]))), draw(pair(st.sampled_from([1, 1, 1, 2, 5])))
    before, after = (draw(pair(st.sampled_from([0, 1, 1, 2, 3, 9]))) for _ in range(2))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 14, 17, 30, 75])
    image = tuple(max(draw(sizes), r - b - a) for r, b, a in zip(reach, before, after, strict=True))
    repeats = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return draw(st.integers(1, 2)), draw(CHANNELS), repeats, image, Geometry(kernel, stride, dilation, before, after)  # type: ignore[arg-type]


def packed(w: np.ndarray, zero: np.ndarray | None, constant: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """By the planner's own function: what it writes to a plan's weights."""
    point, more = (None if v is None else Tensor(n, v.shape, v.dtype, data=v) for n, v in (("zero", zero), ("constant", constant)))
    tensor, parts = byte_taps.packed(Tensor("w", w.shape, w.dtype, data=w), point, more)
    return tensor.value(), parts


class Drawn:
    """A case with its operands."""

    def __init__(
        self, seed: int, case: Case, kind: str, types: tuple[type, type], zeros: tuple[bool, str | None], small: bool = False
    ) -> None:
        self.rng = rng = np.random.default_rng(seed)
        batch, channels, repeats, image, self.g = case
        self.shape = (batch, channels * repeats, *self.g.out(image))
        of_x, of_w = types
        self.x, self.w = drawn(rng, (batch, channels, *image), of_x), drawn(rng, (channels * repeats, 1, *self.g.kernel), of_w)
        if small:
            self.x, self.w = (rng.integers(0, 4, v.shape).astype(v.dtype) for v in (self.x, self.w))
        self.x_zero = drawn(rng, (1,), of_x) if zeros[0] else None
        dims = {None: None, "one": (1,) * int(rng.integers(2)), "columns": (channels * repeats,)}[zeros[1]]
        self.w_zero = None if dims is None else drawn(rng, dims, of_w)
        self.kind = kind

    def given(self, panels: np.ndarray, *operands: np.ndarray | None, again: bool = False) -> list[np.ndarray | None]:
        kind = str(self.rng.choice(LAYOUTS)) if again else self.kind
        more = [*operands, *[None] * (3 - len(operands))]
        return [laid_out(self.rng, self.x, kind), panels, *more, self.x_zero]

    def sums(self) -> np.ndarray:
        """Exact: float64 holds every partial sum."""
        left = self.x.astype(np.float64) - (0.0 if self.x_zero is None else float(self.x_zero[0]))
        right = self.w.astype(np.float64) - (0.0 if self.w_zero is None else self.w_zero.astype(np.float64).reshape(-1, 1, 1, 1))
        return convolve(left, right, self.x.shape[1], self.g).astype(np.int64)


drawn_cases = given(
    seed=st.integers(0, 2**32),
    case=cases(),
    kind=st.sampled_from(LAYOUTS),
    types=st.tuples(*[st.sampled_from(BYTES)] * 2),
    zeros=st.tuples(st.booleans(), st.sampled_from([None, "one", "columns"])),
    constant=st.sampled_from([None, "one", "columns"]),
)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@drawn_cases
def test_integers_are_exact(isa, seed, case, kind, types, zeros, constant):
    d = Drawn(seed, case, kind, types, zeros)
    rng, shape = d.rng, d.shape
    more = None if constant is None else rng.integers(-(2**31), 2**31, shape[1] if constant == "columns" else ()).astype(np.int32)
    panels, parts = packed(d.w, d.w_zero, more)
    whole = run("QDWCONV", out_of(rng, shape, np.int32, kind), d.given(panels), params(d.g, parts), isa=isa)
    total = d.sums() + (0 if more is None else more.astype(np.int64).reshape(-1, 1, 1))
    np.testing.assert_array_equal(whole, wrapped(total))
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    again = run("QDWCONV", layout(rng, shape, np.int32), d.given(panels, again=True), params(d.g, parts), tiles, isa)
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
def test_what_follows_the_sums(isa, seed, case, kind, types, zeros, of_scale, operands, edges, residual_last, activation):
    """Floats whose every step is rounded by itself, and bytes as QUANTIZE makes them of these."""
    ties, (of_x, of_w, to) = of_scale == "ties", types
    d = Drawn(seed, case, kind, (of_x, of_w), (False, None) if ties else zeros, small=ties)
    rng, shape, act = d.rng, d.shape, "IDENTITY" if ties else activation
    panels, parts = packed(d.w, d.w_zero)
    more: list[np.ndarray | None] = [None] * 3
    for i, size in enumerate((1.0, 1.0, 1e-4 / d.w[0].size ** 0.5)):
        if operands[i] and not ties:
            dims = shape[1:2] if i == 0 else tuple(1 if rng.random() < 0.3 else n for n in shape)
            values = rng.standard_normal(dims) * size
            values = np.where(edges & (rng.random(dims) < 0.1), rng.choice(EDGES, dims), values).astype(np.float32)
            more[i] = filled(rng, values) if i == 0 else broadcast(rng, values, shape)
    inputs, plain = d.given(panels, *more), params(d.g, parts, act, residual_last)
    floats = run("QDWCONV", out_of(rng, shape, np.float32, kind), inputs, plain, isa=isa)
    np.testing.assert_array_equal(floats, epilogue_of(wrapped(d.sums()), more, act, residual_last, isa))
    info = np.iinfo(to)
    scale, zero = scale_of(rng, floats, of_scale), int(rng.integers(info.min, info.max + 1))
    p = params(d.g, parts, act, residual_last, scale, zero)
    whole = run("QDWCONV", out_of(rng, shape, to, kind), inputs, p, isa=isa)
    np.testing.assert_array_equal(whole, quantised(floats, scale, zero, to, isa), f"scale {scale}, zero {zero}")
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    again = run("QDWCONV", layout(rng, shape, to), d.given(panels, *more, again=True), p, tiles, isa)
    assert same_bits(whole, again), "bits depend on tile or layout"


def epilogue_of(sums: np.ndarray, operands: list[np.ndarray | None], activation: str, residual_last: int, isa: str) -> np.ndarray:
    """The steps behind the sums as kernel.h has them, each rounded by itself."""
    bias, residual, factor = operands
    out = sums.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        out = out if factor is None else out * factor
        out = out if bias is None else out + bias[:, None, None]
        out = out if residual is None or residual_last else out + residual
        if activation != "IDENTITY":
            out = run("UNARY", np.empty(out.shape, np.float32), [np.ascontiguousarray(out)], ACTIVATIONS[activation], isa=isa)
        return out + residual if residual is not None and residual_last else out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["last", "first", "apart"])
@pytest.mark.parametrize(
    ("batch", "channels", "repeats", "image", "g"),
    [
        (1, 32, 1, (60, 112), Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),  # MobileNetV2's first
        (1, 144, 1, (28, 28), Geometry((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))),
        (1, 960, 1, (7, 7), Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),
        (1, 240, 1, (28, 28), Geometry((5, 5), (2, 2), (1, 1), (1, 1), (2, 2))),  # EfficientNet's
        (2, 96, 1, (56, 56), Geometry((7, 7), (1, 1), (1, 1), (3, 3), (3, 3))),  # ConvNeXt's
        (1, 40, 1, (30, 30), Geometry((3, 3), (1, 1), (12, 12), (12, 12), (12, 12))),  # atrous
        (1, 8, 4, (1, 301), Geometry((1, 9), (1, 2), (1, 1), (0, 4), (0, 4))),  # lifted from 1-D
        (1, 20, 1, (3, 3), Geometry((3, 3), (4, 4), (1, 1), (5, 6), (7, 5))),  # windows without any pixel
        (2, 5, 3, (4, 4), Geometry((2, 2), (3, 3), (1, 1), (9, 9), (9, 9))),  # padding beyond the window
    ],
)
def test_shapes_of_networks(isa, kind, batch, channels, repeats, image, g):
    d = Drawn(1, (batch, channels, repeats, image, g), kind, (np.uint8, np.int8), (True, None))
    panels, parts = packed(d.w, None)
    assert parts == 1
    whole = run("QDWCONV", out_of(d.rng, d.shape, np.int32, kind), d.given(panels), params(g, parts), isa=isa)
    np.testing.assert_array_equal(whole, d.sums())


@pytest.mark.parametrize("isa", ISAS)
def test_every_number_of_pixels_and_channels(isa):
    """Each micro-kernel; panels that end anywhere; boxes that begin and end inside a panel."""
    rng = np.random.default_rng(3)
    for width in range(1, 31):
        for channels in (1, 7, 31, 33, 75):
            g = Geometry((3, 3), (1, 1 + width % 2), before=(1, 1), after=(1, 1))
            x, w = drawn(rng, (1, channels, 3, width), np.uint8), drawn(rng, (channels, 1, 3, 3), np.int8)
            panels, parts = packed(w, None)
            wanted = convolve(x.astype(np.float64), w.astype(np.float64), channels, g)
            cuts = sorted({0, min(15, channels), min(47, channels), channels})
            tiles = [([0, a, 0, 0], [1, b, *wanted.shape[2:]]) for a, b in pairwise(cuts)]
            inputs = [laid_out(rng, x, "last"), panels]
            np.testing.assert_array_equal(run("QDWCONV", np.empty(wanted.shape, np.int32), inputs, params(g, parts), tiles, isa), wanted)


@pytest.mark.parametrize("of_w", BYTES)
@pytest.mark.parametrize("zero", [None, "one", "columns"])
def test_packing(of_w, zero):
    """As kernel.h says it, an element at a time. The parts of a weight add up to it, and are no more than it takes."""
    rng = np.random.default_rng(8)
    for channels, kernel in ((1, (1, 1)), (33, (3, 2)), (32, (5, 3)), (70, (9, 2))):
        w, constant = drawn(rng, (channels, 1, *kernel), of_w), rng.integers(-(2**31), 2**31, channels).astype(np.int32)
        point = None if zero is None else drawn(rng, (channels,) if zero == "columns" else (), of_w)
        found, parts = packed(w, point, constant)
        values = w[:, 0].astype(int) - np.broadcast_to(0 if point is None else point.astype(int), channels)[:, None, None]
        groups = -(-kernel[0] // 4)
        assert found.shape == byte_taps.packed_shape(channels, kernel, parts)
        assert (np.abs(values).max() > 127 * (parts - 1)) or parts == 1
        head = np.ascontiguousarray(found[:, :3]).view(np.int32)[..., 0]
        taps = found[:, 3:].reshape(len(found), parts, groups, kernel[1], 32, 4).sum(1, dtype=int)
        for c in range(len(found) * 32):
            own = values[c] if c < channels else np.zeros(kernel, int)
            rows = np.zeros((groups * 4, kernel[1]), int)
            rows[: kernel[0]] = own
            np.testing.assert_array_equal(taps[c // 32, :, :, c % 32].transpose(0, 2, 1).reshape(rows.shape), rows)
            assert head[c // 32, :, c % 32].tolist() == [own.sum(), 0, constant[c] if c < channels else 0]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), case=cases(), types=st.tuples(*[st.sampled_from(BYTES)] * 2))
def test_the_planner_knows_the_scratch(seed, case, types):
    """The kernel asks for no more than the planner sets aside, and takes no more than it asks for."""
    d = Drawn(seed, case, "any", types, (True, "columns"))
    g, (panels, parts) = d.g, packed(d.w, d.w_zero)
    lo, hi = boxes(d.rng, d.shape, int(d.rng.integers(1, 4)))[0]
    inputs, out = d.given(panels), np.full(d.shape, 7, np.int32)
    asked = _kernels.scratch("QDWCONV", [out, *inputs], params(g, parts), lo, hi)
    assert asked <= strip_scratch(d.shape[3], g.kernel, g.stride[1], g.dilation[1], parts)
    box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
    for isa in ISAS:
        assert _kernels.call("QDWCONV", [out, *inputs], params(g, parts), lo, hi, isa, asked - 1) == SCRATCH
        assert (out == 7).all()
        assert _kernels.call("QDWCONV", [out, *inputs], params(g, parts), lo, hi, isa, asked) == 0
        np.testing.assert_array_equal(out[box], wrapped(d.sums())[box])
        out[...] = 7


def test_nothing_to_do():
    g, x, (panels, _) = Geometry((1, 1)), np.ones((1, 40, 3, 4), np.uint8), packed(np.ones((40, 1, 1, 1), np.int8), None)
    out = np.full((1, 40, 3, 4), 5, np.int32)
    for lo, hi in (([0, 0, 1, 0], [1, 40, 1, 4]), ([0, 33, 0, 0], [1, 33, 3, 4]), ([1, 0, 0, 0], [1, 40, 3, 4])):
        assert _kernels.call("QDWCONV", [out, x, panels], params(g, 1), lo, hi) == 0
    assert (out == 5).all()


@pytest.mark.parametrize("isa", ISAS)
def test_bad_arguments_are_refused(isa):
    g, x, (panels, _) = Geometry((1, 1)), np.ones((2, 6, 4, 5), np.uint8), packed(np.ones((6, 1, 1, 1), np.int8), None)

    def qdwconv(*args: np.ndarray | None, p: list[int | float] | None = None) -> int:
        return _kernels.call("QDWCONV", list(args), p or params(g, 1), [0] * args[0].ndim, args[0].shape, isa)

    check_refused(qdwconv, x, panels, params(g, 1))
    assert qdwconv(np.empty((2, 6, 4, 5), np.int32), x, panels, p=params(g, 0)) == BAD_ARGUMENT


# ------------------------------------------------------------------------------------------------------ without the instruction


def digests() -> str:
    """Return digests of results over many shapes, a line for each ISA."""
    lines = []
    for isa in ISAS:
        state = hashlib.sha256()
        for i, activation in enumerate(sorted(ACTIVATIONS)):
            for j, g in enumerate((Geometry((1, 1)), Geometry((3, 3), (2, 1), (1, 2), (1, 2), (2, 1)), Geometry((5, 5), before=(4, 0)))):
                case = (2, (3, 8, 70)[j], (1, 3, 1)[j], (9, 11), g)
                d = Drawn(10 * i + j, case, "last", (BYTES[i % 2], BYTES[j % 2]), (True, "columns"))
                panels, parts = packed(d.w, d.w_zero)
                bias = d.rng.standard_normal(d.shape[1], dtype=np.float32)
                factor, residual = (d.rng.standard_normal(d.shape, dtype=np.float32) for _ in range(2))
                state.update(run("QDWCONV", np.empty(d.shape, np.int32), d.given(panels), params(g, parts), isa=isa))
                inputs = d.given(panels, bias, residual, factor * np.float32(1e-4))
                for to in (np.float32, np.int8, np.uint8):
                    state.update(run("QDWCONV", np.empty(d.shape, to), inputs, params(g, parts, activation, i % 2, 0.03, 7), isa=isa))
        lines.append(f"{isa} {_isa.sums_bytes(isa)} {state.hexdigest()}")
    return "\n".join(lines)


def test_without_the_instruction_bits_are_the_same(tmp_path):
    check_digests(tmp_path, "test_qdwconv", digests())


def test_all_of_this_without_the_instruction(tmp_path):
    check_without(tmp_path, __file__)
