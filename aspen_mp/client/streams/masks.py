"""Masks for `ModelStream.run` that say what changed in a picture: from blocks, from motion vectors."""

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


def mask_of_motion(side_data: Any, shape: tuple[int, int]) -> Mask:
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
