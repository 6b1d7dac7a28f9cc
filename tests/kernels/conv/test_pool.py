"""POOL on every ISA against a direct float64 definition, over drawn windows, pads, layouts and tilings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, boxes, filled, layout, run, same_bits

from aspen_mp.shm.tables import UNARY

NO_ACT = (0, 0, 0)
pair = lambda values: st.tuples(values, values)  # noqa: E731


def define(x: np.ndarray, out: tuple[int, int], p: list[int]) -> np.ndarray:
    """Window by window, as the contract says it."""
    average, kh, kw, sh, sw, dh, dw, top, left, bottom, right, count_pads = p[:12]
    h, w = x.shape[2:]
    x64 = x.astype(np.float64)
    result = np.empty((*x.shape[:2], *out))
    for oh, ow in itertools.product(range(out[0]), range(out[1])):
        taps = [(oh * sh - top + i * dh, ow * sw - left + j * dw) for i in range(kh) for j in range(kw)]
        inside = [t for t in taps if 0 <= t[0] < h and 0 <= t[1] < w]
        padded = [t for t in taps if -top <= t[0] < h + bottom and -left <= t[1] < w + right]
        values = np.array([x64[:, :, i, j] for i, j in inside]).reshape(len(inside), *x.shape[:2])
        if average:
            count = len(padded) if count_pads else len(inside)
            result[:, :, oh, ow] = values.sum(0) / count if count else 0
        else:
            lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
            result[:, :, oh, ow] = values.max(0, initial=lowest)
    return result


def channels_last(v: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(v.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, int], list[int]]:
    """Input shape, output image, parameters; ceil mode lets the last window reach beyond the padding."""
    kernel = draw(pair(st.sampled_from([1, 2, 2, 3, 3, 5, 7])))
    stride, dilation = draw(pair(st.sampled_from([1, 2, 3]))), draw(pair(st.sampled_from([1, 1, 2])))
    before, after = draw(pair(st.integers(0, 3))), draw(pair(st.integers(0, 4)))
    ceil = draw(st.booleans())
    image, out = [], []
    for k, s, d, b, a in zip(kernel, stride, dilation, before, after, strict=True):
        reach = (k - 1) * d + 1
        sides = [0, 1, 2, 4, 7, 8, 13] if len(image) == 0 else [0, 1, 2, 4, 7, 8, 13, 40, 70, 150]  # longer rows: piece by piece
        n = max(draw(st.sampled_from(sides)), reach - b - a)
        image.append(n)
        out.append((n + b + a - reach + (s - 1 if ceil else 0)) // s + 1)
    channels = draw(st.sampled_from([1, 2, 5, 8, 15, 16, 17, 32, 63, 64, 65, 130]))
    p = [0, *kernel, *stride, *dilation, *before, *after, int(draw(st.booleans())), *NO_ACT]
    return (draw(st.integers(1, 2)), channels, *image), (out[0], out[1]), p


def check(isa: str, seed: int, case: Any, average: bool, dtype: str, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    shape, image, p = case
    p = [int(average), *p[1:]]
    if dtype.startswith("float"):
        values = rng.standard_normal(shape).astype(dtype)
        if seed % 4 == 0 and values.size:
            values.reshape(-1)[rng.integers(0, values.size, 3)] = [np.nan, np.inf, -np.inf]
        if seed % 4 == 1 and values.size:  # leaves no trace in windows that do not see it
            values.reshape(-1)[rng.integers(0, values.size, 2)] = 1e30
    else:
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)

    def place(v: np.ndarray) -> np.ndarray:
        return channels_last(v) if plain else filled(rng, v)

    x = place(values)
    out = place(np.empty((*shape[:2], *image), dtype))
    affine = [rng.uniform(0.5, 2, shape[1]).astype(np.float32) for _ in range(2)] if seed % 3 == 0 and dtype == "float32" else []
    if affine:
        p = [*p[:12], UNARY["RELU"], 0, 0]
    whole = run("POOL", out, [x, *affine], p, isa=isa)
    with np.errstate(invalid="ignore"):
        wanted = define(values, image, p)
        if affine:
            wanted = np.maximum(wanted * affine[0][:, None, None] + affine[1][:, None, None], 0)
    if average or affine:
        np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=5e-6)
    else:
        np.testing.assert_array_equal(whole.astype(np.float64), wanted)
    tiles = boxes(rng, out.shape, int(rng.integers(2, 9)))
    assert same_bits(whole, run("POOL", out, [x, *affine], p, tiles, isa))
    other = run("POOL", layout(rng, out.shape, dtype), [filled(rng, values), *affine], p, tiles, isa)
    assert same_bits(whole, other), "bits depend on the layout"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("average", [False, True])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), case=cases(), plain=st.booleans())
def test_f32_against_definition(isa, average, seed, case, plain):
    check(isa, seed, case, average, "float32", plain)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), case=cases(), plain=st.booleans())
def test_maximum_of_other_types(isa, dtype, seed, case, plain):
    check(isa, seed, case, False, dtype, plain)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    side=st.sampled_from([3, 5]),
    image=st.tuples(st.integers(1, 9), st.integers(1, 70)),
    channels=st.integers(1, 5),
    more=st.tuples(st.integers(0, 1), st.integers(0, 2)),
)
def test_maxima_along_rows_have_the_bits_of_those_along_channels(isa, seed, side, image, channels, more):
    """Numbers of which many are equal, zeros of both signs, and what is no number."""
    rng = np.random.default_rng(seed)
    pool = [np.inf, -np.inf, np.nan, -0.0, 0.0, 3e38, -3e38][seed % 4 :]
    values = rng.choice(np.array([*pool, -1.0, 1.0], np.float32), (2, channels, *image))
    pads = (side // 2, side // 2, side // 2 + more[0], side // 2 + more[1])
    out = (2, channels, image[0] + more[0], image[1] + more[1])
    act = [NO_ACT, (UNARY["RELU"], 0.0, 0.0), (UNARY["SIGMOID"], 0.0, 0.0)][seed % 3]
    p = [0, side, side, 1, 1, 1, 1, *pads, 0, *act]
    scale = [rng.standard_normal(channels, dtype=np.float32) for _ in range(2)] if seed % 2 else []
    last = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    wanted = run("POOL", np.empty((2, *out[2:], channels), np.float32).transpose(0, 3, 1, 2), [last, *scale], p, isa=isa)
    tiles = boxes(rng, out, int(rng.integers(1, 6)))
    assert same_bits(wanted, run("POOL", np.empty(out, np.float32), [values, *scale], p, tiles, isa))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), kernel=pair(st.sampled_from([2, 3, 3, 4, 5, 7])), stride=st.sampled_from([1, 1, 2]), pads=st.booleans())
def test_averages_are_quotients_within_an_ulp(isa, seed, kernel, stride, pads):
    """Where a sum is exact: a single pixel is not zero."""
    rng = np.random.default_rng(seed)
    shape = (1, int(rng.integers(1, 20)), int(rng.integers(7, 12)), int(rng.integers(7, 12)))
    x = np.zeros(shape, np.float32)
    x[:, :, rng.integers(0, shape[2]), rng.integers(0, shape[3])] = rng.uniform(1, 2, shape[1])
    pad = [k // 2 for k in kernel]
    image = [(n + 2 * p - k) // stride + 1 for n, p, k in zip(shape[2:], pad, kernel, strict=True)]
    p = [1, *kernel, stride, stride, 1, 1, *pad, *pad, int(pads), *NO_ACT]
    place = channels_last if seed % 2 else lambda v: filled(rng, v)
    found = run("POOL", place(np.empty((*shape[:2], *image), np.float32)), [place(x)], p, isa=isa)
    wanted = define(x, (image[0], image[1]), p)
    assert (np.abs(found - wanted) <= np.spacing(wanted.astype(np.float32))).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("side", [3, 5, 9])
def test_averages_are_as_good_as_plain_sums(isa, side):
    """Of numbers of one sign, whose sums round most."""
    rng = np.random.default_rng(side)
    x = channels_last(rng.uniform(0, 1, (1, 16, 40, 40)).astype(np.float32))
    p = [1, side, side, 1, 1, 1, 1, 0, 0, 0, 0, 0, *NO_ACT]
    n = 41 - side
    found = run("POOL", channels_last(np.empty((1, 16, n, n), np.float32)), [x], p, isa=isa)
    plain = np.zeros_like(found)
    for i, j in itertools.product(range(side), range(side)):
        plain += x[:, :, i : i + n, j : j + n]
    plain /= np.float32(side * side)
    wanted = define(x, (n, n), p)
    error, allowed = (np.sqrt(((y - wanted) ** 2).mean()) for y in (found, plain))
    assert error <= allowed


@pytest.mark.parametrize("isa", ISAS)
def test_global_average(isa):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 70, 40, 50), dtype=np.float32)
    result = run("POOL", np.empty((2, 70, 1, 1), np.float32), [x], [1, 40, 50, 1, 1, 1, 1, 0, 0, 0, 0, 0, *NO_ACT], isa=isa)
    np.testing.assert_allclose(result[:, :, 0, 0], x.mean((2, 3), dtype=np.float64), rtol=1e-6, atol=1e-7)
