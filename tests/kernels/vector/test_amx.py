"""The wrapper of AMX against numpy and exact fractions: the twin everywhere, the instructions on processors with AVX-512. Where such a
processor has no AMX they trap, and are decoded from the machine code."""

from __future__ import annotations

import ctypes
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import cbuild
import numpy as np
import pytest
from amx_tools import SMALLEST, instruction, sums
from folders import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from aspen_mp.workers import _isa

pytestmark = pytest.mark.skipif(not (ROOT / "workers").is_dir(), reason="the tests lie away from the sources")
Array = np.ndarray[Any, np.dtype[Any]]
BYTES, BF16 = 0, 1
ARCH_PRCTL, ASK, REGISTERS = 158, 0x1023, 18
FLAGS = {"portable": [], "avx512": ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mf16c", "-DASPEN_AMX"]}


class Calls:
    """The compiled wrapper for one instruction set; `real`: whether its instructions run."""

    def __init__(self, folder: Path, isa: str) -> None:
        kernels = ROOT / "workers" / "kernels"
        command = [cbuild.compiler(), "-std=gnu11", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-DASPEN_ISA={isa}", *FLAGS[isa]]
        paths = [f"-I{kernels}", f"-I{ROOT / 'shm' / 'protocol'}"]
        library = folder / f"{isa}.so"
        subprocess.run([*command, *paths, Path(__file__).with_name("amx_calls.c"), "-o", library], check=True)
        self._library = ctypes.CDLL(str(library))
        self.real = isa == "avx512"
        flags = Path("/proc/cpuinfo").read_text().split()
        self._there = {"amx_tile", "amx_int8", "amx_bf16"} <= set(flags)
        if self.real and self._there and ctypes.CDLL(None).syscall(ARCH_PRCTL, ASK, REGISTERS):
            pytest.skip("the operating system refuses the registers")

    def _run(self, name: str, *args: Any) -> None:
        trapping = self.real and not self._there
        if trapping:
            assert self._library.traps(1) == 0
        getattr(self._library, name)(int(self.real), *args)
        if trapping:
            assert self._library.traps(0) > 0

    def dot(self, kind: int, before: Array | None, a: Array, b: Array) -> Array:
        """before[m, n] (None: zeros) and the products of a[m, k] and b[k, n], words of 32 bits, in rows with something between them."""
        before, a, b = (None if x is None else x.view(np.uint32) for x in (before, a, b))
        m, k, n = len(a), len(b), b.shape[1]
        shapes = np.zeros(64, np.uint8)
        shapes[0] = 1
        for register, (rows, columns) in {1: (m, n), 3: (m, k), 6: (k, n)}.items():
            shapes[16 + 2 * register], shapes[48 + register] = 4 * columns, rows
        spread = [None if x is None else _apart(x) for x in (before, a, b)]
        out = np.full((m, n + 3), 0x01020304, np.uint32)
        pointers = (ctypes.c_void_p * 3)(*[None if x is None else x.ctypes.data for x in spread])
        steps = (ctypes.c_int64 * 3)(*[0 if x is None else x.strides[0] for x in spread])
        to = (ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.strides[0]))
        self._run("dot", kind, ctypes.c_void_p(shapes.ctypes.data), pointers, steps, *to)
        assert (out[:, n:] == 0x01020304).all()
        return np.ascontiguousarray(out[:, :n]).view(np.float32 if kind == BF16 else np.int32)

    def strip(self, kind: int, a: Array, panel: Array) -> Array:
        """The sums of a[rows, runs, groups] and panel[runs, groups, 32], words of 32 bits: [rows, 32]."""
        rows, runs, groups = a.shape
        terms = (ctypes.c_int64 * 6)(groups, 1, runs, 0, a.strides[1], a.strides[0])
        out = np.empty((rows, 32), np.uint32)
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, panel, out)]
        self._run("strip", kind, terms, rows, *pointers)
        return out.view(np.float32 if kind == BF16 else np.int32)


def _apart(words: Array) -> Array:
    memory = np.full((words.shape[0], words.shape[1] + 5), 0xFFFFFFFF, np.uint32)
    memory[:, : words.shape[1]] = words
    return memory[:, : words.shape[1]]


@pytest.fixture(scope="module", params=["portable", "avx512"])
def calls(request, tmp_path_factory) -> Calls:
    if request.param not in _isa.names():
        pytest.skip("the processor has no vectors of 512 bits")
    return Calls(tmp_path_factory.mktemp("amx"), request.param)


