"""CONV, DWCONV and WINO over three axes on every ISA against float64, over drawn shapes, layouts, epilogues and tilings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, pack_panels, run, same_bits

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.ops.packing import winograd
from aspen_mp.planner.ops.table import input_region
from aspen_mp.workers import _kernels

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Window:
    """Of depth, rows and columns. `block`: the side of Winograd's blocks."""

    kernel: Triple
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    before: Triple = (0, 0, 0)
    after: Triple = (0, 0, 0)
    block: int = 0

    def out(self, volume: Triple) -> tuple[int, ...]:
        sides = zip(volume, self.kernel, self.stride, self.dilation, self.before, self.after, strict=True)
        return tuple((n + b + a - (k - 1) * d - 1) // s + 1 for n, k, s, d, b, a in sides)

    def params(self, groups: int, activation: str, residual_last: bool) -> list[int | float]:
        plane = [values[k] for values in (self.kernel, self.stride, self.dilation, self.before) for k in (1, 2)]
        depth = [values[0] for values in (self.kernel, self.stride, self.dilation, self.before)]
        tail = [int(residual_last), *ACTIVATIONS["IDENTITY"], *([self.block] if self.block else [])]
        return [groups, *plane, *ACTIVATIONS[activation], *tail, *depth]


def convolve(x: np.ndarray, w: np.ndarray, groups: int, g: Window) -> np.ndarray:
    """x [N, C, D, H, W], w [OC, C / groups, KD, KH, KW] → float64 [N, OC, OD, OH, OW]: one product a tap."""
    size = g.out(x.shape[2:])
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *zip(g.before, g.after, strict=True)))
    n, oc, cg = x.shape[0], w.shape[0], w.shape[1]
    out = np.zeros((n, groups, oc // groups, *size))
    w64 = w.astype(np.float64).reshape(groups, oc // groups, cg, *g.kernel)
    for tap in np.ndindex(*g.kernel):
        first = [t * d for t, d in zip(tap, g.dilation, strict=True)]
        index = tuple(slice(a, a + (d - 1) * s + 1, s) for a, d, s in zip(first, size, g.stride, strict=True))
        seen = padded[(slice(None), slice(None), *index)].reshape(n, groups, cg, *size)
        out += np.einsum("ngcdhw,goc->ngodhw", seen, w64[(..., *tap)])
    return out.reshape(n, oc, *size)


def packed(kernel: str, w: np.ndarray, groups: int, g: Window) -> np.ndarray:
    if kernel == "DWCONV":
        return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)
    if kernel == "WINO":
        out = np.full(winograd.packed_shape(w.shape, g.block, g.stride[1:]), np.nan, np.float32)
        winograd.pack(g.block, w, out, g.stride[1:])
        return out
    if groups == 1 and g.kernel[0] > 1 and g.kernel[2] > 1 and w.shape[1] < 16:  # planes are channels
        return pack_panels(np.ascontiguousarray(w.transpose(3, 4, 2, 1, 0)).reshape(-1, w.shape[0]))[None]
    per_group = w.reshape(groups, -1, *w.shape[1:])
    return np.stack([pack_panels(np.ascontiguousarray(v.transpose(2, 3, 4, 1, 0)).reshape(-1, v.shape[0])) for v in per_group])


def channels_last(rng: np.random.Generator, values: np.ndarray, plain: bool) -> np.ndarray:
    """Either any layout, or contiguous with channels last: what fast paths ask for."""
    if not plain:
        return filled(rng, values)
    return np.ascontiguousarray(values.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)


def rounding(kernel: str, terms: int, wanted: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    if kernel == "WINO":  # transforms mix all values of a block, and magnify what they round
        return 600 * (terms + 8) * 2.0**-24 * magnitude.max() + 8 * 2.0**-24 * np.abs(wanted) + 1e-7
    return (terms + 8) * 2.0**-24 * magnitude * 1.5 + 8 * 2.0**-24 * np.abs(wanted) + 1e-7


def compare(kernel, isa, seed, batch, groups, cg, og, volume, g: Window, *, plain, activation, bias, residual, residual_last, scaled):
    rng = np.random.default_rng(seed)
    x_values = rng.standard_normal((batch, groups * cg, *volume), dtype=np.float32)
    w = rng.standard_normal((groups * og, cg, *g.kernel), dtype=np.float32)
    shape = (batch, groups * og, *g.out(volume))
    x, weights = channels_last(rng, x_values, plain), packed(kernel, w, groups, g)
    more: list[np.ndarray | None] = [filled(rng, rng.standard_normal(groups * og, dtype=np.float32), plain) if bias else None, None]
    if residual:
        dims = tuple(int(d if rng.random() < 0.8 else 1) for d in shape)
        more[1] = broadcast(rng, rng.standard_normal(dims, dtype=np.float32), shape)
        if plain:
            more[1] = channels_last(rng, more[1], True)
    more += [rng.standard_normal(groups * og, dtype=np.float32) if scaled else None for _ in range(2)]
    out = channels_last(rng, np.empty(shape, np.float32), True) if plain else layout(rng, shape)
    p = g.params(groups, activation, residual_last)
    whole = run(kernel, out, [x, weights, *more], p, isa=isa)

    wanted, magnitude = convolve(x_values, w, groups, g), convolve(np.abs(x_values), np.abs(w), groups, g)
    by_channel = [None if t is None else t[:, None, None, None] for t in (more[0], *more[2:])]
    wanted, magnitude = epilogue(wanted, magnitude, activation, by_channel[0], more[1], *by_channel[1:], residual_last)
    bound = rounding(kernel, cg * int(np.prod(g.kernel)), wanted, magnitude)
    assert (np.abs(whole - wanted) <= bound).all(), f"worst error {np.abs(whole - wanted).max():.3g}"

    tiles = boxes(rng, shape, int(rng.integers(2, 10)))
    assert same_bits(whole, run(kernel, out, [x, weights, *more], p, tiles, isa)), "bits depend on the tile"
    again = None if more[1] is None else filled(rng, more[1])
    relaid = [channels_last(rng, x_values, not plain), weights, more[0], again, *more[2:]]
    assert same_bits(whole, run(kernel, layout(rng, shape), relaid, p, tiles, isa)), "bits depend on the layout"
    _kernels.time_tiles(kernel, [out, x, weights, *more], p, np.array(tiles, np.int64), isa=isa)
    assert same_bits(whole, out), "bits depend on the tile before"


OPTIONS = {
    "plain": st.booleans(),
    "activation": st.sampled_from(sorted(ACTIVATIONS)),
    "bias": st.booleans(),
    "residual": st.booleans(),
    "residual_last": st.booleans(),
    "scaled": st.booleans(),
}
SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 13])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Triple, Window]:
    """A volume and a window with at least one pixel of output."""
    triple = lambda values: st.tuples(*[st.sampled_from(values)] * 3)  # noqa: E731
    kernel, stride, dilation = draw(triple([1, 2, 3, 3, 5])), draw(triple([1, 1, 2, 3])), draw(triple([1, 1, 1, 2]))
    before, after = draw(triple([0, 1, 1, 2, 5])), draw(triple([0, 1, 1, 2, 6]))
    reach = [(k - 1) * d + 1 - b - a for k, d, b, a in zip(kernel, dilation, before, after, strict=True)]
    volume = tuple(max(draw(SIZES), r) for r in reach)
    return volume, Window(kernel, stride, dilation, before, after)  # type: ignore[return-value]


