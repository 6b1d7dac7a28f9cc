"""What kernel tests share: arrays with odd strides, tilings, and calls that check that nothing outside the box was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _kernels

ISAS = _kernels.isas()
SENTINEL = {"f": -7.125e33, "i": 77, "u": 77, "b": True}
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
) -> Array:
    """Run a kernel over tiles (default: one whole tile), check that it wrote nothing else, and return a copy of the output."""
    memory = base(out)
    sentinel = np.array(SENTINEL[out.dtype.kind]).astype(out.dtype)
    memory[:] = sentinel
    before = [None if a is None else a.tobytes() for a in inputs]
    for lo, hi in tiles or [([0] * out.ndim, out.shape)]:
        assert _kernels.call(kernel, [out, *inputs], params, lo, hi, isa) == 0
    result = out.copy()
    out[...] = sentinel
    assert (memory == sentinel).all(), "the kernel wrote outside its output"
    assert [None if a is None else a.tobytes() for a in inputs] == before, "the kernel wrote to an input"
    return result


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


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
