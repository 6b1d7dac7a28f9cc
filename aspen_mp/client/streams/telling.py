"""Masks for `ModelStream.run` that say what changed in a picture: from blocks, from a tolerance, from motion vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.shm.errors import RequestError

Mask = npt.NDArray[np.bool_]
_PICTURE_AXES = 2


def mask_of_blocks(blocks: npt.ArrayLike, block: int, shape: tuple[int, int]) -> Mask:
    """Return the pixels of blocks that have changed.

    Args:
        blocks: Booleans or numbers [rows, columns], not zero for a block that has changed.
        block: Pixels of a side of a block.
        shape: Height and width of the picture. Blocks at its lower and right edges may reach beyond it.

    Returns:
        Booleans of shape `shape`.

    Raises:
        RequestError: The blocks do not cover the picture.
    """
    marks = np.asarray(blocks) != 0
    if block < 1 or marks.ndim != _PICTURE_AXES or any(n != -(-length // block) for n, length in zip(marks.shape, shape, strict=True)):
        raise RequestError(f"blocks of shape {marks.shape} and {block} pixels do not cover a picture of shape {tuple(shape)}")
    return np.asarray(marks.repeat(block, 0).repeat(block, 1)[: shape[0], : shape[1]], bool)


def changed_pixels(previous: npt.ArrayLike, frame: npt.ArrayLike, tol: float = 0.0) -> Mask:
    """Return the pixels of which any channel of any image differs by more than `tol`.

    Compare with the frame in which a pixel last counted as changed, or small changes add up unseen.

    Args:
        previous: The frame before [..., height, width].
        frame: This frame, of the same shape.
        tol: The largest difference that counts as none. A number that is not a number always differs.

    Returns:
        Booleans [height, width].

    Raises:
        RequestError: The shapes differ, or have fewer than two axes.
    """
    a, b = np.asarray(previous), np.asarray(frame)
    if a.shape != b.shape or a.ndim < _PICTURE_AXES:
        raise RequestError(f"frames of shapes {a.shape} and {b.shape} cannot be compared")
    kind = np.result_type(a, b, np.float32)
    with np.errstate(invalid="ignore"):
        close = (a == b) | (np.abs(a.astype(kind) - b.astype(kind)) <= tol)
    return np.asarray(~close.all(axis=tuple(range(a.ndim - _PICTURE_AXES))))


def from_motion_vectors(side_data: Any, shape: tuple[int, int]) -> Mask:
    """Return the pixels of blocks that a decoder says have moved.

    A decoder says nothing here of blocks whose colours change in place, nor of blocks that it codes anew. Use it where these do not matter.

    Args:
        side_data: Motion vectors as PyAV gives them: a structured array, or vectors with attributes `w`, `h`, `dst_x`, `dst_y`, `motion_x`
            and `motion_y`. `dst_x`, `dst_y` are the middle of a block in this frame, in pixels.
        shape: Height and width of the picture.

    Returns:
        Booleans of shape `shape`.
    """
    mask = np.zeros(shape, bool)
    for vector in side_data:
        w, h, x, y, right, down = (int(_field(vector, name)) for name in ("w", "h", "dst_x", "dst_y", "motion_x", "motion_y"))
        if right or down:
            top, left = y - h // 2, x - w // 2
            mask[max(0, top) : max(0, top + h), max(0, left) : max(0, left + w)] = True
    return mask


def _field(vector: Any, name: str) -> Any:
    return vector[name] if isinstance(vector, (np.void, dict)) else getattr(vector, name)