def halves(values: Array) -> Array:
    """f32 that are bf16 → their upper halves."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def right(values: Array) -> Array:
    """[n, k, 2] of bf16 → words [k, n]."""
    return np.ascontiguousarray(np.ascontiguousarray(halves(values)).view(np.uint32)[..., 0].T)


def left(values: Array) -> Array:
    return np.ascontiguousarray(np.ascontiguousarray(halves(values)).view(np.uint32)[..., 0])


EXTENTS = st.integers(1, 16)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), m=EXTENTS, k=EXTENTS, n=EXTENTS, zero=st.booleans())
def test_bytes_are_numpys(calls, seed, m, k, n, zero):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 256, (m, 4 * k)).astype(np.uint8), rng.integers(-128, 128, (k, n, 4)).astype(np.int8)
    before = None if zero else rng.integers(-(2**31), 2**31, (m, n)).astype(np.int32)
    exact = a.astype(np.int64) @ b.transpose(0, 2, 1).reshape(4 * k, n).astype(np.int64)
    wanted = (exact + (0 if before is None else before)).astype(np.uint64).astype(np.uint32).view(np.int32)
    np.testing.assert_array_equal(calls.dot(BYTES, before, a, b.reshape(k, 4 * n)), wanted)


def drawn_halves(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Bf16 of any size, half of them of similar ones, so that sums cancel and round."""
    anything = rng.integers(0, 0x7F80, shape).astype(np.uint32)
    similar = rng.integers(0x3F00, 0x4080, shape).astype(np.uint32)
    bits = np.where(rng.random(shape) < 0.5, anything, similar) | rng.integers(0, 2, shape).astype(np.uint32) << 15
    return (bits << 16).astype(np.uint32).view(np.float32)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), m=EXTENTS, k=EXTENTS, n=EXTENTS, zero=st.booleans())
def test_bf16_is_numpys(calls, seed, m, k, n, zero):
    rng = np.random.default_rng(seed)
    a, b = drawn_halves(rng, (m, k, 2)), drawn_halves(rng, (n, k, 2))
    before = np.zeros((m, n), np.float32) if zero else rng.standard_normal((m, n)).astype(np.float32)
    found = calls.dot(BF16, None if zero else before, left(a), right(b))
    np.testing.assert_array_equal(found, instruction(before, flush(a), flush(b)))


def flush(values: Array) -> Array:
    return np.where(np.abs(values) < SMALLEST, np.float32(0), values)


def nearest(x: Fraction) -> Fraction:
    """The nearest f32, ties to even, of any exponent; 0 where it is denormal."""
    if x == 0:
        return x
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    rounded = round(x / unit) * unit
    return rounded if abs(rounded) >= Fraction(SMALLEST) else Fraction(0)


NEAR = st.builds(
    lambda significand, exponent, sign: sign * (1 + significand / 128) * 2.0**exponent,
    st.integers(0, 127),
    st.one_of(st.integers(-12, 12), st.integers(-75, -50), st.sampled_from([-126, -125, -63, -64, 40])),
    st.sampled_from([1, -1]),
)
"""Bf16 whose products lie close to each other, or where f32 become denormal."""


@settings(max_examples=300, deadline=None)
@given(terms=st.lists(st.tuples(NEAR, NEAR, NEAR, NEAR), min_size=1, max_size=6), before=st.one_of(st.just(0.0), NEAR))
def test_every_step_of_bf16_rounds_once(calls, terms, before):
    """Against fractions, which need no argument about double rounding."""
    each = [Fraction(0), Fraction(0)]
    for even, odd, left_even, left_odd in terms:
        each[0] = nearest(each[0] + Fraction(even) * Fraction(left_even))
        each[1] = nearest(each[1] + Fraction(odd) * Fraction(left_odd))
    wanted = nearest(nearest(each[0] + each[1]) + Fraction(before))
    b = np.array([[t[:2] for t in terms]], np.float32)
    a = np.array([[t[2:] for t in terms]], np.float32)
    found = calls.dot(BF16, np.array([[before]], np.float32), left(a), right(b))
    assert float(found[0, 0]) == float(wanted)


def test_bf16_of_no_finite_size(calls):
    inf, nan, large = np.inf, np.nan, 3e38
    for pair, other, wanted in (
        ((inf, 1), (1, 1), inf),
        ((inf, 0), (0, 0), nan),
        ((inf, inf), (1, -1), nan),
        ((nan, 0), (0, 0), nan),
        ((large, 0), (4, 0), inf),
        ((-large, -large), (1, 1), -inf),
    ):
        found = calls.dot(BF16, None, left(np.array([[pair]], np.float32)), right(np.array([[other]], np.float32)))
        np.testing.assert_array_equal(found, [[np.float32(wanted)]])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32])
@pytest.mark.parametrize(("runs", "groups"), [(1, 1), (1, 16), (3, 17), (2, 33), (1, 40), (9, 3)])
def test_strips(calls, rows, runs, groups):
    """Rows and runs with something between them, in one pass or two."""
    rng = np.random.default_rng(rows * groups)
    a = np.full((rows, runs, groups + 2), 0xFFFFFFFF, np.uint32)[:, :, :groups]
    raw, weights = rng.integers(0, 256, (rows, runs, groups, 4)), rng.integers(-128, 128, (runs, groups, 32, 4))
    a[...] = np.ascontiguousarray(raw.astype(np.uint8)).view(np.uint32)[..., 0]
    panel = np.ascontiguousarray(weights.astype(np.int8)).view(np.uint32)[..., 0]
    np.testing.assert_array_equal(calls.strip(BYTES, a, panel), np.einsum("mrgq,rgnq->mn", raw, weights))
    x, w = (drawn_halves(rng, (count, runs, groups, 2)) for count in (rows, 32))
    a[...] = np.ascontiguousarray(halves(x)).view(np.uint32)[..., 0]
    panel = np.ascontiguousarray(np.ascontiguousarray(halves(w)).view(np.uint32)[..., 0].transpose(1, 2, 0))
    np.testing.assert_array_equal(calls.strip(BF16, a, panel), sums(flush(x), flush(w)))
