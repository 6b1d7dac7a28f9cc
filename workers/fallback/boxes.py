"""Operators of object detectors, in numpy: the best of overlapping boxes, and what lies inside boxes. ONNX's reference compares boxes one
by one in Python, and misses some of the inputs that may be left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.workers.fallback import _boxes

Array = npt.NDArray[Any]


def non_max_suppression(boxes: Array, scores: Array, most: int, overlap: float, least: float | None, centred: bool) -> Array:
    """[found, 3] of batch, class and box for boxes [batches, n, 4] and scores [batches, classes, n]; best first within a class."""
    corners = np.ascontiguousarray(_corners(boxes, centred), np.float32)
    areas = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    found = [np.empty((0, 3), np.int64)]
    if most > 0:
        for batch, kind in np.ndindex(scores.shape[:2]):
            kept = _best(corners[batch], areas[batch], scores[batch, kind], most, np.float32(overlap), least)
            found.append(np.stack([np.full(len(kept), batch), np.full(len(kept), kind), kept], 1))
    return np.concatenate(found)


def _corners(boxes: Array, centred: bool) -> Array:
    """Least and greatest coordinates, both axes of each before the other's."""
    if centred:
        half = boxes[..., 2:] / 2
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)
    return np.concatenate([np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], -1)


def _best(corners: Array, areas: Array, scores: Array, most: int, overlap: Any, least: float | None) -> Array:
    """Boxes in order of their scores, each kept unless it overlaps one that is kept already."""
    left = np.arange(len(scores)) if least is None else np.flatnonzero(scores > np.float32(least))
    left = left[np.argsort(-scores[left], kind="stable")]
    if overlap < 0:  # so do all
        return left[: min(most, 1)]
    return left[_boxes.best(corners[left], areas[left], overlap, most)]


def roi_align(x: Array, rois: Array, batches: Array, a: dict[str, Any], half_pixel: bool) -> Array:
    """[rois, C, height, width] of x [N, C, H, W]: average or maximum of points in each cell, each between four pixels."""
    rows, columns = int(a.get("output_height") or 1), int(a.get("output_width") or 1)
    scale, ratio = float(1.0 if a.get("spatial_scale") is None else a["spatial_scale"]), int(a.get("sampling_ratio") or 0)
    largest = (a.get("mode") or "avg") == "max"
    out = np.zeros((len(rois), x.shape[1], rows, columns), x.dtype)
    shift = x.dtype.type(0.5 if half_pixel else 0.0)
    for k, (roi, batch) in enumerate(zip(rois * x.dtype.type(scale) - shift, batches, strict=True)):
        starts, sizes = roi[[1, 0]], roi[[3, 2]] - roi[[1, 0]]
        if not half_pixel:
            sizes = np.maximum(sizes, x.dtype.type(1))
        image = x[int(batch)]
        axes = []
        for start, size, cells, extent in zip(starts, sizes, (rows, columns), image.shape[1:], strict=True):
            points = ratio if ratio > 0 else int(np.ceil(size / cells))
            axes.append(_points(start, size / cells, cells, points, extent))
        if not largest:
            (pixels, down), (others, across) = (_averages(axis, cells) for axis, cells in zip(axes, (rows, columns), strict=True))
            seen = image[:, pixels[:, None], others]
            out[k] = down @ (seen.reshape(-1, len(others)) @ across.T).reshape(*seen.shape[:2], columns)
            continue
        (low, high, near, far), (left, right, at, beyond) = axes
        if near.size == 0 or at.size == 0:
            continue
        corners = [
            image[:, top][:, :, side] * (weight[:, None] * portion).reshape(1, len(top), len(side))
            for top, weight in ((low, far), (high, near))
            for side, portion in ((left, beyond), (right, at))
        ]
        points_of = (x.shape[1], rows, len(low) // rows, columns, len(left) // columns)
        out[k] = np.maximum.reduce(corners).reshape(points_of).max((2, 4))
    return out


def _averages(axis: tuple[Array, Array, Array, Array], cells: int) -> tuple[Array, Array]:
    """Pixels of an axis that its points read, and their weights [cells, pixels] in the average of each cell's points."""
    low, high, near, far = axis
    pixels = np.unique(np.concatenate([low, high]))
    weights = np.zeros((cells, len(pixels)), near.dtype)
    points = len(low) // cells
    cell = np.repeat(np.arange(cells), points)
    for at, part in ((low, far), (high, near)):
        np.add.at(weights, (cell, np.searchsorted(pixels, at)), part / near.dtype.type(max(points, 1)))
    return pixels, weights


def _points(start: Any, size: Any, cells: int, points: int, extent: int) -> tuple[Array, Array, Array, Array]:
    """For the points of all cells of an axis: pixels before and behind, and the weights of the latter and of the former."""
    kind = np.asarray(start).dtype
    at = start + (np.arange(cells)[:, None] * size + (np.arange(points) + 0.5).astype(kind) * size / max(points, 1)).reshape(-1)
    outside = (at < -1) | (at > extent)
    at = np.maximum(at, 0)
    low = np.minimum(at.astype(np.int64), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    part = np.where(low >= extent - 1, 0, at - low).astype(kind)
    return low, high, np.where(outside, 0, part).astype(kind), np.where(outside, 0, 1 - part).astype(kind)


def max_roi_pool(x: Array, rois: Array, shape: tuple[int, int], scale: float) -> Array:
    """[rois, C, height, width]: the maxima of cells of rois [rois, 5] (batch, left, top, right, bottom), 0 where a cell has no pixel."""
    out = np.zeros((len(rois), x.shape[1], *shape), x.dtype)
    for k, roi in enumerate(rois):
        image = x[int(roi[0])]
        edges = np.floor(np.abs(roi[1:] * np.float32(scale)) + 0.5) * np.sign(roi[1:])
        axes = []
        for first, last, cells, extent in zip(edges[[1, 0]], edges[[3, 2]], shape, image.shape[1:], strict=True):
            size = np.float32(max(last - first + 1, 1)) / np.float32(cells)
            count = np.arange(cells, dtype=np.float32)
            low = np.clip(np.floor(count * size) + first, 0, extent).astype(int)
            high = np.clip(np.ceil((count + 1) * size) + first, 0, extent).astype(int)
            axes.append(list(zip(low, high, strict=True)))
        for i, (top, bottom) in enumerate(axes[0]):
            for j, (left, right) in enumerate(axes[1]):
                if top < bottom and left < right:
                    out[k, :, i, j] = image[:, top:bottom, left:right].max((1, 2))
    return out
