"""What kernel tests share: arrays with odd strides, tilings, and calls that check that nothing outside the box was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _kernels

ISAS = _kernels.isas()
IMAGE = (1, 1, 1, 0)
"""The depth of a convolution's window (kernel, stride, dilation, pad) over images."""
SENTINEL = {"f": -7.125e33, "i": 77, "u": 77, "b": True, "c": -7.125e33, "V": -7.125e33}  # "V": bfloat16
Array = np.ndarray[Any, np.dtype[Any]]


def layout(rng: np.random.Generator, shape: Sequence[int], dtype: Any = np.float32, plain: bool = False) -> Array:
    """An uninitialised view of the given shape: axes in any memory order, some reversed, stepped or padded, at any element offset."""
    rank = len(shape)
    if plain:
        return np.empty(shape, dtype)
    order = rng.permutation(rank)
    steps = rng.choice([1, 1, 1, 2], rank)
    pads = rng.integers(0, 3, rank)
    if rng.random() < 0.5 and rank:
        steps[order[-1]] = 1
    outer = [int(shape[i] * steps[i] + pads[i]) for i in order]
    offset = int(rng.integers(0, 5))
    memory = np.empty(int(np.prod(outer, dtype=np.int64)) + offset, dtype)[offset:].reshape(outer)
    view = memory.transpose(np.argsort(order)) if rank else memory
    for i in range(rank):
        start = int(rng.integers(0, pads[i] + 1))
        view = view[(slice(None),) * i + (slice(start, start + shape[i] * int(steps[i]), int(steps[i])),)]
        if rng.random() < 0.2:
            view = view[(slice(None),) * i + (slice(None, None, -1),)]
    assert view.shape == tuple(shape)
    return view


def filled(rng: np.random.Generator, values: Array, plain: bool = False) -> Array:
    """The same values in a random layout."""
    view = layout(rng, values.shape, values.dtype, plain)
    view[...] = values
    return view


def broadcast(rng: np.random.Generator, values: Array, shape: Sequence[int], plain: bool = False) -> Array:
    """values (with axes of length 1) in a random layout, stretched to `shape` by stride 0."""
    return np.broadcast_to(filled(rng, values, plain), tuple(shape))


def boxes(rng: np.random.Generator, shape: Sequence[int], pieces: int) -> list[tuple[list[int], list[int]]]:
    """A random tiling of the whole: about `pieces` boxes from cuts anywhere, in random order."""
    todo = [([0] * len(shape), list(shape))]
    for _ in range(pieces - 1):
        lo, hi = todo.pop(int(rng.integers(len(todo))))
        axes = [i for i in range(len(shape)) if hi[i] - lo[i] > 1]
        if not axes:
            todo.append((lo, hi))
            continue
        axis = int(rng.choice(axes))
        cut = int(rng.integers(lo[axis] + 1, hi[axis]))
        todo += [(lo, [*hi[:axis], cut, *hi[axis + 1 :]]), ([*lo[:axis], cut, *lo[axis + 1 :]], hi)]
    return [todo[i] for i in rng.permutation(len(todo))]


def base(array: Array) -> Array:
    """The memory that a view lies in, flat."""
    memory = array
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    return memory.reshape(-1)


def run(
    kernel: str,
    out: Array,
    inputs: Sequence[Array | None],
    params: Sequence[int | float],
    tiles: Sequence[tuple[Sequence[int], Sequence[int]]] | None = None,
    isa: str | None = None,
    apart: bool = False,
) -> Array:
    """Run a kernel over tiles (default: one whole tile), check that it wrote nothing else, and return a copy of the output. apart: as on
    cores that share no cache."""
    memory = base(out)
    with np.errstate(over="ignore"):  # float16: minus infinity
        sentinel = np.array(SENTINEL[out.dtype.kind]).astype(out.dtype)
    memory[:] = sentinel
    before = [None if a is None else a.tobytes() for a in inputs]
    for lo, hi in tiles or [([0] * out.ndim, out.shape)]:
        assert _kernels.call(kernel, [out, *inputs], params, lo, hi, isa, apart=apart) == 0
    result = out.copy()
    out[...] = sentinel
    assert (memory == sentinel).all(), "the kernel wrote outside its output"
    assert [None if a is None else a.tobytes() for a in inputs] == before, "the kernel wrote to an input"
    return result


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


SHAPES = st.one_of(
    st.lists(st.integers(1, 7), max_size=5),
    st.lists(st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 33])), min_size=1, max_size=3),
    st.tuples(st.integers(1, 3), st.sampled_from([63, 64, 65, 130, 511, 512, 513, 1100])).map(list),
)


def stretched(rng: np.random.Generator, shape: Sequence[int], p: float = 0.3) -> list[int]:
    """A shape that broadcasts to the given one."""
    return [1 if rng.random() < p else int(n) for n in shape]


