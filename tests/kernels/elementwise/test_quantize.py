"""QUANTIZE, DEQUANTIZE, QBINARY, LOOKUP, MINMAX and QPARAMS on every ISA, over drawn shapes, layouts, types, broadcasts and tilings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, SHAPES, boxes, broadcast, check_equal, check_tiles, filled, layout, run, same_bits, stretched

from aspen_mp.shm.tables import BINARY, UNARY
from aspen_mp.workers import _kernels

F32 = np.dtype("f4")
NO_ACT = [UNARY["IDENTITY"], 0.0, 0.0]
LEVELS = [np.dtype(t) for t in ("i1", "u1", "i2", "u2")]
EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 2.0**31, -(2.0**31), 127.5, 255.5, 8388609.0]


def reals(rng: np.random.Generator, shape: list[int]) -> np.ndarray:
    """Of every size, halves and edges among them."""
    v = rng.standard_normal(shape) * rng.choice([1.0, 100.0, 1e5], shape)
    v = np.where(rng.random(shape) < 0.3, rng.integers(-600, 600, shape) / 2, v)
    return np.asarray(np.where(rng.random(shape) < 0.1, rng.choice(EDGES, shape), v), F32)


def scales(rng: np.random.Generator, shape: list[int]) -> np.ndarray:
    v = rng.choice([0.5, 1.0, 2.0, 0.013, 3.7, 1e-30], shape)
    return np.asarray(np.where(rng.random(shape) < 0.1, rng.choice([0.0, -1.0, np.inf, np.nan, 1e-45], shape), v), F32)


def whole(rng: np.random.Generator, shape: list[int], dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    v = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    edge = rng.choice(np.array([info.min, info.max, 0, 1], dtype), shape)
    return np.asarray(np.where(rng.random(shape) < 0.3, edge, v), dtype)


def parameters(rng: np.random.Generator, shape: list[int], dtype: np.dtype, plain: bool) -> list[np.ndarray]:
    """Scale and zero point: of the whole, of some axes, of each element; the second not always there."""
    kind = rng.integers(3)
    outer = [1] * len(shape) if kind == 0 else stretched(rng, shape, 0.6) if kind == 1 else list(shape)
    found = [broadcast(rng, scales(rng, outer), shape, plain)]
    if rng.random() < 0.7:
        other = outer if rng.random() < 0.7 else stretched(rng, shape)
        found.append(broadcast(rng, whole(rng, other, dtype), shape, plain))
    return found


def quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, dtype: np.dtype, times: bool) -> np.ndarray:
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        x = x.astype(F32)
        v = np.rint(x * scale if times else x / scale)
        v = np.clip(v if zero is None else v + zero.astype(F32), F32.type(info.min), F32.type(info.max))
        return np.where(np.isnan(v), info.min, v).astype(dtype)  # as onnxruntime has it


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    dtype=st.sampled_from(LEVELS),
    plain=st.booleans(),
    integers=st.booleans(),
    times=st.booleans(),
)
def test_quantize(isa, seed, shape, dtype, plain, integers, times):
    rng = np.random.default_rng(seed)
    inner = stretched(rng, shape, 0.05)
    x = broadcast(rng, whole(rng, inner, np.dtype("i4")) if integers else reals(rng, inner), shape, plain)
    inputs = [x, *parameters(rng, shape, dtype, plain)]
    out = layout(rng, shape, dtype, plain)
    result = run("QUANTIZE", out, inputs, [int(times)], isa=isa)
    check_equal(result, quantized(x, inputs[1], inputs[2] if len(inputs) > 2 else None, dtype, times))
    check_tiles(rng, result, "QUANTIZE", out, inputs, [int(times)], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from([*LEVELS, np.dtype("i4")]), plain=st.booleans())
def test_dequantize(isa, seed, shape, dtype, plain):
    rng = np.random.default_rng(seed)
    x = broadcast(rng, whole(rng, stretched(rng, shape, 0.05), dtype), shape, plain)
    inputs = [x, *parameters(rng, shape, dtype, plain)]
    out = layout(rng, shape, F32, plain)
    result = run("DEQUANTIZE", out, inputs, [], isa=isa)
    with np.errstate(all="ignore"):
        zero = F32.type(0) if len(inputs) < 3 else inputs[2].astype(F32)
        check_equal(result, (x.astype(F32) - zero) * inputs[1])
    check_tiles(rng, result, "DEQUANTIZE", out, inputs, [], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    dtype=st.sampled_from(["i1", "u1"]),
    to=st.sampled_from(["i1", "u1", "f4"]),
    plain=st.booleans(),
)
def test_lookup(isa, seed, shape, dtype, to, plain):
    rng = np.random.default_rng(seed)
    x = broadcast(rng, whole(rng, stretched(rng, shape, 0.05), np.dtype(dtype)), shape, plain)
    table = reals(rng, [256]) if to == "f4" else whole(rng, [256], np.dtype(to))
    out = layout(rng, shape, np.dtype(to), plain)
    result = run("LOOKUP", out, [x, table], [], isa=isa)
    check_equal(result, table[x.astype(np.int64) - np.iinfo(x.dtype).min])
    check_tiles(rng, result, "LOOKUP", out, [x, table], [], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    dtypes=st.tuples(*[st.sampled_from(["i1", "u1"])] * 3),
    opcode=st.sampled_from(["ADD", "SUB", "MUL"]),
    act=st.sampled_from(sorted(ACTIVATIONS)),
    plain=st.booleans(),
)
def test_qbinary(isa, seed, shape, dtypes, opcode, act, plain):
    """What the kernels for its steps give, whatever scales there are."""
    rng = np.random.default_rng(seed)
    operands, values, params = [], [], [BINARY[opcode], *ACTIVATIONS[act]]
    for dtype in dtypes[:2]:
        x = broadcast(rng, whole(rng, stretched(rng, shape, 0.3), np.dtype(dtype)), shape, plain)
        info = np.iinfo(x.dtype)
        scale, zero = F32.type(rng.choice([1.0, 0.013, 3e-5, 700.0, 0.1])), int(rng.integers(info.min, info.max + 1))
        given = [x, np.broadcast_to(scale, shape), np.broadcast_to(np.array(zero, x.dtype), shape)]
        operands.append(x)
        values.append(run("DEQUANTIZE", np.empty(shape, F32), given, [], isa=isa))
        params += [float(scale), zero]
    y = run("BINARY", np.empty(shape, F32), values, params[:4], isa=isa)
    to = np.dtype(dtypes[2])
    out_scale, out_zero = (
        F32.type(rng.choice([1.0, 0.01, 0.37, 1e-38, 0.0, -2.0, 1e4])),
        int(rng.integers(np.iinfo(to).min, np.iinfo(to).max + 1)),
    )
    beside = [np.broadcast_to(out_scale, shape), np.broadcast_to(np.array(out_zero, to), shape)]
    wanted = run("QUANTIZE", np.empty(shape, to), [y, *beside], [0], isa=isa)
    params += [float(out_scale), out_zero]
    out = layout(rng, shape, to, plain)
    result = run("QBINARY", out, operands, params, isa=isa)
    check_equal(result, wanted)
    check_tiles(rng, result, "QBINARY", out, operands, params, isa)


def chain(isa: str, x: np.ndarray, scale: np.ndarray, zero: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The same by kernels of one operation each."""

    def call(kernel: str, to: np.dtype, inputs: list[np.ndarray], params: list[float]) -> np.ndarray:
        out = np.empty(x.shape, to)
        assert _kernels.call(kernel, [out, *inputs], params, [0] * x.ndim, x.shape, isa) == 0
        return out

    info = np.iinfo(dtype)
    v = call("UNARY", F32, [call("BINARY", F32, [x, scale], [BINARY["DIV"], *NO_ACT])], [UNARY["ROUND"], 0.0, 0.0])
    v = call("BINARY", F32, [v, call("CAST", F32, [zero], [1])], [BINARY["ADD"], *NO_ACT])
    return call("CAST", dtype, [call("UNARY", F32, [v], [UNARY["CLIP"], float(info.min), float(info.max)])], [1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", LEVELS, ids=str)
def test_as_the_chain_of_kernels(isa, dtype):
    """Every edge over every scale; but what is no number becomes the lowest level, where CAST makes it 0."""
    rng = np.random.default_rng(3)
    edges = np.array([*EDGES, *np.arange(-300, 300) / 4, *rng.standard_normal(2000) * 300], F32)
    x, scale = (v.copy() for v in np.broadcast_arrays(edges[None], np.array([0.0, 1.0, -2.0, 0.3, 1e-40, np.inf, np.nan], F32)[:, None]))
    zero = whole(rng, list(x.shape), dtype)
    result = run("QUANTIZE", np.empty(x.shape, dtype), [x, scale, zero], [0], isa=isa)
    with np.errstate(all="ignore"):
        none = np.isnan(x / scale)
    assert same_bits(result, np.where(none, np.iinfo(dtype).min, chain(isa, x, scale, zero, dtype)).astype(dtype))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES.filter(len), plain=st.booleans())
def test_extremes(isa, seed, shape, plain):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    blocks = int(rng.integers(1, shape[axis] + 4))  # with more than there are indices, some are empty
    v = rng.standard_normal(stretched(rng, shape, 0.05)) + rng.choice([-5.0, 0.0, 5.0])
    v = np.where(rng.random(v.shape) < rng.choice([0.0, 0.0, 0.02]), rng.choice([np.inf, -np.inf, np.nan, -0.0], v.shape), v)
    x = broadcast(rng, v.astype(F32), shape, plain)
    out = layout(rng, [blocks, 2], F32, plain)
    result = run("MINMAX", out, [x], [axis], isa=isa)
    cuts = [b * shape[axis] // blocks for b in range(blocks + 1)]
    for b in range(blocks):
        part = x.take(range(cuts[b], cuts[b + 1]), axis)
        want = np.array([part.min(initial=F32.type(0)), part.max(initial=F32.type(0))])
        np.testing.assert_array_equal(result[b], want)
    assert not np.signbit(result[result == 0]).any()
    check_tiles(rng, result, "MINMAX", out, [x], [axis], isa)


def levels(isa: str, extremes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale, zero = np.full((), 7, F32), np.full((), 7, np.uint8)
    assert _kernels.call("QPARAMS", [scale, zero, extremes], [], [], (), isa) == 0
    return scale, zero


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 40))
def test_levels(isa, seed, blocks):
    rng = np.random.default_rng(seed)
    width = rng.choice([1e-42, 1e-3, 1.0, 1e30])
    ends = np.sort(rng.standard_normal((blocks, 2)) * width, axis=1).astype(F32)
    scale, zero = levels(isa, filled(rng, ends))
    low, high = np.minimum(ends.min(), F32.type(0)), np.maximum(ends.max(), F32.type(0))
    with np.errstate(all="ignore"):
        want = (high - low) / F32.type(255)
        assert scale == want
        assert zero == np.rint(np.nan_to_num(np.clip(F32.type(0) - low / want, 0, 255), nan=255))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("ends", "scale", "zero"),
    [
        ([[0.0, 0.0]], 1.0, 0),
        ([[-0.0, 0.0], [0.0, -0.0]], 1.0, 0),
        ([[0.0, np.inf]], np.inf, 0),
        ([[-np.inf, 0.0]], np.inf, 255),
        ([[-3e38, 3e38]], np.inf, 0),
        ([[0.0, 1.0], [np.nan, np.nan], [-1.0, 0.0]], np.nan, 255),
        ([[0.0, 1e-45]], 0.0, 255),
    ],
)
def test_levels_of_odd_ranges(isa, ends, scale, zero):
    """As onnxruntime has them, and the definition where something is no number."""
    got = levels(isa, np.array(ends, F32))
    np.testing.assert_array_equal(got[0], F32.type(scale))
    assert got[1] == zero


