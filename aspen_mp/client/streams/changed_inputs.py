"""Changes of a stream's inputs since the frame before, found by comparison or told by the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.client.streams._changes import Images
from aspen_mp.client.streams.tolerance import EXACT, InputNoise, Tolerance, applies
from aspen_mp.control.wire import protocol
from aspen_mp.shm import values
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.tables import LIMITS, NUMBERS

BOXES: Final = NUMBERS["REACH_BOXES"]
RANK: Final = LIMITS["rank"]
COUNTS: Final = 4
"""Words of REACH's second output in front of those of each output: tiles that run, all tiles, operations that run, all operations."""
BLOCK_ROWS: Final = 4
"""Rows of a block that is compared."""
BLOCK_BYTES: Final = 32
"""Fewest bytes of a row of a block."""
IMAGE_AXES: Final = 4
"""Fewest axes of an input of which the first counts images."""

Array = npt.NDArray[Any]
Span = tuple[int, int]
Box = tuple[Sequence[int], Sequence[int]]
Changed = Array | Sequence[Box]
"""Boxes, each (lower bounds, upper bounds) along all axes of the input, or a mask: booleans of the input's shape, or of its image axes."""


class ChangedInput:
    """One input of a plan that keeps activations."""

    def __init__(
        self, slot: protocol.Slot, kept: Array, bounds: npt.NDArray[np.int32], tolerance: Tolerance = EXACT, noise: InputNoise | None = None
    ) -> None:
        """`kept`: the input in the request's region. `bounds`: where the boxes of what changed go, as REACH reads them. `noise`: what the
        stream has learned of the input's noise."""
        self.name = slot.name
        self._tol = tolerance.of(slot.name) if applies(slot.dtype) else 0.0
        self._multiple = tolerance.noise if applies(slot.dtype) else 0.0
        self._noise = InputNoise() if noise is None else noise
        self._shape = tuple(slot.shape)
        self._object = slot.dtype == "object"
        self._kept = kept
        self._bounds = bounds
        self._axes = image_axes(self._shape)
        self._images: Images | None = None

    def start(self, value: Any) -> float:
        """Take the first frame's value. Return the share that changed, which is 1."""
        if self._object:
            values.Encoded(value).write(self._kept.data)
        else:
            self._kept[...] = value
        return self._write([(0,) * len(self._shape)], [self._shape])

    def compare(self, value: Any) -> float:
        """Take the next frame's value. Return the share of elements in boxes that hold all that changed by more than the tolerance. Other
        blocks of the input stay as they were."""
        if self._object or not self._kept.flags.c_contiguous:
            return self.start(value)
        if not self._kept.nbytes:
            return self._write([], [])
        if self._images is None:
            self._images = _images(self._shape or (1,), self._axes, self._kept.dtype)
        array = np.require(value, requirements=("C", "A"))
        tol = self._tolerated(array)
        found = self._images.update(array.reshape(-1).view(np.uint8), self._kept.reshape(-1).view(np.uint8), tol)
        return self._write(*self._in_full(found, one_by_one=len(self._shape) >= IMAGE_AXES))

    def _tolerated(self, value: Array) -> float:
        """The largest difference that counts as none. Frames from which noise is estimated are taken whole."""
        if not self._multiple:
            return self._tol
        deviation = self._noise.deviation
        if deviation is None:
            self._noise.see(self._kept, value)
            return 0.0
        return max(self._tol, self._multiple * deviation)

    def take(self, value: Any, changed: Changed | None) -> float:
        """Take the next frame's value, of which the caller says what changed: None for nothing. Only that is copied."""
        if changed is None:
            return self._write([], [])
        if self._object:
            raise RequestError(f"input {self.name!r} is not a tensor of numbers. Leave it out of `changed`")
        lows, highs = self._told(changed)
        for low, high in zip(lows, highs, strict=True):
            place = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
            self._kept[place] = value[place]
        return self._write(lows, highs)

    def _told(self, changed: Changed) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        if isinstance(changed, np.ndarray) and changed.dtype == bool:
            return self._in_full(self._cover(changed), one_by_one=False)
        lows, highs = [], []
        for box in changed:
            try:
                low, high = (tuple(int(end) for end in ends) for ends in box)
            except (TypeError, ValueError):
                raise RequestError(f"input {self.name!r}: {box!r} is not a box, (lower bounds, upper bounds)") from None
            if len(low) != len(self._shape) or len(high) != len(self._shape):
                raise RequestError(f"input {self.name!r}: a box of {len(low)} axes, but the input has {len(self._shape)}")
            low = tuple(min(max(a, 0), length) for a, length in zip(low, self._shape, strict=True))
            high = tuple(min(max(b, 0), length) for b, length in zip(high, self._shape, strict=True))
            if all(a < b for a, b in zip(low, high, strict=True)):
                lows.append(low)
                highs.append(high)
        return lows, highs

    def _cover(self, mask: npt.NDArray[np.bool_]) -> list[tuple[Span, Span, Span]]:
        """Boxes that hold all that a mask marks."""
        axes = tuple(sorted(set(self._axes))) if self._shape else ()
        sides = tuple(self._shape[axis] for axis in axes)
        if mask.shape == self._shape:
            mask = np.asarray(mask.any(axis=tuple(axis for axis in range(len(self._shape)) if axis not in axes)))
        if mask.shape != sides:
            raise RequestError(f"input {self.name!r}: a mask of shape {mask.shape}, instead of {self._shape} or {sides} (axes {axes})")
        if not mask.any():
            return []
        down, across = (1, 1, *sides)[-2:]
        return Images((1, 1, down, 1, across, 1), 1, 1, BOXES).cover(np.ascontiguousarray(mask).reshape(-1).view(np.uint8))

    def _in_full(
        self, found: Sequence[tuple[Span, Span, Span]], *, one_by_one: bool
    ) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Boxes of images, rows and columns along all axes. `one_by_one`: the first axis counts the images; otherwise boxes hold all of it.
        An input of one image axis has columns only."""
        lows, highs = [], []
        down, across = self._axes
        for images, rows, columns in found:
            low, high = [0] * len(self._shape), list(self._shape)
            if one_by_one:
                low[0], high[0] = images
            if down != across:
                low[down], high[down] = rows
            if self._shape:
                low[across], high[across] = columns
            lows.append(tuple(low))
            highs.append(tuple(high))
        return lows, highs

    def _write(self, lows: Sequence[tuple[int, ...]], highs: Sequence[tuple[int, ...]]) -> float:
        """Write boxes for REACH. Those beyond `BOXES` are joined with the last one. Return the share of elements in them."""
        bounds, rank = self._bounds, len(self._shape)
        n = min(len(lows), BOXES)
        for k in range(n):
            begin = 1 + 2 * k * RANK
            rest = slice(k, None if k == BOXES - 1 else k + 1)
            bounds[begin : begin + rank] = np.min(lows[rest], axis=0) if rank else 0
            bounds[begin + RANK : begin + RANK + rank] = np.max(highs[rest], axis=0) if rank else 0
        bounds[0] = n
        whole = prod(self._shape)
        part = sum(prod(b - a for a, b in zip(low, high, strict=True)) for low, high in zip(lows, highs, strict=True))
        return min(part / whole, 1.0) if whole else 0.0


def share(inputs: Sequence[ChangedInput], parts: Mapping[str, float], sizes: Mapping[str, int]) -> float:
    """The share of all inputs' elements that changed, given that of each."""
    whole = sum(sizes.values())
    return sum(parts[one.name] * sizes[one.name] for one in inputs) / whole if whole else 0.0


