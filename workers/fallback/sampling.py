"""GridSample and STFT in numpy. ONNX's reference computes the first one element after the other and knows the mode names of opset 20 alone.
It bounds coordinates where pixels are to be bounded (cubic). Its second takes no signals without an axis of real parts, which exporters
write.

Where ONNX leaves something open, this follows PyTorch and onnxruntime. `cubic` leaves coordinates as they are and bounds each pixel it
reads; the other modes bound coordinates. `nearest` rounds halves to even.
"""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}
"""Modes of GridSample, as they are spelled up to opset 19 and from 20 on → what they mean."""

_CUBIC = -0.75
_FAR = 1 << 30  # beyond any axis; NaN lies there too


def grid_sample(x: Array, grid: Array, mode: str, padding: str, align_corners: bool) -> Array:
    """x [N, C, D1 … Dn] at the points of grid [N, O1 … On, n], whose last axis counts the axes of x from the last one on."""
    extents, count = x.shape[2:], prod(grid.shape[1:-1])
    out = np.zeros((*x.shape[:2], count), np.result_type(x.dtype, np.float32) if x.dtype.kind == "f" else x.dtype)
    if out.size and x.size:
        points = grid.reshape(grid.shape[0], count, -1).astype(np.result_type(grid.dtype, np.float32))
        axes = [_taps(points[..., -1 - k], extent, MODES[mode], padding, align_corners) for k, extent in enumerate(extents)]
        flat = x.reshape(*x.shape[:2], -1).astype(out.dtype, copy=False)
        for taps in itertools.product(*axes):
            index = np.zeros(points.shape[:2], np.int64)
            weight: Any = np.ones(points.shape[:2], out.dtype)
            for (at, part), extent in zip(taps, extents, strict=True):
                index = index * extent + at
                weight = weight * part
            for k in range(len(flat)):
                out[k] += np.take(flat[k], index[k], 1) * weight[k].astype(out.dtype)
    return out.reshape(*x.shape[:2], *grid.shape[1:-1]).astype(x.dtype)


def _taps(points: Array, extent: int, mode: str, padding: str, align_corners: bool) -> list[tuple[Array, Array]]:
    """Pixels of one axis that each point reads, and their weights."""
    at = (points + 1) / 2 * (extent - 1) if align_corners else ((points + 1) * extent - 1) / 2
    at = np.nan_to_num(np.clip(at, -_FAR, _FAR), nan=-_FAR)
    if mode == "cubic":
        first = np.floor(at)
        part = at - first
        taps = [(first + k - 1, weight) for k, weight in enumerate(_cubic_weights(part))]
        return [_pixel(_bounded(pixel, extent, padding, align_corners), weight, extent) for pixel, weight in taps]
    if mode == "nearest":
        at = np.rint(at)
    at = _bounded(at, extent, padding, align_corners)
    if mode == "nearest":
        return [_pixel(np.rint(at), np.ones_like(at), extent)]
    first = np.floor(at)
    return [_pixel(first, 1 - (at - first), extent), _pixel(first + 1, at - first, extent)]


def _cubic_weights(part: Array) -> list[Array]:
    """The weights of the four pixels around a point that lies `part` behind the second."""

    def near(d: Array) -> Array:
        return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


def _bounded(at: Array, extent: int, padding: str, align_corners: bool) -> Array:
    if padding == "border":
        return np.clip(at, 0, extent - 1)
    if padding != "reflection":
        return at
    low, high = (0.0, extent - 1.0) if align_corners else (-0.5, extent - 0.5)
    if high <= low:
        return np.zeros_like(at)
    turns, rest = np.divmod(np.abs(at - low), high - low)
    return np.clip(np.where(turns % 2 == 0, rest + low, high - rest), 0, extent - 1)


def _pixel(at: Array, weight: Array, extent: int) -> tuple[Array, Array]:
    """Index and weight; pixels outside are zeros."""
    inside = (at >= 0) & (at < extent)
    return np.where(inside, at, 0).astype(np.int64), np.where(inside, weight, 0)


def stft(signal: Array, step: int, window: Array | None, length: int | None, onesided: bool) -> Array:
    """Spectra [batch, frames, bins, 2] of a signal [batch, length], [batch, length, 1], or complex [batch, length, 2]."""
    if signal.ndim == 3:
        signal = signal[..., 0] + 1j * signal[..., 1] if signal.shape[2] == 2 else signal[..., 0]
    size = int(length if length is not None else window.shape[0] if window is not None else signal.shape[1])
    frames = np.lib.stride_tricks.sliding_window_view(signal, size, 1)[:, :: int(step)]
    if window is not None:
        frames = frames * window
    if np.iscomplexobj(frames):
        if onesided:
            raise ValueError("a complex signal has no onesided spectrum")
        spectra = np.fft.fft(frames)
    else:
        spectra = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    return np.stack([spectra.real, spectra.imag], -1)
