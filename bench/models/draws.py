"""Random inputs that look like real ones: normalised images with smooth content, token ids within the vocabulary, padded masks,
segments."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from .net import BATCH, PAST, SEQ, TOTAL, Array, signature

MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet's channels, pixels in [0, 1]
STD = np.array([0.229, 0.224, 0.225], np.float32)


def draw(proto: onnx.ModelProto, *, seed: int = 0, batch: int = 1, seq: int = 128, past: int = 0) -> dict[str, Array]:
    """Arrays for every input of a model of the zoo; `batch`, `seq` and `past` fill symbolic dimensions."""
    notes = {prop.key: prop.value for prop in proto.metadata_props}
    sizes = {BATCH: batch, SEQ: seq, PAST: past, TOTAL: past + seq}
    rng = np.random.default_rng([seed, 1])
    feeds: dict[str, Array] = {}
    for value in proto.graph.input:
        name, dims, dtype = signature(value)
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in dims)
        kind = notes.get(f"input.{name}.kind", "normal")
        high = int(notes.get(f"input.{name}.high", "2"))
        feeds[name] = _draw(rng, kind, shape, high).astype(dtype)
    return feeds


def _draw(rng: np.random.Generator, kind: str, shape: tuple[int, ...], high: int) -> Array:
    if kind in ("image", "pixels"):
        pixels = images(rng, shape)
        if kind == "image" and shape[1] == MEAN.size:
            return (pixels - MEAN[:, None, None]) / STD[:, None, None]
        return pixels if kind == "pixels" else (pixels - 0.5) / 0.25
    if kind == "tokens":
        return rng.integers(0, high, shape)
    lengths = np.maximum(1, shape[1] - (np.arange(shape[0]) + 1) * shape[1] // (shape[0] + 4)) if len(shape) == 2 else None
    if kind == "mask" and lengths is not None:  # every row padded differently
        return (np.arange(shape[1]) < lengths[:, None]).astype(np.int64)
    if kind == "left_mask" and lengths is not None:  # as for decoding: the last token of every row is there
        return (np.arange(shape[1])[::-1] < lengths[:, None]).astype(np.int64)
    if kind == "segments" and lengths is not None:  # two segments, the second starts in the middle
        return (np.arange(shape[1]) >= lengths[:, None] // 2).astype(np.int64)
    return rng.standard_normal(shape, np.float32)


def images(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Smooth random pictures with some grain, values in [0, 1]: [batch, channels, height, width]."""
    batch, channels, height, width = shape
    coarse = rng.random((batch, channels, 9, 9), np.float32)
    smooth = _stretch(_stretch(coarse, 2, height), 3, width)
    grain = rng.random(shape, np.float32)
    return (0.8 * smooth + 0.2 * grain).astype(np.float32)


def _stretch(x: NDArray[np.float32], axis: int, size: int) -> NDArray[np.float32]:
    """Linear interpolation along one axis to `size` points."""
    places = np.linspace(0, x.shape[axis] - 1, size, dtype=np.float32)
    low = np.minimum(places.astype(np.int64), x.shape[axis] - 2)
    share = (places - low).astype(np.float32).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    return np.asarray(np.take(x, low, axis) * (1 - share) + np.take(x, low + 1, axis) * share, np.float32)
