"""Operators of sliding windows over any number of axes, in numpy: maxima and their places, columns put back into an image. There are also
transposed, deformable and integer convolutions. ONNX's reference walks most of them element by element, and knows few options in more than
two axes.

Attributes are as ONNX has them: one entry an axis, `pads` those of all beginnings and then of all ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Extents = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A sliding window: its taps an axis, strides, dilations, and the pads at the beginning and at the end of each axis."""

    kernel: Extents
    strides: Extents
    dilations: Extents
    begin: Extents
    end: Extents

    @property
    def reach(self) -> Extents:
        """The distance from a window's first tap to one behind its last."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def taps(self) -> itertools.product[tuple[int, ...]]:
        return itertools.product(*map(range, self.kernel))


def window(spatial: Sequence[int], kernel: Sequence[int], a: dict[str, Any]) -> Window:
    """The window of a pooling or convolution over axes of these extents."""
    n = len(kernel)
    strides, dilations = tuple(a.get("strides") or [1] * n), tuple(a.get("dilations") or [1] * n)
    auto, pads = a.get("auto_pad") or "NOTSET", tuple(a.get("pads") or [0] * 2 * n)
    if auto == "VALID":
        pads = (0,) * 2 * n
    elif auto != "NOTSET":
        pairs = []
        for d, k, s, dilation in zip(spatial, kernel, strides, dilations, strict=True):
            total = max((-(-d // s) - 1) * s + (k - 1) * dilation + 1 - d, 0)
            pairs.append((total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2))
        pads = (*(p[0] for p in pairs), *(p[1] for p in pairs))
    return Window(tuple(kernel), strides, dilations, pads[:n], pads[n:])


def patches(x: Array, w: Window, fill: Any, out: Sequence[int] | None = None) -> Array:
    """x [..., D1 … Dn] as a view [..., O1 … On, K1 … Kn] of its windows, `fill` outside of it. `out`: how many windows, if not all that
    fit."""
    n = len(w.kernel)
    spatial = x.shape[x.ndim - n :]
    if out is None:
        padded = (d + b + e for d, b, e in zip(spatial, w.begin, w.end, strict=True))
        out = [(d - r) // s + 1 for d, r, s in zip(padded, w.reach, w.strides, strict=True)]
    needed = [(o - 1) * s + r for o, s, r in zip(out, w.strides, w.reach, strict=True)]
    wide = np.full((*x.shape[: x.ndim - n], *needed), fill, x.dtype)
    inner = [min(d, full - b) for d, full, b in zip(spatial, needed, w.begin, strict=True)]
    here = tuple(slice(b, b + d) for b, d in zip(w.begin, inner, strict=True))
    wide[_last(here)] = x[_last(slice(0, d) for d in inner)]
    views = np.lib.stride_tricks.sliding_window_view(wide, w.reach, tuple(range(x.ndim - n, x.ndim)))
    return np.asarray(views[_last(slice(None, None, step) for step in (*w.strides, *w.dilations))])


def unfolded(columns: Array, w: Window, extents: Sequence[int]) -> Array:
    """Columns [..., K1 … Kn, O1 … On] added up to an image [..., D1 … Dn]: the transposed of `patches`."""
    n = len(w.kernel)
    lead, steps = columns.shape[: columns.ndim - 2 * n], columns.shape[columns.ndim - n :]
    full = [max((o - 1) * s + r, b + d) for o, s, r, b, d in zip(steps, w.strides, w.reach, w.begin, extents, strict=True)]
    wide = np.zeros((*lead, *full), columns.dtype)
    for tap in w.taps():
        at = (slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, w.dilations, steps, w.strides, strict=True))
        wide[_last(at)] += columns[_last([*tap, *(slice(None),) * n])]
    return np.ascontiguousarray(wide[_last(slice(b, b + d) for b, d in zip(w.begin, extents, strict=True))])


def _last(places: Iterable[Any]) -> Any:
    """An index of an array's last axes."""
    return (..., *places)