def check_tiles(
    rng: np.random.Generator,
    whole: Array,
    kernel: str,
    out: Array,
    inputs: Sequence[Array | None],
    params: Sequence[int | float],
    isa: str | None,
) -> None:
    """The same bits come out of a random tiling."""
    tiles = boxes(rng, whole.shape, int(rng.integers(2, 8)))
    assert same_bits(whole, run(kernel, out, inputs, params, tiles, isa)), f"tiles {tiles}"


def check_equal(result: Array, wanted: Array) -> None:
    """Equal values (zeros of either sign are equal), NaN where the other has NaN, and the same dtype."""
    assert result.dtype == wanted.dtype
    if result.dtype.kind == "V":  # bfloat16, of which numpy does not know that it has NaNs
        result, wanted = result.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(result, wanted)


def check_ulps(result: Array, wanted: Array, ulps: float, absolute: float = 0.0) -> None:
    """`result` (floating) is within `ulps` units in the last place of the float64 `wanted`; NaN and infinity where it has them."""
    dtype = result.dtype
    with np.errstate(over="ignore"):
        rounded = wanted.astype(dtype)
    finite = np.isfinite(rounded)
    r64 = result.astype(np.float64)
    same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(r64 - wanted)
        spacing = np.spacing(np.abs(np.where(finite, rounded, 1)).astype(dtype)).astype(np.float64)
    bad = ~same & ~(finite & (error <= ulps * spacing + absolute))
    # One step below overflow counts as close to infinity.
    near = np.isinf(rounded) & (np.abs(r64) >= np.finfo(dtype).max * (1 - ulps * np.finfo(dtype).eps)) & (np.sign(r64) == np.sign(rounded))
    bad &= ~near
    assert not bad.any(), f"{result[bad][:5]} instead of {wanted[bad][:5]}: {(error / spacing)[bad][:5]} ulp"


def pack_panels(w: Array) -> Array:
    """[K, N] → [ceil(N / 32), K, 32], zero-padded."""
    k, n = w.shape
    panels = np.zeros((-(-n // 32), k, 32), np.float32)
    for p in range(panels.shape[0]):
        panels[p, :, : min(32, n - 32 * p)] = w[:, 32 * p : 32 * p + 32]
    return panels


def _erf(x: Array) -> Array:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x)


def activations() -> Iterator[tuple[str, tuple[int, float, float]]]:
    """Names and ACT parameters of activations that epilogues meet."""
    for name, a, b in [
        ("IDENTITY", 0.0, 0.0),
        ("RELU", 0.0, 0.0),
        ("CLIP", -0.5, 1.5),
        ("LEAKY_RELU", 0.1, 0.0),
        ("SIGMOID", 0.0, 0.0),
        ("TANH", 0.0, 0.0),
        ("GELU_ERF", 0.0, 0.0),
        ("GELU_TANH", 0.0, 0.0),
        ("SWISH", 1.0, 0.0),
        ("HARD_SIGMOID", 0.2, 0.5),
        ("HARD_SWISH", 0.0, 0.0),
    ]:
        yield name, (UNARY[name], a, b)


ACTIVATIONS = dict(activations())


def epilogue(
    wanted: Array,
    magnitude: Array,
    activation: str,
    bias: Array | None,
    residual: Array | None,
    scale: Array | None,
    shift: Array | None,
    residual_last: int,
) -> tuple[Array, Array]:
    """act(wanted + bias + residual) * scale + shift in float64, the residual last if so wanted (2: as a factor), and the magnitude that
    errors scale with. Operands broadcast to `wanted`."""
    for extra in (bias, None if residual_last else residual):
        if extra is not None:
            wanted, magnitude = wanted + extra, magnitude + np.abs(extra)
    wanted = activate(activation, wanted, *ACTIVATIONS[activation][1:])
    magnitude = magnitude + np.abs(wanted)
    if scale is not None and shift is not None:
        wanted, magnitude = wanted * scale + shift, magnitude * np.abs(scale) + np.abs(shift)
    if residual_last == 2 and residual is not None:
        wanted, magnitude = wanted * residual, magnitude * np.abs(residual)
    elif residual_last and residual is not None:
        wanted, magnitude = wanted + residual, magnitude + np.abs(residual)
    return wanted, magnitude


def activate(name: str, x: Array, a: float, b: float) -> Array:
    """The activation in float64."""
    match name:
        case "IDENTITY":
            return x
        case "RELU":
            return np.maximum(x, 0)
        case "CLIP":
            return np.clip(x, a, b)
        case "LEAKY_RELU":
            return np.where(x < 0, a * x, x)
        case "SIGMOID":
            return 1 / (1 + np.exp(-x))
        case "TANH":
            return np.tanh(x)
        case "GELU_ERF":
            return 0.5 * x * (1 + _erf(x / np.sqrt(2)))
        case "GELU_TANH":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        case "SWISH":
            return x / (1 + np.exp(-a * x))
        case "HARD_SIGMOID":
            return np.clip(a * x + b, 0, 1)
        case "HARD_SWISH":
            return x * np.clip(x / 6 + 0.5, 0, 1)
    raise AssertionError(name)
