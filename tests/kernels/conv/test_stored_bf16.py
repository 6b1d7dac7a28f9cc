"""BGEMM, BCONV and DWCONV over operands that are stored as bf16, on every ISA, with the processor's instruction and without it.

They have the bits of the same call over f32, which other tests compare with float64, rounded once at the end.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from byte_tools import check_without
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, filled, layout, run, same_bits
from pair_tools import HALVES, SWITCH, both_ways, pack_pairs, stored
from test_bconv import pack, params
from test_conv import Geometry, cases, channels_last

from aspen_mp.workers import _kernels

BF16 = np.dtype(ml_dtypes.bfloat16)
BAD_ARGUMENT = 2
TINY = np.array([1e-38, -1e-38, 1.17e-38, 1.1754943e-38, 1.1754944e-38, 1e-45, 0.0, -0.0], np.float32)
KINDS = {"x": st.booleans(), "out": st.booleans(), "residual": st.sampled_from([None, False, True])}
"""Which operands are stored as bf16. A residual is there where it is not None."""


def bf16_values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """f32 values that bf16 has."""
    return stored(rng.standard_normal(shape, dtype=np.float32)).astype(np.float32)


def compare(kernel, isa, rng, plain, halves, x_values, shape, rest, p, residual_at):
    """The call over f32, and over what `halves` stores as bf16, in other layouts and tiles."""
    residual = None if halves["residual"] is None else bf16_values(rng, *(int(d if rng.random() < 0.8 else 1) for d in shape))
    images = len(shape) == 4

    def placed(values: np.ndarray, half: bool | None) -> np.ndarray:
        values = values.astype(BF16) if half else values
        return channels_last(rng, values, plain) if images else filled(rng, values, plain)

    def called(half: bool, tiles: list | None) -> np.ndarray:
        x, extra = placed(x_values, half and halves["x"]), None
        if residual is not None:
            extra = broadcast(rng, residual.astype(BF16) if half and halves["residual"] else residual, shape)
            extra = placed(np.ascontiguousarray(extra), half and halves["residual"]) if plain else extra
        dtype = BF16 if half and halves["out"] else np.dtype(np.float32)
        out = channels_last(rng, np.empty(shape, dtype), plain) if images else layout(rng, shape, dtype, plain)
        inputs = [x, *rest]
        inputs[residual_at] = extra
        return run(kernel, out, inputs, p, tiles, isa)

    whole = called(False, None)
    wanted = stored(whole) if halves["out"] else whole
    assert same_bits(called(True, None), wanted)
    assert same_bits(called(True, boxes(rng, shape, int(rng.integers(2, 9)))), wanted), "bits depend on the tile"


EPILOGUE = {
    "activation": st.sampled_from(sorted(ACTIVATIONS)),
    "with_bias": st.booleans(),
    "residual_last": st.booleans(),
    "scaled": st.booleans(),
}


def vectors(rng: np.random.Generator, n: int, with_bias: bool, scaled: bool) -> list[np.ndarray | None]:
    """Bias, residual (none yet), scale and shift."""
    bias, scale, shift = (rng.standard_normal(n, dtype=np.float32) if there else None for there in (with_bias, scaled, scaled))
    return [bias, None, scale, shift]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    m=st.sampled_from([1, 2, 5, 14, 15, 29, 60]),
    k=st.sampled_from([1, 2, 7, 16, 31, 64, 511, 512]),
    n=st.sampled_from([1, 8, 15, 16, 17, 31, 32, 33, 48, 70]),
    batch=st.lists(st.integers(1, 3), max_size=1),
    plain=st.booleans(),
    amx=st.booleans(),
    halves=st.fixed_dictionaries(KINDS),
    **EPILOGUE,
)
def test_products(isa, seed, m, k, n, batch, plain, amx, halves, activation, with_bias, residual_last, scaled):
    rng = np.random.default_rng(seed)
    bias, *rest = vectors(rng, n, with_bias, scaled)
    shape = (*batch, m, n)
    wide = None if bias is None else np.broadcast_to(bias, shape)
    weights = pack_pairs(rng.standard_normal((1, k, n), dtype=np.float32))
    p = [1.0, *ACTIVATIONS[activation], int(residual_last), int(amx)]
    compare("BGEMM", isa, rng, plain, halves, bf16_values(rng, *batch, m, k), shape, [weights, wide, *rest], p, 3)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=cases(depthwise=False),
    plain=st.booleans(),
    amx=st.booleans(),
    halves=st.fixed_dictionaries(KINDS),
    before=st.booleans(),
    **EPILOGUE,
)
def test_convolutions(isa, seed, case, plain, amx, halves, before, activation, with_bias, residual_last, scaled):
    rng = np.random.default_rng(seed)
    batch, _, inputs, outputs, image, g = case
    rest = [pack(rng.standard_normal((outputs, inputs, *g.kernel), dtype=np.float32)), *vectors(rng, outputs, with_bias, scaled)]
    rest += [rng.standard_normal(inputs, dtype=np.float32) for _ in range(2)] if before else []
    p = params(g, activation, residual_last, "RELU" if before else "IDENTITY", amx)
    compare("BCONV", isa, rng, plain, halves, bf16_values(rng, batch, inputs, *image), (batch, outputs, *g.out(image)), rest, p, 3)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), case=cases(depthwise=True), plain=st.booleans(), halves=st.fixed_dictionaries(KINDS), **EPILOGUE)
def test_depthwise_convolutions(isa, seed, case, plain, halves, activation, with_bias, residual_last, scaled):
    depthwise(isa, np.random.default_rng(seed), case, plain, halves, activation, with_bias, residual_last, scaled)


def depthwise(isa, rng, case, plain, halves, activation, with_bias, residual_last, scaled):
    batch, groups, _, times, image, g = case
    w = rng.standard_normal((g.kernel[0] * g.kernel[1], groups * times), dtype=np.float32)
    rest = [w, *vectors(rng, groups * times, with_bias, scaled)]
    shape, p = (batch, groups * times, *g.out(image)), g.params(groups, activation, residual_last)
    compare("DWCONV", isa, rng, plain, halves, bf16_values(rng, batch, groups, *image), shape, rest, p, 3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(("x", "out"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "image"), [(144, (14, 15)), (33, (9, 60)), (16, (28, 28))])
def test_depthwise_convolutions_of_networks(isa, plain, x, out, side, stride, channels, image):
    g = Geometry((side, side), (stride, stride), (1, 1), (side // 2, side // 2), (side // 2, side // 2))
    halves = {"x": x, "out": out, "residual": True}
    depthwise(isa, np.random.default_rng(channels), (1, channels, 1, 1, image, g), plain, halves, "CLIP", True, True, False)


@pytest.mark.parametrize("isa", ISAS)
def test_rounding(isa):
    """To nearest even, of values of any size. Denormal ones become zeros; NaNs and infinities stay what they are."""
    values = np.concatenate([HALVES, -HALVES, TINY, np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)])
    x = np.repeat(values, 7).reshape(1, 1, 1, -1)
    for channels in (1, 16):
        wide = np.ascontiguousarray(np.repeat(x, channels, axis=1).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        out = np.empty((1, 1, x.shape[3], channels), BF16).transpose(0, 3, 1, 2)
        rest = [np.ones((1, channels), np.float32)]
        one = Geometry((1, 1)).params(channels, "IDENTITY")
        exact = run("DWCONV", np.empty(out.shape, np.float32), [wide, *rest], one, isa=isa)
        assert same_bits(run("DWCONV", out, [wide, *rest], one, isa=isa), stored(exact))


@pytest.mark.parametrize("isa", ISAS)
def test_what_a_call_may_be(isa):
    """Values of other types are refused, and volumes of bf16 are."""
    x, w, out = np.zeros((1, 8, 5, 5), BF16), np.ones((9, 8), np.float32), np.zeros((1, 8, 3, 3), BF16)
    p = Geometry((3, 3)).params(8, "IDENTITY")

    def call(args, p=p):
        return _kernels.call("DWCONV", args, p, [0] * args[0].ndim, args[0].shape, isa)

    assert call([out, x, w]) == 0
    assert call([out, x.astype(np.float16), w]) == BAD_ARGUMENT
    assert call([out, x, w.astype(BF16)]) == BAD_ARGUMENT
    assert call([out, x, w, None, np.zeros(out.shape, np.float64)]) == BAD_ARGUMENT
    assert call([out[:, :, None], x[:, :, None], w]) == BAD_ARGUMENT


@both_ways
def test_without_the_instruction(tmp_path):
    """The other tests of this file."""
    check_without(tmp_path, __file__, SWITCH)