def max_pool(x: Array, a: dict[str, Any]) -> tuple[Array, Array]:
    """The maxima of x [N, C, D1 … Dn], and the index of each in all of x (column by column with `storage_order` 1)."""
    spatial = x.shape[2:]
    w = window(spatial, a["kernel_shape"], a)
    auto = a.get("auto_pad") or "NOTSET"
    out = []
    for d, r, s, b, e in zip(spatial, w.reach, w.strides, w.begin, w.end, strict=True):
        if auto in {"SAME_UPPER", "SAME_LOWER"}:
            out.append(-(-d // s))
        else:
            whole, rest = divmod(d + b + e - r, s)
            more = 1 if a.get("ceil_mode") and rest and (whole + 1) * s < d + b else 0  # the last window has to start inside
            out.append(whole + 1 + more)
    lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
    count = len(spatial)
    flat = (*x.shape[:2], *out, prod(w.kernel))
    values = patches(x, w, lowest, out).reshape(flat)
    best = values.max(-1)
    inside = patches(np.ones(spatial, bool), w, False, out).reshape(flat[2:])
    where = ((values == best[..., None]) & inside).argmax(-1)
    strides = [prod(spatial[k + 1 :]) for k in range(count)]
    if a.get("storage_order"):
        strides = [prod(spatial[:k]) for k in range(count)]
    index = np.arange(prod(x.shape[:2]), dtype=np.int64).reshape(*x.shape[:2], *(1,) * count) * prod(spatial)
    for axis, tap in enumerate(np.unravel_index(where, w.kernel)):
        first = np.arange(out[axis]).reshape(-1, *(1,) * (count - 1 - axis)) * w.strides[axis] - w.begin[axis]
        index = index + (first + tap * w.dilations[axis]) * strides[axis]
    return best, index


def conv_transpose(x: Array, weights: Array, bias: Array | None, a: dict[str, Any]) -> Array:
    """x [N, C, D1 … Dn] with weights [C, M / groups, K1 … Kn]."""
    n, groups = x.ndim - 2, int(a.get("group") or 1)
    spatial, kernel = x.shape[2:], weights.shape[2:]
    w = window(spatial, kernel, {**a, "auto_pad": "NOTSET"})
    extra, auto = a.get("output_padding") or [0] * n, a.get("auto_pad") or "NOTSET"
    full = [(d - 1) * s + r + e for d, s, r, e in zip(spatial, w.strides, w.reach, extra, strict=True)]
    wanted = a.get("output_shape")
    if auto in {"SAME_UPPER", "SAME_LOWER"} and not wanted:
        wanted = [d * s for d, s in zip(spatial, w.strides, strict=True)]
    if wanted:
        extents = list(wanted)[-n:]
        total = [f - d for f, d in zip(full, extents, strict=True)]
        begin = tuple(t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total)
    else:
        begin = (0,) * n if auto == "VALID" else w.begin
        extents = [f - b - e for f, b, e in zip(full, begin, w.end if auto == "NOTSET" else begin, strict=True)]
    lead = [max(-b, 0) for b in begin]  # pads below zero: zeros before the image
    w = Window(w.kernel, w.strides, w.dilations, tuple(max(b, 0) for b in begin), w.end)
    rows = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)
    matrix = weights.reshape(groups, x.shape[1] // groups, -1).swapaxes(1, 2)
    columns = (matrix @ rows).reshape(x.shape[0], groups * weights.shape[1], *kernel, *spatial)
    out = unfolded(columns, w, [d - k for d, k in zip(extents, lead, strict=True)])
    if any(lead):
        out = np.pad(out, [(0, 0), (0, 0), *((k, 0) for k in lead)])
    return out if bias is None else out + bias.reshape(-1, *(1,) * n)


def col2im(x: Array, image: Sequence[int], block: Sequence[int], a: dict[str, Any]) -> Array:
    """x [N, C · blocks, L], an image [N, C, D1 … Dn]."""
    w = window(image, block, a)
    padded = (d + b + e for d, b, e in zip(image, w.begin, w.end, strict=True))
    steps = [(d - r) // s + 1 for d, r, s in zip(padded, w.reach, w.strides, strict=True)]
    return unfolded(x.reshape(x.shape[0], -1, *w.kernel, *steps), w, image)


def deform_conv(x: Array, weights: Array, offset: Array, bias: Array | None, mask: Array | None, a: dict[str, Any]) -> Array:
    """x [N, C, D1 … Dn]; offset [N, n · groups of offsets · taps, O1 … On], mask without the n."""
    n, taps = x.ndim - 2, prod(weights.shape[2:])
    w = window(x.shape[2:], weights.shape[2:], a)
    groups, parts = int(a.get("group") or 1), int(a.get("offset_group") or 1)
    batch, out = x.shape[0], offset.shape[2:]
    moved = offset.reshape(batch, parts, taps, n, *out)
    flat = x.reshape(batch, parts, x.shape[1] // parts, -1)
    columns = np.zeros((batch, parts, x.shape[1] // parts, taps, prod(out)), x.dtype)
    for k, tap in enumerate(w.taps()):
        axes = []
        for axis in range(n):
            first = np.arange(out[axis]).reshape(-1, *(1,) * (n - 1 - axis)) * w.strides[axis] - w.begin[axis]
            at = first + tap[axis] * w.dilations[axis] + moved[:, :, k, axis]
            low = np.floor(np.nan_to_num(np.clip(at, -2, x.shape[2 + axis] + 1), nan=-2))
            part = np.where((at >= -2) & (at <= x.shape[2 + axis] + 1), at - low, 0)
            axes.append([(low.astype(np.int64), 1 - part), (low.astype(np.int64) + 1, part)])
        for corner in itertools.product(*axes):
            index: Array = np.zeros(moved.shape[:2] + out, np.int64)
            weight: Array = np.ones(moved.shape[:2] + out, x.dtype)
            for (at, part), extent in zip(corner, x.shape[2:], strict=True):
                inside = (at >= 0) & (at < extent)
                index = index * extent + np.where(inside, at, 0)
                weight = weight * np.where(inside, part, 0).astype(x.dtype)
            for image in np.ndindex(batch, parts):
                columns[image][:, k] += np.take(flat[image], index[image].reshape(-1), 1) * weight[image].reshape(-1)
    if mask is not None:
        columns *= mask.reshape(batch, parts, 1, taps, -1)
    matrix = weights.reshape(groups, weights.shape[0] // groups, -1)
    result = (matrix @ columns.reshape(batch, groups, -1, prod(out))).reshape(batch, weights.shape[0], *out)
    return result if bias is None else result + bias.reshape(-1, *(1,) * n)


def integer_convolution(x: Array, weights: Array, x_zero: Any, w_zero: Any, a: dict[str, Any]) -> Array:
    """The convolution of x - x_zero and weights - w_zero (of all, or one for each of the M outputs) in int32."""
    n, groups = x.ndim - 2, int(a.get("group") or 1)
    w = window(x.shape[2:], weights.shape[2:], a)
    # Doubles hold such sums exactly, and products of theirs are BLAS's.
    wide = x.astype(np.float64) - (0 if x_zero is None else np.asarray(x_zero, np.float64).reshape(()))
    narrow = weights.astype(np.float64)
    if w_zero is not None:
        narrow = narrow - np.asarray(w_zero, np.float64).reshape(-1, *(1,) * (n + 1))
    seen = patches(wide, w, 0)  # N, C, out, taps
    out = seen.shape[2 : 2 + n]
    seen = np.moveaxis(seen.reshape(x.shape[0], groups, x.shape[1] // groups, prod(out), -1), 4, 3)
    columns = seen.reshape(x.shape[0], groups, -1, prod(out))
    products = narrow.reshape(groups, weights.shape[0] // groups, -1) @ columns
    return products.reshape(x.shape[0], weights.shape[0], *out).astype(np.int32)