@pytest.mark.parametrize("isa", ISAS)
def test_tiles_of_levels(isa):
    """Nothing else is written, whatever lies around."""
    rng = np.random.default_rng(5)
    ends = np.array([[-1.0, 2.0], [-3.0, 1.0]], F32)
    memory, bytes_ = np.full(9, 7, F32), np.full(9, 7, np.uint8)
    for lo, hi in boxes(rng, [1, 1], 1):
        assert _kernels.call("QPARAMS", [memory[4:5].reshape(1, 1), bytes_[4:5].reshape(1, 1), ends], [], lo, hi, isa) == 0
    assert memory.tolist() == [7, 7, 7, 7, F32.type(5) / F32.type(255), 7, 7, 7, 7]
    assert bytes_.tolist() == [7, 7, 7, 7, 153, 7, 7, 7, 7]


@pytest.mark.parametrize("isa", ISAS)
def test_refused(isa):
    """What no kernel serves is an error, never a wrong answer."""
    f, d, u, i, q = np.zeros(3, F32), np.zeros(3), np.zeros(3, np.uint8), np.zeros(3, np.int8), np.zeros(3, np.int32)
    pairs = np.zeros((3, 2), F32)
    for kernel, args, params in [
        ("QUANTIZE", [u, d, f], [0]),
        ("QUANTIZE", [u, f, d], [0]),
        ("QUANTIZE", [u, f, f, i], [0]),
        ("QUANTIZE", [q, f, f], [0]),
        ("QUANTIZE", [f, f, f], [0]),
        ("LOOKUP", [u, u, u[:255]], []),
        ("LOOKUP", [u, f, u], []),
        ("LOOKUP", [f, u, u], []),
        ("LOOKUP", [d, u, d], []),
        *(("QBINARY", args, [BINARY["ADD"], *ACTIVATIONS["IDENTITY"], *[1.0, 0] * 3]) for args in ([f, u, u], [u, f, u], [u, u, q])),
        ("QBINARY", [u, u, u], [BINARY["DIV"], *ACTIVATIONS["IDENTITY"], *[1.0, 0] * 3]),
        ("QBINARY", [u, u, u], [BINARY["ADD"], -1, 0.0, 0.0, *[1.0, 0] * 3]),
        ("DEQUANTIZE", [f, f, f], []),
        ("DEQUANTIZE", [d, u, f], []),
        ("DEQUANTIZE", [f, u, f, i], []),
        ("DEQUANTIZE", [f, u, d], []),
        ("MINMAX", [f, f], [0]),
        ("MINMAX", [pairs, d], [0]),
        ("MINMAX", [pairs, f], [1]),
        ("MINMAX", [pairs, f], [-1]),
        ("QPARAMS", [f, i, pairs], []),
        ("QPARAMS", [d, u, pairs], []),
        ("QPARAMS", [f, u, f], []),
    ]:
        assert _kernels.call(kernel, args, params, [0] * args[0].ndim, args[0].shape, isa) == 2, (kernel, [a.dtype for a in args])
