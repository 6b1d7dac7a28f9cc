"""Outputs that go past the caches (workers/kernels/vector/stores.h) on every ISA: the bits of those that stay in them, whatever the tile,
and nothing is written beside them. The tests of each kernel set those bits beside float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import test_bconv
import test_bgemm
import test_gemm
import test_qnbitgemm
import test_strassen
import test_winograd
from kernel_tools import ACTIVATIONS, ISAS, boxes, pack_panels, run, same_bits
from test_conv import Geometry, pack_conv

Inputs = list[np.ndarray | None]
WIDTHS = [32, 48, 80, 100]  # channels: of the last, no pixel but the first of four begins a line


def lines(shape: Sequence[int], offset: int = 0) -> np.ndarray:
    """Contiguous memory that begins `offset` floats behind the beginning of a line."""
    room = np.empty(int(np.prod(shape)) + 32, np.float32)
    return room[-(room.ctypes.data // 4) % 16 + offset :][: int(np.prod(shape))].reshape(shape)


def image(shape: Sequence[int], offset: int = 0) -> np.ndarray:
    """The same with channels last."""
    n, c, h, w = shape
    return lines((n, h, w, c), offset).transpose(0, 3, 1, 2)


def check(kernel: str, isa: str, make: Callable[[int], np.ndarray], inputs: Inputs, params: list[int | float], whole_axes: int = 0) -> None:
    """whole_axes: so many of the last are not cut."""
    rng = np.random.default_rng(len(inputs))
    kept = run(kernel, make(0), inputs, params, isa=isa)
    axes = kept.ndim - whole_axes
    for offset in (0, 8, 16):
        assert same_bits(kept, run(kernel, make(offset), inputs, params, isa=isa, apart=True))
        tiles = [([*lo, *[0] * whole_axes], [*hi, *kept.shape[axes:]]) for lo, hi in boxes(rng, kept.shape[:axes], int(rng.integers(2, 8)))]
        assert same_bits(kept, run(kernel, make(offset), inputs, params, tiles, isa, apart=True))


def extras(rng: np.random.Generator, shape: Sequence[int], axis: int, residual: np.ndarray) -> Inputs:
    """Residual, scale, shift."""
    residual[...] = rng.standard_normal(shape, dtype=np.float32)
    return [residual, *(rng.standard_normal(shape[axis], dtype=np.float32) for _ in range(2))]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", WIDTHS)
@pytest.mark.parametrize(("inputs", "kernel", "stride"), [(64, 1, 1), (200, 1, 1), (3, 7, 2), (40, 3, 1), (40, 3, 2)])
@pytest.mark.parametrize("late", [None, False, True])
def test_convolutions(isa, outputs, inputs, kernel, stride, late):
    rng = np.random.default_rng(outputs + inputs)
    g = Geometry((kernel, kernel), (stride, stride), before=(kernel // 2,) * 2, after=(kernel // 2,) * 2)
    shape = (2, outputs, *g.out((15, 18)))
    x = image((2, inputs, 15, 18))
    x[...] = rng.standard_normal(x.shape, dtype=np.float32)
    w, bias = rng.standard_normal((outputs, inputs, kernel, kernel), dtype=np.float32), rng.standard_normal(outputs, dtype=np.float32)
    rest = [] if late is None else extras(rng, shape, 1, image(shape))
    check("CONV", isa, lambda at: image(shape, at), [x, pack_conv(w, 1), bias, *rest], g.params(1, "RELU", bool(late)))
    p = test_bconv.params(g, "RELU", bool(late))
    check("BCONV", isa, lambda at: image(shape, at), [x, test_bconv.pack(w), bias, *rest], p)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", WIDTHS)
@pytest.mark.parametrize("kind", test_winograd.KINDS, ids=lambda kind: "{}x{}s{}_{}".format(*kind))
def test_blocks(isa, outputs, kind):
    rng = np.random.default_rng(outputs)
    x = image((1, 24, 17, 19))
    x[...] = rng.standard_normal(x.shape, dtype=np.float32)
    w = rng.standard_normal((outputs, 24, kind.rows, kind.columns), dtype=np.float32)
    shape = (1, outputs, (17 - kind.rows) // kind.stride + 1, (19 - kind.columns) // kind.stride + 1)
    bias = rng.standard_normal(outputs, dtype=np.float32)
    given: Inputs = [x, test_winograd.transformed(w, kind), bias]
    for late in (False, True):
        for rest in ([], extras(rng, shape, 1, image(shape))):
            p = test_winograd.params(kind, (0, 0, 0, 0), "RELU", late)
            check("WINO", isa, lambda at: image(shape, at), [*given, *rest], p)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("rows", [1, 3, 6, 14, 37])
def test_products(isa, columns, rows):
    rng = np.random.default_rng(columns + rows)
    shape = (2, rows, columns)
    a = rng.standard_normal((2, rows, 70), dtype=np.float32)
    b = rng.standard_normal((70, columns), dtype=np.float32)
    bias = np.broadcast_to(rng.standard_normal(columns, dtype=np.float32), shape)
    more = extras(rng, shape, 2, lines(shape))

    def make(at: int) -> np.ndarray:
        return lines(shape, at)

    for packed in (False, True):
        right = pack_panels(b) if packed else np.broadcast_to(b, (2, *b.shape))
        for rest in ([], more):
            check("GEMM", isa, make, [a, right, bias, *rest], test_gemm.params(packed, 1.0, "RELU"))
    left = run("STRASSEN", np.empty(test_strassen.left_factors(a.shape), np.float32), [a], [], isa=isa)
    check("STRASSEN", isa, lambda at: lines(left.shape, at), [a], [], whole_axes=1)
    check("GEMM", isa, make, [a, pack_panels(b), bias, *more, left], test_strassen.params(activation="RELU"))
    check("BGEMM", isa, make, [a, test_bgemm.pack(b), bias, *more], [1.0, *ACTIVATIONS["RELU"], 0, 0])
    for kind in test_qnbitgemm.HALVES:
        weight, form = test_qnbitgemm.packed(test_qnbitgemm.halves(rng, kind, 70, columns)[0])
        check("QNBITGEMM", isa, make, [a, weight, bias, *more], test_qnbitgemm.params(form, activation="RELU"))