@st.composite
def blocked(draw: st.DrawFn) -> tuple[Triple, Window]:
    """The same for kernels that run in blocks, any depth of the window."""
    kind = draw(st.sampled_from(sorted(winograd.BLOCKS)))
    depth = draw(st.sampled_from([(1, 2, 1), (2, 1, 1), (3, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2), (5, 3, 2)]))
    before, after = draw(st.tuples(*[st.sampled_from([0, 1, 1, 2, 5])] * 3)), draw(st.tuples(*[st.sampled_from([0, 1, 1, 2, 6])] * 3))
    kernel, dilation = (depth[0], *kind[:2]), (depth[2], 1, 1)
    reach = [(k - 1) * d + 1 - b - a for k, d, b, a in zip(kernel, dilation, before, after, strict=True)]
    volume = tuple(max(draw(SIZES), r) for r in reach)
    block = draw(st.sampled_from(winograd.BLOCKS[kind]))
    return volume, Window(kernel, (depth[1], kind[2], kind[2]), dilation, before, after, block)  # type: ignore[return-value]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 2),
    groups=st.sampled_from([1, 1, 1, 2, 3]),
    channels=st.tuples(st.sampled_from([1, 2, 3, 15, 16, 17, 33]), st.sampled_from([1, 5, 16, 31, 33, 70])),
    case=cases(),
    **OPTIONS,
)
def test_convolution(isa, seed, batch, groups, channels, case, **options):
    compare("CONV", isa, seed, batch, groups, *channels, *case, **options)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    channels=st.sampled_from([2, 4, 8]),
    groups=st.sampled_from([2, 3, 4, 8, 16]),
    case=cases(),
    **OPTIONS,
)
def test_narrow_groups(isa, seed, channels, groups, case, **options):
    """Several groups in a vector, whole vectors or not."""
    compare("CONV", isa, seed, 1, groups, channels, channels, *case, **options)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 2),
    channels=st.sampled_from([1, 3, 8, 16, 17, 33, 64, 70]),
    repeats=st.sampled_from([1, 1, 2, 3]),
    case=cases(),
    **OPTIONS,
)
def test_depthwise(isa, seed, batch, channels, repeats, case, **options):
    compare("DWCONV", isa, seed, batch, channels, 1, repeats, *case, **options)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 2),
    channels=st.sampled_from([1, 2, 15, 16, 17, 33, 40]),
    outputs=st.sampled_from([1, 8, 17, 32, 33, 70]),
    case=blocked(),
    **OPTIONS,
)
def test_blocks(isa, seed, batch, channels, outputs, case, **options):
    compare("WINO", isa, seed, batch, 1, channels, outputs, *case, **options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("plain", [True, False])
def test_shapes_of_networks(isa, plain):
    same = {"before": (1, 1, 1), "after": (1, 1, 1)}
    options = {"plain": plain, "bias": True, "residual": True, "residual_last": False, "scaled": False}
    for kernel, batch, groups, inputs, outputs, volume, g in (
        ("CONV", 1, 1, 3, 64, (4, 30, 31), Window((3, 7, 7), (1, 2, 2), before=(1, 3, 3), after=(1, 3, 3))),
        ("CONV", 1, 1, 1, 16, (9, 20, 21), Window((3, 3, 3), **same)),
        ("CONV", 2, 1, 64, 70, (4, 9, 9), Window((3, 3, 3), (2, 2, 2), **same)),
        ("CONV", 1, 1, 160, 40, (3, 7, 7), Window((3, 3, 3), **same)),  # panels in parts
        ("WINO", 1, 1, 64, 64, (4, 28, 28), Window((3, 3, 3), **same, block=4)),
        ("WINO", 1, 1, 300, 40, (2, 7, 7), Window((3, 3, 3), **same, block=3)),
        ("WINO", 2, 1, 33, 40, (3, 14, 14), Window((3, 3, 3), (2, 2, 2), **same, block=4)),
        ("DWCONV", 1, 54, 1, 1, (5, 20, 30), Window((3, 3, 3), **same)),
        ("DWCONV", 1, 108, 1, 1, (5, 21, 23), Window((3, 5, 5), (1, 2, 2), before=(1, 2, 2), after=(1, 2, 2))),
        ("DWCONV", 1, 40, 1, 1, (4, 15, 23), Window((3, 7, 7), before=(1, 3, 3), after=(1, 3, 3))),
        ("DWCONV", 1, 20, 1, 4, (5, 12, 14), Window((3, 3, 3), (1, 2, 2), before=(1, 1, 1), after=(1, 1, 1))),
    ):
        compare(kernel, isa, 1, batch, groups, inputs, outputs, volume, g, activation="RELU", **options)


@pytest.mark.parametrize(("kernel", "block"), [("CONV", 0), ("DWCONV", 0), ("WINO", 4)])
@pytest.mark.parametrize("depth", [(1, 1, 1), (2, 1, 2), (1, 2, 0), (1, 1, 6)])
def test_nothing_else_is_read(kernel, block, depth):
    """Input outside the region of a box may hold anything; also where the window sees no input at all."""
    rng = np.random.default_rng(5)
    groups, cg = (10, 1) if kernel == "DWCONV" else (1, 17)
    g = Window((3, 3, 3), (depth[0], 1, 1), (depth[1], 1, 1), (depth[2], 1, 0), (depth[2], 0, 2), block)
    x = rng.standard_normal((2, groups * cg, 7, 8, 9), dtype=np.float32)
    w = rng.standard_normal((20, cg, *g.kernel), dtype=np.float32)
    shape, weights, p = (2, 20, *g.out(x.shape[2:])), packed(kernel, w, groups, g), g.params(groups, "RELU", False)
    whole = run(kernel, np.empty(shape, np.float32), [x, weights], p)
    attrs = {"groups": groups, "kernel": g.kernel[1:], "strides": (1, 1), "dilations": (1, 1), "pads": g.before[1:]}
    attrs |= {"block": block, "depth": (g.kernel[0], g.stride[0], g.dilation[0], g.before[0])}
    tensors: list[Tensor | None] = [Tensor("x", x.shape, x.dtype), Tensor("w", weights.shape, weights.dtype)]
    node = Node(kernel, "n", tensors, [Tensor("y", shape, x.dtype)], attrs)
    for lo, hi in boxes(rng, shape, 20):
        first, last = input_region(node, 0, np.array([lo]), np.array([hi]))
        holed = np.full_like(x, np.nan)
        read = tuple(slice(a, max(a, b)) for a, b in zip(first[0], last[0], strict=True))
        holed[read] = x[read]
        out = np.empty_like(whole)
        assert _kernels.call(kernel, [out, holed, weights], p, lo, hi) == 0
        box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
        assert same_bits(out[box], whole[box])