def trust_word(buffer: memoryview, region: int, changes: protocol.Slot) -> Array:
    """The word of a region that says whether its activations are trusted (`plan_header.request_kept`). `region`: where it begins in
    `buffer`. `changes`: the input that REACH reads."""
    return np.ndarray((1,), np.uint32, buffer, region + changes.offset - NUMBERS["REACH_LINE"])


def image_axes(shape: Sequence[int]) -> tuple[int, int]:
    """The two longest axes, those of an image; with four axes or more, the first is not one of them."""
    first = 1 if len(shape) >= IMAGE_AXES else 0
    longest = sorted(sorted(range(first, len(shape)), key=lambda axis: -shape[axis])[:2])
    return (longest[0], longest[-1]) if longest else (0, 0)


def _images(shape: Sequence[int], axes: tuple[int, int], dtype: np.dtype[Any]) -> Images:
    (down, across), item = axes, dtype.itemsize
    if down == across:  # a row
        inner, length = prod(shape[across + 1 :]) * item, shape[across]
        return Images((1, prod(shape[:across]), 1, 1, length, inner), 1, max(1, BLOCK_BYTES // inner), BOXES, dtype.name)
    inner = prod(shape[across + 1 :]) * item
    batch = shape[0] if len(shape) >= IMAGE_AXES else 1
    outer, between = prod(shape[:down]) // batch, prod(shape[down + 1 : across])
    columns = max(1, BLOCK_BYTES // inner)
    return Images((batch, outer, shape[down], between, shape[across], inner), BLOCK_ROWS, columns, BOXES, dtype.name)
